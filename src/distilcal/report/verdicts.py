"""Verdicts on differences in words. Reports get their verdicts here, so that words, marks and intervals never contradict.

A difference is *significant* as `distilcal.metrics.is_significant` decides: after correction for all comparisons that were made
together, and with an interval that excludes 0. Intervals are shown without correction, so one may exclude 0 although the
difference is not significant; then the words say that they are about the corrected comparison.
"""

from __future__ import annotations

from distilcal.metrics import Comparison, Difference, is_significant

MAY_BE_CHANCE = "may be chance"


def verdict_words(significant: bool, better: bool | None, low: float | None, high: float | None, correction: str) -> str:
    """Return the verdict on a difference in words.

    Parameters
    ----------
    significant : bool
        Whether the difference is beyond chance, as `distilcal.metrics.is_significant` decides.
    better : bool or None
        Whether a significant difference is an improvement; None where the metric has no better side.
    low, high : float or None
        The interval that is shown beside the words, without correction; None where there is none.
    correction : str
        What the decision is corrected for, as "for 4 comparisons"; empty for a single comparison.

    Returns
    -------
    str

    Examples
    --------
    >>> verdict_words(True, False, -0.03, -0.01, "for 4 comparisons")
    'worse'
    >>> verdict_words(False, None, 0.001, 0.03, "for 4 comparisons")
    'not beyond chance after correcting for 4 comparisons'
    >>> verdict_words(False, None, -0.01, 0.03, "for 4 comparisons")
    'may be chance'
    """
    if significant:
        return {True: "better", False: "worse", None: "differs"}[better]
    if low is not None and high is not None and (low > 0 or high < 0):
        return f"not beyond chance after correcting {correction}" if correction else "not beyond chance by its p-value"
    return MAY_BE_CHANCE


def difference_verdict(comparison: Comparison, name: str) -> str:
    """Return how the second model of a comparison differs from the first in a metric.

    Parameters
    ----------
    comparison : Comparison
        Paired differences of two models.
    name : str
        The metric.

    Returns
    -------
    str
        "better" or "worse" (than the first model), "differs" for a metric without a better side, or why the difference does
        not count.

    Examples
    --------
    >>> from distilcal.metrics import Comparison, Difference
    >>> gain = Difference("accuracy", 0.80, 0.83, 0.03, 0.01, 0.05, p_value=0.003, p_holm=0.006, better="b")
    >>> difference_verdict(Comparison("alone", "student", 500, {"accuracy": gain}, 1000), "accuracy")
    'better'
    """
    difference = comparison[name]
    tests = len(comparison.differences)
    better = None if difference.better is None else difference.better == "b"
    significant = is_beyond_chance(difference, comparison.level)
    correction = f"for {tests} comparisons" if tests > 1 else ""
    return verdict_words(significant, better, difference.low, difference.high, correction)


def is_beyond_chance(difference: Difference, level: float = 0.95) -> bool:
    """Return whether a stored difference is significant.

    Parameters
    ----------
    difference : Difference
        The difference of a metric.
    level : float
        Coverage of its interval.

    Returns
    -------
    bool
    """
    return is_significant(difference.low, difference.high, difference.p_holm, level)


def winner(comparison: Comparison, name: str) -> str:
    """Return the model that is better in a metric, as a cell of a table.

    Parameters
    ----------
    comparison : Comparison
        Paired differences of two models.
    name : str
        The metric.

    Returns
    -------
    str
        The name of the better model, "differs" for a significant difference without a better side, a dash for any other.

    Examples
    --------
    >>> from distilcal.metrics import Comparison, Difference
    >>> loss = Difference("nll", 0.5, 0.4, -0.1, -0.2, 0.01, p_value=0.04, p_holm=0.08, better=None)
    >>> winner(Comparison("alone", "student", 500, {"nll": loss}, 1000), "nll")
    '–'
    """
    return {"better": comparison.b, "worse": comparison.a, "differs": "differs"}.get(difference_verdict(comparison, name), "–")
