"""Charts as SVG text: lines, scatters, reliability diagrams, projections and data maps of a study's figures.

One text serves twice. Colours stand in attributes, for a picture that is used alone; a page overrides them by its style (text,
``gridline``, ``frame``, ``s0`` … for the series, ``k0`` … for correctness), in light and in dark. Series differ by colour, mark
and dash. To add a kind, write a function ``(figure, key, alone) -> str`` and enter it in ``CHARTS``.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np

from distilcal.report.evaluations.page import Chart
from distilcal.report.formatting import one_line
from distilcal.report.map_page import MARKS, MOST_POINTS, WIDTHS, Mark, _round_step
from distilcal.selective import counted

Figure = Mapping[str, Any]

WIDTH = 360.0  # of every picture, in SVG units; text is 11 of them high
HEIGHT = 220.0  # of the inner rectangle
ENLARGED = 1.7  # a picture that stands alone
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
SOFT, INK, LINE, GRID, PAPER = "#5b6570", "#1c2024", "#c3cad0", "#eceff1", "#ffffff"
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
SHAPES = tuple(reversed(MARKS))  # seven forms to eight colours: a pair comes back after 56 series
DASHES = ("", "6 3", "2 2.5", "8 3 2 3", "11 4")
BAND = 8  # a line with so many points has its intervals as a band, one with fewer as whiskers
SMALL = 0.65  # size of the marks where there are many
MANY = 400  # points: then smaller marks, drawn together, without words of their own
LABELLED = 40  # points of a scatter that may carry their names


def draw(figure: Figure, key: str = "figure", alone: bool = False) -> str:
    """The picture of a figure of any kind; ``key`` begins the ids in it."""
    return CHARTS[figure["kind"]](figure, key, alone)


def line_chart(figure: Figure, key: str = "figure", alone: bool = False) -> str:
    """A line for each series, its intervals as whiskers or as a band. Gaps stay gaps; powers stand on a log axis."""
    spans = [_finite(s["points"]) for s in figure["series"]]
    across = [p[0] for points in spans for p in points]
    x, y = axis_of(across, whole=True, log=is_geometric(across)), axis_of(_heights(spans), zero=True)
    plot = _Plot(figure, x, y, lines=True)
    for i, series in enumerate(figure["series"]):
        there = _finite(series["points"])
        ranges = [p for p in there if len(p) > 3]
        inside = []
        if len(ranges) >= BAND:
            edge = [plot.at(p[0], p[3]) for p in ranges] + [plot.at(p[0], p[2]) for p in reversed(ranges)]
            inside.append(_tag("polygon", points=_joined(edge), fill="currentColor", opacity=0.13))
        else:
            inside += [plot.whisker(p) for p in ranges]
        inside += [plot.line(i, part) for part in _unbroken(series["points"])]
        inside += [plot.mark(i, p, plot.words(series, p)) for p in there]
        plot.add(_series(i, *inside))
    return plot.svg(key, alone)


def scatter_chart(figure: Figure, key: str = "figure", alone: bool = False) -> str:
    """A mark for each point, with its interval, and its label where there is room."""
    spans = [_finite(s["points"]) for s in figure["series"]]
    plot = _Plot(figure, axis_of(p[0] for points in spans for p in points), axis_of(_heights(spans)))
    many = sum(map(len, spans)) > MANY
    for i, (series, points) in enumerate(zip(figure["series"], spans, strict=True)):
        if many:
            plot.add(_series(i, plot.cloud(i, points) if points else ""))
            continue
        given = chain(series.get("labels") or [], repeat(""))
        names = [str(name) for point, name in zip(series["points"], given, strict=False) if _finite([point])]
        whiskers = [plot.whisker(p) for p in points if len(p) > 3]
        marks = [plot.mark(i, p, plot.words(series, p, name)) for p, name in zip(points, names, strict=True)]
        plot.add(_series(i, *whiskers, *marks))
        plot.named += [(plot.at(p[0], p[1]), name) for p, name in zip(points, names, strict=True)]
    if sum(map(len, spans)) <= LABELLED:
        plot.add(*plot.labels())
    return plot.svg(key, alone)


def reliability_chart(figure: Figure, key: str = "figure", alone: bool = False) -> str:
    """Accuracy against confidence bin by bin, with intervals; marks grow with the rows of their bin."""
    unit = Axis(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    plot = _Plot({"x": "confidence", "y": "accuracy", **figure, "diagonal": True}, unit, unit, height=264.0, lines=True)
    spans = [_finite(s["points"]) for s in figure["series"]]
    most = max((p[4] for points in spans for p in points if len(p) > 4), default=1.0) or 1.0
    for i, (series, points) in enumerate(zip(figure["series"], spans, strict=True)):
        sizes = [0.7 + 0.9 * math.sqrt(p[4] / most) if len(p) > 4 else 1.2 for p in points]
        said = [plot.words(series, p, counted(int(p[4])) if len(p) > 4 else "") for p in points]
        line = plot.line(i, points, stroke_width=1.2, opacity=0.75) if points else ""
        marks = [plot.mark(i, p, w, size) for p, w, size in zip(points, said, sizes, strict=True)]
        plot.add(_series(i, *(plot.whisker(p) for p in points if len(p) > 3), line, *marks))
    return plot.svg(key, alone)


def projection_chart(figure: Figure, key: str = "figure", alone: bool = False) -> str:
    """Points in a plane whose axes mean nothing by themselves: no numbers, one unit both ways."""
    spans = [_finite(s["points"]) for s in figure["series"]]
    places = np.array([p[:2] for points in spans for p in points] or [[0.0, 0.0]])
    low, high = places.min(axis=0), places.max(axis=0)
    middle, half = (low + high) / 2, max(float((high - low).max()), 1e-9) * 0.53
    x, y = (Axis(float(m) - half, float(m) + half, ()) for m in middle)
    plot = _Plot(figure, x, y, height=280.0, width=280.0)
    many = len(places) > MANY
    for i, (series, points) in enumerate(zip(figure["series"], spans, strict=True)):
        marks = [plot.cloud(i, points)] if many and points else [plot.mark(i, p, str(series["name"]), 0.9) for p in points]
        plot.add(_series(i, *marks, opacity=0.8))
    return plot.svg(key, alone)


def map_chart(figure: Figure, key: str = "figure", alone: bool = False) -> str:
    """A data map: confidence over variability, the mark by correctness; a panel for each series, one below the other."""
    spans = [np.array([p for p in _finite(s["points"]) if len(p) == 3]).reshape(-1, 3) for s in figure["series"]]
    widest = max((float(points[:, 0].max()) for points in spans if len(points)), default=0.0)
    top = next((w for w in WIDTHS if widest <= w + 1e-9), 0.5)
    room = 0.02  # so that marks at the ends are whole
    x = Axis(-room * top, (1 + room) * top, tuple(np.arange(0, top + 1e-9, WIDTHS[top]).round(4).tolist()))
    y = Axis(-room, 1 + room, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    named = {"x": "variability", "y": "confidence", **figure, "series": ()}
    plot = _Plot(named, x, y, height=250.0, panels=max(len(spans), 1), key=[(f"{i / 5:g}", _level(i / 5)) for i in range(6)])
    mean = np.linspace(0, 1, 201)
    spread = np.sqrt(mean * (1 - mean))  # no example can lie further right, whatever the model says
    for i, points in enumerate(spans):
        plot.panel = i
        for half in (mean <= 0.5, mean >= 0.5):
            edge = [plot.at(s, c) for s, c in zip(spread[half], mean[half], strict=True) if s <= top]
            plot.add(_tag("polyline", class_="frame", points=_joined(edge), fill="none", stroke=LINE))
        rows = np.random.default_rng(0).permutation(len(points))[:MOST_POINTS]  # shuffled, so that no level lies on top
        for part in np.array_split(rows, max(1, len(rows) // 200)):
            levels = np.array([_level(c) for c in points[part, 2]])
            for level in np.unique(levels).tolist():
                plot.add(_level_group(level, plot.shapes(MARKS[level], points[part[levels == level]].tolist())))
        if len(spans) > 1:
            name = _cut(str(figure["series"][i]["name"]), plot.chart.width)
            plot.add(_text(name, plot.chart.left, plot.chart.top - 6, class_="key", font_weight=600, fill=INK))
    return plot.svg(key, alone)


CHARTS: dict[str, Callable[[Figure, str, bool], str]] = {
    "line": line_chart,
    "scatter": scatter_chart,
    "reliability": reliability_chart,
    "projection": projection_chart,
    "map": map_chart,
}


# ---- axes --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """Where an axis begins and ends, and its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value lies: 0 at its beginning, 1 at its end."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (value - low) / (high - low)

    @property
    def labels(self) -> list[str]:
        """The ticks in as many digits as tell them apart."""
        if self.log or len(self.ticks) < 2:
            return [f"{t:g}" for t in self.ticks]
        step = min(b - a for a, b in pairwise(self.ticks))
        if step < 1e-4 or max(map(abs, self.ticks)) >= 1e6:
            return [f"{t:.3g}" for t in self.ticks]
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        return [f"{t:z.{digits}f}" for t in self.ticks]


def axis_of(values: Iterable[float], *, whole: bool = False, zero: bool = False, log: bool = False) -> Axis:
    """An axis that holds all values, with a little room and about five round ticks.

    ``whole``: whole numbers only, if the values are. ``zero``: it begins at 0 if that is near. ``log``: ticks at the values.
    """
    there = sorted(set(values)) or [0.0, 1.0]
    low, high = there[0], there[-1]
    if log:
        room = (high / low) ** 0.04
        return Axis(low / room, high * room, tuple(_spread_out(there)), log=True)
    room = 0.05 * (high - low) or max(0.1 * abs(low), 1e-3)
    if zero and 0 <= low < 0.35 * high:
        low, room_below = 0.0, 0.0
    else:
        room_below = min(room, low) if low >= 0 else room  # what cannot be negative has no room there
    first, last = low - room_below, high + room
    step = _round_step((last - first) / 5)
    if whole and all(v == round(v) for v in there):
        step = max(step, 1.0)
    ticks = np.arange(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1) * step
    return Axis(first, last, tuple(float(f"{t:.12g}") for t in ticks))


def is_geometric(values: Iterable[float]) -> bool:
    """Whether values go up by factors rather than by steps: temperatures 1, 2, 4 … 64, learning rates."""
    there = np.unique(list(values))
    if len(there) < 4 or there[0] <= 0 or there[-1] < 16 * there[0]:
        return False
    steps, factors = np.diff(there), np.diff(np.log(there))
    return bool(factors.std() / factors.mean() < steps.std() / steps.mean())


def _spread_out(values: Sequence[float], most: int = 9) -> list[float]:
    """At most so many of the values, evenly."""
    return [values[i] for i in sorted({round(k) for k in np.linspace(0, len(values) - 1, min(most, len(values)))})]


# ---- a plot ------------------------------------------------------------------------------------------------------------


class _Plot:
    """Frame, axes and legend of a picture, and where its points lie; what is added is drawn over the grid."""

    def __init__(self, figure: Figure, x: Axis, y: Axis, *, height: float = HEIGHT, width: float | None = None,
                 lines: bool = False, panels: int = 1, key: Sequence[tuple[str, int]] = ()):  # fmt: skip
        self.figure, self.x, self.y, self.lines, self.levels = figure, x, y, lines, key
        self.panels, self.panel, self.height = panels, 0, height
        self.title_rows = _wrapped(str(figure.get("title", "")), WIDTH - 24, 12.5)
        self.legend, self.legend_rows = _legend([str(s["name"]) for s in figure["series"]])
        labels = max((_wide(t) for t in y.labels), default=0.0)
        self.left = 28.0 + labels if y.ticks else 24.0
        room = WIDTH - self.left - max(12.0, _wide(x.labels[-1]) / 2 + 2 if x.ticks else 0.0)
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
    def chart(self) -> Chart:
        top = self.head + (14.0 if self.panels > 1 else 0.0) + self.panel * self.pitch
        return Chart(self.left, top, self.width, self.height)

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.chart.x(self.x.share(x)), self.chart.y(self.y.share(y))

    def add(self, *parts: str) -> None:
        self.drawn += [part for part in parts if part]

    def words(self, series: Mapping[str, Any], point: Sequence[float], more: str = "") -> str:
        """What a mark says when it is pointed at."""
        x, y = (str(self.figure.get(k, "")) or k for k in "xy")
        span = f" [{point[2]:.4g}, {point[3]:.4g}]" if len(point) > 3 else ""
        what = ", ".join(w for w in (str(series["name"]), more) if w)
        return f"{what}: {x} {point[0]:.4g}, {y} {point[1]:.4g}{span}"

    def mark(self, i: int, point: Sequence[float], words: str = "", size: float = 1.35) -> str:
        x, y = self.at(point[0], point[1])
        return _mark(i, x, y, size, words)

    def line(self, i: int, points: Sequence[Sequence[float]], **more: Any) -> str:
        how = {"stroke_width": 1.8, "stroke_dasharray": DASHES[i % len(DASHES)] or None, "stroke_linejoin": "round", **more}
        places = _joined(self.at(p[0], p[1]) for p in points)
        return _tag("polyline", points=places, fill="none", stroke="currentColor", **how)

    def whisker(self, point: Sequence[float]) -> str:
        (x, low), (_, high) = self.at(point[0], point[2]), self.at(point[0], point[3])
        d = f"M{x} {low}V{high}M{x - 2.5:.2f} {low}h5M{x - 2.5:.2f} {high}h5"
        return _tag("path", d=d, stroke="currentColor", stroke_width=1.1, opacity=0.6, fill="none")

    def cloud(self, i: int, points: Sequence[Sequence[float]]) -> str:
        """Many points as one shape."""
        mark = SHAPES[i % len(SHAPES)]
        rows = np.random.default_rng(0).permutation(len(points))[:MOST_POINTS]
        return self.shapes(mark, [points[k] for k in rows])

    def shapes(self, mark: Mark, points: Sequence[Sequence[float]]) -> str:
        """One path with a small mark at every point."""
        places = [self.at(p[0], p[1]) for p in points]
        d = "".join(f"M{x / SMALL:.5g} {y / SMALL:.5g}{mark.shape}" for x, y in places)
        return _shape(d, mark.filled, transform=f"scale({SMALL})")

    def labels(self) -> Iterable[str]:
        """Names beside their marks, where they hide no mark and no other name."""
        c = self.chart
        taken = [(x - 4, y - 4, x + 4, y + 4) for (x, y), _ in self.named]
        for (x, y), name in self.named:
            wide = _wide(name, 9.5)
            for left, middle in ((x + 6, y), (x - 6 - wide, y), (x - wide / 2, y - 10), (x - wide / 2, y + 10)):
                box = (left, middle - 5, left + wide, middle + 5)
                inside = c.left < box[0] and box[2] < c.x(1) and c.y(1) < box[1] and box[3] < c.y(0)
                if name and inside and not any(_overlap(box, other) for other in taken):
                    taken.append(box)
                    yield _text(name, left, middle + 3.4, class_="point-label", font_size=9.5, fill=SOFT, stroke=PAPER,
                                stroke_width=2.5, stroke_linejoin="round", paint_order="stroke")  # fmt: skip
                    break

    def svg(self, key: str, alone: bool) -> str:
        """All of it as one SVG; ``alone`` adds ground, size and title."""
        title = str(self.figure.get("title", ""))
        self.panel = self.panels - 1
        bottom = self.chart.y(0) + (38.0 if self.x.ticks else 24.0 if self.figure.get("x") else 10.0)
        above = 15.0 * len(self.title_rows) + 6 if alone else 0.0
        names = ", ".join(str(s["name"]) for s in self.figure["series"])
        parts = [
            _tag("title", _escaped(title or "figure"), id=f"{key}-title"),
            _tag("desc", _escaped(names), id=f"{key}-desc") if names else "",
        ]
        body = [*self._legend(), *(part for i in range(self.panels) for part in self._frame(i)), *self._diagonal(), *self.drawn]
        if not self.drawn:
            body.append(_text("there are no points", self.chart.x(0.5), self.chart.y(0.5), text_anchor="middle", fill=SOFT))
        size: dict[str, Any] = {}
        if alone:
            size = {
                "xmlns": "http://www.w3.org/2000/svg",
                "width": round(WIDTH * ENLARGED),
                "height": round((bottom + above) * ENLARGED),
                "font_family": FONT,
                "font_size": 11,
            }
            parts.append(_tag("rect", y=-above, width=WIDTH, height=bottom + above, fill=PAPER))
            for i, row in enumerate(self.title_rows):
                y = 15.0 * (i + 1) - above
                parts.append(_text(row, WIDTH / 2, y, text_anchor="middle", font_size=12.5, font_weight=600, fill=INK))
        box = f"0 {-above:g} {WIDTH:g} {bottom + above:g}"
        labelled = f"{key}-title {key}-desc" if names else f"{key}-title"
        return _tag("svg", *parts, *body, **size, viewBox=box, role="img", aria_labelledby=labelled)

    def _frame(self, panel: int) -> Iterable[str]:
        self.panel = panel
        c = self.chart
        for tick, label in zip(self.x.ticks, self.x.labels, strict=True):
            x = c.x(self.x.share(tick))
            yield _tag("line", class_="gridline", x1=x, x2=x, y1=c.y(0), y2=c.y(1), stroke=GRID)
            yield _text(label, x, c.y(0) + 15, text_anchor="middle", fill=SOFT)
        for tick, label in zip(self.y.ticks, self.y.labels, strict=True):
            y = c.y(self.y.share(tick))
            yield _tag("line", class_="gridline", x1=c.x(0), x2=c.x(1), y1=y, y2=y, stroke=GRID)
            yield _text(label, c.x(0) - 6, y + 4, text_anchor="end", fill=SOFT)
        yield _tag("rect", class_="frame", x=c.left, y=c.top, width=c.width, height=c.height, fill="none", stroke=LINE)
        x_title = str(self.figure.get("x", "")) + (", log scale" if self.x.log else "")
        y_title = _cut(str(self.figure.get("y", "")), c.height)
        yield _text(_cut(x_title, c.width), c.x(0.5), c.y(0) + (31 if self.x.ticks else 16), text_anchor="middle", fill=SOFT)
        beside = 12.0 if self.y.ticks else c.left - 8
        yield _text(y_title, None, None, transform=f"translate({beside:g} {c.y(0.5):g}) rotate(-90)", text_anchor="middle",
                    fill=SOFT)  # fmt: skip

    def _diagonal(self) -> Iterable[str]:
        low, high = max(self.x.low, self.y.low), min(self.x.high, self.y.high)
        if self.figure.get("diagonal") and low < high and not self.x.log:
            (x1, y1), (x2, y2) = self.at(low, low), self.at(high, high)
            yield _tag("line", class_="ideal", x1=x1, y1=y1, x2=x2, y2=y2, stroke=SOFT, stroke_dasharray="4 4")

    def _legend(self) -> Iterable[str]:
        for i, name, x, row in self.legend:
            y = 12.0 + 17 * row
            line = _tag("line", x1=x, x2=x + 26, y1=y, y2=y, stroke="currentColor", stroke_width=1.8,
                        stroke_dasharray=DASHES[i % len(DASHES)] or None) if self.lines else ""  # fmt: skip
            yield _series(i, line, _mark(i, x + 13, y, 1.5))
            yield _text(name, x + (31 if self.lines else 22), y + 4, class_="key", fill=SOFT)
        if self.levels:
            yield _text("correctness", 20, 16, class_="key", fill=SOFT)
            for k, (label, level) in enumerate(self.levels):
                x = 108.0 + 42 * k
                mark = _shape(f"M0 0{MARKS[level].shape}", MARKS[level].filled, transform=f"translate({x:g} 12) scale(1.5)")
                yield _level_group(level, mark)
                yield _text(label, x + 9, 16, class_="key", fill=SOFT)


def _legend(names: Sequence[str]) -> tuple[list[tuple[int, str, float, int]], int]:
    """Number, name, left end and row of each entry, and how many rows there are; no entry leaves the picture."""
    placed, x, row = [], 14.0, 0
    if not any(names):
        return [], 0
    for i, name in enumerate(names):
        shown = _cut(name, WIDTH - 62)
        wide = 31 + _wide(shown) + 12
        if x > 14 and x + wide > WIDTH:
            x, row = 14.0, row + 1
        placed.append((i, shown, x, row))
        x += wide
    return placed, row + 1


def _mark(i: int, x: float, y: float, size: float, words: str = "") -> str:
    mark = SHAPES[i % len(SHAPES)]
    return _shape(f"M0 0{mark.shape}", mark.filled, words, transform=f"translate({x:g} {y:g}) scale({size:.3g})")


def _shape(d: str, filled: bool, words: str = "", **more: Any) -> str:
    title = [_tag("title", _escaped(words))] if words else []
    if filled:
        return _tag("path", *title, d=d, fill="currentColor", **more)
    return _tag("path", *title, d=d, fill="none", stroke="currentColor", stroke_width=1.3, **more)


def _series(i: int, *inside: str, **more: Any) -> str:
    """What belongs to a series, in its colour; nothing if there is nothing."""
    number = i % len(COLOURS)
    return _tag("g", *inside, class_=f"s{number}", color=COLOURS[number][0], **more) if any(inside) else ""


def _level_group(level: int, drawn: str) -> str:
    return _tag("g", drawn, class_=f"k{level}", color=MARKS[level].light, opacity=0.75)


def _level(correctness: float) -> int:
    """The mark for a correctness, to the nearest 0.2; only never and always have those of 0 and 1."""
    step = 0 if correctness <= 0 else 5 if correctness >= 1 else min(max(math.floor(correctness * 5 + 0.5), 1), 4)
    return round(step * (len(MARKS) - 1) / 5)


# ---- points and words --------------------------------------------------------------------------------------------------


def _finite(points: Iterable[Sequence[float | None]]) -> list[list[float]]:
    """The points that can be drawn; one whose interval cannot keeps its place and loses the interval."""
    made = []
    for point in points:
        numbers = [math.nan if v is None else float(v) for v in point]
        if all(map(math.isfinite, numbers)):
            made.append(numbers)
        elif all(map(math.isfinite, numbers[:2])):
            made.append(numbers[:2])
    return made


def _unbroken(points: Iterable[Sequence[float | None]]) -> list[list[list[float]]]:
    """Runs of points without a gap between them."""
    parts: list[list[list[float]]] = [[]]
    for point in points:
        there = _finite([point])
        if there:
            parts[-1] += there
        else:
            parts.append([])
    return [part for part in parts if len(part) > 1]


def _heights(spans: Iterable[Iterable[Sequence[float]]]) -> list[float]:
    return [v for points in spans for p in points for v in (p[1], *p[2:4])]


def _joined(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _wide(words: str, size: float = 11.0) -> float:
    """About how wide words are, rather too wide than too narrow."""
    return size * sum(
        0.34 if c in "iljtf.,:;|'!()[] " else 1.05 if unicodedata.east_asian_width(c) in "WF" else 0.9 if c in "mwMW@%" else
        0.7 if c.isupper() else 0.58 for c in words
    )  # fmt: skip


def _cut(words: str, room: float, size: float = 11.0) -> str:
    """Words that fit into a room, the rest as dots."""
    if _wide(words, size) <= room:
        return words
    while words and _wide(words + "…", size) > room:
        words = words[:-1]
    return words.rstrip() + "…"


def _wrapped(words: str, room: float, size: float) -> list[str]:
    rows: list[str] = []
    for word in words.split():
        if rows and _wide(f"{rows[-1]} {word}", size) <= room:
            rows[-1] += f" {word}"
        else:
            rows.append(_cut(word, room, size))
    return rows


def _escaped(words: str) -> str:
    return escape(one_line(words, 500).replace("\ufffe", "").replace("\uffff", ""))


def _text(words: str, x: float | None, y: float | None, **attributes: Any) -> str:
    return _tag("text", _escaped(words), x=x, y=y, **attributes) if words else ""


def _tag(name: str, *inside: str, **attributes: Any) -> str:
    """An element; ``stroke_width`` stands for stroke-width, ``class_`` for class, and what is None is left out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(f"{value:.6g}" if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{said}>{''.join(inside)}</{name}>" if inside else f"<{name}{said}/>"
