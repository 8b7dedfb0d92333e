"""What a Trainer minimises: terms by name, and how they look at a batch of which some rows have no label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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


def needs_labels(term: Term) -> bool:
    """Return whether a term looks at labelled rows only.

    Parameters
    ----------
    term : Term
        The term.

    Returns
    -------
    bool
    """
    return term.name == "crd" or not {"labels", "targets"}.isdisjoint(term.inputs)  # crd has all labels in its memory


def labelled_rows(view: View) -> View:
    """Return the rows of a view that have a label.

    Parameters
    ----------
    view : View
        A view whose labels are negative where there is none.

    Returns
    -------
    View
        The same view if all rows have one.
    """
    is_labelled = view.labels >= 0
    return view if bool(is_labelled.all()) else select_kept_rows(replace(view, keep=is_labelled))


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
