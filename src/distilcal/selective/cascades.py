"""A student that hands its least confident predictions to its teacher: what the pair gives and costs at every share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from distilcal.arguments import checked
from distilcal.errors import InputError
from distilcal.metrics import binomial_interval
from distilcal.metrics.rows import width_edges
from distilcal.predictions import FloatArray, IntArray, Predictions, join
from distilcal.selective.bounds import paired_rate_interval
from distilcal.selective.thresholds import check_share

COLUMNS = (
    "confidence", "handed_over", "accuracy", "accuracy_low", "accuracy_high", "nll", "ece", "cost",
    "kept_accuracy", "kept_low", "kept_high", "difference", "difference_low", "difference_high",
)  # fmt: skip


@dataclass(frozen=True)
class CascadePoint:
    """A cascade at one share handed over, or one of its two models alone.

    Attributes
    ----------
    confidence : float
        Rows of at least this confidence stay with the student; infinite if none does.
    handed_over : float
        Share of the rows that the teacher answers.
    accuracy, accuracy_low, accuracy_high : float
        Share of all rows that are answered correctly, with its exact interval.
    nll, ece : float
        Of all answers; ECE with the bins of the cascade.
    cost : float
        Per row; nan where no costs are known.
    kept_accuracy, kept_low, kept_high : float
        Accuracy of the student on the rows that it keeps, with its exact interval; nan if there are none.
    difference, difference_low, difference_high : float
        Accuracy less that of the teacher on the same rows, with its paired interval.
    """

    confidence: float
    handed_over: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    nll: float
    ece: float
    cost: float
    kept_accuracy: float
    kept_low: float
    kept_high: float
    difference: float
    difference_low: float
    difference_high: float


@dataclass(frozen=True, eq=False)
class Cascade:
    """The pair of a student and a teacher at rising shares handed over, from none to all.

    Attributes
    ----------
    name : str
        Name of the set of rows.
    student, teacher : str
        Names of the two models.
    rows : int
        Number of rows.
    costs : tuple of float or None
        Cost of the student and of the teacher per row; None where they are not known.
    unit : str
        Unit of the costs, such as ``"ms"``; may be empty.
    bins : int
        Number of equal-width bins of the ECE.
    level : float
        Coverage of the intervals.
    confidence : array (P,)
        Rows of at least this confidence stay with the student. Rising; infinite at the last point, where none stays.
    handed_over : array (P,)
        Share of the rows that the teacher answers, rising from 0 to 1.
    accuracy, accuracy_low, accuracy_high : array (P,)
        Share of all rows that are answered correctly, with exact (Clopper–Pearson) intervals.
    nll, ece : array (P,)
        Of all answers. The NLL is nan for predictions that hold confidences only.
    cost : array (P,)
        The student's cost of every row plus the teacher's of those handed over, per row; nan where costs are not known.
    kept_accuracy, kept_low, kept_high : array (P,)
        Accuracy of the student on the rows that it keeps, with exact intervals; nan at the last point.
    difference, difference_low, difference_high : array (P,)
        Accuracy of the pair less that of the teacher on the same rows, with paired (Tango's score) intervals.
    """

    name: str
    student: str
    teacher: str
    rows: int
    costs: tuple[float, float] | None
    unit: str
    bins: int
    level: float
    confidence: FloatArray
    handed_over: FloatArray
    accuracy: FloatArray
    accuracy_low: FloatArray
    accuracy_high: FloatArray
    nll: FloatArray
    ece: FloatArray
    cost: FloatArray
    kept_accuracy: FloatArray
    kept_low: FloatArray
    kept_high: FloatArray
    difference: FloatArray
    difference_low: FloatArray
    difference_high: FloatArray

    def __len__(self) -> int:
        return len(self.handed_over)

    def point(self, index: int) -> CascadePoint:
        """Return the values at one point of the curve."""
        return CascadePoint(**{name: float(getattr(self, name)[index]) for name in COLUMNS})

    def nearest(self, handed_over: float) -> CascadePoint:
        """Return the point whose share handed over is nearest to this one."""
        return self.point(int(np.abs(self.handed_over - handed_over).argmin()))

    @property
    def student_alone(self) -> CascadePoint:
        """The student without its teacher: nothing is handed over."""
        return self.point(0)

    @property
    def teacher_alone(self) -> CascadePoint:
        """The teacher without the student: it answers every row, and the student costs nothing."""
        values = {name: float(getattr(self, name)[-1]) for name in COLUMNS}
        cost = math.nan if self.costs is None else self.costs[1]
        return CascadePoint(**{**values, "cost": cost})

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it: infinity and NaN are the strings ``"inf"`` and ``"nan"``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        stored: dict[str, Any] = {name: values[name] for name in values if name not in COLUMNS}
        stored["costs"] = None if self.costs is None else list(self.costs)
        return {**stored, **{name: _to_json(values[name]) for name in COLUMNS}}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Cascade:
        """Return what :meth:`to_dict` stored."""
        columns = {name: np.array([float(value) for value in stored[name]]) for name in COLUMNS}
        costs = None if stored["costs"] is None else (float(stored["costs"][0]), float(stored["costs"][1]))
        return cls(**{**stored, **columns, "costs": costs})


@checked
def cascade(
    student: Predictions,
    teacher: Predictions,
    *,
    costs: tuple[float, float] | None = None,
    unit: str = "",
    points: int | None = 101,
    bins: int = 15,
    level: float = 0.95,
) -> Cascade:
    """Compute what a student and its teacher give together, for every share of rows that the student hands over.

    The student answers the rows of which it is most confident, the teacher the others. Rows of equal confidence go the same
    way. The cost is linear in the number of rows, after sorting them.

    Parameters
    ----------
    student, teacher : Predictions
        Predictions on the same rows, matched by id, or by position where neither has ids; classes are matched by name.
    costs : (float, float), optional
        Cost of the student and of the teacher per row, in any unit: milliseconds, prices.
    unit : str
        The unit of the costs.
    points : int, optional
        At most how many points of the curve to return, about equally far apart; None for every distinct confidence.
    bins : int
        Number of equal-width bins of the ECE.
    level : float
        Coverage of the intervals.

    Returns
    -------
    Cascade

    Raises
    ------
    InputError
        If the two share no rows, differ in classes or labels, have no labels, or a cost is not positive.

    Examples
    --------
    >>> student = Predictions.from_probs([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.55, 0.45]], [0, 1, 1, 1])
    >>> teacher = Predictions.from_probs([[0.8, 0.2], [0.1, 0.9], [0.6, 0.4], [0.2, 0.8]], [0, 1, 1, 1])
    >>> pair = cascade(student, teacher, costs=(1, 10))
    >>> pair.handed_over.tolist(), pair.accuracy.tolist()
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.5, 0.75, 1.0, 0.75, 0.75])
    >>> pair.nearest(0.5).cost
    6.0
    """
    check_costs(costs)
    check_share("level", level)
    if points is not None and points < 2:
        raise InputError(f"{points} points are no curve", remedy="give at least two, or None for all")
    student, teacher = join(student, teacher)
    n = len(student)
    order = np.argsort(-student.confidence, kind="stable")
    kept = _kept_rows(student.confidence[order], points)  # rising, from none to all
    right, teacher_right = student.correct[order], teacher.correct[order]
    kept_right, teacher_kept_right = _first_sums(right)[kept], _first_sums(teacher_right)[kept]
    correct = kept_right + teacher_right.sum() - teacher_kept_right
    losses, gains = _first_sums(teacher_right & ~right)[kept], _first_sums(right & ~teacher_right)[kept]
    low, high = binomial_interval(correct.astype(np.float64), np.full(len(kept), float(n)), level)
    kept_low, kept_high = binomial_interval(kept_right.astype(np.float64), kept.astype(np.float64), level)
    difference_low, difference_high = paired_rate_interval(gains, losses, n, level)
    with np.errstate(invalid="ignore"):
        kept_accuracy = np.where(kept > 0, kept_right / kept, np.nan)
    handed_over = 1 - kept / n
    student_cost, teacher_cost = costs if costs is not None else (math.nan, math.nan)
    columns = {
        "confidence": np.append(np.inf, student.confidence[order][kept[1:] - 1]),
        "handed_over": handed_over,
        "accuracy": correct / n,
        "accuracy_low": low,
        "accuracy_high": high,
        "nll": _pair_nll(student, teacher, order, kept),
        "ece": _pair_ece(student, teacher, order, kept, bins),
        "cost": student_cost + handed_over * teacher_cost,
        "kept_accuracy": kept_accuracy,
        "kept_low": kept_low,
        "kept_high": kept_high,
        "difference": (gains - losses) / n,
        "difference_low": difference_low,
        "difference_high": difference_high,
    }
    return Cascade(
        name=student.name,
        student="student" if student.name == teacher.name else student.name,
        teacher="teacher" if student.name == teacher.name else teacher.name,
        rows=n,
        costs=None if costs is None else (float(costs[0]), float(costs[1])),
        unit=unit,
        bins=bins,
        level=level,
        **{name: column[::-1] for name, column in columns.items()},
    )


@checked
def check_costs(costs: tuple[float, float] | None) -> None:
    """Raise an InputError unless the costs of student and teacher are positive numbers, or None.

    Parameters
    ----------
    costs : (float, float) or None
        Cost of the student and of the teacher per row.
    """
    if costs is None:
        return
    if np.shape(costs) != (2,):
        raise InputError(f"costs {costs!r:.80} are not two numbers", remedy="give those of the student and of the teacher")
    for model, cost in zip(("student", "teacher"), costs, strict=True):
        if not (cost > 0 and math.isfinite(cost)):
            raise InputError(f"the cost of the {model} is {cost}", remedy="give a positive number per row")


def _kept_rows(confidence: FloatArray, points: int | None) -> IntArray:
    """Return the numbers of rows that the student may keep, from 0 to all, for falling confidences."""
    n = len(confidence)
    possible = np.concatenate([[0], np.flatnonzero(confidence[1:] != confidence[:-1]) + 1, [n]])
    if points is None or points >= len(possible):
        return possible
    targets = np.linspace(0, n, points)
    after = np.searchsorted(possible, targets).clip(1, len(possible) - 1)
    nearest = np.where(targets - possible[after - 1] < possible[after] - targets, after - 1, after)
    kept: IntArray = possible[np.unique(nearest)]
    return kept


def _first_sums(values: Any) -> Any:
    """Return the sums of the first 0, 1, …, N values."""
    return np.append(0, np.cumsum(values))


def _pair_nll(student: Predictions, teacher: Predictions, order: IntArray, kept: IntArray) -> FloatArray:
    if student.confidence_only:
        return np.full(len(kept), np.nan)
    of_kept = _first_sums(student.row_nll[order])[kept]
    of_others = _first_sums(teacher.row_nll[order][::-1])[::-1][kept]  # summed from the end: an infinite NLL stays where it is
    nll: FloatArray = (of_kept + of_others) / len(order)
    return nll


def _pair_ece(student: Predictions, teacher: Predictions, order: IntArray, kept: IntArray, bins: int) -> FloatArray:
    """Return the ECE at each number of kept rows: sums of every bin change only by the rows that change hands."""
    edges = width_edges(bins)[1:-1]
    step = np.searchsorted(kept, np.arange(len(order)), side="right")  # from which point on the student keeps the row
    gaps = np.zeros((len(kept), bins))
    for predictions, sign in ((student, 1.0), (teacher, -1.0)):
        gap = (predictions.correct - predictions.confidence)[order]
        cell = step * bins + np.searchsorted(edges, predictions.confidence[order], side="left")  # (lo, hi]
        gaps += sign * np.bincount(cell, weights=gap, minlength=gaps.size).reshape(gaps.shape)
        if predictions is teacher:  # before any row is kept, all answers are the teacher's
            gaps[0] += np.bincount(cell % bins, weights=gap, minlength=bins)
    ece: FloatArray = np.abs(gaps.cumsum(axis=0)).sum(axis=1) / len(order)
    return ece


def _to_json(column: FloatArray) -> list[float | str]:
    return [value if math.isfinite(value) else str(value) for value in column.tolist()]
