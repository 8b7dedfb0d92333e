"""What the configuration of a pretrained encoder tells before the encoder itself is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from distilcal.errors import InputError
from distilcal.io.atomic import read_json
from distilcal.models.pretrained import load_config, resolve_model

Configs = Mapping[str, Mapping[str, Any]]  # config.json of models that are not on disk yet
NO_CONFIGS: Configs = MappingProxyType({})
HEADS = ("ForSequenceClassification", "ForMultipleChoice")  # classes of transformers with a classification head


def encoder_config(source: str) -> dict[str, Any]:
    """Return the config.json of an encoder.

    Parameters
    ----------
    source : str
        Hub name, folder, or ``package:NAME/FOLDER``.
    """
    location = resolve_model(source)
    if Path(location).is_dir():
        config = read_json(Path(location) / "config.json")
        if not isinstance(config, dict):
            raise InputError(
                "expected a table in its config.json", source=source, remedy="give a folder written by save_pretrained"
            )
        return config
    return load_config(source)


def layer_count(config: Mapping[str, Any]) -> int:
    """Return the number of layers of an encoder; 0 if its configuration has none.

    Parameters
    ----------
    config : mapping
        Its config.json, as `encoder_config` returns it.

    Returns
    -------
    int

    Examples
    --------
    >>> layer_count({"n_layers": 6})
    6
    """
    count = config.get("num_hidden_layers") or config.get("n_layers")
    return count if isinstance(count, int) and count > 0 else 0


def has_classification_head(config: Mapping[str, Any]) -> bool:
    """Return whether the model was saved with a classification head.

    Parameters
    ----------
    config : mapping
        Its config.json, as `encoder_config` returns it.

    Returns
    -------
    bool

    Examples
    --------
    >>> has_classification_head({"architectures": ["BertForSequenceClassification"]})
    True
    """
    architectures = config.get("architectures") or []
    return any(head in architecture for architecture in architectures for head in HEADS)


def label_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a model calls its outputs, in order; LABEL_0 and LABEL_1, as transformers does, if it has no names.

    Parameters
    ----------
    config : mapping
        Its config.json, as `encoder_config` returns it.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> label_names({"id2label": {"1": "pos", "0": "neg"}})
    ('neg', 'pos')
    """
    names = config.get("id2label")
    if not isinstance(names, Mapping) or not names:
        return ("LABEL_0", "LABEL_1")
    by_index = {str(index): str(name) for index, name in names.items()}
    if any(str(index) not in by_index for index in range(len(by_index))):
        return ("LABEL_0", "LABEL_1")
    return tuple(by_index[str(index)] for index in range(len(by_index)))
