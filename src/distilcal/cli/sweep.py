"""The command that searches the settings of a recipe's stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distilcal.cli.console import echo, let_threads_sleep, plain_warnings
from distilcal.cli.jobs import executor_options, job_progress, open_executor
from distilcal.cli.options import FOLDER, dry_option, set_option, store_option
from distilcal.cli.train import run_and_show
from distilcal.errors import InputError


@click.command("sweep")
@click.argument("recipe", type=FOLDER)
@click.option(
    "--grid",
    "grid",
    multiple=True,
    required=True,
    metavar="KEY=A,B,C",
    help="Values of a setting, as stages.student.train.lr=1e-5,3e-5; ';' separates keys that move together.",
)
@click.option("--stage", default="", help="The stage to search, if the keys do not name it.  [default: the student]")
@click.option(
    "--choose",
    type=click.Choice(["calibrated_nll", "nll", "accuracy"]),
    default="calibrated_nll",
    show_default=True,
    help="Figure on dev to choose by; calibrated_nll is the NLL after a temperature.",
)
@click.option("--random", "random_points", type=click.IntRange(1), metavar="N", help="Only N points, drawn at random.")
@click.option(
    "--optuna",
    "optuna_points",
    type=click.IntRange(1),
    metavar="N",
    help="N points as Optuna proposes them (pip install 'distilcal[optuna]').",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the draw.")
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
    **executor_settings: Any,
) -> None:
    """Find the best settings of a stage: train every point of a grid, choose on dev, and run the recipe with the best.

    Test is read for the chosen point only. An axis of epochs costs one run if the schedule does not depend on their number and
    the stage keeps the last epoch (choose = "last").
    """
    let_threads_sleep()
    from distilcal.config.loading import load_recipe
    from distilcal.pipeline.preflight import check_folders
    from distilcal.study.schema import grid_points
    from distilcal.study.sweep import Sweep, check_sweep, parse_axes, run_sweep

    if random_points and optuna_points:
        raise InputError("--random and --optuna exclude each other", remedy="give one of them")
    sampler: Any = "grid"
    if optuna_points:
        sampler = "optuna"
    elif random_points:
        sampler = "random"
    settings = load_recipe(recipe, changes)
    stage, axes = parse_axes(grid, settings, stage)
    sweep = Sweep(settings, stage, axes, choose, sampler, count=optuna_points or random_points or 0, seed=seed)
    folder = out if out is not None else Path("runs") / f"{settings.name}-sweep"
    check_folders(folder, store)
    with plain_warnings():
        check_sweep(sweep)
    all_runs = sweep.runs()
    run_count = min(sweep.count or len(all_runs), len(all_runs))
    if dry_run:
        echo(f"stages.{stage}: {len(grid_points(axes)):,} points in {run_count:,} runs, the best by dev {choose}")
        for point in all_runs if sampler == "grid" else ():
            echo("  " + (_describe(dict(point)) or "one run"))
        echo(f"results would go to {folder}")
        return
    with plain_warnings(), job_progress(run_count) as on_progress, open_executor(executor_settings) as executor:
        outcome = run_sweep(sweep, folder, store, executor, on_progress=on_progress)
    chosen = _describe(outcome["chosen"]) or "the only run"
    echo(f"Chosen of {outcome['points']:,} points by dev {choose}: {chosen}, after {outcome['epochs']} epochs")
    for label, error in outcome["failed"].items():
        echo(f"failed: {label}: {error}")
    run_and_show(outcome["recipe"], folder, store, dry_run=False)
    echo(f"Every point is in {folder / 'points.csv'}, the chosen recipe in {folder / 'best.toml'}.")


def _describe(point: dict[str, Any]) -> str:
    return ", ".join(f"{path} = {value}" for path, value in point.items())
