"""Stages: one model each, trained or used as it is, and what is computed with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distilcal.config.schema import Recipe, StageSettings, ordered_stages
from distilcal.data import Dataset
from distilcal.data.splits import Splits
from distilcal.errors import InputError
from distilcal.io.answers import TEXT_ID_DIGITS
from distilcal.io.atomic import read_json
from distilcal.io.predictions import read_predictions
from distilcal.models.classifier import Classifier, load_classifier
from distilcal.models.inputs import FrozenInputs
from distilcal.pipeline.keys import stage_key
from distilcal.pipeline.rows import stage_data
from distilcal.predictions import UNKNOWN, IntArray, Predictions, find_rows
from distilcal.selective import counted
from distilcal.training import compute_outputs
from distilcal.training.schedule import resolve_settings

MAP = "dynamics"  # folder of a stage that recorded
MISSING = -1  # in place of the row of an example that has none


@dataclass
class Stage:
    """A model of a run: trained, pretrained and used as it is, or known by files of its predictions only.

    Attributes
    ----------
    name : str
        Its name in the recipe.
    key : str
        Its name in the store, see `distilcal.pipeline.keys`.
    settings : StageSettings
        Its settings.
    folder : Path
        Its folder in the store.
    store : Path
        The store.
    classes : tuple of str
        The classes of the data.
    """

    name: str
    key: str
    settings: StageSettings
    folder: Path
    store: Path
    classes: tuple[str, ...]

    @property
    def done(self) -> bool:
        """Whether it need not be trained."""
        return bool(self.settings.predictions) or self.folder.exists()

    @cached_property
    def classifier(self) -> Classifier:
        """The trained model, loaded from the store onto the fastest device."""
        return move_to_device(load_classifier(self.folder / "model"))

    @cached_property
    def _fingerprint(self) -> str:
        """The classifier's, computed once: a stage that is finished does not change."""
        return self.classifier.fingerprint

    @cached_property
    def external_predictions(self) -> Predictions:
        """All rows of a model that is known by its predictions only, with the classes of the data."""
        parts = [read_predictions(path, classes=self.classes) for path in self.settings.predictions]
        return parts[0] if len(parts) == 1 else _concatenate(parts)

    def knows(self, data: Dataset) -> NDArray[np.bool_]:
        """Return whether the model has outputs for each example (N,): external predictions may cover a part of the data."""
        if not self.settings.predictions:
            return np.ones(len(data), dtype=bool)
        known: NDArray[np.bool_] = self._external_rows(data) != MISSING
        return known

    def known_predictions(self, data: Dataset) -> Predictions:
        """Return external predictions of those examples that have one, with the ids, labels and classes of the data.

        Parameters
        ----------
        data : Dataset
            The examples, with or without labels.

        Returns
        -------
        Predictions
            One row for each example that the model knows, in the order of the data.

        Raises
        ------
        InputError
            If it knows none of them.
        """
        rows = self._external_rows(data)
        known = rows != MISSING
        if not known.any():
            raise InputError(
                f"the predictions of {self.name!r} have none of the {len(data)} rows of {data.name!r}",
                remedy="check that both use the same ids, or the same texts",
            )
        part = data if known.all() else data.select(known)
        external = replace(
            self.external_predictions.reorder_classes(data.classes), ids=None
        )  # a row may be of several examples
        return replace(
            external.select(rows[known]),
            labels=np.full(len(part), UNKNOWN) if part.labels is None else part.labels,
            ids=part.ids,
            # Predictions have the votes of all rows or of none.
            label_probs=part.label_probs if part.is_labelled.all() else None,
            name=data.name,
        )

    def outputs(self, data: Dataset, names: tuple[str, ...] = ("logits",)) -> dict[str, NDArray[Any]]:
        """Return logits or features of the model, row by row as the data.

        Parameters
        ----------
        data : Dataset
            The examples; rows of external predictions are matched by id or content, cached outputs by content.
        names : tuple of str, default ("logits",)
            "logits", "features" or both.

        Returns
        -------
        dict of str to array
            The arrays by name.
        """
        if not self.settings.predictions:
            return compute_outputs(self.classifier, data, names, store=self.store, fingerprint=self._fingerprint)
        if "features" in names:
            raise InputError(
                f"the teacher {self.name!r} is known by its predictions only and has no features",
                remedy="leave out rkd and crd, or give the teacher's model",
            )
        return {"logits": self._all_predictions(data).logits}

    def predictions(self, data: Dataset) -> Predictions:
        """Return the model's predictions on labelled data, with the labels, ids and classes of the data."""
        assert data.labels is not None
        about_data: dict[str, Any] = {
            "ids": data.ids,
            "classes": data.classes,
            "label_probs": data.label_probs,
            "name": data.name,
        }
        if not self.settings.predictions:
            return Predictions(self.outputs(data)["logits"], data.labels, **about_data)
        return self._all_predictions(data)

    def coverage(self, splits: Splits) -> str:
        """Return in words which examples of each split have an external prediction, and how many predictions are of none."""
        counts = []
        used = np.zeros(len(self.external_predictions), dtype=bool)
        for data in splits:
            rows = self._external_rows(data)
            known = rows[rows != MISSING]
            used[known] = True
            counts.append(f"{data.name} {len(known):,} of {len(data):,}")
        unused = int((~used).sum())
        unused_rows = f"; {counted(unused)} of its predictions about nothing in the data" if unused else ""
        return f"{', '.join(counts)}{unused_rows}"

    def history(self) -> list[dict[str, Any]]:
        """Return losses and dev metrics of every epoch; empty for a model that was not trained."""
        path = self.folder / "history.json"
        if not path.exists():
            return []
        epochs: list[dict[str, Any]] = read_json(path)["epochs"]
        return epochs

    def _all_predictions(self, data: Dataset) -> Predictions:
        """The external predictions of all rows of the data."""
        missing = ~self.knows(data)
        if missing.any():
            raise InputError(
                f"the predictions of {self.name!r} lack {int(missing.sum())} of the {len(data)} rows of {data.name!r}, "
                f"the first with id {str(data.ids[missing.argmax()])!r}",
                remedy="predict on all of them, or leave those rows out of the data",
            )
        return self.known_predictions(data)

    def _external_rows(self, data: Dataset) -> IntArray:
        """The row of the external predictions for each example, by id or else by content; MISSING where there is none."""
        ids = self.external_predictions.ids
        if ids is None:
            raise InputError(
                f"the predictions of {self.name!r} have no ids", remedy="add an id column, the same as in the data"
            )
        rows, found = _look_up(ids, data.ids)
        if not found.all():  # answers about texts are named by content, examples may have ids of their own
            by_content, found_by_content = _look_up(ids, data.content_keys.astype(f"U{TEXT_ID_DIGITS}"))
            rows = np.where(found, rows, by_content)
            found |= found_by_content
        return np.where(found, rows, MISSING)


def plan_stages(recipe: Recipe, splits: Splits, store: Path) -> dict[str, Stage]:
    """Return the stages of a recipe by name, each after those that it depends on. Trains nothing.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    splits : Splits
        Its data.
    store : Path
        Where trained stages are.

    Returns
    -------
    dict of str to Stage
        With the batch sizes and numbers of epochs that the settings mean for these data.
    """
    recipe = _resolve_training(recipe, splits)
    keys: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for name in ordered_stages(recipe):
        key = stage_key(name, recipe, splits, keys)
        keys[name] = key
        stages[name] = Stage(
            name, key, recipe.stages[name], folder=store / "stages" / key, store=store, classes=splits.train.classes
        )
    return stages


def _resolve_training(recipe: Recipe, splits: Splits) -> Recipe:
    """The recipe with every number of its trainings that depends on how many examples there are."""
    stages = {}
    for name, stage in recipe.stages.items():
        if stage.terms:
            stage = stage.replace(train=resolve_settings(stage.train, len(stage_data(stage, splits))))
        stages[name] = stage
    return recipe.replace(stages=stages)


def move_to_device(classifier: Classifier) -> Classifier:
    """Move a classifier to the GPU if there is one, and return it.

    Parameters
    ----------
    classifier : Classifier
        Its network, and the encoder where that is frozen, are moved in place.

    Returns
    -------
    Classifier
        The same classifier.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classifier.network.to(device)
    if isinstance(classifier.inputs, FrozenInputs):
        classifier.inputs.encoder.to(device)
    return classifier


def _concatenate(parts: list[Predictions]) -> Predictions:
    """Several files of one model as one."""
    for part in parts:
        if part.ids is None:
            raise InputError(f"{part.name!r} has no ids", remedy="add an id column to every file")
    classes = parts[0].classes
    parts = [parts[0], *(part.reorder_classes(classes) for part in parts[1:])]
    ids = np.concatenate([part.ids for part in parts if part.ids is not None])
    labels = np.concatenate([part.labels for part in parts])
    if any(part.given_probs is not None for part in parts):
        return Predictions.from_probs(np.concatenate([part.probs for part in parts]), labels, ids=ids, classes=classes)
    return Predictions(np.concatenate([part.logits for part in parts]), labels, ids=ids, classes=classes)


def _look_up(ids: NDArray[np.str_], requested: NDArray[np.str_]) -> tuple[IntArray, NDArray[np.bool_]]:
    """The row of each requested id, and whether there is one."""
    rows, _ = find_rows(ids, requested)
    found: NDArray[np.bool_] = ids[rows] == requested
    return rows, found
