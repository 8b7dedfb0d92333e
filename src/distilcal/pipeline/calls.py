"""What a call of ``distilcal.distill`` does, once its arguments are settings and sources: plan a run, or carry it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from distilcal.data.splits import Splits
from distilcal.pipeline.asking import forget_answers
from distilcal.pipeline.budget import BudgetPlan, choosable_layers, distill_within, plan_within
from distilcal.pipeline.call_sources import CallSources, add_sources
from distilcal.pipeline.distill import DistillSettings, recipe_for_distillation
from distilcal.pipeline.in_memory import InMemory
from distilcal.pipeline.results import METRICS
from distilcal.pipeline.run import Plan, plan, run_recipe
from distilcal.pipeline.tracking import track_run
from distilcal.report.progress import TrainingBars, counting_bar

OnStageProgress = Callable[[str, Any], None]  # name of a stage, TrainingProgress


def plan_call(
    settings: DistillSettings,
    sources: CallSources,
    folder: Path,
    store: Path,
    *,
    changes: Sequence[str] = (),
    seconds: float | None = None,
) -> Plan | BudgetPlan:
    """Check a call and return what it would do. Trains nothing and asks no teacher.

    Parameters
    ----------
    settings : DistillSettings
        The settings of the call, without its sources.
    sources : CallSources
        Data, teacher and student: paths, names, or objects in memory.
    folder : Path
        Where placeholders of what is in memory are written.
    store : Path
        Where trained stages are.
    changes : sequence of str
        Changes to the recipe such as ``stages.student.train.epochs=5``.
    seconds : float, optional
        Time for a search of the student; by default there is one student and no limit.

    Returns
    -------
    Plan or BudgetPlan
        The latter with a time.
    """
    inputs = InMemory(folder)
    settings = add_sources(settings, sources, inputs)
    recipe = recipe_for_distillation(settings, changes, inputs.configs)
    callbacks: dict[str, Any] = {
        "loaded": inputs.datasets,
        "configs": inputs.configs,
        "prepare": partial(inputs.write_placeholders, teacher_labels=settings.teacher_labels),
    }
    if seconds is None:
        return plan(recipe, store, **callbacks)
    layers = choosable_layers(settings, recipe, changes, inputs.configs)
    return plan_within(recipe, seconds, store, layers=layers, **callbacks)


def run_call(
    settings: DistillSettings,
    sources: CallSources,
    folder: Path,
    store: Path,
    *,
    changes: Sequence[str] = (),
    seconds: float | None = None,
    started: float,
    progress: bool | OnStageProgress = False,
    track: str = "",
) -> None:
    """Carry out a call: write what is in memory beside the run, train, evaluate and write the results.

    Parameters
    ----------
    settings : DistillSettings
        The settings of the call, without its sources.
    sources : CallSources
        Data, teacher and student: paths, names, or objects in memory.
    folder : Path
        The folder of the run.
    store : Path
        Where trained stages are.
    changes : sequence of str
        Changes to the recipe such as ``stages.student.train.epochs=5``.
    seconds : float, optional
        Time for a search of the student; by default there is one student and no limit.
    started : float
        The monotonic clock when the call began: the time counts from there.
    progress : bool or callable
        Whether to show bars, or a function that is called with the name of a stage and its progress.
    track : str
        Where to follow the run: ``tensorboard``, ``wandb``, ``mlflow``, or nowhere.
    """
    inputs = InMemory(folder / "data")
    settings = add_sources(settings, sources, inputs)
    recipe = recipe_for_distillation(settings, changes, inputs.configs)

    def prepare(splits: Splits) -> None:
        with counting_bar("asking the teacher", shown=progress is True) as on_progress:
            inputs.write_models(splits, teacher_labels=settings.teacher_labels, on_progress=on_progress)

    has_results = (folder / METRICS).exists()

    def write_data() -> None:
        inputs.write_data()
        if not has_results:
            inputs.forget_replaced()

    callbacks: dict[str, Any] = {
        "loaded": inputs.datasets,
        "configs": inputs.configs,
        "prepare": prepare if inputs.configs else None,
        "on_checked": write_data,
        "on_refused": inputs.restore,
    }
    try:
        with _training_progress(progress) as on_progress:
            if seconds is None:
                with track_run(track, recipe, folder) as on_epoch:
                    run_recipe(recipe, folder, store, on_progress=on_progress, on_epoch=on_epoch, **callbacks)
            else:
                layers = choosable_layers(settings, recipe, changes, inputs.configs)
                distill_within(
                    recipe,
                    seconds,
                    folder,
                    store,
                    layers=layers,
                    started=started,
                    on_progress=on_progress,
                    track=track,
                    **callbacks,
                )
    except BaseException:
        if has_results:
            inputs.restore()  # the results of the earlier call stay, and so do their data
        raise
    inputs.forget_replaced()
    forget_answers(inputs.folder)


@contextmanager
def _training_progress(progress: bool | OnStageProgress) -> Iterator[OnStageProgress | None]:
    """What to call with the progress of a stage: bars, the caller's function, or nothing."""
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield None
        return
    bars = TrainingBars()
    try:
        yield bars.show
    finally:
        bars.stop()
