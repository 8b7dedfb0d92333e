"""The command line: the group of all commands, and how their errors are shown.

Each command is one function that calls one function of the library. Heavy imports are inside the functions, so that every
command answers fast and ``distilcal eval`` needs no torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
from distilcal.cli.signals import Stop, StoppedBySignal, stop_on_signals
from distilcal.cli.streams import is_output_read, open_closed_streams
from distilcal.cli.study import study_command
from distilcal.cli.sweep import sweep_command
from distilcal.cli.train import distill_command, run_command
from distilcal.errors import DistilcalError, InputError, optional_packages

LONGEST_MESSAGE = 2000  # characters of an error
TELLING = {"-h", "--help", "--version"}  # options that print something and end the command
ONLY_TELLS = "distilcal.only_tells"  # key in a context: whether such an option was given


class Commands(click.Group):
    """Every mistake is one line on standard error and exit code 2.

    A command that is interrupted exits with 130, one that SIGTERM stops with 143 and one that SIGHUP stops with 129.
    """

    def main(self, *args: Any, **settings: Any) -> Any:
        open_closed_streams()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows "?" in its place
        with stop_on_signals() as stop:
            code = self._run(stop, *args, **settings)
        sys.exit(code)

    def _run(self, stop: Stop, *args: Any, **settings: Any) -> int:
        """Run a command, show its error, and return its exit code."""
        try:
            with optional_packages("this command"):
                code = super().main(*args, **{**settings, "standalone_mode": False})
            sys.stdout.flush()
        except (click.Abort, KeyboardInterrupt):
            return _stopped(stop)
        except Exception as error:
            # A library that was stopped while it was imported may have failed in its own way.
            return _failed(error) if stop.number is None else _stopped(stop)
        return code if isinstance(code, int) else 0

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **settings: Any) -> click.Context:
        only_tells = not TELLING.isdisjoint(args)
        with _broken_pipes(only_tells):
            context = super().make_context(info_name, args, *more, **settings)
        context.meta[ONLY_TELLS] = only_tells
        return context

    def invoke(self, context: click.Context) -> Any:
        _check_current_folder()
        try:
            with _broken_pipes(context.meta[ONLY_TELLS]):
                return super().invoke(context)
        except StoppedBySignal as stopped:  # click would print an empty line, which follows the ^C of a terminal
            raise click.Abort from stopped


def _check_current_folder() -> None:
    """Without it no relative path leads anywhere, and torch cannot be imported: its library ends the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InputError("the current folder does not exist any more", remedy="change to one that does") from None


@contextmanager
def _broken_pipes(only_tells: bool) -> Iterator[None]:
    """End a command that only tells something, as its help, which nobody reads; what else is broken is an error.

    Click would exit with 1, without a word, whichever pipe it is. What commands print themselves never comes here.
    """
    try:
        yield
    except BrokenPipeError as error:
        if not only_tells or is_output_read():
            raise DistilcalError("the connection to another process broke", remedy="start the command again") from error
        _discard_output()
        raise click.exceptions.Exit(0) from error


def _discard_output() -> None:
    from distilcal.report.console import discard_output  # imports rich

    discard_output()


def _stopped(stop: Stop) -> int:
    echo(stop.message, err=True)
    return stop.exit_code


def _failed(error: Exception) -> int:
    """Show an error of the user or the system; one of ours is raised again."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            echo(error.format_message(), err=True)
            return 2
        case click.ClickException():
            return _fail(error.format_message())
        case DistilcalError():
            return _fail(str(error))
        case MemoryError():
            return _fail("there is not enough memory for this input; take a sample of rows")
        case BrokenPipeError():  # of the last flush
            _discard_output()
            return 0
        case OSError():
            names = [name for name in (error.filename, error.filename2) if isinstance(name, str)]
            where = f"{' to '.join(names)}: " if names else ""
            return _fail(f"{where}cannot read or write: {error.strerror or error}; check the path and the room on the disk")
    raise error


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
