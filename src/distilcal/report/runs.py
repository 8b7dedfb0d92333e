"""Runs side by side: student against the same student alone, against its teacher, in and out of domain, with size and speed.

Everything is read from a ``RunSummary``: ``show_runs`` prints it, ``write_runs_page`` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distilcal import __version__
from distilcal.metrics import Difference
from distilcal.report.charts.scales import Axis, axis_of, unit_axis
from distilcal.report.console import build_console, prose_width
from distilcal.report.evaluations.page import CHART, COUNTS, reliability_chart
from distilcal.report.html import render_template, write_text
from distilcal.runs import RunModel, RunSummary
from distilcal.selective import counted

STATES = {"given": "as trained", "calibrated": "calibrated"}
CURVES = (("nll", "NLL on dev"), ("ece", "ECE on dev"), ("entropy", "mean entropy of the posterior on dev, in nats"))
METRIC_TITLES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}
LABEL_HEIGHT, DIGIT_WIDTH = 11.0, 7.0  # of the number beside a point, in chart coordinates
POINT_RADIUS = 4.5
# Where the number of a point may stand, as steps from the point to the number's lower left corner, best first: around the
# point, then in columns above and below it.
LABEL_STEPS = (
    *((7, -5), (7, 13), (-14, -5), (-14, 13), (-3, -9), (-3, 18), (10, 4), (-17, 4)),
    *((across, -5 - LABEL_HEIGHT * row) for row in range(1, 20) for across in (7, -14)),
    *((across, 13 + LABEL_HEIGHT * row) for row in range(1, 20) for across in (7, -14)),
)


# ---- sentences ---------------------------------------------------------------------------------------------------------


def reading(summary: RunSummary) -> Iterator[str]:
    """Yield what the results of the main model say, in sentences.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.

    Yields
    ------
    str
        Accuracy and ECE on test, each comparison, the figures out of domain, and examples that splits share; nothing if the
        main model was not evaluated on test.
    """
    main = summary.main
    if main.metric("test", "accuracy") is None or main.metric("test", "ece") is None:
        return
    yield _test_sentence(main)
    yield from _comparison_sentences(summary)
    yield from _domain_sentences(summary)
    for overlap in main.run.facts["overlaps"]:
        shared = f"{counted(overlap['rows'], 'example')} of {overlap['second']} ({overlap['share']:.1%})"
        yield f"Note: {shared} also in {overlap['first']}; figures there may flatter."


def _test_sentence(main: RunModel) -> str:
    accuracy, ece = main.metric("test", "accuracy"), main.metric("test", "ece")
    assert accuracy is not None
    assert ece is not None
    calibrated_ece = main.metric("test", "ece", "calibrated")
    interval = f"{accuracy['low']:.1%} to {accuracy['high']:.1%}"
    text = f"{main.title} is right on {accuracy['value']:.1%} of test ({interval}). Its ECE is {ece['value']:.3f} as trained"
    if calibrated_ece is not None:
        text += f" and {calibrated_ece['value']:.3f} after calibration on dev"
    if ece["null"] is not None:
        text += f"; chance alone would show {ece['null']:.3f}"
    return f"{text}."


def _comparison_sentences(summary: RunSummary) -> Iterator[str]:
    main = summary.main
    models = {model.title: model for model in summary.models}
    for comparison in summary.comparisons:
        other = models[comparison.a]
        size = _ratio(main.facts["parameters"], other.facts["parameters"])
        time = _ratio(main.facts["ms_per_example"], other.facts["ms_per_example"])
        is_teacher = other.stage == main.facts["teacher"] and other.run is main.run
        if is_teacher and size and time:
            yield f"It has {size:.0%} of its teacher's parameters and takes {time:.0%} of its time per example."
        compared = (comparison[name] for name in METRIC_TITLES)  # the NLL of labels without a confidence is infinite
        differences = "; ".join(_difference_text(metric) for metric in compared if math.isfinite(metric.difference))
        yield f"Against {comparison.a} ({other.role}), on the same rows: {differences}."


def _domain_sentences(summary: RunSummary) -> Iterator[str]:
    """The range of ECE and accuracy out of domain."""
    eces: dict[str, float] = {}
    accuracies: list[float] = []
    for split in summary.sets[1:]:
        ece, accuracy = summary.main.metric(split, "ece"), summary.main.metric(split, "accuracy")
        if ece is not None and accuracy is not None:
            eces[split] = ece["value"]
            accuracies.append(accuracy["value"])
    if not eces:
        return
    best, worst = min(eces, key=eces.__getitem__), max(eces, key=eces.__getitem__)
    ece_range = f"{eces[worst]:.3f} ({worst})"
    accuracy_range = f"{min(accuracies):.1%}"
    if len(eces) > 1:
        ece_range = f"{eces[best]:.3f} ({best}) to {ece_range}"
        accuracy_range += f" to {max(accuracies):.1%}"
    yield f"Out of domain its ECE is {ece_range}, its accuracy {accuracy_range}."


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def _difference_text(difference: Difference) -> str:
    verdict = {None: "may be chance", "b": "better"}.get(difference.better, "worse")
    interval = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"{METRIC_TITLES[difference.name]} {difference.difference:+.3f} {interval}, {verdict}"


# ---- terminal ----------------------------------------------------------------------------------------------------------


def show_runs(summary: RunSummary, console: Console | None = None) -> None:
    """Print a table for each split, and what the tables say in sentences.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
    if console is None:
        console = build_console()
    for split in summary.sets:
        console.print(_terminal_table(summary, split))
    console.print(
        Text("in brackets: 95% bootstrap intervals; * beyond what a perfectly calibrated model would show", style="dim")
    )
    console.print()
    for sentence in reading(summary):
        console.print(Text(sentence), width=prose_width(console))


def _terminal_table(summary: RunSummary, split: str) -> Table:
    count = summary.main.run.facts["sizes"].get(split)
    examples = f", {count:,} examples" if count else ""
    table = Table(title=Text(f"{split} ({_domain(split)}{examples})"), title_justify="left")
    table.add_column("model")
    for title in ("size", "ms", "accuracy", "NLL", "Brier", "ECE", "ECE calibrated", "accepted", "of those right"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in _table_rows(summary, split):
        as_trained, calibrated, accepted = row["given"], row["calibrated"], row["accepted"]
        coverage, accepted_accuracy = "–", "–"
        if accepted is not None:
            coverage = f"{accepted['coverage']:.0%}"
            if accepted["accuracy"] is not None:
                accepted_accuracy = f"{accepted['accuracy']:.1%}"
        table.add_row(
            Text(row["model"].title, style="bold" if row["model"] is summary.main else ""),
            row["size"],
            row["ms"],
            _with_interval(as_trained["accuracy"]),
            _number(as_trained["nll"]["value"]),
            _number(as_trained["brier"]["value"]),
            _with_interval(as_trained["ece"]),
            "–" if calibrated is None else _with_interval(calibrated["ece"]),
            coverage,
            accepted_accuracy,
        )
    return table


def _with_interval(metric: Mapping[str, Any]) -> str:
    mark = "*" if metric.get("beyond_chance") else ""
    return f"{_number(metric['value'])}{mark} [{_number(metric['low'])}, {_number(metric['high'])}]"


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"  # JSON has no infinity: metrics.json stores it as null


# ---- page --------------------------------------------------------------------------------------------------------------


def write_runs_page(summary: RunSummary, path: Path) -> None:
    """Write one self-contained page on the runs, whole or not at all.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.
    path : Path
        The HTML file.
    """
    write_text(render_runs(summary), path)


def render_runs(summary: RunSummary) -> str:
    """Return the page on the runs as HTML.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.

    Returns
    -------
    str
    """
    tables = [{"name": split, "where": _domain(split), "rows": _table_rows(summary, split)} for split in summary.sets]
    curves = [_training_chart(summary, metric, title) for metric, title in CURVES]
    return render_template(
        "runs.html.jinja",
        s=summary,
        runs=summary.runs,
        reading=list(reading(summary)),
        chart=CHART,
        counts=COUNTS,
        unit_x=CHART.x_ticks(unit_axis()),
        unit_y=CHART.y_ticks(unit_axis()),
        sets=list(summary.sets),
        tables=tables,
        scatters=[_scatter_chart(summary, split) for split in summary.sets],
        curves=[curve for curve in curves if curve["lines"]],
        diagrams=list(_diagrams(summary)),
        definitions=_definitions(summary),
        version=__version__,
    )


def render_summary(summary: RunSummary) -> str:
    """Return the tables, the sentences and the main model's reliability on test as HTML, to be shown within a page.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.

    Returns
    -------
    str
    """
    main = summary.main
    states = main.run.diagrams.get(main.stage, {}).get("test", {})
    diagrams = [
        {"name": f"{main.title}, {STATES[state]}", **reliability_chart(states[state])} for state in STATES if state in states
    ]
    return render_template(
        "result.html.jinja",
        tables=[{"name": split, "where": _domain(split), "rows": _table_rows(summary, split)} for split in summary.sets],
        main=main.number,
        reading=list(reading(summary)),
        chart=CHART,
        unit_x=CHART.x_ticks(unit_axis()),
        unit_y=CHART.y_ticks(unit_axis()),
        diagrams=diagrams,
        folder=str(summary.runs[0].folder),
    )


def _domain(split: str) -> str:
    return "in domain" if split == "test" else "out of domain"


def _table_rows(summary: RunSummary, split: str) -> list[dict[str, Any]]:
    """The models that were evaluated on a split, with their metrics, size and speed."""
    rows = []
    for model in summary.models:
        if split not in model.facts["sets"]:
            continue
        metrics = model.facts["sets"][split]
        parameters, milliseconds = model.facts["parameters"], model.facts["ms_per_example"]
        row = {
            "model": model,
            "given": metrics["given"],
            "calibrated": metrics["calibrated"],
            "accepted": metrics.get("accepted"),
            "size": "–" if parameters is None else _parameter_count(parameters),
            "ms": "–" if milliseconds is None else f"{milliseconds:.2f}",
        }
        rows.append(row)
    return rows


def _parameter_count(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,}"


def _scatter_chart(summary: RunSummary, split: str) -> dict[str, Any]:
    """Accuracy against ECE, as trained (filled) and calibrated (open), with intervals."""
    evaluated = []
    for model in summary.models:
        for state in STATES:
            accuracy, ece = model.metric(split, "accuracy", state), model.metric(split, "ece", state)
            if accuracy is not None and ece is not None:
                evaluated.append((model, state, accuracy, ece))
    if not evaluated:
        return {"name": split, "points": [], "x_ticks": [], "y_ticks": []}
    x_axis = axis_of([0.0, *(ece["high"] for _, _, _, ece in evaluated)], zero=True)
    bounds = [accuracy[bound] for _, _, accuracy, _ in evaluated for bound in ("low", "high")]
    y_axis = axis_of(bounds, percent=True)
    points = [
        {
            "number": model.number,
            "open": state == "calibrated",
            "main": model is summary.main,
            "x": CHART.x(x_axis.share(ece["value"])),
            "y": CHART.y(y_axis.share(accuracy["value"])),
            "left": CHART.x(x_axis.share(ece["low"])),
            "right": CHART.x(x_axis.share(ece["high"])),
            "low": CHART.y(y_axis.share(accuracy["low"])),
            "high": CHART.y(y_axis.share(accuracy["high"])),
            "title": f"{model.title}, {STATES[state]}: accuracy {accuracy['value']:.3f}, ECE {ece['value']:.3f}",
        }
        for model, state, accuracy, ece in evaluated
    ]
    _place_numbers(points)
    return {
        "name": split,
        "where": _domain(split),
        "points": points,
        "x_ticks": CHART.x_ticks(x_axis),
        "y_ticks": CHART.y_ticks(y_axis),
    }


def _place_numbers(points: Sequence[dict[str, Any]]) -> None:
    """Set ``label_x`` and ``label_y`` of every point, so that no number hides a point or another number.

    Each number takes the first free place near its point; where none is free, it stands at the upper right.
    """
    occupied = [
        _box(point["x"] - POINT_RADIUS, point["y"] + POINT_RADIUS, 2 * POINT_RADIUS, 2 * POINT_RADIUS) for point in points
    ]
    for point in points:
        width = DIGIT_WIDTH * len(str(point["number"]))
        for across, down in LABEL_STEPS:
            x, y = point["x"] + across, point["y"] + down
            box = _box(x, y, width, LABEL_HEIGHT)
            inside = CHART.x(0) <= x <= CHART.x(1) - width and CHART.y(1) + LABEL_HEIGHT <= y <= CHART.y(0)
            if inside and not any(_overlap(box, other) for other in occupied):
                break
        else:
            x, y = point["x"] + 7, point["y"] - 5
            box = _box(x, y, width, LABEL_HEIGHT)
        occupied.append(box)
        point["label_x"], point["label_y"] = round(x, 2), round(y, 2)


def _box(left: float, bottom: float, width: float, height: float) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a rectangle; y grows downwards."""
    return left, bottom - height, left + width, bottom


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _training_chart(summary: RunSummary, metric: str, title: str) -> dict[str, Any]:
    """A metric on dev after every epoch, one line per trained model."""
    histories: list[tuple[RunModel, list[float]]] = []
    for model in summary.models:
        values = [epoch["dev"][metric] for epoch in model.run.history(model.stage)]
        if values:
            histories.append((model, values))
    if not histories:
        return {"title": title, "lines": []}
    epochs = max(len(values) for _, values in histories)
    ticks = [tick for tick in axis_of(range(1, epochs + 1), whole=True).ticks if 1 <= tick <= epochs]
    x_axis = Axis(0.5, epochs + 0.5, tuple(ticks))
    y_axis = axis_of([value for _, values in histories for value in values])
    lines = []
    for model, values in histories:
        dots = [
            {
                "x": CHART.x(x_axis.share(epoch)),
                "y": CHART.y(y_axis.share(value)),
                "title": f"{model.title}, epoch {epoch}: {value:.4f}",
            }
            for epoch, value in enumerate(values, start=1)
        ]
        points = " ".join(f"{dot['x']},{dot['y']}" for dot in dots)
        lines.append({"number": model.number, "main": model is summary.main, "points": points, "dots": dots})
    _place_line_numbers(lines)
    return {"title": title, "lines": lines, "x_ticks": CHART.x_ticks(x_axis), "y_ticks": CHART.y_ticks(y_axis)}


def _place_line_numbers(lines: Sequence[dict[str, Any]]) -> None:
    """Set ``label_x`` and ``label_y`` of every line: right of its end, below the numbers that are already there."""
    placed: list[tuple[float, float]] = []
    for line in sorted(lines, key=lambda line: float(line["dots"][-1]["y"])):
        end = line["dots"][-1]
        x, y = end["x"] + 6, end["y"] + 4
        for other_x, other_y in placed:
            if abs(other_x - x) < 2 * DIGIT_WIDTH:
                y = max(y, other_y + LABEL_HEIGHT)
        placed.append((x, y))
        line["label_x"], line["label_y"] = round(x, 2), round(y, 2)


def _diagrams(summary: RunSummary) -> Iterator[dict[str, Any]]:
    """Reliability diagrams: every model on test, and the main one elsewhere, as trained and calibrated."""
    selected = [(model, "test", "given") for model in summary.models]
    for split in summary.sets:
        for state in STATES:
            if (split, state) != ("test", "given"):
                selected.append((summary.main, split, state))
    for model, split, state in selected:
        diagram = model.run.diagrams.get(model.stage, {}).get(split, {}).get(state)
        ece = model.metric(split, "ece", state)
        if diagram is None or ece is None:
            continue
        yield {
            "set": {"name": f"{model.title} on {split}", "where": _domain(split)},
            "diagram": {"state": STATES[state], **reliability_chart(diagram), "ece": ece},
        }


def _definitions(summary: RunSummary) -> list[dict[str, str]]:
    metrics = summary.main.facts["sets"].get("test", {}).get("given", {})
    return [{"name": name, "here": metric["definition"]} for name, metric in metrics.items() if "definition" in metric]
