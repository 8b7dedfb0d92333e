"""What the configuration of a pretrained encoder tells before the encoder itself is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilcal.errors import InputError
from distilcal.io.atomic import read_json
from distilcal.models.pretrained import load_config, resolve_model

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
    return int(config.get("num_hidden_layers") or config.get("n_layers") or 0)


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
