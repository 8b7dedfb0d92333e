"""Stages: one model each, named by a hash of all that determines it. Same hash, already done."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from distilcal.calibrate import fit_temperature
from distilcal.config.loading import as_table
from distilcal.config.schema import ModelSettings, Recipe, StageSettings
from distilcal.data import Dataset
from distilcal.data.splits import Splits
from distilcal.dynamics import Recorder
from distilcal.errors import InputError
from distilcal.io.atomic import read_json, write_json
from distilcal.io.folders import digest, file_digest, is_intact, sealed_folder
from distilcal.io.locks import file_lock
from distilcal.io.predictions import read_predictions
from distilcal.models.classifier import (
    Classifier,
    build_classifier,
    derive_classifier,
    load_classifier,
    save_classifier,
    weights_path,
)
from distilcal.models.inputs import FrozenInputs, ImageInputs
from distilcal.models.pretrained import resolve_model
from distilcal.pipeline.logs import main_process_logger
from distilcal.pipeline.preflight import check_predictions
from distilcal.pipeline.views import make_recorder, make_views, map_key, stage_views
from distilcal.predictions import Predictions
from distilcal.training import Features, TrainingProgress, compute_outputs, fit, same_inputs
from distilcal.training.distributed import ProcessGroup
from distilcal.views import Term, build_term

MAP = "dynamics"  # folder of a stage that recorded
logger = main_process_logger(__name__)


@dataclass
class Stage:
    """A model of a run, trained or as it was given."""

    name: str
    key: str
    settings: StageSettings
    folder: Path  # in the store
    store: Path

    @property
    def done(self) -> bool:
        """Whether it need not be trained."""
        return bool(self.settings.predictions) or self.folder.exists()

    @cached_property
    def classifier(self) -> Classifier:
        return on_device(load_classifier(self.folder / "model"))

    @cached_property
    def said(self) -> Predictions:
        """The rows of a model that is known by its predictions only."""
        parts = [read_predictions(path) for path in self.settings.predictions]
        return parts[0] if len(parts) == 1 else _stacked(parts)

    def outputs(self, data: Dataset, names: tuple[str, ...] = ("logits",)) -> dict[str, NDArray[Any]]:
        """What the model says about each row of the data, matched by id or by content."""
        if not self.settings.predictions:
            return compute_outputs(self.classifier, data, names, store=self.store)
        if "features" in names:
            raise InputError(
                f"the teacher {self.name!r} is known by its predictions only and has no features",
                remedy="leave out rkd and crd, or give the teacher's model",
            )
        return {"logits": _rows_for(self.said.reorder_classes(data.classes), data, self.name).logits}

    def training_outputs(self, data: Dataset, names: tuple[str, ...]) -> tuple[Predictions | None, Features | None]:
        """The model's predictions and features on the data that a student trains on, those of them that are named."""
        outputs = self.outputs(data, names)
        if self.settings.predictions:  # all its rows: a student finds its own by id
            return self.said, None
        predictions, features = None, None
        if "logits" in outputs:
            assert data.labels is not None
            predictions = Predictions(outputs["logits"], data.labels, ids=data.ids, classes=data.classes, name=self.name)
        if "features" in outputs:
            features = Features(data.ids, outputs["features"])
        return predictions, features

    def predictions(self, data: Dataset) -> Predictions:
        """Predictions on labelled data."""
        assert data.labels is not None
        named: dict[str, Any] = {"ids": data.ids, "classes": data.classes, "label_probs": data.label_probs, "name": data.name}
        if self.settings.predictions:
            found = _rows_for(self.said.reorder_classes(data.classes), data, self.name)
            if found.given_probs is not None:
                return Predictions.from_probs(found.given_probs, data.labels, **named)
            return Predictions(found.logits, data.labels, **named)
        return Predictions(self.outputs(data)["logits"], data.labels, **named)

    def history(self) -> list[dict[str, Any]]:
        path = self.folder / "history.json"
        history: list[dict[str, Any]] = read_json(path)["epochs"] if path.exists() else []
        return history


def stage_key(name: str, recipe: Recipe, splits: Splits, keys: dict[str, str]) -> str:
    """The hash of all that determines a stage: settings, what it depends on, data it is fitted on, seed."""
    stage = recipe.stages[name]
    if stage.predictions:
        return digest(["predictions", [file_digest(Path(p)) for p in stage.predictions if Path(p).exists()]])
    settings = as_table(stage)
    for unused in (
        "calibrate",
        "teacher",
        "predictions",
        "map",
    ):  # what is done after training, and what stands below by its key
        settings.pop(unused, None)
    settings["model"].pop("start_from", None)
    if not stage.record:
        settings.pop("record_features")
    if stage.model.pairs == "together":  # as it was before it could be chosen
        settings["model"].pop("pairs")
    source = _source_digest(stage)
    if source:
        settings["model"].pop("name")  # the files say what it is, wherever they lie
        settings["model"].pop("weights")
        source["network"] = stage.model.name if "weights" in source else ""
    parts: list[Any] = [settings, source, recipe.seed, recipe.data.soft_labels]
    parts += [keys.get(stage.teacher, ""), keys.get(stage.model.start_from, ""), map_key(stage, keys)]
    if stage.terms:
        parts += [splits.train.fingerprint, splits.dev.fingerprint]
    else:
        parts += [list(splits.train.classes), type(splits.train.inputs).__name__]
    return digest(parts)


def run_stage(
    stage: Stage,
    recipe: Recipe,
    splits: Splits,
    stages: dict[str, Stage],
    processes: ProcessGroup,
    *,
    on_progress: Callable[[TrainingProgress], None] | None = None,
) -> None:
    """Train a stage, or use its model without training, and save it in the store."""
    if stage.settings.predictions:
        check_predictions(stage.name, stage.said, splits)
        return

    def waiting() -> None:
        logger.info("%s: waiting for another process that trains the same stage", stage.name)

    lock = stage.store / "locks" / stage.key
    with file_lock(lock, on_wait=waiting) if processes.is_main_process else nullcontext():
        processes.wait_for_everyone()
        finished = is_intact(stage.folder) if processes.is_main_process else stage.folder.exists()
        if finished:
            if stage.settings.terms:
                logger.info("%s: already trained, loaded from the store", stage.name)
            else:
                logger.info("%s: used without training", stage.name)
            return
        classifier, facts, recorder = _made(stage, recipe, splits, stages, processes, on_progress)
        if processes.is_main_process:
            with sealed_folder(stage.folder, key=stage.key) as folder:
                save_classifier(classifier, folder / "model")
                write_json(folder / "history.json", facts)
                if recorder is not None:
                    recorder.dynamics().save(folder / MAP)
            shutil.rmtree(stage.store / "work" / stage.key, ignore_errors=True)
        processes.wait_for_everyone()


def _made(
    stage: Stage,
    recipe: Recipe,
    splits: Splits,
    stages: dict[str, Stage],
    processes: ProcessGroup,
    on_progress: Callable[[TrainingProgress], None] | None,
) -> tuple[Classifier, dict[str, Any], Recorder | None]:
    settings, train = stage.settings, splits.train
    if settings.model.start_from:
        parent = stages[settings.model.start_from]
        if parent.settings.predictions:
            raise InputError(
                f"stages.{stage.name} starts from {parent.name!r}, which has no model", remedy="name a trained stage"
            )
        classifier = derive_classifier(parent.classifier, settings.model)
    else:
        classifier = build_classifier(settings.model, train, seed=recipe.seed)
    if not settings.terms:
        if classifier.new_head:
            raise InputError(f"{settings.model.name} has no trained head for these classes", source=f"stages.{stage.name}",
                             remedy="give it terms to train, or a model that was trained")  # fmt: skip
        return classifier, {"epochs": []}, None
    inputs = {name for term in settings.terms for name in _required_inputs(term.loss, stage.name)}
    teacher = _teacher_for(stage, splits, stages, classifier, inputs, processes)
    terms = make_terms(settings, train, classifier, teacher, recipe.seed, stage.name)
    maps = {name: other.folder / MAP for name, other in stages.items()}
    views, groups = make_views(stage.name, settings, train, classifier, maps)
    work = stage.store / "work" / stage.key
    recorder = make_recorder(settings, train, classifier, work) if settings.record else None
    with processes.main_process_first():  # what is tokenised or encoded once is there for the others
        for data in (train, splits.dev):
            classifier.inputs.prepare(data, stage.store)
    logger.info("%s: training %s parameters on %s examples", stage.name, f"{classifier.parameters:,}", f"{len(train):,}")
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
        checkpoint_dir=work,
        store=stage.store,
        on_progress=on_progress if processes.is_main_process else None,
    )
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
    facts = {
        "epochs": result.history,
        "best_epoch": result.best_epoch,
        "seconds": result.seconds,
        "settings": settings.train.model_dump(),
    }
    return classifier, facts, recorder


def make_terms(
    settings: StageSettings,
    train: Dataset,
    classifier: Classifier,
    teacher: Teacher,
    seed: int,
    name: str,
) -> list[Term]:
    """The terms of a stage; losses with a memory are made for this data and these networks."""
    assert train.labels is not None
    context: dict[str, Any] = {
        "n_data": len(train),
        "classes": len(train.classes),
        "labels": torch.from_numpy(np.ascontiguousarray(train.labels)),
        "features": classifier.network.output.in_features * (len(train.classes) if classifier.multiple_choice else 1),
    }
    if teacher.features is not None:
        context["teacher_features"] = int(np.prod(teacher.features.values.shape[1:]))
    elif teacher.live is not None:
        context["teacher_features"] = teacher.live.network.output.in_features
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [
            build_term(t.loss, t.weight, t.view, t.settings, context, f"stages.{name}.terms[{i}]")
            for i, t in enumerate(settings.terms)
        ]


@dataclass(frozen=True)
class Teacher:
    """What a student learns from: outputs on the training rows, a network that is run on every batch, both, or nothing."""

    predictions: Predictions | None = None
    features: Features | None = None
    live: Classifier | None = None


def _teacher_for(
    stage: Stage,
    splits: Splits,
    stages: dict[str, Stage],
    student: Classifier,
    inputs: set[str],
    processes: ProcessGroup,
) -> Teacher:
    """The teacher's outputs on the training rows, or the teacher itself where inputs change from epoch to epoch."""
    settings = stage.settings
    names = tuple(name.removeprefix("teacher_") for name in sorted(inputs) if name.startswith("teacher_"))
    if not settings.teacher or not names:
        return Teacher()
    teacher = stages[settings.teacher]
    changing = isinstance(student.inputs, ImageInputs) and student.inputs.augment
    live = settings.teacher_input == "live" or (
        settings.teacher_input == "auto" and changing and not teacher.settings.predictions
    )
    mixes = any(view.teacher == "mixed" for view in stage_views(settings).values())
    if (live or mixes) and not teacher.settings.predictions and not same_inputs(student, teacher.classifier):
        raise InputError(
            f"stages.{stage.name}: the teacher {teacher.name!r} cannot be run on the student's inputs",
            remedy="use teacher = 'clean' in its views" if mixes else "use teacher_input = 'cached'",
        )
    temperature = None
    predictions, features = None, None
    with processes.main_process_first():
        if not live:
            logger.info("%s: predictions of %s on the training data, computed or from the store", stage.name, teacher.name)
            predictions, features = teacher.training_outputs(splits.train, names)
        if settings.scale_teacher:
            fitted = fit_temperature(teacher.predictions(splits.dev))
            temperature = fitted.value
            logger.info("%s: the teacher's logits are divided by %.3f, its temperature on dev", stage.name, temperature)
            if fitted.fit is not None and not fitted.fit.converged:
                logger.warning("%s: this temperature is doubtful: %s", stage.name, fitted.fit.message)
    if predictions is not None and temperature is not None:
        predictions = _divide_logits(predictions, temperature)
    if not live and not mixes:
        return Teacher(predictions, features)
    if teacher.settings.predictions:
        raise InputError(
            f"the teacher {teacher.name!r} cannot be run: it is known by its predictions", remedy="use teacher_input = 'cached'"
        )
    if temperature is None:
        return Teacher(predictions, features, teacher.classifier)
    from distilcal.models.network import fold_temperature

    live_teacher = derive_classifier(teacher.classifier, ModelSettings())
    fold_temperature(live_teacher.network, temperature)
    return Teacher(predictions, features, live_teacher)


def _divide_logits(predictions: Predictions, temperature: float) -> Predictions:
    """Divide logits by a temperature in their own precision, which a calibrator would raise to double."""
    logits = predictions.logits / np.float32(temperature)
    if predictions.given_probs is None:
        return replace(predictions, logits=logits)
    return replace(predictions, logits=logits, given_probs=softmax(logits.astype(np.float64), axis=1))


def on_device(classifier: Classifier) -> Classifier:
    """The same classifier on the fastest device there is."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classifier.network.to(device)
    if isinstance(classifier.inputs, FrozenInputs):
        classifier.inputs.encoder.to(device)
    return classifier


def _required_inputs(loss: str, name: str) -> tuple[str, ...]:
    from distilcal.losses import LOSSES, required_inputs

    return required_inputs(LOSSES[loss]) if loss in LOSSES else build_term(loss, path=f"stages.{name}").inputs


def _source_digest(stage: StageSettings) -> Any:
    """What a model's name stands for: the files of a folder; a hub model by name."""
    made: dict[str, str] = {}
    if stage.model.weights and weights_path(stage.model.weights).exists():
        made["weights"] = _known_digest(weights_path(stage.model.weights))
    if stage.model.name and (stage.model.name.startswith("package:") or Path(stage.model.name).is_dir()):
        folder = Path(resolve_model(stage.model.name))
        kinds = (".json", ".safetensors", ".bin", ".txt", ".model")
        made |= {f.name: _known_digest(f) for f in sorted(folder.iterdir()) if f.suffix in kinds}
    return made


def _known_digest(path: Path) -> str:
    """A file's hash, taken once in each process while the file stays as it is: the stages of a study share their encoders."""
    found = path.stat()
    return _digest_as_of(path.resolve(), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=256)
def _digest_as_of(path: Path, size: int, changed: int) -> str:
    return file_digest(path)


def _rows_for(said: Predictions, data: Dataset, name: str) -> Predictions:
    if said.ids is None:
        raise InputError(f"the predictions of {name!r} have no ids", remedy="add an id column, the same as in the data")
    missing = ~np.isin(data.ids, said.ids)
    if missing.any():
        raise InputError(
            f"the predictions of {name!r} lack {int(missing.sum())} of the {len(data)} rows of {data.name!r}, "
            f"the first with id {str(data.ids[missing.argmax()])!r}",
            remedy="predict on all of them, or leave those rows out of the data",
        )
    return said.select(data.ids)


def _stacked(parts: list[Predictions]) -> Predictions:
    """Several files of one model as one."""
    parts = [parts[0], *(p.reorder_classes(parts[0].classes) for p in parts[1:])]
    if any(p.ids is None for p in parts):
        raise InputError(
            f"{next(p.name for p in parts if p.ids is None)!r} has no ids", remedy="add an id column to every file"
        )
    ids = np.concatenate([p.ids for p in parts if p.ids is not None])
    labels = np.concatenate([p.labels for p in parts])
    named: dict[str, Any] = {"ids": ids, "classes": parts[0].classes}
    if any(p.given_probs is not None for p in parts):
        return Predictions.from_probs(np.concatenate([p.probs for p in parts]), labels, **named)
    return Predictions(np.concatenate([p.logits for p in parts]), labels, **named)
