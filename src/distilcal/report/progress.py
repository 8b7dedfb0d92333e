"""How far work is: a bar on a terminal, a line in a notebook, and a line a minute where output is redirected."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress

NOTEBOOK_SECONDS = 0.25  # between two updates of a line in a notebook
LINE_SECONDS = 60.0  # between two lines where output is redirected
BAR_WIDTH = 30


class Bar(Protocol):
    """Something that shows how much of the work is done."""

    def update(self, description: str, done: float, total: float) -> None:
        """Show a description and the share of the work that is done."""

    def stop(self) -> None:
        """Remove the bar."""


class TerminalBar:
    """A bar on standard error, with the time that is left; it disappears when it is stopped."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from distilcal.report.console import ReportConsole

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
        self.progress: Progress = Progress(*columns, console=ReportConsole(stderr=True), transient=True)
        self.progress.add_task("", total=None)
        self.progress.start()

    def update(self, description: str, done: float, total: float) -> None:
        """Show a description and the share of the work that is done."""
        task = self.progress.tasks[0]
        speed = f" {task.speed:.1f} steps/s" if task.speed else ""
        self.progress.update(task.id, total=total, completed=done, description=description + speed)

    def stop(self) -> None:
        """Remove the bar from the terminal."""
        self.progress.stop()


class NotebookBar:
    """A line below the cell of a notebook that is replaced as work goes on. Needs no widgets."""

    def __init__(self) -> None:
        from importlib import import_module

        display = import_module("IPython.display").display
        self._handle: Any = display({"text/plain": ""}, raw=True, display_id=True)
        self._shown = 0.0

    def update(self, description: str, done: float, total: float) -> None:
        """Show a description and the share of the work that is done, a few times a second."""
        now = time.monotonic()
        if done < total and now - self._shown < NOTEBOOK_SECONDS:
            return
        self._shown = now
        filled = int(BAR_WIDTH * done / total)
        bar = "━" * filled + "─" * (BAR_WIDTH - filled)
        self._handle.update({"text/plain": f"{description} {bar} {done / total:.0%}"}, raw=True)

    def stop(self) -> None:
        """Empty the line."""
        self._handle.update({"text/plain": ""}, raw=True)


class LineBar:
    """A line on standard error once a minute, for output that goes to a file; short work writes none."""

    def __init__(self) -> None:
        self._began = self._shown = time.monotonic()
        self._first: float | None = None

    def update(self, description: str, done: float, total: float) -> None:
        """Write a description, the share of the work that is done and the time that is left, if a minute has passed."""
        now = time.monotonic()
        if self._first is None:
            self._began, self._first = now, done
        if now - self._shown < LINE_SECONDS:
            return
        self._shown = now
        left = ""
        if done > self._first:
            seconds = (now - self._began) / (done - self._first) * (total - done)
            left = f", about {_rough_time(seconds)} left"
        with suppress(OSError):  # a log that nobody reads any more, or on a full disk, does not stop the work
            print(f"{description}: {done / total:.0%}{left}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Write nothing more."""


def _rough_time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def new_bar() -> Bar:
    """Return a bar for where this process writes to.

    Returns
    -------
    Bar
        For a notebook, for a terminal, or for a file.
    """
    if is_notebook():
        return NotebookBar()
    return TerminalBar() if sys.stderr.isatty() else LineBar()


def is_notebook() -> bool:
    """Return whether output is shown in a notebook, as rich finds out.

    Returns
    -------
    bool
    """
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


class TrainingBars:
    """Show the training of one stage after the other; `show` is an ``on_progress`` of ``distilcal.pipeline.run_recipe``."""

    def __init__(self) -> None:
        self.bar: Bar | None = None
        self._stage = ""

    def show(self, stage: str, progress: Any) -> None:
        """Show the parts of the loss, the speed and the time left.

        Parameters
        ----------
        stage : str
            The name of the stage.
        progress : TrainingProgress
            How far its training is.
        """
        if self.bar is None or self._stage != stage:
            self.stop()
            self.bar, self._stage = new_bar(), stage
        losses = " ".join(f"{name} {value:.3f}" for name, value in progress.losses.items())
        description = f"{stage} epoch {progress.epoch + 1}/{progress.epochs} {losses}"
        self.bar.update(description, progress.epoch * progress.steps + progress.step, progress.epochs * progress.steps)

    def stop(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


@contextmanager
def counting_bar(description: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """A bar over a known number of examples: a callback of (done, total); None if it is not to be shown.

    Parameters
    ----------
    description : str
        What is being done.
    shown : bool, default True
        Whether to show it at all.

    Yields
    ------
    callable, optional
        To be called with the number of examples done and of all.
    """
    if not shown:
        yield None
        return
    bar = new_bar()
    try:
        yield lambda done, total: bar.update(description, done, total)
    finally:
        bar.stop()
