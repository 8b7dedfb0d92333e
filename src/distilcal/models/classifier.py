"""Classifiers: a network, how its inputs are prepared, the names of its classes; built from settings, saved, loaded."""

from __future__ import annotations

import copy
import json
import os
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
from distilcal.io.atomic import check_input, read_json, system_errors
from distilcal.io.folders import digest
from distilcal.models.image import build_image_network, convert_padded_resnet_state
from distilcal.models.inputs import FrozenInputs, ImageInputs, ModelInputs, TokenInputs, VectorInputs, usable_length
from distilcal.models.network import ImageNetwork, Network, VectorNetwork, permute_classes, weights_digest
from distilcal.models.pretrained import (
    keep_layers,
    load_text_encoder,
    load_text_model,
    quiet_transformers,
    refuse_not_finite,
    resolve_model,
)
from distilcal.models.text import TextNetwork, architecture

CARD = "distilcal.json"
FORMAT = 1  # of that file
LARGEST_SIZE = 10_000_000  # tokens of a text or numbers of a vector: what is larger is a damaged file
WEIGHTS = "network.safetensors"
ENCODER = "encoder"  # the folder of a frozen encoder that is saved with its head


@dataclass
class Classifier:
    """A network with what it needs to be used.

    Attributes
    ----------
    network : Network
        The network, in evaluation mode.
    inputs : ModelInputs
        How examples become its tensors.
    classes : tuple of str
        What its outputs stand for, in order.
    settings : ModelSettings
        The settings that it was built from.
    multiple_choice : bool
        Whether it scores the choices of each example.
    new_head : bool
        Whether it has learned nothing about the classes yet.
    image_size : tuple of int, optional
        Height and width of the images that it was built for. Its layers would take others, and answer nonsense.
    text_pairs : bool, optional
        Whether the texts that it was built for are pairs. None: they are not texts, or an earlier version saved it.

    Examples
    --------
    >>> import numpy as np
    >>> from distilcal.data import Dataset, Vectors
    >>> data = Dataset(Vectors(np.eye(4, dtype=np.float32)), [0, 1, 1, 0], ("no", "yes"))
    >>> classifier = build_classifier(ModelSettings(name="linear"), data)
    >>> classifier.parameters
    10
    >>> classifier.network(classifier.inputs.prepare(data).batch(np.array([0, 2]))).logits.shape
    torch.Size([2, 2])
    """

    network: Network
    inputs: ModelInputs
    classes: tuple[str, ...]
    settings: ModelSettings
    multiple_choice: bool = False
    new_head: bool = True
    image_size: tuple[int, int] | None = None
    text_pairs: bool | None = None

    def __post_init__(self) -> None:
        self.network.eval()  # the training loop alone sets it to training

    @property
    def parameters(self) -> int:
        """Number of parameters, those of a frozen encoder included."""
        count = _parameter_count(self.network)
        if isinstance(self.inputs, FrozenInputs):
            count += _parameter_count(self.inputs.encoder)
        return count

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides its outputs for an example."""
        kind: Any
        if isinstance(self.network, TextNetwork):
            kind = architecture(self.network.model)
        elif isinstance(self.network, ImageNetwork):
            kind = ["PictureNetwork", self.settings.name]  # the class's first name: stores are full of hashes of it
        else:
            kind = [type(self.network).__name__, ""]
        inputs = self.inputs.describe()
        inputs.pop("augment", None)  # in training only
        return digest([weights_digest(self.network), kind, inputs, list(self.classes)])


def _parameter_count(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


# ---- build -------------------------------------------------------------------------------------------------------------


def build_classifier(settings: ModelSettings, data: Dataset, *, seed: int = 0) -> Classifier:
    """Build the classifier that the settings describe, for data of this kind and these classes.

    Parameters
    ----------
    settings : ModelSettings
        The model: a pretrained text model, a network for small images, or a head on vectors.
    data : Dataset
        Decides the kind of input and the classes; nothing is trained.
    seed : int, default 0
        Seed of the weights that are not pretrained.

    Returns
    -------
    Classifier
        On the CPU, in evaluation mode.

    Raises
    ------
    InputError
        If the model does not exist, cannot be loaded or does not fit the data.

    Examples
    --------
    >>> import numpy as np
    >>> from distilcal.data import Dataset, Vectors
    >>> data = Dataset(Vectors(np.eye(4, dtype=np.float32)), [0, 1, 1, 0], ("no", "yes"))
    >>> build_classifier(ModelSettings(name="mlp", hidden=(8,)), data).classes
    ('no', 'yes')
    """
    if isinstance(data.inputs, Images):
        height, width = data.inputs.pixels.shape[1:3]
        return replace(_build_image_classifier(settings, data.classes, seed), image_size=(height, width))
    if not isinstance(data.inputs, (Texts, Choices)):
        return _build_vector_classifier(settings, data.inputs.values.shape[1], data.classes, seed)
    build = _build_frozen_classifier if settings.frozen else _build_text_classifier
    return replace(build(settings, data, seed), text_pairs=data.holds_pairs if isinstance(data.inputs, Texts) else None)


def _build_text_classifier(settings: ModelSettings, data: Dataset, seed: int) -> Classifier:
    multiple_choice = isinstance(data.inputs, Choices)
    loaded = load_text_model(
        settings.name,
        data.classes,
        head=settings.head,
        labels=settings.labels,
        layers=settings.layers,
        multiple_choice=multiple_choice,
        dropout=settings.dropout,
        seed=seed,
    )
    max_length = usable_length(loaded.network.model, loaded.tokenizer, settings.max_length)
    return Classifier(
        network=loaded.network,
        inputs=TokenInputs(loaded.tokenizer, max_length),
        classes=data.classes,
        settings=settings,
        multiple_choice=multiple_choice,
        new_head=loaded.new_head,
    )


def _build_frozen_classifier(settings: ModelSettings, data: Dataset, seed: int) -> Classifier:
    """A head on the features of an encoder that is not trained."""
    if Path(settings.name).is_dir():
        settings = settings.replace(name=str(Path(settings.name).resolve()))  # the saved head must find its encoder again
    inputs = _frozen_inputs(settings)
    width = inputs.prepare(data.select([0])).values.shape[-1]
    multiple_choice = isinstance(data.inputs, Choices)
    outputs = 1 if multiple_choice else len(data.classes)  # one logit for each choice's own features
    network = _vector_network(settings, width, outputs, seed)
    return Classifier(network, inputs, data.classes, settings, multiple_choice)


def _build_vector_classifier(settings: ModelSettings, width: int, classes: tuple[str, ...], seed: int) -> Classifier:
    if settings.name not in ("linear", "mlp"):
        raise InputError(f"unknown network {settings.name!r} for vectors", remedy="give 'linear', or 'mlp' with hidden = [...]")
    network = _vector_network(settings, width, len(classes), seed)
    return Classifier(network, VectorInputs(width), classes, settings)


def _build_image_classifier(settings: ModelSettings, classes: tuple[str, ...], seed: int) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ImageNetwork(build_image_network(settings.name, len(classes)))
    inputs = _image_inputs(settings)
    if not settings.weights:
        return Classifier(network, inputs, classes, settings)
    _load_image_weights(network, settings)
    labels = settings.labels or classes
    if sorted(labels) != sorted(classes):
        raise InputError(
            f"labels {', '.join(labels)} are not the classes of the data",
            remedy="name the same classes, in the order of its outputs",
        )
    permute_classes(network, [labels.index(name) for name in classes])
    return Classifier(network, inputs, classes, settings, new_head=False)


def _load_image_weights(network: ImageNetwork, settings: ModelSettings) -> None:
    """Load the weights that the settings name: saved by us, or those of a published padded ResNet."""
    path = weights_path(settings.weights)
    check_input(path, "give the .safetensors of this network")
    try:
        state = load_file(path)
    except (SafetensorError, OSError):
        raise InputError("this is no safetensors file, or it is damaged", source=str(path), remedy="write it again") from None
    if settings.name.endswith("_padded") and "linear.weight" in state:
        state = convert_padded_resnet_state(state)
    state = {name if name.startswith("body.") else f"body.{name}": value for name, value in state.items()}
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"these are not the weights of {settings.name}: {reason}", source=str(path), remedy="check the name"
        ) from None
    refuse_not_finite(network, str(path))


def weights_path(path: str) -> Path:
    """Return the file that a recipe names, with variables such as $DISTILCAL_DATA replaced.

    Parameters
    ----------
    path : str
        The path as the recipe has it.

    Returns
    -------
    Path
        The path, in which unknown variables stay as they are.

    Examples
    --------
    >>> weights_path("weights/student.safetensors").name
    'student.safetensors'
    """
    return Path(os.path.expandvars(path))


def _image_inputs(settings: ModelSettings) -> ImageInputs:
    return ImageInputs(settings.mean, settings.std, settings.augment)


def _vector_network(settings: ModelSettings, width: int, outputs: int, seed: int) -> VectorNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return VectorNetwork(width, outputs, hidden=settings.hidden, dropout=settings.dropout or 0.0)


def _frozen_inputs(settings: ModelSettings) -> FrozenInputs:
    """A frozen encoder; heads on the same one in the same process share it."""
    path = Path(resolve_model(settings.name))
    file_stamps: list[tuple[str, int, int]] = []
    if path.is_dir():
        for file in sorted(path.iterdir()):
            stat = file.stat()
            file_stamps.append((file.name, stat.st_size, stat.st_mtime_ns))
    apart = settings.pairs == "apart"
    return _shared_frozen_inputs(settings.name, settings.layers, settings.max_length, tuple(file_stamps), apart)


@lru_cache(maxsize=4)  # with the hash of its weights, which takes longer than a small head's epoch
def _shared_frozen_inputs(
    name: str, layers: tuple[int, ...], max_length: int, file_stamps: tuple[tuple[str, int, int], ...], apart: bool
) -> FrozenInputs:
    encoder, tokenizer = load_text_encoder(name, layers=layers)
    return FrozenInputs(encoder, TokenInputs(tokenizer, usable_length(encoder.model, tokenizer, max_length)), apart=apart)


def derive_classifier(parent: Classifier, settings: ModelSettings) -> Classifier:
    """Return a copy of a trained classifier, with some of its layers if the settings name them.

    Parameters
    ----------
    parent : Classifier
        Stays as it is.
    settings : ModelSettings
        Its ``layers`` are kept, all if it names none; everything else is the parent's.

    Returns
    -------
    Classifier
        The copy; it shares the parent's inputs.
    """
    network = copy.deepcopy(parent.network)
    if settings.layers:
        if not isinstance(network, TextNetwork):
            raise InputError("only a text encoder's layers can be chosen", remedy="leave out layers")
        keep_layers(network.model, settings.layers)
    merged = parent.settings.replace(layers=settings.layers or parent.settings.layers)
    return replace(parent, network=network, settings=merged)


# ---- save and load -----------------------------------------------------------------------------------------------------


def save_classifier(classifier: Classifier, folder: Path, *, with_encoder: bool = False, **facts: Any) -> None:
    """Save a classifier in a folder.

    Text models are saved as ``save_pretrained`` does it, so that transformers loads them too; others as safetensors.

    Parameters
    ----------
    classifier : Classifier
        What to save.
    folder : Path
        Created if it does not exist.
    with_encoder : bool, default False
        Whether a frozen encoder is saved too. Otherwise the folder has its name only.
    **facts
        More to write into ``distilcal.json``.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from distilcal.data import Dataset, Vectors
    >>> data = Dataset(Vectors(np.eye(4, dtype=np.float32)), [0, 1, 1, 0], ("no", "yes"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_classifier(build_classifier(ModelSettings(name="linear"), data), Path(folder))
    ...     load_classifier(Path(folder)).classes
    ('no', 'yes')
    """
    folder.mkdir(parents=True, exist_ok=True)
    card: dict[str, Any] = {
        "model": as_table(classifier.settings),
        "classes": list(classifier.classes),
        "multiple_choice": classifier.multiple_choice,
        "feed": classifier.inputs.describe(),
    }
    with system_errors(folder):
        _save_network(classifier, folder, card, with_encoder)
    if classifier.text_pairs is not None:
        card["text_pairs"] = classifier.text_pairs
    card.update(facts)
    (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False), encoding="utf-8")


def _save_network(classifier: Classifier, folder: Path, card: dict[str, Any], with_encoder: bool) -> None:
    """Save the weights of a classifier and what its inputs need, and enter in the card what is needed to load them."""
    network, inputs = classifier.network, classifier.inputs
    if isinstance(network, TextNetwork) and isinstance(inputs, TokenInputs):
        with quiet_transformers():
            network.model.save_pretrained(folder)
            inputs.tokenizer.save_pretrained(folder)
        card["max_length"] = inputs.max_length
    else:
        save_file({name: value.contiguous() for name, value in network.state_dict().items()}, folder / WEIGHTS)
        if isinstance(network, VectorNetwork):
            first_layer = next(module for module in network.modules() if isinstance(module, torch.nn.Linear))
            card["width"] = first_layer.in_features
        if classifier.image_size is not None:
            card["image_size"] = list(classifier.image_size)
    if with_encoder and isinstance(inputs, FrozenInputs):
        with quiet_transformers():
            inputs.encoder.model.save_pretrained(folder / ENCODER)
            inputs.token_inputs.tokenizer.save_pretrained(folder / ENCODER)
        card["encoder"] = ENCODER


def load_classifier(folder: Path) -> Classifier:
    """Load a classifier that `save_classifier` saved.

    Parameters
    ----------
    folder : Path
        The folder, for instance ``model`` of a stage of a run.

    Returns
    -------
    Classifier
        On the CPU, in evaluation mode.

    Raises
    ------
    InputError
        If the folder holds no classifier, or a frozen encoder is not the one that its head was trained on.
    """
    card = read_card(folder)
    settings = parse_settings(ModelSettings, card["model"], "model")
    classes, multiple_choice = tuple(card["classes"]), card["multiple_choice"]
    text_pairs = card.get("text_pairs")  # earlier versions did not save it
    if (folder / "config.json").exists():
        loaded = load_text_model(str(folder), classes, head="keep", multiple_choice=multiple_choice)
        inputs: ModelInputs = TokenInputs(loaded.tokenizer, card["max_length"])
        return Classifier(loaded.network, inputs, classes, settings, multiple_choice, new_head=False, text_pairs=text_pairs)
    network: Network
    image_size: tuple[int, int] | None = None
    if "encoder" in card:
        settings = settings.replace(name=str(folder / card["encoder"]), layers=())
    if "width" in card:
        network = _vector_network(settings, card["width"], 1 if multiple_choice else len(classes), seed=0)
        inputs = _saved_vector_inputs(settings, card, folder)
    else:
        network = ImageNetwork(build_image_network(settings.name, len(classes)))
        inputs = _image_inputs(settings)
        if "image_size" in card:  # earlier versions did not save it
            height, width = card["image_size"]
            image_size = (height, width)
    _load_weights(network, folder / WEIGHTS)
    return Classifier(
        network, inputs, classes, settings, multiple_choice, new_head=False, image_size=image_size, text_pairs=text_pairs
    )


def read_card(folder: Path) -> dict[str, Any]:
    """Read what `save_classifier` wrote about a classifier.

    Parameters
    ----------
    folder : Path
        The folder of the classifier.

    Returns
    -------
    dict
        The content of ``distilcal.json``: ``model``, ``classes``, ``multiple_choice``, ``feed`` and what else was saved.

    Raises
    ------
    InputError
        If there is none, it is damaged, or a newer version of distilcal wrote it.
    """
    path = folder / CARD
    if not path.exists():
        raise InputError("this folder holds no saved classifier", source=str(folder), remedy="give the model folder of a run")
    card = read_json(path)
    if isinstance(card, dict) and isinstance(card.get("format", FORMAT), int) and card.get("format", FORMAT) > FORMAT:
        raise InputError(
            f"it is of format {card['format']}, this version of distilcal reads up to {FORMAT}",
            source=str(path),
            remedy="install a newer distilcal, or save it again",
        )
    if not isinstance(card, dict) or not _is_card(card):
        raise InputError("this file is damaged or of another kind", source=str(path), remedy="save the model again")
    return card


def _is_card(card: dict[str, Any]) -> bool:
    classes = card.get("classes")
    image_size = card.get("image_size", [1, 1])
    if not isinstance(image_size, list) or len(image_size) != 2:
        return False
    sizes = [card.get("max_length", 1), card.get("width", 1), *image_size]
    return (
        isinstance(classes, list)
        and all(isinstance(name, str) for name in classes)
        and len(set(classes)) == len(classes) > 0
        and isinstance(card.get("model"), dict)
        and isinstance(card.get("feed"), dict)
        and isinstance(card.get("multiple_choice"), bool)
        and isinstance(card.get("text_pairs", False), bool)
        and all(type(size) is int and 0 < size <= LARGEST_SIZE for size in sizes)
        and card.get("encoder", ENCODER) == ENCODER
        and card.get("format", FORMAT) == FORMAT
    )


def _saved_vector_inputs(settings: ModelSettings, card: dict[str, Any], folder: Path) -> ModelInputs:
    if not settings.frozen:
        return VectorInputs(card["width"])
    inputs = _frozen_inputs(settings)
    if inputs.describe() != card["feed"]:
        raise InputError(
            f"{settings.name} is not the encoder this head was trained on",
            source=str(folder),
            remedy="give the same encoder, or train again",
        )
    return inputs


def _load_weights(network: torch.nn.Module, path: Path) -> None:
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the weights cannot be loaded: {reason}", source=str(path), remedy="give those of this network"
        ) from None
