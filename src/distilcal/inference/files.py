"""Labelling a file: labels, calibrated confidences, and who answered or should, for new data, as CSV."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.data import Columns, Dataset, read_dataset
from distilcal.errors import InputError
from distilcal.inference.deferral import Acceptance, DeferralTeacher, MergedAnswers, ask_about, merge_answers
from distilcal.inference.student import OnProgress, Student
from distilcal.io.atomic import atomic_write, check_output
from distilcal.io.tables import write_csv
from distilcal.predictions import FloatArray, Predictions

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
    acceptance : Acceptance or None
        From which confidence the student's answers are kept; None if it has no dev rows, so that nothing can be promised.
    by_teacher : int
        How many of them a teacher answered.
    cost : float or None
        Time that student and teacher took, as a share of what the teacher alone would take for all examples; None if no teacher
        was asked.
    """

    rows: int
    handed_over: int
    acceptance: Acceptance | None
    by_teacher: int = 0
    cost: float | None = None


def predict_file(
    student: Student,
    source: str | Path,
    output: Path,
    *,
    columns: Columns | None = None,
    size: int | None = None,
    accuracy: float | None = None,
    confidence: float | None = None,
    max_loss: float | None = None,
    defer_to: Any = None,
    probs: bool = False,
    on_progress: OnProgress | None = None,
) -> PredictedFile:
    """Label new data and write id, label, calibrated confidence and hand_over as CSV, with a teacher also answered_by.

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
    confidence : float, optional
        The lowest confidence of these answers, in place of an accuracy.
    max_loss : float, optional
        In place of both, the accuracy that student and teacher together may lose to the teacher alone.
    defer_to : object, optional
        A teacher that answers in place of a human; see `Student.predict`. The column answered_by tells "student" or "teacher",
        and is empty, as the label is, where the teacher had no answer.
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
        If the output is no .csv or the data themselves, the data cannot be read or are not what the student reads, an accuracy
        is required of a student without dev rows, or the teacher cannot answer for it.
    TeacherError
        If the teacher fails; then nothing is written.
    """
    check_labelled_file(source, output)
    acceptance = None
    if student.dev is not None or any(setting is not None for setting in (accuracy, confidence, max_loss, defer_to)):
        acceptance = student.acceptance(accuracy=accuracy, confidence=confidence, max_loss=max_loss)
    teacher = None if defer_to is None else student.teacher(defer_to)
    columns = columns or Columns()
    columns = Columns(columns.text, columns.pair, columns.choices, label=NO_LABEL, id=columns.id)
    read = read_dataset(source, columns=columns, labelled=False, size=size)
    data = student.as_dataset(Dataset(read.inputs, ids=read.ids, name=read.name))
    begun = time.perf_counter()
    predictions = student.predictions(data, on_progress=on_progress)
    student_seconds = time.perf_counter() - begun
    if acceptance is None or teacher is None:
        hand_over = None if acceptance is None else acceptance.defers(predictions.confidence)
        _write_student(output, data, predictions, hand_over, probs)
        return PredictedFile(len(data), 0 if hand_over is None else int(hand_over.sum()), acceptance)
    begun = time.perf_counter()
    answers = _defer(predictions, data, acceptance, teacher)
    teacher_seconds = time.perf_counter() - begun
    _write_answers(output, data, answers, probs)
    handed_over, deferred = answers.answered_by.count(None), int(answers.deferred.sum())
    cost = None
    if deferred:
        cost = (student_seconds + teacher_seconds) / (teacher_seconds / deferred * len(data))
    return PredictedFile(len(data), handed_over, acceptance, deferred - handed_over, cost)


def _defer(predictions: Predictions, data: Dataset, acceptance: Acceptance, teacher: DeferralTeacher) -> MergedAnswers:
    deferred = acceptance.defers(predictions.confidence)
    answer = ask_about(teacher, data.select(deferred)) if deferred.any() else None
    return merge_answers(predictions.classes, predictions.probs, deferred, answer)


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


def _write_student(path: Path, data: Dataset, predictions: Predictions, hand_over: Any, probs: bool) -> None:
    columns: dict[str, Iterable[Any]] = {
        "id": data.ids,
        "label": np.array(predictions.classes)[predictions.predicted],
        "confidence": map(SIX_DIGITS, predictions.confidence),
        "hand_over": repeat("", len(predictions)) if hand_over is None else hand_over.astype(int),
    }
    _write(path, columns, predictions.classes, predictions.probs if probs else None)


def _write_answers(path: Path, data: Dataset, answers: MergedAnswers, probs: bool) -> None:
    columns: dict[str, Iterable[Any]] = {
        "id": data.ids,
        "label": [label or "" for label in answers.labels],
        "confidence": map(_digits, answers.confidence.tolist()),
        "hand_over": [int(name is None) for name in answers.answered_by],
        "answered_by": [name or "" for name in answers.answered_by],
    }
    _write(path, columns, answers.classes, answers.probs if probs else None)


def _write(path: Path, columns: dict[str, Iterable[Any]], classes: Sequence[str], probs: FloatArray | None) -> None:
    if probs is not None:
        columns |= {f"prob_{name}": map(_digits, column.tolist()) for name, column in zip(classes, probs.T, strict=True)}
    with atomic_write(path) as file:
        write_csv(file, [list(columns)])
        write_csv(file, zip(*columns.values(), strict=True))


def _digits(value: float) -> str:
    """Six digits; empty for a NaN."""
    return "" if value != value else SIX_DIGITS(value)
