"""The rectangle of a chart in SVG units, and the places of ticks in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distilcal.report.charts.scales import Axis


@dataclass(frozen=True)
class Frame:
    """The inner rectangle of a chart: data in [0, 1]² are drawn in it."""

    left: float = 54.0
    top: float = 12.0
    width: float = 296.0
    height: float = 240.0

    def x(self, value: float) -> float:
        """Return the place of a share of the width."""
        return round(self.left + self.width * value, 2)

    def y(self, value: float) -> float:
        """Return the place of a share of the height, counted from below."""
        return round(self.top + self.height * (1 - value), 2)

    def x_ticks(self, axis: Axis) -> list[dict[str, Any]]:
        """Return the ticks of an axis across: place and label."""
        return [{"x": self.x(axis.share(t)), "label": label} for t, label in zip(axis.ticks, axis.labels, strict=True)]

    def y_ticks(self, axis: Axis) -> list[dict[str, Any]]:
        """Return the ticks of an axis upwards: place and label."""
        return [{"y": self.y(axis.share(t)), "label": label} for t, label in zip(axis.ticks, axis.labels, strict=True)]
