"""The data map as a page.

Here the numbers are turned into shapes in chart coordinates; ``map_charts.jinja`` draws them, ``map.html.jinja`` lays
them out. Jinja escapes all text. To add a chart, write a function from a ``DataMap`` to its shapes, a macro in
``map_charts.jinja`` that draws them, and pass them in ``render_map``.
"""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal import __version__
from distilcal.dynamics.data_map import DataMap, RowIndices, median_of
from distilcal.report.charts.frame import Frame
from distilcal.report.charts.marks import MARKS, MOST_POINTS
from distilcal.report.charts.scales import Axis, round_step, unit_axis, variability_end, variability_ticks
from distilcal.report.evaluations.page import MOST_CLASSES
from distilcal.report.formatting import one_line
from distilcal.report.html import render_template, write_text
from distilcal.report.maps import example_text, next_steps, reading, region_rows, shown_classes
from distilcal.selective import counted

LISTED_EXAMPLES = 20  # examples in each list of the page; twice as many pictures at most
THUMBNAIL = 96  # pixels: longest side of a small picture
REGION_TITLES = {"easy": "easy-to-learn", "ambiguous": "ambiguous", "hard": "hard-to-learn"}
MAP = Frame(left=58.0, top=50.0, width=528.0, height=440.0)
SMALL = Frame(left=52.0, top=26.0, width=236.0, height=96.0)
AUM = Frame(left=58.0, top=40.0, width=528.0, height=180.0)
ROOM = 0.02  # of the plot on every side, so that marks at 0 and 1 are whole
LABEL = (136.0, 24.0)  # room for the name of a region


def write_map_page(data_map: DataMap, path: Path) -> None:
    """Write the map as one self-contained page, whole or not at all.

    Parameters
    ----------
    data_map : DataMap
        The map.
    path : Path
        The HTML file.
    """
    write_text(render_map(data_map), path)


def render_map(data_map: DataMap) -> str:
    """Return the page of a map as HTML.

    Parameters
    ----------
    data_map : DataMap
        The map.

    Returns
    -------
    str
    """
    classes = _class_rows(data_map)
    are = "is" if len(data_map.doubtful) == 1 else "are"
    return render_template(
        "map.html.jinja",
        m=data_map,
        name=one_line(data_map.name, 200),
        why_not=one_line(data_map.why_not, 500),
        d=data_map.dynamics,
        reading=list(reading(data_map)),
        next_steps=list(next_steps(data_map)),
        picture=_picture(data_map, titles=True),
        histograms=_histograms(data_map),
        aum=_aum_chart(data_map),
        marks=MARKS,
        medians={key: median_of(getattr(data_map.dynamics, key)) for key in ("confidence", "variability", "aum")},
        region_rows=region_rows(data_map),
        classes=classes[:MOST_CLASSES],
        more_classes=len(classes) - len(classes[:MOST_CLASSES]),
        lists=[
            {
                "id": "doubtful",
                "title": "Most doubtful labels",
                "caption": f"Lowest AUM first; {counted(len(data_map.doubtful), 'example')} {are} below 0. "
                "Candidates to read, not errors: hard examples stand here too.",
                "rows": [_example_row(data_map, row) for row in data_map.by_aum[:LISTED_EXAMPLES].tolist()],
            },
            {
                "id": "ambiguous",
                "title": "Most ambiguous",
                "caption": "Highest variability first: the model changed its mind about these.",
                "rows": [_example_row(data_map, row) for row in data_map.regions["ambiguous"][:LISTED_EXAMPLES].tolist()],
            },
        ],
        version=__version__,
    )


def _picture(data_map: DataMap, *, titles: bool, seed: int = 0) -> dict[str, Any]:
    """The map itself: a point per example at (variability, confidence), its mark by correctness."""
    dynamics = data_map.dynamics
    rows = np.random.default_rng(seed).permutation(len(data_map))[:MOST_POINTS]  # shuffled, so that no level lies on top
    top = variability_end(float(dynamics.variability.max()))
    names, level, rounded = _levels(data_map)
    points = []
    for row in rows.tolist():
        point = {
            "x": _across(float(dynamics.variability[row]) / top),
            "y": _up(float(dynamics.confidence[row])),
            "level": int(level[row]),
            "title": _point_title(data_map, row) if titles else "",
        }
        points.append(point)
    margin = ROOM / (1 - 2 * ROOM)  # of the axes, as a share of their length without it
    x_axis = Axis(-margin * top, (1 + margin) * top, variability_ticks(top))
    return {
        "chart": MAP,
        "points": points,
        "shown": len(points),
        "seed": seed,
        "x_ticks": MAP.x_ticks(x_axis),
        "y_ticks": MAP.y_ticks(unit_axis(margin)),
        "legend": [{"x": 176 + 60 * i, "level": mark, "label": label} for i, (label, mark) in enumerate(names)],
        "labels": _region_labels(data_map, np.array([(point["x"], point["y"]) for point in points]), top),
        "bounds": _bounds(data_map, top),
        "limit": _limit(top),
        "rounded": rounded,
    }


def _across(share: float) -> float:
    return MAP.x(ROOM + (1 - 2 * ROOM) * share)


def _up(share: float) -> float:
    return MAP.y(ROOM + (1 - 2 * ROOM) * share)


def _levels(data_map: DataMap) -> tuple[list[tuple[str, int]], RowIndices, bool]:
    """Levels of correctness with their marks, the mark of each example, and whether correctness was rounded.

    Where all examples have the same few epochs there is a level for each count, as in the paper's figures. Elsewhere
    correctness is rounded to the nearest 0.2, where 0 and 1 are left for never and always.
    """
    epochs = data_map.dynamics.epochs
    rounded = bool(epochs.min() != epochs.max() or epochs.max() >= len(MARKS))
    steps = 5 if rounded else int(epochs.max())
    step = np.floor(data_map.right * steps + 0.5).astype(np.int64)
    if rounded:
        step = step.clip(1, steps - 1)
        step[data_map.right <= 0] = 0
        step[data_map.right >= 1] = steps
    marks = np.round(np.arange(steps + 1) * (len(MARKS) - 1) / steps).astype(np.int64)
    digits = 1 if rounded else 2
    names = [(f"{round(i / steps, digits):g}", int(marks[i])) for i in range(steps + 1)]
    return names, marks[step], rounded


def _point_title(data_map: DataMap, row: int) -> str:
    dynamics = data_map.dynamics
    text = example_text(data_map, row, 100)
    label = one_line(dynamics.classes[int(dynamics.labels[row])], 200)
    title = (
        f"{one_line(str(dynamics.ids[row]), 60)}: {label}, right in {dynamics.correctness[row]} of {dynamics.epochs[row]}, "
        f"confidence {dynamics.confidence[row]:.3f}, variability {dynamics.variability[row]:.3f}, AUM {dynamics.aum[row]:.2f}"
    )
    return f"{title} – {text}" if text else title


def _bounds(data_map: DataMap, top: float) -> list[dict[str, float]]:
    """Lines where the regions begin. Disjoint ones leave to the ambiguous what is right of their line."""
    dynamics = data_map.dynamics
    lines = []
    easy, ambiguous, hard = (data_map.regions[name] for name in REGION_TITLES)
    end = _across(1.0)
    if len(ambiguous):
        x = _across(float(dynamics.variability[ambiguous[-1]]) / top)
        lines.append({"x1": x, "x2": x, "y1": _up(0.0), "y2": _up(1.0)})
        if data_map.disjoint:
            end = x
    for rows in (easy, hard):
        if len(rows):
            y = _up(float(dynamics.confidence[rows[-1]]))
            lines.append({"x1": _across(0.0), "x2": end, "y1": y, "y2": y})
    return lines


def _limit(top: float) -> list[str]:
    """σ ≤ √(μ(1 − μ)): no example can lie further right, whatever the model. Two branches where the axis ends before."""
    mean = np.linspace(0, 1, 201)
    spread = np.sqrt(mean * (1 - mean))
    inside = spread <= top + 1e-9
    branches = []
    for rows in (inside & (mean <= 0.5), inside & (mean >= 0.5)):
        points = zip(spread[rows].tolist(), mean[rows].tolist(), strict=True)
        branches.append(" ".join(f"{_across(x / top)},{_up(y)}" for x, y in points))
    return branches


def _region_labels(data_map: DataMap, points: NDArray[np.float64], top: float) -> list[dict[str, Any]]:
    """The names of the regions, each near the middle of its own where it hides few points and no other name."""
    width, height = LABEL
    x, y = np.meshgrid(np.arange(MAP.left + 6, MAP.x(1) - width - 6, 8.0), np.arange(MAP.top + 6, MAP.y(0) - height - 6, 8.0))
    x, y = x.ravel(), y.ravel()  # upper left corners that a name could have
    across = (points[:, 0] >= x[:, None]) & (points[:, 0] <= x[:, None] + width)
    hidden = (across & (points[:, 1] >= y[:, None]) & (points[:, 1] <= y[:, None] + height)).mean(axis=1)
    free = np.ones(len(x), dtype=bool)
    placed = []
    for name, title in REGION_TITLES.items():
        rows = data_map.regions[name]
        if not len(rows):
            continue
        dynamics = data_map.dynamics
        centre = _across(median_of(dynamics.variability[rows]) / top), _up(median_of(dynamics.confidence[rows]))
        away = np.hypot(x + width / 2 - centre[0], y + height / 2 - centre[1])
        best = int(np.where(free, 2500 * hidden + away, np.inf).argmin())
        placed.append({"x": round(x[best] + width / 2, 1), "y": round(y[best] + height - 7, 1), "title": title})
        free &= (np.abs(x - x[best]) > width) | (np.abs(y - y[best]) > height + 6)
    return placed


def _histograms(data_map: DataMap) -> list[dict[str, Any]]:
    """How many examples have which confidence, variability and correctness: all of them, not only those drawn."""
    dynamics = data_map.dynamics
    top = variability_end(float(dynamics.variability.max()))
    return [
        _histogram("confidence", dynamics.confidence, unit_axis()),
        _histogram("variability", dynamics.variability, Axis(0.0, top, variability_ticks(top))),
        _correctness_histogram(data_map),
    ]


def _correctness_histogram(data_map: DataMap) -> dict[str, Any]:
    """A bar for each level of correctness, in the colour of its mark."""
    names, level, _ = _levels(data_map)
    counts = [int((level == mark).sum()) for _, mark in names]
    most = max(*counts, 1)
    width = 1 / len(names)
    bars, ticks = [], []
    for i, ((name, mark), count) in enumerate(zip(names, counts, strict=True)):
        title = f"correctness {name}: {counted(count, 'example')}"
        bars.append(_bar(SMALL, (i + 0.15) * width, (i + 0.85) * width, count / most, title, mark))
        ticks.append({"x": SMALL.x((i + 0.5) * width), "label": name})
    return {"chart": SMALL, "title": "correctness", "bars": bars, "ticks": ticks, "most": most}


def _histogram(title: str, values: NDArray[Any], axis: Axis, bins: int = 25) -> dict[str, Any]:
    low, high = axis.low, axis.high
    counts, edges = np.histogram(np.clip(values, low, high), bins=bins, range=(low, high))
    most = max(int(counts.max()), 1)
    shares = (edges - low) / (high - low)
    bars = []
    for i, count in enumerate(counts.tolist()):
        bar_title = f"{title} {edges[i]:.3g} to {edges[i + 1]:.3g}: {counted(count, 'example')}"
        bars.append(_bar(SMALL, shares[i], shares[i + 1], count / most, bar_title))
    return {"chart": SMALL, "title": title, "bars": bars, "ticks": SMALL.x_ticks(axis), "most": most}


def _bar(chart: Frame, left: float, right: float, share: float, title: str, level: int | None = None) -> dict[str, Any]:
    x, y = chart.x(left), chart.y(share)
    return {
        "x": round(x + 0.4, 2),
        "width": round(chart.x(right) - x - 0.8, 2),
        "y": y,
        "height": round(chart.y(0) - y, 2),
        "title": title,
        "level": level,
    }


def _aum_chart(data_map: DataMap) -> dict[str, Any]:
    """AUM in about fifty bins with an edge at 0, and its median."""
    aum = np.asarray(data_map.dynamics.aum, dtype=np.float64)
    low, high = min(float(aum.min()), 0.0), max(float(aum.max()), 0.0)
    width = max(high - low, 1e-6) / 50
    first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    last = max(last, first + 1)
    low, high = first * width, last * width
    counts, edges = np.histogram(aum.clip(low, high), bins=last - first, range=(low, high))
    most = max(int(counts.max()), 1)
    median = float(np.median(aum))

    def share(value: float) -> float:
        return (value - low) / (high - low)

    bars = []
    for left, right, count in zip(edges[:-1], edges[1:], counts.tolist(), strict=True):
        title = f"AUM {left:.2f} to {right:.2f}: {counted(count, 'example')}"
        bar = _bar(AUM, share(left), share(right), count / most, title)
        bars.append({**bar, "below": (left + right) / 2 < 0})
    step = round_step((high - low) / 7)
    ticks = np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step
    axis = Axis(low, high, tuple(ticks.round(12).tolist()))
    return {
        "chart": AUM,
        "bars": bars,
        "ticks": AUM.x_ticks(axis),
        "most": most,
        "zero": AUM.x(share(0.0)),
        "median": AUM.x(share(median)),
        "median_label": f"median {median:.2f}",
        # The labels stand on those sides of their lines where they are apart and inside the chart.
        "median_left": share(median) > 0.75 or (median < 0 and share(median) > 0.25),
        "zero_left": median > 0 and share(0.0) > 0.05,
    }


def _class_rows(data_map: DataMap) -> list[dict[str, Any]]:
    """Each class: its share of all examples and of every region, most over-represented among the hard first."""
    dynamics = data_map.dynamics
    count = np.bincount(dynamics.labels, minlength=len(dynamics.classes))
    right = np.bincount(dynamics.labels, weights=data_map.right, minlength=len(dynamics.classes)) / np.maximum(count, 1)
    doubtful = np.bincount(dynamics.labels[data_map.doubtful], minlength=len(dynamics.classes))
    share = {"all": data_map.class_shares(), **{name: data_map.class_shares(rows) for name, rows in data_map.regions.items()}}
    rows = [
        {
            "name": name,
            "count": int(count[k]),
            "shares": [float(values[k]) for values in share.values()],
            "right": float(right[k]) if count[k] else math.nan,
            "doubtful": int(doubtful[k]),
        }
        for k, name in enumerate(shown_classes(data_map))
    ]
    return sorted(rows, key=lambda row: row["shares"][0] - row["shares"][-1])


def _example_row(data_map: DataMap, row: int) -> dict[str, Any]:
    dynamics = data_map.dynamics
    return {
        "id": one_line(str(dynamics.ids[row]), 60),
        "text": example_text(data_map, row, 400),
        "picture": _thumbnail(data_map, row),
        "label": one_line(dynamics.classes[int(dynamics.labels[row])], 200),
        "says": one_line(dynamics.classes[int(data_map.predicted[row])], 200),
        "agrees": int(data_map.predicted[row]) == int(dynamics.labels[row]),
        "confidence": float(dynamics.confidence[row]),
        "variability": float(dynamics.variability[row]),
        "right": f"{dynamics.correctness[row]} of {dynamics.epochs[row]}",
        "aum": float(dynamics.aum[row]),
    }


def _thumbnail(data_map: DataMap, row: int) -> str:
    """An image as the data URL of a PNG; empty where there is none, or no Pillow."""
    if data_map.examples is None or data_map.examples.picture is None:
        return ""
    try:
        from PIL import Image
    except ImportError:
        return ""
    picture = Image.fromarray(data_map.examples.picture(row))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
