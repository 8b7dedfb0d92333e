"""Runs side by side: student against the same student alone, against its teacher, in and out of domain, with size and speed.

Everything is read from a ``RunSummary``: ``show_runs`` prints it, ``write_runs_page`` draws it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distilcal import __version__
from distilcal.report.charts.scales import Axis, axis_of, unit_axis
from distilcal.report.console import build_console, prose_width
from distilcal.report.evaluations.page import CHART, COUNTS, reliability_chart
from distilcal.report.html import render_template, write_text
from distilcal.runs import RunModel, RunSummary
from distilcal.selective import counted

STATES = {"given": "as trained", "calibrated": "calibrated"}
CURVES = (("nll", "NLL on dev"), ("ece", "ECE on dev"), ("entropy", "mean entropy of the posterior on dev, in nats"))


def reading(s: RunSummary) -> Iterator[str]:
    """What the figures say, in sentences."""
    accuracy, ece = s.main.metric("test", "accuracy"), s.main.metric("test", "ece")
    if accuracy is None or ece is None:
        return
    after = s.main.metric("test", "ece", "calibrated")
    yield (
        f"{s.main.title} is right on {accuracy['value']:.1%} of test ({accuracy['low']:.1%} to {accuracy['high']:.1%}). "
        f"Its ECE is {ece['value']:.3f} as trained"
        + (f" and {after['value']:.3f} after calibration on dev" if after is not None else "")
        + (f"; chance alone would show {ece['null']:.3f}." if ece["null"] is not None else ".")
    )
    by_title = {m.title: m for m in s.models}
    for c in s.comparisons:
        other = by_title[c.a]
        size = _ratio(s.main.facts["parameters"], other.facts["parameters"])
        speed = _ratio(s.main.facts["ms_per_example"], other.facts["ms_per_example"])
        if other.stage == s.main.facts["teacher"] and other.run is s.main.run and size and speed:
            yield f"It has {size:.0%} of its teacher's parameters and takes {speed:.0%} of its time per example."
        parts = [_difference(c[name]) for name in ("accuracy", "nll", "ece")]
        yield f"Against {c.a} ({other.role}), on the same rows: {'; '.join(parts)}."
    away = [(name, s.main.metric(name, "ece"), s.main.metric(name, "accuracy")) for name in s.sets[1:]]
    known = [(name, e["value"], a["value"]) for name, e, a in away if e is not None and a is not None]
    if known:
        worst = max(known, key=lambda k: k[1])
        best = min(known, key=lambda k: k[1])
        span = f"{best[1]:.3f} ({best[0]}) to {worst[1]:.3f} ({worst[0]})" if len(known) > 1 else f"{worst[1]:.3f} ({worst[0]})"
        rights = sorted(k[2] for k in known)
        right = f"{rights[0]:.1%} to {rights[-1]:.1%}" if len(known) > 1 else f"{rights[0]:.1%}"
        yield f"Out of domain its ECE is {span}, its accuracy {right}."
    for o in s.main.run.facts["overlaps"]:
        shared = f"{counted(o['rows'], 'example')} of {o['second']} ({o['share']:.1%})"
        yield f"Note: {shared} also in {o['first']}; figures there may flatter."


def show_runs(summary: RunSummary, console: Console | None = None) -> None:
    """Print a table for each set, and what they say."""
    s = summary
    if console is None:
        console = build_console()
    for name in s.sets:
        console.print(_table(s, name))
    console.print(
        Text("in brackets: 95% bootstrap intervals; * beyond what a perfectly calibrated model would show", style="dim")
    )
    console.print()
    for sentence in reading(s):
        console.print(Text(sentence), width=prose_width(console))


def write_runs_page(summary: RunSummary, path: Path) -> None:
    """One self-contained page on the runs, written aside and renamed."""
    write_text(render_runs(summary), path)


def render_runs(summary: RunSummary) -> str:
    """The page as text."""
    s = summary
    return render_template(
        "runs.html.jinja",
        s=s,
        runs=s.runs,
        reading=list(reading(s)),
        chart=CHART,
        counts=COUNTS,
        unit_x=CHART.x_ticks(unit_axis()),
        unit_y=CHART.y_ticks(unit_axis()),
        sets=list(s.sets),
        tables=[
            {"name": name, "where": _where(name), "rows": [_row(m, name) for m in s.models if name in m.facts["sets"]]}
            for name in s.sets
        ],
        scatters=[_scatter(s, name) for name in s.sets],
        curves=[c for c in (_curves(s, metric, title) for metric, title in CURVES) if c["lines"]],
        diagrams=list(_diagrams(s)),
        definitions=_definitions(s),
        version=__version__,
    )


# ---- parts -------------------------------------------------------------------------------------------------------------


def _where(name: str) -> str:
    return "in domain" if name == "test" else "out of domain"


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _difference(d: Any) -> str:
    word = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}[d.name]
    verdict = "may be chance" if d.better is None else "better" if d.better == "b" else "worse"
    return f"{word} {d.difference:+.3f} [{d.low:+.3f}, {d.high:+.3f}], {verdict}"


def _row(model: RunModel, name: str) -> dict[str, Any]:
    accepted = model.facts["sets"][name].get("accepted")
    return {
        "model": model,
        "given": model.facts["sets"][name]["given"],
        "calibrated": model.facts["sets"][name]["calibrated"],
        "accepted": accepted,
        "size": "–" if model.facts["parameters"] is None else _millions(model.facts["parameters"]),
        "ms": "–" if model.facts["ms_per_example"] is None else f"{model.facts['ms_per_example']:.2f}",
    }


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,}"


def _table(s: RunSummary, name: str) -> Table:
    rows = [_row(m, name) for m in s.models if name in m.facts["sets"]]
    count = s.main.run.facts["sizes"].get(name)
    table = Table(title=Text(f"{name} ({_where(name)}{f', {count:,} examples' if count else ''})"), title_justify="left")
    table.add_column("model")
    for title in ("size", "ms", "accuracy", "NLL", "Brier", "ECE", "ECE calibrated", "accepted", "of those right"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        given, after, accepted = row["given"], row["calibrated"], row["accepted"]
        table.add_row(
            Text(row["model"].title, style="bold" if row["model"] is s.main else ""),
            row["size"],
            row["ms"],
            _with_span(given["accuracy"]),
            _number(given["nll"]["value"]),
            _number(given["brier"]["value"]),
            _with_span(given["ece"]),
            "–" if after is None else _with_span(after["ece"]),
            "–" if accepted is None else f"{accepted['coverage']:.0%}",
            "–" if accepted is None or accepted["accuracy"] is None else f"{accepted['accuracy']:.1%}",
        )
    return table


def _with_span(figure: Mapping[str, Any]) -> str:
    mark = "*" if figure.get("beyond_chance") else ""
    return f"{_number(figure['value'])}{mark} [{_number(figure['low'])}, {_number(figure['high'])}]"


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"  # only an infinite figure is not in the file


def _scatter(s: RunSummary, name: str) -> dict[str, Any]:
    """Accuracy against ECE, as trained (filled) and calibrated (open), with intervals."""
    points = []
    for model in s.models:
        for state in ("given", "calibrated"):
            accuracy, ece = model.metric(name, "accuracy", state), model.metric(name, "ece", state)
            if accuracy is not None and ece is not None:
                points.append((model, state, accuracy, ece))
    if not points:
        return {"name": name, "points": [], "x_ticks": [], "y_ticks": []}
    x_axis = axis_of([value for _, _, _, ece in points for value in (0.0, ece["high"])], zero=True)
    y_axis = axis_of([value for _, _, accuracy, _ in points for value in (accuracy["low"], accuracy["high"])], percent=True)
    shapes = [
        {
            "number": model.number,
            "open": state == "calibrated",
            "main": model is s.main,
            "x": CHART.x(x_axis.share(ece["value"])),
            "y": CHART.y(y_axis.share(accuracy["value"])),
            "left": CHART.x(x_axis.share(ece["low"])),
            "right": CHART.x(x_axis.share(ece["high"])),
            "low": CHART.y(y_axis.share(accuracy["low"])),
            "high": CHART.y(y_axis.share(accuracy["high"])),
            "title": f"{model.title}, {STATES[state]}: accuracy {accuracy['value']:.3f}, ECE {ece['value']:.3f}",
        }
        for model, state, accuracy, ece in points
    ]
    return {
        "name": name,
        "where": _where(name),
        "points": shapes,
        "x_ticks": CHART.x_ticks(x_axis),
        "y_ticks": CHART.y_ticks(y_axis),
    }


def _curves(s: RunSummary, metric: str, title: str) -> dict[str, Any]:
    """A metric on dev after every epoch, one line per trained model."""
    courses = [(model, [epoch["dev"][metric] for epoch in model.run.history(model.stage)]) for model in s.models]
    courses = [(model, values) for model, values in courses if values]
    if not courses:
        return {"title": title, "lines": []}
    longest = max(len(values) for _, values in courses)
    x_axis = Axis(0.5, longest + 0.5, tuple(t for t in axis_of(range(1, longest + 1), whole=True).ticks if 1 <= t <= longest))
    y_axis = axis_of([value for _, values in courses for value in values])
    lines = []
    for model, values in courses:
        dots = [
            {
                "x": CHART.x(x_axis.share(epoch)),
                "y": CHART.y(y_axis.share(value)),
                "title": f"{model.title}, epoch {epoch}: {value:.4f}",
            }
            for epoch, value in enumerate(values, start=1)
        ]
        points = " ".join(f"{dot['x']},{dot['y']}" for dot in dots)
        lines.append({"number": model.number, "main": model is s.main, "points": points, "dots": dots})
    return {"title": title, "lines": lines, "x_ticks": CHART.x_ticks(x_axis), "y_ticks": CHART.y_ticks(y_axis)}


def _diagrams(s: RunSummary) -> Iterator[dict[str, Any]]:
    """Reliability diagrams: every model on test, and the main one elsewhere, as trained and calibrated."""
    shown = [(m, "test", "given") for m in s.models]
    shown += [
        (s.main, name, state) for name in s.sets for state in ("given", "calibrated") if (name, state) != ("test", "given")
    ]
    for model, name, state in shown:
        diagram = model.run.diagrams.get(model.stage, {}).get(name, {}).get(state)
        ece = model.metric(name, "ece", state)
        if diagram is None or ece is None:
            continue
        yield {
            "set": {"name": f"{model.title} on {name}", "where": _where(name)},
            "diagram": {"state": STATES[state], **reliability_chart(diagram), "ece": ece},
        }


def _definitions(s: RunSummary) -> list[dict[str, str]]:
    metrics = s.main.facts["sets"].get("test", {}).get("given", {})
    return [{"name": name, "here": metric["definition"]} for name, metric in metrics.items() if "definition" in metric]
