"""Commands that train many models: studies of whole papers and sweeps over the settings of a recipe."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distilcal.cli.console import let_threads_sleep, plain_warnings
from distilcal.cli.train import FOLDER, carry_out_recipe, dry_option, set_option, store_option
from distilcal.errors import InputError

if TYPE_CHECKING:
    from distilcal.study.executors import Executor
    from distilcal.study.expand import Graph
    from distilcal.study.schema import Study


def executor_options(command: Any) -> Any:
    """Options that say where jobs run."""
    options = (
        click.option("--executor", type=click.Choice(["local", "ray"]), default="local", show_default=True,
                     help="Processes of this machine, or tasks of a Ray cluster (pip install 'distilcal[ray]')."),
        click.option("--address", default="", help="Of the Ray cluster.  [default: one is started on this machine]"),
        click.option("--processes", type=click.IntRange(1), help="Local: jobs at a time.  [default: one a core or GPU]"),
        click.option("--threads", type=click.IntRange(1), help="Local: of each process.  [default: cores / processes]"),
        click.option("--cpus", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True,
                     help="Ray: cores of a job."),
        click.option("--gpus", type=click.FloatRange(0), default=0.0, show_default=True, help="Ray: GPUs of a job."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command("study")
@click.argument("name", required=False)
@click.option(
    "--scale", default="small", show_default=True, help="Which of the study's scales: small, or full as in the paper."
)
@click.option("--only", "only", multiple=True, metavar="method=A,task=B", help="Only these; may be given more than once.")
@click.option("--seeds", type=click.IntRange(1), help="How many.  [default: as the study says]")
@click.option("--out", type=FOLDER, help="Folder of the results.  [default: runs/NAME-SCALE]")
@click.option("--keep-points", is_flag=True, help="Keep the models of grid points that were not chosen.")
@store_option
@executor_options
@dry_option
def study_command(
    name: str | None,
    scale: str,
    only: tuple[str, ...],
    seeds: int | None,
    out: Path | None,
    keep_points: bool,
    store: Path,
    dry_run: bool,
    **where: Any,
) -> None:
    """Fill the tables of a paper: NAME is p000 … p004, or a TOML file of your own. Without NAME, list them.

    Every distinct stage is trained once; what is in the store is not trained again, so a study that was stopped goes on where
    it was when started again.
    """
    let_threads_sleep()
    from distilcal.study.schema import read_study, study_names

    if name is None:
        for known, file in study_names().items():
            click.echo(f"{known}  {file.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}")
        return
    study = read_study(name, scale, seeds)
    methods, tasks = chosen_only(only)
    part = ("-part" if only else "") + (f"-{seeds}-seeds" if seeds else "")  # what is not the whole study does not replace it
    folder = out if out is not None else Path("runs") / f"{study.name}-{scale}{part}"
    from distilcal.study.expand import expand

    graph = expand(study, methods=methods, tasks=tasks)
    if dry_run:
        _show_forecast(study, graph, store, folder, where)
        return
    with plain_warnings(), progress_of(len(graph.jobs)) as tell, started(where) as executor:
        from distilcal.study.run import run_study

        words = ["distilcal", *sys.argv[1:]]
        outcome = run_study(study, folder, store, executor, methods=methods, tasks=tasks, keep_points=keep_points,
                            command=shlex.join(words), tell=tell)  # fmt: skip
    from distilcal.report.studies import show_study

    show_study(folder)
    click.echo(f"Wrote {folder}: study.html to look at, tables and figures as files, results.md to read.")
    failed = sum(id_ in graph.jobs for id_ in outcome.failed) + len(outcome.unmeasured)
    if failed:
        click.echo(f"{failed} of {len(graph.jobs)} jobs failed; give the same command again to try them once more.")
        sys.exit(1)


@click.command("sweep")
@click.argument("recipe", type=FOLDER)
@click.option(
    "--grid",
    "grid",
    multiple=True,
    required=True,
    metavar="KEY=A,B,C",
    help="Values of a field, as stages.student.train.lr=1e-5,3e-5; with ';' between keys that move together.",
)
@click.option("--stage", default="", help="Whose settings, if the keys do not say.  [default: the student]")
@click.option("--choose", type=click.Choice(["accuracy", "nll"]), default="accuracy", show_default=True, help="By what on dev.")
@click.option("--random", "random_points", type=click.IntRange(1), metavar="N", help="Only N points, drawn at random.")
@click.option(
    "--optuna",
    "optuna_points",
    type=click.IntRange(1),
    metavar="N",
    help="N points as Optuna proposes them (pip install 'distilcal[optuna]').",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the draw.")
@click.option("--out", type=FOLDER, help="Folder of the results.  [default: runs/NAME-sweep]")
@store_option
@set_option
@executor_options
@dry_option
def sweep_command(
    recipe: Path,
    grid: tuple[str, ...],
    stage: str,
    choose: Any,
    random_points: int | None,
    optuna_points: int | None,
    seed: int,
    out: Path | None,
    store: Path,
    changes: tuple[str, ...],
    dry_run: bool,
    **where: Any,
) -> None:
    """Find the best settings of a stage: train at every point of a grid, choose on dev, carry the recipe out with the best.

    Test is read for the chosen point only. An axis of epochs costs one run if the schedule does not depend on their number and
    the stage keeps the last epoch (choose = "last").
    """
    let_threads_sleep()
    from distilcal.config.loading import load_recipe
    from distilcal.study.sweep import Sweep, axes_from, run_sweep

    if random_points and optuna_points:
        raise InputError("--random and --optuna are two ways to take points", remedy="give one of them")
    found = load_recipe(recipe, changes)
    own, axes = axes_from(grid, found, stage)
    sampler: Any = "optuna" if optuna_points else "random" if random_points else "grid"
    sweep = Sweep(found, own, axes, choose, sampler, optuna_points or random_points or 0, seed)
    folder = out if out is not None else Path("runs") / f"{found.name}-sweep"
    runs = min(sweep.count or len(sweep.runs[0]), len(sweep.runs[0]))
    if dry_run:
        from distilcal.study.schema import points

        click.echo(f"stages.{own}: {len(points(axes)):,} points in {runs:,} runs, the best by dev {choose}")
        for point in sweep.runs[0] if sampler == "grid" else ():
            click.echo("  " + (", ".join(f"{path} = {value}" for path, value in point) or "one run"))
        click.echo(f"results would go to {folder}")
        return
    with plain_warnings(), progress_of(runs) as tell, started(where) as executor:
        made = run_sweep(sweep, folder, store, executor, tell=tell)
    words = ", ".join(f"{path} = {value}" for path, value in made["chosen"].items()) or "the only run"
    click.echo(f"Chosen of {made['points']:,} points by dev {choose}: {words}, after {made['epochs']} epochs")
    for label, why in made["failed"].items():
        click.echo(f"failed: {label}: {why}")
    carry_out_recipe(made["recipe"], folder, store, dry_run=False)
    click.echo(f"Every point is in {folder / 'points.csv'}, the chosen recipe in {folder / 'best.toml'}.")


def chosen_only(only: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The methods and tasks that --only names: ``method=A,method=B,task=C``; a name may itself hold commas."""
    found: dict[str, list[str]] = {"method": [], "task": []}
    for text in only:
        current = ""
        for part in text.split(","):
            key, equals, value = part.partition("=")
            if equals and key.strip() in found:
                current = key.strip()
                found[current].append(value.strip())
            elif current:
                found[current][-1] += f",{part}"
            else:
                raise InputError(f"--only {text!r} is not method=NAME or task=NAME", remedy="write it as method=A,task=B")
    return found["method"], found["task"]


@contextmanager
def started(where: dict[str, Any]) -> Iterator[Executor]:
    """The executor that the options name, closed in the end."""
    from distilcal.study.executors import LocalExecutor, RayExecutor, gpus_here

    executor: Executor
    if where["executor"] == "ray":
        executor = RayExecutor(where["address"], where["cpus"], where["gpus"])
    else:
        executor = LocalExecutor(where["processes"] or 0, where["threads"] or 0, gpus_here())
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, workers and all
    try:
        yield executor
    finally:
        signal.signal(signal.SIGTERM, before)
        executor.close()


@contextmanager
def progress_of(total: int) -> Iterator[Callable[[Any], None]]:
    """What is told of each job that ends: a bar over the whole graph on a terminal, a line each elsewhere."""
    if not sys.stderr.isatty():
        yield lambda news: click.echo(_line(news), err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def tell(news: Any) -> None:
            bar.update(task, completed=news.done, total=news.total, description=" | ".join(news.running) or "gathering")
            if news.error:
                bar.console.print(_line(news), markup=False, highlight=False)

        yield tell


def _line(news: Any) -> str:
    counted = f"[{news.done}/{news.total}] {news.label}"
    if news.error:
        return f"{counted}: FAILED: {news.error}"
    epochs = news.result["epochs"]
    how = f"dev accuracy {epochs[news.result['best']]['dev']['accuracy']:.3f}" if epochs else "as it stands"
    return f"{counted}: {how} ({news.result['seconds']:.1f} s{'' if news.result['trained'] else ', from the store'})"


def _show_forecast(study: Study, graph: Graph, store: Path, folder: Path, where: dict[str, Any]) -> None:
    from distilcal.study.executors import local_processes
    from distilcal.study.run import forecast

    slots = local_processes(where["processes"], where["threads"])[0]
    with plain_warnings():
        found = forecast(graph, store, slots)
    for id_ in graph.order():
        if id_ in graph.jobs and graph.jobs[id_].candidate:
            continue  # said with its choice
        click.echo(_stage_line(graph, id_, found["done"]))
    for task, why in found["unread"].items():
        click.echo(f"note: {task}: whether it is in the store cannot be told: {why}")
    left = len(graph.jobs) - len(found["done"])
    click.echo(
        f"{study.name} at scale {study.scale}: {len(graph.jobs):,} jobs for {len(graph.cells):,} cells"
        + (f" and {graph.points:,} points of grids" if graph.points else "")
        + f"; {len(found['done']):,} in the store, {left:,} to do"
    )
    if left:
        click.echo(
            f"roughly {_duration(found['seconds'])} with {slots} processes and {found['megabytes'] / 1000:.1f} GB of disk "
            "(by usual speeds of one core; a GPU is far faster)"
        )
    click.echo(f"results would go to {folder}")


def _stage_line(graph: Graph, id_: str, done: set[str]) -> str:
    """A job, or a choice with all its points, in one line."""
    choice = graph.choices.get(id_)
    job = graph.jobs[id_ if choice is None else choice.jobs[0]]
    if choice is not None:
        known = sum(point in done for point in choice.jobs)
        doing = f"the best of {len(choice.jobs)} by dev {choice.by}{f', {known} of them in the store' if known else ''}"
    elif id_ in done:
        doing = "in the store"
    else:
        doing = f"{job.stage.train.epochs} epochs" if job.stage.terms else "as it stands"
    taught = f", taught by {_label(graph, job.needs['teacher'])}" if "teacher" in job.needs else ""
    terms = " + ".join(map(str, job.stage.terms)) if choice is None else " + ".join(t.loss for t in job.stage.terms)
    return f"{job.label if choice is None else choice.label}: {doing}{taught}{f': {terms}' if terms else ''}"


def _label(graph: Graph, id_: str) -> str:
    return graph.jobs[id_].label if id_ in graph.jobs else f"the best of {graph.choices[id_].label}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


COMMANDS = (study_command, sweep_command)
