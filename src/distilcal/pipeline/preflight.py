"""What can be known before anything is trained is refused before anything is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from distilcal.config.schema import ModelSettings, Recipe, StageSettings, is_folder
from distilcal.data import Dataset, Images, Vectors
from distilcal.data.splits import Splits
from distilcal.dynamics import load_dynamics
from distilcal.errors import InputError
from distilcal.io.atomic import read_json
from distilcal.losses import LOSSES, required_inputs
from distilcal.models.cifar import network as picture_body
from distilcal.models.text import resolve_model
from distilcal.pipeline.views import stage_views
from distilcal.predictions import Predictions
from distilcal.views import MIXED, VIEWS, View, build_term, check_view

FEWEST_DEV = 20


def check_stages(recipe: Recipe, splits: Splits) -> None:
    """Refuse before anything is trained what could not be trained later: losses, settings, names, layers, files."""
    classes = len(splits.train.classes)
    known = {"n_data": 4, "classes": classes, "labels": torch.zeros(4, dtype=torch.int64), "features": 3, "teacher_features": 3}
    generator = torch.Generator().manual_seed(0)
    logits, features = torch.randn(4, classes, generator=generator), torch.randn(4, 3, generator=generator)
    labels = torch.zeros(4, dtype=torch.int64)
    seen = View(logits, features, labels, labels, torch.arange(4), logits, features)
    if len(splits.dev) < FEWEST_DEV:
        raise InputError(
            f"dev has {len(splits.dev)} examples",
            remedy=f"give at least {FEWEST_DEV}: epochs and temperatures are chosen on it",
        )
    for name, stage in recipe.stages.items():
        for path in stage.predictions:
            if not Path(path).exists():
                raise InputError("there is no such file", source=path, remedy=f"check stages.{name}.predictions")
        for i, t in enumerate(stage.terms):
            where = f"stages.{name}.terms[{i}]"
            there = (*VIEWS, *MIXED, *stage.views)
            if t.view not in there:
                raise InputError(f"{where}: there is no view {t.view!r}", remedy=f"views: {', '.join(there)}")
            given = {key: value for key, value in t.settings.items() if not (t.loss == "crd" and key == "negatives")}
            with torch.random.fork_rng(devices=[]):
                term = build_term(
                    t.loss, t.weight, t.view, {**given, **({"negatives": 1} if t.loss == "crd" else {})}, known, where
                )
                try:
                    if t.loss != "crd":  # four rows of one class have no negatives
                        term(seen)
                except (InputError, TypeError, ValueError, RuntimeError) as error:
                    raise InputError(
                        f"{where}: {t.loss} cannot be computed with {t.settings}: {error}", remedy="check its settings"
                    ) from None
        for key, view in stage_views(stage).items():
            model = _model_of(stage, recipe)
            check_view(view, splits.train, model, f"stages.{name}.views.{key}")
            depth = 0 if isinstance(splits.train.inputs, (Images, Vectors)) or model.frozen else _depth_of(model)
            if depth and any(layer > depth for layer in view.layers):
                raise InputError(
                    f"stages.{name}.views.{key}.layers: the network has {depth} layers", remedy=f"give numbers up to {depth}"
                )
        if is_folder(stage.map):
            assert splits.train.labels is not None
            found = load_dynamics(stage.map)
            found.for_examples(splits.train.ids, splits.train.labels, splits.train.classes, stage.map)
        for i, t in enumerate(stage.terms):
            mixed = t.view != "plain" and stage_views(stage)[t.view].kind != "cutout"
            if mixed and "labels" in required_inputs(LOSSES[t.loss]):
                raise InputError(
                    f"stages.{name}.terms[{i}]: {t.loss} wants one label for each example, a mix has two",
                    remedy="use cross_entropy, softmax_bce or kd on a view that mixes",
                )
        if stage.model.name:
            _check_model_name(stage.model, splits.train, f"stages.{name}.model")


def _model_of(stage: StageSettings, recipe: Recipe) -> ModelSettings:
    """The settings of the network itself, of the stage that it starts from if it starts from one."""
    while stage.model.start_from:
        stage = recipe.stages[stage.model.start_from]
    return stage.model


def _check_model_name(model: ModelSettings, train: Dataset, path: str) -> None:
    if isinstance(train.inputs, Images):
        picture_body(model.name, 2)
    elif isinstance(train.inputs, Vectors):
        if model.name not in ("linear", "mlp"):
            raise InputError(f"{path}: there is no network {model.name!r} for vectors", remedy="give 'linear' or 'mlp'")
    else:
        place = Path(resolve_model(model.name))
        if place.is_dir() and model.layers:
            count = _encoder_depth(place)
            bad = [i for i in model.layers if count and not 0 <= i < count]
            if bad:
                raise InputError(
                    f"{path}: layer {bad[0]} of a model with {count} layers", remedy=f"give numbers from 0 to {count - 1}"
                )


def _depth_of(model: ModelSettings) -> int:
    """How many layers a text encoder will have; 0 if that is not known yet."""
    place = Path(resolve_model(model.name))
    return len(model.layers) or (_encoder_depth(place) if place.is_dir() else 0)


def _encoder_depth(folder: Path) -> int:
    """How many layers a saved encoder has; 0 if it does not say."""
    config = read_json(folder / "config.json")
    return int(config.get("num_hidden_layers") or config.get("n_layers") or 0)


def check_predictions(name: str, said: Predictions, splits: Splits) -> None:
    """Ids must tell rows of different splits apart, and the file's labels must be the data's."""
    if said.ids is None:
        raise InputError(f"the predictions of {name!r} have no ids", remedy="add an id column, the same as in the data")
    taken: dict[str, str] = {}
    for data in splits:
        known = np.isin(data.ids, said.ids)
        clash = next((i for i in data.ids[known].tolist() if taken.get(i, data.name) != data.name), None)
        if clash is not None:
            raise InputError(
                f"id {clash!r} stands in {taken[clash]} and in {data.name}: whose are the predictions of {name!r}?",
                remedy="give every example of all splits an id of its own",
            )
        taken |= dict.fromkeys(data.ids[known].tolist(), data.name)
        if known.any() and data.labels is not None:
            part = data.select(known)
            theirs = said.reorder_classes(data.classes).select(part.ids)
            wrong = theirs.labels != part.labels
            if wrong.any():
                row = int(wrong.argmax())
                told = theirs.classes[theirs.labels[row]], data.classes[part.labels[row]]  # type: ignore[index]
                raise InputError(
                    f"the predictions of {name!r} call id {str(part.ids[row])!r} {told[0]!r}, {data.name} calls it {told[1]!r}",
                    remedy="the ids of the two do not mean the same rows, or one of the labels is wrong",
                )
