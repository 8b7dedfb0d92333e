"""Binning rules of released programs that lose samples or add bins, kept so that published figures can be reproduced.

Each rule maps scores (N,) to a bin number, -1 for a score that the program puts in no bin. Do not use them for new work:
the sound definitions are the defaults in ``definitions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from distilcal.predictions import FloatArray, IntArray

Rule = Callable[[FloatArray, int], IntArray]


def width_open_at_zero(scores: FloatArray, bins: int) -> IntArray:
    """Equal widths (lo, hi]: a score of exactly 0 is in no bin (P004, MDCA, focal_calibration)."""
    return np.searchsorted(np.linspace(0, 1, bins + 1), scores, side="left") - 1


def width_extra_bin(scores: FloatArray, bins: int) -> IntArray:
    """Equal widths [lo, hi) with a bin of its own for 1.0 (GCE)."""
    return np.searchsorted(np.linspace(0, 1, bins + 1), scores, side="right") - 1


def mass_focal(scores: FloatArray, bins: int) -> IntArray:
    """AdaECE of focal_calibration: interpolated edges, (lo, hi]; scores equal to the smallest are in no bin."""
    n = len(scores)
    edges = np.interp(np.linspace(0, n, bins + 1), np.arange(n), np.sort(scores))
    return np.searchsorted(edges, scores, side="left") - 1


def mass_p004(scores: FloatArray, bins: int) -> IntArray:
    """Class-wise ACE of P004/MDCA: every int(N/bins)-th value is an edge, the last is 1; the smallest is in no bin."""
    edges = np.append(np.sort(scores)[np.arange(bins) * (len(scores) // bins)], 1.0)
    return np.searchsorted(edges, scores, side="left") - 1


def mass_gce(scores: FloatArray, bins: int) -> IntArray:
    """GCE: edges are the values at rounded equal steps of rank, [lo, hi)."""
    if not len(scores):
        return np.zeros(0, np.int64)
    ranks = np.round(np.linspace(0, len(scores), bins, endpoint=False)).astype(np.int64)
    return np.searchsorted(np.sort(scores)[np.minimum(ranks, len(scores) - 1)], scores, side="right")


def binned_gaps(scores: FloatArray, hits: NDArray[np.bool_], bins: int, rule: Rule) -> tuple[FloatArray, FloatArray]:
    """Rows and |hits - scores| of every bin of a rule."""
    cell = rule(scores, bins)
    kept = cell >= 0
    cell, scores, hits = cell[kept], scores[kept], hits[kept]
    count = np.bincount(cell).astype(np.float64)
    return count, np.abs(np.bincount(cell, hits) - np.bincount(cell, scores))


def one_vs_rest(probs: FloatArray, labels: IntArray) -> Iterator[tuple[FloatArray, NDArray[np.bool_]]]:
    """Scores and hits of every class."""
    for k in range(probs.shape[1]):
        yield probs[:, k], labels == k


def gap_of_class(scores: FloatArray, hits: NDArray[np.bool_], bins: int, rule: Rule) -> float:
    """Sum of |hits - scores| over the bins, divided by all rows, whether the rule kept them or not."""
    return float(binned_gaps(scores, hits, bins, rule)[1].sum() / max(len(scores), 1))
