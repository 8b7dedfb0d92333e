"""What a student learns from: a teacher's outputs on the training data, or the teacher itself, run on every batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from distilcal.calibrate import fit_temperature
from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset
from distilcal.data.splits import Splits
from distilcal.errors import InputError
from distilcal.losses import LOSSES, required_inputs, rows_in_use
from distilcal.models.classifier import Classifier, derive_classifier
from distilcal.models.inputs import ImageInputs
from distilcal.models.network import fold_temperature
from distilcal.pipeline.logs import main_process_logger
from distilcal.pipeline.rows import stage_data
from distilcal.pipeline.stage import Stage
from distilcal.pipeline.views import stage_views
from distilcal.predictions import Predictions
from distilcal.selective import counted
from distilcal.training import Features, same_inputs
from distilcal.training.distributed import ProcessGroup
from distilcal.views import build_term

logger = main_process_logger(__name__)


@dataclass(frozen=True)
class Teacher:
    """A teacher as `fit` takes it: outputs on the training rows, a network that is run on every batch, both, or nothing."""

    predictions: Predictions | None = None
    features: Features | None = None
    live: Classifier | None = None


def training_rows(stage: Stage, splits: Splits, stages: Mapping[str, Stage]) -> Dataset:
    """Return the training examples that a stage learns from, and log how many it cannot use.

    A teacher that is known by its predictions may know only some examples. The others are taught by their labels alone, and
    those that have none are left out.

    Parameters
    ----------
    stage : Stage
        The stage.
    splits : Splits
        The data.
    stages : mapping of str to Stage
        All stages of the recipe, its teacher among them.

    Returns
    -------
    Dataset
        Labelled rows first.
    """
    train = stage_data(stage.settings, splits)
    teacher = stages.get(stage.settings.teacher)
    known = np.ones(len(train), dtype=bool) if teacher is None else teacher.knows(train)
    used = rows_in_use([LOSSES[term.loss] for term in stage.settings.terms if term.loss in LOSSES], train.is_labelled, known)
    if teacher is not None and not known.all():
        _log_unknown(stage.name, teacher.name, used, known, train)
    return train if used.all() else train.select(used)


def _log_unknown(stage: str, teacher: str, used: NDArray[np.bool_], known: NDArray[np.bool_], train: Dataset) -> None:
    by_labels = int((used & ~known & train.is_labelled).sum())
    if by_labels:
        logger.warning(
            "%s: %s of train not among the predictions of %s, taught by labels alone",
            stage,
            counted(by_labels, "example"),
            teacher,
        )
    left_out = int((~used).sum())
    if left_out:
        logger.warning(
            "%s: %s of train left out: not among the predictions of %s, and no term can use them",
            stage,
            counted(left_out, "example"),
            teacher,
        )


def load_teacher(
    stage: Stage, student: Classifier, train: Dataset, dev: Dataset, stages: Mapping[str, Stage], processes: ProcessGroup
) -> Teacher:
    """Return what a stage's losses need of its teacher.

    Parameters
    ----------
    stage : Stage
        The student's stage.
    student : Classifier
        The student's network, not trained yet.
    train : Dataset
        The examples that the student learns from, on which the outputs are computed.
    dev : Dataset
        What a temperature is fitted on.
    stages : mapping of str to Stage
        All stages of the recipe.
    processes : ProcessGroup
        The first process computes outputs, the others load them from the store.

    Raises
    ------
    InputError
        If the teacher has to be run on the student's inputs and cannot be.
    """
    settings = stage.settings
    names = _teacher_outputs(stage)
    if not settings.teacher or not names:
        return Teacher()
    teacher = stages[settings.teacher]
    runs_live = _runs_live(stage, student, teacher)
    sees_mixes = any(view.teacher == "mixed" for view in stage_views(settings).values())
    if runs_live or sees_mixes:
        _check_same_inputs(stage, student, teacher, sees_mixes=sees_mixes)
    predictions, features, temperature = None, None, None
    with processes.main_process_first():
        if not runs_live:
            logger.info("%s: predictions of %s on the training data, computed or from the store", stage.name, teacher.name)
            predictions, features = _training_outputs(teacher, train, names)
        if settings.scale_teacher:
            temperature = _fit_teacher_temperature(stage, teacher, dev)
    if predictions is not None and temperature is not None:
        predictions = _divide_logits(predictions, temperature)
    if not runs_live and not sees_mixes:
        return Teacher(predictions, features)
    return Teacher(predictions, features, _live_teacher(teacher, temperature))


def _teacher_outputs(stage: Stage) -> tuple[str, ...]:
    """Which outputs of a teacher the losses read: "features", "logits", both or none."""
    inputs: set[str] = set()
    for term in stage.settings.terms:
        if term.loss in LOSSES:
            inputs.update(required_inputs(LOSSES[term.loss]))
        else:
            inputs.update(build_term(term.loss, path=f"stages.{stage.name}").inputs)
    return tuple(name.removeprefix("teacher_") for name in sorted(inputs) if name.startswith("teacher_"))


def _runs_live(stage: Stage, student: Classifier, teacher: Stage) -> bool:
    """Whether the teacher is run on every batch: images that are augmented differ from epoch to epoch."""
    if stage.settings.teacher_input != "auto":
        return stage.settings.teacher_input == "live"
    augments = isinstance(student.inputs, ImageInputs) and student.inputs.augment
    return augments and not teacher.settings.predictions


def _check_same_inputs(stage: Stage, student: Classifier, teacher: Stage, *, sees_mixes: bool) -> None:
    if teacher.settings.predictions or same_inputs(student, teacher.classifier):
        return
    raise different_inputs(stage.name, teacher.name, sees_mixes=sees_mixes)


def different_inputs(stage: str, teacher: str, *, sees_mixes: bool) -> InputError:
    """Return the error for a teacher that is to be run on the inputs of a student and cannot read them.

    Parameters
    ----------
    stage, teacher : str
        Names of the student's stage and of its teacher's.
    sees_mixes : bool
        Whether it is to be run on the student's mixes, not on every batch.

    Returns
    -------
    InputError
    """
    return InputError(
        f"stages.{stage}: the teacher {teacher!r} cannot be run on the student's inputs",
        remedy="use teacher = 'clean' in its views" if sees_mixes else "use teacher_input = 'cached'",
    )


def _training_outputs(teacher: Stage, train: Dataset, names: tuple[str, ...]) -> tuple[Predictions | None, Features | None]:
    """The teacher's predictions and features on the training data, those of them that are named."""
    if teacher.settings.predictions and "features" not in names:
        return teacher.known_predictions(train), None
    outputs = teacher.outputs(train, names)
    predictions, features = None, None
    if "logits" in outputs:
        assert train.labels is not None
        predictions = Predictions(outputs["logits"], train.labels, ids=train.ids, classes=train.classes, name=teacher.name)
    if "features" in outputs:
        features = Features(train.ids, outputs["features"])
    return predictions, features


def _fit_teacher_temperature(stage: Stage, teacher: Stage, dev: Dataset) -> float | None:
    """The temperature of the teacher on dev; None for one whose answers have no confidence."""
    predictions = teacher.known_predictions(dev) if teacher.settings.predictions else teacher.predictions(dev)
    if predictions.one_hot:
        logger.warning("%s: the answers of %s have no confidence, so no temperature is fitted", stage.name, teacher.name)
        return None
    fitted = fit_temperature(predictions, grid=_grid_of(stage))
    logger.info("%s: the teacher's logits are divided by %.3f, its temperature on dev", stage.name, fitted.value)
    if fitted.fit is not None and not fitted.fit.converged:
        logger.warning("%s: this temperature is doubtful: %s", stage.name, fitted.fit.message)
    return fitted.value


def _grid_of(stage: Stage) -> tuple[float, float, float] | None:
    """The temperatures among which the teacher's is taken; None for the exact optimum."""
    if stage.settings.teacher_grid is None:
        return None
    first, last, step = stage.settings.teacher_grid
    return first, last, step


def _divide_logits(predictions: Predictions, temperature: float) -> Predictions:
    """Divide logits by a temperature in their own precision, which a calibrator would raise to double."""
    logits = predictions.logits / np.float32(temperature)
    if predictions.given_probs is None:
        return replace(predictions, logits=logits)
    return replace(predictions, logits=logits, given_probs=softmax(logits.astype(np.float64), axis=1))


def _live_teacher(teacher: Stage, temperature: float | None) -> Classifier:
    if teacher.settings.predictions:
        raise InputError(
            f"the teacher {teacher.name!r} cannot be run: it is known by its predictions", remedy="use teacher_input = 'cached'"
        )
    if temperature is None:
        return teacher.classifier
    scaled = derive_classifier(teacher.classifier, ModelSettings())
    fold_temperature(scaled.network, temperature)
    return scaled
