"""Using a trained model of a run: labels, calibrated confidences and hand-over for new data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.calibrate import load_calibrator
from distilcal.config.loading import load_recipe
from distilcal.data import Columns, Dataset, read_dataset
from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write, check_output, read_json
from distilcal.io.tables import write_csv
from distilcal.models.classifier import load_classifier
from distilcal.models.inputs import OnProgress
from distilcal.pipeline.stage import move_to_device
from distilcal.predictions import Predictions
from distilcal.runs import main_stage
from distilcal.training import compute_outputs

NO_LABEL = "\0"  # no column has this name: labels, if there are any, are not read


@dataclass(frozen=True)
class PredictedFile:
    """What `predict_file` wrote."""

    rows: int
    handed_over: int  # rows below the threshold
    threshold: float | None  # confidence; None if no confidence reached the required accuracy on dev


def predict_file(
    run: Path,
    source: str,
    output: Path,
    *,
    stage: str = "",
    text: str = "",
    pair: str = "",
    id_column: str = "",
    on_progress: OnProgress | None = None,
) -> PredictedFile:
    """Label new data with a model of a run and write id, label, calibrated confidence and hand_over as CSV.

    Parameters
    ----------
    run : Path
        The folder of a finished run.
    source : str
        The data: a file, a folder, ``hub:NAME@SPLIT`` or ``benchmark:NAME``. Labels are not needed.
    output : Path
        The .csv to write.
    stage : str, default ""
        Which model of the run; its student by default.
    text, pair : str, default ""
        Columns of texts, if other than in the run's own data.
    id_column : str, default ""
        Column of ids.
    on_progress : callable, optional
        Called with the number of examples done and of all.

    Returns
    -------
    PredictedFile
        How many rows were written, and how many of them to hand over to a human.

    Raises
    ------
    InputError
        If the folder holds no finished run, the stage has no model, or the data cannot be read.
    """
    if output.suffix != ".csv":
        raise InputError(f"{str(output)!r} is not a .csv", remedy="give a name that ends in .csv")
    check_output(output)
    stage, facts = _read_stage(run, stage)
    folder = run / stage
    classifier = move_to_device(load_classifier(folder / "model"))
    settings = load_recipe(run / "recipe.toml").data
    columns = Columns(
        text=text or settings.text,
        pair=pair or settings.pair,
        choices=settings.choices,
        label=NO_LABEL,
        id=id_column,
        group="",
    )
    data = read_dataset(source, columns=columns, labelled=False, size=settings.size or None)
    logits = compute_outputs(classifier, data, on_progress=on_progress)["logits"]
    predictions = Predictions(logits, ids=data.ids, classes=classifier.classes)
    if facts["calibrator"] is not None:
        suffix = "json" if facts["calibrator"] == "temperature" else "npz"
        predictions = load_calibrator(folder / f"calibrator.{suffix}")(predictions)
    threshold = (facts["threshold"] or {}).get("confidence")
    hand_over = np.ones(len(predictions), dtype=bool)
    if threshold is not None:
        hand_over = predictions.confidence < threshold
    _write_predictions(output, data, predictions, hand_over)
    return PredictedFile(rows=len(predictions), handed_over=int(hand_over.sum()), threshold=threshold)


def _read_stage(run: Path, stage: str) -> tuple[str, dict[str, Any]]:
    """The name of the stage, the main one by default, and what metrics.json holds about it."""
    if not (run / "metrics.json").exists():
        raise InputError(
            "this is not the folder of a finished run", source=str(run), remedy="give one made by distilcal run or distill"
        )
    stages = read_json(run / "metrics.json")["stages"]
    stage = stage or main_stage(stages)
    if stage not in stages:
        raise InputError(f"the run has no stage {stage!r}", source=str(run), remedy=f"it has {', '.join(stages)}")
    if not (run / stage / "model").exists():
        raise InputError(f"{stage!r} is known by its predictions only", source=str(run), remedy="name a stage that has a model")
    return stage, stages[stage]


def _write_predictions(path: Path, data: Dataset, predictions: Predictions, hand_over: NDArray[np.bool_]) -> None:
    labels = np.array(predictions.classes)[predictions.predicted]
    confidences = (f"{confidence:.6f}" for confidence in predictions.confidence)
    with atomic_write(path) as file:
        write_csv(file, [["id", "label", "confidence", "hand_over"]])
        write_csv(file, zip(data.ids, labels, confidences, hand_over.astype(int), strict=True))
