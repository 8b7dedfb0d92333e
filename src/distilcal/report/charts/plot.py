"""A plot: frame, axes and legend, and the places of points in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from distilcal.report.charts.frame import Frame
from distilcal.report.charts.marks import COLOURS, DASHES, GRID, LINE, MARKS, MOST_POINTS, SHAPES, SOFT, Mark
from distilcal.report.charts.scales import Axis
from distilcal.report.charts.svg import boxes_overlap, element, escaped, polyline_points, text_element, text_width, truncate

Chart = Mapping[str, Any]

WIDTH = 360.0  # of every picture, in SVG units; text is 11 of them high
HEIGHT = 220.0  # of the inner rectangle
SMALL = 0.65  # size of the marks where there are many


class Plot:
    """Frame, axes and legend of a picture, and where its points lie; what is added is drawn over the grid."""

    def __init__(self, chart: Chart, x: Axis, y: Axis, *, height: float = HEIGHT, width: float | None = None,
                 lines: bool = False, panels: int = 1, key: Sequence[tuple[str, int]] = ()):  # fmt: skip
        self.chart, self.x, self.y, self.lines, self.levels = chart, x, y, lines, key
        self.panels, self.panel, self.height = panels, 0, height
        self.legend, self.legend_rows = _legend([str(s["name"]) for s in chart["series"]])
        labels = max((text_width(t) for t in y.labels), default=0.0)
        self.left = 28.0 + labels if y.ticks else 24.0
        room = WIDTH - self.left - max(12.0, text_width(x.labels[-1]) / 2 + 2 if x.ticks else 0.0)
        if width is not None:
            self.left += (room - min(width, room)) / 2
        self.width = min(width or room, room)
        self.drawn: list[str] = []
        self.named: list[tuple[tuple[float, float], str]] = []
        self.head = 8.0 + (17 * max(self.legend_rows, 1) + 4 if self.legend_rows or key else 0)

    @property
    def pitch(self) -> float:
        """From one panel to the next."""
        return self.height + (62.0 if self.panels > 1 else 0.0)

    @property
    def frame(self) -> Frame:
        """The rectangle of the panel that is being drawn."""
        top = self.head + (14.0 if self.panels > 1 else 0.0) + self.panel * self.pitch
        return Frame(self.left, top, self.width, self.height)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point."""
        return self.frame.x(self.x.share(x)), self.frame.y(self.y.share(y))

    def add(self, *parts: str) -> None:
        """Draw parts over the grid and over what was added before."""
        self.drawn += [part for part in parts if part]

    def tooltip(self, series: Mapping[str, Any], point: Sequence[float], more: str = "") -> str:
        """Return the text that is shown when a mark is pointed at."""
        x, y = (str(self.chart.get(k, "")) or k for k in "xy")
        span = f" [{point[2]:.4g}, {point[3]:.4g}]" if len(point) > 3 else ""
        what = ", ".join(w for w in (str(series["name"]), more) if w)
        return f"{what}: {x} {point[0]:.4g}, {y} {point[1]:.4g}{span}"

    def mark(self, i: int, point: Sequence[float], title: str = "", size: float = 1.35) -> str:
        x, y = self.at(point[0], point[1])
        return mark_element(i, x, y, size, title)

    def line(self, i: int, points: Sequence[Sequence[float]], **more: Any) -> str:
        settings = {
            "stroke_width": 1.8,
            "stroke_dasharray": DASHES[i % len(DASHES)] or None,
            "stroke_linejoin": "round",
            **more,
        }
        places = polyline_points(self.at(p[0], p[1]) for p in points)
        return element("polyline", points=places, fill="none", stroke="currentColor", **settings)

    def whisker(self, point: Sequence[float]) -> str:
        (x, low), (_, high) = self.at(point[0], point[2]), self.at(point[0], point[3])
        d = f"M{x} {low}V{high}M{x - 2.5:.2f} {low}h5M{x - 2.5:.2f} {high}h5"
        return element("path", d=d, stroke="currentColor", stroke_width=1.1, opacity=0.6, fill="none")

    def level_whisker(self, point: Sequence[float]) -> str:
        """The interval of a point's x, which follows that of its y."""
        (left, y), (right, _) = self.at(point[4], point[1]), self.at(point[5], point[1])
        d = f"M{left} {y}H{right}M{left} {y - 2.5:.2f}v5M{right} {y - 2.5:.2f}v5"
        return element("path", d=d, stroke="currentColor", stroke_width=1.1, opacity=0.6, fill="none")

    def cloud(self, i: int, points: Sequence[Sequence[float]]) -> str:
        """Many points as one shape."""
        mark = SHAPES[i % len(SHAPES)]
        rows = np.random.default_rng(0).permutation(len(points))[:MOST_POINTS]
        return self.shapes(mark, [points[k] for k in rows])

    def shapes(self, mark: Mark, points: Sequence[Sequence[float]]) -> str:
        """One path with a small mark at every point."""
        places = [self.at(p[0], p[1]) for p in points]
        d = "".join(f"M{x / SMALL:.5g} {y / SMALL:.5g}{mark.shape}" for x, y in places)
        return shape_element(d, mark.filled, transform=f"scale({SMALL})")

    def labels(self) -> Iterable[str]:
        """Names beside their marks, where they hide no mark and no other name."""
        c = self.frame
        taken = [(x - 4, y - 4, x + 4, y + 4) for (x, y), _ in self.named]
        for (x, y), name in self.named:
            wide = text_width(name, 9.5)
            for left, middle in ((x + 6, y), (x - 6 - wide, y), (x - wide / 2, y - 10), (x - wide / 2, y + 10)):
                box = (left, middle - 5, left + wide, middle + 5)
                inside = c.left < box[0] and box[2] < c.x(1) and c.y(1) < box[1] and box[3] < c.y(0)
                if name and inside and not any(boxes_overlap(box, other) for other in taken):
                    taken.append(box)
                    yield text_element(name, left, middle + 3.4, class_="point-label", font_size=9.5, fill=SOFT,
                                       stroke="#ffffff", stroke_width=2.5, stroke_linejoin="round",
                                       paint_order="stroke")  # fmt: skip
                    break

    def svg(self, key: str) -> str:
        """Return all of it as one SVG, with a title and a description for screen readers."""
        self.panel = self.panels - 1
        below = 10.0
        if self.chart.get("x"):
            below = 24.0
        if self.x.ticks:
            below = 38.0
        bottom = self.frame.y(0) + below
        names = ", ".join(str(s["name"]) for s in self.chart["series"])
        parts = [element("title", escaped(str(self.chart.get("title", "")) or "chart"), id=f"{key}-title")]
        labelled = f"{key}-title"
        if names:
            parts.append(element("desc", escaped(names), id=f"{key}-desc"))
            labelled += f" {key}-desc"
        parts += self._legend()
        for panel in range(self.panels):
            parts += self._frame(panel)
        parts += [*self._diagonal(), *self.drawn]
        if not self.drawn:
            parts.append(text_element("no data", self.frame.x(0.5), self.frame.y(0.5), text_anchor="middle", fill=SOFT))
        return element("svg", *parts, viewBox=f"0 0 {WIDTH:g} {bottom:g}", role="img", aria_labelledby=labelled)

    def _frame(self, panel: int) -> Iterable[str]:
        self.panel = panel
        c = self.frame
        for tick, label in zip(self.x.ticks, self.x.labels, strict=True):
            x = c.x(self.x.share(tick))
            yield element("line", class_="gridline", x1=x, x2=x, y1=c.y(0), y2=c.y(1), stroke=GRID)
            yield text_element(label, x, c.y(0) + 15, text_anchor="middle", fill=SOFT)
        for tick, label in zip(self.y.ticks, self.y.labels, strict=True):
            y = c.y(self.y.share(tick))
            yield element("line", class_="gridline", x1=c.x(0), x2=c.x(1), y1=y, y2=y, stroke=GRID)
            yield text_element(label, c.x(0) - 6, y + 4, text_anchor="end", fill=SOFT)
        yield element("rect", class_="frame", x=c.left, y=c.top, width=c.width, height=c.height, fill="none", stroke=LINE)
        x_title = str(self.chart.get("x", "")) + (", log scale" if self.x.log else "")
        y_title = truncate(str(self.chart.get("y", "")), c.height)
        yield text_element(
            truncate(x_title, c.width), c.x(0.5), c.y(0) + (31 if self.x.ticks else 16), text_anchor="middle", fill=SOFT
        )
        beside = 12.0 if self.y.ticks else c.left - 8
        turned = f"translate({beside:g} {c.y(0.5):g}) rotate(-90)"
        yield text_element(y_title, None, None, transform=turned, text_anchor="middle", fill=SOFT)

    def _diagonal(self) -> Iterable[str]:
        low, high = max(self.x.low, self.y.low), min(self.x.high, self.y.high)
        if self.chart.get("diagonal") and low < high and not self.x.log:
            (x1, y1), (x2, y2) = self.at(low, low), self.at(high, high)
            yield element("line", class_="ideal", x1=x1, y1=y1, x2=x2, y2=y2, stroke=SOFT, stroke_dasharray="4 4")

    def _legend(self) -> Iterable[str]:
        for i, name, x, row in self.legend:
            y = 12.0 + 17 * row
            line = element("line", x1=x, x2=x + 26, y1=y, y2=y, stroke="currentColor", stroke_width=1.8,
                        stroke_dasharray=DASHES[i % len(DASHES)] or None) if self.lines else ""  # fmt: skip
            yield series_group(i, line, mark_element(i, x + 13, y, 1.5))
            yield text_element(name, x + (31 if self.lines else 22), y + 4, class_="key", fill=SOFT)
        if self.levels:
            yield text_element("correctness", 20, 16, class_="key", fill=SOFT)
            for k, (label, level) in enumerate(self.levels):
                x = 108.0 + 42 * k
                mark = shape_element(
                    f"M0 0{MARKS[level].shape}", MARKS[level].filled, transform=f"translate({x:g} 12) scale(1.5)"
                )
                yield level_group(level, mark)
                yield text_element(label, x + 9, 16, class_="key", fill=SOFT)


def _legend(names: Sequence[str]) -> tuple[list[tuple[int, str, float, int]], int]:
    """Number, name, left end and row of each entry, and how many rows there are; no entry leaves the picture."""
    placed, x, row = [], 14.0, 0
    if not any(names):
        return [], 0
    for i, name in enumerate(names):
        shown = truncate(name, WIDTH - 62)
        wide = 31 + text_width(shown) + 12
        if x > 14 and x + wide > WIDTH:
            x, row = 14.0, row + 1
        placed.append((i, shown, x, row))
        x += wide
    return placed, row + 1


def mark_element(i: int, x: float, y: float, size: float, title: str = "") -> str:
    """Return the mark of a series at a place.

    Parameters
    ----------
    i : int
        Index of the series, which decides the shape.
    x, y : float
        Centre of the mark, in SVG units.
    size : float
        Factor by which the shape is scaled.
    title : str
        Text of the tooltip; none if empty.

    Returns
    -------
    str
        An SVG ``path`` in the colour of its group.
    """
    mark = SHAPES[i % len(SHAPES)]
    return shape_element(f"M0 0{mark.shape}", mark.filled, title, transform=f"translate({x:g} {y:g}) scale({size:.3g})")


def shape_element(d: str, filled: bool, title: str = "", **more: Any) -> str:
    """Return a shape in the colour of its group, with a tooltip.

    Parameters
    ----------
    d : str
        SVG path data.
    filled : bool
        Whether the shape is filled or only outlined.
    title : str
        Text of the tooltip; none if empty.
    **more : Any
        Further attributes, as in ``element``.

    Returns
    -------
    str
        An SVG ``path``.
    """
    titles = [element("title", escaped(title))] if title else []
    if filled:
        return element("path", *titles, d=d, fill="currentColor", **more)
    return element("path", *titles, d=d, fill="none", stroke="currentColor", stroke_width=1.3, **more)


def series_group(i: int, *inside: str, **more: Any) -> str:
    """Return the elements of a series as a group in its colour.

    Parameters
    ----------
    i : int
        Index of the series; colours repeat after the last of ``COLOURS``.
    *inside : str
        SVG elements; empty ones are allowed.
    **more : Any
        Further attributes, as in ``element``.

    Returns
    -------
    str
        An SVG ``g``, or an empty string if all elements are empty.

    Examples
    --------
    >>> series_group(0, "<path/>")
    '<g class="s0" color="#0067a5"><path/></g>'
    >>> series_group(0, "")
    ''
    """
    number = i % len(COLOURS)
    return element("g", *inside, class_=f"s{number}", color=COLOURS[number][0], **more) if any(inside) else ""


def level_group(level: int, drawn: str) -> str:
    """Return the marks of a level of correctness as a group in its colour.

    Parameters
    ----------
    level : int
        Index in ``MARKS``, as ``correctness_level`` returns it.
    drawn : str
        SVG elements.

    Returns
    -------
    str
        An SVG ``g``.
    """
    return element("g", drawn, class_=f"k{level}", color=MARKS[level].light, opacity=0.75)
