"""What a training run is made of: collected, checked, and hashed so that a saved state is resumed by the same run only."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from distilcal.config.schema import TrainSettings
from distilcal.data import Dataset
from distilcal.data.unlabelled import has_labelled_first
from distilcal.dynamics import Recorder
from distilcal.errors import InputError
from distilcal.io.folders import digest
from distilcal.models.classifier import Classifier
from distilcal.models.text import TextNetwork
from distilcal.training.batches import same_inputs
from distilcal.training.teacher import unknown_rows
from distilcal.views import Batch, Term, View


@dataclass(frozen=True)
class TrainingSetup:
    """Everything that decides what a call of `fit` computes."""

    classifier: Classifier
    train: Dataset
    dev: Dataset  # with the classes in the order of train
    terms: tuple[Term, ...]
    settings: TrainSettings
    teacher_outputs: Mapping[str, NDArray[Any]]  # logits and features of the teacher in the row order of train
    live_teacher: Classifier | None
    views: Mapping[str, Callable[[Any, Batch], View]]
    recorder: Recorder | None
    groups: NDArray[Any] | None
    soft_labels: bool
    seed: int

    @property
    def view_names(self) -> tuple[str, ...]:
        """The views that terms look at, each once."""
        return tuple(dict.fromkeys(term.view for term in self.terms))


def check_setup(setup: TrainingSetup) -> None:
    """Raise an error that says what is wrong if a setup cannot be trained.

    Parameters
    ----------
    setup : TrainingSetup
        Everything that a training needs.

    Raises
    ------
    InputError
        If data have the wrong role, no labels or other classes, if a view or a teacher's output is missing, if an example takes
        part in no term, or if the recorder belongs to other data.
    """
    _check_role(setup.train, "train", remedy="train on other data")
    _check_role(setup.dev, "dev", remedy="choose on other data")
    if not setup.dev.is_labelled.all():
        missing = "has no labels" if not setup.dev.is_labelled.any() else "has examples without a label"
        raise InputError(f"{setup.dev.name!r} {missing}", remedy="give labelled data")
    if setup.train.classes != setup.classifier.classes:
        raise InputError(
            f"{setup.train.name!r} has classes {setup.train.classes}, the classifier {setup.classifier.classes}",
            remedy="use the same",
        )
    if not setup.terms:
        raise InputError("there is nothing to minimise", remedy="give at least one term, as cross_entropy")
    if setup.live_teacher is not None and not same_inputs(setup.classifier, setup.live_teacher):
        raise InputError(
            "a live teacher must read the same inputs as the student", remedy="use its outputs (teacher=...) instead"
        )
    if setup.settings.freeze_embeddings and not isinstance(setup.classifier.network, TextNetwork):
        raise InputError("freeze_embeddings is for text encoders that are trained", remedy="leave it out")
    _check_terms(setup)
    _check_rows(setup)
    if setup.recorder is not None:
        _check_recorder(setup.recorder, setup)


def _check_role(data: Dataset, role: str, remedy: str) -> None:
    if data.role not in (None, role):
        raise InputError(f"{data.name!r} is {data.role} data", remedy=remedy)


def _check_terms(setup: TrainingSetup) -> None:
    available = {f"teacher_{name}" for name in setup.teacher_outputs}
    if setup.live_teacher is not None:
        available |= {"teacher_logits", "teacher_features"}
    for term in setup.terms:
        if term.view not in setup.views:
            raise InputError(f"there is no view {term.view!r}", remedy=f"views: {', '.join(setup.views)}")
        missing = [name for name in term.inputs if name.startswith("teacher_") and name not in available]
        if missing:
            raise InputError(f"{term.name} needs {missing[0]}", remedy="give a teacher that has them, or leave out this term")


def _check_rows(setup: TrainingSetup) -> None:
    """Refuse data whose examples cannot take part, and rows in an order that a memory cannot be used with."""
    train, terms = setup.train, setup.terms
    unknown = unknown_rows(setup.teacher_outputs)
    counting = [term.counting_rows(train.is_labelled, unknown) for term in terms]
    if all(rows is not None for rows in counting):
        unused = ~np.any(counting, axis=0)  # type: ignore[arg-type]
        if unused.any():
            raise _unused_rows(train, unused, unknown)
    if train.is_labelled.all():
        return
    has_memory = any(term.needs_labels and isinstance(term.loss, nn.Module) and "ids" in term.inputs for term in terms)
    if (has_memory or setup.recorder is not None) and not has_labelled_first(train):
        raise InputError(
            f"{train.name!r} has unlabelled rows before labelled ones", remedy="sort them with distilcal.data.labelled_first"
        )
    if setup.groups is not None or any(getattr(setup.views[name], "needs_map", False) for name in setup.view_names):
        raise InputError(
            "pairs that a map decides cannot be drawn where unlabelled examples take part",
            remedy="use pairs = 'random', or leave out the unlabelled examples",
        )
    if setup.settings.labelled_share == 1 and train.is_labelled.any():
        raise InputError("labelled_share = 1 leaves no room for the unlabelled examples", remedy="lower it, or leave them out")


def _unused_rows(train: Dataset, unused: NDArray[np.bool_], unknown: Mapping[str, NDArray[np.bool_]]) -> InputError:
    row = int(unused.argmax())
    lacks = [] if train.is_labelled[row] else ["no label"]
    if any(is_unknown[row] for is_unknown in unknown.values()):
        lacks.append("no output of the teacher")
    return InputError(
        f"{int(unused.sum())} of the {len(train)} rows of {train.name!r} take part in no term: the first, with id "
        f"{str(train.ids[row])!r}, has {' and '.join(lacks)}",
        remedy="add what is missing, or leave those rows out of the data",
    )


def _check_recorder(recorder: Recorder, setup: TrainingSetup) -> None:
    """Refuse a recorder that would record nothing, or under the wrong ids."""
    if "plain" not in setup.view_names:
        raise InputError("there is no term on the plain view to record", remedy="add one, or leave out the recorder")
    if not np.array_equal(recorder.ids, setup.train.ids[setup.train.is_labelled]):
        raise InputError(
            f"the recorder is not of {setup.train.name!r}",
            remedy="build it with the ids of this data, those of labelled rows, in their order",
        )


def fit_key(setup: TrainingSetup) -> str:
    """Return a hash of everything that must be the same for a saved state to be resumed.

    Parameters
    ----------
    setup : TrainingSetup
        Everything that a training needs.

    Returns
    -------
    str
        The hash, in hexadecimal digits.
    """
    teacher = {}
    for name, value in setup.teacher_outputs.items():
        teacher[name] = hashlib.blake2b(np.ascontiguousarray(value).data).hexdigest()
    terms = []
    for term in setup.terms:
        terms.append([term.name, term.weight, term.view, dict(term.settings), _source_code(term.loss)])
    views = [[name, _describe_view(setup.views[name])] for name in setup.view_names if name != "plain"]
    settings = setup.settings.model_dump(exclude={"min_steps"})  # the epochs that it leads to are in them
    # As before there were these settings: states that were saved then stay valid.
    if setup.settings.labelled_share is None:
        del settings["labelled_share"]
    if not setup.settings.freeze_embeddings:
        del settings["freeze_embeddings"]
    parts = {
        "classifier": setup.classifier.fingerprint,
        "train": setup.train.fingerprint,
        "dev": setup.dev.fingerprint,
        "soft_labels": setup.soft_labels and setup.train.label_probs is not None,
        "terms": terms,
        "settings": settings,
        "teacher": teacher,
        "live_teacher": "" if setup.live_teacher is None else setup.live_teacher.fingerprint,
        "seed": setup.seed,
        "views": views,
        "recorder": None if setup.recorder is None else setup.recorder.width,
        "groups": None if setup.groups is None else np.asarray(setup.groups).tolist(),
    }
    return digest(parts)


def _describe_view(view: Any) -> Any:
    return view.describe() if hasattr(view, "describe") else _source_code(view)


def _source_code(function: Any) -> str:
    """What tells one function of the user's from another: its source where it can be read, else its name."""
    try:
        return inspect.getsource(function if inspect.isfunction(function) else type(function))
    except (OSError, TypeError):
        return str(getattr(function, "__qualname__", type(function).__qualname__))
