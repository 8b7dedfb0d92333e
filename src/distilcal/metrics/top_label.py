"""Top-label calibration errors: they compare the confidence of the predicted class with how often it is right."""

from __future__ import annotations

from typing import Literal

import numpy as np

from distilcal.errors import InputError
from distilcal.metrics import variants
from distilcal.metrics.decorator import check_choice, metric
from distilcal.metrics.rows import Closed, Rows
from distilcal.metrics.smooth import residual_histogram, smoothed_error
from distilcal.predictions import FloatArray


@metric
def ece(rows: Rows, *, bins: int = 15, closed: Closed = "right", variant: Literal["sound", "gce"] = "sound") -> FloatArray:
    """Expected calibration error: the mean gap between confidence and accuracy over equal-width bins of confidence.

    ``Σ_b n_b/N · |accuracy_b - confidence_b|``. Range [0, 1], lower is better.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    bins : int
        Number of bins.
    closed : {"right", "left"}
        Whether bins are (lo, hi] (Hebbalaguppe et al.: 15 bins) or [lo, hi) (Hosseini & Caragea, Park & Caragea: 10 bins).
        Either way 0 is in the first bin and 1
        in the last.
    variant : {"sound", "gce"}
        ``"gce"`` reproduces Google's released code, which gives a confidence of 1.0 a bin of its own.

    Returns
    -------
    float

    References
    ----------
    Naeini et al. 2015, "Obtaining well calibrated probabilities using Bayesian binning"; Guo et al. 2017, "On calibration of
    modern neural networks".

    Examples
    --------
    >>> round(ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.4
    """
    check_choice("variant", variant, ("sound", "gce"))
    if variant == "gce":
        return rows.each(lambda p, y: variants.top_label_error(p, y, bins, variants.width_extra_bin))
    cells = rows.top.width_bins(bins, closed)
    return np.asarray((cells.share * np.abs(cells.gap)).sum(axis=-1))


@metric
def mce(rows: Rows, *, bins: int = 15, closed: Closed = "right") -> FloatArray:
    """Maximum calibration error: the largest gap between confidence and accuracy over equal-width bins that hold a row.

    ``max_b |accuracy_b - confidence_b|``. Range [0, 1], lower is better. The smallest bins decide it: read it beside their
    counts.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    bins : int
        Number of bins.
    closed : {"right", "left"}
        Whether bins are (lo, hi] or [lo, hi).

    Returns
    -------
    float

    References
    ----------
    Naeini et al. 2015, "Obtaining well calibrated probabilities using Bayesian binning".

    Examples
    --------
    >>> round(mce([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.8
    """
    return np.asarray(np.abs(rows.top.width_bins(bins, closed).gap).max(axis=-1))


@metric
def oe(rows: Rows, *, bins: int = 15, closed: Closed = "right") -> FloatArray:
    """Overconfidence error: the gaps of overconfident bins, weighted by their confidence.

    ``Σ_b n_b/N · confidence_b · max(confidence_b - accuracy_b, 0)`` over equal-width bins. Range [0, 1], lower is better.
    The OE columns of Mishra et al.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    bins : int
        Number of bins.
    closed : {"right", "left"}
        Whether bins are (lo, hi] or [lo, hi).

    Returns
    -------
    float

    References
    ----------
    Thulasidasan et al. 2019, "On mixup training".

    Examples
    --------
    >>> round(oe([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.2133
    """
    cells = rows.top.width_bins(bins, closed)
    mean_confidence = cells.score / np.maximum(cells.count, 1)
    return np.asarray((cells.share * mean_confidence * np.maximum(cells.gap, 0)).sum(axis=-1))


@metric
def rmsce(rows: Rows, *, bins: int = 15, variant: Literal["sound", "gce"] = "sound") -> FloatArray:
    """Root mean square calibration error: the gap between confidence and accuracy over equal-mass bins, in the L2 norm.

    ``√(Σ_b n_b/N · (accuracy_b - confidence_b)²)``. Range [0, 1], lower is better. Bins hold the same number of rows, as far
    as equal confidences allow.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    bins : int
        Number of bins.
    variant : {"sound", "gce"}
        ``"gce"`` uses the edges of Google's released code.

    Returns
    -------
    float

    References
    ----------
    Hendrycks et al. 2019, "Deep anomaly detection with outlier exposure"; Nixon et al. 2019, "Measuring calibration in deep
    learning".

    Examples
    --------
    >>> round(rmsce([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bins=1), 4)
    0.1333
    """
    check_choice("variant", variant, ("sound", "gce"))
    if variant == "gce":
        return rows.each(lambda p, y: variants.top_label_error(p, y, bins, variants.mass_gce, squared=True))
    cells = rows.top.sums(rows.top.mass_cuts(bins))
    return np.asarray(np.sqrt((cells.share * cells.gap**2).sum(axis=-1)))


@metric
def ada_ece(rows: Rows, *, bins: int = 15, variant: Literal["sound", "author"] = "sound") -> FloatArray:
    """Adaptive ECE: the mean gap between confidence and accuracy over equal-mass bins of confidence.

    ``Σ_b n_b/N · |accuracy_b - confidence_b|``. Range [0, 1], lower is better. What Hebbalaguppe et al. print as ACE.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    bins : int
        Number of bins.
    variant : {"sound", "author"}
        The released code (``"author"``) puts the smallest confidence in no bin; ``"sound"`` closes the first bin on the
        left, so that every row counts.

    Returns
    -------
    float

    References
    ----------
    Nguyen & O'Connor 2015, "Posterior calibration and exploratory analysis for natural language processing models"; Mukhoti
    et al. 2020, "Calibrating deep neural networks using focal loss".

    Examples
    --------
    >>> round(ada_ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bins=1), 4)
    0.1333
    """
    check_choice("variant", variant, ("sound", "author"))
    if variant == "author":
        return rows.each(lambda p, y: variants.top_label_error(p, y, bins, variants.mass_focal))
    top = rows.top
    cuts = top.mass_cuts(bins, edge_in_lower=True)
    return np.asarray(np.abs(top.gaps(cuts)).sum(axis=-1) / top.counts(cuts))


@metric
def ks(rows: Rows, *, variant: Literal["sound", "author"] = "sound") -> FloatArray:
    """Kolmogorov–Smirnov calibration error: the largest cumulative gap between confidence and correctness, without bins.

    ``max_t |Σ_{r_i ≤ t} (r_i - c_i)| / N`` over confidences r and outcomes c. Range [0, 1], lower is better.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    variant : {"sound", "author"}
        ``"sound"`` adds rows of equal confidence together; ``"author"`` adds them one by one in the given order, so that its
        value depends on that order.

    Returns
    -------
    float

    References
    ----------
    Gupta et al. 2021, "Calibration of neural networks using splines".

    Examples
    --------
    >>> round(ks([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.1667
    """
    check_choice("variant", variant, ("sound", "author"))
    if variant == "author":
        return rows.each(variants.ks_in_given_order)
    cumulative = np.cumsum(rows.top.sorted_residuals, axis=-1)
    if rows.top.group_ends is not None:
        cumulative = cumulative[..., rows.top.group_ends - 1]
    return np.asarray(np.abs(cumulative).max(axis=-1) / rows.totals)


@metric
def smooth_ece(rows: Rows, *, grid: int = 1024) -> FloatArray:
    """Smooth ECE: the bandwidth σ at which the kernel-smoothed calibration error equals σ.

    ``smECE_σ = ∫ |mean_i K_σ(t, r_i)(c_i - r_i)| dt`` over confidences r and outcomes c, with a Gaussian kernel reflected at
    0 and 1. It falls as σ grows, so the fixed point is unique. Range [0, 1], lower is better; continuous in the predictions,
    with no bins to choose.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    grid : int
        Resolution on [0, 1] of the cosine transforms that do the smoothing, at least 16.

    Returns
    -------
    float

    References
    ----------
    Błasiok & Nakkiran 2024, "Smooth ECE: principled reliability diagrams via kernel smoothing".

    Examples
    --------
    >>> round(smooth_ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 3)
    0.142
    """
    if grid < 16:
        raise InputError(f"a grid of {grid} is too coarse", remedy="give at least 16")
    return smoothed_error(residual_histogram(rows.top, grid) / rows.totals[..., None])


@metric
def debiased_ece(rows: Rows, *, bins: int = 15, closed: Closed = "right", norm: Literal[1, 2] = 1) -> FloatArray:
    """Debiased ECE: the ECE less what sampling alone adds to it.

    With ``s_b² = A_b(1 - A_b)/(n_b - 1)``, the sampling variance of a bin's accuracy A_b (a bin of one row has none and is
    left out): for ``norm=1`` it is ``2·ECE - Σ_b n_b/N · E|gap_b + s_b·ε|`` with normal ε (the authors simulate it; here it
    is in closed form), for ``norm=2`` it is ``√(Σ_b n_b/N · (gap_b² - s_b²))``. Range [0, 1], lower is better; 0 if sampling
    explains all of the ECE.

    Unlike every other metric it depends on the number of rows: repeated rows are no new evidence, but count as such.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    bins : int
        Number of bins.
    closed : {"right", "left"}
        Whether bins are (lo, hi] or [lo, hi).
    norm : {1, 2}
        1 is comparable to `ece`, 2 to a root mean square error.

    Returns
    -------
    float

    References
    ----------
    Kumar et al. 2019, "Verified uncertainty calibration".

    Examples
    --------
    >>> round(debiased_ece([[0.6, 0.4]] * 10, [0] * 5 + [1] * 5), 4)
    0.0438
    """
    from scipy.special import ndtr

    check_choice("norm", norm, (1, 2))
    cells = rows.top.width_bins(bins, closed)
    share, gap = np.where(cells.count > 1, cells.share, 0.0), np.abs(cells.gap)
    accuracy = cells.hits / np.maximum(cells.count, 1)
    variance = np.clip(accuracy * (1 - accuracy), 0, None) / np.maximum(cells.count - 1, 1)
    if norm == 2:
        return np.asarray(np.sqrt(np.maximum((share * (gap**2 - variance)).sum(axis=-1), 0.0)))
    spread = np.sqrt(variance)
    ratio = gap / np.where(spread > 0, spread, 1.0)
    mean_of_folded_normal = spread * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + gap * (2 * ndtr(ratio) - 1)
    expected_gap = np.where(spread > 0, mean_of_folded_normal, gap)  # E|N(gap, spread²)|
    return np.asarray(np.clip((share * (2 * gap - expected_gap)).sum(axis=-1), 0.0, 1.0))
