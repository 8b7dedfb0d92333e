"""Intervals and tests: exact binomial, centred bootstrap, paired bootstrap, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from distilcal.predictions import FloatArray


def binomial_interval(hits: FloatArray, count: FloatArray, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Compute the exact (Clopper–Pearson) interval of a rate.

    Parameters
    ----------
    hits : array
        Number of successes.
    count : array
        Number of trials, of the same shape.
    level : float
        Coverage of the interval.

    Returns
    -------
    low, high : arrays
        nan where nothing was counted.

    Examples
    --------
    >>> low, high = binomial_interval(np.array([9.0]), np.array([10.0]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.555], [0.997])
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), count - hits + 1, tail), 0.0)
        high = np.where(hits < count, betaincinv(hits + 1, np.maximum(count - hits, 1), 1 - tail), 1.0)
    return np.where(count > 0, low, np.nan), np.where(count > 0, high, np.nan)


def centred_interval(value: float, replicates: FloatArray, level: float) -> tuple[float, float]:
    """Compute the percentiles of bootstrap replicates, moved so that their mean is the value.

    Centring removes the bias of the bootstrap: calibration errors grow if rows repeat.

    Parameters
    ----------
    value : float
        The value on the rows as they are.
    replicates : array (R,)
        The values on resamples.
    level : float
        Coverage of the interval.

    Returns
    -------
    low, high : float
        Infinite ends where a value is infinite, NaN where one is NaN.

    Examples
    --------
    >>> centred_interval(1.0, np.array([2.0, 3.0, 4.0]), level=1.0)
    (0.0, 2.0)
    """
    everything = np.append(replicates, value)
    if np.isnan(everything).any():
        return np.nan, np.nan
    if np.isinf(everything).any():
        return (-np.inf if everything.min() == -np.inf else value), (np.inf if everything.max() == np.inf else value)
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2]) - replicates.mean() + value
    return float(low), float(high)


def paired_interval(difference: float, replicates: FloatArray, rows: int, level: float) -> tuple[float, float, float, float]:
    """Compute the interval and the two-sided p-value of a difference from a paired bootstrap.

    The p-value is the share of resamples whose difference is as far from their mean as the difference is from 0. Where none
    is, it is the tail of a normal distribution with their spread.

    Parameters
    ----------
    difference : float
        The difference on the rows as they are.
    replicates : array (R,)
        The differences on resamples.
    rows : int
        Number of rows; they bound how small a p-value can be.
    level : float
        Coverage of the interval.

    Returns
    -------
    difference, low, high, p_value : float

    Examples
    --------
    >>> paired_interval(0.0, np.zeros(100), rows=50, level=0.95)
    (0.0, 0.0, 0.0, 1.0)
    """
    if not np.isfinite(difference) or not np.isfinite(replicates).all():
        return difference, -np.inf, np.inf, 1.0
    centred = replicates - replicates.mean()
    low, high = np.quantile(centred, [(1 - level) / 2, (1 + level) / 2]) + difference
    # A small tolerance: equal predictions differ by 0 in every resample and must give p = 1.
    extreme = int((np.abs(centred) >= abs(difference) - 1e-12).sum())
    p_value = (1 + extreme) / (1 + len(replicates))
    if not extreme:
        # This many resamples cannot resolve a smaller p-value, but the normal tail can estimate it. Few rows bound it from
        # below, as in a sign test: each is at most one toss of a coin.
        spread = float(centred.std())
        tail = math.erfc(abs(difference) / spread / math.sqrt(2)) if spread > 1e-12 else 0.0
        p_value = max(min(p_value, tail), 2.0 ** (1 - rows))
    return difference, float(low), float(high), p_value


def is_significant(low: float, high: float, p_value: float, level: float = 0.95) -> bool:
    """Decide whether a difference is beyond chance; everything that names, marks or counts differences asks this function.

    The interval and the p-value of a skewed difference can disagree, and the p-value is corrected for multiple tests while the
    interval is not: a difference counts only if both exclude 0.

    Parameters
    ----------
    low, high : float
        Interval of the difference.
    p_value : float
        Its p-value, corrected for all tests that were done together.
    level : float
        Coverage of the interval; p-values must be below ``1 - level``.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_significant(0.01, 0.05, 0.012), is_significant(0.01, 0.05, 0.08), is_significant(-0.01, 0.05, 0.04)
    (True, False, False)
    """
    return p_value < 1 - level and (low > 0 or high < 0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests by Holm's step-down procedure.

    Parameters
    ----------
    p_values : sequence of float
        The p-values of all tests.

    Returns
    -------
    list of float
        The corrected p-values in the same order.

    References
    ----------
    Holm 1979, "A simple sequentially rejective multiple test procedure".

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values)
    order = np.argsort(p)
    stepped = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in corrected]
