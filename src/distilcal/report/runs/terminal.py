"""Runs as tables and sentences on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distilcal.report.console import build_console, full_width, prose_width
from distilcal.report.formatting import format_percent
from distilcal.report.runs.answer import answer_sentences, decide
from distilcal.report.runs.sentences import cascade_sentence, endpoint_sentences, reading, run_warnings
from distilcal.report.runs.tables import domain, table_rows
from distilcal.runs import RunSummary

NAME_WIDTH = {" ": 40, "\n": 18}  # of the column of models, by what separates intervals; longer names take several lines
# The columns that a narrow window leaves out, first to last.
LEAST_NEEDED = (("Brier",), ("size",), ("accepted", "of those right"), ("ms",), ("NLL",), ("ECE calibrated",))


def show_runs(summary: RunSummary, console: Console | None = None) -> None:
    """Print the warnings, the answer, a table for each split, and what the tables say in sentences.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
    if console is None:
        console = build_console()
    width = prose_width(console)
    for warning in run_warnings(summary):
        console.print(Text.assemble(("warning: ", "bold yellow"), warning), width=width)
    answer = decide(summary)
    if answer is not None:
        console.print(Text(" ".join(answer_sentences(answer)), style="bold"), width=width)
    for sentence in endpoint_sentences(summary):
        console.print(Text(sentence), width=width)
    if cascade_sentence(summary):
        console.print(Text(cascade_sentence(summary)), width=width)
    console.print()
    left_out: dict[str, None] = {}
    for split in summary.sets:
        table, hidden = _fitting_table(summary, split, console)
        left_out |= dict.fromkeys(hidden)
        console.print(table)
    note = "with 95% bootstrap intervals; * beyond what a perfectly calibrated model would show"
    if left_out:
        note += f"; a wider window also shows {', '.join(left_out)}"
    console.print(Text(note, style="dim"), width=width)
    console.print()
    for sentence in reading(summary):
        console.print(Text(sentence), width=width)


def _fitting_table(summary: RunSummary, split: str, console: Console) -> tuple[Table, tuple[str, ...]]:
    """The table with as much as the window holds, and the titles of the columns that are left out.

    Where all columns do not fit, intervals are below their values; where they still do not fit, columns are left out.
    """
    table = _terminal_table(summary, split, separator=" ")
    if full_width(console, table) <= console.width:
        return table, ()
    hidden: tuple[str, ...] = ()
    for titles in ((), *LEAST_NEEDED):
        hidden += titles
        table = _terminal_table(summary, split, separator="\n", hidden=hidden)
        if full_width(console, table) <= console.width:
            break
    return table, hidden


def _terminal_table(summary: RunSummary, split: str, *, separator: str, hidden: Collection[str] = ()) -> Table:
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "size": lambda row: row["size"],
        "ms": lambda row: row["ms"],
        "accuracy": lambda row: _with_interval(row["given"]["accuracy"], separator),
        "NLL": lambda row: _number(row["given"]["nll"]["value"]),
        "Brier": lambda row: _number(row["given"]["brier"]["value"]),
        "ECE": lambda row: _with_interval(row["given"]["ece"], separator),
        "ECE calibrated": lambda row: "–" if row["calibrated"] is None else _with_interval(row["calibrated"]["ece"], separator),
        "accepted": lambda row: "–" if row["accepted"] is None else f"{row['accepted']['coverage']:.0%}",
        "of those right": _accepted_accuracy,
    }
    shown = {title: cell for title, cell in columns.items() if title not in hidden}
    count = summary.main.run.facts["sizes"].get(split)
    examples = f", {count:,} examples" if count else ""
    is_stacked = separator == "\n"
    table = Table(title=Text(f"{split} ({domain(split)}{examples})"), title_justify="left", show_lines=is_stacked)
    table.add_column("model", overflow="fold", max_width=NAME_WIDTH[separator])
    for title in shown:
        table.add_column(title.replace(" ", separator), justify="right", no_wrap=True)
    for row in table_rows(summary, split):
        name = Text(row["model"].title, style="bold" if row["model"] is summary.main else "")
        table.add_row(name, *(cell(row) for cell in shown.values()))
    return table


def _accepted_accuracy(row: Mapping[str, Any]) -> str:
    accepted = row["accepted"]
    return "–" if accepted is None or accepted["accuracy"] is None else format_percent(accepted["accuracy"])


def _with_interval(metric: Mapping[str, Any], separator: str) -> str:
    mark = "*" if metric.get("beyond_chance") else ""
    value, low, high = (_number(metric[key]) for key in ("value", "low", "high"))
    interval = f"[{low}, {high}]" if separator == " " else f"{low}–{high}"
    return f"{value}{mark}{separator}{interval}"


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"  # JSON has no infinity: metrics.json stores it as null
