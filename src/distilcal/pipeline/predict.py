"""Using what a run made: labels, calibrated confidences and hand-over for new data."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from distilcal.calibrate import load_calibrator
from distilcal.config.loading import load_recipe
from distilcal.data import Columns, read_dataset
from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write, check_output, read_json
from distilcal.models.classifier import load_classifier
from distilcal.models.inputs import OnProgress
from distilcal.pipeline.stage import on_device
from distilcal.predictions import Predictions
from distilcal.runs import main_stage
from distilcal.training import compute_outputs

NO_LABEL = "\0"  # no column is called so: labels, if there are any, are not looked at


def predict_file(
    run: Path,
    source: str,
    output: Path,
    *,
    stage: str = "",
    text: str = "",
    pair: str = "",
    id_column: str = "",
    progress: OnProgress | None = None,
) -> dict[str, float]:
    """Write id, label, calibrated confidence and whether to hand over for each example; counts of what was written.

    The columns are those of the run's own data unless others are given. Labels in the source are not needed.
    """
    if output.suffix != ".csv":
        raise InputError(f"{str(output)!r} is not a .csv", remedy="give a name that ends in .csv")
    check_output(output)
    if not (run / "metrics.json").exists():
        raise InputError(
            "this is not the folder of a finished run", source=str(run), remedy="give one made by distilcal run or distill"
        )
    facts = read_json(run / "metrics.json")
    stage = stage or main_stage(facts["stages"])
    if stage not in facts["stages"]:
        raise InputError(f"the run has no stage {stage!r}", source=str(run), remedy=f"it has {', '.join(facts['stages'])}")
    folder = run / stage
    if not (folder / "model").exists():
        raise InputError(f"{stage!r} is known by its predictions only", source=str(run), remedy="name a stage that has a model")
    classifier = on_device(load_classifier(folder / "model"))
    data = load_recipe(run / "recipe.toml").data
    columns = Columns(text or data.text, pair or data.pair, data.choices, NO_LABEL, id_column, "")
    examples = read_dataset(source, columns=columns, labelled=False, size=data.size or None)
    logits = compute_outputs(classifier, examples, on_progress=progress)["logits"]
    said = Predictions(logits, np.zeros(len(examples), dtype=np.int64), ids=examples.ids, classes=classifier.classes)
    fitted = facts["stages"][stage]["calibrator"]
    if fitted is not None:
        said = load_calibrator(folder / ("calibrator.json" if fitted == "temperature" else "calibrator.npz"))(said)
    limit = (facts["stages"][stage]["threshold"] or {}).get("confidence")
    sure = np.zeros(len(said), dtype=bool) if limit is None else said.confidence >= limit
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["id", "label", "confidence", "hand_over"])
    names = np.array(said.classes)[said.predicted]
    writer.writerows(zip(examples.ids, names, (f"{c:.6f}" for c in said.confidence), (~sure).astype(int), strict=True))
    with atomic_write(output) as file:
        file.write(lines.getvalue().encode())
    return {"rows": len(said), "handed_over": float((~sure).sum()), "threshold": float("nan") if limit is None else limit}
