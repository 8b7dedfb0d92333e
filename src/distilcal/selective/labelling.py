"""Which rows to label when labels are few, so that as much as possible can be accepted with a guarantee.

A promise about accepted rows is as tight as the number of labels among them. Labels of rows that will never be accepted are
wasted, so ``to_label`` draws the rows from a slice of the most confident ones, whose size it fixes before any label is known,
and ``labelled_threshold`` chooses the threshold within that slice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from distilcal.arguments import checked
from distilcal.errors import InputError
from distilcal.metrics import binomial_interval
from distilcal.predictions import FloatArray, IntArray, Predictions
from distilcal.selective.curves import risk_coverage
from distilcal.selective.formatting import counted, in_percent
from distilcal.selective.thresholds import (
    Threshold,
    chance_of_so_many_correct,
    check_accuracy,
    check_share,
    fewest_rows,
    furthest_pass,
)

SLICE_SUCCESS = 0.3  # probability that the whole slice passes, if confidences are accuracies; parts of it pass more easily
START_SIZES = 40  # numbers of labelled rows among which the start of the search is chosen


@dataclass(frozen=True, eq=False)
class LabelPlan:
    """Rows to label, and the slice of most confident rows that they stand for.

    Attributes
    ----------
    rows : array of int (n,)
        Indices of the rows to label, in random order, so that a labeller sees no pattern.
    sample : Predictions
        These rows, without labels.
    confidence : float
        The lowest confidence of the slice.
    coverage : float
        Share of all rows in the slice: the most that can be accepted.
    expected_accuracy : float
        Mean confidence of the slice.
    start : int
        The number of most confident labelled rows from which the search for the threshold starts.
    target_accuracy, level : float
        The accuracy that accepted rows should have, and the probability with which the promise will hold.
    pool : array (N,)
        The confidences of all rows, falling.
    message : str
        What to do, as a sentence.
    """

    rows: IntArray
    sample: Predictions
    confidence: float
    coverage: float
    expected_accuracy: float
    start: int
    target_accuracy: float
    level: float
    pool: FloatArray
    message: str


@checked
def to_label(predictions: Predictions, n: int, accuracy: float = 0.95, confidence: float = 0.95, *, seed: int = 0) -> LabelPlan:
    """Choose which rows to label such that much can be accepted: ``n`` rows drawn from the most confident ones.

    The slice reaches as far as the promise may be kept: with probability 0.3 for all of it, if confidences are accuracies.
    Where in it the search will start, at the part that is most likely to pass, is fixed now as well. Both rest on
    confidences only, so the promise that ``labelled_threshold`` makes from the labels holds whether they are right or not.
    Labels that are already there are neither used nor needed. The same arguments give the same rows.

    Parameters
    ----------
    predictions : Predictions
        The rows among which to choose, such as those that wait for an answer; calibrated if possible.
    n : int
        How many rows can be labelled.
    accuracy : float
        The accuracy that accepted predictions should have, between 0 and 1.
    confidence : float
        The probability with which the promise should hold, between 0 and 1.
    seed : int
        Seed of the draw.

    Returns
    -------
    LabelPlan

    Raises
    ------
    InputError
        If there are fewer rows than labels, or so few labels that they could never keep the promise.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(0.5, 1.0, 5000)
    >>> pool = Predictions.from_probs(np.column_stack([scores, 1 - scores]))
    >>> plan = to_label(pool, 500, accuracy=0.9)
    >>> len(plan.rows), round(plan.coverage, 2)
    (500, 0.34)
    >>> labels = (rng.random(500) > plan.sample.confidence).astype(int)  # as somebody found them
    >>> limit = labelled_threshold(plan, labels)
    >>> limit.reached, round(limit.coverage, 2)
    (True, 0.31)
    """
    check_accuracy(accuracy)
    check_share("confidence", confidence)
    error = 1 - confidence
    if accuracy == 1:
        raise InputError("no number of labels can promise 100% accuracy, even if all are right", remedy="ask for less")
    fewest = fewest_rows(accuracy, error)
    if n < fewest:
        raise InputError(
            f"{counted(n, 'label')} cannot promise {in_percent(accuracy)} accuracy with {in_percent(confidence)} confidence, "
            f"even if all are right",
            remedy=f"label at least {fewest:,} rows, or ask for less",
        )
    if n > len(predictions):
        raise InputError(f"{predictions.name!r} has only {counted(len(predictions))}", remedy=f"give n ≤ {len(predictions):,}")
    order = np.argsort(-predictions.confidence, kind="stable")
    pool = predictions.confidence[order]
    size, start = _slice_and_start(pool, n, accuracy, error)
    chosen = order[np.random.default_rng(seed).permutation(size)[:n]]
    unlabelled = np.full(n, -1)
    expected = float(pool[:size].mean())
    return LabelPlan(
        rows=chosen,
        sample=replace(predictions.select(chosen), labels=unlabelled, label_probs=None),
        confidence=float(pool[size - 1]),
        coverage=size / len(pool),
        expected_accuracy=expected,
        start=start,
        target_accuracy=accuracy,
        level=confidence,
        pool=pool,
        message=(
            f"label {counted(n)} drawn from the most confident {size / len(pool):.1%} of {predictions.name}, above "
            f"{pool[size - 1]:.3f}, where {expected:.1%} should be right"
        ),
    )


@checked
def labelled_threshold(plan: LabelPlan, labels: ArrayLike) -> Threshold:
    """Choose the threshold from the labels of the rows that ``to_label`` chose.

    The labelled rows are a random sample of the slice. Its most confident part, as large as ``plan.start`` says, is tested with
    the exact binomial bound, then larger ones until the first that fails (fixed-sequence testing), so one error probability
    pays for all of them.

    Parameters
    ----------
    plan : LabelPlan
        What ``to_label`` returned.
    labels : array of int or str (n,)
        The class of every row of ``plan.rows``, in this order.

    Returns
    -------
    Threshold
        With the coverage of all rows among which ``to_label`` chose.

    Raises
    ------
    InputError
        If a label is missing: rows that somebody could not label are not left out at random.
    """
    labelled = replace(plan.sample, labels=np.asarray(labels))
    labelled.require_labels()
    n, error = len(labelled), 1 - plan.level
    curve = risk_coverage(labelled)
    correct = np.rint(curve.accepted * (1 - curve.risk))
    start = np.searchsorted(curve.accepted, [plan.start])
    chances = chance_of_so_many_correct(correct, curve.accepted, plan.target_accuracy)
    last, _ = furthest_pass(chances, start, np.array([error]))
    if last is None:
        first = int(start[0])
        low, _ = binomial_interval(correct[[first]], curve.accepted[[first]].astype(np.float64), 1 - 2 * error)
        message = (
            f"no threshold can promise {in_percent(plan.target_accuracy)} accuracy with {in_percent(plan.level)} confidence "
            f"from {counted(n, 'label')}: {correct[first]:.0f} of the most confident {curve.accepted[first]:,} are right, "
            f"which promises {low[0]:.1%}; all go to a human"
        )
        return Threshold(None, math.nan, float(low[0]), 0.0, 1.0, plan.target_accuracy, plan.level, message)
    low, _ = binomial_interval(correct[last : last + 1], curve.accepted[last : last + 1].astype(np.float64), 1 - 2 * error)
    limit = plan.confidence if last == len(correct) - 1 else float(curve.confidence[last])
    coverage = float((plan.pool >= limit).mean())
    accuracy = float(1 - curve.risk[last])
    message = (
        f"accept above {limit:.3f}: {coverage:.1%} of predictions, {accuracy:.1%} of the {curve.accepted[last]:,} labelled "
        f"ones right, at least {in_percent(plan.target_accuracy)} with {in_percent(plan.level)} confidence; "
        f"{1 - coverage:.1%} go to a human"
    )
    return Threshold(limit, accuracy, float(low[0]), coverage, 1 - coverage, plan.target_accuracy, plan.level, message)


def _slice_and_start(pool: FloatArray, n: int, accuracy: float, error: float) -> tuple[int, int]:
    """Return the size of the slice, at least ``n``, and the number of its labelled rows from which the search starts."""
    expected = np.minimum(np.cumsum(pool) / np.arange(1, len(pool) + 1), 1.0)
    promising = np.flatnonzero(_success(expected, n, accuracy, error) >= SLICE_SUCCESS)
    size = max(n, int(promising[-1]) + 1 if len(promising) else 0)
    size = int(np.searchsorted(-pool, -pool[size - 1], side="right"))  # rows of equal confidence stay together
    starts = np.unique(np.linspace(n / START_SIZES, n, START_SIZES).astype(np.int64))
    of_slice = expected[np.ceil(starts * (size / n)).astype(np.int64) - 1]
    success = [float(_success(rate, int(rows), accuracy, error)) for rate, rows in zip(of_slice, starts, strict=True)]
    return size, int(starts[np.argmax(success)])


def _success(expected: ArrayLike, rows: int, accuracy: float, error: float) -> FloatArray:
    """Return the probability of passing the test with so many labelled rows, of which these shares are expected to be right."""
    from scipy.special import betainc

    counts = np.arange(1, rows + 1)
    passing = int((chance_of_so_many_correct(counts, np.full(rows, rows), accuracy) <= error).sum())
    needed = rows - passing + 1  # the fewest correct ones that pass
    rates = np.asarray(expected)
    if not passing:
        return np.zeros(rates.shape)
    success: FloatArray = np.asarray(betainc(needed, passing, rates))  # P(Bin(rows, rate) ≥ needed)
    return success
