"""Label rows in rounds, so that answers so far decide where the next labels go, with a promise that stays exact.

``to_label`` names all rows beforehand. Who can ask for a few labels at a time keeps more with ``label_rounds``: slices of the
most confident rows, each within the next, are tested from the smallest on, and labels go to the first that has not passed.
Every slice is tested again and again while its labels come in; ``stopping_bounds`` pays for that exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from distilcal.arguments import check_argument, checked
from distilcal.errors import InputError
from distilcal.predictions import UNKNOWN, FloatArray, IntArray, Predictions
from distilcal.selective.formatting import counted, in_percent
from distilcal.selective.thresholds import Threshold, check_share

# Where the slices lie decides how much is kept, never whether the promise holds. Chosen on simulated classifiers.
DOUBT = 2.0  # the first slice is chosen as if mistakes were so many times as frequent as confidences say
FIRST_SHARE = 0.05  # the first slice where that leaves no hope
GROWTH, STEP = 1.5, 0.025  # the next slice is larger by this factor, but by no more than this share of all rows
LOOKS = 100  # numbers of labels after which a slice is tested
LATE = 0.5  # power of the number of labels with which the level of the tests rises
BISECTIONS = 12
NEVER = 0  # in place of a number of labels


@dataclass(frozen=True, eq=False)
class LabelRounds:
    """Slices of the most confident rows, the random order in which each is labelled, and when it passes.

    Attributes
    ----------
    predictions : Predictions
        All rows, without labels.
    budget : int
        The most labels that will be asked for.
    target_accuracy, level : float
        The accuracy that accepted rows should have, and the probability with which the promise holds.
    sizes : array of int (S,)
        Numbers of rows in the slices, rising.
    confidences : array (S,)
        The lowest confidence of each slice.
    order : array of int (S, budget)
        The rows of each slice in the order in which their labels count, as many as can be labelled; -1 where there are no more.
    looks : array of int (L,)
        Numbers of labels after which a slice is tested.
    most_wrong : array of int (S, L)
        The most mistakes among so many labels with which a slice passes; -1 if it cannot.
    """

    predictions: Predictions
    budget: int
    target_accuracy: float
    level: float
    sizes: IntArray
    confidences: FloatArray
    order: IntArray
    looks: IntArray
    most_wrong: IntArray


@checked
def label_rounds(
    predictions: Predictions, budget: int, accuracy: float = 0.95, confidence: float = 0.95, *, seed: int = 0
) -> LabelRounds:
    """Prepare to label rows in rounds such that much can be accepted.

    ``next_rows`` says which rows to label next, ``rounds_threshold`` what can be accepted, at the end or at any time before.
    The promise is about the rows given here: of the predictions above the threshold, labelled rows included, at least a share
    ``accuracy`` is right. If labels are most of what is accepted, the others alone may have less; for new rows from the same
    source it holds as far as these stand for them. So give many rows beside the labels.

    Each slice holds the one before it. A random order of all rows, drawn now, is the order in which labels of each slice
    count, so rows labelled for one slice count for the next as well. A slice passes if its first labels have few enough
    mistakes, by bounds fixed now, and is accepted if all smaller ones passed too (fixed-sequence testing). Neither depends on
    which rows are labelled when: the promise holds however the rounds are made and whenever they end. It needs an order that
    nobody chose, so do not try several seeds.

    Parameters
    ----------
    predictions : Predictions
        The rows among which to choose, such as those that wait for an answer; calibrated if possible. Labels that are already
        there are not used.
    budget : int
        How many rows can be labelled in all rounds together.
    accuracy : float
        The accuracy that accepted predictions should have, between 0 and 1.
    confidence : float
        The probability with which the promise should hold, between 0 and 1.
    seed : int
        Seed of the order. The same arguments give the same order, so labels are all that has to be stored between rounds.

    Returns
    -------
    LabelRounds

    Raises
    ------
    InputError
        If there are fewer rows than labels, or so few labels that they could never keep the promise.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(0.5, 1.0, 5000)
    >>> pool = Predictions.from_probs(np.column_stack([scores, 1 - scores]))
    >>> truth = (rng.random(5000) > scores).astype(int)
    >>> plan, labels = label_rounds(pool, 500, accuracy=0.9), {}
    >>> while len(rows := next_rows(plan, labels, 25)):
    ...     labels |= {row: truth[row] for row in rows.tolist()}  # as somebody found them
    >>> limit = rounds_threshold(plan, labels)
    >>> limit.reached, 0.2 < limit.coverage < 0.4  # 0.4 is the most that has 90 % right
    (True, True)
    """
    check_share("accuracy", accuracy)
    check_share("confidence", confidence)
    error = 1 - confidence
    fewest = math.ceil(math.log(error) / math.log(accuracy))
    if budget < fewest:
        raise InputError(
            f"{counted(budget, 'label')} cannot promise {in_percent(accuracy)} accuracy with {in_percent(confidence)} "
            f"confidence, even if all are right",
            remedy=f"label at least {fewest:,} rows, or ask for less",
        )
    n = len(predictions)
    if budget > n:
        raise InputError(f"{predictions.name!r} has only {counted(n)}", remedy=f"give a budget ≤ {n:,}")
    by_confidence = np.argsort(-predictions.confidence, kind="stable")
    scores = predictions.confidence[by_confidence]
    sizes = _slice_sizes(scores, budget, accuracy, error)
    ranks = np.random.default_rng(seed).permutation(n)
    order = np.full((len(sizes), budget), -1)
    for row, size in zip(order, sizes.tolist(), strict=True):
        inside = by_confidence[ranks[ranks < size][:budget]]
        row[: len(inside)] = inside
    looks = np.unique(np.geomspace(1, budget, LOOKS).round().astype(np.int64))
    bounds = stopping_bounds(tuple(sizes.tolist()), tuple(looks.tolist()), accuracy, error)
    return LabelRounds(
        predictions=replace(predictions, labels=np.full(n, UNKNOWN), label_probs=None),
        budget=budget,
        target_accuracy=accuracy,
        level=confidence,
        sizes=sizes,
        confidences=scores[sizes - 1],
        order=order,
        looks=looks,
        most_wrong=bounds,
    )


@checked
def next_rows(plan: LabelRounds, labels: Mapping[int, int | str], n: int = 10) -> IntArray:
    """Return the rows to label next: those that let the next slices pass if all of them are right.

    Parameters
    ----------
    plan : LabelRounds
        What ``label_rounds`` returned.
    labels : mapping of int to int or str
        The class of every row that is labelled so far, by its row number; empty at first.
    n : int
        The most rows of a round. Small rounds waste fewer labels; beyond about 50 that is noticeable.

    Returns
    -------
    array of int
        Row numbers; none if the budget is used up, everything is accepted, or what is left of the budget cannot let another
        slice pass.

    Raises
    ------
    InputError
        If a label is missing or its row does not exist.

    Examples
    --------
    >>> pool = Predictions.from_confidences(np.linspace(0.6, 1.0, 1000), np.ones(1000))
    >>> plan = label_rounds(pool, 100, accuracy=0.9)
    >>> len(next_rows(plan, {})), bool((pool.confidence[next_rows(plan, {})] >= plan.confidences[0]).all())
    (10, True)
    """
    if n < 1:
        raise InputError(f"a round cannot have {n} rows", remedy="give n ≥ 1")
    wrong = _mistakes(plan, labels)
    left = plan.budget - len(labels)
    chosen: list[int] = []
    for look, order in zip(_first_passes(plan, wrong).tolist(), plan.order, strict=True):
        rows = order[:look]
        unknown = rows[wrong[rows] == UNKNOWN]
        if look == NEVER or len(chosen) + len(unknown) > left:
            break
        chosen += unknown.tolist()
        wrong[unknown] = 0
        if len(chosen) >= n:
            break
    return np.array(chosen[:n], dtype=np.int64)


@checked
def rounds_threshold(plan: LabelRounds, labels: Mapping[int, int | str]) -> Threshold:
    """Choose the threshold from the labels of all rounds.

    Parameters
    ----------
    plan : LabelRounds
        What ``label_rounds`` returned.
    labels : mapping of int to int or str
        The class of every row that was labelled, by its row number. Labels of other rows do no harm: they count as soon as the
        order has come to them.

    Returns
    -------
    Threshold
        With the share of all rows as coverage. ``accuracy`` is that of the accepted rows which the order labelled without a
        gap, nearly a random sample; labelled rows as a whole are not one. ``guaranteed`` is the accuracy that was required.

    Raises
    ------
    InputError
        If a label is missing or its row does not exist: rows that somebody could not label are not left out at random.

    Examples
    --------
    >>> pool = Predictions.from_confidences(np.linspace(0.6, 1.0, 1000), np.ones(1000))
    >>> plan = label_rounds(pool, 100, accuracy=0.9)
    >>> rounds_threshold(plan, {}).reached
    False
    >>> rounds_threshold(plan, dict.fromkeys(range(1000), 0)).coverage
    1.0
    """
    wrong = _mistakes(plan, labels)
    passed = 0
    for look, order in zip(_first_passes(plan, wrong).tolist(), plan.order, strict=True):
        if look == NEVER or (wrong[order[:look]] == UNKNOWN).any():
            break
        passed += 1
    target, level = in_percent(plan.target_accuracy), in_percent(plan.level)
    if not passed:
        outcomes = wrong[plan.order[0]]
        message = (
            f"no threshold can promise {target} accuracy with {level} confidence from {counted(len(labels), 'label')}: of "
            f"the most confident {plan.sizes[0]:,}, {(outcomes == 0).sum():,} are right and {(outcomes == 1).sum():,} wrong; "
            f"all go to a human"
        )
        return Threshold(None, math.nan, math.nan, 0.0, 1.0, plan.target_accuracy, plan.level, message)
    limit, coverage = float(plan.confidences[passed - 1]), float(plan.sizes[passed - 1] / len(plan.predictions))
    outcomes = wrong[plan.order[passed - 1]]
    outcomes = outcomes[: int(np.argmax(np.append(outcomes, UNKNOWN) == UNKNOWN))]  # up to the first without a label
    accuracy = float(1 - outcomes.mean())
    message = (
        f"accept above {limit:.3f}: {coverage:.1%} of {plan.predictions.name}, {accuracy:.1%} of the {len(outcomes):,} "
        f"labelled ones that stand for them right, at least {target} with {level} confidence; {1 - coverage:.1%} go to a human"
    )
    target_accuracy = plan.target_accuracy
    return Threshold(limit, accuracy, target_accuracy, coverage, 1 - coverage, target_accuracy, plan.level, message)


@lru_cache(maxsize=32)
def stopping_bounds(sizes: tuple[int, ...], looks: tuple[int, ...], accuracy: float, error: float) -> IntArray:
    """Compute how many mistakes let a slice pass after each number of labels, if it is tested after all of them.

    Rows are drawn without replacement. A slice passes at the first look at which so few mistakes have a probability of at most
    a level if just too many of its rows are wrong. The level rises with the root of the number of labels and is as high as
    leaves the probability of passing at any look at most ``error``; that is summed over all paths, so it is exact. More wrong
    rows can only make every count of mistakes larger and passing less probable.

    Parameters
    ----------
    sizes : tuple of int (S,)
        Numbers of rows in the slices.
    looks : tuple of int (L,)
        Numbers of labels after which a slice is tested, rising.
    accuracy : float
        The accuracy that a slice should have.
    error : float
        The probability with which a slice with less may pass.

    Returns
    -------
    array of int (S, L)
        The most mistakes with which a slice passes; -1 if it cannot pass.

    Examples
    --------
    >>> stopping_bounds((1000,), (29, 60, 100), 0.9, 0.05).tolist()
    [[-1, 1, 4]]
    """
    rows = np.array(sizes, dtype=np.float64)[:, None]
    wrong_rows = np.floor((1 - accuracy) * rows + 1e-9) + 1  # the fewest that break the promise
    counts = np.arange(int((1 - accuracy) * looks[-1]) + 2.0)  # no slice passes with more mistakes
    chances = np.empty((len(looks), len(sizes), len(counts)))
    _ever_passing(rows, wrong_rows, counts, looks, chances=chances)
    shape = (np.array(looks) / looks[-1]) ** LATE
    low, high = np.full(len(sizes), error / len(looks)), np.full(len(sizes), error)
    for _ in range(BISECTIONS):
        level = np.sqrt(low * high)
        passes = chances <= (shape[:, None] * level)[:, :, None]
        kept = _ever_passing(rows, wrong_rows, counts, looks, passes=passes) <= error
        low, high = np.where(kept, level, low), np.where(kept, high, level)
    bounds: IntArray = (chances <= (shape[:, None] * low)[:, :, None]).sum(axis=2).T - 1
    bounds[rows < np.array(looks)] = -1  # there are not so many rows
    bounds.flags.writeable = False
    return bounds


# ---- helpers -----------------------------------------------------------------------------------------------------------


def _ever_passing(
    rows: FloatArray,
    wrong_rows: FloatArray,
    counts: FloatArray,
    looks: tuple[int, ...],
    *,
    chances: FloatArray | None = None,
    passes: FloatArray | None = None,
) -> FloatArray:
    """Follow the number of mistakes label by label, in all slices at once; return the probability of ever passing.

    With ``chances``, nothing passes and the probabilities of at most so many mistakes are written there, for each look.
    """
    probs = np.zeros((len(rows), len(counts)))
    probs[:, 0] = 1
    passed = np.zeros(len(rows))
    look = 0
    for labelled in range(looks[-1]):
        left = rows - labelled
        one_more = probs * np.clip((wrong_rows - counts) / np.maximum(left, 1), 0, 1) * (left > 0)
        probs = probs - one_more
        probs[:, 1:] += one_more[:, :-1]
        if labelled + 1 != looks[look]:
            continue
        if chances is not None:
            chances[look] = probs.cumsum(axis=1)
        if passes is not None:
            passed += np.where(rows[:, 0] > labelled, (probs * passes[look]).sum(axis=1), 0)
            probs = np.where(passes[look], 0, probs)
        look += 1
    return passed


def _slice_sizes(scores: FloatArray, budget: int, accuracy: float, error: float) -> IntArray:
    """Return the sizes of the slices: the first where the fewest labels per row should do, the last with all rows."""
    n = len(scores)
    fewest = math.ceil(math.log(error) / math.log(accuracy))
    counts = np.arange(1, n + 1)
    expected = np.clip(1 - DOUBT * np.cumsum(1 - scores) / counts, 1e-12, 1 - 1e-12)
    information = expected * np.log(expected / accuracy) + (1 - expected) * np.log((1 - expected) / (1 - accuracy))
    needed = np.full(n, np.inf)
    hopeful = expected > accuracy
    needed[hopeful] = np.maximum(math.log(1 / error) / information[hopeful], fewest)
    needed[needed > np.minimum(counts, budget)] = np.inf
    first = int(np.argmin(needed / counts)) + 1 if np.isfinite(needed).any() else max(int(FIRST_SHARE * n), fewest)
    sizes = [min(first, n)]
    while sizes[-1] < n:
        larger = min(sizes[-1] * GROWTH, sizes[-1] + STEP * n)
        sizes.append(min(max(math.ceil(larger), sizes[-1] + 1), n))
    ends = np.searchsorted(-scores, -scores[np.array(sizes) - 1], side="right")  # rows of equal confidence stay together
    return np.unique(ends)


def _mistakes(plan: LabelRounds, labels: Mapping[int, int | str]) -> IntArray:
    """Return for every row whether its prediction is wrong, 0 or 1, or UNKNOWN; with a last entry for the row -1."""
    wrong = np.full(len(plan.predictions) + 1, UNKNOWN)
    if labels:
        rows = np.array([check_argument("labels", row, int, "next_rows") for row in labels], dtype=object)
        if rows.min() < 0 or rows.max() >= len(plan.predictions):
            raise InputError(
                f"there is a label for row {rows.min() if rows.min() < 0 else rows.max()}",
                remedy=f"give row numbers from 0 to {len(plan.predictions) - 1}",
            )
        rows = rows.astype(np.int64)
        labelled = replace(plan.predictions.select(rows), labels=np.array(list(labels.values())))
        labelled.require_labels()
        wrong[rows] = ~labelled.correct
    return wrong


def _first_passes(plan: LabelRounds, wrong: IntArray) -> IntArray:
    """Return for each slice after how many labels it passes if those that are missing are right; NEVER if it cannot."""
    mistakes = (wrong[plan.order] == 1).cumsum(axis=1)[:, plan.looks - 1]
    passing = mistakes <= plan.most_wrong
    first: IntArray = np.where(passing.any(axis=1), plan.looks[passing.argmax(axis=1)], NEVER)
    return first
