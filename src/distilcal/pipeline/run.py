"""A run: the stages of a recipe in order, then the evaluation of each model on every split.

The folder of a run holds the recipe as resolved, the environment, and for each stage its history, predictions, calibrator and
model; ``metrics.json`` and ``report.html`` summarise them. Trained stages are in the store and shared between runs.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from distilcal import __version__
from distilcal.config.loading import to_toml
from distilcal.config.schema import Recipe
from distilcal.data import Dataset
from distilcal.data.splits import NearOverlap, Overlap, Splits, read_splits
from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write, write_json
from distilcal.io.locks import file_lock
from distilcal.pipeline.baseline import METHOD, Baseline, baseline_name, fit_baseline
from distilcal.pipeline.checks import check_data, check_model
from distilcal.pipeline.encoders import NO_CONFIGS, Configs
from distilcal.pipeline.logs import main_process_logger
from distilcal.pipeline.preflight import (
    LOCK,
    check_endpoint_rows,
    check_folders,
    check_known_rows,
    check_predictions,
    check_recipe,
    check_teachers,
)
from distilcal.pipeline.results import METRICS, new_results, write_results
from distilcal.pipeline.stage import Stage, plan_stages
from distilcal.pipeline.train import run_stage
from distilcal.report.runs.page import write_runs_page
from distilcal.runs import read_run, summarise_runs
from distilcal.selective import counted
from distilcal.training import TrainingProgress
from distilcal.training.distributed import ProcessGroup

PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "scipy", "datasets")

logger = main_process_logger(__name__)


@dataclass(frozen=True)
class Plan:
    """What running a recipe would do.

    Attributes
    ----------
    splits : Splits
        The data.
    overlaps : list of Overlap
        Examples that two splits share.
    near_overlaps : list of NearOverlap
        Examples that nearly repeat one of another split.
    stages : list of Stage
        The stages in the order in which they run; ``stage.done`` says which are in the store.
    warnings : list of str
        What is wrong with the data, in sentences.
    baseline : str or None
        Name of the baseline in the results; None if there is none.
    """

    splits: Splits
    overlaps: list[Overlap]
    near_overlaps: list[NearOverlap]
    stages: list[Stage]
    warnings: list[str]
    baseline: str | None = None

    @property
    def sizes(self) -> str:
        """The number of examples of each split, in words."""
        counts = [f"{data.name} {len(data):,}" for data in self.splits]
        unlabelled = int((~self.splits.train.is_labelled).sum())
        if unlabelled:
            counts[0] += f" ({unlabelled:,} unlabelled)"
        return ", ".join(counts)

    def __str__(self) -> str:
        """Return the data and the stages in lines."""
        lines = [f"data: {self.sizes}; {len(self.splits.train.classes)} classes"]
        lines += [f"warning: {sentence}" for sentence in self.warnings]
        for overlap in self.overlaps:
            examples = counted(overlap.rows, "example")
            lines.append(f"note: {examples} of {overlap.second} ({overlap.share:.1%}) also in {overlap.first}")
        lines += [f"note: {_near_overlap_text(overlap)}" for overlap in self.near_overlaps]
        for stage in self.stages:
            lines.append(_stage_line(stage))
            if stage.settings.predictions:
                lines.append(f"{stage.name} has predictions of {stage.coverage(self.splits)}")
        return "\n".join(lines)


def plan(
    recipe: Recipe,
    store: Path,
    *,
    loaded: Mapping[str, Dataset] = MappingProxyType({}),
    configs: Configs = NO_CONFIGS,
    prepare: Callable[[Splits], None] | None = None,
) -> Plan:
    """Read the data of a recipe, check its stages against them, and find out which are in the store. Trains nothing.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    store : Path
        Where trained stages are.
    loaded : mapping of str to Dataset
        Sources of the recipe that are in memory and need not be read.
    configs : mapping of str to mapping
        Models and predictions that ``prepare`` writes; see `distilcal.pipeline.preflight.check_recipe`.
    prepare : callable, optional
        Called with the data once the recipe is checked, to write files that it names.

    Raises
    ------
    InputError
        If the recipe could not be run to its end.
    """
    check_teachers(recipe)
    splits = read_splits(recipe.data, loaded)
    check_recipe(recipe, splits, configs)
    if prepare is not None:
        prepare(splits)
    stages = plan_stages(recipe, splits, store)
    for name, stage in stages.items():
        if stage.settings.predictions:
            check_predictions(name, stage.external_predictions, splits)
            check_known_rows(stage, [other for other in recipe.stages.values() if other.teacher == name], splits)
            if recipe.endpoints is not None and name == recipe.endpoints.against:
                check_endpoint_rows(stage, splits)
    return Plan(
        splits,
        splits.overlaps(),
        splits.near_overlaps(),
        list(stages.values()),
        check_data(splits),
        baseline_name(recipe, splits),
    )


def run_recipe(
    recipe: Recipe,
    folder: Path,
    store: Path,
    *,
    loaded: Mapping[str, Dataset] = MappingProxyType({}),
    configs: Configs = NO_CONFIGS,
    prepare: Callable[[Splits], None] | None = None,
    on_checked: Callable[[], None] | None = None,
    on_refused: Callable[[], None] | None = None,
    on_progress: Callable[[str, TrainingProgress], None] | None = None,
    on_epoch: Callable[[str, dict[str, Any]], None] | None = None,
    on_results: Callable[[Path], None] | None = None,
) -> Path:
    """Run a recipe: train its stages, evaluate every model on every split, write the results and a report.

    Parameters
    ----------
    recipe : Recipe
        What to run.
    folder : Path
        The folder of the run; created if it does not exist. Results of an earlier run in it stay until the new ones are
        complete, and are replaced then.
    store : Path
        Where trained stages and cached outputs are kept: stages that are in it are not trained again.
    loaded : mapping of str to Dataset
        Sources of the recipe that are in memory and need not be read.
    configs : mapping of str to mapping
        Models and predictions that ``prepare`` writes; see `distilcal.pipeline.preflight.check_recipe`.
    prepare : callable, optional
        Called in the main process with the data once the recipe is checked, to write files that it names.
    on_checked : callable, optional
        Called in the main process once everything is checked, before anything is trained.
    on_refused : callable, optional
        Called in the main process if the call ends before everything is checked, to remove what ``prepare`` wrote.
    on_progress : callable, optional
        Called in the main process with the name of a stage and how far its training is.
    on_epoch : callable, optional
        Called in the main process with the name of a stage and the entry of its history after every epoch that is trained.
    on_results : callable, optional
        Called in the main process with the folder of the new results before the report is written, to add files to them.

    Returns
    -------
    Path
        The folder of the run.

    Raises
    ------
    InputError
        If the recipe cannot be run, before anything is trained. Folders that were created for it and are empty are removed
        again.
    StoreError
        If another run works in the folder.
    """
    processes = ProcessGroup()
    if processes.is_main_process:
        check_folders(folder, store)

    def prepare_first(splits: Splits) -> None:
        with processes.main_process_first():
            if prepare is not None and processes.is_main_process:
                prepare(splits)

    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = file_lock(folder / LOCK, busy=f"another run is working in {folder}")
    with lock if processes.is_main_process else nullcontext():
        try:
            planned = plan(recipe, store, loaded=loaded, configs=configs, prepare=prepare_first)
        except BaseException:
            if on_refused is not None and processes.is_main_process:
                on_refused()
            remove_empty_folders(folder, created)
            raise
        _log_data(planned)
        _warn_of_seen_data(recipe)
        if on_checked is not None and processes.is_main_process:
            on_checked()
        with new_results(folder) if processes.is_main_process else nullcontext(folder) as new, ExitStack() as uses:
            if processes.is_main_process:
                described = environment()
                # Results under way have a recipe too; finished ones keep theirs until the new ones replace them.
                for about in (new,) if (folder / METRICS).exists() else (new, folder):
                    _write_text(about / "recipe.toml", to_toml(recipe))
                    write_json(about / "environment.json", described)
            baseline = _fit_baseline(planned) if processes.is_main_process else None
            stages = {stage.name: stage for stage in planned.stages}
            for stage in planned.stages:
                on_stage_progress = None if on_progress is None else partial(on_progress, stage.name)
                on_stage_epoch = None if on_epoch is None else partial(on_epoch, stage.name)
                run_stage(
                    stage,
                    recipe,
                    planned.splits,
                    stages,
                    processes,
                    on_progress=on_stage_progress,
                    on_epoch=on_stage_epoch,
                    uses=uses,
                )
                if processes.is_main_process:
                    _warn_of_model(stage, planned.splits.dev, baseline)
            if processes.is_main_process:
                logger.info("evaluating every model on every split")
                named = None if baseline is None or planned.baseline is None else (planned.baseline, baseline)
                write_results(
                    recipe,
                    planned.splits,
                    planned.overlaps,
                    planned.stages,
                    new,
                    near_overlaps=planned.near_overlaps,
                    baseline=named,
                )
                if on_results is not None:
                    on_results(new)
                write_runs_page(summarise_runs([read_run(new)]), new / "report.html")
        processes.wait_for_everyone()
    return folder


def _stage_line(stage: Stage) -> str:
    settings = stage.settings
    if settings.predictions:
        state = f"known by its predictions ({', '.join(settings.predictions)})"
    elif not settings.terms:
        state = "used as it stands"
    elif stage.done:
        state = "in the store"
    else:
        at_most = "at most " if settings.train.patience else ""
        state = f"would train {at_most}{settings.train.epochs} epochs in batches of {settings.train.batch}"
    teacher = f", taught by {settings.teacher}" if settings.teacher else ""
    terms = f": {', '.join(map(str, settings.terms))}" if settings.terms else ""
    return f"{stage.name}: {state}{teacher}{terms} [{stage.key}]"


def environment() -> dict[str, Any]:
    """Return the versions, the device and the number of processes that a run uses, for its environment.json."""
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


def remove_empty_folders(folder: Path, created: Sequence[Path]) -> None:
    """Remove what a call that was refused has created: the lock if it is all that the folder holds, and empty folders.

    Parameters
    ----------
    folder : Path
        The folder of the run.
    created : sequence of Path
        The folders that were created for it, the innermost first.
    """
    with suppress(OSError):  # not empty
        if [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
        for path in created:
            path.rmdir()


def _near_overlap_text(overlap: NearOverlap) -> str:
    in_first, in_second = overlap.examples[0]
    return (
        f"{counted(overlap.rows, 'example')} of {overlap.second} ({overlap.share:.1%}) nearly the same as one in "
        f"{overlap.first}, such as {in_second} and {in_first}"
    )


def _log_data(planned: Plan) -> None:
    logger.info("data: %s; %d classes", planned.sizes, len(planned.splits.train.classes))
    for sentence in planned.warnings:
        logger.warning(sentence)
    for overlap in planned.overlaps:
        logger.warning(
            "%s of %s (%.1f%%) also in %s", counted(overlap.rows, "example"), overlap.second, 100 * overlap.share, overlap.first
        )
    for near_overlap in planned.near_overlaps:
        logger.warning(_near_overlap_text(near_overlap))
    for stage in planned.stages:
        if stage.settings.predictions:
            logger.info("%s has predictions of %s", stage.name, stage.coverage(planned.splits))


def _fit_baseline(planned: Plan) -> Baseline | None:
    """Fit the baseline, if the run has one, and log its accuracy on dev."""
    if planned.baseline is None:
        return None
    train, dev = planned.splits.labelled, planned.splits.dev
    try:
        baseline = fit_baseline(train, dev)
    except InputError as error:
        logger.warning("no %s: %s", planned.baseline, error)
        return None
    rows = f"{baseline.rows:,}" if baseline.rows == len(train) else f"{baseline.rows:,} of {len(train):,}"
    accuracy = float(baseline.predictions(dev).correct.mean())
    logger.info(
        "%s: %s on %s labelled examples, dev accuracy %.3f (%.1f s)", planned.baseline, METHOD, rows, accuracy, baseline.seconds
    )
    return baseline


def _warn_of_model(stage: Stage, dev: Dataset, baseline: Baseline | None) -> None:
    """Log what is wrong with a model as soon as it is trained; test is read at the end only."""
    known = stage.knows(dev)
    if not known.any():
        return
    rows = dev if known.all() else dev.select(known)
    of_baseline = None if baseline is None else baseline.predictions(rows)
    for sentence in check_model(stage.name, stage.predictions(rows), of_baseline):
        logger.warning(sentence)


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
