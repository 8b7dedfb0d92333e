"""Binning rules of released programs that lose samples or add bins, kept so that published numbers can be reproduced.

Each rule maps scores (N,) to a bin number, -1 for a score that the program puts in no bin. Do not use them for new work: the
sound definitions are the defaults of the metrics.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from distilcal.predictions import FloatArray, IntArray

Rule = Callable[[FloatArray, int], IntArray]  # scores (N,), number of bins → bin of each score


def width_open_at_zero(scores: FloatArray, bins: int) -> IntArray:
    """Return bins of equal widths (lo, hi]: a score of exactly 0 is in no bin (Hebbalaguppe et al., MDCA, focal_calibration).

    Parameters
    ----------
    scores : ndarray of float, shape (N,)
        Scores in [0, 1].
    bins : int
        Number of bins.

    Returns
    -------
    ndarray of int, shape (N,)
        The bin of each score, from 0, -1 for none.

    Examples
    --------
    >>> width_open_at_zero(np.array([0.0, 0.5, 0.75]), 2).tolist()
    [-1, 0, 1]
    """
    return np.searchsorted(np.linspace(0, 1, bins + 1), scores, side="left") - 1


def width_extra_bin(scores: FloatArray, bins: int) -> IntArray:
    """Return bins of equal widths [lo, hi) with a bin of its own for 1.0 (GCE).

    Parameters
    ----------
    scores : ndarray of float, shape (N,)
        Scores in [0, 1].
    bins : int
        Number of bins.

    Returns
    -------
    ndarray of int, shape (N,)
        The bin of each score, from 0; ``bins`` for 1.0.

    Examples
    --------
    >>> width_extra_bin(np.array([0.0, 0.5, 1.0]), 2).tolist()
    [0, 1, 2]
    """
    return np.searchsorted(np.linspace(0, 1, bins + 1), scores, side="right") - 1


def mass_focal(scores: FloatArray, bins: int) -> IntArray:
    """Return the bins of AdaECE of focal_calibration: interpolated edges, (lo, hi]; scores equal to the smallest are in no bin.

    Parameters
    ----------
    scores : ndarray of float, shape (N,)
        Scores in [0, 1].
    bins : int
        Number of bins.

    Returns
    -------
    ndarray of int, shape (N,)
        The bin of each score, from 0, -1 for none.

    Examples
    --------
    >>> mass_focal(np.array([0.1, 0.2, 0.3, 0.4]), 2).tolist()
    [-1, 0, 0, 1]
    """
    n = len(scores)
    edges = np.interp(np.linspace(0, n, bins + 1), np.arange(n), np.sort(scores))
    return np.searchsorted(edges, scores, side="left") - 1


def mass_p004(scores: FloatArray, bins: int) -> IntArray:
    """Return bins of class-wise ACE of Hebbalaguppe et al. and MDCA: each int(N/bins)-th value is an edge, the least in no bin.

    The last edge is 1.

    Parameters
    ----------
    scores : ndarray of float, shape (N,)
        Scores in [0, 1].
    bins : int
        Number of bins.

    Returns
    -------
    ndarray of int, shape (N,)
        The bin of each score, from 0, -1 for none.

    Examples
    --------
    >>> mass_p004(np.array([0.1, 0.2, 0.3, 0.4]), 2).tolist()
    [-1, 0, 0, 1]
    """
    edges = np.append(np.sort(scores)[np.arange(bins) * (len(scores) // bins)], 1.0)
    return np.searchsorted(edges, scores, side="left") - 1


def mass_gce(scores: FloatArray, bins: int) -> IntArray:
    """Return the bins of GCE: edges are the values at rounded equal steps of rank, [lo, hi).

    Parameters
    ----------
    scores : ndarray of float, shape (N,)
        Scores in [0, 1].
    bins : int
        Number of bins.

    Returns
    -------
    ndarray of int, shape (N,)
        The bin of each score, from 1 to ``bins``.

    Examples
    --------
    >>> mass_gce(np.array([0.1, 0.2, 0.3, 0.4]), 2).tolist()
    [1, 1, 2, 2]
    """
    if not len(scores):
        return np.zeros(0, np.int64)
    ranks = np.round(np.linspace(0, len(scores), bins, endpoint=False)).astype(np.int64)
    return np.searchsorted(np.sort(scores)[np.minimum(ranks, len(scores) - 1)], scores, side="right")


def top_label_error(probs: FloatArray, labels: IntArray, bins: int, rule: Rule, *, squared: bool = False) -> float:
    """Compute a top-label calibration error with the bins of a rule.

    Parameters
    ----------
    probs : array (N, K)
        Predicted probabilities.
    labels : array (N,)
        Class indices.
    bins : int
        Number of bins.
    rule : callable
        A binning rule of this module.
    squared : bool
        Whether to compute the root mean square gap instead of the mean gap.

    Returns
    -------
    float
    """
    predicted = probs.argmax(axis=1)
    confidence = probs[np.arange(len(probs)), predicted]
    count, gap = _binned_gaps(confidence, predicted == labels, bins, rule)
    if squared:
        return float(np.sqrt((gap**2 / np.maximum(count, 1)).sum() / len(probs)))
    return float(gap.sum() / len(probs))


def class_wise_error(probs: FloatArray, labels: IntArray, bins: int, rule: Rule, *, above: float | None = None) -> float:
    """Compute a class-wise calibration error with the bins of a rule.

    Parameters
    ----------
    probs : array (N, K)
        Predicted probabilities.
    labels : array (N,)
        Class indices.
    bins : int
        Number of bins.
    rule : callable
        A binning rule of this module.
    above : float, optional
        Leaves out probabilities up to this value, also from the number of rows that the sum is divided by.

    Returns
    -------
    float
        The mean over classes of the sum of gaps, divided by all rows, whether the rule put them in a bin or not.
    """
    errors = []
    for k in range(probs.shape[1]):
        scores, hits = probs[:, k], labels == k
        if above is not None:
            kept = scores > above
            scores, hits = scores[kept], hits[kept]
        _, gap = _binned_gaps(scores, hits, bins, rule)
        errors.append(float(gap.sum() / max(len(scores), 1)))
    return float(np.mean(errors))


def ks_in_given_order(probs: FloatArray, labels: IntArray) -> float:
    """Compute the Kolmogorov–Smirnov error with rows of equal confidence in the given order, as the released code does.

    Parameters
    ----------
    probs : array (N, K)
        Predicted probabilities.
    labels : array (N,)
        Class indices.

    Returns
    -------
    float
    """
    predicted = probs.argmax(axis=1)
    confidence = probs[np.arange(len(probs)), predicted]
    order = np.argsort(confidence, kind="stable")
    return float(np.abs(np.cumsum((confidence - (predicted == labels))[order])).max() / len(probs))


def _binned_gaps(scores: FloatArray, hits: NDArray[np.bool_], bins: int, rule: Rule) -> tuple[FloatArray, FloatArray]:
    """Return the rows and |hits - scores| of every bin of a rule."""
    cell = rule(scores, bins)
    kept = cell >= 0
    cell, scores, hits = cell[kept], scores[kept], hits[kept]
    count = np.bincount(cell).astype(np.float64)
    return count, np.abs(np.bincount(cell, hits) - np.bincount(cell, scores))
