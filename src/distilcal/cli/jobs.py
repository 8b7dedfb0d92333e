"""What commands that run many jobs share: options that say where jobs run, the executor, a bar over all jobs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from distilcal.cli.console import echo
from distilcal.cli.options import NumberRange
from distilcal.report.progress import LINE_SECONDS

if TYPE_CHECKING:
    from distilcal.study.executors import Executor
    from distilcal.study.scheduler import StudyProgress


POLL_SECONDS = 1.0  # between two looks at the clock


def executor_options(command: Any) -> Any:
    """Add the options that say where jobs run."""
    options = (
        click.option("--executor", type=click.Choice(["local", "ray"]), default="local", show_default=True,
                     help="Processes of this machine, or tasks of a Ray cluster (pip install 'distilcal[ray]')."),
        click.option("--address", default="", help="Address of the Ray cluster.  [default: start one on this machine]"),
        click.option("--processes", type=click.IntRange(1), help="Local: jobs at a time.  [default: one per core or GPU]"),
        click.option("--threads", type=click.IntRange(1), help="Local: threads of each job.  [default: cores / processes]"),
        click.option("--cpus", type=NumberRange(0, min_open=True), default=1.0, show_default=True,
                     help="Ray: cores of each job."),
        click.option("--gpus", type=NumberRange(0), default=0.0, show_default=True, help="Ray: GPUs of each job."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def open_executor(options: dict[str, Any]) -> Iterator[Executor]:
    """Build the executor that the options describe, and close it at the end."""
    from distilcal.study.executors import LocalExecutor, RayExecutor, count_gpus

    executor: Executor
    if options["executor"] == "ray":
        executor = RayExecutor(options["address"], options["cpus"], options["gpus"])
    else:
        executor = LocalExecutor(options["processes"] or 0, options["threads"] or 0, count_gpus())
    try:
        yield executor
    finally:
        executor.close()


@contextmanager
def job_progress(total: int) -> Iterator[Callable[[StudyProgress], None]]:
    """Yield a callback for ``on_progress``: a bar on a terminal, elsewhere a line for each job and each minute."""
    if not sys.stderr.isatty():
        with _minute_lines(total) as on_progress:
            yield on_progress
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from distilcal.report.console import ReportConsole

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=ReportConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def show(progress: StudyProgress) -> None:
            description = " | ".join(progress.running) or "gathering"
            bar.update(task, completed=progress.done, total=progress.total, description=description)
            if progress.error:
                bar.console.print(_progress_line(progress), markup=False, highlight=False)

        yield show


@contextmanager
def _minute_lines(total: int) -> Iterator[Callable[[StudyProgress], None]]:
    """Yield a callback that prints a line for each job; a thread prints one whenever a minute has passed without."""
    started = last_line = time.monotonic()
    state = f"[0/{total}]"
    stopped = threading.Event()

    def show(progress: StudyProgress) -> None:
        nonlocal last_line, state
        last_line, state = time.monotonic(), f"[{progress.done}/{progress.total}]"
        echo(_progress_line(progress), err=True)

    def run() -> None:
        nonlocal last_line
        while not stopped.wait(POLL_SECONDS):
            now = time.monotonic()
            if now - last_line >= LINE_SECONDS:
                last_line = now
                echo(f"{state} running for {(now - started) / 60:.0f} min", err=True)

    thread = threading.Thread(target=run, name="distilcal-jobs", daemon=True)
    thread.start()
    try:
        yield show
    finally:
        stopped.set()
        thread.join()


def _progress_line(progress: StudyProgress) -> str:
    """One line about the job that just ended."""
    job = f"[{progress.done}/{progress.total}] {progress.label}"
    if progress.error or progress.result is None:
        return f"{job}: FAILED: {progress.error}"
    result = progress.result
    figure = "not trained"
    if result["epochs"]:
        figure = f"dev accuracy {result['epochs'][result['best']]['dev']['accuracy']:.3f}"
    source = "" if result["trained"] else ", from the store"
    return f"{job}: {figure} ({result['seconds']:.1f} s{source})"
