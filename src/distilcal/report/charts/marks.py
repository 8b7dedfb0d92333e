"""Colours, shapes and dashes of series, and marks for levels of correctness."""

from __future__ import annotations

import math
from dataclasses import dataclass

SOFT, INK, LINE, GRID = "#5b6570", "#1c2024", "#c3cad0", "#eceff1"
# Told apart with any colour vision and at least 3:1 against the ground, in light and in dark.
COLOURS = (
    ("#0067a5", "#6db6ff"),
    ("#c8500a", "#ff9a52"),
    ("#007f5c", "#41cfa3"),
    ("#a03f86", "#f09bd3"),
    ("#8a6a00", "#e3c44c"),
    ("#4a4f55", "#c9ced3"),
    ("#7a1f3d", "#ff7f9e"),
    ("#2a93c9", "#a6e3ff"),
)


@dataclass(frozen=True)
class Mark:
    """How a level of correctness is drawn: a path about its centre, filled or not, in light and in dark."""

    shape: str
    filled: bool
    light: str
    dark: str


# From never right (orange) over grey to always right (blue): told apart by form, and by hue with any colour vision.
MARKS = (
    Mark("m-2.3-2.3l4.6 4.6m0-4.6l-4.6 4.6", False, "#b33a00", "#ff7a3d"),
    Mark("m-2.9 0h5.8m-2.9-2.9v5.8", False, "#d2722a", "#f2a266"),
    Mark("m0 3l-2.9-5.2h5.8z", True, "#b8934f", "#d9c08f"),
    Mark("m0-3.3l2.6 3.3l-2.6 3.3l-2.6-3.3z", True, "#7d7a75", "#a9a8a5"),
    Mark("m0-3l2.9 5.2h-5.8z", True, "#5f93b8", "#93bfe0"),
    Mark("m-2.3-2.3h4.6v4.6h-4.6z", True, "#2f6bc4", "#62a0f0"),
    Mark("m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0z", True, "#173f8f", "#7f8cff"),
)
SHAPES = tuple(reversed(MARKS))  # seven forms to eight colours: a pair comes back after 56 series
DASHES = ("", "6 3", "2 2.5", "8 3 2 3", "11 4")
MOST_POINTS = 4000  # of a cloud: more would hide each other


def correctness_level(correctness: float) -> int:
    """Return the index in ``MARKS`` of the mark for a correctness, rounded to the nearest 0.2.

    Parameters
    ----------
    correctness : float
        Share of epochs in which the example was classified correctly, from 0 to 1.

    Returns
    -------
    int
        An index from 0 to 6; only exactly 0 has the first mark and only exactly 1 the last.

    Examples
    --------
    >>> [correctness_level(c) for c in (0.0, 0.01, 0.5, 0.99, 1.0)]
    [0, 1, 4, 5, 6]
    """
    step = 0 if correctness <= 0 else 5 if correctness >= 1 else min(max(math.floor(correctness * 5 + 0.5), 1), 4)
    return round(step * (len(MARKS) - 1) / 5)
