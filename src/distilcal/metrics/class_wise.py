"""Class-wise calibration errors: they compare the probability of every class with its frequency, averaged over classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError
from distilcal.metrics import variants
from distilcal.metrics.decorator import check_choice, metric
from distilcal.metrics.rows import Binary, Closed, Rows, width_edges
from distilcal.predictions import FloatArray, IntArray

SHARED_VARIANTS = {"sce": "sound", "ace": "nixon", "tace": "nixon"}  # the variants that `class_means` computes
BLOCK_NUMBERS = 4_000_000  # of a matrix of rows by bins: 32 megabytes


@metric
def sce(
    rows: Rows,
    *,
    bins: int = 15,
    closed: Closed = "right",
    variant: Literal["sound", "author", "focal", "gce"] = "sound",
) -> FloatArray:
    """Static calibration error (class-wise ECE): the mean gap of every class's probability over equal-width bins.

    ``1/K Σ_k Σ_b n_bk/N · |frequency_bk - mean p_bk|``. Range [0, 1], lower is better. All K classes count, absent ones too.

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
    variant : {"sound", "author", "focal", "gce"}
        Released code: ``"author"`` (Hebbalaguppe et al.) drops probabilities of exactly 0, ``"focal"`` also stops at the
        highest label that
        occurs, ``"gce"`` gives 1.0 a bin of its own and drops zeros from N.

    Returns
    -------
    float

    References
    ----------
    Nixon et al. 2019, "Measuring calibration in deep learning".

    Examples
    --------
    >>> round(sce([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.4
    """
    check_choice("variant", variant, ("sound", "author", "focal", "gce"))
    if variant == "sound":
        return class_means(rows, {"sce": {"bins": bins, "closed": closed}})["sce"]
    if variant == "gce":
        return rows.each(lambda p, y: variants.class_wise_error(p, y, bins, variants.width_extra_bin, above=0.0))
    if variant == "author":
        return rows.each(lambda p, y: variants.class_wise_error(p, y, bins, variants.width_open_at_zero))
    return rows.each(lambda p, y: variants.class_wise_error(p[:, : y.max() + 1], y, bins, variants.width_open_at_zero))


@metric
def ace(rows: Rows, *, bins: int = 15, variant: Literal["nixon", "p004", "gce"] = "nixon") -> FloatArray:
    """Adaptive calibration error: the mean gap of every class's probability over equal-mass bins.

    ``1/K Σ_k Σ_r n_rk/N · |frequency_rk - mean p_rk|``. Range [0, 1], lower is better. The paper's 1/R is n_r/N if R divides
    N and no scores are equal; here equal scores stay in one bin, which weighs what it holds. The ACE that
    Hebbalaguppe et al. *print* is
    top-label: see `ada_ece`.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    bins : int
        Number of bins.
    variant : {"nixon", "p004", "gce"}
        Released code: ``"p004"`` (its repository) puts the smallest probability of a class in no bin, ``"gce"`` uses
        Google's edges.

    Returns
    -------
    float

    References
    ----------
    Nixon et al. 2019, "Measuring calibration in deep learning".

    Examples
    --------
    >>> round(ace([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bins=1), 4)
    0.3333
    """
    check_choice("variant", variant, ("nixon", "p004", "gce"))
    if variant == "nixon":
        return class_means(rows, {"ace": {"bins": bins}})["ace"]
    if variant == "gce":
        return rows.each(lambda p, y: variants.class_wise_error(p, y, bins, variants.mass_gce, above=0.0))
    return rows.each(lambda p, y: variants.class_wise_error(p, y, bins, variants.mass_p004))


@metric
def tace(
    rows: Rows, *, bins: int = 15, threshold: float = 0.01, variant: Literal["nixon", "p004", "gce"] = "nixon"
) -> FloatArray:
    """Thresholded adaptive calibration error: `ace` over the probabilities of at least ``threshold``.

    Range [0, 1], lower is better. With many classes most probabilities are near 0 and would fill the bins. A class counts
    the rows that it keeps; one that keeps none is left out. If no class keeps any, there is no value: NaN.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.
    bins : int
        Number of bins.
    threshold : float
        Smaller probabilities are left out.
    variant : {"nixon", "p004", "gce"}
        Released code: ``"p004"`` sets smaller probabilities to 0 and keeps them, ``"gce"`` drops those up to the threshold
        and uses Google's edges.

    Returns
    -------
    float

    References
    ----------
    Nixon et al. 2019, "Measuring calibration in deep learning".

    Examples
    --------
    >>> round(tace([[0.995, 0.005], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bins=1), 4)
    0.4575
    """
    check_choice("variant", variant, ("nixon", "p004", "gce"))
    _check_threshold(threshold)
    if variant == "nixon":
        return class_means(rows, {"tace": {"bins": bins, "threshold": threshold}})["tace"]
    if variant == "gce":
        return rows.each(lambda p, y: variants.class_wise_error(p, y, bins, variants.mass_gce, above=threshold))
    return rows.each(lambda p, y: variants.class_wise_error(np.where(p < threshold, 0.0, p), y, bins, variants.mass_p004))


def class_means(rows: Rows, metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, FloatArray]:
    """Compute several class-wise errors in one pass over the classes, so that the scores of a class are sorted once.

    Parameters
    ----------
    rows : Rows
        The rows, as they are or resampled.
    metrics : mapping of str to mapping
        ``"sce"``, ``"ace"`` or ``"tace"`` → its parameters.

    Returns
    -------
    dict of str to array
        The mean over classes of the weighted mean |gap|: without axes, or (R,). A class that keeps no row is left out; NaN if
        all are.
    """
    means: dict[str, FloatArray] = {}
    if "sce" in metrics and rows.weights is not None:
        means["sce"] = _resampled_sce(rows, rows.weights, **metrics["sce"])
    by_cuts = {name: params for name, params in metrics.items() if name not in means}
    total = {name: np.asarray(0.0) for name in by_cuts}
    classes = {name: np.asarray(0.0) for name in by_cuts}
    for question in rows.by_class() if by_cuts else ():
        for name, params in by_cuts.items():
            cuts = CLASS_CUTS[name](question, params)
            count = question.counts(cuts)
            total[name] = total[name] + np.abs(question.gaps(cuts)).sum(axis=-1) / np.maximum(count, 1)
            classes[name] = classes[name] + (count > 0)
    for name in by_cuts:
        with np.errstate(invalid="ignore"):  # of no class there is no mean
            means[name] = np.asarray(total[name] / classes[name])
    return {name: means[name] for name in metrics}


def _resampled_sce(rows: Rows, weights: NDArray[Any], *, bins: int, closed: Closed, **_: Any) -> FloatArray:
    """The SCE of R resamples. The bin of a row is the same in all of them, so the sums of all bins are a product of matrices.

    With 100 classes that is many times faster than reordering the weights of every resample once for each class.
    """
    n, k = rows.probs.shape
    side: Closed = "left" if closed == "right" else "right"
    bin_of = np.searchsorted(width_edges(bins)[1:-1], rows.probs, side=side)  # (N, K)
    residuals = (rows.labels[:, None] == np.arange(k)) - rows.probs  # (N, K)
    counts = weights.astype(np.float64)  # (R, N)
    block = max(1, BLOCK_NUMBERS // (n * bins))
    total = np.zeros(len(counts))
    for first in range(0, k, block):
        columns = np.arange(min(block, k - first))
        by_bin = np.zeros((n, len(columns), bins))
        by_bin[np.arange(n)[:, None], columns, bin_of[:, first + columns]] = residuals[:, first + columns]
        sums = counts @ by_bin[:, by_bin.any(axis=0)]  # (R, filled bins); with many classes most bins are empty
        total += np.abs(sums).sum(axis=1)
    return np.asarray(total / np.maximum(rows.totals, 1) / k)


def _sce_cuts(question: Binary, params: Mapping[str, Any]) -> IntArray:
    return question.width_cuts(params["bins"], params["closed"])


def _ace_cuts(question: Binary, params: Mapping[str, Any]) -> IntArray:
    return question.mass_cuts(params["bins"])


def _check_threshold(threshold: float) -> None:
    if not 0 <= threshold <= 1:  # nothing is above it, and the error of nothing is 0
        raise InputError(f"threshold {threshold} is not between 0 and 1", remedy="give a probability such as 0.01")


def _tace_cuts(question: Binary, params: Mapping[str, Any]) -> IntArray:
    _check_threshold(params["threshold"])
    return question.mass_cuts(params["bins"], above=params["threshold"])


CLASS_CUTS: dict[str, Callable[[Binary, Mapping[str, Any]], IntArray]] = {
    "sce": _sce_cuts,
    "ace": _ace_cuts,
    "tace": _tace_cuts,
}
