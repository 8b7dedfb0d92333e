"""The frontier of a search within a budget: size, speed, accuracy and calibration of every model that was tried, on dev.

`distilcal.pipeline.budget` stores the figures, and which models lie on which frontier, in ``budget.json``; this shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distilcal import __version__
from distilcal.errors import MissingDependencyError
from distilcal.report.charts.marks import COLOURS
from distilcal.report.charts.plot import Plot, series_group
from distilcal.report.charts.scales import axis_of
from distilcal.report.figures import require_matplotlib, save_figure, study_figure
from distilcal.report.html import render_template, write_text

PAGE, FIGURE = "frontier.html", "frontier.svg"
COSTS = {"milliseconds": "milliseconds per example", "parameters": "parameters in millions"}
FIGURES = {"calibrated_nll": "NLL after a temperature", "accuracy": "accuracy", "calibrated_ece": "ECE after a temperature"}
FRONTS = (  # pairs of a cost and a figure on dev, one chart each
    ("milliseconds", "calibrated_nll"),
    ("parameters", "calibrated_nll"),
    ("milliseconds", "accuracy"),
    ("milliseconds", "calibrated_ece"),
)
GROUPS = ("chosen", "frontier", "others", "teacher")


def write_frontier(facts: Mapping[str, Any], folder: Path) -> None:
    """Write the page about a search and, where matplotlib is installed, its first chart as SVG.

    Parameters
    ----------
    facts : mapping
        The content of ``budget.json`` after the choice.
    folder : Path
        The folder of the run.
    """
    write_text(render_frontier(facts), folder / PAGE)
    try:
        require_matplotlib()
    except MissingDependencyError:
        return
    save_figure(study_figure(frontier_chart(facts["points"], *FRONTS[0])), folder / FIGURE)


def render_frontier(facts: Mapping[str, Any]) -> str:
    """Return the page about a search.

    Parameters
    ----------
    facts : mapping
        The content of ``budget.json`` after the choice.

    Returns
    -------
    str
        A self-contained page.
    """
    charts = [frontier_chart(facts["points"], *pair) for pair in FRONTS]
    return render_template(
        "frontier.html.jinja",
        reasons=facts["reasons"],
        charts=[{"title": chart["title"], "svg": draw_frontier(chart, f"frontier-{i}")} for i, chart in enumerate(charts)],
        points=sorted(facts["points"], key=lambda point: point["dev"]["calibrated_nll"]),
        rungs=[_rung_row(number, rung) for number, rung in enumerate(facts["rungs"], start=1)],
        colours=COLOURS,
        version=__version__,
    )


def frontier_chart(points: Sequence[Mapping[str, Any]], cost: str, figure: str) -> dict[str, Any]:
    """Return a chart of a figure on dev over a cost, as `distilcal.report.figures.study_figure` takes it.

    Parameters
    ----------
    points : sequence of mapping
        The models: ``name``, the costs, the figures in ``dev``, ``chosen`` and ``fronts``.
    cost : str
        A key of `COSTS`.
    figure : str
        A key of `FIGURES`.

    Returns
    -------
    dict
        A series for each of `GROUPS` that has a model; ``front`` holds the points of the frontier from cheap to dear.
    """
    series: dict[str, dict[str, Any]] = {}
    front = []
    for point in points:
        is_on_front = point["fronts"][f"{cost}/{figure}"]
        place = [_in_unit(cost, point[cost]), point["dev"][figure]]
        group = series.setdefault(_group(point, is_on_front), {"points": [], "labels": []})
        group["points"].append(place)
        group["labels"].append(point["name"])
        if is_on_front:
            front.append(place)
    return {
        "kind": "scatter",
        "title": f"{FIGURES[figure]} and {COSTS[cost]}",
        "x": COSTS[cost],
        "y": FIGURES[figure],
        "series": [{"name": name, **series[name]} for name in GROUPS if name in series],
        "front": sorted(front),
    }


def draw_frontier(chart: Mapping[str, Any], key: str) -> str:
    """Return a chart of `frontier_chart` as SVG: a mark for each model, and a line along the frontier.

    Parameters
    ----------
    chart : mapping
        The chart.
    key : str
        Prefix of the ids in the SVG, unique on its page.

    Returns
    -------
    str
        An ``svg`` element.
    """
    places = [point for series in chart["series"] for point in series["points"]]
    plot = Plot(chart, axis_of(point[0] for point in places), axis_of(point[1] for point in places))
    if len(chart["front"]) > 1:
        plot.add(series_group(GROUPS.index("frontier"), plot.line(0, chart["front"], stroke_width=1.2, opacity=0.6)))
    for number, series in enumerate(chart["series"]):
        named = list(zip(series["points"], series["labels"], strict=True))
        marks = [plot.mark(number, point, plot.tooltip(series, point, name)) for point, name in named]
        plot.add(series_group(number, *marks))
        plot.named += [(plot.at(*point), name) for point, name in named]
    plot.add(*plot.labels())
    return plot.svg(key)


def _group(point: Mapping[str, Any], is_on_front: bool) -> str:
    if point["chosen"]:
        return "chosen"
    if point["epochs"] is None:
        return "teacher"
    return "frontier" if is_on_front else "others"


def _in_unit(cost: str, value: float) -> float:
    return value / 1e6 if cost == "parameters" else value


def _rung_row(number: int, rung: Mapping[str, Any]) -> dict[str, Any]:
    trials = rung["trials"]
    names = [f"{name} {trial['dev']['calibrated_nll']:.3f}" if trial else f"{name} cut short" for name, trial in trials.items()]
    seconds = sum(trial["seconds"] for trial in trials.values() if trial)
    return {"number": number, "steps": rung["steps"], "models": ", ".join(names), "seconds": seconds}
