"""Labelling a file: labels, calibrated confidences, and who answered or should, for new data, as CSV."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.data import Columns, Dataset
from distilcal.data.sources import read_unlabelled
from distilcal.data.table_source import dataset_from_table, label_columns
from distilcal.errors import InputError
from distilcal.inference.deferral import Acceptance, DeferralTeacher, MergedAnswers, ask_about, merge_answers
from distilcal.inference.student import OnProgress, Student
from distilcal.io.atomic import atomic_write, check_output, refuse_same_file
from distilcal.io.tables import SUFFIXES, read_table, table_kind, write_csv
from distilcal.predictions import FloatArray, Predictions
from distilcal.selective import check_costs

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
        What student and teacher cost, as a share of what the teacher alone would cost for all examples: their time, or their
        prices where these were given. None if no teacher was asked.
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
    costs: tuple[float, float] | None = None,
    probs: bool = False,
    keep_columns: bool = True,
    escape_formulas: bool = True,
    on_progress: OnProgress | None = None,
) -> PredictedFile:
    """Label new data and write id, label, calibrated confidence and hand_over as CSV, with a teacher also answered_by.

    The columns of a table follow, under ``input_NAME`` where the name is one of ours.

    Parameters
    ----------
    student : Student
        The model.
    source : str or Path
        The data: a file, a folder of pictures, or ``hub:NAME@SPLIT``. Labels are not needed, and not read.
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
    costs : (float, float), optional
        The cost of an example of the student and of the teacher, in any unit, in place of the time that they take.
    probs : bool, default False
        Whether to write the probability of every class too, as columns ``prob_<class>``.
    keep_columns : bool, default True
        Whether to write the columns of a .csv, .tsv, .jsonl or .parquet too.
    escape_formulas : bool, default True
        Whether texts that a spreadsheet would run get an apostrophe before them; see ``distilcal.io.tables.write_csv``.
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
        is required of a student without dev rows, the teacher cannot answer for it, or costs are given without a teacher.
    TeacherError
        If the teacher fails; then nothing is written.
    """
    check_labelled_file(source, output)
    if costs is not None and defer_to is None:
        raise InputError("costs are those of a student with a teacher", remedy="name the teacher with defer_to (--defer-to)")
    check_costs(costs)
    acceptance = None
    if student.dev is not None or any(setting is not None for setting in (accuracy, confidence, max_loss, defer_to)):
        acceptance = student.acceptance(accuracy=accuracy, confidence=confidence, max_loss=max_loss)
    teacher = None if defer_to is None else student.teacher(defer_to)
    read, kept = _read(source, columns or Columns(), size)
    data = student.as_dataset(read)
    kept = kept if keep_columns else {}
    begun = time.perf_counter()
    predictions = student.predictions(data, on_progress=on_progress)
    student_seconds = time.perf_counter() - begun
    if acceptance is None or teacher is None:
        hand_over = None if acceptance is None else acceptance.defers(predictions.confidence)
        _write(output, _student_columns(data, predictions, hand_over, probs), kept, student.classes, escape_formulas)
        return PredictedFile(len(data), 0 if hand_over is None else int(hand_over.sum()), acceptance)
    begun = time.perf_counter()
    answers = _defer(predictions, data, acceptance, teacher)
    teacher_seconds = time.perf_counter() - begun
    _write(output, _answer_columns(data, answers, probs), kept, student.classes, escape_formulas)
    handed_over, deferred = answers.answered_by.count(None), int(answers.deferred.sum())
    cost = None
    if costs is not None:
        cost = costs[0] / costs[1] + deferred / len(data)
    elif deferred:
        cost = (student_seconds + teacher_seconds) / (teacher_seconds / deferred * len(data))
    return PredictedFile(len(data), handed_over, acceptance, deferred - handed_over, cost)


def _read(source: str | Path, columns: Columns, size: int | None) -> tuple[Dataset, Mapping[str, Sequence[Any]]]:
    """The examples without labels, and the columns of a table to keep: all but that of the ids if it is called ``id``."""
    columns = replace(columns, label=NO_LABEL, group="")
    path = Path(source)
    if not path.is_file() or table_kind(path) not in SUFFIXES:
        data = read_unlabelled(source, columns=columns, size=size)
        prefix = f"{path.name}{os.sep}"  # of the ids of pictures in a folder, which tells several folders apart
        return replace(data, ids=np.array([name.removeprefix(prefix) for name in data.ids.tolist()])), {}
    table = read_table(path)
    labels = label_columns(table, columns)
    others = {name: values for name, values in table.columns.items() if name not in labels}
    data = dataset_from_table(replace(table, columns=others), columns, labelled=False)
    is_id = columns.id in ("", "id")
    return data, {name: values for name, values in table.columns.items() if name != "id" or not is_id}


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
        If no data are named, or the output is no .csv, is the data themselves, or cannot be written.
    """
    if not str(source).strip():
        raise InputError("no data are named", remedy="give a file, a folder of pictures, or hub:NAME@SPLIT")
    if output.suffix != ".csv":
        raise InputError(f"{str(output)!r} is not a .csv", remedy="give a name that ends in .csv")
    check_output(output)
    refuse_same_file([source], [output])


def _student_columns(data: Dataset, predictions: Predictions, hand_over: Any, probs: bool) -> dict[str, Iterable[Any]]:
    columns: dict[str, Iterable[Any]] = {
        "id": data.ids,
        "label": np.array(predictions.classes)[predictions.predicted],
        "confidence": map(SIX_DIGITS, predictions.confidence),
        "hand_over": repeat("", len(predictions)) if hand_over is None else hand_over.astype(int),
    }
    return columns | (_probability_columns(predictions.classes, predictions.probs) if probs else {})


def _answer_columns(data: Dataset, answers: MergedAnswers, probs: bool) -> dict[str, Iterable[Any]]:
    columns: dict[str, Iterable[Any]] = {
        "id": data.ids,
        "label": [label or "" for label in answers.labels],
        "confidence": map(_digits, answers.confidence.tolist()),
        "hand_over": [int(name is None) for name in answers.answered_by],
        "answered_by": [name or "" for name in answers.answered_by],
    }
    return columns | (_probability_columns(answers.classes, answers.probs) if probs else {})


def _probability_columns(classes: Sequence[str], probs: FloatArray) -> dict[str, Iterable[Any]]:
    return {f"prob_{name}": map(_digits, column.tolist()) for name, column in zip(classes, probs.T, strict=True)}


def _write(
    path: Path,
    columns: dict[str, Iterable[Any]],
    kept: Mapping[str, Sequence[Any]],
    classes: Sequence[str],
    escape_formulas: bool,
) -> None:
    # Probabilities of another model in the input do not keep a name by which they would be read as those of this one.
    reserved = {f"prob_{name}" for name in classes}
    for name, values in kept.items():
        while name in columns or name in reserved:
            name = f"input_{name}"
        columns[name] = map(_cell, values)
    with atomic_write(path) as file:
        write_csv(file, columns, escape_formulas=escape_formulas)


def _cell(value: Any) -> Any:
    """What csv writes for a value of a table; lists and the like as JSON."""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict | bool) else value


def _digits(value: float) -> str:
    """Six digits; empty for a NaN."""
    return "" if value != value else SIX_DIGITS(value)
