"""The charts of a study: lines, bars, scatters, reliability diagrams, projections and data maps.

To add a kind, write a function ``(chart, key) -> str`` and enter it in ``CHARTS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat

import numpy as np

from distilcal.report.charts.marks import INK, LINE, MARKS, MOST_POINTS, correctness_level
from distilcal.report.charts.plot import WIDTH, Chart, Plot, level_group, series_group
from distilcal.report.charts.scales import Axis, axis_of, is_geometric, unit_axis, variability_end, variability_ticks
from distilcal.report.charts.svg import element, escaped, polyline_points, text_element, truncate
from distilcal.selective import counted

BAND = 8  # a line with so many points has its intervals as a band, one with fewer as whiskers
MANY = 400  # points: then smaller marks, drawn together, without words of their own
LABELLED = 40  # points of a scatter that may carry their names, and of a line that may carry marks
STAR = "M0 -8L1.9 -2.5H7.6L3 1L4.7 6.5L0 3.2L-4.7 6.5L-3 1L-7.6 -2.5H-1.9Z"  # about its centre
BARS = 0.84  # of the room of a group that its bars take


def draw(chart: Chart, key: str = "chart") -> str:
    """Return a chart of any kind as SVG.

    Parameters
    ----------
    chart : dict
        ``kind`` (a key of ``CHARTS``), ``series`` (each with ``name`` and ``points``) and optionally ``title`` and the titles
        ``x`` and ``y`` of the axes. A point is a sequence of numbers, None where one is missing; each kind's function
        describes it.
    key : str
        Prefix of the ids in the SVG, unique on its page.

    Returns
    -------
    str
        An ``svg`` element.

    Raises
    ------
    KeyError
        If the kind is unknown.
    """
    return CHARTS[chart["kind"]](chart, key)


def line_chart(chart: Chart, key: str = "chart") -> str:
    """Return a chart with a line for each series, its intervals as whiskers or as a band; a long line has no marks.

    A missing point leaves a gap. The x axis is logarithmic where its values grow by factors.

    Parameters
    ----------
    chart : dict
        A chart as in ``draw``; points are (x, y) or (x, y, low, high).
    key : str
        Prefix of the ids in the SVG.

    Returns
    -------
    str
        An ``svg`` element.
    """
    spans = [finite_points(s["points"]) for s in chart["series"]]
    across = [p[0] for points in spans for p in points]
    x, y = axis_of(across, whole=True, log=is_geometric(across)), axis_of(heights(spans), zero=True)
    plot = Plot(chart, x, y, lines=True)
    for i, series in enumerate(chart["series"]):
        drawn = finite_points(series["points"])
        ranges = [p for p in drawn if len(p) > 3]
        inside = []
        if len(ranges) >= BAND:
            edge = [plot.at(p[0], p[3]) for p in ranges] + [plot.at(p[0], p[2]) for p in reversed(ranges)]
            inside.append(element("polygon", points=polyline_points(edge), fill="currentColor", opacity=0.13))
        else:
            inside += [plot.whisker(p) for p in ranges]
        inside += [plot.line(i, part) for part in unbroken_runs(series["points"])]
        if len(drawn) <= LABELLED:
            inside += [plot.mark(i, p, plot.tooltip(series, p)) for p in drawn]
        plot.add(series_group(i, *inside))
    return plot.svg(key)


def bar_chart(chart: Chart, key: str = "chart") -> str:
    """Return a chart with a group of bars for each place, one bar for each series, with its interval.

    Parameters
    ----------
    chart : dict
        A chart as in ``draw``, with ``groups``, the names of the groups; points are (number of the group, y) or (number, y,
        low, high).
    key : str
        Prefix of the ids in the SVG.

    Returns
    -------
    str
        An ``svg`` element. Bars begin at 0.
    """
    spans = [finite_points(s["points"]) for s in chart["series"]]
    groups = [str(name) for name in chart.get("groups") or ()]
    room = (WIDTH - 60) / max(len(groups), 1)
    names = tuple(truncate(name, room) for name in groups)
    x = Axis(-0.5, max(len(groups), 1) - 0.5, tuple(range(len(groups))), names=names)
    plot = Plot(chart, x, axis_of([0.0, *heights(spans)]))
    width = BARS / max(len(spans), 1)
    for i, (series, points) in enumerate(zip(chart["series"], spans, strict=True)):
        shift = (i - (len(spans) - 1) / 2) * width
        inside = []
        for number, y, *bounds in points:
            left, top = plot.at(number + shift - width / 2, max(y, 0.0))
            right, bottom = plot.at(number + shift + width / 2, min(y, 0.0))
            named = ", ".join(filter(None, (str(series["name"]), *groups[int(number) : int(number) + 1])))
            span = f" [{bounds[0]:.4g}, {bounds[1]:.4g}]" if len(bounds) > 1 else ""
            title = element("title", escaped(f"{named}: {chart.get('y') or 'y'} {y:.4g}{span}"))
            bar = {"x": left, "y": top, "width": right - left, "height": bottom - top}
            inside.append(element("rect", title, **bar, fill="currentColor", opacity=0.8))
            if len(bounds) > 1:
                inside.append(plot.whisker((number + shift, y, *bounds)))
        plot.add(series_group(i, *inside))
    return plot.svg(key)


def scatter_chart(chart: Chart, key: str = "chart") -> str:
    """Return a chart with a mark for each point, with its interval, and its label where there is room.

    Parameters
    ----------
    chart : dict
        A chart as in ``draw``; points are (x, y), (x, y, low, high) or (x, y, low, high, left, right). A series may have
        ``labels``, one for each point.
    key : str
        Prefix of the ids in the SVG.

    Returns
    -------
    str
        An ``svg`` element. Above ``MANY`` points marks are small and have neither intervals nor tooltips; above
        ``LABELLED`` they have no labels.
    """
    spans = [finite_points(s["points"]) for s in chart["series"]]
    across = [x for points in spans for p in points for x in (p[0], *p[4:6])]
    plot = Plot(chart, axis_of(across), axis_of(heights(spans)))
    many = sum(map(len, spans)) > MANY
    for i, (series, points) in enumerate(zip(chart["series"], spans, strict=True)):
        if many:
            plot.add(series_group(i, plot.cloud(i, points) if points else ""))
            continue
        labels = chain(series.get("labels") or [], repeat(""))
        names = [str(name) for point, name in zip(series["points"], labels, strict=False) if finite_points([point])]
        whiskers = [plot.whisker(p) for p in points if len(p) > 3]
        whiskers += [plot.level_whisker(p) for p in points if len(p) > 5]
        marks = [plot.mark(i, p, plot.tooltip(series, p, name)) for p, name in zip(points, names, strict=True)]
        plot.add(series_group(i, *whiskers, *marks))
        plot.named += [(plot.at(p[0], p[1]), name) for p, name in zip(points, names, strict=True)]
    if sum(map(len, spans)) <= LABELLED:
        plot.add(*plot.labels())
    return plot.svg(key)


def reliability_chart(chart: Chart, key: str = "chart") -> str:
    """Return a chart of accuracy over confidence by bin, with intervals; marks grow with the rows of their bin.

    Parameters
    ----------
    chart : dict
        A chart as in ``draw``; points are (confidence, accuracy), optionally with the interval's low and high, and then the
        number of rows in the bin.
    key : str
        Prefix of the ids in the SVG.

    Returns
    -------
    str
        An ``svg`` element.
    """
    unit = unit_axis()
    plot = Plot({"x": "confidence", "y": "accuracy", **chart, "diagonal": True}, unit, unit, height=264.0, lines=True)
    spans = [finite_points(s["points"]) for s in chart["series"]]
    most = max((p[4] for points in spans for p in points if len(p) > 4), default=1.0) or 1.0
    for i, (series, points) in enumerate(zip(chart["series"], spans, strict=True)):
        sizes = [0.7 + 0.9 * math.sqrt(p[4] / most) if len(p) > 4 else 1.2 for p in points]
        titles = [plot.tooltip(series, p, counted(int(p[4])) if len(p) > 4 else "") for p in points]
        line = plot.line(i, points, stroke_width=1.2, opacity=0.75) if points else ""
        marks = [plot.mark(i, p, title, size) for p, title, size in zip(points, titles, sizes, strict=True)]
        plot.add(series_group(i, *(plot.whisker(p) for p in points if len(p) > 3), line, *marks))
    return plot.svg(key)


def projection_chart(chart: Chart, key: str = "chart") -> str:
    """Return a chart of points in a plane whose axes have no meaning: without numbers, at equal scale on both axes.

    Parameters
    ----------
    chart : dict
        A chart as in ``draw``; points are (x, y). A series may have a ``centre``, which is drawn as a star.
    key : str
        Prefix of the ids in the SVG.

    Returns
    -------
    str
        An ``svg`` element.
    """
    spans = [finite_points(s["points"]) for s in chart["series"]]
    places = np.array([p[:2] for points in spans for p in points] or [[0.0, 0.0]])
    low, high = places.min(axis=0), places.max(axis=0)
    middle, half = (low + high) / 2, max(float((high - low).max()), 1e-9) * 0.53
    x, y = (Axis(float(m) - half, float(m) + half, ()) for m in middle)
    plot = Plot(chart, x, y, height=280.0, width=280.0)
    many = len(places) > MANY
    for i, (series, points) in enumerate(zip(chart["series"], spans, strict=True)):
        marks = [plot.cloud(i, points)] if many and points else [plot.mark(i, p, str(series["name"]), 0.9) for p in points]
        plot.add(series_group(i, *marks, opacity=0.8))
    for i, series in enumerate(chart["series"]):
        if series.get("centre"):
            left, top = plot.at(*series["centre"])
            title = element("title", escaped(f"mean of {series['name']}"))
            moved = f"translate({left:g} {top:g})"
            star = element("path", title, d=STAR, fill="currentColor", stroke="#ffffff", transform=moved)
            plot.add(series_group(i, star))
    return plot.svg(key)


def map_chart(chart: Chart, key: str = "chart") -> str:
    """Return a data map: confidence over variability, with marks by correctness and one panel below the other for each series.

    Parameters
    ----------
    chart : dict
        A chart as in ``draw``; points are (variability, confidence, correctness), others are left out.
    key : str
        Prefix of the ids in the SVG.

    Returns
    -------
    str
        An ``svg`` element. Of a series with more than ``MOST_POINTS`` points, so many are drawn, chosen at random with a
        fixed seed.
    """
    spans = [np.array([p for p in finite_points(s["points"]) if len(p) == 3]).reshape(-1, 3) for s in chart["series"]]
    widest = max((float(points[:, 0].max()) for points in spans if len(points)), default=0.0)
    end = variability_end(widest)
    room = 0.02  # so that marks at the ends are whole
    x = Axis(-room * end, (1 + room) * end, variability_ticks(end))
    y = unit_axis(room)
    named = {"x": "variability", "y": "confidence", **chart, "series": ()}
    plot = Plot(
        named, x, y, height=250.0, panels=max(len(spans), 1), key=[(f"{i / 5:g}", correctness_level(i / 5)) for i in range(6)]
    )
    mean = np.linspace(0, 1, 201)
    spread = np.sqrt(mean * (1 - mean))  # no example can lie further right, whatever the model says
    for i, points in enumerate(spans):
        plot.panel = i
        for half in (mean <= 0.5, mean >= 0.5):
            edge = [plot.at(s, c) for s, c in zip(spread[half], mean[half], strict=True) if s <= end]
            plot.add(element("polyline", class_="frame", points=polyline_points(edge), fill="none", stroke=LINE))
        rows = np.random.default_rng(0).permutation(len(points))[:MOST_POINTS]  # shuffled, so that no level lies on top
        for part in np.array_split(rows, max(1, len(rows) // 200)):
            levels = np.array([correctness_level(c) for c in points[part, 2]])
            for level in np.unique(levels).tolist():
                plot.add(level_group(level, plot.shapes(MARKS[level], points[part[levels == level]].tolist())))
        if len(spans) > 1:
            name = truncate(str(chart["series"][i]["name"]), plot.frame.width)
            plot.add(text_element(name, plot.frame.left, plot.frame.top - 6, class_="key", font_weight=600, fill=INK))
    return plot.svg(key)


CHARTS: dict[str, Callable[[Chart, str], str]] = {
    "line": line_chart,
    "bars": bar_chart,
    "scatter": scatter_chart,
    "reliability": reliability_chart,
    "projection": projection_chart,
    "map": map_chart,
}


def finite_points(points: Iterable[Sequence[float | None]]) -> list[list[float]]:
    """Return the points that can be drawn; one whose interval is not finite is kept without it.

    Parameters
    ----------
    points : iterable of sequence of float or None
        Points as (x, y, ...); None, NaN and infinity cannot be drawn.

    Returns
    -------
    list of list of float
        Points with all their numbers, or with x and y alone.

    Examples
    --------
    >>> finite_points([(1, 2, 1, 3), (2, 5, None, None), (3, None)])
    [[1.0, 2.0, 1.0, 3.0], [2.0, 5.0]]
    """
    drawn = []
    for point in points:
        numbers = [math.nan if v is None else float(v) for v in point]
        if all(map(math.isfinite, numbers)):
            drawn.append(numbers)
        elif all(map(math.isfinite, numbers[:2])):
            drawn.append(numbers[:2])
    return drawn


def unbroken_runs(points: Iterable[Sequence[float | None]]) -> list[list[list[float]]]:
    """Return the runs of at least two points without a gap between them.

    Parameters
    ----------
    points : iterable of sequence of float or None
        Points as in ``finite_points``; one that cannot be drawn is a gap.

    Returns
    -------
    list of list of list of float
        The points of each run.

    Examples
    --------
    >>> unbroken_runs([(0, 1), (1, 2), (2, None), (3, 4)])
    [[[0.0, 1.0], [1.0, 2.0]]]
    """
    parts: list[list[list[float]]] = [[]]
    for point in points:
        drawn = finite_points([point])
        if drawn:
            parts[-1] += drawn
        else:
            parts.append([])
    return [part for part in parts if len(part) > 1]


def heights(spans: Iterable[Iterable[Sequence[float]]]) -> list[float]:
    """Return all y values with the ends of their intervals.

    Parameters
    ----------
    spans : iterable of iterable of sequence of float
        The points of each series, as (x, y) or (x, y, low, high, ...).

    Returns
    -------
    list of float
        The values, in the order of the points.

    Examples
    --------
    >>> heights([[(0.0, 1.0, 0.5, 1.5)], [(0.0, 2.0)]])
    [1.0, 0.5, 1.5, 2.0]
    """
    return [v for points in spans for p in points for v in (p[1], *p[2:4])]
