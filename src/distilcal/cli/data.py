"""The commands ``distilcal data``: the benchmarks of the papers. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

import click

from distilcal.cli.console import echo


@click.group("data")
def data_command() -> None:
    """The benchmarks of the papers: what there is, and what is in it."""


@data_command.command("list")
def list_command() -> None:
    """All benchmarks, and where they would be read from: their folders under $DISTILCAL_DATA, or the hub."""
    from rich.table import Table

    from distilcal.data.catalogue import BENCHMARKS, benchmark_source
    from distilcal.report.console import build_console

    root = os.environ.get("DISTILCAL_DATA", "")
    table = Table(title="benchmarks", title_justify="left")
    for title in ("name", "task", "kind", "classes", "from"):
        table.add_column(title, justify="right" if title == "classes" else "left")
    for name, b in BENCHMARKS.items():
        is_here = bool(root) and (Path(root) / b.folder).is_dir()
        source = benchmark_source(b) if is_here or b.on_hub is not None else "not here"
        table.add_row(name, b.task, b.kind, str(len(b.classes)), source)
    build_console().print(table)
    if not root:
        echo("Set DISTILCAL_DATA to the folder that holds them; docs/benchmarks.md describes its layout.")


@data_command.command("show")
@click.argument("name")
def show_command(name: str) -> None:
    """Counts, classes, overlaps between splits, a few examples, licence and source of a benchmark."""
    from rich.table import Table
    from rich.text import Text

    from distilcal.data.catalogue import summarise_benchmark
    from distilcal.report.console import build_console

    summary = summarise_benchmark(name)
    b = summary.benchmark
    console = build_console()
    console.print(Text(f"{name}: {b.task} ({b.kind}, {len(b.classes)} classes)", style="bold"))
    table = Table()
    table.add_column("class")
    for split, size in summary.sizes.items():
        table.add_column(f"{split} ({size:,})", justify="right")
    for c in b.classes:
        table.add_row(Text(c), *(f"{summary.counts[split].get(c, 0):,}" for split in summary.sizes))
    console.print(table)
    lines = [f"{first} and {second} share {rows:,} examples" for (first, second), rows in summary.overlaps.items() if rows]
    lines += [f"{split} has {count:,} groups" for split, count in summary.groups.items()]
    lines += ["with the raters' votes as soft labels"] if summary.soft_labels else []
    for title, text in (("paper", b.paper), ("licence", b.licence), ("hub", b.hub), ("usual other domains", ", ".join(b.ood))):
        lines += [f"{title}: {text}"] if text else []
    for line in [*lines, f"note: {b.note}" if b.note else "", *(f"{c}: {text[:200]}" for c, text in summary.examples)]:
        if line:
            console.print(Text(line))
