"""Training one stage of a recipe, unless it is in the store already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distilcal.config.schema import Recipe
from distilcal.data import Dataset
from distilcal.data.splits import Splits
from distilcal.dynamics import Recorder
from distilcal.errors import InputError
from distilcal.io.atomic import write_json
from distilcal.io.folders import is_intact, sealed_folder
from distilcal.io.locks import file_lock, in_use
from distilcal.io.parts import remove_folder
from distilcal.models.classifier import Classifier, build_classifier, derive_classifier, save_classifier
from distilcal.pipeline.logs import main_process_logger
from distilcal.pipeline.preflight import check_predictions
from distilcal.pipeline.rows import stage_data
from distilcal.pipeline.stage import MAP, Stage
from distilcal.pipeline.teacher import Teacher, load_teacher, training_rows
from distilcal.pipeline.views import build_recorder, build_views, feature_width
from distilcal.training import TrainingProgress, TrainingResult, fit
from distilcal.training.distributed import ProcessGroup
from distilcal.training.prediction import store_outputs
from distilcal.views import Term, build_term

logger = main_process_logger(__name__)


def run_stage(
    stage: Stage,
    recipe: Recipe,
    splits: Splits,
    stages: Mapping[str, Stage],
    processes: ProcessGroup,
    *,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    uses: ExitStack | None = None,
    keep_dev_logits: bool = True,
) -> None:
    """Train a stage, or load its pretrained model, and save it in the store; nothing is done if it is there.

    Parameters
    ----------
    stage : Stage
        The stage; those that it depends on have been run.
    recipe : Recipe
        The recipe that it belongs to.
    splits : Splits
        The data.
    stages : mapping of str to Stage
        All stages of the recipe.
    processes : ProcessGroup
        The processes that train together.
    on_progress : callable, optional
        Called in the main process with how far training is.
    on_epoch : callable, optional
        Called in the main process with the entry of the history after every epoch that is trained.
    uses : ExitStack, optional
        Until it is closed the stage is marked as in use, so that nobody removes it from the store.
    keep_dev_logits : bool, default True
        Whether the store keeps what training computed on dev, so that it is not computed again.
    """
    if stage.settings.predictions:
        check_predictions(stage.name, stage.external_predictions, splits)
        return

    def log_waiting() -> None:
        logger.info("%s: waiting for another process that trains the same stage", stage.name)

    lock = stage.store / "locks" / stage.key
    with file_lock(lock, on_wait=log_waiting) if processes.is_main_process else nullcontext():
        if processes.is_main_process:
            is_intact(stage.folder, key=stage.key)  # a damaged one, or another under its name, is removed
        processes.wait_for_everyone()
        finished = stage.folder.exists()
        processes.wait_for_everyone()  # all have looked before one writes it
        if finished:
            if processes.is_main_process:
                remove_folder(stage.store / "work" / stage.key)  # left if a process was killed after it wrote the stage
            _log_finished(stage)
        else:
            trained = _train(stage, recipe, splits, stages, processes, on_progress, on_epoch)
            if processes.is_main_process:
                if keep_dev_logits and trained.dev_logits is not None:
                    store_outputs(trained.classifier, splits.dev, {"logits": trained.dev_logits}, stage.store)
                _save(stage, trained)
        if uses is not None and processes.is_main_process:
            uses.enter_context(in_use(stage.folder))  # while its lock is held, so that nobody comes in between
        processes.wait_for_everyone()


@dataclass(frozen=True)
class TrainedStage:
    """What is saved of a stage: the classifier, its history and, where it recorded, its dynamics; and its logits on dev."""

    classifier: Classifier
    history: dict[str, Any]
    recorder: Recorder | None = None
    dev_logits: NDArray[np.float32] | None = None


def _train(
    stage: Stage,
    recipe: Recipe,
    splits: Splits,
    stages: Mapping[str, Stage],
    processes: ProcessGroup,
    on_progress: Callable[[TrainingProgress], None] | None,
    on_epoch: Callable[[dict[str, Any]], None] | None,
) -> TrainedStage:
    settings, train = stage.settings, stage_data(stage.settings, splits)
    classifier = _build_classifier(stage, recipe, train, stages)
    if not settings.terms:
        return TrainedStage(classifier, history={"epochs": []})
    train = training_rows(stage, splits, stages)
    teacher = load_teacher(stage, classifier, train, splits.dev, stages, processes)
    terms = _build_terms(stage, train, classifier, teacher, recipe.seed)
    map_folders = {name: other.folder / MAP for name, other in stages.items()}
    views, groups = build_views(stage.name, settings, train, classifier, map_folders, recipe.seed)
    checkpoint_dir = stage.store / "work" / stage.key
    recorder = build_recorder(settings, train, classifier, checkpoint_dir) if settings.record else None
    with processes.main_process_first():  # what is tokenised or encoded once is there for the others
        for data in (train, splits.dev):
            classifier.inputs.prepare(data, stage.store)
    unlabelled = int((~train.is_labelled).sum())
    logger.info(
        "%s: training a network of %s parameters on %s examples%s, %d epochs in batches of %d",
        stage.name,
        f"{classifier.parameters:,}",
        f"{len(train):,}",
        f", {unlabelled:,} of them unlabelled" if unlabelled else "",
        settings.train.epochs,
        settings.train.batch,
    )
    result = fit(
        classifier,
        train,
        splits.dev,
        terms,
        settings.train,
        teacher=teacher.predictions,
        teacher_features=teacher.features,
        live_teacher=teacher.live,
        views=views,
        recorder=recorder,
        groups=groups,
        soft_labels=recipe.data.soft_labels,
        seed=recipe.seed,
        checkpoint_dir=checkpoint_dir,
        store=stage.store,
        on_progress=on_progress if processes.is_main_process else None,
        on_epoch=on_epoch,
    )
    _log_result(stage, result)
    history = {
        "epochs": result.history,
        "best_epoch": result.best_epoch,
        "seconds": result.seconds,
        "settings": settings.train.model_dump(),
    }
    return TrainedStage(classifier, history, recorder, result.dev_logits)


def _build_classifier(stage: Stage, recipe: Recipe, train: Dataset, stages: Mapping[str, Stage]) -> Classifier:
    """The classifier before training: a copy of another stage's, or a new one from the settings."""
    model = stage.settings.model
    if model.start_from:
        parent = stages[model.start_from]
        if parent.settings.predictions:
            raise InputError(
                f"stages.{stage.name} starts from {parent.name!r}, which has no model", remedy="name a trained stage"
            )
        classifier = derive_classifier(parent.classifier, model)
    else:
        classifier = build_classifier(model, train, seed=recipe.seed)
    if classifier.new_head and not stage.settings.terms:
        raise InputError(
            f"{model.name} has no trained head for these classes",
            source=f"stages.{stage.name}",
            remedy="give it terms to train, or a model that was trained",
        )
    return classifier


def _build_terms(stage: Stage, train: Dataset, classifier: Classifier, teacher: Teacher, seed: int) -> list[Term]:
    """The terms of a stage; losses with a memory are built for these data and networks.

    All that have a memory need labels: it is of the labelled examples, which are the first rows of the data.
    """
    assert train.labels is not None
    labels = train.labels[train.is_labelled]
    context: dict[str, Any] = {
        "n_data": len(labels),
        "classes": len(train.classes),
        "labels": torch.from_numpy(np.ascontiguousarray(labels)),
        "features": feature_width(classifier),
    }
    if teacher.features is not None:
        context["teacher_features"] = int(np.prod(teacher.features.values.shape[1:]))
    elif teacher.live is not None:
        context["teacher_features"] = teacher.live.network.output.in_features
    terms = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for number, term in enumerate(stage.settings.terms):
            path = f"stages.{stage.name}.terms[{number}]"
            terms.append(build_term(term.loss, term.weight, term.view, term.settings, context, path))
    return terms


def _save(stage: Stage, trained: TrainedStage) -> None:
    """Write the stage's folder in the store; the checkpoints of its training are not needed any more."""
    with sealed_folder(stage.folder, key=stage.key) as folder:
        save_classifier(trained.classifier, folder / "model")
        write_json(folder / "history.json", trained.history)
        if trained.recorder is not None:
            trained.recorder.dynamics().save(folder / MAP)
    remove_folder(stage.store / "work" / stage.key)


def _log_finished(stage: Stage) -> None:
    if stage.settings.terms:
        logger.info("%s: already trained, loaded from the store", stage.name)
    else:
        logger.info("%s: used without training", stage.name)


def _log_result(stage: Stage, result: TrainingResult) -> None:
    if result.resumed_at:
        logger.info("%s: resumed after epoch %d of an interrupted run", stage.name, result.resumed_at)
    best = result.history[result.best_epoch]["dev"]
    logger.info(
        "%s: kept epoch %d of %d, dev accuracy %.3f, NLL %.3f, ECE %.3f (%.0f s)",
        stage.name,
        result.best_epoch + 1,
        len(result.history),
        best["accuracy"],
        best["nll"],
        best["ece"],
        result.seconds,
    )
