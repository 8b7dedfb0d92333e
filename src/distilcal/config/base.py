"""The base of all settings: frozen pydantic models that refuse unknown keys and convert nothing silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Strict, ValidationError

from distilcal.config.errors import explain
from distilcal.errors import InputError

T = TypeVar("T")
S = TypeVar("S", bound="Settings")

# A list in TOML, a tuple in Python. Its entries stay strict: "1" is no integer.
ListOf = Annotated[tuple[T, ...], Strict(False)]


class Settings(BaseModel):
    """Base class of settings: frozen, hashable where its values are, strict about types and keys.

    An invalid value raises `InputError`, from Python as from a file. An integer is accepted where a number is expected; a
    boolean is no integer, and text is never converted.

    Examples
    --------
    >>> from distilcal.config.schema import TrainSettings
    >>> TrainSettings(epochs=5).replace(lr=1e-4).lr
    0.0001
    >>> TrainSettings(epochs=0)
    Traceback (most recent call last):
    ...
    distilcal.errors.InputError: epochs = 0, expected at least 1; change it, or leave it out for the default, 3
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self)) from None

    # Nested settings are built by pydantic itself, so that errors in them carry their full path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, checked by the rules of the model.

        ``model_copy(update=…)`` is the same without the checks.
        """
        return type(self)(**{**dict(self), **changes})


class FiniteSettings(Settings):
    """Settings whose numbers are finite: neither infinite nor NaN."""

    model_config = ConfigDict(allow_inf_nan=False)


def parse_settings(model: type[S], table: Any, path: str = "") -> S:
    """Build settings from a table.

    Parameters
    ----------
    model : type[Settings]
        The model to build.
    table : Mapping
        Plain tables, lists, text and numbers, as TOML and JSON have them.
    path : str
        Where the table comes from, for error messages: ``stages.student``.

    Returns
    -------
    Settings
        An instance of `model`.

    Raises
    ------
    InputError
        If a key is unknown, a value has the wrong type, or a rule of the model is broken.

    Examples
    --------
    >>> from distilcal.config.schema import TrainSettings
    >>> parse_settings(TrainSettings, {"epochs": 2}, "stages.student.train").epochs
    2
    """
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise explain(error, model, path) from None
    except RecursionError:
        raise InputError("its tables or lists are nested too deeply", source=path, remedy="write plain settings") from None


def collect_unknown_keys(model: type[Settings], values: Any) -> Any:
    """Move keys that the model does not have into its field ``settings``; anything but a table is returned unchanged.

    Parameters
    ----------
    model : type[Settings]
        A model with a field ``settings``.
    values : Any
        What the model shall be built from.

    Returns
    -------
    Any
        A new table, or the value itself where it is not a table.

    Examples
    --------
    >>> from distilcal.config.schema import TermSettings
    >>> collect_unknown_keys(TermSettings, {"loss": "kd", "temperature": 2.0})
    {'loss': 'kd', 'settings': {'temperature': 2.0}}
    """
    if not isinstance(values, Mapping):
        return values
    known = {key: value for key, value in values.items() if key in model.model_fields}
    unknown = {key: value for key, value in values.items() if key not in model.model_fields}
    settings = known.get("settings", {})
    if unknown and isinstance(settings, Mapping):
        known["settings"] = {**settings, **unknown}
    return known


def allow_any_key(schema: dict[str, Any]) -> None:
    """Let a JSON Schema allow further keys in place of the field ``settings`` that collects them.

    Parameters
    ----------
    schema : dict
        The JSON Schema of a model with a field ``settings``; it is changed in place.

    Examples
    --------
    >>> schema = {"properties": {"loss": {}, "settings": {}}}
    >>> allow_any_key(schema)
    >>> schema
    {'properties': {'loss': {}}, 'additionalProperties': True}
    """
    schema["properties"].pop("settings")
    schema["additionalProperties"] = True


def check_no_duplicates(values: tuple[Any, ...], name: str) -> None:
    """Refuse a list that names an entry twice.

    Parameters
    ----------
    values : tuple
        The entries.
    name : str
        Name of the setting, for the message.

    Raises
    ------
    InputError
        With the first entry that is repeated.

    Examples
    --------
    >>> check_no_duplicates((1, 2, 1), "layers")
    Traceback (most recent call last):
    ...
    distilcal.errors.InputError: layers contains 1 twice; name each entry once
    """
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise InputError(f"{name} contains {repeated[0]!r} twice", remedy="name each entry once")
