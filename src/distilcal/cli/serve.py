"""The command ``distilcal serve``: a student as an HTTP service."""

from __future__ import annotations

from typing import Any

import click

from distilcal.cli.console import echo, let_threads_sleep, log_to_console, plain_warnings
from distilcal.cli.options import ACCURACY, NumberRange


@click.command("serve")
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all of this machine's.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME",
              help="A name by which a proxy on this machine calls the service; may be given several times.")  # fmt: skip
@click.option("--stage", default="", help="Which model of a run.  [default: its student]")
@click.option("--accuracy", type=ACCURACY,
              help="Accuracy required of answers that are not handed over.  [default: that of the model's run]")  # fmt: skip
@click.option("--threshold", "confidence", type=NumberRange(0, 1),
              help="Lowest confidence of these answers, in place of an accuracy.")  # fmt: skip
@click.option("--max-loss", type=NumberRange(0, 1, min_open=True, max_open=True),
              help="In place of both: the accuracy that may be lost to the teacher; .005 is half a point.")  # fmt: skip
@click.option("--defer-to", metavar="TEACHER",
              help="Who answers instead of a human: a model as MODEL, RUN/STAGE, or the URL of a distilcal serve.")  # fmt: skip
@click.option("--max-batch", type=click.IntRange(1), default=256, show_default=True, help="Examples in a request.")
@click.option("--max-bytes", type=click.IntRange(1), default=1_000_000, show_default=True, help="Bytes of a request.")
@click.option("--max-chars", type=click.IntRange(1), default=100_000, show_default=True, help="Characters of an example.")
@click.option("--max-requests", type=click.IntRange(1), default=256, show_default=True,
              help="Requests under way, running or waiting; more are refused with 503.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True,
              help="Requests that the model runs at a time; each may use several cores.")  # fmt: skip
@click.option("--access-log", is_flag=True, help="Log a line for every request.")
def serve_command(model: str, stage: str, **settings: Any) -> None:
    """Serve a model over HTTP: /predict, /health, /docs, and a page to try it at /.

    MODEL is an .onnx, which needs no torch, the folder of a run, or a folder that save_pretrained wrote. With --defer-to, a
    teacher answers where the confidence is too low. Stop with Ctrl+C or SIGTERM: requests that run are answered first.
    """
    let_threads_sleep()
    from distilcal.api import load
    from distilcal.serve import serve

    with plain_warnings(), log_to_console():
        student = load(model, stage)
        serve(student, on_start=lambda url: echo(f"Serving {model} on {url}"), **settings)
