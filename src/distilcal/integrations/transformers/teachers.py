"""Teachers of a Trainer: predictions that are looked up by row, or a model that is run on each batch."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distilcal.errors import InputError, list_names
from distilcal.integrations.transformers.data import default_names, logits_of, names_in_model
from distilcal.models import Classifier
from distilcal.models.text import TextNetwork, last_linear
from distilcal.predictions import Predictions, find_rows
from distilcal.training.teacher import Features, unknown_rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedTeacher:
    """A teacher's outputs in the row order of the training data, NaN in rows that it does not know.

    Attributes
    ----------
    logits : Tensor or None, shape (N, K)
        Its logits.
    features : Tensor or None, shape (N, ...)
        Its features.
    """

    logits: Tensor | None
    features: Tensor | None

    @property
    def outputs(self) -> frozenset[str]:
        """The inputs of losses that this teacher has."""
        names = {"teacher_logits": self.logits, "teacher_features": self.features}
        return frozenset(name for name, value in names.items() if value is not None)

    @cached_property
    def unknown(self) -> dict[str, Tensor]:
        """Which rows the teacher does not know (N,), for those of its outputs that lack some."""
        outputs = {"logits": self.logits, "features": self.features}
        lacking = unknown_rows({name: value.numpy() for name, value in outputs.items() if value is not None})
        return {name: torch.from_numpy(rows) for name, rows in lacking.items()}

    @property
    def feature_width(self) -> int:
        """Numbers in the features of an example."""
        assert self.features is not None
        return self.features[0].numel()

    def run(self, inputs: Mapping[str, Tensor], rows: Tensor | None) -> dict[str, Tensor]:
        """Return the outputs for some rows of the training data; the inputs of the student are not needed."""
        assert rows is not None
        on_cpu = rows.cpu()
        outputs = {}
        for name, value in (("teacher_logits", self.logits), ("teacher_features", self.features)):
            if value is not None:
                outputs[name] = value.index_select(0, on_cpu).to(rows.device)
        return outputs


@dataclass(frozen=True)
class ModelTeacher:
    """A transformers model that is run on the student's inputs, in evaluation mode and without gradient.

    Attributes
    ----------
    model : PreTrainedModel
        The teacher.
    columns : tuple of int
        For each class of the student, the teacher's output.
    """

    model: Any
    columns: tuple[int, ...]
    outputs = frozenset({"teacher_logits", "teacher_features"})
    unknown: ClassVar[dict[str, Tensor]] = {}  # it can be run on any row

    @property
    def feature_width(self) -> int:
        """Numbers in the features of an example."""
        return int(last_linear(self.model)[1].in_features)

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Tensor], rows: Tensor | None) -> dict[str, Tensor]:
        """Return logits and features for the inputs of the student."""
        known = inspect.signature(self.model.forward).parameters
        with captured_features(self.model) as captured:
            outputs = self.model(**{name: value for name, value in inputs.items() if name in known})
        count = len(next(iter(inputs.values())))
        logits = logits_of(outputs, count)[:, list(self.columns)]
        return {"teacher_logits": logits, "teacher_features": captured[-1]}


@contextmanager
def captured_features(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what the last linear layer of a model reads while the block runs.

    Parameters
    ----------
    model : Module
        A classifier.

    Yields
    ------
    list of Tensor
        The features (N, D) of each forward pass.

    Examples
    --------
    >>> with captured_features(nn.Linear(3, 2)) as features:
    ...     pass
    >>> features
    []
    """
    captured: list[Tensor] = []

    def capture(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        captured.append(args[0])

    handle = last_linear(model)[1].register_forward_pre_hook(capture)
    try:
        yield captured
    finally:
        handle.remove()


def build_teacher(
    teacher: Any,
    features: Features | None,
    *,
    student: nn.Module,
    classes: Sequence[str],
    teacher_classes: Sequence[str] | None,
    ids: NDArray[np.str_] | None,
) -> CachedTeacher | ModelTeacher | None:
    """Match a teacher with the training data by id and with the student's classes by name.

    Parameters
    ----------
    teacher : Predictions, PreTrainedModel, Classifier or None
        The teacher; None: there is none.
    features : Features, optional
        Features of a teacher that is given by its predictions.
    student : Module
        The model that is trained.
    classes : sequence of str
        The student's classes.
    teacher_classes : sequence of str, optional
        The names of the teacher's outputs; by default its own.
    ids : array of str, optional
        The ids of the training data, in its order.

    Returns
    -------
    CachedTeacher, ModelTeacher or None

    Raises
    ------
    InputError
        If the teacher knows no example or has other classes, or if it cannot read the student's inputs.
    """
    if teacher is None and features is None:
        return None
    if teacher is None or isinstance(teacher, Predictions):
        if ids is None:
            raise InputError(
                "train_dataset has no ids to match the teacher's predictions with",
                remedy="give it a column 'id', or pass ids=, the name of a column or an array in its order",
            )
        return _cached_teacher(teacher, features, classes, teacher_classes, ids)
    if features is not None:
        raise InputError(
            "teacher_features are given beside a model", remedy="leave them out: the model is run for its features"
        )
    if isinstance(teacher, Classifier):
        if not isinstance(teacher.network, TextNetwork):
            raise InputError(
                "this teacher is not a transformers model", remedy="give its predictions: Predictions with the ids of the data"
            )
        teacher, own_classes = teacher.network.model, list(teacher.classes)
    elif isinstance(teacher, nn.Module):
        own_classes = names_in_model(teacher)
    else:
        raise InputError(
            f"a {type(teacher).__name__} cannot be a teacher", remedy="give Predictions, a transformers model or a Classifier"
        )
    _check_reads_the_same(teacher, student)
    columns = _columns(teacher_classes or own_classes, classes, "the teacher's model")
    return ModelTeacher(teacher.eval(), columns)


def _cached_teacher(
    predictions: Predictions | None,
    features: Features | None,
    classes: Sequence[str],
    teacher_classes: Sequence[str] | None,
    ids: NDArray[np.str_],
) -> CachedTeacher:
    logits = values = None
    if predictions is not None:
        if teacher_classes is not None:
            predictions = replace(predictions, classes=tuple(teacher_classes))
        if predictions.ids is None:
            raise InputError(
                f"the teacher's predictions {predictions.name!r} have no ids",
                remedy="give them those of train_dataset: teacher rows are matched by id",
            )
        columns = _columns(predictions.classes, classes, f"the teacher's predictions {predictions.name!r}")
        logits = _rows_by_id(predictions.logits[:, columns], predictions.ids, ids, "predictions")
    if features is not None:
        values = _rows_by_id(features.values, features.ids, ids, "features")
    return CachedTeacher(logits, values)


def _rows_by_id(values: NDArray[Any], ids: NDArray[np.str_], requested: NDArray[np.str_], kind: str) -> Tensor:
    """The teacher's values for each training example; NaN where it has none."""
    rows, missing = find_rows(ids, requested)
    if len(missing) == len(requested):
        raise InputError(
            f"the teacher's {kind} lack all {len(requested)} rows of train_dataset, the first with id {str(missing[0])!r}",
            remedy="use the same ids in both",
        )
    aligned = np.ascontiguousarray(values[rows])
    if len(missing):
        logger.warning("the teacher's %s lack %d of %d rows of train_dataset", kind, len(missing), len(requested))
        aligned[np.isin(requested, missing)] = np.nan
    return torch.from_numpy(aligned)


def _columns(teacher_classes: Sequence[str], classes: Sequence[str], where: str) -> tuple[int, ...]:
    """For each class of the student, the teacher's output of that name."""
    names = [str(name) for name in teacher_classes]
    if sorted(names) != sorted(classes):
        raise InputError(
            f"{where} has classes {list_names(names)}, the student {list_names(classes)}",
            remedy="pass classes= (the student's, by label) and teacher_classes= (by output) with the same names",
        )
    if names == default_names(len(names)):
        raise InputError(
            f"{where} and the student only call their classes {list_names(names)}, which may stand for different ones",
            remedy="pass classes= (the student's, by label) and teacher_classes= (by output) with their names",
        )
    return tuple(names.index(name) for name in classes)


def _check_reads_the_same(teacher: nn.Module, student: nn.Module) -> None:
    if teacher is student:
        raise InputError("the teacher is the student itself", remedy="give a copy: copy.deepcopy(model)")
    sizes = [getattr(getattr(model, "config", None), "vocab_size", None) for model in (teacher, student)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"the teacher's vocabulary has {sizes[0]} tokens, the student's {sizes[1]}: it cannot read the same inputs",
            remedy="run the teacher first and give its Predictions, with the ids of train_dataset",
        )
