"""Terms: a loss, its weight and the view it looks at. A method is ``Σ weight · loss(view)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from distilcal.errors import InputError
from distilcal.losses import BY_EXAMPLE, LOSSES, required_inputs
from distilcal.views.batch import VIEW_FIELDS, View


@dataclass(frozen=True)
class Term:
    """A loss, its settings filled in, with its weight and the view it looks at."""

    loss: Callable[..., Tensor]
    weight: float = 1.0
    view: str = "plain"
    name: str = ""
    by_example: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the loss, as given
    inputs: tuple[str, ...] = field(init=False)  # what the loss asks of a view

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", required_inputs(self.loss))  # looked up once: it costs more than a small loss

    def __call__(self, view: View) -> Tensor:
        if not len(view):  # nobody in this batch was mixed
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
    """A term from the name of a loss, or from any function whose arguments are named as a view's fields.

    ``context`` has what a loss with a memory is made from: ``n_data, classes, labels, features, teacher_features``.
    """
    where = f"{path}: " if path else ""
    if isinstance(loss, str) and loss not in LOSSES:
        near = get_close_matches(loss, LOSSES, n=3, cutoff=0.4) or list(LOSSES)
        raise InputError(f"{where}there is no loss {loss!r}", remedy=f"did you mean {', '.join(near)}?")
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    made = LOSSES[loss] if isinstance(loss, str) else loss
    settings = dict(settings or {})
    parameters = inspect.signature(made).parameters.values() if not isinstance(made, nn.Module) else []
    allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for key in settings:
        if key not in allowed:
            raise InputError(f"{where}{name} has no setting {key!r}", remedy=f"settings: {', '.join(allowed) or 'none'}")
    try:
        if isinstance(made, type):
            needed = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
            bound = made(*((context or {})[n] for n in needed), **settings)
        else:
            bound = _Bound(made, settings) if settings else made
    except KeyError as error:
        raise InputError(f"{where}{name} needs {error.args[0]}", remedy="pass it in context") from None
    unknown = [n for n in required_inputs(bound) if n not in VIEW_FIELDS]
    if unknown:
        raise InputError(f"{where}{name} asks for {unknown[0]!r}", remedy=f"a view has {', '.join(VIEW_FIELDS)}")
    return Term(bound, weight, view, name, name in BY_EXAMPLE and loss in LOSSES, settings)


class _Bound:
    """A loss with its settings filled in, under the same argument names."""

    def __init__(self, loss: Callable[..., Tensor], settings: dict[str, Any]):
        self.loss, self.settings = loss, settings
        kept = [p for p in inspect.signature(loss).parameters.values() if p.kind is not p.KEYWORD_ONLY]
        self.__signature__ = inspect.Signature(kept)

    def __call__(self, *values: Tensor) -> Tensor:
        return self.loss(*values, **self.settings)
