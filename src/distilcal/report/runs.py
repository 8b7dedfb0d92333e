"""Runs side by side: student against the same student alone, against its teacher, in and out of domain, with size and speed.

Reads the folders of finished runs and trains nothing. ``summarise`` gathers, ``show_runs`` prints, ``write_runs_page`` draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distilcal import __version__
from distilcal.calibrate import load_calibrator
from distilcal.errors import InputError
from distilcal.evaluation import evaluate_set
from distilcal.io.atomic import read_json
from distilcal.metrics import Comparison, compare
from distilcal.predictions import Predictions
from distilcal.report.console import build_console, prose_width
from distilcal.report.evaluations.page import CHART, COUNTS, reliability_chart
from distilcal.report.html import render_template, write_text
from distilcal.selective import counted

SUMMED = ("accuracy", "confidence", "nll", "brier", "ece", "ada_ece", "sce", "oe", "entropy", "aurc")
STATES = {"given": "as trained", "calibrated": "calibrated"}
COMPARED = ("accuracy", "nll", "brier", "ece")
CURVES = (("nll", "NLL on dev"), ("ece", "ECE on dev"), ("entropy", "mean entropy of the posterior on dev, in nats"))


@dataclass(frozen=True)
class Run:
    """The folder of a finished run and what it says."""

    folder: Path
    facts: Mapping[str, Any]

    @property
    def main(self) -> str:
        return main_stage(self.facts["stages"])

    def predictions(self, stage: str, name: str) -> Predictions | None:
        path = self.folder / stage / "predictions" / f"{name}.npz"
        return Predictions.load(path) if path.exists() else None

    def history(self, stage: str) -> list[dict[str, Any]]:
        history: list[dict[str, Any]] = read_json(self.folder / stage / "history.json")
        return history


@dataclass(frozen=True)
class Model:
    """One model of one run: a row of the tables and a number in the charts."""

    number: int
    title: str
    run: Run
    stage: str
    facts: Mapping[str, Any]

    def figure(self, name: str, metric: str, state: str = "given") -> Mapping[str, Any] | None:
        """A figure with its interval, or None where the model was not measured there."""
        found = self.facts["sets"].get(name)
        return None if found is None or found[state] is None else found[state][metric]

    @property
    def role(self) -> str:
        """What it is to the others: taught by whom, teacher of whom."""
        taught = [name for name, other in self.run.facts["stages"].items() if other["teacher"] == self.stage]
        parts = [f"taught by {self.facts['teacher']}"] if self.facts["teacher"] else []
        parts += [f"teaches {', '.join(taught)}"] if taught else []
        return "; ".join(parts) or "no teacher"


@dataclass(frozen=True)
class Summary:
    """All that the tables, the words and the charts need."""

    models: tuple[Model, ...]
    main: Model
    sets: tuple[str, ...]  # test first
    comparisons: tuple[Comparison, ...]  # of the main model with the others, on test, as trained


def read_run(folder: Path) -> Run:
    """A finished run."""
    if not (folder / "metrics.json").exists():
        raise InputError("this is not the folder of a finished run", source=str(folder),
                         remedy="give one made by distilcal run or distill, or run it to its end")  # fmt: skip
    return Run(folder, read_json(folder / "metrics.json"))


def main_stage(stages: Mapping[str, Any]) -> str:
    """The stage a run is about: the last one with a teacher that nobody learns from, or else the last one."""
    teachers = {facts["teacher"] for facts in stages.values()}
    ends = [name for name in stages if name not in teachers]
    taught = [name for name in ends if stages[name]["teacher"]]
    found = taught or ends or list(stages)
    if "student" in found:
        return "student"
    return found[-1]


def summarise(runs: Sequence[Run]) -> Summary:
    """The models of all runs, and the main one of the first run against each of the others."""
    names = _titles(runs)
    models: list[Model] = []
    for run, name in zip(runs, names, strict=True):
        for stage, facts in run.facts["stages"].items():
            title = stage if len(runs) == 1 else f"{name}: {stage}"
            models.append(Model(len(models) + 1, title, run, stage, facts))
    main = next(m for m in models if m.run is runs[0] and m.stage == runs[0].main)
    sets = tuple(dict.fromkeys(["test", *(name for run in runs for name in run.facts["ood"])]))
    comparisons = []
    ours = main.run.predictions(main.stage, "test")
    for model in models:
        theirs = None if model is main else model.run.predictions(model.stage, "test")
        if ours is None or theirs is None:
            continue
        try:
            comparisons.append(compare(theirs.rename(model.title), ours.rename(main.title), COMPARED, intervals=1000))
        except InputError:
            continue  # runs on other data have no rows in common
    return Summary(tuple(models), main, sets, tuple(comparisons))


def reading(s: Summary) -> Iterator[str]:
    """What the figures say, in sentences."""
    accuracy, ece = s.main.figure("test", "accuracy"), s.main.figure("test", "ece")
    if accuracy is None or ece is None:
        return
    after = s.main.figure("test", "ece", "calibrated")
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
    away = [(name, s.main.figure(name, "ece"), s.main.figure(name, "accuracy")) for name in s.sets[1:]]
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


def show_runs(runs: Sequence[Run], console: Console | None = None) -> None:
    """Print a table for each set, and what they say."""
    s = summarise(runs)
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


def write_runs_page(runs: Sequence[Run], path: Path) -> None:
    """One self-contained page on the runs, written aside and renamed."""
    write_text(render_runs(runs), path)


def render_runs(runs: Sequence[Run]) -> str:
    """The page as text."""
    s = summarise(runs)
    return render_template(
        "runs.html.jinja",
        s=s,
        runs=runs,
        reading=list(reading(s)),
        chart=CHART,
        counts=COUNTS,
        ticks=[0, 0.2, 0.4, 0.6, 0.8, 1],
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


def _titles(runs: Sequence[Run]) -> list[str]:
    names = [str(run.facts["name"]) for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def _where(name: str) -> str:
    return "in domain" if name == "test" else "out of domain"


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _difference(d: Any) -> str:
    word = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}[d.name]
    verdict = "may be chance" if d.better is None else "better" if d.better == "b" else "worse"
    return f"{word} {d.difference:+.3f} [{d.low:+.3f}, {d.high:+.3f}], {verdict}"


def _row(model: Model, name: str) -> dict[str, Any]:
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


def _table(s: Summary, name: str) -> Table:
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


def _scatter(s: Summary, name: str) -> dict[str, Any]:
    """Accuracy against ECE, as trained (filled) and calibrated (open), with intervals."""
    points = []
    for m in s.models:
        for state in ("given", "calibrated"):
            a, e = m.figure(name, "accuracy", state), m.figure(name, "ece", state)
            if a is not None and e is not None:
                points.append((m, state, a, e))
    if not points:
        return {"name": name, "points": [], "x_ticks": [], "y_ticks": []}
    right = _nice(max(e["high"] for _, _, _, e in points))
    low, high, rungs = _ladder(min(a["low"] for _, _, a, _ in points), max(a["high"] for _, _, a, _ in points))

    def y(value: float) -> float:
        return CHART.y((value - low) / max(high - low, 1e-9))

    shapes = [
        {
            "number": m.number,
            "open": state == "calibrated",
            "main": m is s.main,
            "x": CHART.x(e["value"] / right),
            "y": y(a["value"]),
            "left": CHART.x(e["low"] / right),
            "right": CHART.x(e["high"] / right),
            "low": y(a["low"]),
            "high": y(a["high"]),
            "title": f"{m.title}, {STATES[state]}: accuracy {a['value']:.3f}, ECE {e['value']:.3f}",
        }
        for m, state, a, e in points
    ]
    steps = 5
    return {
        "name": name,
        "where": _where(name),
        "points": shapes,
        "x_ticks": [{"x": CHART.x(i / steps), "label": f"{right * i / steps:.3g}"} for i in range(steps + 1)],
        "y_ticks": [{"y": CHART.y(i / rungs), "label": f"{low + (high - low) * i / rungs:.0%}"} for i in range(rungs + 1)],
    }


def _ladder(low: float, high: float) -> tuple[float, float, int]:
    """Ends and number of steps of an axis of percentages: at most six steps of a round width."""
    for step in (1, 2, 5, 10, 20):
        first, last = math.floor(100 * low / step), math.ceil(100 * high / step)
        if last - first <= 6:
            break
    return first * step / 100, max(last, first + 1) * step / 100, max(last - first, 1)


def _nice(value: float) -> float:
    """A round number at or above a value, in steps that divide by five."""
    for step in (0.01, 0.025, 0.05, 0.1, 0.25, 0.5):
        if value <= step:
            return step
    return 1.0


def _curves(s: Summary, metric: str, title: str) -> dict[str, Any]:
    """A figure on dev after every epoch, one line per trained model."""
    found = [(m, [h["dev"][metric] for h in m.run.history(m.stage)]) for m in s.models]
    found = [(m, values) for m, values in found if values]
    if not found:
        return {"title": title, "lines": []}
    longest = max(len(values) for _, values in found)
    low, high = min(min(v) for _, v in found), max(max(v) for _, v in found)
    room = max(high - low, 1e-6) * 0.08
    low, high = max(0.0, low - room), high + room
    lines = []
    for m, values in found:
        places = [(CHART.x((i + 0.5) / longest), CHART.y((v - low) / (high - low))) for i, v in enumerate(values)]
        dots = [
            {"x": x, "y": y, "title": f"{m.title}, epoch {i + 1}: {v:.4f}"}
            for i, ((x, y), v) in enumerate(zip(places, values, strict=True))
        ]
        lines.append({"number": m.number, "main": m is s.main, "points": " ".join(f"{x},{y}" for x, y in places), "dots": dots})
    shown = [i for i in range(longest) if longest <= 12 or i % math.ceil(longest / 10) == 0]
    return {
        "title": title,
        "lines": lines,
        "x_ticks": [{"x": CHART.x((i + 0.5) / longest), "label": str(i + 1)} for i in shown],
        "y_ticks": [{"y": CHART.y(i / 4), "label": f"{low + (high - low) * i / 4:.3f}"} for i in range(5)],
    }


def _diagrams(s: Summary) -> Iterator[dict[str, Any]]:
    """Reliability diagrams: every model on test, and the main one elsewhere, as trained and calibrated."""
    wanted = [(m, "test", "given") for m in s.models]
    wanted += [
        (s.main, name, state) for name in s.sets for state in ("given", "calibrated") if (name, state) != ("test", "given")
    ]
    for model, name, state in wanted:
        said = model.run.predictions(model.stage, name)
        if said is None:
            continue
        if state == "calibrated":
            files = [model.run.folder / model.stage / f"calibrator.{kind}" for kind in ("json", "npz")]
            there = [f for f in files if f.exists()]
            if not there:
                continue
            said = load_calibrator(there[0])(said)
        report = evaluate_set(said, intervals=100)
        yield {
            "set": {"name": f"{model.title} on {name}", "where": _where(name)},
            "diagram": {
                "state": "as trained" if state == "given" else "calibrated",
                **reliability_chart(report),
                "report": report,
            },
        }


def _definitions(s: Summary) -> list[dict[str, str]]:
    figures = s.main.facts["sets"].get("test", {}).get("given", {})
    return [{"name": name, "here": figures[name]["definition"]} for name in SUMMED if "definition" in figures.get(name, {})]
