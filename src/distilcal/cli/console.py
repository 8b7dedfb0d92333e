"""What the commands share on the terminal: log lines, progress bars, warnings as one line each."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from distilcal.report.progress import TrainingBars
from distilcal.report.progress import counting_bar as counting_bar

if TYPE_CHECKING:
    from distilcal.training import TrainingProgress


class ConsoleHandler(logging.Handler):
    """Log records as lines on standard error and, on a terminal, the progress of training as a bar below them.

    A record stops the bar; the next step of training shows it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bars = TrainingBars()

    def emit(self, record: logging.LogRecord) -> None:
        self.bars.stop()
        prefix = "note: " if record.levelno >= logging.WARNING else ""
        click.echo(prefix + self.format(record), err=True)

    def show_progress(self, stage: str, progress: TrainingProgress) -> None:
        """Show the parts of the loss, the speed and the time left; nothing where standard error is no terminal."""
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
    """A bar over a share of work from 0 to 1: a callback; None if quiet or where standard error is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=1.0)
        yield lambda share: bar.update(task, completed=share)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show Python's warnings as one line each, without the line of code that they come from."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        click.echo(f"note: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def let_threads_sleep() -> None:
    """Let torch's threads sleep while they wait: spinning, they slow a busy machine down many times over.

    Must come before torch is imported, which reads the variable once.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
