"""Promises about a whole cascade, chosen on dev, and checks of every promise on other rows.

``output_threshold`` promises an accuracy of the whole output if what is handed over comes back right, ``loss_threshold`` that
student and teacher together lose at most so much to the teacher. ``threshold``, about the kept rows, is in
``distilcal.selective.thresholds``. ``check_promise`` says what became of any of them on rows that it was not chosen on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from distilcal.arguments import checked
from distilcal.metrics import binomial_interval
from distilcal.predictions import IntArray, Predictions, join
from distilcal.selective.bounds import loss_p_value, paired_rate_interval
from distilcal.selective.curves import risk_coverage
from distilcal.selective.formatting import counted, in_percent
from distilcal.selective.thresholds import NO_PROOF, Threshold, check_accuracy, check_share, fewest_rows

Promise = Literal["accepted", "output", "loss"]
NUISANCE_SHARE = 0.01  # share of the error probability that is spent on the unknown rate of gains


@dataclass(frozen=True)
class CascadeThreshold:
    """A confidence from which the student keeps a row, with a promise about the whole output.

    Attributes
    ----------
    promise : {"output", "loss"}
        What is promised: an accuracy of the whole output, or at most so much loss to the teacher.
    confidence : float or None
        The threshold; None if no threshold can keep the promise: do not use the cascade for it.
    value : float
        On the rows on which it was chosen: the accuracy of the output if all that is handed over comes back right, or the
        accuracy of the teacher less that of the pair. nan without a threshold.
    guaranteed : float
        Its bound: at least this accuracy, or at most this loss.
    coverage, handed_over : float
        Shares of the rows that the student keeps and hands over.
    target : float
        The accuracy or loss that was required.
    level : float
        The probability with which the promise holds.
    message : str
        The result as a sentence.
    """

    promise: Promise
    confidence: float | None
    value: float
    guaranteed: float
    coverage: float
    handed_over: float
    target: float
    level: float
    message: str

    @property
    def reached(self) -> bool:
        """Whether some threshold can keep the promise."""
        return self.confidence is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON can hold them: NaN is None."""
        return {name: None if value != value else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> CascadeThreshold:
        """Return what :meth:`to_dict` stored."""
        numbers = {name: math.nan if stored[name] is None else stored[name] for name in ("value", "guaranteed")}
        return cls(**{**stored, **numbers})


@dataclass(frozen=True)
class PromiseCheck:
    """What became of a promise on rows on which its threshold was not chosen.

    Attributes
    ----------
    promise : {"accepted", "output", "loss"}
        What was promised.
    name : str
        Name of the set of rows.
    coverage : float
        Share of the rows that the student keeps there.
    value, low, high : float
        The accuracy or the loss that was promised, as it is there, with its 95 % interval; nan if no row is kept.
    target : float
        The accuracy or loss that was required.
    held : bool
        Whether the value meets the target; True if no row is kept.
    broken : bool
        Whether the whole interval misses the target, so that chance does not explain it.
    message : str
        The result as a sentence.
    """

    promise: Promise
    name: str
    coverage: float
    value: float
    low: float
    high: float
    target: float
    held: bool
    broken: bool
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON can hold them: NaN is None."""
        return {name: None if value != value else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> PromiseCheck:
        """Return what :meth:`to_dict` stored."""
        numbers = {name: math.nan if stored[name] is None else stored[name] for name in ("value", "low", "high")}
        return cls(**{**stored, **numbers})


@checked
def output_threshold(student: Predictions, accuracy: float = 0.95, confidence: float = 0.95) -> CascadeThreshold:
    """Choose the lowest confidence to keep rows from such that the whole output has an accuracy, with a guarantee.

    The output is wrong where a kept row is wrong; what is handed over is taken to come back right (from a person, or from a
    teacher whose answers are the truth that counts). The promise is about new rows from the same source.

    The search costs nothing. At a fixed threshold the number of wrong kept rows among all ``n`` is binomial, and one exact
    (Clopper–Pearson) bound holds with the whole error probability. If the threshold falls, kept rows are only added, so both
    this number and its expectation can only rise. Let ``t`` be the highest threshold below which the promise would be
    broken. A chosen threshold below ``t`` has at least as many wrong kept rows as ``t`` itself, so its bound can pass only
    if the bound at ``t`` passes; and that one threshold, which does not depend on the rows drawn, passes with at most the
    error probability. The event that any broken threshold passes is this single event.

    Parameters
    ----------
    student : Predictions
        The rows on which the threshold is chosen.
    accuracy : float
        The accuracy that the whole output should have, in (0, 1]; no number of rows can promise exactly 1.
    confidence : float
        The probability with which the promise holds, between 0 and 1.

    Returns
    -------
    CascadeThreshold

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(0.5, 1.0, 2000)
    >>> limit = output_threshold(Predictions.from_confidences(scores, rng.random(2000) < scores), accuracy=0.9)
    >>> limit.reached, 0.5 < limit.coverage < 0.63  # 0.63 is the most that has 10 % of the output wrong
    (True, True)
    """
    check_accuracy(accuracy)
    check_share("confidence", confidence)
    from scipy.special import betainc

    curve = risk_coverage(student)
    n = len(student)
    wrong = np.rint(curve.risk * curve.accepted)
    # The bound reaches `accuracy` if so few wrong, P(Bin(n, 1 - accuracy) ≤ wrong), have at most the error probability.
    passes = betainc(np.maximum(n - wrong, 1), wrong + 1, accuracy) <= 1 - confidence
    passes &= wrong < n
    kept = int(passes.sum())  # it can only turn from true to false
    if not kept:
        fewest = fewest_rows(accuracy, 1 - confidence)
        reason = NO_PROOF
        if accuracy < 1:
            reason = f"even without a mistake that takes {counted(int(fewest))}"
        if n >= fewest:
            reason = f"{counted(int(wrong[0]))} of its most confident {curve.accepted[0]:,} are wrong"
        return _do_not(
            "output",
            accuracy,
            confidence,
            f"no threshold can promise that {in_percent(accuracy)} of the whole output are right with {in_percent(confidence)} "
            f"confidence on the {counted(n)} of {student.name}: {reason}; hand over all",
        )
    last = kept - 1
    _, bound = binomial_interval(wrong[last : last + 1], np.array([float(n)]), 2 * confidence - 1)
    coverage = float(curve.coverage[last])
    value = float(1 - wrong[last] / n)
    message = (
        f"keep above {curve.confidence[last]:.3f}: {coverage:.1%} of predictions; if the other {1 - coverage:.1%} come back "
        f"right, at least {in_percent(accuracy)} of the whole output are right with {in_percent(confidence)} confidence "
        f"({value:.1%} here)"
    )
    return CascadeThreshold(
        promise="output",
        confidence=float(curve.confidence[last]),
        value=value,
        guaranteed=float(1 - bound[0]),
        coverage=coverage,
        handed_over=1 - coverage,
        target=accuracy,
        level=confidence,
        message=message,
    )


@checked
def loss_threshold(
    student: Predictions, teacher: Predictions, max_loss: float = 0.005, confidence: float = 0.95
) -> CascadeThreshold:
    """Choose the lowest confidence to keep rows from such that the pair loses little accuracy to the teacher, with a guarantee.

    On a kept row the pair loses if only the teacher is right and gains if only the student is. The promise is that the rate
    of losses exceeds that of gains by at most ``max_loss`` on new rows from the same source. Each threshold is tested with
    the exact p-value of ``loss_p_value``, from the highest confidence downward until the first that fails (fixed-sequence
    testing): to go too far, the first threshold at which the promise is broken has to pass, and that happens with at most
    the error probability, however many are tested.

    Parameters
    ----------
    student, teacher : Predictions
        Predictions on the same rows, on which the threshold is chosen; matched as in ``cascade``.
    max_loss : float
        The accuracy that may be lost, as a share: 0.005 is half a percentage point.
    confidence : float
        The probability with which the promise holds, between 0 and 1.

    Returns
    -------
    CascadeThreshold

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(0.5, 1.0, 4000)
    >>> student = Predictions.from_confidences(scores, rng.random(4000) < scores)
    >>> teacher = Predictions.from_confidences(scores, rng.random(4000) < 0.9)
    >>> limit = loss_threshold(student, teacher, max_loss=0.01)
    >>> limit.reached, limit.guaranteed <= 0.01
    (True, True)
    """
    check_share("max_loss", max_loss)
    check_share("confidence", confidence)
    student, teacher = join(student, teacher)
    n = len(student)
    error = 1 - confidence
    order = np.argsort(-student.confidence, kind="stable")
    scores = student.confidence[order]
    right, teacher_right = student.correct[order], teacher.correct[order]
    last_of_equal = np.append(np.flatnonzero(scores[1:] != scores[:-1]), n - 1)
    losses = np.cumsum(teacher_right & ~right)[last_of_equal]
    gains = np.cumsum(right & ~teacher_right)[last_of_equal]
    kept = _first_failure(losses, gains, n, max_loss, error)
    points = in_points(max_loss)
    if not kept:
        fewest = np.ceil(math.log(error * (1 - NUISANCE_SHARE)) / math.log1p(-max_loss))  # infinite for a tiny loss
        reason = f"even without a loss that takes {fewest:,.0f} rows"
        if n >= fewest:
            reason = f"the pair loses too much on its most confident {counted(int(last_of_equal[0]) + 1)}"
        return _do_not(
            "loss",
            max_loss,
            confidence,
            f"no threshold can promise a loss of at most {points} to the teacher with {in_percent(confidence)} confidence "
            f"on the {counted(n)} of {student.name}: {reason}; leave all to the teacher",
        )
    last = kept - 1
    coverage = float((last_of_equal[last] + 1) / n)
    value = float((losses[last] - gains[last]) / n)
    message = (
        f"keep above {scores[last_of_equal[last]]:.3f}: {coverage:.1%} of predictions; with the teacher's answers to the other "
        f"{1 - coverage:.1%} the accuracy is the teacher's within {points} with {in_percent(confidence)} confidence "
        f"({_signed_points(-value)} here)"
    )
    return CascadeThreshold(
        promise="loss",
        confidence=float(scores[last_of_equal[last]]),
        value=value,
        guaranteed=_loss_bound(int(losses[last]), int(gains[last]), n, max_loss, error),
        coverage=coverage,
        handed_over=1 - coverage,
        target=max_loss,
        level=confidence,
        message=message,
    )


@checked
def check_promise(
    limit: Threshold | CascadeThreshold, student: Predictions, teacher: Predictions | None = None
) -> PromiseCheck:
    """Measure what became of a promise on rows on which its threshold was not chosen.

    Parameters
    ----------
    limit : Threshold or CascadeThreshold
        The threshold; one that promises nothing keeps no row.
    student : Predictions
        The student's predictions there, calibrated as those on which the threshold was chosen.
    teacher : Predictions, optional
        The teacher's predictions on the same rows; required for a promise about the loss to it.

    Returns
    -------
    PromiseCheck

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(0.5, 1.0, 4000)
    >>> rows = Predictions.from_confidences(scores, rng.random(4000) < scores, name="test")
    >>> limit = output_threshold(rows.select(np.arange(2000)), accuracy=0.9)
    >>> check = check_promise(limit, rows.select(np.arange(2000, 4000)))
    >>> check.low <= 0.9, check.broken
    (True, False)
    """
    promise: Promise = "accepted" if isinstance(limit, Threshold) else limit.promise
    target = limit.target_accuracy if isinstance(limit, Threshold) else limit.target
    if promise == "loss":
        assert teacher is not None, "a loss to the teacher needs the teacher's predictions"
        student, teacher = join(student, teacher)
    kept = student.confidence >= (math.inf if limit.confidence is None else limit.confidence)
    coverage = float(kept.mean())
    if not kept.any():
        message = f"{student.name}: the student keeps no row"
        return PromiseCheck(promise, student.name, 0.0, math.nan, math.nan, math.nan, target, True, False, message)
    if teacher is not None and promise == "loss":
        losses = int((kept & teacher.correct & ~student.correct).sum())
        gains = int((kept & student.correct & ~teacher.correct).sum())
        value = (losses - gains) / len(student)
        ends = paired_rate_interval([losses], [gains], len(student))
        held, broken = value <= target, bool(ends[0][0] > target)
    else:
        rows = float(kept.sum()) if promise == "accepted" else float(len(student))
        right = rows - float((kept & ~student.correct).sum())
        value = right / rows
        ends = binomial_interval(np.array([right]), np.array([rows]))
        held, broken = value >= target, bool(ends[1][0] < target)
    low, high = float(ends[0][0]), float(ends[1][0])
    message = _check_sentence(promise, student.name, coverage, (value, low, high), target, held, broken)
    return PromiseCheck(promise, student.name, coverage, value, low, high, target, held, broken, message)


def in_points(share: float) -> str:
    """Format a difference of shares that somebody chose in percentage points.

    Parameters
    ----------
    share : float
        The difference, as a share.

    Returns
    -------
    str

    Examples
    --------
    >>> in_points(0.005), in_points(0.01)
    ('0.5 points', '1 point')
    """
    number = f"{share * 100:.10g}"
    return f"{number} point{'' if number == '1' else 's'}"


# ---- helpers -----------------------------------------------------------------------------------------------------------


def _do_not(promise: Promise, target: float, level: float, message: str) -> CascadeThreshold:
    """Return the answer that no threshold can keep the promise."""
    return CascadeThreshold(promise, None, math.nan, math.nan, 0.0, 1.0, target, level, message)


def _passes(losses: int, gains: int, rows: int, max_loss: float, error: float) -> bool:
    return loss_p_value(losses, gains, rows, max_loss, nuisance_error=NUISANCE_SHARE * error) <= error


def _first_failure(losses: IntArray, gains: IntArray, rows: int, max_loss: float, error: float) -> int:
    """Return the first position at which the test fails; their number if none does.

    Fewer losses and more gains can only help. So if the most losses of a block (its last) pass with its fewest gains (its
    first), the whole block passes, and few tests are computed even for many positions.
    """
    blocks = [(0, len(losses))]
    while blocks:
        start, end = blocks.pop()
        if _passes(int(losses[end - 1]), int(gains[start]), rows, max_loss, error):
            continue
        if end - start == 1:
            return start
        middle = (start + end) // 2
        blocks += [(middle, end), (start, middle)]
    return len(losses)


def _loss_bound(losses: int, gains: int, rows: int, max_loss: float, error: float) -> float:
    """Return the smallest loss that the test excludes, to four digits; ``max_loss`` itself is excluded."""
    excluded, possible = max_loss, max((losses - gains) / rows, 0.0)
    while excluded - possible > 1e-4 * max_loss:
        middle = (excluded + possible) / 2
        if middle > 0 and _passes(losses, gains, rows, middle, error):
            excluded = middle
        else:
            possible = middle
    return excluded


def _signed_points(share: float) -> str:
    points = round(share * 100, 2)
    return f"{points:+.2f} points" if points else "0.00 points"  # never -0.00


def _check_sentence(
    promise: Promise, name: str, coverage: float, value: tuple[float, float, float], target: float, held: bool, broken: bool
) -> str:
    middle, low, high = value
    if promise == "loss":
        found = f"{_signed_points(-middle)} to the teacher ({_signed_points(-high)} to {_signed_points(-low)})"
        required = f"a loss of at most {in_points(target)}"
    else:
        of = "of them" if promise == "accepted" else "of the whole output, if the others come back right,"
        found = f"{middle:.1%} {of} are right ({low:.1%} to {high:.1%})"
        required = f"at least {in_percent(target)}"
    verdict = f"the promise of {required} holds"
    if not held:
        verdict = f"short of the promise of {required}, but within chance"
    if broken:
        verdict = f"the promise of {required} is broken"
    return f"{name}: {coverage:.1%} kept; {found}: {verdict}"
