"""How well confidence ranks predictions, whatever its calibration."""

from __future__ import annotations

import numpy as np

from distilcal.metrics.decorator import metric
from distilcal.metrics.rows import Rows
from distilcal.predictions import FloatArray, IntArray


@metric
def aurc(rows: Rows) -> FloatArray:
    """Area under the risk–coverage curve: the mean over rows of the risk if each is the last that is accepted.

    Range [0, 1], lower is better. Rows of equal confidence get the average over their possible orders.
    `distilcal.selective.aurc` is the same of Predictions.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.

    Returns
    -------
    float

    References
    ----------
    Geifman et al. 2019, "Bias-reduced uncertainty estimation for deep neural classifiers".

    Examples
    --------
    >>> round(aurc([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]], [0, 0, 1, 0]), 4)
    0.1458
    """
    top = rows.top
    order = top.order[::-1]
    size = len(order)
    ends = np.arange(1, size + 1)
    if top.group_ends is not None:
        ends = size - np.append(0, top.group_ends[:-1])[::-1]  # after each run of equal confidences, from the top
    weights = np.ones(size, np.int64) if rows.weights is None else rows.weights.astype(np.int64)
    wrong = weights * ~rows.correct
    accepted = np.cumsum(weights[..., order], axis=-1)[..., ends - 1]
    mistakes = np.cumsum(wrong[..., order], axis=-1)[..., ends - 1]
    accepted_before = _shifted(accepted)
    mistakes_before = _shifted(mistakes)
    run = accepted - accepted_before
    rate = (mistakes - mistakes_before) / np.maximum(run, 1)
    # After j rows of a run the expected risk is (a + j·rate)/(s + j); its sum over j has harmonic numbers H:
    # rate·run + (a - rate·s)·(H(s + run) - H(s)).
    harmonic = np.append(0.0, np.cumsum(1.0 / np.arange(1, int(rows.totals.max()) + 1)))
    steps = harmonic[accepted] - harmonic[accepted_before]
    area = rate * run + (mistakes_before - rate * accepted_before) * steps
    return np.asarray(area.sum(axis=-1) / rows.totals)


def _shifted(cumulative: IntArray) -> IntArray:
    """The values one position earlier, beginning with 0."""
    return np.concatenate([np.zeros_like(cumulative[..., :1]), cumulative[..., :-1]], axis=-1)
