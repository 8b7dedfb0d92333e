"""Figures for papers, drawn by matplotlib and saved as SVG, PDF or PNG.

`reliability_figure`, `cascade_figure`, `map_figure` and `study_figure` build a `matplotlib.figure.Figure`, which can be
changed before `save_figure` writes it. Text is shown as it is (no mathtext), fonts are embedded, and the same data give the
same SVG. matplotlib is imported when a figure is drawn (``pip install 'distilcal[figures]'``), and never its pyplot, which
keeps global state.

To add a kind of study chart, write a function ``(chart) -> Figure`` and enter it in ``STUDY_FIGURES``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distilcal.dynamics.data_map import DataMap
from distilcal.errors import InputError, MissingDependencyError
from distilcal.evaluation import SetEvaluation
from distilcal.io.atomic import atomic_write
from distilcal.metrics import Reliability
from distilcal.report.charts.scales import axis_of, is_geometric
from distilcal.report.formatting import one_line
from distilcal.selective import CascadeEvaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".pdf", ".png")
WIDTH = 3.5  # inches: one column of a paper
DPI = 300  # of PNG, and of what is rasterised in SVG and PDF
# Okabe and Ito's palette without its yellow, which is too light for lines: told apart with any colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
SOFT, FAINT = "#5b6570", "#d9dee2"
RASTERISED = 2000  # points in a cloud from which it is drawn as an image inside SVG and PDF
HEXAGONS = 20_000  # examples from which a data map is drawn as hexagons
BAND = 8  # a line with this many points has its intervals as a band, one with fewer as bars
BARS = 0.84  # of the room of a group that its bars take
LABELLED = 40  # points of a scatter chart that may have their names beside them
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so a figure looks the same everywhere
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.edgecolor": "#8a949e",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.color": "#8a949e",
    "ytick.color": "#8a949e",
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "grid.color": "#e8ebee",
    "grid.linewidth": 0.5,
    "savefig.dpi": DPI,
    "text.parse_math": False,  # names of methods and classes are text, also with $ in them
    "text.usetex": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "distilcal",
    "pdf.fonttype": 42,
}
Points = list[list[float]]


def require_matplotlib() -> None:
    """Raise an error that says how to install matplotlib if it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError("figures need matplotlib", remedy="pip install 'distilcal[figures]'") from None


def check_figure_path(path: Path) -> None:
    """Refuse a path whose suffix is not a format of figures, before any work.

    Parameters
    ----------
    path : Path
        Where a figure is to be saved.

    Raises
    ------
    InputError
        If the suffix is not .svg, .pdf or .png.
    MissingDependencyError
        If matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"{str(path)!r} ends neither in .svg nor .pdf nor .png", remedy="give a name that ends in one of them")
    require_matplotlib()


def save_figure(figure: Figure, path: Path | str) -> None:
    """Write a figure as SVG, PDF or PNG, by the suffix of the file.

    The same figure gives the same bytes: there are no dates in the file and the ids of an SVG do not change. Fonts are embedded
    (type 42 in PDF, outlines in SVG). The file is written whole or not at all.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure, from this module or any other.
    path : Path or str
        The file; its suffix is .svg, .pdf or .png.
    """
    path = Path(path)
    check_figure_path(path)
    title = {"Title": figure.get_label() or path.stem}
    metadata = {
        ".svg": {**title, "Date": None, "Creator": "distilcal"},
        ".pdf": {**title, "CreationDate": None, "Creator": "distilcal"},
        ".png": {**title, "Software": "distilcal"},
    }[path.suffix]
    content = io.BytesIO()
    with _style():
        figure.savefig(content, format=path.suffix[1:], metadata=metadata)
    with atomic_write(path) as file:
        file.write(content.getvalue())


# ---- reliability -------------------------------------------------------------------------------------------------------


def reliability_figure(
    diagrams: Reliability | SetEvaluation | Mapping[str, Reliability | SetEvaluation],
) -> Figure:
    """Draw reliability diagrams side by side, with the number of predictions in each bin below.

    A point for each bin that holds predictions: their accuracy over their mean confidence, with its interval. The shaded bar is
    the gap to the diagonal, where a calibrated model lies; points below it are overconfident.

    Parameters
    ----------
    diagrams : Reliability, SetEvaluation or dict of them
        What `distilcal.reliability` or `distilcal.evaluation.evaluate_set` returned; with several, the keys are their titles. A
        `SetEvaluation` also gives the expected calibration error, which is written into its diagram.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from distilcal import Predictions
    >>> from distilcal.metrics import reliability
    >>> predictions = Predictions.from_probs([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 1, 1])
    >>> figure = reliability_figure({"as trained": reliability(predictions)})
    >>> save_figure(figure, "reliability.pdf")  # doctest: +SKIP
    """
    titled = diagrams if isinstance(diagrams, Mapping) else {"": diagrams}
    if not titled:
        raise InputError("there is no reliability diagram to draw", remedy="give at least one")
    with _style():
        figure = _new_figure(2.4 * len(titled) + 0.2, 3.25, title="Reliability: " + ", ".join(filter(None, titled)))
        grid = figure.add_gridspec(2, len(titled), height_ratios=[4, 1])
        for column, (title, item) in enumerate(titled.items()):
            axes = figure.add_subplot(grid[0, column])
            counts = figure.add_subplot(grid[1, column], sharex=axes)
            bins = item.reliability if isinstance(item, SetEvaluation) else item
            _draw_reliability_bins(axes, bins)
            _draw_counts(counts, bins)
            axes.set_title(one_line(title, 60))
            axes.tick_params(labelbottom=False)
            counts.set_xlabel("confidence")
            if isinstance(item, SetEvaluation):
                _note(axes, _ece_text(item))
            if column == 0:
                axes.set_ylabel("accuracy")
                counts.set_ylabel("predictions")
    return figure


def _draw_reliability_bins(axes: Axes, bins: Reliability) -> None:
    filled = bins.count > 0
    confidence, accuracy = bins.confidence[filled], bins.accuracy[filled]
    _unit_square(axes)
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    axes.vlines(confidence, confidence, accuracy, color=PALETTE[0], alpha=0.22, linewidth=5, zorder=2)
    spread = np.abs(np.stack([accuracy - bins.low[filled], bins.high[filled] - accuracy]))
    axes.errorbar(confidence, accuracy, yerr=spread, color=PALETTE[0], linewidth=0, elinewidth=0.9, marker="o",
                  clip_on=False, zorder=3)  # fmt: skip


def _draw_counts(axes: Axes, bins: Reliability) -> None:
    width = bins.upper - bins.lower
    axes.bar(bins.lower, bins.count, width=width * 0.92, align="edge", color="#9fb9d0", linewidth=0)
    most = int(bins.count.max())
    axes.set_ylim(0, max(most, 1) * 1.05)
    axes.set_box_aspect(0.22)  # as wide as the square above
    axes.set_yticks([0, most], ["0", f"{most:,}"])


def _ece_text(item: SetEvaluation) -> str:
    ece = item.evaluation["ece"]
    if ece.low is None or ece.high is None:
        return f"ECE {ece.value:.3f}"
    return f"ECE {ece.value:.3f}\n[{ece.low:.3f}, {ece.high:.3f}]"


# ---- cascades ----------------------------------------------------------------------------------------------------------


def cascade_figure(evaluation: CascadeEvaluation, split: str = "test") -> Figure:
    """Draw the accuracy of a student and its teacher together over the share of rows that the student hands over.

    The band is the interval of the accuracy, the dashed line the teacher alone. A ring marks what was chosen on dev for the
    accuracy that may be lost to the teacher, if anything reached it.

    Parameters
    ----------
    evaluation : CascadeEvaluation
        What `distilcal.evaluate_cascade` returned.
    split : str, default "test"
        The split to draw.

    Returns
    -------
    matplotlib.figure.Figure
    """
    part = evaluation.splits[split]
    curves = [curve for curve in (part.cascade, part.alone) if curve is not None]
    with _style():
        figure = _new_figure(WIDTH, 2.6, title=f"{evaluation.student} with {evaluation.teacher} on {split}")
        axes = figure.add_subplot()
        for i, curve in enumerate(curves):
            look = {**_look(i), "marker": ""}
            axes.fill_between(
                curve.handed_over, curve.accuracy_low, curve.accuracy_high, color=look["color"], alpha=0.18, linewidth=0
            )
            axes.plot(curve.handed_over, curve.accuracy, label=one_line(f"{curve.student} and {curve.teacher}", 60), **look)
        teacher = part.cascade.teacher_alone
        name = one_line(f"{part.cascade.teacher} alone", 60)
        axes.axhline(teacher.accuracy, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), label=name, zorder=1)
        check = part.checks.get("loss")
        if check is not None and evaluation.loss.reached:
            point = part.cascade.nearest(1 - check.coverage)
            axes.plot([point.handed_over], [point.accuracy], color=PALETTE[0], marker="o", markersize=6, fillstyle="none",
                      linewidth=0, label="chosen on dev")  # fmt: skip
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of the rows handed over")
        axes.set_ylabel("accuracy")
        axes.grid(visible=True)
        return _with_legend(figure)


# ---- data maps ---------------------------------------------------------------------------------------------------------


def map_figure(data_map: DataMap) -> Figure:
    """Draw a data map: confidence over variability, the colour by correctness, with the lines where its regions begin.

    Up to 20,000 examples are points (rasterised from 2,000 on); more are drawn as hexagons with the mean correctness in them.

    Parameters
    ----------
    data_map : DataMap
        The map.

    Returns
    -------
    matplotlib.figure.Figure
    """
    dynamics = data_map.dynamics
    with _style():
        figure = _new_figure(1.25 * WIDTH, 3.3, title=f"Data map of {data_map.name}")
        axes = figure.add_subplot()
        _draw_map(figure, axes, dynamics.variability, dynamics.confidence, data_map.right)
        boundary: dict[str, Any] = {"color": "black", "linewidth": 0.7, "linestyle": (0, (1, 2)), "zorder": 4}
        easy, ambiguous, hard = (data_map.regions[name] for name in ("easy", "ambiguous", "hard"))
        end = axes.get_xlim()[1]
        if len(ambiguous):
            x = float(dynamics.variability[ambiguous[-1]])
            axes.axvline(x, **boundary)
            end = x if data_map.disjoint else end
        for rows in (easy, hard):
            if len(rows):
                axes.hlines(float(dynamics.confidence[rows[-1]]), 0, end, **boundary)
        centres = {}
        for title, rows in (("easy-to-learn", easy), ("ambiguous", ambiguous), ("hard-to-learn", hard)):
            if len(rows):
                centres[title] = float(np.median(dynamics.variability[rows])), float(np.median(dynamics.confidence[rows]))
        _place_names(figure, axes, centres, np.stack([dynamics.variability, dynamics.confidence], axis=1))
        axes.set_title(one_line(data_map.name, 60))
    return figure


def _draw_map(figure: Figure, axes: Axes, variability: NDArray[Any], confidence: NDArray[Any], right: NDArray[Any]) -> None:
    """Examples by correctness, the line beyond which no example can lie, and the scale of colours."""
    from matplotlib.colors import LinearSegmentedColormap

    # From never right (orange) over grey to always right (blue), the order of the pages' marks.
    colours = LinearSegmentedColormap.from_list("correctness", ["#b33a00", "#d9984f", "#8d8a86", "#5f93b8", "#173f8f"])
    widest = float(variability.max()) if len(variability) else 0.0
    x_axis = axis_of([0.0, max(widest, 0.01)], zero=True)
    room = 0.02
    axes.set_xlim(-room * x_axis.high, x_axis.high)
    axes.set_ylim(-room, 1 + room)
    axes.set_xticks(x_axis.ticks, x_axis.labels)
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_xlabel("variability")
    axes.set_ylabel("confidence")
    mean = np.linspace(0, 1, 401)
    spread = np.sqrt(mean * (1 - mean))
    axes.plot(np.where(spread <= x_axis.high, spread, np.nan), mean, color=FAINT, linewidth=0.8, zorder=1)
    if len(variability) > HEXAGONS:
        drawn: Any = axes.hexbin(variability, confidence, C=right, gridsize=70, cmap=colours, vmin=0, vmax=1, linewidths=0.1,
                                 extent=(0, x_axis.high, 0, 1), zorder=2)  # fmt: skip
    else:
        rows = np.random.default_rng(0).permutation(len(variability))  # shuffled, so that no level lies on top
        size = float(np.clip(3000 / max(len(rows), 1), 1.5, 9))
        drawn = axes.scatter(variability[rows], confidence[rows], c=right[rows], cmap=colours, vmin=0, vmax=1, s=size,
                             alpha=0.75, linewidths=0, rasterized=len(rows) > RASTERISED, zorder=2)  # fmt: skip
    bar = figure.colorbar(drawn, ax=axes, fraction=0.04, pad=0.02, aspect=30)
    bar.set_label("correctness: share of epochs" if len(variability) <= HEXAGONS else "mean correctness")
    if bar.solids is not None:
        bar.solids.set_alpha(1)
    bar.outline.set_visible(False)


def _place_names(figure: Figure, axes: Axes, centres: Mapping[str, tuple[float, float]], points: NDArray[Any]) -> None:
    """Write the names of regions, each near the middle of its own where it hides few points and no other name."""
    figure.draw_without_rendering()
    inside = axes.get_window_extent()
    places = axes.transData.transform(points[np.random.default_rng(0).permutation(len(points))[:4000]])
    name_boxes: list[Any] = []
    for name, centre in centres.items():
        text = axes.text(*centre, name, ha="center", va="center", fontsize=7.5, fontweight="bold", zorder=6)
        text.set_path_effects(_halo())
        text.set_in_layout(False)
        box = text.get_window_extent().padded(2)
        middle = axes.transData.transform(centre)
        least_cost, best_box = math.inf, None
        for x in np.linspace(inside.x0 + box.width / 2, inside.x1 - box.width / 2, 25):
            for y in np.linspace(inside.y0 + box.height, inside.y1 - box.height, 25):
                moved = box.translated(x - (box.x0 + box.x1) / 2, y - (box.y0 + box.y1) / 2)
                if any(moved.overlaps(other) for other in name_boxes):
                    continue
                hidden = moved.count_contains(places) / max(len(places), 1)
                cost = 4 * hidden + math.hypot(x - middle[0], y - middle[1]) / inside.height
                if cost < least_cost:
                    least_cost, best_box = cost, moved
        if best_box is not None:
            name_boxes.append(best_box.padded(3))
            x, y = (
                axes.transData.inverted().transform(((best_box.x0 + best_box.x1) / 2, (best_box.y0 + best_box.y1) / 2)).tolist()
            )
            text.set_position((x, y))


# ---- studies -----------------------------------------------------------------------------------------------------------


def study_figure(chart: Mapping[str, Any]) -> Figure:
    """Draw a chart of a study's results.

    Parameters
    ----------
    chart : dict
        An entry of ``figures`` in a study's ``results.json``: ``kind`` (a key of `STUDY_FIGURES`), ``title``, the titles ``x``
        and ``y`` of the axes, and ``series`` with ``name`` and ``points`` (x, y, and for intervals low and high).

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> chart = {"kind": "line", "title": "ECE while it trained", "x": "epoch", "y": "ECE", "series": [
    ...     {"name": "ERM", "points": [[1, 0.1], [2, 0.2]]}]}
    >>> study_figure(chart).axes[0].get_xlabel()
    'epoch'
    """
    with _style():
        return STUDY_FIGURES[chart["kind"]](chart)


def _line_figure(chart: Mapping[str, Any]) -> Figure:
    figure = _study_frame(chart)
    axes = figure.axes[0]
    spans = [_finite(series["points"]) for series in chart["series"]]
    across = [point[0] for points in spans for point in points]
    x_axis = axis_of(across, whole=True, log=is_geometric(across))
    y_axis = axis_of([v for points in spans for point in points for v in point[1:4]], zero=True)
    if x_axis.log:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xlim(x_axis.low, x_axis.high)
    axes.set_ylim(y_axis.low, y_axis.high)
    axes.set_xticks(x_axis.ticks, x_axis.labels)
    axes.set_yticks(y_axis.ticks, y_axis.labels)
    for i, series in enumerate(chart["series"]):
        points = _with_gaps(series["points"])
        look = _look(i)
        if len(points) > LABELLED:
            look["marker"] = ""
        axes.plot(points[:, 0], points[:, 1], **look, label=_name(series), zorder=3)
        ranges = points[np.isfinite(points[:, 2:4]).all(axis=1)]
        if len(ranges) >= BAND:
            axes.fill_between(ranges[:, 0], ranges[:, 2], ranges[:, 3], color=look["color"], alpha=0.15, linewidth=0)
        elif len(ranges):
            _error_bars(axes, ranges, look["color"])
    return _with_legend(figure)


def _bar_figure(chart: Mapping[str, Any]) -> Figure:
    """A group of bars for each place, one bar for each series."""
    figure = _study_frame(chart)
    axes = figure.axes[0]
    groups = [one_line(str(name), 20) for name in chart.get("groups") or ()]
    axes.set_xlim(-0.5, max(len(groups), 1) - 0.5)
    axes.set_xticks(range(len(groups)), groups, rotation=90 if len(groups) > 5 else 0)
    axes.grid(visible=False, axis="x")
    width = BARS / max(len(chart["series"]), 1)
    for i, series in enumerate(chart["series"]):
        points = _with_gaps(series["points"])
        points[:, 0] += (i - (len(chart["series"]) - 1) / 2) * width
        axes.bar(points[:, 0], points[:, 1], width, color=_look(i)["color"], label=_name(series), zorder=2)
        _error_bars(axes, points[np.isfinite(points).all(axis=1)], SOFT)
    return _with_legend(figure)


def _scatter_figure(chart: Mapping[str, Any]) -> Figure:
    figure = _study_frame(chart)
    axes = figure.axes[0]
    spans = [_finite(series["points"]) for series in chart["series"]]
    count = sum(map(len, spans))
    x_axis = axis_of(v for points in spans for point in points for v in (point[0], *point[4:6]))
    y_axis = axis_of(v for points in spans for point in points for v in point[1:4])
    axes.set_xlim(x_axis.low, x_axis.high)
    axes.set_ylim(y_axis.low, y_axis.high)
    axes.set_xticks(x_axis.ticks, x_axis.labels)
    axes.set_yticks(y_axis.ticks, y_axis.labels)
    if chart.get("diagonal"):
        axes.axline((0, 0), slope=1, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    named: list[tuple[float, float, str]] = []
    for i, (series, points) in enumerate(zip(chart["series"], spans, strict=True)):
        places = np.array(_places(points)).reshape(-1, 2)
        look = _look(i)
        axes.plot(places[:, 0], places[:, 1], linestyle="", color=look["color"], marker=look["marker"], label=_name(series),
                  markersize=3.8 if count <= 400 else 1.8, alpha=0.9 if count <= 400 else 0.5, markeredgewidth=0,
                  rasterized=len(places) > RASTERISED, zorder=3)  # fmt: skip
        ranges = [point for point in points if len(point) > 3]
        if ranges and count <= 400:
            _error_bars(axes, np.array([point[:4] for point in ranges]), look["color"])
        level = np.array([point for point in points if len(point) > 5]).reshape(-1, 6)
        if len(level) and count <= 400:
            axes.hlines(level[:, 1], level[:, 4], level[:, 5], color=look["color"], linewidth=0.8, alpha=0.7, zorder=2)
        finite = [label for point, label in zip(series["points"], series.get("labels") or (), strict=False) if _finite([point])]
        named += [(x, y, one_line(str(label), 30)) for (x, y), label in zip(places.tolist(), finite, strict=False)]
    figure = _with_legend(figure)
    if count <= LABELLED:
        _label_points(figure, axes, named)
    return figure


def _reliability_study_figure(chart: Mapping[str, Any]) -> Figure:
    figure = _study_frame({"x": "confidence", "y": "accuracy", **chart}, height=WIDTH)
    axes = figure.axes[0]
    _unit_square(axes)
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    spans = [_finite(series["points"]) for series in chart["series"]]
    most = max((point[4] for points in spans for point in points if len(point) > 4), default=1.0) or 1.0
    for i, (series, points) in enumerate(zip(chart["series"], spans, strict=True)):
        look = _look(i)
        places = np.array(_places(points)).reshape(-1, 2)
        axes.plot(places[:, 0], places[:, 1], **{**look, "linewidth": 0.9}, label=_name(series), zorder=3)
        sizes = [4 + 22 * point[4] / most if len(point) > 4 else 10 for point in points]
        axes.scatter(places[:, 0], places[:, 1], s=sizes, color=look["color"], marker=look["marker"], linewidths=0, zorder=4)
        ranges = [point[:4] for point in points if len(point) > 3]
        if ranges:
            _error_bars(axes, np.array(ranges), look["color"])
    return _with_legend(figure)


def _projection_figure(chart: Mapping[str, Any]) -> Figure:
    """Points in a plane whose axes mean nothing by themselves: no numbers, one unit both ways."""
    figure = _study_frame(chart, height=WIDTH)
    axes = figure.axes[0]
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right"]].set_visible(True)
    for i, series in enumerate(chart["series"]):
        places = np.array(_places(_finite(series["points"]))).reshape(-1, 2)
        look = _look(i)
        axes.scatter(places[:, 0], places[:, 1], s=float(np.clip(2500 / max(len(places), 1), 2, 10)), color=look["color"],
                     marker=look["marker"], alpha=0.65, linewidths=0, label=_name(series),
                     rasterized=len(places) > RASTERISED)  # fmt: skip
        if series.get("centre"):
            axes.plot(*series["centre"], linestyle="", marker="*", markersize=10, color=look["color"], markeredgecolor="white",
                      markeredgewidth=0.6, zorder=5)  # fmt: skip
    return _with_legend(figure)


def _map_study_figure(chart: Mapping[str, Any]) -> Figure:
    """A data map for each series, side by side."""
    series = chart["series"]
    figure = _new_figure(1.25 * WIDTH * max(len(series), 1), 3.3, title=_title(chart))
    for i, one in enumerate(series):
        axes = figure.add_subplot(1, len(series), i + 1)
        points = np.array([point for point in _finite(one["points"]) if len(point) == 3]).reshape(-1, 3)
        _draw_map(figure, axes, points[:, 0], points[:, 1], points[:, 2])
        axes.set_xlabel(one_line(str(chart.get("x") or "variability"), 80))
        axes.set_ylabel(one_line(str(chart.get("y") or "confidence"), 80))
        axes.set_title(_wrapped(_title(chart), 62) if len(series) == 1 else _name(one))
    if not series:
        _note(figure.add_subplot(), "no data")
    return figure


STUDY_FIGURES: dict[str, Callable[[Mapping[str, Any]], Figure]] = {
    "line": _line_figure,
    "bars": _bar_figure,
    "scatter": _scatter_figure,
    "reliability": _reliability_study_figure,
    "projection": _projection_figure,
    "map": _map_study_figure,
}


# ---- parts -------------------------------------------------------------------------------------------------------------


@contextmanager
def _style() -> Iterator[None]:
    """matplotlib's defaults and ours on top, whatever the user's matplotlibrc says."""
    require_matplotlib()
    from matplotlib import style

    with style.context(STYLE, after_reset=True):
        yield


def _new_figure(width: float, height: float, *, title: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", label=one_line(title, 200))
    FigureCanvasAgg(figure)
    return figure


def _study_frame(chart: Mapping[str, Any], height: float = 2.6) -> Figure:
    """An empty figure with the titles of the chart and its axes."""
    figure = _new_figure(WIDTH, height, title=_title(chart))
    axes = figure.add_subplot()
    axes.set_title(_wrapped(_title(chart), 48))
    axes.set_xlabel(one_line(str(chart.get("x", "")), 80))
    axes.set_ylabel(one_line(str(chart.get("y", "")), 80))
    axes.grid(visible=True)
    if not any(_finite(series["points"]) for series in chart["series"]):
        _note(axes, "no data")
    return figure


def _title(chart: Mapping[str, Any]) -> str:
    return one_line(str(chart.get("title") or chart.get("name") or ""), 200)


def _name(series: Mapping[str, Any]) -> str:
    name = one_line(str(series["name"]), 40)
    return f" {name}" if name.startswith("_") else name  # matplotlib leaves names with an underscore out of legends


def _wrapped(text: str, width: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def _look(i: int) -> dict[str, Any]:
    """Colour, marker and dashes of a series: no two are alike before the hundredth."""
    return {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)], "linestyle": DASHES[i // len(PALETTE) % 4]}


def _error_bars(axes: Axes, ranges: NDArray[Any], colour: str) -> None:
    """Intervals of points (x, y, low, high)."""
    axes.vlines(ranges[:, 0], ranges[:, 2], ranges[:, 3], color=colour, linewidth=0.8, alpha=0.7, zorder=2)


def _unit_square(axes: Axes) -> None:
    ticks = np.linspace(0, 1, 6)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.set_box_aspect(1)
    axes.grid(visible=True)


def _note(axes: Axes, text: str) -> None:
    """A few words in the lower right corner, which is empty in nearly every reliability diagram."""
    note = axes.text(0.96, 0.05, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=7, linespacing=1.4, zorder=6)
    note.set_path_effects(_halo())
    note.set_in_layout(False)


def _halo() -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2, foreground="white")]


def _with_legend(figure: Figure) -> Figure:
    """A legend below the axes where there is more than one series, in as many columns as fit."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    if len(names) > 1:
        longest = max(map(len, names))
        columns = max(1, min(len(names), int(62 / (longest + 7))))
        figure.set_figheight(figure.get_figheight() + 0.14 * math.ceil(len(names) / columns))
        figure.legend(handles, names, loc="outside lower center", ncols=columns)
    return figure


def _label_points(figure: Figure, axes: Axes, named: Sequence[tuple[float, float, str]]) -> None:
    """Write names beside their points, where they hide no point and no other name; a name without room is left out."""
    figure.draw_without_rendering()
    inside = axes.get_window_extent()
    marks = [axes.transData.transform((x, y)) for x, y, _ in named]
    reach = 3.0 * figure.dpi / 72  # half a marker and some room, in pixels
    occupied = [_box(x - reach, y - reach, x + reach, y + reach) for x, y in marks]
    for (x, y, name), (left, bottom) in zip(named, marks, strict=True):
        if not name:
            continue
        text = axes.text(x, y, name, fontsize=6, color=SOFT, ha="center", va="center", zorder=5)
        text.set_path_effects(_halo())
        text.set_in_layout(False)
        box = text.get_window_extent()
        across, up = box.width / 2 + reach + 1, box.height / 2 + reach + 1
        for dx, dy in (
            (across, 0),
            (-across, 0),
            (0, up),
            (0, -up),
            (across, up),
            (-across, up),
            (across, -up),
            (-across, -up),
        ):
            moved = box.translated(dx, dy)
            fits = inside.x0 < moved.x0 and moved.x1 < inside.x1 and inside.y0 < moved.y0 and moved.y1 < inside.y1
            if fits and not any(moved.overlaps(other) for other in occupied):
                occupied.append(moved)
                place = axes.transData.inverted().transform((left + dx, bottom + dy)).tolist()
                text.set_position((place[0], place[1]))
                break
        else:
            text.remove()


def _box(x0: float, y0: float, x1: float, y1: float) -> Any:
    from matplotlib.transforms import Bbox

    return Bbox.from_extents(x0, y0, x1, y1)


def _places(points: Points) -> Points:
    """The places of points, without their intervals."""
    return [point[:2] for point in points]


def _finite(points: Sequence[Sequence[float | None]]) -> Points:
    """The points that can be drawn; one whose interval cannot keeps its place and loses the interval."""
    drawn = []
    for point in points:
        numbers = [math.nan if value is None else float(value) for value in point]
        if all(map(math.isfinite, numbers)):
            drawn.append(numbers)
        elif all(map(math.isfinite, numbers[:2])):
            drawn.append(numbers[:2])
    return drawn


def _with_gaps(points: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    """All points as rows (x, y, low, high), with NaN where there is no number: a line is broken there."""
    rows = np.full((len(points), 4), math.nan)
    for row, point in zip(rows, points, strict=True):
        numbers = [math.nan if value is None else float(value) for value in point[:4]]
        row[: len(numbers)] = numbers
    rows[~np.isfinite(rows)] = math.nan
    return rows
