"""The command line: the group of all commands, and how their errors are shown.

Each command is one function that calls one function of the library. Heavy imports are inside the functions, so that every
command answers fast and ``distilcal eval`` needs no torch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from distilcal import __version__
from distilcal.cli.cascade import cascade_command
from distilcal.cli.check import check_command
from distilcal.cli.console import echo
from distilcal.cli.data import data_command
from distilcal.cli.evaluate import evaluate_command
from distilcal.cli.example import example_command
from distilcal.cli.export import export_command
from distilcal.cli.maps import map_command
from distilcal.cli.predict import predict_command
from distilcal.cli.report import report_command
from distilcal.cli.schema import schema_command
from distilcal.cli.serve import serve_command
from distilcal.cli.signals import StoppedBySignal, stop_on_signals
from distilcal.cli.study import study_command
from distilcal.cli.sweep import sweep_command
from distilcal.cli.train import distill_command, run_command
from distilcal.errors import DistilcalError, optional_packages

LONGEST_MESSAGE = 2000  # characters of an error


class Commands(click.Group):
    """Every mistake is one line on standard error and exit code 2.

    A command that is interrupted exits with 130, one that SIGTERM stops with 143 and one that SIGHUP stops with 129.
    """

    def main(self, *args: Any, **settings: Any) -> Any:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by the caller
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows "?" in its place
        try:
            with optional_packages("this command"), stop_on_signals():
                code = super().main(*args, **{**settings, "standalone_mode": False})
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            echo(error.format_message(), err=True)
            code = 2
        except click.ClickException as error:
            code = _fail(error.format_message())
        except DistilcalError as error:
            code = _fail(str(error))
        except MemoryError:
            code = _fail("there is not enough memory for this input; take a sample of rows")
        except click.Abort:
            echo("stopped", err=True)
            code = 130
        except BrokenPipeError:
            # Whoever read our output has had enough. Python would complain once more when it closes the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except OSError as error:
            names = [name for name in (error.filename, error.filename2) if isinstance(name, str)]
            where = f"{' to '.join(names)}: " if names else ""
            code = _fail(f"{where}cannot read or write: {error.strerror or error}; check the path and the room on the disk")
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except StoppedBySignal as stopped:
            echo(f"stopped by {stopped}", err=True)
            raise click.exceptions.Exit(stopped.exit_code) from None


def _fail(message: str) -> int:
    line = " ".join(message.split())
    if len(line) > LONGEST_MESSAGE:  # a value of the user may be a whole document
        line = f"{line[: LONGEST_MESSAGE // 2]} … {line[-LONGEST_MESSAGE // 2 :]}"
    echo(f"error: {line}", err=True)
    return 2


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="distilcal")
def main() -> None:
    """Classifiers that know when they are wrong: distil them, measure how far their confidence can be trusted, calibrate it."""


for _command in (
    evaluate_command,
    cascade_command,
    run_command,
    distill_command,
    predict_command,
    export_command,
    serve_command,
    report_command,
    example_command,
    data_command,
    study_command,
    sweep_command,
    map_command,
    check_command,
    schema_command,
):
    main.add_command(_command)
