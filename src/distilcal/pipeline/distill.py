"""From a few settings to a whole recipe, with the defaults that the studies support.

A calibrated teacher passes its calibration on (Hebbalaguppe et al.), best at temperature 1 and with most of the weight on the
teacher. So a teacher that has to be trained is trained with cross-entropy and MDCA, each teacher is divided by the temperature
that is fitted on dev, and the student minimises 0.1 · cross-entropy + 0.9 · KD at temperature 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from distilcal.config.base import FiniteSettings, ListOf
from distilcal.config.loading import apply_change, as_table, parse_recipe
from distilcal.config.schema import (
    LARGEST_BATCH,
    LARGEST_SEED,
    LONGEST_TEXT,
    MOST_EPOCHS,
    DataSettings,
    ModelSettings,
    Name,
    Recipe,
    StageSettings,
    TermSettings,
    TrainSettings,
)
from distilcal.errors import InputError, list_names
from distilcal.io.atomic import check_input, expected_shape, read_object
from distilcal.io.predictions import SUFFIXES
from distilcal.models.image import NETWORKS, build_image_network
from distilcal.pipeline.encoders import NO_CONFIGS, Configs, encoder_config, has_classification_head, layer_count
from distilcal.runs import FORMAT, main_stage

CROSS_ENTROPY = TermSettings(loss="cross_entropy")
TEACHER_TERMS = (CROSS_ENTROPY, TermSettings(loss="mdca"))
HEADS_ON_VECTORS = ("linear", "mlp")
# Fewer steps than these leave a new head undertrained on a few hundred examples; benchmarks/bench_defaults.py measures it.
EPOCHS, MIN_STEPS, PATIENCE, WARMUP = 3, 300, 4, 0.1
ENCODER_LR, IMAGE_LR, VECTOR_LR = 5e-5, 1e-3, 0.01  # of pretrained encoders, and of networks that start from nothing
STUDENT_TERMS = (
    TermSettings(loss="cross_entropy", weight=0.1),
    TermSettings(loss="kd", weight=0.9, settings={"temperature": 1.0}),
)


class DistillSettings(FiniteSettings):
    """What ``distilcal distill`` needs to know: data, a teacher, and how to train. Names and defaults are those of its options.

    Lists may also be given as text with commas, as on the command line.

    Examples
    --------
    >>> DistillSettings(train="train.csv", teacher="roberta-base", layers="0,2,4").layers
    (0, 2, 4)
    """

    train: str = Field(description="Training data: a file, a folder, `hub:NAME@SPLIT` or `benchmark:NAME`.")
    teacher: str = Field(description="Hub name or folder of a model, predictions of one (`.npz`, `.csv`, …), or a run.")
    student: str | None = Field(
        default=None, description="Hub name, folder or run; unset: every second layer of the teacher's encoder."
    )
    layers: ListOf[int] = Field(default=(), description="Layers of the student to keep, counted from 0; empty: all.")
    dev: str = Field(default="", description="Development data; empty: a tenth of `train`.")
    test: str = Field(default="", description="Test data; empty: a fifth of `train`.")
    unlabelled: ListOf[str] = Field(
        default=(), description="Further training data without labels, for the student; rows of `train` without one join them."
    )
    ood: ListOf[str] = Field(default=(), description="Data of other domains to test on.")
    classes: ListOf[str] = Field(default=(), description="Names of the classes, in order; empty: as found in `train`.")
    text: str = Field(default="", description="Column of texts; empty: the usual names.")
    pair: str = Field(default="", description="Column of second texts.")
    choices: ListOf[str] = Field(default=(), description="Columns of choices, or one that holds lists; `text` is the prompt.")
    label: str = Field(default="label", description="Column of labels.")
    id_column: str = Field(default="", description="Column of ids; empty: `id`, or computed from the content.")
    group: str = Field(default="", description="Column of groups that are never split between train and test.")
    teacher_labels: ListOf[str] = Field(
        default=(), description="Classes of the teacher's outputs, in order, if it only calls them LABEL_0, LABEL_1, …."
    )
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=MOST_EPOCHS,
        description="Passes over the training data; unset: 3, or more for 300 steps, with early stopping.",
    )
    batch: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST_BATCH,
        description="Examples in a batch; unset: 16 for fewer than 2,000 training examples, else 32.",
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        description="Learning rate at its highest; unset: 5e-5 for pretrained encoders, 1e-3 for networks for images, 0.01 for "
        "`linear` and `mlp`.",
    )
    labelled_share: float | None = Field(
        default=None, gt=0, le=1, description="Share of labelled examples in the student's batches; unset: as in the data."
    )
    max_length: int = Field(default=256, ge=8, le=LONGEST_TEXT, description="Tokens after which a text is cut off.")
    accuracy: float = Field(
        default=0.95, gt=0, le=1, description="Target accuracy among the answers that are not handed over to a human."
    )
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description="Seed of the models and of the order of the data.")
    alone: bool = Field(default=True, description="Also train the student without its teacher, to compare.")
    name: Name = Field(default="distilled", description="Name of the run.")

    @field_validator("classes", "choices", "teacher_labels", mode="before")
    @classmethod
    def split_names(cls, value: Any) -> Any:
        """Accept ``a,b,c`` for a list of names, and nothing for an empty one."""
        if value is None or value == "":
            return ()
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value

    @field_validator("layers", mode="before")
    @classmethod
    def split_numbers(cls, value: Any) -> Any:
        """Accept ``0,2,4`` for a list of numbers, and nothing for an empty one."""
        if value is None or value == "":
            return ()
        if not isinstance(value, str):
            return value
        try:
            return tuple(int(number) for number in value.split(","))
        except ValueError:
            raise InputError(f"{value!r} is not a list of numbers", remedy="write them as 0,2,4") from None


def recipe_for_distillation(settings: DistillSettings, changes: Sequence[str] = (), configs: Configs = NO_CONFIGS) -> Recipe:
    """Build the recipe of ``distilcal distill``: a teacher, a student, and the student alone to compare with.

    Parameters
    ----------
    settings : DistillSettings
        Data, teacher, student and training.
    changes : sequence of str
        Changes to the recipe such as ``stages.student.train.epochs=5``.
    configs : mapping of str to mapping
        Teachers and students that are written later: the configuration of a model by its folder, and an empty one by the file
        of predictions.

    Returns
    -------
    Recipe
        With the stages ``teacher``, ``student`` and, unless it is left out, ``alone``.
    """
    teacher = _teacher_stage(settings, configs)
    student = _student_model(settings, teacher, configs)
    train = _train_settings(settings, student.name)
    stages = {"teacher": teacher}
    if settings.alone:
        stages["alone"] = StageSettings(model=student, terms=(CROSS_ENTROPY,), train=train)
    stages["student"] = StageSettings(
        model=student,
        terms=STUDENT_TERMS,
        train=train.replace(labelled_share=settings.labelled_share),
        teacher="teacher",
        scale_teacher=True,
    )
    table: dict[str, Any] = {
        "name": settings.name,
        "seed": settings.seed,
        "data": as_table(_data_settings(settings)),
        "stages": as_table(stages),
        "accuracy": settings.accuracy,
    }
    for name, stage in table["stages"].items():
        if any(change.partition("=")[0].strip() == f"stages.{name}.train.epochs" for change in changes):
            stage["train"].pop("min_steps", None)  # the user's number of epochs is not raised, nor cut short
            stage["train"]["patience"] = 0
    for change in changes:
        apply_change(table, change)
    return parse_recipe(table)


def _data_settings(settings: DistillSettings) -> DataSettings:
    return DataSettings(
        train=settings.train,
        dev=settings.dev,
        test=settings.test,
        ood=settings.ood,
        unlabelled=settings.unlabelled or None,
        classes=settings.classes,
        text=settings.text,
        pair=settings.pair,
        choices=settings.choices,
        label=settings.label,
        id=settings.id_column,
        group=settings.group,
    )


def _train_settings(settings: DistillSettings, network: str) -> TrainSettings:
    """Return how a network is trained: as the user says, and otherwise so that small data make enough steps."""
    lr = IMAGE_LR if network in NETWORKS else ENCODER_LR
    if network in HEADS_ON_VECTORS:
        lr = VECTOR_LR
    train = TrainSettings(batch=settings.batch or 0, lr=settings.lr or lr, warmup=WARMUP)
    if settings.epochs is not None:
        return train.replace(epochs=settings.epochs)
    return train.replace(epochs=EPOCHS, min_steps=MIN_STEPS, patience=PATIENCE)


def _is_fresh(network: str) -> bool:
    """Whether a network starts from nothing: those for images, and heads on vectors."""
    return network in NETWORKS or network in HEADS_ON_VECTORS


def _check_image_network(name: str) -> None:
    """Refuse a misspelt name of a network for images, such as resnet21, which would be looked up on the hub."""
    families = {re.sub(r"[_\d].*", "", network) for network in NETWORKS}
    if re.sub(r"[-_\d].*", "", name.lower()) in families and not Path(name).is_dir():
        build_image_network(name, 2)


def _teacher_stage(settings: DistillSettings, configs: Configs) -> StageSettings:
    """Return the stage of a teacher: its predictions, a trained model as it is, or an encoder to be trained."""
    if Path(settings.teacher).suffix.lower() in SUFFIXES:
        if settings.teacher not in configs:
            check_input(Path(settings.teacher))
            refuse_labels_of_predictions(settings)
        return StageSettings(predictions=(settings.teacher,))
    source = _model_source(settings.teacher)
    train = _train_settings(settings, source)
    if _is_fresh(source):
        _refuse_labels_of_trained(settings)
        return StageSettings(model=ModelSettings(name=source), terms=TEACHER_TERMS, train=train)
    _check_image_network(source)
    if has_classification_head(_config(source, configs)):
        model = ModelSettings(name=source, head="keep", labels=settings.teacher_labels, max_length=settings.max_length)
        return StageSettings(model=model)
    _refuse_labels_of_trained(settings)
    model = ModelSettings(name=source, head="new", max_length=settings.max_length)
    return StageSettings(model=model, terms=TEACHER_TERMS, train=train)


def refuse_labels_of_predictions(settings: DistillSettings) -> None:
    """Refuse names for the outputs of a teacher that is known by its predictions, which name their classes themselves.

    Parameters
    ----------
    settings : DistillSettings
        Of a call with such a teacher.

    Raises
    ------
    InputError
        If the settings have ``teacher_labels``.
    """
    if settings.teacher_labels:
        raise InputError(
            f"teacher_labels = {list_names(settings.teacher_labels)} is not for predictions, which name their own classes",
            remedy="leave it out, and correct the names in the predictions if they are wrong (classes=... of Predictions)",
        )


def _refuse_labels_of_trained(settings: DistillSettings) -> None:
    if settings.teacher_labels:
        raise InputError(
            f"teacher_labels = {list_names(settings.teacher_labels)} is for a trained teacher, and {settings.teacher} is "
            "trained here, with the classes of the data",
            remedy="leave it out",
        )


def _student_model(settings: DistillSettings, teacher: StageSettings, configs: Configs) -> ModelSettings:
    """Return the student's network: the one that is named, or every second layer of the teacher."""
    if settings.student is not None:
        source, layers = _model_source(settings.student), settings.layers
        if not _is_fresh(source):
            _check_image_network(source)
    elif teacher.predictions:
        raise InputError("a teacher known by its predictions has no layers for a student", remedy="name a student (--student)")
    elif _is_fresh(teacher.model.name):
        raise InputError(f"{teacher.model.name} has no layers to leave out", remedy="name a student (--student)")
    else:
        source = teacher.model.name
        layers = settings.layers or tuple(range(0, layer_count(_config(source, configs)), 2))
    return ModelSettings(name=source, layers=layers, head="new", max_length=settings.max_length)


def _config(source: str, configs: Configs) -> Mapping[str, Any]:
    return configs[source] if source in configs else encoder_config(source)


def _model_source(source: str) -> str:
    """Return the main model of a run if the source is the folder of a run, else the source."""
    metrics = Path(source) / "metrics.json"
    if not metrics.exists():
        return source
    stages = read_object(metrics, ("stages",), newest=FORMAT)["stages"]
    with expected_shape(metrics):
        return str(Path(source) / main_stage(stages) / "model")
