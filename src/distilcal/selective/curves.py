"""The risk–coverage curve of a classifier, and its area."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distilcal.arguments import checked
from distilcal.predictions import FloatArray, IntArray, Predictions


@dataclass(frozen=True)
class RiskCoverage:
    """The risk–coverage curve: what happens if every prediction of at least some confidence is accepted.

    Attributes
    ----------
    confidence : array (C,)
        The distinct confidences, falling.
    coverage : array (C,)
        Share of the rows that are accepted, rising to 1.
    risk : array (C,)
        Share of the accepted rows that are wrong.
    accepted : array of int (C,)
        Number of accepted rows.
    """

    confidence: FloatArray
    coverage: FloatArray
    risk: FloatArray
    accepted: IntArray


@checked
def risk_coverage(predictions: Predictions) -> RiskCoverage:
    """Compute the risk among the most confident predictions, for every distinct confidence.

    Parameters
    ----------
    predictions : Predictions
        The predictions. Rows of equal confidence are accepted together.

    Returns
    -------
    RiskCoverage

    Examples
    --------
    >>> curve = risk_coverage(Predictions.from_confidences([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1]))
    >>> curve.coverage.tolist(), curve.risk.round(2).tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.33, 0.25])
    """
    order = np.argsort(-predictions.confidence, kind="stable")
    confidence = predictions.confidence[order]
    wrong = np.cumsum(~predictions.correct[order])
    last_of_equal = np.append(np.flatnonzero(confidence[1:] != confidence[:-1]), len(order) - 1)
    accepted = last_of_equal + 1
    return RiskCoverage(
        confidence=confidence[last_of_equal],
        coverage=accepted / len(order),
        risk=wrong[last_of_equal] / accepted,
        accepted=accepted,
    )


@checked
def aurc(predictions: Predictions) -> float:
    """Compute the area under the risk–coverage curve: the mean over rows of the risk if each is the last accepted.

    Range [0, 1], lower is better. Rows of equal confidence get the average over their possible orders, so the order of the
    rows does not matter.

    Parameters
    ----------
    predictions : Predictions
        The predictions.

    Returns
    -------
    float

    References
    ----------
    Geifman et al. 2019, "Bias-reduced uncertainty estimation for deep neural classifiers".

    Examples
    --------
    >>> round(aurc(Predictions.from_confidences([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1])), 4)
    0.1458
    """
    return area_under(risk_coverage(predictions))


def area_under(curve: RiskCoverage) -> float:
    """Compute the AURC of a curve that is already computed.

    Parameters
    ----------
    curve : RiskCoverage
        The curve.

    Returns
    -------
    float
    """
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


@checked
def excess_aurc(predictions: Predictions) -> float:
    """Compute the AURC less that of a perfect ranking of the same mistakes.

    Range [0, 1], lower is better; 0 if every mistake is less confident than every correct prediction.

    Parameters
    ----------
    predictions : Predictions
        The predictions.

    Returns
    -------
    float

    Examples
    --------
    >>> round(excess_aurc(Predictions.from_confidences([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1])), 4)
    0.0833
    """
    return excess_area(risk_coverage(predictions))


def excess_area(curve: RiskCoverage) -> float:
    """Compute the excess AURC of a curve that is already computed.

    Parameters
    ----------
    curve : RiskCoverage
        The curve.

    Returns
    -------
    float
    """
    n = int(curve.accepted[-1])
    mistakes = round(float(curve.risk[-1]) * n)
    best = (np.arange(1, mistakes + 1) / np.arange(n - mistakes + 1, n + 1)).sum() / n
    return max(area_under(curve) - float(best), 0.0)
