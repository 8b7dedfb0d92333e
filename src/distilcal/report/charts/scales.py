"""Axes: where they begin and end, their ticks, and where a value lies on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

# Ends of the axis of variability, each with the step of its ticks.
WIDTHS = {0.01: 0.002, 0.02: 0.005, 0.05: 0.01, 0.1: 0.02, 0.2: 0.05, 0.3: 0.1, 0.4: 0.1, 0.5: 0.1}


@dataclass(frozen=True)
class Axis:
    """Where an axis begins and ends, and its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False
    percent: bool = False  # whether ticks are labelled as percentages
    names: tuple[str, ...] = ()  # of the ticks, in place of their numbers

    def share(self, value: float) -> float:
        """How far along the axis a value lies: 0 at its beginning, 1 at its end."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (value - low) / (high - low)

    @property
    def labels(self) -> list[str]:
        """The names of the ticks, or their numbers in as many digits as tell them apart."""
        if self.names:
            return list(self.names)
        if self.percent:
            return [f"{100 * t:.3g}%" for t in self.ticks]
        if self.log or len(self.ticks) < 2:
            return [f"{t:g}" for t in self.ticks]
        step = min(b - a for a, b in pairwise(self.ticks))
        largest = max(map(abs, self.ticks))
        if largest >= 1e6 or (step < 1e-4 and largest < 0.01):
            return [f"{t:.3g}" for t in self.ticks]
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        return [f"{t:z.{digits}f}" for t in self.ticks]


def axis_of(
    values: Iterable[float], *, whole: bool = False, zero: bool = False, log: bool = False, percent: bool = False
) -> Axis:
    """Return an axis that holds all values, with a little room and about five round ticks.

    Parameters
    ----------
    values : iterable of float
        Finite values; without any, the axis is for 0 to 1.
    whole : bool
        Whether ticks are whole numbers, if all values are.
    zero : bool
        Whether the axis begins at 0 if the smallest value is near it.
    log : bool
        Whether the axis is logarithmic, with ticks at up to nine of the values; these must be positive.
    percent : bool
        Whether values are shares whose ticks are labelled as percentages; ignored on a logarithmic axis.

    Returns
    -------
    Axis
        The axis.

    Examples
    --------
    >>> axis_of([0.1, 0.9], zero=True).ticks
    (0.0, 0.2, 0.4, 0.6, 0.8)
    """
    ordered = sorted(set(values)) or [0.0, 1.0]
    low, high = ordered[0], ordered[-1]
    if log:
        room = (high / low) ** 0.04
        return Axis(low / room, high * room, tuple(_spread_out(ordered)), log=True)
    room = 0.05 * (high - low) or max(0.1 * abs(low), 1e-3)
    if zero and 0 <= low < 0.35 * high:
        low, room_below = 0.0, 0.0
    else:
        room_below = min(room, low) if low >= 0 else room  # what cannot be negative has no room there
    first, last = low - room_below, high + room
    step = round_step((last - first) / 5)
    if whole and all(v == round(v) for v in ordered):
        step = max(step, 1.0)
    ticks = np.arange(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1) * step
    return Axis(first, last, tuple(float(f"{t:.12g}") for t in ticks), percent=percent)


def unit_axis(room: float = 0.0) -> Axis:
    """Return an axis from 0 to 1, with some room at both ends so that marks there are whole.

    Parameters
    ----------
    room : float
        Length added at each end, in units of the axis.

    Returns
    -------
    Axis
        The axis, with ticks at multiples of 0.2.

    Examples
    --------
    >>> axis = unit_axis(0.5)
    >>> axis.low, axis.high
    (-0.5, 1.5)
    """
    return Axis(-room, 1 + room, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))


def variability_end(widest: float) -> float:
    """Return the end of the axis for variabilities up to ``widest``.

    Parameters
    ----------
    widest : float
        Largest variability (standard deviation of a probability), from 0 to 0.5.

    Returns
    -------
    float
        The smallest key of ``WIDTHS`` that is not below ``widest``; 0.5 if there is none.

    Examples
    --------
    >>> variability_end(0.07)
    0.1
    """
    return next((end for end in WIDTHS if widest <= end + 1e-9), 0.5)


def variability_ticks(end: float) -> tuple[float, ...]:
    """Return the ticks of an axis of variability with this end.

    Parameters
    ----------
    end : float
        A key of ``WIDTHS``, as ``variability_end`` returns it.

    Returns
    -------
    tuple of float
        Ticks from 0 to ``end``.

    Raises
    ------
    KeyError
        If ``end`` is no key of ``WIDTHS``.

    Examples
    --------
    >>> variability_ticks(0.1)
    (0.0, 0.02, 0.04, 0.06, 0.08, 0.1)
    """
    return tuple(np.arange(0, end + 1e-9, WIDTHS[end]).round(4).tolist())


def is_geometric(values: Iterable[float]) -> bool:
    """Return whether values grow by factors rather than by steps, as temperatures and learning rates do.

    Parameters
    ----------
    values : iterable of float
        Values of an axis, in any order; duplicates count once.

    Returns
    -------
    bool
        True if there are at least four distinct values, all positive, the largest at least 16 times the smallest, and their
        ratios vary less than their differences.

    Examples
    --------
    >>> is_geometric([1, 2, 4, 8, 16]), is_geometric([1, 5, 10, 15, 20])
    (True, False)
    """
    levels = np.unique(list(values))
    if len(levels) < 4 or levels[0] <= 0 or levels[-1] < 16 * levels[0]:
        return False
    steps, factors = np.diff(levels), np.diff(np.log(levels))
    return bool(factors.std() / factors.mean() < steps.std() / steps.mean())


def round_step(value: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below a value.

    Parameters
    ----------
    value : float
        A positive number.

    Returns
    -------
    float
        The step.

    Raises
    ------
    ValueError
        If ``value`` is not positive.

    Examples
    --------
    >>> round_step(0.3), round_step(7.0)
    (0.5, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(value))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= value * (1 - 1e-9))


def _spread_out(values: Sequence[float], most: int = 9) -> list[float]:
    """At most so many of the values, evenly."""
    return [values[i] for i in sorted({round(k) for k in np.linspace(0, len(values) - 1, min(most, len(values)))})]
