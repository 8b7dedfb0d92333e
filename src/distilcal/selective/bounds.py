"""Exact and score bounds of paired differences between two classifiers, from the rows on which only one is right."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from distilcal.predictions import FloatArray

BISECTIONS = 60


def paired_rate_interval(gains: ArrayLike, losses: ArrayLike, rows: int, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Compute Tango's score interval of the difference of two rates that are measured on the same rows.

    Unlike a bootstrap it has a width even where the two never disagree.

    Parameters
    ----------
    gains, losses : array (P,)
        Numbers of rows on which only the first, and only the second, is right.
    rows : int
        Number of all rows.
    level : float
        Coverage of the interval.

    Returns
    -------
    low, high : arrays (P,)
        Around ``(gains - losses) / rows``.

    References
    ----------
    Tango 1998, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design".

    Examples
    --------
    >>> low, high = paired_rate_interval([10], [4], 200)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([-0.008], [0.073])
    """
    from scipy.special import ndtri

    gains, losses = np.asarray(gains, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    quantile = float(ndtri((1 + level) / 2))
    difference = (gains - losses) / rows
    ends = []
    for sign, end in ((1.0, -1.0), (-1.0, 1.0)):  # the statistic falls in the difference that is tested
        inside, outside = difference.copy(), np.full_like(difference, end)
        for _ in range(BISECTIONS):
            middle = (inside + outside) / 2
            accepted = sign * paired_score(gains, losses, rows, middle) <= quantile
            inside, outside = np.where(accepted, middle, inside), np.where(accepted, outside, middle)
        ends.append(inside)
    return ends[0], ends[1]


def paired_score(gains: FloatArray, losses: FloatArray, rows: int, difference: ArrayLike) -> FloatArray:
    """Compute Tango's score statistic of a paired difference of two rates.

    Parameters
    ----------
    gains, losses : array
        Numbers of rows on which only the first, and only the second, is right.
    rows : int
        Number of all rows.
    difference : array or float
        The difference ``rate of gains - rate of losses`` that is tested, in (-1, 1).

    Returns
    -------
    array
        Standard normal if that is the difference and rows are many; larger if the difference is larger.

    Examples
    --------
    >>> paired_score(np.array([10.0]), np.array([4.0]), 200, 0.0).round(3).tolist()
    [1.604]
    """
    tested = np.asarray(difference, dtype=np.float64)
    # The likeliest rate of losses if the difference is the one tested: the larger root of a·q² + b·q + c.
    a = 2.0 * rows
    b = -gains - losses + (2.0 * rows - gains + losses) * tested
    c = -losses * tested * (1 - tested)
    loss_rate = (np.sqrt(np.maximum(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = np.maximum(rows * (2 * loss_rate + tested * (1 - tested)), 0.0)
    excess = gains - losses - rows * tested
    with np.errstate(divide="ignore", invalid="ignore"):
        score: FloatArray = np.where(np.abs(excess) < 1e-9, 0.0, excess / np.sqrt(variance))
    return score
