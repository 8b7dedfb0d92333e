"""Labelling a file: labels, calibrated confidences and hand-over for new data, as CSV."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data import Columns, Dataset, read_dataset
from distilcal.errors import InputError
from distilcal.inference.student import OnProgress, Student
from distilcal.io.atomic import atomic_write, check_output
from distilcal.io.tables import write_csv
from distilcal.predictions import Predictions
from distilcal.selective import Threshold

SIX_DIGITS = "{:.6f}".format
NO_LABEL = "\0"  # no column has this name: labels, if there are any, are not read


@dataclass(frozen=True)
class PredictedFile:
    """What `predict_file` wrote.

    Attributes
    ----------
    rows : int
        How many examples.
    handed_over : int
        How many of them a human should answer.
    threshold : Threshold or None
        From which confidence answers are accepted; None if the student has no dev rows, so that nothing can be promised.
    """

    rows: int
    handed_over: int
    threshold: Threshold | None


def predict_file(
    student: Student,
    source: str | Path,
    output: Path,
    *,
    columns: Columns | None = None,
    size: int | None = None,
    accuracy: float | None = None,
    probs: bool = False,
    on_progress: OnProgress | None = None,
) -> PredictedFile:
    """Label new data and write id, label, calibrated confidence and hand_over as CSV.

    Parameters
    ----------
    student : Student
        The model.
    source : str or Path
        The data: a file, a folder or ``hub:NAME@SPLIT``. Labels are not needed, and not read.
    output : Path
        The .csv to write.
    columns : Columns, optional
        Which columns hold the input and the id. By default they are found by their usual names.
    size : int, optional
        Width and height to which pictures of a folder are scaled.
    accuracy : float, optional
        Required accuracy of the answers that are not handed over. By default the one that the student's run required.
    probs : bool, default False
        Whether to write the probability of every class too, as columns ``prob_<class>``.
    on_progress : callable, optional
        Called with the number of examples done and of all.

    Returns
    -------
    PredictedFile
        How many rows were written, and how many of them to hand over to a human. Without dev rows nothing can be promised, and
        the column hand_over is empty.

    Raises
    ------
    InputError
        If the output is no .csv or the data themselves, the data cannot be read or are not what the student reads, or an
        accuracy is required of a student without dev rows.
    """
    check_labelled_file(source, output)
    threshold = None
    if accuracy is not None or student.dev is not None:
        threshold = student.threshold(student.required_accuracy if accuracy is None else accuracy)
    columns = columns or Columns()
    columns = Columns(columns.text, columns.pair, columns.choices, label=NO_LABEL, id=columns.id)
    read = read_dataset(source, columns=columns, labelled=False, size=size)
    data = student.as_dataset(Dataset(read.inputs, ids=read.ids, name=read.name))
    predictions = student.predictions(data, on_progress=on_progress)
    hand_over = None
    if threshold is not None:
        lowest = np.inf if threshold.confidence is None else threshold.confidence
        hand_over = predictions.confidence < lowest
    _write(output, data, predictions, hand_over, probs)
    return PredictedFile(len(data), 0 if hand_over is None else int(hand_over.sum()), threshold)


def check_labelled_file(source: str | Path, output: Path) -> None:
    """Raise an InputError if the labels of some data cannot be written to a file.

    Parameters
    ----------
    source : str or Path
        The data.
    output : Path
        The file to write.

    Raises
    ------
    InputError
        If the output is no .csv, is the data themselves, or cannot be written.
    """
    if output.suffix != ".csv":
        raise InputError(f"{str(output)!r} is not a .csv", remedy="give a name that ends in .csv")
    check_output(output)
    if output.exists() and Path(source).exists() and output.samefile(source):
        raise InputError("the output would replace the data", source=str(output), remedy="give another name")


def _write(path: Path, data: Dataset, predictions: Predictions, hand_over: NDArray[np.bool_] | None, probs: bool) -> None:
    header = ["id", "label", "confidence", "hand_over"]
    columns: list[Iterable[Any]] = [
        data.ids,
        np.array(predictions.classes)[predictions.predicted],
        map(SIX_DIGITS, predictions.confidence),
        repeat("", len(predictions)) if hand_over is None else hand_over.astype(int),
    ]
    if probs:
        header += [f"prob_{name}" for name in predictions.classes]
        columns += [map(SIX_DIGITS, column) for column in predictions.probs.T]
    with atomic_write(path) as file:
        write_csv(file, [header])
        write_csv(file, zip(*columns, strict=True))
