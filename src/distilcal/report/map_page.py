"""The data map as a page.

Here the numbers are turned into shapes in chart coordinates; ``map_charts.jinja`` draws them, ``map.html.jinja`` lays
them out. Jinja escapes all text. To add a chart, write a function from a ``DataMap`` to its shapes, draw
them by a macro in ``map_charts.jinja`` and hand them over in ``render_map``.
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

READ_FIRST = 20  # examples in each list of the page; twice as many pictures at most
SIDE = 96  # pixels of a small picture
TITLES = {"easy": "easy-to-learn", "ambiguous": "ambiguous", "hard": "hard-to-learn"}


MAP = Frame(left=58.0, top=50.0, width=528.0, height=440.0)
SMALL = Frame(left=52.0, top=26.0, width=236.0, height=96.0)
AUM = Frame(left=58.0, top=40.0, width=528.0, height=180.0)
ROOM = 0.02  # of the plot on every side, so that marks at 0 and 1 are whole
LABEL = (136.0, 24.0)  # room for the name of a region


def write_map_page(m: DataMap, path: Path) -> None:
    """One self-contained page, written aside and renamed."""
    write_text(render_map(m), path)


def render_map(m: DataMap) -> str:
    """The page as text."""
    classes = _class_rows(m)
    return render_template(
        "map.html.jinja",
        m=m,
        name=one_line(m.name, 200),
        why_not=one_line(m.why_not, 500),
        d=m.dynamics,
        reading=list(reading(m)),
        next_steps=list(next_steps(m)),
        picture=_picture(m, titles=True),
        histograms=_histograms(m),
        aum=_aum_chart(m),
        marks=MARKS,
        medians={key: median_of(getattr(m.dynamics, key)) for key in ("confidence", "variability", "aum")},
        region_rows=region_rows(m),
        classes=classes[:MOST_CLASSES],
        more_classes=len(classes) - len(classes[:MOST_CLASSES]),
        lists=[
            {
                "id": "doubtful",
                "title": "Most doubtful labels",
                "caption": f"Lowest AUM first; {counted(len(m.doubtful), 'example')} {'is' if len(m.doubtful) == 1 else 'are'} "
                "below 0. Candidates to read, not errors: hard examples stand here too.",
                "rows": [_read_row(m, row) for row in m.by_aum[:READ_FIRST].tolist()],
            },
            {
                "id": "ambiguous",
                "title": "Most ambiguous",
                "caption": "Highest variability first: the model changed its mind about these.",
                "rows": [_read_row(m, row) for row in m.regions["ambiguous"][:READ_FIRST].tolist()],
            },
        ],
        version=__version__,
    )


def _picture(m: DataMap, *, titles: bool, seed: int = 0) -> dict[str, Any]:
    """The map itself: a point per example at (variability, confidence), its mark by correctness."""
    d = m.dynamics
    rows = np.random.default_rng(seed).permutation(len(m))[:MOST_POINTS]  # shuffled, so that no level lies on top
    top = variability_end(float(d.variability.max()))
    names, level, rounded = _levels(m)
    place = [(_across(v / top), _up(c)) for v, c in zip(d.variability[rows].tolist(), d.confidence[rows].tolist(), strict=True)]
    points = [
        {"x": x, "y": y, "level": int(level[row]), "title": _point_title(m, row) if titles else ""}
        for (x, y), row in zip(place, rows.tolist(), strict=True)
    ]
    x_axis = Axis(-ROOM / (1 - 2 * ROOM) * top, (1 + ROOM / (1 - 2 * ROOM)) * top, variability_ticks(top))
    return {
        "chart": MAP,
        "points": points,
        "shown": len(points),
        "seed": seed,
        "x_ticks": MAP.x_ticks(x_axis),
        "y_ticks": MAP.y_ticks(unit_axis(ROOM / (1 - 2 * ROOM))),
        "legend": [{"x": 176 + 60 * i, "level": used, "label": label} for i, (label, used) in enumerate(names)],
        "labels": _region_labels(m, np.array(place), top),
        "bounds": _bounds(m, top),
        "limit": _limit(top),
        "rounded": rounded,
    }


def _across(share: float) -> float:
    return MAP.x(ROOM + (1 - 2 * ROOM) * share)


def _up(share: float) -> float:
    return MAP.y(ROOM + (1 - 2 * ROOM) * share)


def _levels(m: DataMap) -> tuple[list[tuple[str, int]], RowIndices, bool]:
    """Levels of correctness with their marks, the mark of each example, and whether correctness was rounded.

    Where all examples have the same few epochs there is a level for each count, as in the paper's figures. Elsewhere
    correctness is told to the nearest 0.2, and 0 and 1 stand for never and always.
    """
    epochs = m.dynamics.epochs
    few = int(epochs.max()) if epochs.min() == epochs.max() and epochs.max() < len(MARKS) else 0
    steps = few or 5
    step = np.floor(m.right * steps + 0.5).astype(np.int64)
    if not few:
        step = np.where(m.right <= 0, 0, np.where(m.right >= 1, steps, step.clip(1, steps - 1)))
    used = np.round(np.arange(steps + 1) * (len(MARKS) - 1) / steps).astype(np.int64)
    names = [(f"{round(i / steps, 2 if few else 1):g}", int(used[i])) for i in range(steps + 1)]
    return names, used[step], not few


def _point_title(m: DataMap, row: int) -> str:
    d = m.dynamics
    text = example_text(m, row, 100)
    label = one_line(d.classes[int(d.labels[row])], 200)
    return (
        f"{one_line(str(d.ids[row]), 60)}: {label}, right in {d.correctness[row]} of {d.epochs[row]}, "
        f"confidence {d.confidence[row]:.3f}, variability {d.variability[row]:.3f}, AUM {d.aum[row]:.2f}"
        + (f" – {text}" if text else "")
    )


def _bounds(m: DataMap, top: float) -> list[dict[str, float]]:
    """Lines where the regions begin. Disjoint ones leave to the ambiguous what is right of their line."""
    d, lines = m.dynamics, []
    easy, ambiguous, hard = (m.regions[name] for name in TITLES)
    end = _across(1.0)
    if len(ambiguous):
        x = _across(float(d.variability[ambiguous[-1]]) / top)
        lines.append({"x1": x, "x2": x, "y1": _up(0.0), "y2": _up(1.0)})
        end = x if m.disjoint else end
    for rows in (easy, hard):
        if len(rows):
            y = _up(float(d.confidence[rows[-1]]))
            lines.append({"x1": _across(0.0), "x2": end, "y1": y, "y2": y})
    return lines


def _limit(top: float) -> list[str]:
    """σ ≤ √(μ(1 − μ)): no example can lie further right, whatever the model says. Two branches where the axis ends before."""
    mean = np.linspace(0, 1, 201)
    spread = np.sqrt(mean * (1 - mean))
    inside = spread <= top + 1e-9
    branches = [inside & (mean <= 0.5), inside & (mean >= 0.5)]
    return [
        " ".join(f"{_across(float(s / top))},{_up(float(c))}" for s, c in zip(spread[b], mean[b], strict=True))
        for b in branches
    ]


def _region_labels(m: DataMap, points: NDArray[np.float64], top: float) -> list[dict[str, Any]]:
    """The names of the regions, each near the middle of its own where it hides few points and no other name."""
    width, height = LABEL
    x, y = np.meshgrid(np.arange(MAP.left + 6, MAP.x(1) - width - 6, 8.0), np.arange(MAP.top + 6, MAP.y(0) - height - 6, 8.0))
    x, y = x.ravel(), y.ravel()  # upper left corners that a name could have
    across = (points[:, 0] >= x[:, None]) & (points[:, 0] <= x[:, None] + width)
    hidden = (across & (points[:, 1] >= y[:, None]) & (points[:, 1] <= y[:, None] + height)).mean(axis=1)
    free = np.ones(len(x), dtype=bool)
    placed = []
    for name, title in TITLES.items():
        rows = m.regions[name]
        if not len(rows):
            continue
        d = m.dynamics
        centre = _across(median_of(d.variability[rows]) / top), _up(median_of(d.confidence[rows]))
        away = np.hypot(x + width / 2 - centre[0], y + height / 2 - centre[1])
        best = int(np.where(free, 2500 * hidden + away, np.inf).argmin())
        placed.append({"x": round(x[best] + width / 2, 1), "y": round(y[best] + height - 7, 1), "title": title})
        free &= (np.abs(x - x[best]) > width) | (np.abs(y - y[best]) > height + 6)
    return placed


def _histograms(m: DataMap) -> list[dict[str, Any]]:
    """How many examples have which confidence, variability and correctness: all of them, not only those drawn."""
    d = m.dynamics
    top = variability_end(float(d.variability.max()))
    made = [
        _histogram("confidence", d.confidence, unit_axis()),
        _histogram("variability", d.variability, Axis(0.0, top, variability_ticks(top))),
    ]
    names, level, _ = _levels(m)
    count = np.array([(level == used).sum() for _, used in names])
    most, each = max(int(count.max()), 1), 1 / len(names)
    bars = [
        _bar(SMALL, (i + 0.15) * each, (i + 0.85) * each, c / most, f"correctness {name}: {counted(c, 'example')}", used)
        for i, ((name, used), c) in enumerate(zip(names, count.tolist(), strict=True))
    ]
    ticks = [{"x": SMALL.x((i + 0.5) * each), "label": name} for i, (name, _) in enumerate(names)]
    return [*made, {"chart": SMALL, "title": "correctness", "bars": bars, "ticks": ticks, "most": most}]


def _histogram(title: str, values: NDArray[Any], axis: Axis, bins: int = 25) -> dict[str, Any]:
    low, high = axis.low, axis.high
    count, edges = np.histogram(np.clip(values, low, high), bins=bins, range=(low, high))
    most = max(int(count.max()), 1)
    place = (edges - low) / (high - low)
    return {
        "chart": SMALL,
        "title": title,
        "bars": [
            _bar(SMALL, a, b, c / most, f"{title} {x:.3g} to {y:.3g}: {counted(c, 'example')}")
            for a, b, x, y, c in zip(place, place[1:], edges, edges[1:], count.tolist(), strict=False)
        ],
        "ticks": SMALL.x_ticks(axis),
        "most": most,
    }


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


def _aum_chart(m: DataMap) -> dict[str, Any]:
    """AUM in about fifty bins with an edge at 0, and its median."""
    aum = np.asarray(m.dynamics.aum, dtype=np.float64)
    low, high = min(float(aum.min()), 0.0), max(float(aum.max()), 0.0)
    width = max(high - low, 1e-6) / 50
    first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    last = max(last, first + 1)
    low, high = first * width, last * width
    count, edges = np.histogram(aum.clip(low, high), bins=last - first, range=(low, high))
    most = max(int(count.max()), 1)
    median = float(np.median(aum))

    def share(value: float) -> float:
        return (value - low) / (high - low)

    step = round_step((high - low) / 7)
    ticks = np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step
    axis = Axis(low, high, tuple(ticks.round(12).tolist()))
    return {
        "chart": AUM,
        "bars": [
            {
                **_bar(AUM, share(a), share(b), c / most, f"AUM {a:.2f} to {b:.2f}: {counted(c, 'example')}"),
                "below": (a + b) / 2 < 0,
            }
            for a, b, c in zip(edges, edges[1:], count.tolist(), strict=False)
        ],
        "ticks": AUM.x_ticks(axis),
        "most": most,
        "zero": AUM.x(share(0.0)),
        "median": AUM.x(share(median)),
        "median_label": f"median {median:.2f}",
        # On which side of their lines the words stand: away from each other, and inside the chart.
        "median_left": share(median) > 0.75 or (median < 0 and share(median) > 0.25),
        "zero_left": median > 0 and share(0.0) > 0.05,
    }


def _class_rows(m: DataMap) -> list[dict[str, Any]]:
    """Each class: its share of all examples and of every region, most over-represented among the hard first."""
    d = m.dynamics
    count = np.bincount(d.labels, minlength=len(d.classes))
    right = np.bincount(d.labels, weights=m.right, minlength=len(d.classes)) / np.maximum(count, 1)
    below = np.bincount(d.labels[m.doubtful], minlength=len(d.classes))
    share = {"all": m.class_shares(), **{name: m.class_shares(rows) for name, rows in m.regions.items()}}
    rows = [
        {
            "name": name,
            "count": int(count[k]),
            "shares": [float(values[k]) for values in share.values()],
            "right": float(right[k]) if count[k] else math.nan,
            "doubtful": int(below[k]),
        }
        for k, name in enumerate(shown_classes(m))
    ]
    return sorted(rows, key=lambda row: row["shares"][0] - row["shares"][-1])


def _read_row(m: DataMap, row: int) -> dict[str, Any]:
    d = m.dynamics
    return {
        "id": one_line(str(d.ids[row]), 60),
        "text": example_text(m, row, 400),
        "picture": _small_picture(m, row),
        "label": one_line(d.classes[int(d.labels[row])], 200),
        "says": one_line(d.classes[int(m.predicted[row])], 200),
        "agrees": int(m.predicted[row]) == int(d.labels[row]),
        "confidence": float(d.confidence[row]),
        "variability": float(d.variability[row]),
        "right": f"{d.correctness[row]} of {d.epochs[row]}",
        "aum": float(d.aum[row]),
    }


def _small_picture(m: DataMap, row: int) -> str:
    """An image as a PNG inside its address; empty where there is none, or no Pillow."""
    if m.examples is None or m.examples.picture is None:
        return ""
    try:
        from PIL import Image
    except ImportError:
        return ""
    picture = Image.fromarray(m.examples.picture(row))
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
