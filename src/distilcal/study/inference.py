"""What few seeds and one test set tell about a difference: its variance, interval, p-value and verdict. NumPy and SciPy only.

A difference of two methods varies with the test rows and with the seeds. Rows are many, and their bootstrap gives their
variance. Seeds are few, so the variances over seeds of many differences are moderated: each is drawn towards their mean, as
far as they are alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

LEVEL = 0.95  # of intervals; 1 - LEVEL is the level of significance
SMALLEST_P = 1e-30
VERDICTS = ("holds", "fails", "no effect above δ", "undecided", "premise not met")
HOLDS, FAILS, NO_EFFECT, UNDECIDED, NOT_MET = VERDICTS


# ---- samples -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A figure of one method in one place, or the difference of two: a value and bootstrap replicates for each seed."""

    seeds: tuple[int, ...]
    values: Floats  # (seeds,)
    draws: Floats  # (seeds, replicates)
    examples: int  # of the set it is measured on
    models: tuple[str, ...] = ()  # (seeds,) what tells models apart whose figures are equal; empty: the figures alone

    def of(self, seeds: Sequence[int]) -> Sample:
        """Return the sample of these seeds only, in their order."""
        rows = [self.seeds.index(seed) for seed in seeds]
        models = tuple(self.models[row] for row in rows) if self.models else ()
        return Sample(tuple(seeds), self.values[rows], self.draws[rows], self.examples, models)

    @property
    def content(self) -> bytes:
        """Models, values and replicates as bytes: equal for the same predictions, whatever the method is called."""
        return "\n".join(self.models).encode() + self.values.tobytes() + self.draws.tobytes()


def paired_difference(first: Sample, second: Sample) -> Sample | None:
    """Return ``first - second`` for every seed that both have.

    Parameters
    ----------
    first, second : Sample
        Figures of one metric in one place, whose replicates resample the same examples.

    Returns
    -------
    Sample or None
        None if they share no seed, are not measured on the same examples, or a value is not finite.
    """
    shared = [seed for seed in first.seeds if seed in second.seeds]
    if not shared or first.examples != second.examples:
        return None
    a, b = first.of(shared), second.of(shared)
    with np.errstate(invalid="ignore"):  # inf - inf
        values, draws = a.values - b.values, a.draws - b.draws
    if not np.isfinite(values).all() or not np.isfinite(draws).all():
        return None
    models = tuple(f"{one} - {other}" for one, other in zip(a.models, b.models, strict=True))
    return Sample(tuple(shared), values, draws, a.examples, models)


# ---- variances ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with the variances that make it uncertain.

    Attributes
    ----------
    value : float
        The mean.
    row_variance : float
        Variance of the mean that comes from the test rows.
    seed_variance : float
        Variance of the mean that comes from the seeds; 0 for one seed, of which nothing is known.
    freedom : float
        Degrees of freedom of ``seed_variance``.
    """

    value: float
    row_variance: float
    seed_variance: float = 0.0
    freedom: float = math.inf

    def half_width(self, alpha: float) -> float:
        """Return half the width of the interval that misses the true value with probability ``alpha`` at most.

        ``√(z² · row_variance + t² · seed_variance)`` with the quantiles z of the normal and t of Student's distribution.
        Unlike Welch and Satterthwaite's approximation, it cannot be too narrow where a small variance over seeds is an
        accident (Banerjee 1961, "On confidence interval for two-means problem based on separate estimates of variances").
        """
        normal = float(special.ndtri(alpha / 2))
        student = float(special.stdtrit(self.freedom, alpha / 2)) if math.isfinite(self.freedom) else normal
        return math.sqrt(normal**2 * self.row_variance + student**2 * self.seed_variance)

    def interval(self, alpha: float = 1 - LEVEL) -> tuple[float, float]:
        """Return the ends of that interval."""
        half = self.half_width(alpha)
        return self.value - half, self.value + half

    def p_value(self) -> float:
        """Return the two-sided p-value of no difference: the level at which the interval ends at 0."""
        return self._level_of(abs(self.value))

    def equivalence_p_value(self, delta: float) -> float:
        """Return the p-value of "the difference is δ or more, in one direction or the other" (two one-sided tests).

        References
        ----------
        Schuirmann 1987, "A comparison of the two one-sided tests procedure and the power approach".
        """
        gap = delta - abs(self.value)
        return self._level_of(gap) / 2 if gap > 0 else 1.0

    def _level_of(self, distance: float) -> float:
        """The ``alpha`` of the interval whose half-width is this distance."""
        if distance <= 0:
            return 1.0
        low, high = math.log(SMALLEST_P), 0.0  # the half-width falls with the logarithm of alpha
        if self.half_width(SMALLEST_P) <= distance:
            return SMALLEST_P
        while high - low > 1e-10:
            middle = (low + high) / 2
            if self.half_width(math.exp(middle)) > distance:
                low = middle
            else:
                high = middle
        return math.exp(high)


def estimate_each(samples: Sequence[Sample]) -> list[Estimate]:
    """Return the mean of every sample with its variances; those over seeds are moderated where seeds are the same.

    Parameters
    ----------
    samples : sequence of Sample
        Figures, or differences, of one metric.

    Returns
    -------
    list of Estimate
    """
    variances: list[float] = [0.0] * len(samples)
    freedoms: list[float] = [math.inf] * len(samples)
    for seeds in dict.fromkeys(sample.seeds for sample in samples):
        if len(seeds) == 1:
            continue
        members = [i for i, sample in enumerate(samples) if sample.seeds == seeds]
        moderated, freedom = moderated_variances(np.stack([samples[i].values for i in members]))
        for i, variance in zip(members, moderated, strict=True):
            variances[i], freedoms[i] = float(variance) / len(seeds), freedom
    return [
        Estimate(float(sample.values.mean()), float(sample.draws.mean(axis=0).var()), variance, freedom)
        for sample, variance, freedom in zip(samples, variances, freedoms, strict=True)
    ]


def moderated_variances(values: Floats) -> tuple[Floats, float]:
    r"""Return the variance over seeds of each row of a table, moderated by those of the others, and its degrees of freedom.

    With S seeds every variance s² has d = S - 1 degrees of freedom. Where true variances follow a scaled inverse χ² law with
    d₀ degrees of freedom about s₀², the posterior mean is

    .. math:: \tilde s^2 = (d_0 s_0^2 + d s^2) / (d_0 + d)

    and a mean over its standard error is Student's t with d₀ + d degrees of freedom. By moments, ψ'(d₀/2) is the variance of
    log s² between rows less ψ'(d/2), which is what chance alone gives. Three changes keep the error of many tests in bounds
    where rows are few, unlike each other, or correlated:

    - the mean squared correlation ρ² of rows over seeds (less that of chance) makes m rows count as m / (1 + (m - 1)ρ²): it
      bounds the degrees of freedom, and correlated rows, which look more alike than they are, have ψ'(d/2)(1 - ρ²) deducted;
    - one standard error of the moment is added to it, so that few rows are not taken for alike by accident;
    - s₀² is the arithmetic mean of the variances, which is not below that of the law.

    Parameters
    ----------
    values : array (rows, seeds)
        A value for each row and seed, at least two seeds.

    Returns
    -------
    variances : array (rows,)
    freedom : float

    References
    ----------
    Smyth 2004, "Linear models and empirical Bayes methods for assessing differential expression in microarray experiments",
    Statistical Applications in Genetics and Molecular Biology 3(1), article 3.

    Examples
    --------
    >>> values = np.random.default_rng(0).normal(size=(40, 3))
    >>> variances, freedom = moderated_variances(values)
    >>> bool(variances.std() < values.var(axis=1, ddof=1).std()), freedom > 2
    (True, True)
    """
    own = values.var(axis=1, ddof=1)
    freedom = values.shape[1] - 1
    varying = own > 0
    if varying.sum() < 2:
        return own, float(freedom)
    correlation = _mean_squared_correlation(values[varying])
    rows = int(varying.sum())
    effective_rows = rows / (1 + (rows - 1) * correlation)
    by_chance = float(special.polygamma(1, freedom / 2))
    between = float(np.log(own[varying]).var(ddof=1))
    error = by_chance * math.sqrt(2 / max(effective_rows - 1, 0.25))
    excess = between - (1 - correlation) * by_chance + error
    prior = prior_freedom(excess)
    own_weight = freedom / (prior + freedom)  # 0 if all are alike
    moderated = own_weight * own + (1 - own_weight) * own.mean()
    bounded = min(freedom + prior, freedom * effective_rows)
    return moderated, float(max(bounded, freedom))


def prior_freedom(excess: float) -> float:
    """Return d₀ with ψ'(d₀/2) equal to the excess variance of log variances; infinite if there is none.

    Parameters
    ----------
    excess : float
        Variance of log variances between rows that chance does not explain.

    Returns
    -------
    float

    Examples
    --------
    >>> round(prior_freedom(float(special.polygamma(1, 3.0))), 6), prior_freedom(-0.1)
    (6.0, inf)
    """
    if excess <= 1e-6:
        return math.inf
    half = 0.5 + 1 / excess
    for _ in range(50):  # Newton's method for 1/ψ', which is nearly linear
        value = float(special.polygamma(1, half))
        step = value * (1 - value / excess) / float(special.polygamma(2, half))
        half += step
        if abs(step) < 1e-10 * half:
            break
    return 2 * half


def _mean_squared_correlation(values: Floats) -> float:
    """The mean squared correlation over seeds between rows, less what chance gives uncorrelated ones; 0.5 for two seeds."""
    rows, seeds = values.shape
    if seeds == 2:
        return 0.5  # any two rows have correlation ±1: nothing is known, and most rows share a method or a task
    centred = values - values.mean(axis=1, keepdims=True)
    directions = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    squared = (directions @ directions.T) ** 2
    mean = (squared.sum() - rows) / (rows * (rows - 1))
    chance = 1 / (seeds - 1)
    return float(np.clip((mean - chance) / (1 - chance), 0.0, 1.0))


# ---- verdicts ----------------------------------------------------------------------------------------------------------


def holm_factors(p_values: Sequence[float]) -> list[float]:
    """Return by what Holm's method multiplies each p-value, without a bound at 1.

    Parameters
    ----------
    p_values : sequence of float
        Above 0.

    Returns
    -------
    list of float

    Examples
    --------
    >>> [round(factor, 6) for factor in holm_factors([0.01, 0.04, 0.03])]
    [3.0, 1.5, 2.0]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = p[order] * (len(p) - np.arange(len(p)))
    factors = np.empty_like(p)
    factors[order] = np.maximum.accumulate(steps) / p[order]
    return [float(factor) for factor in factors]


def corrected_intervals(estimates: Sequence[Estimate], delta: float | None = None) -> list[tuple[float, float]]:
    """Return an interval for each of several differences, as wide as their number asks for.

    Holm's method corrects the tests of no difference, and apart from these the tests of no effect above δ. Each interval has
    the level at which its own test is decided: it excludes 0 only if the corrected p-value is below 5 %, and it lies between
    -δ and δ only if that of the test of equivalence is. So both kinds of error have 5 % in all comparisons together.

    Parameters
    ----------
    estimates : sequence of Estimate
        The differences.
    delta : float, optional
        The smallest difference that matters.

    Returns
    -------
    list of (float, float)
        Lower and upper ends.
    """
    alpha = 1 - LEVEL
    factors = holm_factors([estimate.p_value() for estimate in estimates])
    if delta is None:
        return [estimate.interval(alpha / factor) for estimate, factor in zip(estimates, factors, strict=True)]
    equivalence = [max(estimate.equivalence_p_value(delta), SMALLEST_P) for estimate in estimates]
    intervals = []
    for estimate, factor, p, p_factor in zip(estimates, factors, equivalence, holm_factors(equivalence), strict=True):
        if p * p_factor <= alpha:
            low, high = estimate.interval(2 * alpha / p_factor)
        else:
            low, high = estimate.interval(alpha / factor)
            if -delta < low and high < delta:  # by itself, but not among so many
                low, high = estimate.interval(alpha / len(estimates))
        intervals.append((low, high))
    return intervals


def decide(
    interval: tuple[float, float] | None, *, expects_higher: bool, delta: float | None = None, unmet: Sequence[str] = ()
) -> str:
    """Return the verdict on one comparison; it can be read off the interval.

    Parameters
    ----------
    interval : (float, float) or None
        Corrected interval of the difference of the claim's first method and the other; None if there is none.
    expects_higher : bool
        Whether the claim is that the first method's value is higher.
    delta : float, optional
        The smallest difference that matters.
    unmet : sequence of str
        Premises that are not met.

    Returns
    -------
    str
        One of ``VERDICTS``.

    Examples
    --------
    >>> decide((-0.03, -0.01), expects_higher=False, delta=0.005)
    'holds'
    >>> decide((-0.003, 0.001), expects_higher=False, delta=0.005)
    'no effect above δ'
    """
    if unmet:
        return NOT_MET
    if interval is None:
        return UNDECIDED
    low, high = interval
    if delta is not None and -delta < low and high < delta:
        return NO_EFFECT
    if low > 0 or high < 0:
        return HOLDS if (low > 0) == expects_higher else FAILS
    return UNDECIDED


def combine_controls(verdicts: Sequence[str]) -> str:
    """Return the verdict on a comparison with its controls: it holds only against all of them.

    Parameters
    ----------
    verdicts : sequence of str
        Against the paper's method and against every control.

    Returns
    -------
    str

    Examples
    --------
    >>> combine_controls(["holds", "undecided"]), combine_controls(["holds", "fails"])
    ('undecided', 'fails')
    """
    for verdict in (NOT_MET, FAILS, NO_EFFECT, UNDECIDED):
        if verdict in verdicts:
            return verdict
    return HOLDS


def combine_comparisons(verdicts: Sequence[str], at_least: float = 1.0) -> tuple[str, str]:
    """Return the verdict on a claim, and how many of its comparisons must hold in words.

    A claim holds if enough comparisons hold. It fails if so many fail or show no effect that it cannot hold, and has no effect
    above δ if none of these goes either way. Comparisons whose premises are not met do not count; if they are more than half,
    the claim's premises are not met.

    Parameters
    ----------
    verdicts : sequence of str
        The verdicts on its comparisons.
    at_least : float
        The share of them that must hold.

    Returns
    -------
    verdict, need : str

    Examples
    --------
    >>> combine_comparisons(["holds", "holds", "undecided"], at_least=2 / 3)
    ('holds', '2 of 3')
    """
    tested = [verdict for verdict in verdicts if verdict != NOT_MET]
    count = len(tested)
    need = math.ceil(at_least * count - 1e-9)
    words = f"all of {count}" if need == count else f"{need} of {count}"
    spare = count - need
    fails, none = tested.count(FAILS), tested.count(NO_EFFECT)
    if 2 * count < len(verdicts):
        return NOT_MET, words
    if count and tested.count(HOLDS) >= need:
        return HOLDS, words
    if fails + none <= spare:
        return UNDECIDED, words
    return (NO_EFFECT if none == fails + none and HOLDS not in tested else FAILS), words
