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

from distilcal.errors import InputError
from distilcal.metrics import binomial_interval
from distilcal.predictions import FloatArray, IntArray, Predictions
from distilcal.selective.curves import risk_coverage
from distilcal.selective.formatting import counted, in_percent
from distilcal.selective.thresholds import Threshold, chance_of_so_many_correct, check_share, furthest_pass

WHOLE_SLICE_SHARE = 0.5  # share of the error probability that the test of the whole slice gets
INNER_STARTS = 6  # starts of the search within the slice, which share the rest
EXPECTED_SUCCESS = 0.7  # probability of passing for which the slice is made, if confidences are accuracies


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
    target_accuracy: float
    level: float
    pool: FloatArray
    message: str


def to_label(predictions: Predictions, n: int, accuracy: float = 0.95, confidence: float = 0.95, *, seed: int = 0) -> LabelPlan:
    """Choose which rows to label such that much can be accepted: ``n`` rows drawn from the most confident ones.

    The slice is the largest in which the promise would be kept with probability 0.7 if confidences are accuracies. Only its
    size rests on that: the promise that ``labelled_threshold`` makes from the labels holds for any confidences. Labels that
    are already there are neither used nor needed. The same arguments give the same rows.

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
    (500, 0.27)
    >>> labels = (rng.random(500) > plan.sample.confidence).astype(int)  # as somebody found them
    >>> limit = labelled_threshold(plan, labels)
    >>> limit.reached, round(limit.coverage, 2)
    (True, 0.27)
    """
    check_share("accuracy", accuracy)
    check_share("confidence", confidence)
    error_share = WHOLE_SLICE_SHARE * (1 - confidence)
    fewest = math.ceil(math.log(error_share) / math.log(accuracy))
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
    size = _slice_size(pool, n, accuracy, error_share)
    chosen = order[np.random.default_rng(seed).permutation(size)[:n]]
    unlabelled = np.full(n, -1)
    expected = float(pool[:size].mean())
    return LabelPlan(
        rows=chosen,
        sample=replace(predictions.select(chosen), labels=unlabelled, label_probs=None),
        confidence=float(pool[size - 1]),
        coverage=size / len(pool),
        expected_accuracy=expected,
        target_accuracy=accuracy,
        level=confidence,
        pool=pool,
        message=(
            f"label {counted(n)} drawn from the most confident {size / len(pool):.1%} of {predictions.name}, above "
            f"{pool[size - 1]:.3f}, where {expected:.1%} should be right"
        ),
    )


def labelled_threshold(plan: LabelPlan, labels: ArrayLike) -> Threshold:
    """Choose the threshold from the labels of the rows that ``to_label`` chose.

    The labelled rows are a random sample of the slice. The slice as a whole is tested with the exact binomial bound and half
    of the error probability; the other half pays for smaller parts of it, as in ``threshold``.

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
    inner_share = (1 - WHOLE_SLICE_SHARE) * error / INNER_STARTS
    fewest = min(math.ceil(math.log(inner_share) / math.log(plan.target_accuracy)), n)
    sizes = np.append(np.geomspace(fewest, n, INNER_STARTS + 1)[:-1] - 1e-9, n)
    starts = np.searchsorted(curve.accepted, sizes).clip(max=len(correct) - 1)
    shares = np.append(np.full(INNER_STARTS, inner_share), WHOLE_SLICE_SHARE * error)
    chances = chance_of_so_many_correct(correct, curve.accepted, plan.target_accuracy)
    last, share = furthest_pass(chances, starts, shares)
    if last is None:
        low, _ = binomial_interval(correct[-1:], np.array([float(n)]), 1 - 2 * WHOLE_SLICE_SHARE * error)
        message = (
            f"no threshold can promise {in_percent(plan.target_accuracy)} accuracy with {in_percent(plan.level)} confidence "
            f"from {counted(n, 'label')}: {correct[-1] / n:.1%} of them are right, which promises {low[0]:.1%} on the most "
            f"confident {plan.coverage:.1%}; all go to a human"
        )
        return Threshold(None, math.nan, float(low[0]), 0.0, 1.0, plan.target_accuracy, plan.level, message)
    low, _ = binomial_interval(correct[last : last + 1], curve.accepted[last : last + 1].astype(np.float64), 1 - 2 * share)
    limit = plan.confidence if last == len(correct) - 1 else float(curve.confidence[last])
    coverage = float((plan.pool >= limit).mean())
    accuracy = float(1 - curve.risk[last])
    message = (
        f"accept above {limit:.3f}: {coverage:.1%} of predictions, {accuracy:.1%} of the {curve.accepted[last]:,} labelled "
        f"ones right, at least {in_percent(plan.target_accuracy)} with {in_percent(plan.level)} confidence; "
        f"{1 - coverage:.1%} go to a human"
    )
    return Threshold(limit, accuracy, float(low[0]), coverage, 1 - coverage, plan.target_accuracy, plan.level, message)


def _slice_size(pool: FloatArray, n: int, accuracy: float, error_share: float) -> int:
    """Return the size of the largest slice that should pass, at least ``n``; rows of equal confidence stay together."""
    from scipy.special import betainc

    counts = np.arange(1, n + 1)
    passing = chance_of_so_many_correct(counts, np.full(n, n), accuracy) <= error_share
    needed = n - int(passing.sum()) + 1  # the fewest correct ones that pass
    expected = np.cumsum(pool) / np.arange(1, len(pool) + 1)
    success = betainc(needed, n - needed + 1, np.minimum(expected, 1.0))  # P(Bin(n, expected) ≥ needed)
    promising = np.flatnonzero(success >= EXPECTED_SUCCESS)
    size = max(n, int(promising[-1]) + 1 if len(promising) else 0)
    return int(np.searchsorted(-pool, -pool[size - 1], side="right"))
