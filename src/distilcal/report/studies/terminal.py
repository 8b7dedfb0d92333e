"""Results of a study on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distilcal.report.console import build_console, prose_width
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
from distilcal.report.studies.sentences import format_duration, reading, table_notes, work_text

STYLES = {"holds": "green", "fails": "red", "undecided": "yellow", "better": "bold green", "worse": "red", "differs": ""}


def show_study(folder: Path, console: Console | None = None) -> None:
    """Print tables, claims, what failed and where the page is."""
    results = read_results(folder)
    if console is None:
        console = build_console()
    width = prose_width(console)
    printed: dict[str, None] = {}  # how to read a table is printed below the first of its kind
    for table in results["tables"]:
        for part in _fitting(console, table):
            console.print(part)
        notes = [note for note in table_notes(results, table) if note not in printed]
        printed |= dict.fromkeys(notes)
        if notes:
            console.print(Text(" ".join(notes), style="dim"), width=width)
        console.print()
    if results["claims"]:
        console.print(Text("Claims", style="bold"))
    for claim in results["claims"]:
        verdict = claim["verdict"]
        need = f" ({claim['need']})" if claim["need"] else ""
        line = Text.assemble((f"{SIGNS[verdict]} {verdict}", f"bold {STYLES[verdict]}"), f"  {claim['text']}{need}")
        console.print(Padding(line, (0, 0, 0, 2), expand=False), width=width)
        for part in claim["parts"] if verdict != "holds" else []:
            line = Text(f"{SIGNS[part['verdict']]} {part['what']}: {format_difference(part, part)}", style="dim")
            console.print(Padding(line, (0, 0, 0, 6), expand=False), width=width)
    if results["failures"]:
        console.print(Text("\nWhat failed", style="bold red"))
    for failure in results["failures"]:
        line = Text(f"– {failure['what']}: {one_line(failure['error'], 300)}")
        console.print(Padding(line, (0, 0, 0, 2), expand=False), width=width)
    console.print()
    for sentence in reading(results):
        console.print(Text(sentence), width=width)
    work = f"{work_text(results)}, in {format_duration(results['seconds'])}"
    page = f"; the page is {folder / PAGE}" if (folder / PAGE).exists() else ""
    console.print(Text(f"{results['name']}, scale {results['scale']}: {work}{page}"), soft_wrap=True)


def _fitting(console: Console, table: Mapping[str, Any]) -> list[Table]:
    """The table with as much in its cells as the window holds; if even the means are too wide, in several parts."""
    for std, paper in ((True, True), (False, True), (False, False)):
        made = _terminal_table(table, range(len(table["columns"])), std, paper)
        if _widest(console, made) <= console.width:
            return [made]
    each = len(table["columns"])
    while each > 1 and any(_widest(console, part) > console.width for part in _parts(table, each)):
        each -= 1
    return _parts(table, each)


def _parts(table: Mapping[str, Any], each: int) -> list[Table]:
    count = len(table["columns"])
    return [_terminal_table(table, range(i, min(i + each, count)), False, False) for i in range(0, count, max(each, 1))]


def _widest(console: Console, table: Table) -> int:
    """How wide a table is that nothing squeezes."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def _terminal_table(table: Mapping[str, Any], columns: Sequence[int], std: bool, paper: bool) -> Table:
    made = Table(title=Text(table["title"] or table["name"]), title_justify="left")
    made.add_column("")
    for i in columns:
        made.add_column(Text(table["columns"][i]), justify="right", no_wrap=True)
    for name, cells in zip(table["rows"], table["cells"], strict=True):
        shown = []
        for cell in (cells[i] for i in columns):
            lacking = cell is None or cell["mean"] is None
            content = f"{arrow(cell)} {cell_text(cell, std)}" if arrow(cell) else cell_text(cell, std)
            text = Text(content, style="dim" if lacking else STYLES.get(comparison_state(cell), ""))
            if paper and paper_text(cell):
                paper_mean = paper_text(cell) if std else format_with_std(cell, cell["paper"]["mean"], None)
                text.append(f" ({paper_mean})", style="dim")
            shown.append(text)
        made.add_row(Text(name), *shown)
    return made
