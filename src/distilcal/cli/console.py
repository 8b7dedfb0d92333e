"""What the commands share on the terminal: log lines, progress bars, warnings as one line each."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from distilcal.report.formatting import STEERING, printable
from distilcal.report.progress import TrainingBars
from distilcal.report.progress import counting_bar as counting_bar

if TYPE_CHECKING:
    from distilcal.training import TrainingProgress


def echo(message: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a message of which nothing can steer the terminal; all commands print through this or a ReportConsole.

    Parameters
    ----------
    message : object
        What to print, with data of the user in it: ids, class names, names of files.
    err : bool, default False
        Whether to print on standard error.
    nl : bool, default True
        Whether to end the line.
    """
    try:
        click.echo(printable(str(message)), err=err, nl=nl)
    except OSError as error:
        if not err:
            _go_on_unread(error)
            return
        # A log that nobody reads any more, or on a full disk, does not stop the work.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def echo_json(value: Any) -> None:
    """Print a value as JSON; what could steer a terminal is escaped, so that the value stays the same.

    Parameters
    ----------
    value : object
        Anything JSON can represent.
    """
    text = _escaped(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # standard output would have "?" in place of what it lacks
        text = _escaped(json.dumps(value, indent=2, allow_nan=False))
    try:
        click.echo(text)
    except OSError as error:
        _go_on_unread(error)


def _go_on_unread(error: OSError) -> None:
    """Print nothing more if nobody reads it; any other error of standard output is raised."""
    if not isinstance(error, BrokenPipeError):
        raise error
    from distilcal.report.console import discard_output

    discard_output()


def _escaped(text: str) -> str:
    return STEERING.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


class ConsoleHandler(logging.Handler):
    """Log records as lines on standard error, and the progress of training as a bar below them or a line a minute.

    A record stops the bar; the next step of training shows it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bars = TrainingBars()

    def emit(self, record: logging.LogRecord) -> None:
        self.bars.stop()
        prefix = "note: " if record.levelno >= logging.WARNING else ""
        text = self.format(record)
        echo(prefix + (text if record.exc_info else text.replace("\n", " ")), err=True)

    def show_progress(self, stage: str, progress: TrainingProgress) -> None:
        """Show the parts of the loss, the speed and the time left; once a minute where standard error is no terminal."""
        self.bars.show(stage, progress)


@contextmanager
def log_to_console() -> Iterator[ConsoleHandler]:
    """Show the records of the "distilcal" logger while a command runs; of several processes only the main one speaks."""
    handler = ConsoleHandler()
    logger = logging.getLogger("distilcal")
    level = logger.level
    if is_main_process():
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        handler.bars.stop()
        logger.removeHandler(handler)
        logger.setLevel(level)


def is_main_process() -> bool:
    """Whether this is the first of the processes that a launcher started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def share_bar(description: str, *, quiet: bool = False) -> Iterator[Callable[[float], None] | None]:
    """A bar over a share of work from 0 to 1: a callback; None if quiet."""
    with counting_bar(description, shown=not quiet) as on_progress:
        yield None if on_progress is None else lambda share: on_progress(round(100 * share), 100)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show Python's warnings as one line each, without the line of code that they come from."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        echo(f"note: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def let_threads_sleep() -> None:
    """Let torch's threads sleep while they wait: spinning, they slow a busy machine down many times over.

    Must come before torch is imported, which reads the variable once.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
