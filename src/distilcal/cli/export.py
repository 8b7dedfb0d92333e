"""The command ``distilcal export``: a student as an ONNX file or as a folder for transformers."""

from __future__ import annotations

from pathlib import Path

import click

from distilcal.cli.console import echo, let_threads_sleep, plain_warnings
from distilcal.cli.options import FOLDER, NumberRange


@click.command("export")
@click.argument("source")
@click.argument("target", type=FOLDER)
@click.option("--int8", is_flag=True, help="Weights in 8 bits: a quarter of the size, and faster.")
@click.option("--max-drop", type=NumberRange(min=0), default=0.5, show_default=True,
              help="Points of test accuracy that 8 bits may cost.")  # fmt: skip
@click.option("--stage", default="", help="Which model of a run.  [default: its student]")
@click.option("--dev", default="", help="Labelled data to calibrate 8 bits on.  [default: dev of the run]")
@click.option("--test", default="", help="Labelled data to measure on.  [default: test of the run]")
@click.option("--text", default="", help="Column of texts in --dev and --test.")
@click.option("--pair", default="", help="Column of second texts.")
@click.option("--label", default="", help="Column of labels.")
def export_command(
    source: str,
    target: Path,
    int8: bool,
    max_drop: float,
    stage: str,
    dev: str,
    test: str,
    text: str,
    pair: str,
    label: str,
) -> None:
    """Ship a student: TARGET is a name.onnx, or a folder for transformers.

    SOURCE is the folder of a run, a folder that save_pretrained wrote, or one of transformers. An .onnx gives calibrated
    probabilities without torch; with --int8 it is calibrated again on dev and compared with the float file on test.
    """
    let_threads_sleep()
    from distilcal.data import Columns
    from distilcal.export.files import export_student

    columns = Columns(text=text, pair=pair, label=label or "label") if text or pair or label else None
    with plain_warnings():
        report = export_student(source, target, stage=stage, int8=int8, max_drop=max_drop, dev=dev, test=test, columns=columns)
    if report is None:
        echo(f"Wrote {target}: transformers loads it, and its README.md is the model card.")
        echo(f"Next: distilcal predict {target} new.csv -o labels.csv")
        return
    echo(str(report))
    echo(f"Next: distilcal predict {target} new.csv -o labels.csv, or distilcal serve {target}")
