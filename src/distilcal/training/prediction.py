"""Running a network without training it: `predict` returns Predictions, `compute_outputs` arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data import Dataset
from distilcal.errors import InputError
from distilcal.io.row_cache import RowCache
from distilcal.models.classifier import Classifier
from distilcal.models.inputs import OnProgress, run_network
from distilcal.predictions import Predictions


def predict(
    classifier: Classifier, data: Dataset, *, store: Path | None = None, batch: int = 64, on_progress: OnProgress | None = None
) -> Predictions:
    """Predict labelled data with a classifier.

    Parameters
    ----------
    classifier : Classifier
        The network with its inputs and class names.
    data : Dataset
        Labelled examples; classes are matched by name.
    store : Path, optional
        Folder in which outputs are cached: rows that are in it are not computed again.
    batch : int, default 64
        Examples per forward pass.
    on_progress : callable, optional
        Called with the number of rows done and the number of all rows.

    Returns
    -------
    Predictions
        Logits in the order of the classifier's classes, with the ids and labels of the data.

    Raises
    ------
    InputError
        If the data have no labels. `compute_outputs` returns the logits of such data.

    Examples
    --------
    >>> from distilcal.config.schema import ModelSettings
    >>> from distilcal.data import Vectors
    >>> from distilcal.models import build_classifier
    >>> data = Dataset(Vectors(np.eye(4, dtype=np.float32)), [0, 1, 1, 0], ("no", "yes"), name="dev")
    >>> predict(build_classifier(ModelSettings(name="linear"), data), data)
    Predictions('dev', 4 rows, 2 classes)
    """
    if data.labels is None:
        raise InputError(f"{data.name!r} has no labels", remedy="use compute_outputs for data without labels")
    logits = compute_outputs(classifier, data, store=store, batch=batch, on_progress=on_progress)["logits"]
    matched = data.with_classes(classifier.classes)
    assert matched.labels is not None
    return Predictions(
        logits,
        matched.labels,
        ids=data.ids,
        classes=classifier.classes,
        label_probs=matched.label_probs,
        name=data.name,
    )


def compute_outputs(
    classifier: Classifier,
    data: Dataset,
    names: tuple[str, ...] = ("logits",),
    *,
    store: Path | None = None,
    fingerprint: str = "",
    batch: int = 64,
    on_progress: OnProgress | None = None,
) -> dict[str, NDArray[Any]]:
    """Compute logits or features of data with or without labels.

    Parameters
    ----------
    classifier : Classifier
        The network with its inputs and class names.
    data : Dataset
        The examples; labels are not looked at.
    names : tuple of str, default ("logits",)
        Which outputs: ``"logits"`` (N, K), ``"features"`` (N, ...), or both.
    store : Path, optional
        Folder in which outputs are cached by content: rows that are in it are not computed again, in any order.
    fingerprint : str, optional
        That of the classifier, where the caller has it: its weights are read to compute it.
    batch : int, default 64
        Examples per forward pass.
    on_progress : callable, optional
        Called with the number of rows done and the number of all rows.

    Returns
    -------
    dict of str to array
        float32 arrays, row by row as the data.

    Examples
    --------
    >>> from distilcal.config.schema import ModelSettings
    >>> from distilcal.data import Vectors
    >>> from distilcal.models import build_classifier
    >>> data = Dataset(Vectors(np.eye(4, dtype=np.float32)), [0, 1, 1, 0], ("no", "yes"))
    >>> classifier = build_classifier(ModelSettings(name="mlp", hidden=(3,)), data)
    >>> outputs = compute_outputs(classifier, data, ("logits", "features"))
    >>> outputs["logits"].shape, outputs["features"].shape
    ((4, 2), (4, 3))
    """

    def compute(rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        all_in_order = len(rows) == len(data) and bool((np.diff(rows) == 1).all())
        part = data if all_in_order else data.select(rows)
        batches = classifier.inputs.prepare(part, store)
        device = next(classifier.network.parameters()).device
        return dict(run_network(classifier.network, batches, names, batch_size=batch, device=device, on_progress=on_progress))

    if store is None:
        return compute(np.arange(len(data)))
    return _cache(fingerprint or classifier.fingerprint, store).fetch(data.content_keys, names, compute)


def store_outputs(classifier: Classifier, data: Dataset, outputs: Mapping[str, NDArray[Any]], store: Path) -> None:
    """Keep outputs that are known already, so that `compute_outputs` finds them.

    Parameters
    ----------
    classifier : Classifier
        The network that computed them, with its inputs and class names.
    data : Dataset
        The examples.
    outputs : mapping of str to array
        Logits or features by name, row by row as the data.
    store : Path
        Folder in which outputs are cached by content.
    """
    _cache(classifier.fingerprint, store).fetch(
        data.content_keys, tuple(outputs), lambda rows: {name: values[rows] for name, values in outputs.items()}
    )


def _cache(fingerprint: str, store: Path) -> RowCache:
    return RowCache(store / "outputs", fingerprint)
