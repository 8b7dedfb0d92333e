"""Classifiers: a network, the feed that gives it examples, the names of its classes; made from settings, saved, loaded."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from distilcal.config.base import parse_settings
from distilcal.config.loading import as_table
from distilcal.config.schema import ModelSettings
from distilcal.data import Choices, Dataset, Images, Texts
from distilcal.errors import InputError
from distilcal.io.atomic import read_json
from distilcal.io.folders import digest
from distilcal.models.base import PictureNetwork, Stepwise, VectorNetwork, permute_classes, weights_digest
from distilcal.models.cifar import network as picture_body
from distilcal.models.cifar import padded_resnet_state
from distilcal.models.inputs import Feed, FrozenFeed, ImageFeed, TextFeed, VectorFeed, usable_length
from distilcal.models.text import (
    TextNetwork,
    architecture,
    drop_layers,
    load_text_encoder,
    load_text_model,
    quiet_transformers,
    resolve_model,
)

CARD = "distilcal.json"
WEIGHTS = "network.safetensors"


@dataclass
class Classifier:
    """A network with what it needs to be used: how it is fed, and what its outputs are called."""

    network: Stepwise
    feed: Feed
    classes: tuple[str, ...]
    settings: ModelSettings
    multiple_choice: bool = False
    new_head: bool = True  # has learned nothing about the classes yet

    def __post_init__(self) -> None:
        self.network.eval()  # training is the loop's business

    @property
    def parameters(self) -> int:
        """Numbers to store, those of a frozen encoder included."""
        own = sum(p.numel() for p in self.network.parameters())
        return own + (sum(p.numel() for p in self.feed.encoder.parameters()) if isinstance(self.feed, FrozenFeed) else 0)

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides what it says about an example."""
        kind: Any = [type(self.network).__name__, self.settings.name if isinstance(self.network, PictureNetwork) else ""]
        if isinstance(self.network, TextNetwork):
            kind = architecture(self.network.model)
        seen = {key: value for key, value in self.feed.describe().items() if key != "augment"}  # in training only
        return digest([weights_digest(self.network), kind, seen, list(self.classes)])


def make_classifier(settings: ModelSettings, data: Dataset, *, seed: int = 0) -> Classifier:
    """The classifier that the settings describe, for data of this kind and these classes."""
    classes = data.classes
    if isinstance(data.inputs, (Texts, Choices)):
        if settings.frozen:
            return _frozen(settings, data, seed)
        many = isinstance(data.inputs, Choices)
        network, tokenizer, new = load_text_model(
            settings.name,
            classes,
            head=settings.head,
            labels=settings.labels,
            layers=settings.layers,
            multiple_choice=many,
            dropout=settings.dropout,
            seed=seed,
        )
        feed: Feed = TextFeed(tokenizer, usable_length(network.model, tokenizer, settings.max_length))
        return Classifier(network, feed, classes, settings, many, new)
    if isinstance(data.inputs, Images):
        return _pictures(settings, classes, seed)
    if settings.name not in ("linear", "mlp"):
        raise InputError(
            f"there is no network {settings.name!r} for vectors", remedy="give 'linear', or 'mlp' with hidden = [...]"
        )
    width = data.inputs.values.shape[1]
    return Classifier(_vectors(settings, width, len(classes), seed), VectorFeed(width), classes, settings)


def shrunk(parent: Classifier, settings: ModelSettings) -> Classifier:
    """A copy of a trained classifier, with some of its layers if the settings name them; all else is as the parent's."""
    network = copy.deepcopy(parent.network)
    if settings.layers:
        if not isinstance(network, TextNetwork):
            raise InputError("only a text encoder's layers can be chosen", remedy="leave out layers")
        drop_layers(network.model, settings.layers)
    merged = parent.settings.replace(layers=settings.layers or parent.settings.layers)
    return Classifier(network, parent.feed, parent.classes, merged, parent.multiple_choice, parent.new_head)


def save_classifier(classifier: Classifier, folder: Path) -> None:
    """Text models as ``save_pretrained`` writes them, so that transformers loads them as they stand; others as safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    card: dict[str, Any] = {
        "model": as_table(classifier.settings),
        "classes": list(classifier.classes),
        "multiple_choice": classifier.multiple_choice,
        "feed": classifier.feed.describe(),
    }
    if isinstance(classifier.network, TextNetwork) and isinstance(classifier.feed, TextFeed):
        with quiet_transformers(str(folder)):
            classifier.network.model.save_pretrained(folder)
            classifier.feed.tokenizer.save_pretrained(folder)
        card["max_length"] = classifier.feed.max_length
    else:
        save_file({name: value.contiguous() for name, value in classifier.network.state_dict().items()}, folder / WEIGHTS)
        if isinstance(classifier.network, VectorNetwork):
            first = next(m for m in classifier.network.modules() if isinstance(m, torch.nn.Linear))
            card["width"] = first.in_features
    (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False), encoding="utf-8")


def load_classifier(folder: Path) -> Classifier:
    """A classifier that ``save_classifier`` wrote."""
    if not (folder / CARD).exists():
        raise InputError("this folder holds no saved classifier", source=str(folder), remedy="give the model folder of a run")
    card = read_json(folder / CARD)
    settings = parse_settings(ModelSettings, card["model"], "model")
    classes = tuple(card["classes"])
    if (folder / "config.json").exists():
        network, tokenizer, _ = load_text_model(str(folder), classes, head="keep", multiple_choice=card["multiple_choice"])
        return Classifier(network, TextFeed(tokenizer, card["max_length"]), classes, settings, card["multiple_choice"], False)
    if "width" in card:
        made: Stepwise = _vectors(settings, card["width"], 1 if card["multiple_choice"] else len(classes), 0)
        feed: Feed = VectorFeed(card["width"])
        if settings.frozen:
            feed = _frozen_feed(settings)
            if feed.describe() != card["feed"]:
                raise InputError(f"{settings.name} is not the encoder this head was trained on", source=str(folder),
                                 remedy="give the same encoder, or train again")  # fmt: skip
    else:
        made, feed = PictureNetwork(picture_body(settings.name, len(classes))), _image_feed(settings)
    _load_weights(made, folder / WEIGHTS)
    return Classifier(made, feed, classes, settings, card["multiple_choice"], False)


# ---- parts -------------------------------------------------------------------------------------------------------------


def weights_path(said: str) -> Path:
    """The file that a recipe names, with variables such as $DISTILCAL_DATA put in."""
    return Path(os.path.expandvars(said))


def _load_weights(network: torch.nn.Module, path: Path) -> None:
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        what = str(error).strip().splitlines()[0]
        raise InputError(
            f"the weights cannot be loaded: {what}", source=str(path), remedy="give those of this network"
        ) from None


def _image_feed(settings: ModelSettings) -> ImageFeed:
    if len(settings.mean) != 3 or len(settings.std) != 3 or not all(s > 0 for s in settings.std):
        raise InputError("mean and std of images need three numbers each, std above 0")
    return ImageFeed(settings.mean, settings.std, settings.augment)


def _pictures(settings: ModelSettings, classes: Sequence[str], seed: int) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = PictureNetwork(picture_body(settings.name, len(classes)))
    feed = _image_feed(settings)
    if not settings.weights:
        return Classifier(network, feed, tuple(classes), settings)
    path = weights_path(settings.weights)
    if not path.exists():
        raise InputError("there is no such file", source=str(path), remedy="give the .safetensors of this network")
    try:
        state = load_file(path)
    except (SafetensorError, OSError):
        raise InputError("this is no safetensors file, or it is damaged", source=str(path), remedy="write it again") from None
    state = padded_resnet_state(state) if settings.name.endswith("_padded") and "linear.weight" in state else state
    state = {(name if name.startswith("body.") else f"body.{name}"): value for name, value in state.items()}
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"these are not the weights of {settings.name}: {reason}", source=str(path), remedy="check the name"
        ) from None
    own = settings.labels or tuple(classes)
    if sorted(own) != sorted(classes):
        raise InputError(
            f"labels {', '.join(own)} are not the classes of the data",
            remedy="name the same classes, in the order of its outputs",
        )
    permute_classes(network, [own.index(c) for c in classes])
    return Classifier(network, feed, tuple(classes), settings, False, False)


def _vectors(settings: ModelSettings, width: int, classes: int, seed: int) -> VectorNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return VectorNetwork(width, classes, hidden=settings.hidden, dropout=settings.dropout or 0.0)


def _frozen_feed(settings: ModelSettings) -> FrozenFeed:
    """A frozen encoder; heads on the same one in the same process share it."""
    place = Path(resolve_model(settings.name))
    stamps = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(place.iterdir())] if place.is_dir() else []
    shared = _shared_feed(settings.name, settings.layers, settings.max_length, tuple(stamps))
    return replace(shared, apart=True) if settings.pairs == "apart" else shared


@lru_cache(maxsize=4)
def _shared_feed(name: str, layers: tuple[int, ...], max_length: int, stamps: tuple[Any, ...]) -> FrozenFeed:
    encoder, tokenizer = load_text_encoder(name, layers=layers)
    return FrozenFeed(encoder, TextFeed(tokenizer, usable_length(encoder.model, tokenizer, max_length)))


def _frozen(settings: ModelSettings, data: Dataset, seed: int) -> Classifier:
    if Path(settings.name).is_dir():
        settings = settings.replace(name=str(Path(settings.name).resolve()))  # the saved head must find its encoder again
    feed = _frozen_feed(settings)
    probe = feed.read(data.select([0])).values
    many = isinstance(data.inputs, Choices)  # one logit for each choice's own features
    network = _vectors(settings, probe.shape[-1], 1 if many else len(data.classes), seed)
    return Classifier(network, feed, data.classes, settings, many)
