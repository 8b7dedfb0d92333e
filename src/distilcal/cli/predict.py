"""The command ``distilcal predict``: labels for new data with a model of a run."""

from __future__ import annotations

from pathlib import Path

import click

from distilcal.cli.console import counting_bar, let_threads_sleep, plain_warnings
from distilcal.cli.options import FOLDER


@click.command("predict")
@click.argument("run", type=FOLDER)
@click.argument("data")
@click.option("-o", "--output", type=FOLDER, required=True, help="A .csv: id, label, confidence, hand_over.")
@click.option("--stage", default="", help="Which model of the run.  [default: its student]")
@click.option("--text", default="", help="Column of texts, if other than in the run's own data.")
@click.option("--pair", default="", help="Column of second texts.")
@click.option("--id", "id_column", default="", help="Column of ids.")
def predict_command(run: Path, data: str, output: Path, stage: str, text: str, pair: str, id_column: str) -> None:
    """Label new data with a model of a run: label, calibrated confidence, and whether to hand over to a human."""
    let_threads_sleep()
    from distilcal.pipeline import predict_file

    with plain_warnings(), counting_bar("predicting") as on_progress:
        written = predict_file(
            run, data, output, stage=stage, text=text, pair=pair, id_column=id_column, on_progress=on_progress
        )
    if written.threshold is None:
        click.echo(f"Wrote {output}: {written.rows:,} rows, all to hand over: no confidence reached the accuracy on dev.")
        return
    share = written.handed_over / written.rows
    click.echo(
        f"Wrote {output}: {written.rows:,} rows, {written.handed_over:,} of them ({share:.0%}) "
        f"below {written.threshold:.3f}, to hand over."
    )
