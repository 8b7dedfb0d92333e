"""A confidence above which predictions have a required accuracy, with a guarantee that holds for any classifier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from distilcal.arguments import checked
from distilcal.errors import InputError
from distilcal.metrics import binomial_interval
from distilcal.predictions import FloatArray, IntArray, Predictions
from distilcal.selective.curves import RiskCoverage, risk_coverage
from distilcal.selective.formatting import counted, in_percent

SEARCH_STARTS = 10  # numbers of accepted rows from which the search for a threshold starts
NO_PROOF = "however many rows are right, a mistake may still come"  # why nothing promises an accuracy of 1


@dataclass(frozen=True)
class Threshold:
    """A confidence from which predictions are accepted.

    Attributes
    ----------
    confidence : float or None
        The threshold; None if no threshold can promise the accuracy.
    accuracy : float
        Share of the accepted rows that are correct, on the rows on which it was chosen.
    guaranteed : float
        Lower bound of the accuracy of accepted rows.
    coverage : float
        Share of the rows that are accepted.
    to_human : float
        Share of the rows that are handed over.
    target_accuracy : float
        The accuracy that was required.
    level : float
        The probability with which the promise holds.
    message : str
        The result as a sentence.
    """

    confidence: float | None
    accuracy: float
    guaranteed: float
    coverage: float
    to_human: float
    target_accuracy: float
    level: float
    message: str

    @property
    def reached(self) -> bool:
        """Whether some threshold can promise the accuracy."""
        return self.confidence is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the values under the keys that ``eval --json`` and ``metrics.json`` use."""
        return {
            "confidence": self.confidence,
            "accuracy": self.accuracy,
            "guaranteed": self.guaranteed,
            "coverage": self.coverage,
            "to_human": self.to_human,
            "wanted": self.target_accuracy,
            "level": self.level,
            "message": self.message,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Threshold:
        """Return what :meth:`to_dict` stored; a value of None where a number is expected is NaN."""
        values = {name: value for name, value in stored.items() if name != "wanted"}
        for name in ("accuracy", "guaranteed"):
            values[name] = math.nan if values[name] is None else values[name]
        return cls(**values, target_accuracy=stored["wanted"])


@checked
def threshold(predictions: Predictions, accuracy: float = 0.95, confidence: float = 0.95) -> Threshold:
    """Choose the lowest confidence above which predictions have an accuracy, with a guarantee.

    The promise is about new rows from the same source. Each candidate is tested with the exact binomial (Clopper–Pearson)
    bound. Testing many of them is paid for: the search starts from ``SEARCH_STARTS`` numbers of accepted rows, in equal
    ratios from the fewest that could pass to all, each with its share of the error probability, and continues from each to
    more rows as long as the test passes (fixed-sequence testing). Choose it on dev and use it on test: on the rows on which
    it is chosen it looks too good.

    Parameters
    ----------
    predictions : Predictions
        The rows on which the threshold is chosen.
    accuracy : float
        The accuracy that accepted predictions should have, in (0, 1]; no number of rows can promise exactly 1.
    confidence : float
        The probability with which the promise holds, between 0 and 1.

    Returns
    -------
    Threshold

    References
    ----------
    Angelopoulos et al. 2021, "Learn then test: calibrating predictive algorithms to achieve risk control".

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(0.5, 1.0, 4000)
    >>> limit = threshold(Predictions.from_confidences(scores, rng.random(4000) < scores), accuracy=0.9)
    >>> limit.reached, 0.75 < limit.confidence < 0.9
    (True, True)
    """
    check_accuracy(accuracy)
    check_share("confidence", confidence)
    curve = risk_coverage(predictions)
    n = len(predictions)
    correct = np.rint(curve.accepted * (1 - curve.risk))
    error_share = (1 - confidence) / SEARCH_STARTS
    chances = chance_of_so_many_correct(correct, curve.accepted, accuracy)
    fewest = fewest_rows(accuracy, error_share)
    start_sizes = np.geomspace(min(fewest, n), n, SEARCH_STARTS) - 1e-9
    starts = np.searchsorted(curve.accepted, start_sizes).clip(max=len(chances) - 1)
    last, _ = furthest_pass(chances, starts, np.full(SEARCH_STARTS, error_share))
    level = 1 - 2 * error_share  # a one-sided bound is one end of a two-sided interval with twice the error
    if last is not None:
        low, _ = binomial_interval(correct[last : last + 1], curve.accepted[last : last + 1].astype(np.float64), level)
        return _reached(curve, last, float(low[0]), accuracy, confidence)
    low, _ = binomial_interval(correct[starts], curve.accepted[starts].astype(np.float64), level)
    best = int(np.argmax(low))
    if n < fewest:
        reason = NO_PROOF
        if accuracy < 1:
            reason = f"even without a mistake that takes {fewest:,} accepted rows"
    else:
        best_coverage = curve.coverage[starts[best]]
        reason = f"the best that can be promised is {low[best]:.1%}, on the most confident {best_coverage:.1%}"
    message = (
        f"no threshold can promise {in_percent(accuracy)} accuracy with {in_percent(confidence)} confidence "
        f"on the {counted(n)} of {predictions.name}: {reason}; all go to a human"
    )
    return Threshold(
        confidence=None,
        accuracy=math.nan,
        guaranteed=float(low[best]),
        coverage=0.0,
        to_human=1.0,
        target_accuracy=accuracy,
        level=confidence,
        message=message,
    )


def _reached(curve: RiskCoverage, at: int, guaranteed: float, accuracy: float, confidence: float) -> Threshold:
    """Return the threshold at a position of the curve."""
    coverage = float(curve.coverage[at])
    message = (
        f"accept above {curve.confidence[at]:.3f}: {coverage:.1%} of predictions, {1 - curve.risk[at]:.1%} of them right "
        f"here, at least {in_percent(accuracy)} with {in_percent(confidence)} confidence; {1 - coverage:.1%} go to a human"
    )
    return Threshold(
        confidence=float(curve.confidence[at]),
        accuracy=float(1 - curve.risk[at]),
        guaranteed=guaranteed,
        coverage=coverage,
        to_human=1 - coverage,
        target_accuracy=accuracy,
        level=confidence,
        message=message,
    )


def check_share(name: str, value: float) -> None:
    """Raise an InputError unless a value is between 0 and 1.

    Parameters
    ----------
    name : str
        What the value is, for the message.
    value : float
        The value.
    """
    if not 0 < value < 1:
        raise InputError(f"{name} {value} is not between 0 and 1", remedy="give a share, such as 0.95 for 95 %")


def check_accuracy(value: float) -> None:
    """Raise an InputError unless an accuracy that somebody requires is above 0 and at most 1.

    Parameters
    ----------
    value : float
        The accuracy.
    """
    if not 0 < value <= 1:
        raise InputError(f"accuracy {value} is not between 0 and 1", remedy="give a fraction such as 0.95")


def fewest_rows(accuracy: float, error: float) -> float:
    """Compute how many rows, all of them correct, it takes to promise an accuracy.

    Parameters
    ----------
    accuracy : float
        The accuracy, in (0, 1].
    error : float
        The error probability that the promise may have.

    Returns
    -------
    int or float
        The number; infinity for an accuracy of 1, of which no number of rows can be proof.

    Examples
    --------
    >>> fewest_rows(0.95, 0.05), fewest_rows(1, 0.05)
    (59, inf)
    """
    return math.inf if accuracy == 1 else math.ceil(math.log(error) / math.log(accuracy))


def chance_of_so_many_correct(correct: ArrayLike, accepted: ArrayLike, accuracy: float) -> FloatArray:
    """Compute the probability of at least so many correct rows if the accuracy is exactly this one.

    The exact (Clopper–Pearson) lower bound reaches the accuracy if this is at most the error probability.

    Parameters
    ----------
    correct, accepted : array (C,)
        Numbers of correct and of all accepted rows.
    accuracy : float
        The accuracy that is tested.

    Returns
    -------
    array (C,)

    Examples
    --------
    >>> chance_of_so_many_correct([2, 0], [2, 2], 0.9).round(4).tolist()
    [0.81, 1.0]
    """
    from scipy.special import betainc

    hits, rows = np.asarray(correct), np.asarray(accepted)
    return np.where(hits > 0, betainc(np.maximum(hits, 1), rows - hits + 1, accuracy), 1.0)


def furthest_pass(chances: FloatArray, starts: IntArray, shares: FloatArray) -> tuple[int | None, float]:
    """Search for the last position that can be accepted, by fixed-sequence testing from several starts.

    Each start has a share of the error probability and continues to later positions as long as their chance is at most that.

    Parameters
    ----------
    chances : array (C,)
        The p-value of each position.
    starts : array of int (S,)
        Positions at which the search starts.
    shares : array (S,)
        Their shares of the error probability.

    Returns
    -------
    last : int or None
        The furthest position that a search reached; None if none passed.
    share : float
        The share with which it was reached; 0 if none was.

    Examples
    --------
    >>> furthest_pass(np.array([0.01, 0.02, 0.2, 0.01]), np.array([0, 2]), np.array([0.025, 0.025]))
    (1, 0.025)
    """
    furthest = (-1, 0.0)  # of equally far ones the largest share, which has the tightest bound
    for start, share in zip(starts.tolist(), shares.tolist(), strict=True):
        failures = np.flatnonzero(chances[start:] > share)
        passed = int(failures[0]) if len(failures) else len(chances) - start
        if passed:
            furthest = max(furthest, (start + passed - 1, share))
    return (None, 0.0) if furthest[0] < 0 else furthest
