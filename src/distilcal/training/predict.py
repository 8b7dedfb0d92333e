"""Running a network without training it: Predictions, and a teacher's outputs from the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data import Dataset
from distilcal.errors import InputError
from distilcal.io.row_cache import RowCache
from distilcal.models.classifier import Classifier
from distilcal.models.inputs import Progress, outputs
from distilcal.predictions import Predictions


def predict(
    classifier: Classifier, data: Dataset, *, store: Path | None = None, batch: int = 64, progress: Progress | None = None
) -> Predictions:
    """What a classifier says about labelled data. With a store, rows that are known are not computed again."""
    if data.labels is None:
        raise InputError(f"{data.name!r} has no labels", remedy="use logits_of for data without labels")
    logits = logits_of(classifier, data, store=store, batch=batch, progress=progress)
    same = data.with_classes(classifier.classes)
    assert same.labels is not None
    return Predictions(
        logits, same.labels, ids=data.ids, classes=classifier.classes, label_probs=same.label_probs, name=data.name
    )


def logits_of(
    classifier: Classifier, data: Dataset, *, store: Path | None = None, batch: int = 64, progress: Progress | None = None
) -> NDArray[np.float32]:
    """Logits (N, K) of data with or without labels."""
    return teacher_outputs(classifier, data, ("logits",), store=store, batch=batch, progress=progress)["logits"]


def teacher_outputs(
    classifier: Classifier,
    data: Dataset,
    names: tuple[str, ...] = ("logits",),
    *,
    store: Path | None = None,
    batch: int = 64,
    progress: Progress | None = None,
) -> dict[str, NDArray[Any]]:
    """Logits, and features where asked for, row by row; from the store where they are known, kept there where they are not."""

    def make(rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        part = data if len(rows) == len(data) and (np.diff(rows) == 1).all() else data.select(rows)
        batches = classifier.feed.read(part, store)
        device = next(classifier.network.parameters()).device
        return dict(outputs(classifier.network, batches, names, batch_size=batch, device=device, progress=progress))

    if store is None:
        return make(np.arange(len(data)))
    return RowCache(store / "outputs", classifier.fingerprint).fetch(data.content_keys, names, make)
