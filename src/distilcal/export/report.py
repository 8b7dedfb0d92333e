"""What an export changed: size, speed, accuracy and calibration of the exported file beside the model that it was made from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.data import Dataset
from distilcal.inference import Student
from distilcal.io.atomic import write_json
from distilcal.metrics import Comparison, MetricValue, compare, evaluate
from distilcal.metrics.intervals import binomial_interval
from distilcal.predictions import Predictions
from distilcal.report.formatting import format_number

MEASURED = ("accuracy", "nll", "ece")
REPEATS = {1: 15, 32: 3}  # timed passes at each batch size
MEGABYTE = 1e6


class AccuracyWarning(UserWarning):
    """An exported model is less accurate than the one that it was made from."""


@dataclass(frozen=True)
class ModelFacts:
    """Size, speed and quality of one form of a student.

    Attributes
    ----------
    name : str
        "torch", "float" or "int8".
    size : int
        Bytes of its weights or of its file.
    milliseconds : dict of int to float
        Median time of a batch, from raw input to probabilities in one thread, by batch size; empty if it was not timed.
    metrics : dict of str to MetricValue
        Accuracy, NLL and ECE on test, with intervals; empty without labelled test data.
    """

    name: str
    size: int
    milliseconds: dict[int, float]
    metrics: dict[str, MetricValue]


@dataclass(frozen=True)
class ExportReport:
    """What `export_onnx` wrote, beside the model that it was made from. Printed, it is a table.

    Attributes
    ----------
    path : Path
        The file.
    reference : ModelFacts
        The model it was made from: torch's for a float file, the float file for int8.
    exported : ModelFacts
        The file.
    rows : int
        Rows of the test data; 0 without test data.
    flipped : int
        Test rows that get another answer from the file than from its reference.
    comparison : Comparison, optional
        Paired differences with intervals, file minus reference.
    notes : tuple of str
        What the user should know.
    """

    path: Path
    reference: ModelFacts
    exported: ModelFacts
    rows: int
    flipped: int
    comparison: Comparison | None
    notes: tuple[str, ...] = ()

    @property
    def accuracy_drop(self) -> tuple[float, float, float] | None:
        """Loss of accuracy in percentage points, with the ends of its interval; None without test data."""
        if self.comparison is None:
            return None
        change = self.comparison["accuracy"]
        return -100 * change.difference, -100 * change.high, -100 * change.low

    def __str__(self) -> str:
        before, after = self.reference, self.exported
        lines: list[tuple[str, ...]] = [("", before.name, after.name, "change")]
        lines.append(("size", _megabytes(before.size), _megabytes(after.size), _ratio(before.size, after.size)))
        for batch in after.milliseconds:
            times = before.milliseconds[batch], after.milliseconds[batch]
            lines.append((f"ms, batch of {batch}", *(format_number(ms, 1) for ms in times), _ratio(*times)))
        if self.comparison is not None:
            for name in MEASURED:
                values = (_with_interval(facts.metrics[name]) for facts in (before, after))
                d = self.comparison[name]
                lines.append((name, *values, f"{_signed(d.difference)} [{_signed(d.low)}, {_signed(d.high)}]"))
            low, high = binomial_interval(np.array([self.flipped]), np.array([self.rows]), 0.95)
            share = f"{self.flipped / self.rows:.1%} [{low[0]:.1%}, {high[0]:.1%}]"
            lines.append(("other answers", "", f"{self.flipped:,} of {self.rows:,}", share))
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([str(self.path), *table, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        comparison = {}
        if self.comparison is not None:
            for name in MEASURED:
                d = self.comparison[name]
                comparison[name] = {"difference": _finite(d.difference), "low": _finite(d.low), "high": _finite(d.high)}
        return {
            "format": 1,
            "file": self.path.name,
            "models": [_facts_to_json(facts) for facts in (self.reference, self.exported)],
            "rows": self.rows,
            "flipped": self.flipped,
            "differences": comparison,
            "notes": list(self.notes),
        }

    def save(self, path: Path) -> None:
        """Write the report as a JSON file.

        Parameters
        ----------
        path : Path
            The file to write.
        """
        write_json(path, self.to_json())


def build_report(
    path: Path, models: Sequence[tuple[str, int, Student]], data: Dataset | None, *, notes: tuple[str, ...] = ()
) -> ExportReport:
    """Measure a student before and after an export.

    Parameters
    ----------
    path : Path
        The file that is written.
    models : two tuples of name, bytes and Student
        The reference and what was exported.
    data : Dataset, optional
        Labelled test data. Without it, size is all that is known.
    notes : tuple of str
        What the user should know.

    Returns
    -------
    ExportReport
    """
    students = [student for _, _, student in models]
    times: list[dict[int, float]] = [{} for _ in models]
    predictions: list[Predictions] = []
    if data is not None:
        for batch in REPEATS:
            for facts, milliseconds in zip(times, time_students(students, data, batch), strict=True):
                facts[batch] = milliseconds
        predictions = [student.predictions(data).rename(name) for name, _, student in models]
    measured = [dict(evaluate(scores, MEASURED, intervals=1000).metrics) for scores in predictions] or [{}, {}]
    rows = zip(models, times, measured, strict=True)
    reference, exported = (ModelFacts(name, size, ms, metrics) for (name, size, _), ms, metrics in rows)
    if not predictions:
        return ExportReport(path, reference, exported, 0, 0, None, notes)
    before, after = predictions
    flipped = int((before.predicted != after.predicted).sum())
    return ExportReport(path, reference, exported, len(before), flipped, compare(before, after, MEASURED), notes)


def time_students(students: Sequence[Student], data: Dataset, batch: int) -> list[float]:
    """Measure how long students take for a batch, in turns, so that a busy machine slows all alike.

    Parameters
    ----------
    students : sequence of Student
        What to time.
    data : Dataset
        Where the batches are taken from, each time others.
    batch : int
        Examples of a batch.

    Returns
    -------
    list of float
        Median milliseconds of each student.
    """
    seconds: list[list[float]] = [[] for _ in students]
    for repeat in range(REPEATS[batch] + 1):
        rows = (np.arange(batch) + repeat * batch) % len(data)
        part = Dataset(data.inputs.take(rows), ids=np.arange(batch).astype(str))
        for student, times in zip(students, seconds, strict=True):
            start = time.perf_counter()
            student.predict_proba(part)
            times.append(time.perf_counter() - start)
    return [1000 * float(np.median(times[1:])) for times in seconds]  # the first pass warms up


def _megabytes(size: int) -> str:
    return f"{size / MEGABYTE:.1f} MB"


def _ratio(before: float, after: float) -> str:
    return f"× {after / before:.2f}"


def _with_interval(metric: MetricValue) -> str:
    return f"{format_number(metric.value)} [{format_number(metric.low)}, {format_number(metric.high)}]"


def _signed(value: float) -> str:
    return f"{value:+.3f}" if np.isfinite(value) else format_number(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def _facts_to_json(facts: ModelFacts) -> dict[str, Any]:
    return {
        "name": facts.name,
        "bytes": facts.size,
        "milliseconds": {str(batch): value for batch, value in facts.milliseconds.items()},
        "metrics": {
            name: {"value": _finite(metric.value), "low": _finite(metric.low), "high": _finite(metric.high)}
            for name, metric in facts.metrics.items()
        },
    }
