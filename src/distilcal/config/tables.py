"""Tables of settings in Markdown, for the documentation: a row for each setting with its values, default and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distilcal.config.base import Settings

TYPES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "array": "list"}


def settings_table(model: type[Settings]) -> str:
    """Return a Markdown table of the settings of a model.

    Parameters
    ----------
    model : type[Settings]
        The model; every field has a description.

    Returns
    -------
    str
        A row for each key that a user may write.

    Examples
    --------
    >>> from distilcal.config.schema import TermSettings
    >>> print(settings_table(TermSettings))
    | key | value | default | meaning |
    |---|---|---|---|
    | `loss` | text | `"cross_entropy"` | Name of the loss. |
    | `weight` | number ≥ 0 | `1.0` | Factor of the loss in the sum. |
    | `view` | text | `"plain"` | View that the loss sees: `plain`, a kind of mixing, or one of `views`. |
    """
    schema = model.model_json_schema()
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, entry in schema["properties"].items():
        if entry.get("readOnly"):  # filled in when a file is loaded
            continue
        meaning = entry["description"].replace("|", "\\|")
        rows.append(f"| `{name}` | {_value(entry)} | {_default(entry)} | {meaning} |")
    return "\n".join(rows)


def _value(entry: Mapping[str, Any]) -> str:
    """Describe the values that a setting may have: its choices, or its type and bounds."""
    if "anyOf" in entry:  # a value or none
        return _value(entry["anyOf"][0])
    if "enum" in entry:
        return ", ".join(f"`{choice}`" for choice in entry["enum"])
    bounds = [
        f"{sign} {entry[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in entry
    ]
    return " ".join([TYPES.get(entry.get("type", ""), "table"), ", ".join(bounds)]).strip()


def _default(entry: Mapping[str, Any]) -> str:
    """Write a default as TOML; tables and unset values have none."""
    default = entry.get("default")
    if default is None or isinstance(default, Mapping):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, str):
        return f'`"{default}"`'
    if isinstance(default, (list, tuple)):
        return f"`{list(default)}`".replace("'", '"')
    return f"`{default}`"
