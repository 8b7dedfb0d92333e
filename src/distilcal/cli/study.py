"""The command that runs studies: the tables of a paper, filled."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distilcal.cli.console import echo, let_threads_sleep, plain_warnings
from distilcal.cli.jobs import executor_options, job_progress, open_executor
from distilcal.cli.options import FOLDER, dry_option, store_option
from distilcal.errors import InputError

if TYPE_CHECKING:
    from distilcal.study.expand import Graph
    from distilcal.study.schema import Study

MOST_SEEDS = 1_000  # each of them is a copy of the whole study


@click.command("study")
@click.argument("name", required=False)
@click.option(
    "--scale",
    default="small",
    show_default=True,
    help="The scale to run: small; full, as in the paper; paper, only the points that the paper chose; a file may have more.",
)
@click.option("--only", "only", multiple=True, metavar="method=A,task=B", help="Only these; may be given more than once.")
@click.option("--seeds", type=click.IntRange(1, MOST_SEEDS), help="Number of seeds.  [default: the study's]")
@click.option("--out", type=FOLDER, help="Folder of the results.  [default: runs/NAME-SCALE]")
@click.option("--power", is_flag=True, help="Only show the smallest difference that each claim could see.")
@click.option("--keep-points", is_flag=True, help="Keep the models of grid points that were not chosen.")
@click.option(
    "--any-size", is_flag=True, help="Accept data of other sizes than the paper's at scale full or paper; columns are marked."
)
@click.option("--tables", is_flag=True, help="Print the tables, too; they are written to files in any case.")
@store_option
@executor_options
@dry_option
def study_command(
    name: str | None,
    scale: str,
    only: tuple[str, ...],
    seeds: int | None,
    out: Path | None,
    power: bool,
    keep_points: bool,
    any_size: bool,
    tables: bool,
    store: Path,
    dry_run: bool,
    **executor_settings: Any,
) -> None:
    """Fill the tables of a paper: NAME is one of the package's studies, or a TOML file of your own.

    Without NAME, list them.

    Every distinct stage is trained once. What is in the store is not trained again: give the same command again to continue a
    study that was stopped.
    """
    let_threads_sleep()
    from distilcal.study.expand import expand
    from distilcal.study.loading import load_study
    from distilcal.study.run import check_study_folders
    from distilcal.study.selection import select

    if name is None:
        _list_studies()
        return
    methods, tasks = parse_only(only)
    study = select(load_study(name, scale, seeds), methods=methods, tasks=tasks)
    graph = expand(study)
    folder = out if out is not None else _default_folder(study, only, seeds)
    check_study_folders(folder, store)
    if dry_run:
        _show_forecast(study, graph, store, folder, executor_settings)
    if dry_run or power:
        _show_power(study, graph, folder)
        return
    with plain_warnings(), job_progress(len(graph.jobs)) as on_progress, open_executor(executor_settings) as executor:
        from distilcal.study.run import run_study

        outcome = run_study(
            study,
            folder,
            store,
            executor,
            keep_points=keep_points,
            any_size=any_size,
            command=shlex.join(["distilcal", *sys.argv[1:]]),
            on_progress=on_progress,
        )
    from distilcal.report.studies import show_study

    show_study(folder, tables=tables)
    echo(f"Wrote {folder}: study.html to look at, tables and figures as files, results.md to read.")
    failed = sum(id_ in graph.jobs for id_ in outcome.failed) + len(outcome.unmeasured)
    if failed:
        echo(f"{failed} of {len(graph.jobs)} jobs failed; give the same command again to retry them.")
        click.get_current_context().exit(1)


def _list_studies() -> None:
    from distilcal.study.loading import ALIASES, study_names

    aliases = {name: alias for alias, name in ALIASES.items()}
    for name, file in study_names().items():
        text = file.read_text(encoding="utf-8")
        paper = tomllib.loads(text)["paper"]
        echo(f"{name} ({aliases[name]})  {text.splitlines()[0].lstrip('# ')}")
        echo(f"    {paper['authors']}, {paper['title']}, {paper['venue']}")


def _default_folder(study: Study, only: tuple[str, ...], seeds: int | None) -> Path:
    """A part of a study has a folder of its own, so that it does not replace the whole."""
    name = f"{study.name}-{study.scale}"
    if only:
        name += "-part"
    if seeds:
        name += f"-{seeds}-seeds"
    return Path("runs") / name


def parse_only(only: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Parse ``--only`` options into methods and tasks: ``method=A,method=B,task=C``. A name may contain commas.

    Examples
    --------
    >>> parse_only(("method=A, scaled,task=B",))
    (['A, scaled'], ['B'])
    """
    names: dict[str, list[str]] = {"method": [], "task": []}
    for text in only:
        kind = ""
        for part in text.split(","):
            key, equals, value = part.partition("=")
            if equals and key.strip() in names:
                kind = key.strip()
                names[kind].append(value.strip())
            elif kind:
                names[kind][-1] += f",{part}"  # the name goes on after a comma
            else:
                raise InputError(f"--only {text!r} is not method=NAME or task=NAME", remedy="write it as method=A,task=B")
    return names["method"], names["task"]


# ---- dry run -----------------------------------------------------------------------------------------------------------


def _show_forecast(study: Study, graph: Graph, store: Path, folder: Path, executor_settings: dict[str, Any]) -> None:
    """Print every job, what is in the store, and what the rest would take."""
    from distilcal.study.executors import local_processes
    from distilcal.study.run import forecast
    from distilcal.study.sizes import PAPER_SCALES

    slots, _ = local_processes(executor_settings["processes"], executor_settings["threads"])
    with plain_warnings():
        estimate = forecast(graph, store, slots)
    for id_ in graph.order():
        if id_ in graph.jobs and graph.jobs[id_].candidate:
            continue  # counted in the line of its choice
        echo(_job_line(graph, id_, estimate.done))
    for task, error in estimate.unread.items():
        echo(f"note: {task}: whether it is in the store cannot be told: {error}")
    remaining = len(graph.jobs) - len(estimate.done)
    in_grids = f" and {graph.points:,} points of grids" if graph.points else ""
    echo(
        f"{study.name} at scale {study.scale}: {len(graph.jobs):,} jobs for {len(graph.cells):,} cells{in_grids}; "
        f"{len(estimate.done):,} in the store, {remaining:,} to do"
    )
    if remaining:
        echo(
            f"roughly {_duration(estimate.seconds)} with {slots} processes and {estimate.megabytes / 1000:.1f} GB of disk "
            "(by usual speeds of one core; a GPU is far faster)"
        )
    if study.scale in PAPER_SCALES:
        _show_costs(study, graph, estimate.unread)
    echo(f"results would go to {folder}")


def _show_costs(study: Study, graph: Graph, unread: dict[str, str]) -> None:
    """Print what each table would take on a GPU."""
    from distilcal.study.cost import ASSUMPTIONS, table_costs
    from distilcal.study.run import training_size

    for cost in table_costs(study, graph, lambda job: training_size(job.data, read=job.task not in unread)):
        echo(f"roughly {cost}")
    echo(f"note: GPU-hours by {ASSUMPTIONS}")


def _show_power(study: Study, graph: Graph, folder: Path) -> None:
    """Print the smallest difference that each claim could see."""
    from dataclasses import asdict

    from distilcal.report.studies.sentences import power_lines
    from distilcal.study.power import design_power

    if not study.claims:
        echo("No claim is about what was chosen.")
        return
    with plain_warnings():
        power = design_power(study, graph, folder.parent)
    for line in power_lines(asdict(power), len(study.seeds)):
        echo(line)


def _job_line(graph: Graph, id_: str, done: set[str]) -> str:
    """A job, or a choice with all its points, as one line."""
    choice = graph.choices.get(id_)
    job = graph.jobs[id_ if choice is None else choice.jobs[0]]
    terms = job.stage.terms
    if choice is not None:
        stored = sum(point in done for point in choice.jobs)
        state = f"the best of {len(choice.jobs)} by dev {choice.by}"
        if stored:
            state += f", {stored} of them in the store"
        losses = " + ".join(term.loss for term in terms)
    else:
        losses = " + ".join(map(str, terms))
        state = f"{job.stage.train.epochs} epochs" if terms else "as it stands"
        if id_ in done:
            state = "in the store"
    line = f"{graph.label(id_)}: {state}"
    if "teacher" in job.needs:
        teacher = job.needs["teacher"]
        best_of = "the best of " if teacher in graph.choices else ""
        line += f", taught by {best_of}{graph.label(teacher)}"
    return f"{line}: {losses}" if losses else line


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
