"""Selective prediction: act on confident predictions, hand the rest to a human.

``risk_coverage`` shows the trade, ``aurc`` sums it up, ``threshold`` gives a confidence above which predictions are as
accurate as asked, with a guarantee that holds for any classifier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distilcal.errors import InputError
from distilcal.metrics import binomial_interval
from distilcal.predictions import FloatArray, IntArray, Predictions

STARTS = 10  # numbers of accepted rows from which the search for a threshold sets out


@dataclass(frozen=True)
class RiskCoverage:
    """Accepting every prediction of at least ``confidence``: what share that is, and what share of those is wrong."""

    confidence: FloatArray  # distinct values, falling
    coverage: FloatArray  # rising to 1
    risk: FloatArray
    accepted: IntArray  # rows


@dataclass(frozen=True)
class Threshold:
    """Accept predictions of at least ``confidence``; None where the accuracy cannot be promised at any."""

    confidence: float | None
    accuracy: float  # share right among the accepted, here
    guaranteed: float  # lower bound of their accuracy, at the asked confidence level
    coverage: float  # share accepted
    to_human: float  # share handed over
    wanted: float
    level: float
    message: str

    @property
    def reached(self) -> bool:
        return self.confidence is not None


def in_percent(share: float) -> str:
    """A share that somebody chose, with the digits that it was given: 95%, 99.9%."""
    return f"{share * 100:.10g}%"


def counted(count: int, of: str = "row") -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{count:,} {of}{'' if count == 1 else 's'}"


def risk_coverage(predictions: Predictions) -> RiskCoverage:
    """Risk among the most confident, for every distinct confidence; equal confidences are accepted together.

    >>> curve = risk_coverage(Predictions.from_confidences([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1]))
    >>> curve.coverage.tolist(), curve.risk.round(2).tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.33, 0.25])
    """
    order = np.argsort(-predictions.confidence, kind="stable")
    confidence = predictions.confidence[order]
    wrong = np.cumsum(~predictions.correct[order])
    last = np.append(np.flatnonzero(confidence[1:] != confidence[:-1]), len(order) - 1)  # of each run of equal ones
    accepted = last + 1
    return RiskCoverage(confidence[last], accepted / len(order), wrong[last] / accepted, accepted)


def aurc(predictions: Predictions) -> float:
    """Area under the risk–coverage curve: mean over rows of the risk when each is the last taken. In [0, 1], lower is better.

    Geifman et al. 2019. Rows of equal confidence share the average over their possible orders, so the order of rows does
    not matter.

    >>> round(aurc(Predictions.from_confidences([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1])), 4)
    0.1458
    """
    return area_under(risk_coverage(predictions))


def area_under(curve: RiskCoverage) -> float:
    """The AURC of a curve that is at hand."""
    rows = int(curve.accepted[-1])
    wrong = curve.risk * curve.accepted
    starts = np.append(0, curve.accepted[:-1])
    wrong_before = np.append(0.0, wrong[:-1])
    size = curve.accepted - starts
    # After j of a run's `size` rows the expected number wrong is wrong_before + j · rate: risk (a + j·r)/(s + j).
    # Σ_j (a + j·r)/(s + j) = r·size + (a - r·s)·(H(s + size) - H(s)), H the harmonic numbers.
    rate = (wrong - wrong_before) / size
    harmonic = np.append(0.0, np.cumsum(1.0 / np.arange(1, rows + 1)))
    area = rate * size + (wrong_before - rate * starts) * (harmonic[curve.accepted] - harmonic[starts])
    return float(area.sum() / rows)


def excess_aurc(predictions: Predictions) -> float:
    """AURC less that of a perfect ranking of the same mistakes. In [0, 1], lower is better; 0 when all mistakes come last.

    >>> round(excess_aurc(Predictions.from_confidences([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1])), 4)
    0.0833
    """
    return excess_area(risk_coverage(predictions))


def excess_area(curve: RiskCoverage) -> float:
    """The excess AURC of a curve that is at hand."""
    n = int(curve.accepted[-1])
    mistakes = round(float(curve.risk[-1]) * n)
    best = (np.arange(1, mistakes + 1) / np.arange(n - mistakes + 1, n + 1)).sum() / n
    return max(area_under(curve) - float(best), 0.0)


def threshold(predictions: Predictions, accuracy: float = 0.95, confidence: float = 0.95) -> Threshold:
    """The lowest confidence above which predictions are at least ``accuracy`` accurate, with probability ``confidence``.

    The promise is about new rows from the same source. Each candidate is tested with the exact binomial (Clopper–Pearson)
    bound; that many are tried is paid for: the search sets out from ``STARTS`` numbers of accepted rows, in equal ratios
    from the fewest that could pass to all, each with its share of the error probability, and from each goes on to more rows
    as long as the test passes (fixed-sequence testing, Angelopoulos et al. 2021). Choose it on dev, use it on test: chosen
    on the rows it is reported for, it would flatter itself.

    >>> rng = np.random.default_rng(0)
    >>> sure = rng.uniform(0.5, 1.0, 4000)
    >>> found = threshold(Predictions.from_confidences(sure, rng.random(4000) < sure), accuracy=0.9)
    >>> found.reached, 0.75 < found.confidence < 0.9
    (True, True)
    """
    for name, value in (("accuracy", accuracy), ("confidence", confidence)):
        if not 0 < value < 1:
            raise InputError(f"{name} {value} is not between 0 and 1", remedy="give a fraction such as 0.95")
    from scipy.special import betainc

    curve = risk_coverage(predictions)
    n = len(predictions)
    right = np.rint(curve.accepted * (1 - curve.risk))
    share = (1 - confidence) / STARTS
    # The bound reaches `accuracy` exactly when so many right by chance, P(Bin(n, accuracy) ≥ right), is at most `share`.
    passes = (right > 0) & (betainc(np.maximum(right, 1), curve.accepted - right + 1, accuracy) <= share)
    fewest = int(np.ceil(np.log(share) / np.log(accuracy)))  # all of so many must be right
    starts = np.searchsorted(curve.accepted, np.geomspace(min(fewest, n), n, STARTS) - 1e-9).clip(max=len(passes) - 1)
    first_failure_after = np.append(np.flatnonzero(~passes), len(passes))
    ends = first_failure_after[np.searchsorted(first_failure_after, starts)]
    reached = ends > starts
    level = 1 - 2 * share  # a one-sided bound is one end of a two-sided interval with twice the error
    if reached.any():
        at = int(ends[reached].max()) - 1
        low, _ = binomial_interval(right[at : at + 1], curve.accepted[at : at + 1].astype(np.float64), level)
        coverage = float(curve.coverage[at])
        message = (
            f"accept above {curve.confidence[at]:.3f}: {coverage:.1%} of predictions, {1 - curve.risk[at]:.1%} of them right "
            f"here, at least {in_percent(accuracy)} with {in_percent(confidence)} confidence; {1 - coverage:.1%} go to a human"
        )
        return Threshold(
            float(curve.confidence[at]),
            float(1 - curve.risk[at]),
            float(low[0]),
            coverage,
            1 - coverage,
            accuracy,
            confidence,
            message,
        )
    low, _ = binomial_interval(right[starts], curve.accepted[starts].astype(np.float64), level)
    best = int(np.argmax(low))
    message = (
        f"no threshold can promise {in_percent(accuracy)} accuracy with {in_percent(confidence)} confidence "
        f"on the {counted(n)} of {predictions.name}: "
    )
    if n < fewest:
        message += f"even without a mistake that takes {fewest:,} accepted rows; all go to a human"
    else:
        message += (
            f"the best that can be promised is {low[best]:.1%}, on the most confident {curve.coverage[starts[best]]:.1%}; "
            "all go to a human"
        )
    return Threshold(None, float("nan"), float(low[best]), 0.0, 1.0, accuracy, confidence, message)
