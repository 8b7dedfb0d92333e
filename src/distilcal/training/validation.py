"""Before the loop starts: what it refuses, and what must be the same for a saved state to be this run's."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.config.schema import TrainSettings
from distilcal.data import Dataset
from distilcal.dynamics import Recorder
from distilcal.errors import InputError
from distilcal.io.folders import digest
from distilcal.models.classifier import Classifier
from distilcal.training.batches import same_inputs
from distilcal.views import Term


def check_fit(
    classifier: Classifier,
    train: Dataset,
    dev: Dataset,
    terms: Sequence[Term],
    teacher: Mapping[str, NDArray[Any]] | None,
    live_teacher: Classifier | None,
    views: Mapping[str, Any],
) -> Dataset:
    """Refuse what cannot be trained; dev with the classes in the order of train."""
    for data, may in ((train, "train"), (dev, "dev")):
        if data.role not in (None, may):
            raise InputError(
                f"{data.name!r} is {data.role} data", remedy=f"{'train' if may == 'train' else 'choose'} on other data"
            )
        if data.labels is None:
            raise InputError(f"{data.name!r} has no labels", remedy="give labelled data")
    if train.classes != classifier.classes:
        raise InputError(
            f"{train.name!r} has classes {train.classes}, the classifier {classifier.classes}", remedy="use the same"
        )
    if not terms:
        raise InputError("there is nothing to minimise", remedy="give at least one term, as cross_entropy")
    have = {f"teacher_{name}" for name in (teacher or {})} | ({"teacher_logits", "teacher_features"} if live_teacher else set())
    if live_teacher is not None and not same_inputs(classifier, live_teacher):
        raise InputError(
            "a live teacher must read the same inputs as the student", remedy="use its outputs (teacher=...) instead"
        )
    for term in terms:
        if term.view not in views:
            raise InputError(f"there is no view {term.view!r}", remedy=f"views: {', '.join(views)}")
        missing = [w for w in term.inputs if w.startswith("teacher_") and w not in have]
        if missing:
            raise InputError(f"{term.name} needs {missing[0]}", remedy="give a teacher that has them, or leave out this term")
    return dev.with_classes(train.classes)


def check_recorder(recorder: Recorder, train: Dataset, terms: Sequence[Term]) -> None:
    """Refuse a recorder that would note nothing, or under the wrong ids."""
    if not any(term.view == "plain" for term in terms):
        raise InputError("there is no term on the plain view to record", remedy="add one, or leave out the recorder")
    if not np.array_equal(recorder.ids, train.ids):
        raise InputError(f"the recorder is not of {train.name!r}", remedy="make it with the ids of this data, in their order")


def fit_key(
    classifier: Classifier,
    train: Dataset,
    dev: Dataset,
    terms: Sequence[Term],
    settings: TrainSettings,
    teacher: Mapping[str, NDArray[Any]] | None,
    live_teacher: Classifier | None,
    soft_labels: bool,
    seed: int,
    views: Mapping[str, Any],
    recorder: Recorder | None,
    groups: NDArray[Any] | None,
) -> str:
    """What must be the same for a saved state to be this run's."""
    said = {name: hashlib.blake2b(np.ascontiguousarray(value).data).hexdigest() for name, value in (teacher or {}).items()}
    losses = [[t.name, t.weight, t.view, dict(t.settings), _source_of(t.loss)] for t in terms]
    live = "" if live_teacher is None else live_teacher.fingerprint
    data = [train.fingerprint, dev.fingerprint, soft_labels and train.label_probs is not None]
    seen = [[name, _described(views[name])] for name in dict.fromkeys(t.view for t in terms) if name != "plain"]
    parts = [classifier.fingerprint, data, losses, settings.model_dump(), said, live, seed]
    parts += [seen, None if recorder is None else recorder.width, None if groups is None else np.asarray(groups).tolist()]
    return digest(parts)


def _described(view: Any) -> Any:
    return view.describe() if hasattr(view, "describe") else _source_of(view)


def _source_of(loss: Any) -> str:
    """What tells one function of the user's from another: its text where it can be had, else its name."""
    try:
        return inspect.getsource(loss if inspect.isfunction(loss) else type(loss))
    except (OSError, TypeError):
        return str(getattr(loss, "__qualname__", type(loss).__qualname__))
