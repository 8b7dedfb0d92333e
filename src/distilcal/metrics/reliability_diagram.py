"""The bins behind a reliability diagram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distilcal.arguments import checked
from distilcal.errors import InputError
from distilcal.metrics.intervals import binomial_interval
from distilcal.metrics.rows import Closed, Rows, width_edges
from distilcal.predictions import FloatArray, IntArray, Predictions


@dataclass(frozen=True)
class Reliability:
    """The bins behind a reliability diagram; every array is (bins,), nan where a bin is empty.

    Attributes
    ----------
    lower, upper : array
        Edges of the bins.
    count : array of int
        Number of rows.
    confidence, accuracy : array
        Mean confidence and accuracy of the rows.
    low, high : array
        Exact binomial interval of the accuracy.
    closed : {"right", "left"}
        Whether bins are (lo, hi] or [lo, hi).
    level : float
        Coverage of the intervals.
    """

    lower: FloatArray
    upper: FloatArray
    count: IntArray
    confidence: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray
    closed: Closed
    level: float

    @property
    def correct(self) -> IntArray:
        """Number of rows of each bin that are predicted correctly."""
        return np.rint(self.count * np.nan_to_num(self.accuracy)).astype(np.int64)

    @property
    def wrong(self) -> IntArray:
        """Number of rows of each bin that are predicted wrongly."""
        return self.count - self.correct


@checked
def reliability(predictions: Predictions, *, bins: int = 15, closed: Closed = "right", level: float = 0.95) -> Reliability:
    """Compute mean confidence and accuracy in equal-width bins of confidence, with exact binomial intervals.

    Parameters
    ----------
    predictions : Predictions
        The predictions.
    bins : int
        Number of bins on [0, 1].
    closed : {"right", "left"}
        Whether bins are (lo, hi] or [lo, hi).
    level : float
        Coverage of the intervals.

    Returns
    -------
    Reliability

    See Also
    --------
    evaluate : The calibration errors that sum up these bins.

    Examples
    --------
    >>> r = reliability(Predictions.from_probs([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), bins=2)
    >>> r.count.tolist(), r.accuracy.round(3).tolist()
    ([0, 3], [nan, 0.667])
    """
    if not 0 < level < 1:
        raise InputError(f"level {level} is not between 0 and 1", remedy="give a fraction such as 0.95")
    cells = Rows.of(predictions).top.width_bins(bins, closed)
    with np.errstate(invalid="ignore"):
        confidence, accuracy = cells.score / cells.count, cells.hits / cells.count
    low, high = binomial_interval(cells.hits, cells.count, level)
    edges = width_edges(bins)
    return Reliability(
        lower=edges[:-1],
        upper=edges[1:],
        count=cells.count.astype(np.int64),
        confidence=confidence,
        accuracy=accuracy,
        low=low,
        high=high,
        closed=closed,
        level=level,
    )
