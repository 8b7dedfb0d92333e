"""How large a network would be, estimated from its settings before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from distilcal.config.schema import ModelSettings, StageSettings
from distilcal.data import Dataset, Vectors
from distilcal.errors import InputError
from distilcal.pipeline.encoders import layer_count

MOST_PARAMETERS = 100_000_000_000  # more than this package could train anywhere
WEIGHT_BYTES = 4
TRAINED_COPIES = {"adamw": 4, "sgd": 3}  # weights, gradients, and what the optimizer remembers


def check_size(stage: StageSettings, train: Dataset, config: Mapping[str, Any] | None, path: str) -> None:
    """Refuse a network that cannot fit: by its parameters, or by the memory of this machine where there is no GPU.

    Parameters
    ----------
    stage : StageSettings
        The stage, with a network of its own.
    train : Dataset
        Its training data.
    config : mapping or None
        The config.json of its text encoder; None if it has none, or it is not known.
    path : str
        Where the stage is in the recipe.

    Raises
    ------
    InputError
        With the estimate.
    """
    parameters = count_parameters(stage.model, train, config)
    if parameters > MOST_PARAMETERS:
        raise InputError(
            f"{path}.model: about {parameters:,} parameters, expected at most {MOST_PARAMETERS:,}",
            remedy="make the network smaller",
        )
    copies = TRAINED_COPIES[stage.train.optimizer] if stage.terms and not stage.model.frozen else 1
    needed, there = WEIGHT_BYTES * parameters * copies, memory_bytes()
    if there and needed > there and not torch.cuda.is_available():
        raise InputError(
            f"{path}.model: about {parameters:,} parameters need {needed / 1e9:,.1f} GB of memory, this machine has "
            f"{there / 1e9:,.1f} GB",
            remedy="make the network smaller, or use a larger machine",
        )


def count_parameters(model: ModelSettings, train: Dataset, config: Mapping[str, Any] | None) -> int:
    """Return about how many parameters a network has; 0 if that is not known.

    Parameters
    ----------
    model : ModelSettings
        The network.
    train : Dataset
        The data that it is for.
    config : mapping or None
        The config.json of its text encoder, if it has one.

    Returns
    -------
    int
        Exact for a head on vectors; for an encoder its large matrices are counted.

    Examples
    --------
    >>> import numpy as np
    >>> data = Dataset(Vectors(np.eye(4, dtype=np.float32)), [0, 1, 1, 0], ("no", "yes"))
    >>> count_parameters(ModelSettings(name="mlp", hidden=(8,)), data, None)
    58
    """
    if isinstance(train.inputs, Vectors):
        return _perceptron([train.inputs.values.shape[1], *model.hidden, len(train.classes)])
    if config is None:
        return 0
    width = _size(config, "hidden_size", "dim", "d_model")
    inner = _size(config, "intermediate_size", "hidden_dim") or 4 * width
    layers = len(model.layers) or layer_count(config)
    embeddings = (_size(config, "vocab_size") + _size(config, "max_position_embeddings")) * width
    encoder = embeddings + layers * (4 * width**2 + 2 * width * inner)
    head = _perceptron([width, *model.hidden, len(train.classes)]) if model.frozen else width**2
    return encoder + head


def memory_bytes() -> int:
    """Return the memory of this machine; 0 where the system does not tell.

    Returns
    -------
    int
    """
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _perceptron(widths: Sequence[int]) -> int:
    return sum((before + 1) * after for before, after in pairwise(widths))


def _size(config: Mapping[str, Any], *names: str) -> int:
    """The first of these fields that is a positive integer; 0 if none is."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return 0
