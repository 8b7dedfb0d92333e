"""Results of a study on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distilcal.report.console import build_console, full_width, prose_width
from distilcal.report.formatting import one_line
from distilcal.report.studies.cells import (
    SIGNS,
    arrow,
    cell_text,
    comparison_state,
    format_difference,
    format_with_std,
    paper_text,
)
from distilcal.report.studies.results import PAGE, read_results
from distilcal.report.studies.sentences import claim_notes, format_duration, part_name, reading, table_notes, work_text

STYLES = {
    "holds": "green",
    "fails": "red",
    "no effect above δ": "cyan",
    "undecided": "yellow",
    "premise not met": "dim",
    "better": "bold green",
    "worse": "red",
    "differs": "",
}


def show_study(folder: Path, console: Console | None = None, *, tables: bool = False) -> None:
    """Print a summary of a study: what its tables hold and where they are, claims, failed jobs and where the page is.

    Parameters
    ----------
    folder : Path
        The folder of the study, with its ``results.json``.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    tables : bool
        Whether to print the tables themselves.

    Raises
    ------
    InputError
        If the folder holds no results of a study, or damaged ones.
    """
    results = read_results(folder)
    if console is None:
        console = build_console()
    width = prose_width(console)
    if tables:
        _print_tables(console, results)
    else:
        _print_summary(console, results, folder)
    _print_claims(console, results["claims"])
    if results["failures"]:
        console.print(Text("\nWhat failed", style="bold red"))
    for failure in results["failures"]:
        _print_indented(console, Text(f"– {failure['what']}: {one_line(failure['error'], 300)}"))
    console.print()
    for sentence in reading(results):
        console.print(Text(sentence), width=width)
    work = f"{work_text(results)}, in {format_duration(results['seconds'])}"
    page = f"; the page is {folder / PAGE}" if (folder / PAGE).exists() else ""
    console.print(Text(f"{results['name']}, scale {results['scale']}: {work}{page}"), soft_wrap=True)


def _print_summary(console: Console, results: Mapping[str, Any], folder: Path) -> None:
    """Print a line for each table: its cells, and how many are better or worse than what they are compared with."""
    summary = Table(title=Text(results["title"] or results["name"]), title_justify="left")
    for heading in ("table", "cells", "better", "worse"):
        summary.add_column(heading, justify="left" if heading == "table" else "right", no_wrap=heading != "table")
    for table in results["tables"]:
        cells = [cell for row in table["cells"] for cell in row if cell]
        states = [comparison_state(cell) for cell in cells]
        filled = sum(cell["mean"] is not None for cell in cells)
        count = f"{filled:,}" if filled == len(cells) else f"{filled:,} of {len(cells):,}"
        title = f"{table['name']}: {table['title']}" if table["title"] else table["name"]
        summary.add_row(Text(title), count, *(str(states.count(state) or "–") for state in ("better", "worse")))
    console.print(summary)
    console.print(Text(f"The tables are in {folder / 'tables'}.", style="dim"), soft_wrap=True)
    console.print()


def _print_tables(console: Console, results: Mapping[str, Any]) -> None:
    """Print every table; how to read one is printed below the first of its kind only."""
    printed: set[str] = set()
    for table in results["tables"]:
        for part in _fitting_tables(console, table):
            console.print(part)
        notes = [note for note in table_notes(results, table) if note not in printed]
        printed.update(notes)
        if notes:
            console.print(Text(" ".join(notes), style="dim"), width=prose_width(console))
        console.print()


def _print_claims(console: Console, claims: Sequence[Mapping[str, Any]]) -> None:
    """Print every claim with its verdict, and the comparisons of those that do not hold."""
    if claims:
        console.print(Text("Claims", style="bold"))
    for claim in claims:
        verdict = claim["verdict"]
        need = f" ({claim['need']})" if claim["need"] else ""
        sign = (f"{SIGNS[verdict]} {verdict}", f"bold {STYLES[verdict]}")
        _print_indented(console, Text.assemble(sign, f"  {claim['text']}{need}"))
        if claim_notes(claim):
            _print_indented(console, Text(" ".join(claim_notes(claim)), style="dim"), indent=4)
        if verdict == "holds":
            continue
        for part in claim["parts"]:
            found = "; ".join(part["unmet"]) or format_difference(part, part)
            _print_indented(console, Text(f"{SIGNS[part['verdict']]} {part_name(part)}: {found}", style="dim"), indent=6)


def _print_indented(console: Console, line: Text, indent: int = 2) -> None:
    console.print(Padding(line, (0, 0, 0, indent), expand=False), width=prose_width(console))


def _fitting_tables(console: Console, table: Mapping[str, Any]) -> list[Table]:
    """The table with as much in its cells as the window holds; if even the means are too wide, in several parts."""
    all_columns = range(len(table["columns"]))
    for std, paper in ((True, True), (False, True), (False, False)):
        whole = _terminal_table(table, all_columns, std=std, paper=paper)
        if full_width(console, whole) <= console.width:
            return [whole]
    per_part = len(all_columns)
    parts = _split_table(table, per_part)
    while per_part > 1 and any(full_width(console, part) > console.width for part in parts):
        per_part -= 1
        parts = _split_table(table, per_part)
    return parts


def _split_table(table: Mapping[str, Any], per_part: int) -> list[Table]:
    """Tables of the means with at most ``per_part`` columns each."""
    count = len(table["columns"])
    starts = range(0, count, max(per_part, 1))
    return [_terminal_table(table, range(i, min(i + per_part, count)), std=False, paper=False) for i in starts]


def _terminal_table(table: Mapping[str, Any], columns: Sequence[int], *, std: bool, paper: bool) -> Table:
    terminal_table = Table(title=Text(table["title"] or table["name"]), title_justify="left")
    terminal_table.add_column("")
    for i in columns:
        terminal_table.add_column(Text(table["columns"][i]), justify="right", no_wrap=True)
    for name, cells in zip(table["rows"], table["cells"], strict=True):
        texts = [_terminal_cell(cells[i], std=std, paper=paper) for i in columns]
        terminal_table.add_row(Text(name), *texts)
    return terminal_table


def _terminal_cell(cell: Mapping[str, Any] | None, *, std: bool, paper: bool) -> Text:
    """A mean with the arrow and colour of its comparison, and in brackets what the paper reports."""
    content = cell_text(cell, std)
    if arrow(cell):
        content = f"{arrow(cell)} {content}"
    is_empty = cell is None or cell["mean"] is None
    text = Text(content, style="dim" if is_empty else STYLES.get(comparison_state(cell), ""))
    if cell is not None and paper and paper_text(cell):
        paper_mean = paper_text(cell) if std else format_with_std(cell, cell["paper"]["mean"], None)
        text.append(f" ({paper_mean})", style="dim")
    return text
