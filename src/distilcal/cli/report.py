"""The command ``distilcal report``: runs compared. Imports no torch."""

from __future__ import annotations

from pathlib import Path

import click

from distilcal.cli.console import echo
from distilcal.cli.options import FOLDER, check_page_name


@click.command("report")
@click.argument("runs", type=FOLDER, nargs=-1, required=True)
@click.option("--html", type=FOLDER, help="Also write a self-contained page.")
def report_command(runs: tuple[Path, ...], html: Path | None) -> None:
    """Compare the models of one or more runs: accuracy, calibration, size and speed, in and out of domain."""
    from distilcal.io.atomic import check_output, refuse_same_file
    from distilcal.report.runs.page import write_runs_page
    from distilcal.report.runs.terminal import show_runs
    from distilcal.runs import read_run, summarise_runs

    if html is not None:
        check_output(html)
        # Pages in the folder of a run may be replaced; all else there belongs to its results.
        refuse_same_file([file for folder in runs for file in folder.rglob("*") if file.suffix != ".html"], [html])
        check_page_name(html)
    summary = summarise_runs([read_run(folder) for folder in runs])
    if html is not None:
        write_runs_page(summary, html)
    show_runs(summary)
    if html is not None:
        echo(f"Wrote {html}: open it in a browser.")
