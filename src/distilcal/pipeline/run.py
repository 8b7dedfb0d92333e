"""A run: the stages of a recipe in order, then what each model says about every split, and how far it can be trusted.

The folder of a run holds the recipe as resolved, the environment, and for each stage its history, predictions, calibrator and
model; ``metrics.json`` and ``report.html`` sum them up. Trained stages live in the store and are shared between runs.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distilcal import __version__
from distilcal.config.loading import to_toml
from distilcal.config.schema import Recipe, ordered_stages
from distilcal.data.splits import Overlap, Splits, read_splits
from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write, write_json
from distilcal.io.locks import file_lock
from distilcal.pipeline.logs import main_process_logger
from distilcal.pipeline.preflight import check_recipe
from distilcal.pipeline.results import remove_results, write_results
from distilcal.pipeline.stage import Stage, run_stage, stage_key
from distilcal.report.runs import write_runs_page
from distilcal.runs import read_run, summarise_runs
from distilcal.selective import counted
from distilcal.training import TrainingProgress
from distilcal.training.distributed import ProcessGroup

PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "scipy", "datasets")

logger = main_process_logger(__name__)


@dataclass(frozen=True)
class Plan:
    """What a recipe would do."""

    splits: Splits
    overlaps: list[Overlap]
    stages: list[Stage]  # in the order they are carried out


def plan(recipe: Recipe, store: Path) -> Plan:
    """The splits and stages of a recipe, and which of them are in the store already. Trains nothing."""
    splits = read_splits(recipe.data)
    check_recipe(recipe, splits)
    keys: dict[str, str] = {}
    stages = []
    for name in ordered_stages(recipe):
        keys[name] = stage_key(name, recipe, splits, keys)
        stages.append(Stage(name, keys[name], recipe.stages[name], store / "stages" / keys[name], store))
    return Plan(splits, splits.overlaps(), stages)


def run_recipe(
    recipe: Recipe, folder: Path, store: Path, *, on_progress: Callable[[str, TrainingProgress], None] | None = None
) -> Path:
    """Run a recipe and return the folder of the run. Stages that are in the store are not trained again.

    ``on_progress`` is called with the name of a stage and how far its training is.
    """
    processes = ProcessGroup()
    if folder.exists() and not folder.is_dir():
        raise InputError("this is a file", source=str(folder), remedy="give the folder of a run")
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"another run is working in {folder}"
    with file_lock(folder / ".lock", busy=busy) if processes.is_main_process else nullcontext():
        made = plan(recipe, store)
        _log_data(made)
        _warn_of_seen_data(recipe)
        if processes.is_main_process:
            remove_results(folder)
            _write_text(folder / "recipe.toml", to_toml(recipe))
            write_json(folder / "environment.json", environment())
        stages = {stage.name: stage for stage in made.stages}
        for stage in made.stages:
            stage_progress = None if on_progress is None else partial(on_progress, stage.name)
            run_stage(stage, recipe, made.splits, stages, processes, on_progress=stage_progress)
        if processes.is_main_process:
            logger.info("evaluating every model on every split")
            write_results(recipe, made.splits, made.overlaps, made.stages, folder)
            write_runs_page(summarise_runs([read_run(folder)]), folder / "report.html")
        processes.wait_for_everyone()
    return folder


def environment() -> dict[str, Any]:
    """On what a run was made."""
    import torch

    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "distilcal": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "packages": packages,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _log_data(made: Plan) -> None:
    counts = ", ".join(f"{data.name} {len(data):,}" for data in made.splits)
    logger.info("data: %s; %d classes", counts, len(made.splits.train.classes))
    for overlap in made.overlaps:
        logger.warning(
            "%s of %s (%.1f%%) also in %s", counted(overlap.rows, "example"), overlap.second, 100 * overlap.share, overlap.first
        )


def _warn_of_seen_data(recipe: Recipe) -> None:
    pretrained = [name for name, stage in recipe.stages.items() if not stage.terms]
    held_out = not (recipe.data.dev and recipe.data.test) and not recipe.data.train.startswith("benchmark:")
    if pretrained and held_out:
        logger.warning(
            "dev or test are held out of %s: if %s was trained on it, its metrics and its temperature are too good",
            recipe.data.train,
            pretrained[0],
        )


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


__all__ = ["Plan", "TrainingProgress", "environment", "plan", "run_recipe"]
