"""The data map of a model's training dynamics: regions, their statistics, and the examples behind them.

`build_map` builds it; `distilcal.report` shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.dynamics.maps import aum_halves, likely_mislabelled, regions
from distilcal.dynamics.table import Dynamics
from distilcal.errors import InputError

RowIndices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Examples:
    """The training examples themselves, in the row order of a table of dynamics: columns of text, or pictures."""

    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # title → (N,) of str
    picture: Callable[[int], NDArray[np.uint8]] | None = None  # row → (H, W, 3)

    def take(self, rows: RowIndices) -> Examples:
        """Return the examples of some rows."""
        picture = self.picture
        return Examples(
            {title: values[rows] for title, values in self.columns.items()},
            None if picture is None else lambda row: picture(int(rows[row])),
        )


@dataclass(frozen=True, eq=False)
class RegionStatistics:
    """The statistics of a region of a map: medians, NaN where it has no examples."""

    name: str
    count: int
    confidence: float
    variability: float
    aum: float
    right: float  # mean share of the epochs in which the label was predicted
    doubtful: int  # examples with an AUM below 0
    class_shares: NDArray[np.float64]  # (K,)


@dataclass(frozen=True, eq=False)
class DataMap:
    """Training dynamics with their regions; `build_map` builds it.

    Two statistics of each example come with the table of dynamics: ``right`` and ``predicted``.
    """

    name: str
    dynamics: Dynamics  # (N,) of examples that were recorded
    regions: Mapping[str, RowIndices]
    fraction: float
    disjoint: bool
    examples: Examples | None = None
    why_not: str = ""  # why there are no examples
    left_out: int = 0  # examples that were never recorded

    def __len__(self) -> int:
        return len(self.dynamics)

    @cached_property
    def right(self) -> NDArray[np.float64]:
        """Share of the epochs in which the label was predicted."""
        share: NDArray[np.float64] = self.dynamics.correctness / self.dynamics.epochs
        return share

    @cached_property
    def predicted(self) -> RowIndices:
        """Index of the class with the largest logit in the last epoch."""
        predicted: RowIndices = self.dynamics.logits.argmax(axis=1)
        return predicted

    @cached_property
    def by_aum(self) -> RowIndices:
        """All rows, the most doubtful label first."""
        return np.lexsort((self.dynamics.ids, self.dynamics.aum))

    @cached_property
    def doubtful(self) -> RowIndices:
        """Rows with an AUM below 0."""
        return likely_mislabelled(self.dynamics)

    @property
    def epochs(self) -> str:
        """How many epochs were recorded, as text."""
        low, high = int(self.dynamics.epochs.min()), int(self.dynamics.epochs.max())
        return f"{low} to {high} epochs" if low < high else f"{high} epoch{'' if high == 1 else 's'}"

    @cached_property
    def high_aum(self) -> NDArray[np.bool_]:
        """Whether each example is in the half with the higher AUM."""
        return aum_halves(self.dynamics)

    def class_shares(self, rows: RowIndices | None = None) -> NDArray[np.float64]:
        """Return the share of each class in some rows, or in all."""
        labels = self.dynamics.labels if rows is None else self.dynamics.labels[rows]
        return np.bincount(labels, minlength=len(self.dynamics.classes)) / max(len(labels), 1)

    def region_statistics(self) -> list[RegionStatistics]:
        """Return the statistics of all examples, then those of each region."""
        regions = {"all": np.arange(len(self)), **self.regions}
        return [self._statistics_of(name, rows) for name, rows in regions.items()]

    def _statistics_of(self, name: str, rows: RowIndices) -> RegionStatistics:
        dynamics = self.dynamics
        return RegionStatistics(
            name=name,
            count=len(rows),
            confidence=median_of(dynamics.confidence[rows]),
            variability=median_of(dynamics.variability[rows]),
            aum=median_of(dynamics.aum[rows]),
            right=float(self.right[rows].mean()) if len(rows) else math.nan,
            doubtful=int((dynamics.aum[rows] < 0).sum()),
            class_shares=self.class_shares(rows),
        )


def build_map(
    dynamics: Dynamics,
    name: str,
    *,
    fraction: float = 0.33,
    disjoint: bool = False,
    examples: Examples | None = None,
    why_not: str = "",
) -> DataMap:
    """Build the map of the examples that were recorded.

    Parameters
    ----------
    dynamics : Dynamics
        Recorded training dynamics; examples that were never recorded, or with logits that are not finite, are left out.
    name : str
        Title of the map.
    fraction : float
        Share of the examples in each region.
    disjoint : bool
        Whether no example may be in two regions; the ambiguous come first, then the easy, then the hard.
    examples : Examples, optional
        The examples themselves, in the order of the dynamics.
    why_not : str
        Why there are no examples, for the report.

    Raises
    ------
    InputError
        If no example was recorded.

    Examples
    --------
    >>> from distilcal.dynamics import Recorder
    >>> recorder = Recorder(["a", "b"], [0, 1], ["cat", "dog"])
    >>> recorder.record([0, 1], np.array([[2.0, 0.0], [0.0, 1.0]]))
    >>> len(build_map(recorder.dynamics(), "pets"))
    2
    """
    seen = (dynamics.epochs > 0) & np.isfinite(dynamics.confidence) & np.isfinite(dynamics.aum)
    if not seen.any():
        raise InputError("no example was recorded", source=name, remedy="record at least one epoch, with finite logits")
    left_out = int((~seen).sum())
    if left_out:
        rows = np.flatnonzero(seen)
        dynamics = dynamics.select(rows)
        if examples is not None:
            examples = examples.take(rows)
    return DataMap(
        name=name,
        dynamics=dynamics,
        regions=regions(dynamics, fraction, disjoint=disjoint),
        fraction=fraction,
        disjoint=disjoint,
        examples=examples,
        why_not=why_not,
        left_out=left_out,
    )


def median_of(values: NDArray[Any]) -> float:
    """Return the median of values.

    Parameters
    ----------
    values : ndarray, shape (N,)
        The values.

    Returns
    -------
    float
        The median; NaN if there are no values.

    Examples
    --------
    >>> median_of(np.array([3, 1, 2])), median_of(np.array([]))
    (2.0, nan)
    """
    return float(np.median(values)) if len(values) else math.nan
