"""Exact and score bounds of paired differences between two classifiers, from the rows on which only one is right."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from distilcal.arguments import checked
from distilcal.predictions import FloatArray

BISECTIONS = 60
NUISANCE_RATES = 24  # at which the largest p-value is looked for


@checked
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


def loss_p_value(losses: int, gains: int, rows: int, max_loss: float, *, nuisance_error: float) -> float:
    """Compute an exact p-value against "the rate of losses exceeds the rate of gains by more than ``max_loss``".

    A row is a loss, a gain or neither. The p-value is the largest probability, over all rates of gains, of counts whose score
    statistic is at least that of the counts seen, if the rates differ by exactly ``max_loss``. Rates of gains outside
    their exact interval are left out, and the error probability of that interval is added (Berger and Boos 1994). The set of
    such counts holds with any count all with fewer losses, so larger differences make it less probable.

    Parameters
    ----------
    losses, gains : int
        Numbers of rows that are a loss, and a gain.
    rows : int
        Number of all rows.
    max_loss : float
        The difference of the two rates that is tested, in (0, 1).
    nuisance_error : float
        Error probability of the interval of the rate of gains; the p-value cannot be smaller.

    Returns
    -------
    float

    Examples
    --------
    >>> round(loss_p_value(0, 0, 600, 0.005, nuisance_error=0.0005), 4), loss_p_value(6, 3, 600, 0.005, nuisance_error=0.0005)
    (0.0499, 1.0)
    """
    from scipy.special import betaincinv

    score = float(paired_score(np.array(float(gains)), np.array(float(losses)), rows, -max_loss))
    if score <= 0:
        return 1.0
    low = betaincinv(gains, rows - gains + 1, nuisance_error / 2) if gains else 0.0
    high = betaincinv(gains + 1, rows - gains, 1 - nuisance_error / 2) if gains < rows else 1.0
    high = min(high, (1 - max_loss) / 2)
    gain_rates = np.linspace(np.sqrt(min(low, high)), np.sqrt(high), NUISANCE_RATES)[:, None] ** 2  # (Q, 1)
    possible = _likely_counts(rows, float(gain_rates[0, 0]), float(gain_rates[-1, 0]))  # (C,)
    most_losses = _most_losses(possible, rows, max_loss, score)
    gain_probs = _binomial_pmf(possible, rows, gain_rates)  # (Q, C)
    loss_rates = np.minimum((gain_rates + max_loss) / (1 - gain_rates), 1.0)  # 1 where no row is neither, but for rounding
    loss_probs = _binomial_cdf(most_losses, rows - possible, loss_rates)
    left_out = np.maximum(1 - gain_probs.sum(axis=1), 0.0)
    p_values = (gain_probs * loss_probs).sum(axis=1) + left_out
    return min(float(p_values.max()) + nuisance_error, 1.0)


def _likely_counts(rows: int, low_rate: float, high_rate: float) -> FloatArray:
    """Return the counts that have a noticeable probability at some of the rates."""
    low, high = rows * low_rate, rows * high_rate
    first = max(int(low - 7 * np.sqrt(low) - 15), 0)
    last = min(int(high + 7 * np.sqrt(high) + 15), rows)
    return np.arange(first, last + 1, dtype=np.float64)


def _most_losses(gains: FloatArray, rows: int, max_loss: float, score: float) -> FloatArray:
    """Return for each number of gains the most losses whose score is at least this one; -1 if there is none."""
    passing, failing = np.full_like(gains, -1.0), rows - gains + 1
    while (failing - passing > 1).any():
        middle = np.floor((passing + failing) / 2)
        passes = paired_score(gains, np.maximum(middle, 0), rows, -max_loss) >= score - 1e-9
        passes |= middle < 0
        passing, failing = np.where(passes, middle, passing), np.where(passes, failing, middle)
    return passing


def _binomial_pmf(count: FloatArray, trials: int, rate: FloatArray) -> FloatArray:
    from scipy.special import gammaln, xlog1py, xlogy

    choices = gammaln(trials + 1) - gammaln(count + 1) - gammaln(trials - count + 1)
    probs: FloatArray = np.exp(choices + xlogy(count, rate) + xlog1py(trials - count, -rate))
    return probs


def _binomial_cdf(count: FloatArray, trials: FloatArray, rate: FloatArray) -> FloatArray:
    """Return the probability of at most ``count`` hits, where ``count`` may be -1."""
    from scipy.special import betainc

    inside = betainc(np.maximum(trials - count, 1), np.maximum(count, 0) + 1, 1 - rate)
    probs: FloatArray = np.where(count < 0, 0.0, np.where(count >= trials, 1.0, inside))
    return probs
