"""A run: the stages of a recipe in order, then what each model says about every split, and how far it can be trusted.

The folder of a run holds the recipe as resolved, the environment, and for each stage its history, predictions, calibrator and
model; ``metrics.json`` and ``report.html`` sum them up. Trained stages live in the store and are shared between runs.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from distilcal import __version__
from distilcal.calibrate import FITS, Calibrator, cross_fitted
from distilcal.config.schema import Recipe, ordered_stages, to_toml
from distilcal.data import Dataset
from distilcal.data.splits import Overlap, Splits, read_splits
from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write, write_json
from distilcal.io.locks import file_lock
from distilcal.metrics import evaluate
from distilcal.pipeline.logs import main_process_logger
from distilcal.pipeline.preflight import check_stages
from distilcal.pipeline.stage import MAP, Stage, run_stage, stage_key
from distilcal.predictions import Predictions
from distilcal.report.runs import SUMMED, read_run, write_runs_page
from distilcal.selective import aurc, counted, threshold
from distilcal.training import TrainingProgress, compute_outputs
from distilcal.training.distributed import ProcessGroup

PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "scipy", "datasets")
TIMED = 128  # examples on which the speed of a model is measured
RESAMPLES = 1000

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
    check_stages(recipe, splits)
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
            for old in ("metrics.json", "report.html"):  # until the end there is no finished run here
                (folder / old).unlink(missing_ok=True)
            _write_text(folder / "recipe.toml", to_toml(recipe))
            write_json(folder / "environment.json", environment())
        stages = {stage.name: stage for stage in made.stages}
        for stage in made.stages:
            stage_progress = None if on_progress is None else partial(on_progress, stage.name)
            run_stage(stage, recipe, made.splits, stages, processes, on_progress=stage_progress)
        if processes.is_main_process:
            logger.info("evaluating every model on every split")
            figures = {stage.name: _results(stage, recipe, made.splits, folder / stage.name) for stage in made.stages}
            sizes = {data.name: len(data) for data in made.splits}
            facts = {
                "format": 1,
                "name": recipe.name,
                "classes": list(made.splits.train.classes),
                "sizes": sizes,
                "ood": [data.name for data in made.splits.ood],
                "overlaps": [asdict(o) for o in made.overlaps],
                "stages": figures,
            }
            write_json(folder / "metrics.json", facts)
            write_runs_page([read_run(folder)], folder / "report.html")
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


# ---- results of one stage ----------------------------------------------------------------------------------------------


def _results(stage: Stage, recipe: Recipe, splits: Splits, folder: Path) -> dict[str, Any]:
    """Predictions, calibrator, model and figures of a stage, written into its folder."""
    (folder / "predictions").mkdir(parents=True, exist_ok=True)
    sets = [splits.dev, splits.test, *splits.ood]
    if recipe.train_predictions:
        sets = [splits.train, *sets]
    said = {}
    for data in sets:
        if stage.settings.predictions and not _has_rows(stage, data):
            continue  # a teacher known by its predictions may know the training data only
        said[data.name] = stage.predictions(data)
        said[data.name].save(folder / "predictions" / f"{data.name}.npz")
    calibrator, limit = None, None
    for kind in ("json", "npz"):
        (folder / f"calibrator.{kind}").unlink(missing_ok=True)
    if "dev" in said and stage.settings.calibrate != "none":
        calibrator = _calibrator(stage, said["dev"])
        calibrator.save(folder / ("calibrator.json" if calibrator.kind == "temperature" else "calibrator.npz"))
        limit = threshold(cross_fitted(said["dev"], FITS[stage.settings.calibrate], seed=0), accuracy=recipe.accuracy)
    elif "dev" in said:
        limit = threshold(said["dev"], accuracy=recipe.accuracy)
    history = stage.history()
    write_json(folder / "history.json", history)
    facts: dict[str, Any] = {
        "key": stage.key,
        "teacher": stage.settings.teacher,
        "terms": [str(t) for t in stage.settings.terms],
        "epochs": len(history),
        "seconds": sum(h["seconds"] for h in history),
        "parameters": None,
        "ms_per_example": None,
        "calibrator": None if calibrator is None else calibrator.kind,
        "threshold": None
        if limit is None
        else {k: _finite(v) if isinstance(v, float) else v for k, v in asdict(limit).items()},
        "sets": {},
    }
    if not stage.settings.predictions:
        _link(stage.folder / "model", folder / "model")
        if (stage.folder / MAP).exists():
            _link(stage.folder / MAP, folder / MAP)
        facts["parameters"] = stage.classifier.parameters
        facts["ms_per_example"] = milliseconds(stage, splits.test)
    for name, predictions in said.items():
        facts["sets"][name] = {"given": _figures(predictions), "calibrated": None}
        after = predictions if calibrator is None else calibrator(predictions)
        if calibrator is not None:
            facts["sets"][name]["calibrated"] = _figures(after)
        if limit is not None:
            facts["sets"][name]["accepted"] = _accepted(after, limit)
    write_json(folder / "stage.json", facts)
    return facts


def _calibrator(stage: Stage, dev: Predictions) -> Calibrator:
    return FITS[stage.settings.calibrate](dev)


def _figures(predictions: Predictions) -> dict[str, Any]:
    """The summed-up metrics with their intervals."""
    chosen = [name for name in SUMMED if name != "aurc"]
    found = evaluate(predictions, chosen, intervals=RESAMPLES)
    made = {
        name: {
            **{key: _finite(getattr(f, key)) for key in ("value", "low", "high", "null")},
            "beyond_chance": f.beyond_chance,
            "definition": f.definition,
        }
        for name, f in found.metrics.items()
    }
    return {**made, "aurc": {"value": _finite(aurc(predictions))}}


def _finite(value: float | None) -> float | None:
    """What JSON can say: an infinite NLL (a probability of 0 for what was true) is null."""
    return value if value is not None and math.isfinite(value) else None


def _accepted(predictions: Predictions, limit: Any) -> dict[str, float | None]:
    taken = predictions.confidence >= limit.confidence if limit.confidence is not None else np.zeros(len(predictions), bool)
    right = float(predictions.correct[taken].mean()) if taken.any() else math.nan
    return {"coverage": float(taken.mean()), "accuracy": None if math.isnan(right) else right}


def milliseconds(stage: Stage, data: Dataset) -> float:
    """Time per example from text or pixels to logits, in batches of 32; the best of three."""
    part = data.select(np.arange(min(TIMED, len(data))))
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        compute_outputs(stage.classifier, part, batch=32)
        times.append(time.perf_counter() - begun)
    return 1000 * min(times) / len(part)


def _has_rows(stage: Stage, data: Dataset) -> bool:
    return stage.said.ids is not None and bool(np.isin(data.ids, stage.said.ids).all())


def _link(source: Path, target: Path) -> None:
    """The same files under another name: linked where the disk allows it, copied elsewhere."""
    aside = target.with_name(f".{target.name}.part")
    shutil.rmtree(aside, ignore_errors=True)

    def link(a: str, b: str) -> None:
        try:
            os.link(a, b)
        except OSError:
            shutil.copy2(a, b)

    shutil.copytree(source, aside, copy_function=link)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(aside, target)


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
