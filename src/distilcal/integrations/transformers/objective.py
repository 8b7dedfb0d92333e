"""What a Trainer minimises: terms by name, and the rows of a batch that count for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from distilcal.config.schema import TermSettings
from distilcal.errors import InputError
from distilcal.views import Term, View, select_kept_rows

Terms = Mapping[str, float | Mapping[str, Any]] | Sequence[Term]


def parse_terms(terms: Terms) -> list[Term | TermSettings]:
    """Return terms that are named by their losses, with their weights and settings.

    Parameters
    ----------
    terms : mapping or sequence of Term
        A weight for each loss, or a dict of its ``weight`` and settings; or terms that `build_term` built.

    Returns
    -------
    list of TermSettings or Term

    Raises
    ------
    InputError
        If there is nothing to minimise, or a weight is not a number.

    Examples
    --------
    >>> [str(term) for term in parse_terms({"cross_entropy": 0.1, "kd": {"weight": 0.9, "temperature": 2.0}})]
    ['0.1·cross_entropy', '0.9·kd']
    """
    if not terms:
        raise InputError("there is nothing to minimise", remedy='give at least one term, as {"cross_entropy": 1.0}')
    if not isinstance(terms, Mapping):
        return [_check_term(term) for term in terms]
    parsed: list[Term | TermSettings] = []
    for name, value in terms.items():
        settings = dict(value) if isinstance(value, Mapping) else {"weight": value}
        weight = settings.pop("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise InputError(f"the weight of {name} is {weight!r}", remedy=f'give a number: {{"{name}": 1.0}}')
        parsed.append(TermSettings(loss=name, weight=weight, settings=settings))
    return parsed


def _check_term(term: Any) -> Term:
    if not isinstance(term, Term):
        raise InputError(
            f"{term!r} is not a term", remedy='give a dict such as {"cross_entropy": 0.1, "kd": 0.9}, or terms of build_term'
        )
    if term.view != "plain":
        raise InputError(
            f"{term.name} looks at the view {term.view!r}",
            remedy="Trainer has the plain view only: train with distilcal.training.fit",
        )
    return term


def select_rows(view: View, term: Term, unknown: Iterable[str] = ()) -> View:
    """Return the rows of a view that count for a term.

    Parameters
    ----------
    view : View
        The view of a batch.
    term : Term
        The term, which may need labels or a teacher's outputs.
    unknown : iterable of str
        Fields with a teacher's outputs that lack some rows.

    Returns
    -------
    View
        The same view if all rows count.
    """
    labelled = term.needs_labels and bool((view.labels < 0).any())
    return select_kept_rows(view, labelled=labelled, known=[name for name in unknown if name in term.inputs])


def class_labels(labels: Tensor) -> Tensor:
    """Return the labels of a batch if they are class indices.

    Parameters
    ----------
    labels : Tensor of int, shape (N,)
        Class indices; negative: unlabelled.

    Returns
    -------
    Tensor of int, shape (N,)

    Raises
    ------
    InputError
        If they are anything else, such as the several labels of a multi-label problem.
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise InputError(
            f"labels of shape {tuple(labels.shape)} and type {labels.dtype}",
            remedy="give each example one class index; only classifiers can be trained",
        )
    return labels
