"""Class-wise maps of the probabilities themselves: isotonic regression and histogram binning, one class against the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distilcal.calibrate.base import NO_FIT, Calibrator, check_fit, with_report
from distilcal.metrics.rows import width_edges
from distilcal.predictions import FloatArray, IntArray, Predictions


@dataclass(frozen=True, kw_only=True)
class Isotonic(Calibrator):
    """A non-decreasing step function of each class's probability, interpolated; rows are divided by their sum."""

    kind: ClassVar[str] = "isotonic"
    starts: IntArray  # (K + 1,) where each class's knots begin
    knots: FloatArray
    values: FloatArray

    def _calibrated(self, predictions: Predictions) -> Predictions:
        def of_class(k: int, p: FloatArray) -> FloatArray:
            part = slice(self.starts[k], self.starts[k + 1])
            return np.interp(p, self.knots[part], self.values[part])

        return _by_class(predictions, of_class)


@dataclass(frozen=True, kw_only=True)
class Histogram(Calibrator):
    """The frequency of each class among rows of like probability (equal-width bins); rows are divided by their sum."""

    kind: ClassVar[str] = "histogram"
    values: FloatArray  # (K, bins)

    def _calibrated(self, predictions: Predictions) -> Predictions:
        bins = self.values.shape[1]
        return _by_class(predictions, lambda k, p: self.values[k][_bin_of(p, bins)])


def fit_isotonic(predictions: Predictions) -> Isotonic:
    """One isotonic regression per class against the rest, renormalised; Zadrozny & Elkan 2002."""
    from scipy.optimize import isotonic_regression

    check_fit(predictions)
    knots: list[FloatArray] = []
    values: list[FloatArray] = []
    for k in range(len(predictions.classes)):
        # Equal probabilities must have equal values, so they enter as one point with their mean and weight.
        points, inverse, count = np.unique(predictions.probs[:, k], return_inverse=True, return_counts=True)
        hits = np.bincount(inverse, predictions.labels == k)
        blocks = isotonic_regression(hits / count, weights=count)
        ends = np.unique(np.concatenate([blocks.blocks[:-1], blocks.blocks[1:] - 1]))
        knots.append(points[ends])
        values.append(np.asarray(blocks.x, dtype=np.float64)[ends])
    starts = np.cumsum([0, *(len(part) for part in knots)])
    draft = Isotonic(
        classes=predictions.classes, starts=starts, knots=np.concatenate(knots), values=np.concatenate(values), fit=NO_FIT
    )
    return with_report(draft, predictions)


def fit_histogram(predictions: Predictions, *, bins: int = 15) -> Histogram:
    """Histogram binning per class against the rest, equal widths, renormalised; an empty bin keeps its midpoint.

    Zadrozny & Elkan 2001. Coarse: rows of one bin get one probability, so accuracy may change.
    """
    check_fit(predictions)
    width_edges(bins)  # refuses bins that are none
    values = np.empty((len(predictions.classes), bins))
    middle = (np.arange(bins) + 0.5) / bins
    for k, p in enumerate(predictions.probs.T):
        cell = _bin_of(p, bins)
        count = np.bincount(cell, minlength=bins)
        hits = np.bincount(cell, predictions.labels == k, minlength=bins)
        values[k] = np.where(count > 0, hits / np.maximum(count, 1), middle)
    return with_report(Histogram(classes=predictions.classes, values=values, fit=NO_FIT), predictions)


def _bin_of(p: FloatArray, bins: int) -> IntArray:
    """Bin (lo, hi] of each probability, 0 in the first."""
    return np.searchsorted(width_edges(bins)[1:-1], p, side="left")


def _by_class(predictions: Predictions, of_class: Callable[[int, FloatArray], FloatArray]) -> Predictions:
    """Class-wise values divided by their row sum; a row in which all are 0 keeps its probabilities."""
    mapped = np.column_stack([of_class(k, p) for k, p in enumerate(predictions.probs.T)])
    empty = mapped.sum(axis=1) <= 0
    mapped[empty] = predictions.probs[empty]
    return predictions.with_probs(mapped / mapped.sum(axis=1, keepdims=True))
