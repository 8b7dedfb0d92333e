"""Arguments of public functions, checked by their annotations: one of a wrong type is refused in one line with its name.

Put ``@checked`` above a function whose annotations can be resolved in its own module. Types that are not known here, such as
``ArrayLike`` or any ``Annotated``, are not checked; the function reads those itself. To check another kind of
annotation, add a case to `_converted`.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, wraps
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from distilcal.errors import InputError

Params = ParamSpec("Params")
Returned = TypeVar("Returned")

NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "text", Path: "a path", NoneType: "None"}
PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}
SMALLEST = {"seed": 0}  # values of arguments with these names, in every function
SHOWN = (str, bytes, bool, int, float, complex, NoneType, np.generic)  # by their values; others by their types
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
LONGEST = 60  # characters of a value in a message


class _WrongTypeError(Exception):
    """A value is not of the annotated type."""


def checked(function: Callable[Params, Returned]) -> Callable[Params, Returned]:
    """Check the arguments of a function against its annotations whenever it is called.

    A scalar of NumPy is as good as one of Python. True and False are no numbers, and 15.0 is no whole number.

    Parameters
    ----------
    function : callable
        With annotations.

    Returns
    -------
    callable
        The same function; it raises an InputError for an argument of a wrong type, or for a negative seed.

    Examples
    --------
    >>> @checked
    ... def count_bins(bins: int = 15) -> int:
    ...     return bins
    >>> count_bins(np.int64(10))
    10
    >>> count_bins("ten")
    Traceback (most recent call last):
    distilcal.errors.InputError: bins: expected a whole number, got 'ten'; see help(count_bins)
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Params.args, **kwargs: Params.kwargs) -> Returned:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's own message names the function
        annotations = resolved_annotations(function)
        for name, value in bound.arguments.items():
            if name in annotations and signature.parameters[name].kind not in VARIABLE:
                bound.arguments[name] = check_argument(name, value, annotations[name], function.__name__)
        return function(*bound.args, **bound.kwargs)

    return call


@cache
def resolved_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types that the arguments of a function are annotated with.

    Parameters
    ----------
    function : callable
        Any function. It is looked at when it is first called: its module may name types that are defined further down.

    Returns
    -------
    dict of str to type
        Empty if a name in them cannot be resolved, as in a function of a user that names types for a type checker only.

    Examples
    --------
    >>> resolved_annotations(resolved_annotations)["return"]
    dict[str, typing.Any]
    """
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:
        return {}


def check_argument(name: str, value: Any, annotation: Any, function: str) -> Any:
    """Return an argument as its annotation has it.

    Parameters
    ----------
    name : str
        Name of the argument.
    value : object
        Its value.
    annotation : type
        What it should be.
    function : str
        Whose argument it is, for the message.

    Returns
    -------
    object
        The value; a scalar of NumPy as one of Python, and a list as a tuple where that is expected.

    Raises
    ------
    InputError
        If it is of another type.

    Examples
    --------
    >>> check_argument("costs", [1, np.float32(2)], tuple[float, float] | None, "cascade")
    (1, 2.0)
    """
    try:
        converted = _converted(value, annotation)
    except _WrongTypeError:
        remedy = f"see help({function})"
        if isinstance(value, str) and PLURALS[str] in _described(annotation):
            remedy = f"put it in brackets: [{value!r:.{LONGEST}}]"
        raise InputError(f"expected {_described(annotation)}, got {_shown(value)}", source=name, remedy=remedy) from None
    if name in SMALLEST and isinstance(converted, int) and converted < SMALLEST[name]:
        raise InputError(f"{converted} is less than {SMALLEST[name]}", source=name, remedy=f"give {SMALLEST[name]} or more")
    return converted


def check_range(low: float, high: float, **numbers: Any) -> None:
    """Check that arguments are finite numbers of a range.

    Parameters
    ----------
    low, high : float
        The smallest and the largest number that is allowed; infinity: there is no such bound.
    **numbers : float
        The arguments, by their names.

    Raises
    ------
    InputError
        For the first argument that is something else.

    Examples
    --------
    >>> check_range(0, math.inf, gamma=3.0)
    >>> check_range(0, 1, alpha=1.5)
    Traceback (most recent call last):
    distilcal.errors.InputError: alpha: expected a number from 0 to 1, got 1.5
    """
    for name, value in numbers.items():
        try:
            fits = low <= _plain(value, float) <= high and math.isfinite(value)
        except _WrongTypeError:
            fits = False
        if not fits:
            bounds = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of at least {low:g}"
            raise InputError(f"expected a number {bounds}, got {_shown(value)}", source=name)


def _converted(value: Any, annotation: Any) -> Any:
    """The value as the annotation has it; a _WrongTypeError if it is something else."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
    if origin in (Union, UnionType):
        return _first_fitting(value, parts)
    if origin is Literal:
        return _choice(value, parts)
    if annotation in (int, float, bool, str):
        return _plain(value, annotation)
    if origin is tuple:
        return _tuple(value, parts)
    if origin is Sequence:
        return _checked_items(value, value, parts[0])
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise _WrongTypeError
        return _checked_items(value, list(value.values()), parts[1])
    if origin is Callable and not callable(value):
        raise _WrongTypeError
    if annotation is Path and isinstance(value, os.PathLike):
        return Path(value)
    if origin is None and isinstance(annotation, type) and not isinstance(value, annotation):
        raise _WrongTypeError
    return value


def _first_fitting(value: Any, annotations: Sequence[Any]) -> Any:
    for annotation in annotations:
        try:
            return _converted(value, annotation)
        except _WrongTypeError:
            continue
    raise _WrongTypeError


def _choice(value: Any, choices: Sequence[Any]) -> Any:
    for choice in choices:
        try:
            if _plain(value, type(choice)) == choice:
                return choice
        except _WrongTypeError:
            continue
    raise _WrongTypeError


def _plain(value: Any, kind: type) -> Any:
    """A number, a truth or a text; a truth is no number, and a number with a fraction no whole one."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) and kind is not bool:
        raise _WrongTypeError
    if kind is int:
        try:
            return operator.index(value)
        except TypeError:
            raise _WrongTypeError from None
    if not isinstance(value, Real if kind is float else kind):
        raise _WrongTypeError
    return value


def _tuple(value: Any, parts: Sequence[Any]) -> tuple[Any, ...]:
    if parts[-1] is ...:
        return tuple(_checked_items(value, value, parts[0]))
    if not isinstance(value, tuple | list) or len(value) != len(parts):
        raise _WrongTypeError
    return tuple(_converted(item, part) for item, part in zip(value, parts, strict=True))


def _checked_items(value: Any, items: Any, annotation: Any) -> Any:
    """The value itself, if its items fit; letters of a text are no items."""
    if (
        isinstance(items, str | bytes)
        or not isinstance(items, Collection)
        or (isinstance(items, np.ndarray) and not items.ndim)
    ):
        raise _WrongTypeError
    for item in items:
        _converted(item, annotation)
    return value


def _described(annotation: Any) -> str:
    """What an annotation stands for, in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in NAMES:
        return NAMES[annotation]
    if origin in (Union, UnionType):
        return " or ".join(_described(part) for part in parts)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in parts)
    if origin is tuple and parts[-1] is not ...:
        return f"({', '.join(_described(part) for part in parts)})"
    if origin in (tuple, Sequence):
        return f"a list of {PLURALS.get(parts[0]) or _described(parts[0])}"
    if origin is Mapping:
        return "a dict"
    if origin is Callable:
        return "a function"
    return getattr(annotation, "__name__", "another object")


def _shown(value: Any) -> str:
    """A value in one line; of what may be large or of many lines its type and size."""
    if isinstance(value, SHOWN):
        return f"{value!r:.{LONGEST}}"
    if isinstance(value, list | tuple | set | dict) and all(isinstance(item, SHOWN) for item in value) and len(value) < 10:
        return f"{value!r:.{LONGEST}}"
    shape = getattr(value, "shape", None)
    size = f" of shape {shape}" if isinstance(shape, tuple) else ""
    return f"{type(value).__name__}{size}"
