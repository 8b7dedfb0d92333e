"""Class-wise maps of the probabilities themselves: isotonic regression and histogram binning, one class against the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distilcal.arguments import checked
from distilcal.calibrate.base import NO_FIT, Calibrator, check_fit, with_report
from distilcal.metrics.rows import width_edges
from distilcal.predictions import FloatArray, IntArray, Predictions


@dataclass(frozen=True, kw_only=True)
class Isotonic(Calibrator):
    """A non-decreasing function of each class's probability, interpolated between knots; rows are divided by their sum.

    Attributes
    ----------
    starts : array (K + 1,)
        Where the knots of each class start.
    knots, values : array
        Probabilities, and the calibrated probabilities there, of all classes one after the other.
    """

    kind: ClassVar[str] = "isotonic"
    starts: IntArray
    knots: FloatArray
    values: FloatArray

    def _calibrated(self, predictions: Predictions) -> Predictions:
        def map_class(k: int, probs: FloatArray) -> FloatArray:
            own = slice(self.starts[k], self.starts[k + 1])
            return np.interp(probs, self.knots[own], self.values[own])

        return _map_classes(predictions, map_class)


@dataclass(frozen=True, kw_only=True)
class Histogram(Calibrator):
    """The frequency of each class among rows of similar probability; rows are divided by their sum.

    Attributes
    ----------
    values : array (K, bins)
        The frequency of each class in each equal-width bin of its probability.
    """

    kind: ClassVar[str] = "histogram"
    values: FloatArray

    def _calibrated(self, predictions: Predictions) -> Predictions:
        bins = self.values.shape[1]
        return _map_classes(predictions, lambda k, probs: self.values[k][_bin_of(probs, bins)])


@checked
def fit_isotonic(predictions: Predictions) -> Isotonic:
    """Fit one isotonic regression for each class against the rest, and renormalise.

    Parameters
    ----------
    predictions : Predictions
        Predictions on a development split.

    Returns
    -------
    Isotonic

    References
    ----------
    Zadrozny & Elkan 2002, "Transforming classifier scores into accurate multiclass probability estimates".

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(300, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> calibrator = fit_isotonic(Predictions.from_logits(5 * logits, labels, name="dev"))
    >>> calibrator.fit.nll_after < calibrator.fit.nll_before
    True
    """
    from scipy.optimize import isotonic_regression

    check_fit(predictions)
    knots: list[FloatArray] = []
    values: list[FloatArray] = []
    for k in range(len(predictions.classes)):
        # Equal probabilities must have equal values, so they enter as one point with their mean and weight.
        points, inverse, count = np.unique(predictions.probs[:, k], return_inverse=True, return_counts=True)
        hits = np.bincount(inverse, predictions.labels == k)
        regression = isotonic_regression(hits / count, weights=count)
        ends = np.unique(np.concatenate([regression.blocks[:-1], regression.blocks[1:] - 1]))
        knots.append(points[ends])
        values.append(np.asarray(regression.x, dtype=np.float64)[ends])
    calibrator = Isotonic(
        classes=predictions.classes,
        starts=np.cumsum([0, *(len(class_knots) for class_knots in knots)]),
        knots=np.concatenate(knots),
        values=np.concatenate(values),
        fit=NO_FIT,
    )
    return with_report(calibrator, predictions)


@checked
def fit_histogram(predictions: Predictions, *, bins: int = 15) -> Histogram:
    """Fit histogram binning for each class against the rest, and renormalise.

    It is coarse: rows of one bin get one probability, so accuracy may change.

    Parameters
    ----------
    predictions : Predictions
        Predictions on a development split.
    bins : int
        Number of equal-width bins; an empty one keeps its midpoint.

    Returns
    -------
    Histogram

    References
    ----------
    Zadrozny & Elkan 2001, "Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers".

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> dev = Predictions.from_logits(rng.normal(size=(300, 3)), rng.integers(0, 3, 300), name="dev")
    >>> fit_histogram(dev, bins=10).values.shape
    (3, 10)
    """
    check_fit(predictions)
    width_edges(bins)  # raises an error for an impossible number of bins
    values = np.empty((len(predictions.classes), bins))
    midpoints = (np.arange(bins) + 0.5) / bins
    for k, probs in enumerate(predictions.probs.T):
        cell = _bin_of(probs, bins)
        count = np.bincount(cell, minlength=bins)
        hits = np.bincount(cell, predictions.labels == k, minlength=bins)
        values[k] = np.where(count > 0, hits / np.maximum(count, 1), midpoints)
    return with_report(Histogram(classes=predictions.classes, values=values, fit=NO_FIT), predictions)


def _bin_of(probs: FloatArray, bins: int) -> IntArray:
    """Return the bin (lo, hi] of each probability; 0 is in the first."""
    return np.searchsorted(width_edges(bins)[1:-1], probs, side="left")


def _map_classes(predictions: Predictions, map_class: Callable[[int, FloatArray], FloatArray]) -> Predictions:
    """Map the probabilities of each class and divide by the row sums; a row that is mapped to 0 keeps its probabilities."""
    mapped = np.column_stack([map_class(k, probs) for k, probs in enumerate(predictions.probs.T)])
    empty = mapped.sum(axis=1) <= 0
    mapped[empty] = predictions.probs[empty]
    return predictions.with_probs(mapped / mapped.sum(axis=1, keepdims=True))
