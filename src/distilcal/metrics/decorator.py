"""What makes a function a metric: ``f(probs, labels, **params) -> float`` for users, and the same on prepared Rows.

A metric is written once, as a function of ``Rows`` under ``@metric`` (or ``@human_metric``). The decorator gives users the
form on arrays; ``evaluate`` calls ``on_rows``, which works on all bootstrap resamples at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol

import numpy as np
from numpy.typing import ArrayLike

from distilcal.arguments import checked
from distilcal.errors import InputError
from distilcal.metrics.rows import Rows
from distilcal.predictions import FloatArray, label_distributions

Params = ParamSpec("Params")


class Metric(Protocol[Params]):
    """A metric as users call it; ``on_rows`` is the same function of prepared, possibly resampled rows."""

    __name__: str
    __doc__: str | None
    on_rows: Callable[Concatenate[Rows, Params], FloatArray]

    def __call__(self, probs: ArrayLike, labels: ArrayLike, *args: Params.args, **params: Params.kwargs) -> float: ...


def metric(function: Callable[Concatenate[Rows, Params], FloatArray]) -> Metric[Params]:
    """Turn a function of Rows into a metric of arrays.

    Parameters
    ----------
    function : callable
        ``f(rows, **params)``; returns an array without axes, or (R,) on R resamples.

    Returns
    -------
    Metric
        ``f(probs, labels, **params) -> float``, with the function as its ``on_rows``.

    Examples
    --------
    >>> @metric
    ... def error_rate(rows):
    ...     return rows.mean(1.0 - rows.correct)
    >>> error_rate([[0.7, 0.3], [0.6, 0.4]], [0, 1])
    0.5
    """

    function = checked(function)

    @wraps(function)
    def on_arrays(probs: ArrayLike, labels: ArrayLike, *args: Params.args, **params: Params.kwargs) -> float:
        return float(function(Rows(probs, labels), *args, **params))

    wrapped: Metric[Params] = _with_signature(on_arrays, function, ("probs", "labels"))
    return wrapped


def human_metric(function: Callable[Concatenate[Rows, Params], FloatArray]) -> Metric[Params]:
    """Turn a function of Rows with human votes into a metric of arrays.

    Parameters
    ----------
    function : callable
        ``f(rows, **params)``; reads ``rows.votes``.

    Returns
    -------
    Metric
        ``f(probs, label_probs, **params) -> float``, where ``label_probs`` (N, K) are the shares of the votes.
    """

    function = checked(function)

    @wraps(function)
    def on_arrays(probs: ArrayLike, label_probs: ArrayLike, *args: Params.args, **params: Params.kwargs) -> float:
        votes = label_distributions(label_probs, np.shape(probs))
        return float(function(Rows(probs, votes.argmax(axis=-1), votes=votes), *args, **params))

    wrapped: Metric[Params] = _with_signature(on_arrays, function, ("probs", "label_probs"))
    return wrapped


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise an InputError unless a parameter has one of its possible values.

    Parameters
    ----------
    name : str
        Name of the parameter.
    value : object
        Its value.
    choices : tuple
        The possible values.
    """
    if value not in choices:
        raise InputError(f"unknown {name} {value!r}", remedy="choose one of " + ", ".join(repr(choice) for choice in choices))


def _with_signature(on_arrays: Any, function: Callable[..., Any], arrays: tuple[str, str]) -> Any:
    """Give a wrapper the signature that it really has, and the function behind it as ``on_rows``."""
    signature = inspect.signature(function)
    array_parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in arrays]
    settings = list(signature.parameters.values())[1:]
    on_arrays.__signature__ = signature.replace(parameters=[*array_parameters, *settings], return_annotation=float)
    on_arrays.on_rows = function
    return on_arrays
