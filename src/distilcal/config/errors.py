"""Turns pydantic's errors into one line of ours: the path of the setting, its value, what was expected, and a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from distilcal.errors import InputError

Location = Sequence[str | int]
SHOWN_DIGITS, SHOWN_TEXT = 30, 80  # of a value in a message

# What a setting should have been, by pydantic's type of error; the names in braces come from its context.
EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "finite_number": "a finite number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "letters, digits, dashes, dots and underscores",
}


def explain(error: ValidationError, model: type[BaseModel], path: str = "") -> InputError:
    """Return our error for the first problem that pydantic found.

    Parameters
    ----------
    error : ValidationError
        What pydantic raised.
    model : type[BaseModel]
        The model that was validated.
    path : str
        Where its table is in the whole recipe or study, such as ``stages.student``; empty for the whole.

    Returns
    -------
    InputError
        An error with the path and value of the setting. An unknown key comes before everything else, since a misspelt key
        often explains the other problems.
    """
    details = error.errors(include_url=False)
    unknown_keys = [detail for detail in details if detail["type"] == "extra_forbidden"]
    detail: Mapping[str, Any] = (unknown_keys or details)[0]
    location: Location = detail["loc"]
    where = join_path(path, location)

    if detail["type"] == "extra_forbidden":
        return _unknown_key(where, model, location)
    if detail["type"] == "missing":
        return InputError(f"missing value: {where}", remedy=f"add {location[-1]} = …")
    if detail["type"] == "value_error":
        is_key = location and location[-1] == "[key]"
        return _broken_rule(join_path(path, location[:-2]) if is_key else where, detail["ctx"]["error"])
    if location and location[-1] == "[key]":
        name = f"invalid name {_shown(detail['input'])} in {join_path(path, location[:-2])}"
        return InputError(name, remedy=f"use {_expected(detail)}")
    return _wrong_value(where, model, location, detail)


def join_path(path: str, location: Location) -> str:
    """Return a location as text, such as ``stages.student.terms[0].weight``.

    Parameters
    ----------
    path : str
        Where the location starts; empty: at the top.
    location : sequence of str or int
        Keys of tables and positions in lists, as pydantic gives them.

    Returns
    -------
    str

    Examples
    --------
    >>> join_path("stages.student", ("terms", 0, "weight"))
    'stages.student.terms[0].weight'
    """
    for part in location:
        if isinstance(part, int):
            path = f"{path}[{part}]"
        elif path:
            path = f"{path}.{part}"
        else:
            path = part
    return path


def _unknown_key(where: str, model: type[BaseModel], location: Location) -> InputError:
    owner = _without_none(_annotation_at(model, location[:-1]))
    names = list(owner.model_fields)
    close = get_close_matches(str(location[-1]), names, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(close)}?" if close else f"keys: {', '.join(names)}"
    return InputError(f"unknown key {where}", remedy=remedy)


def _broken_rule(where: str, error: ValueError) -> InputError:
    """Return the error of one of our own validators, with the path of the settings that it checked."""
    problem = error.problem if isinstance(error, InputError) else str(error)
    remedy = error.remedy if isinstance(error, InputError) else ""
    return InputError(f"{where}: {problem}" if where else problem, remedy=remedy)


def _wrong_value(where: str, model: type[BaseModel], location: Location, detail: Mapping[str, Any]) -> InputError:
    kind, value = detail["type"], detail["input"]
    if not where:
        return InputError(f"expected a table, got {_shown(value)}", remedy="write it as [table] with keys")
    if kind == "literal_error":
        return _wrong_choice(where, _annotation_at(model, location), value)
    if kind not in EXPECTED:
        return InputError(f"{where} = {_shown(value)}: {detail['msg']}", remedy="change it")
    expected = _expected(detail)
    if kind == "tuple_type":
        remedy = f"write {location[-1]} = [{_shown(value)}]"
    elif kind == "model_type":
        remedy = f"write it as [{where}] with keys"
    else:
        remedy = _default_remedy(model, location)
    return InputError(f"{where} = {_shown(value)}, expected {expected}", remedy=remedy)


def _expected(detail: Mapping[str, Any]) -> str:
    """What a setting should have been, with the bounds from pydantic's context."""
    bounds = {name: _bound(value) for name, value in detail.get("ctx", {}).items()}
    return EXPECTED[detail["type"]].format(**bounds)


def _bound(value: Any) -> str:
    if isinstance(value, float) and not value.is_integer():
        return f"{value:g}"
    return f"{int(value):,}" if isinstance(value, int | float) else str(value)


def _wrong_choice(where: str, annotation: Any, value: Any) -> InputError:
    # Of a choice that may be unset, Literal[...] | None, the arguments are the choice and None.
    parts = [get_args(part) or (part,) for part in get_args(annotation)]
    choices = [choice for part in parts for choice in part if isinstance(choice, str)]
    close = get_close_matches(str(value), choices, n=1, cutoff=0.5)
    remedy = f"did you mean {close[0]!r}?" if close else "choose one of them"
    return InputError(f"{where} = {_shown(value)}, expected one of {', '.join(map(repr, choices))}", remedy=remedy)


def _default_remedy(model: type[BaseModel], location: Location) -> str:
    owner = _without_none(_annotation_at(model, location[:-1]))
    if isinstance(owner, type) and issubclass(owner, BaseModel) and location[-1] in owner.model_fields:
        default = owner.model_fields[str(location[-1])].default
        if isinstance(default, (int, float, str)):
            return f"change it, or leave it out for the default, {_shown(default)}"
    return "change it"


def _shown(value: Any) -> str:
    """Return a value as TOML writes it, cut off where it is long."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**SHOWN_DIGITS:
        return f"an integer of more than {SHOWN_DIGITS} digits"
    text = repr(value)
    return text if len(text) <= SHOWN_TEXT else f"{text[: SHOWN_TEXT - 1]}…"


def _annotation_at(annotation: Any, location: Location) -> Any:
    """Follow a location through models, tables and lists to the type that is expected there."""
    for part in location:
        annotation = _without_none(_without_metadata(annotation))
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        elif get_origin(annotation) is tuple:
            annotation = get_args(annotation)[0]
        else:
            annotation = annotation.model_fields[part].annotation
    return _without_metadata(annotation)


def _without_metadata(annotation: Any) -> Any:
    """Return X of ``Annotated[X, …]``."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


def _without_none(annotation: Any) -> Any:
    """Return X of ``X | None``, a table that may be left out."""
    parts = [part for part in get_args(annotation) if part is not NoneType]
    is_optional = get_origin(annotation) is UnionType and len(parts) == 1
    return _without_metadata(parts[0]) if is_optional else annotation
