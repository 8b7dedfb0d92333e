"""A ModelEvaluation as tables and a paragraph on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distilcal.evaluation import ModelEvaluation, SetEvaluation
from distilcal.metrics import Comparison, MetricValue
from distilcal.report.console import build_console, print_list, prose_width
from distilcal.report.evaluations.sentences import next_steps, reading
from distilcal.report.formatting import format_p_value
from distilcal.report.verdicts import winner
from distilcal.selective import counted

COMPARISON_NOTE = "better: the interval excludes 0, and p after Holm's correction for all metrics is below 0.05"
SHIFT_METRICS = ("accuracy", "confidence", "nll", "brier", "ece", "ada_ece", "sce", "smooth_ece")


def show(evaluation: ModelEvaluation, console: Console | None = None) -> None:
    """Print the tables of an evaluation, what they mean and what to do next.

    Text from the user's files is never read as markup.

    Parameters
    ----------
    evaluation : ModelEvaluation
        The evaluation.
    console : rich.console.Console or None
        The console to print on; None is one on standard output.
    """
    if console is None:
        console = build_console()
    a = evaluation
    console.print(_metrics_table(a.test, a.calibrated, console.width))
    console.print(Text("* larger than 95% of perfectly calibrated models would show at this number of rows", style="dim"))
    if a.ood:
        console.print(_shift_table(a))
    if a.comparison is not None:
        console.print(_comparison_table(a.comparison))
        console.print(Text(COMPARISON_NOTE, style="dim"), width=prose_width(console))
    console.print()
    console.print(Text(" ".join(reading(a))), width=prose_width(console))
    console.print(Text("\nNext", style="bold"))
    print_list(console, next_steps(a))


def _metrics_table(before: SetEvaluation, after: SetEvaluation | None, width: int) -> Table:
    e = before.evaluation
    table = Table(title=Text(f"{before.name}: {counted(e.rows)}, {e.classes} classes"), title_justify="left")
    table.add_column("metric", no_wrap=True)
    _add_columns(table, ["value", f"{e.level:.0%} interval", "chance"])
    # A narrow window shows fewer columns, not squeezed ones; --json and --html have all of them.
    second_interval = after is not None and width >= 100
    definitions = width >= (130 if after is not None else 100)
    if after is not None:
        _add_columns(table, ["calibrated", f"{e.level:.0%} interval"][: 1 + second_interval])
    if definitions:
        table.add_column("definition", style="dim", overflow="fold")
    for name, figure in e.metrics.items():
        cells = [Text(name), _value(figure), Text(_span(figure)), Text("" if figure.null is None else f"{figure.null:.4f}")]
        if after is not None:
            cells += [_value(after.evaluation[name]), Text(_span(after.evaluation[name]))][: 1 + second_interval]
        table.add_row(*cells, *([Text(figure.definition)] if definitions else []))
    return table


def _shift_table(a: ModelEvaluation) -> Table:
    table = Table(title=Text("in and out of domain"), title_justify="left")
    table.add_column("metric")
    sets = [(a.test, a.calibrated), *a.ood]
    for before, after in sets:
        table.add_column(Text(before.name), justify="right")
        if after is not None:
            table.add_column(Text("calibrated"), justify="right")
    for name in SHIFT_METRICS:
        if name in a.test.evaluation.metrics:
            reports = [report for pair in sets for report in pair if report is not None]
            table.add_row(Text(name), *(_value(r.evaluation[name]) for r in reports))
    if a.threshold.reached:
        for title, values in (
            (f"above {a.threshold.confidence:.3f}", [f"{c.coverage:.1%}" for c in a.checks]),
            ("of those right", ["–" if math.isnan(c.accuracy) else f"{c.accuracy:.1%}" for c in a.checks]),
        ):
            # The threshold is for the last column of each set; without calibration the first set is where it was chosen.
            cells = [Text(v) for v in values] if a.calibrated is not None else [Text(""), *(Text(v) for v in values)]
            spaced = [part for cell in cells for part in ((Text(""), cell) if a.calibrated is not None else (cell,))]
            table.add_row(Text(title), *spaced, style="bold")
    return table


def _comparison_table(c: Comparison) -> Table:
    table = Table(title=Text(f"{c.b} against {c.a}, both as given: {counted(c.rows)} shared"), title_justify="left")
    table.add_column("metric")
    _add_columns(table, [c.a, c.b, "difference", f"{c.level:.0%} interval", "p", "p (Holm)"])
    table.add_column("better")
    for d in c.differences.values():
        better = winner(c, d.name)
        numbers = [f"{d.a:.4f}", f"{d.b:.4f}", f"{d.difference:+.4f}", f"[{d.low:+.4f}, {d.high:+.4f}]"]
        numbers += [format_p_value(d.p_value), format_p_value(d.p_holm)]
        table.add_row(Text(d.name), *map(Text, numbers), Text(better, style="dim" if better == "–" else "bold"))
    return table


def _add_columns(table: Table, titles: Iterable[str]) -> None:
    for title in titles:
        table.add_column(Text(title), justify="right", no_wrap=True)


def _value(figure: MetricValue) -> Text:
    marked = figure.beyond_chance is True
    return Text(f"{figure.value:.4f}{'*' if marked else ' '}", style="bold" if marked else "")


def _span(figure: MetricValue) -> str:
    return "" if figure.low is None or figure.high is None else f"[{figure.low:.4f}, {figure.high:.4f}]"
