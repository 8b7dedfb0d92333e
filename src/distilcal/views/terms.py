"""Terms: a loss, its weight and the view it looks at. A method is ``Σ weight · loss(view)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from distilcal.errors import InputError
from distilcal.losses import BY_EXAMPLE, LOSSES, needs_labels, needs_teacher, required_inputs
from distilcal.views.batch import VIEW_FIELDS, View


@dataclass(frozen=True)
class Term:
    """A loss with its settings, its weight and the view it looks at; `build_term` builds one.

    Attributes
    ----------
    loss : callable
        The loss, its settings filled in.
    weight : float
        By which its value is multiplied.
    view : str
        The name of the view that it looks at.
    name : str
        The name of the loss, for the history.
    by_example : bool
        Whether its value on a batch is the mean of its values on the parts of the batch.
    settings : mapping
        The settings of the loss, as given.
    inputs : tuple of str
        The fields of the view that the loss reads.
    needs_labels : bool
        Whether it looks at the labelled rows of the view only.
    needs_teacher : bool
        Whether it looks at the rows only that the teacher has outputs for.
    """

    loss: Callable[..., Tensor]
    weight: float = 1.0
    view: str = "plain"
    name: str = ""
    by_example: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = field(init=False)
    needs_labels: bool = field(init=False)
    needs_teacher: bool = field(init=False)

    def __post_init__(self) -> None:
        # Looked up once: it costs more than a small loss.
        object.__setattr__(self, "inputs", required_inputs(self.loss))
        object.__setattr__(self, "needs_labels", needs_labels(self.loss))
        object.__setattr__(self, "needs_teacher", needs_teacher(self.loss))

    def counting_rows(
        self, is_labelled: NDArray[np.bool_], unknown: Mapping[str, NDArray[np.bool_]]
    ) -> NDArray[np.bool_] | None:
        """Return which training examples count for the loss (N,); None: all of them.

        Parameters
        ----------
        is_labelled : array of bool, shape (N,)
            Which examples have a label.
        unknown : mapping of str to array of bool, shape (N,)
            Which examples a teacher does not know, by field of a view, for those fields that lack some.
        """
        left_out = [unknown[name] for name in self.inputs if name in unknown]
        if self.needs_labels and not is_labelled.all():
            left_out.append(~is_labelled)
        return ~np.any(left_out, axis=0) if left_out else None

    def __call__(self, view: View) -> Tensor:
        if not len(view):  # no row of this batch was mixed, or is known to this loss
            return view.logits.sum() * 0.0
        return self.loss(*[getattr(view, name) for name in self.inputs])


def build_term(
    loss: str | Callable[..., Any],
    weight: float = 1.0,
    view: str = "plain",
    settings: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    path: str = "",
) -> Term:
    """Build a term from the name of a loss, or from any function whose arguments are named as a view's fields.

    Parameters
    ----------
    loss : str or callable
        A name in ``LOSSES``, or a function or module of your own.
    weight : float, default 1.0
        By which the value of the loss is multiplied.
    view : str, default "plain"
        The name of the view that the loss looks at.
    settings : mapping, optional
        Keyword-only arguments of the loss.
    context : mapping, optional
        What a loss with a memory is built from: ``n_data, classes, labels, features, teacher_features``.
    path : str, optional
        Where the term stands in a recipe, for error messages.

    Returns
    -------
    Term

    Raises
    ------
    InputError
        If there is no such loss or setting, or if the loss reads something that a view does not have.

    Examples
    --------
    >>> term = build_term("kd", 0.9, settings={"temperature": 2.0})
    >>> term.name, term.inputs
    ('kd', ('logits', 'teacher_logits'))
    """
    where = f"{path}: " if path else ""
    if isinstance(loss, str):
        if loss not in LOSSES:
            near = get_close_matches(loss, LOSSES, n=3, cutoff=0.4) or list(LOSSES)
            raise InputError(f"{where}there is no loss {loss!r}", remedy=f"did you mean {', '.join(near)}?")
        name, function = loss, LOSSES[loss]
    else:
        name, function = getattr(loss, "__name__", type(loss).__name__), loss
    settings = dict(settings or {})
    _check_settings(function, settings, f"{where}{name}")
    bound = _bind(function, settings, context or {}, f"{where}{name}")
    unknown = [argument for argument in required_inputs(bound) if argument not in VIEW_FIELDS]
    if unknown:
        raise InputError(f"{where}{name} asks for {unknown[0]!r}", remedy=f"a view has {', '.join(VIEW_FIELDS)}")
    by_example = isinstance(loss, str) and loss in BY_EXAMPLE
    return Term(bound, weight, view, name, by_example, settings)


def _check_settings(function: Callable[..., Any], settings: Mapping[str, Any], where: str) -> None:
    allowed: list[str] = []
    if not isinstance(function, nn.Module):
        parameters = inspect.signature(function).parameters.values()
        allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for key in settings:
        if key not in allowed:
            raise InputError(f"{where} has no setting {key!r}", remedy=f"settings: {', '.join(allowed) or 'none'}")


def _bind(
    function: Callable[..., Any], settings: dict[str, Any], context: Mapping[str, Any], where: str
) -> Callable[..., Tensor]:
    """A loss that takes fields of a view only: a module is built, settings of a function are filled in."""
    if not isinstance(function, type):
        return _LossWithSettings(function, settings) if settings else function
    parameters = inspect.signature(function).parameters.values()
    arguments = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    missing = [name for name in arguments if name not in context]
    if missing:
        raise InputError(f"{where} needs {missing[0]}", remedy="pass it in context")
    try:
        built: Callable[..., Tensor] = function(*(context[name] for name in arguments), **settings)
    except InputError as error:
        raise InputError(str(error), source=where) from None
    return built


class _LossWithSettings:
    """A function with its keyword-only arguments filled in, under the same names of the others."""

    def __init__(self, loss: Callable[..., Tensor], settings: dict[str, Any]):
        self.loss, self.settings = loss, settings
        parameters = [p for p in inspect.signature(loss).parameters.values() if p.kind is not p.KEYWORD_ONLY]
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, *values: Tensor) -> Tensor:
        return self.loss(*values, **self.settings)
