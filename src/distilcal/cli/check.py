"""The command ``distilcal check``: whether a store or a run is as it was written. Imports no torch unless it must."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from distilcal.cli.console import echo, plain_warnings
from distilcal.cli.options import FOLDER

if TYPE_CHECKING:
    from distilcal.integrity import Finding


@click.command("check")
@click.argument("folders", type=FOLDER, nargs=-1, required=True, metavar="STORE|RUN...")
@click.option(
    "--repair", is_flag=True, help="Remove what killed processes left, and what is damaged and can be computed again."
)
def check_command(folders: tuple[Path, ...], repair: bool) -> None:
    """Verify the checksums of all files, and say what is damaged, left over or foreign. Exits with 1 if there is any.

    --repair removes stale temporary files, locks and checkpoints, and damaged entries of a store, which are computed again
    when they are needed. Foreign files and the results of runs are never removed.
    """
    from distilcal.integrity import check_integrity

    is_clean = True
    for folder in folders:
        with plain_warnings():
            report = check_integrity(folder, repair=repair)
        for finding in report.findings:
            echo(str(finding))
        for note in report.notes:
            echo(f"note: {note}")
        echo(f"{folder}: {report.checked} entries of the {report.kind} verified, {_summary(report.findings)}")
        is_clean = is_clean and report.is_clean
    click.get_current_context().exit(0 if is_clean else 1)


def _summary(findings: list[Finding]) -> str:
    if not findings:
        return "nothing found"
    kinds = dict.fromkeys(finding.kind for finding in findings)
    counts = [f"{sum(finding.kind == kind for finding in findings)} {kind}" for kind in kinds]
    removed = sum(finding.repaired for finding in findings)
    return ", ".join(counts) + (f"; {removed} removed" if removed else "")
