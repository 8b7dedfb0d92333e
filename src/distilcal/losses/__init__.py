"""Losses for training and distillation, listed in ``LOSSES``.

A loss is a function of tensors, or a small module where it has a memory, whose argument *names* say what it reads:
``logits, labels, targets, features, teacher_logits, teacher_features, ids``. It works in anybody's loop; `required_inputs`
tells a loop what to pass. A method is a weighted sum of such terms: ``0.1·cross_entropy + 0.9·kd`` is Hinton's.

A new loss is one function and one entry in the table at the end of its module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from distilcal.losses.calibration import (
    CALIBRATION_BY_EXAMPLE,
    CALIBRATION_LOSSES,
    acls,
    brier,
    confidence_penalty,
    cpc,
    cross_entropy,
    dca,
    flsd53,
    focal,
    mbls,
    mdca,
    mmce,
    mmce_weighted,
    smooth_targets,
    softmax_bce,
)
from distilcal.losses.distillation import DISTILLATION_BY_EXAMPLE, DISTILLATION_LOSSES, hard_kd, kd, rkd
from distilcal.losses.memory import (
    MEMORY_BY_EXAMPLE,
    MEMORY_LOSSES,
    AdaFocal,
    ContrastiveDistillation,
    CorrectnessRanking,
    ProgressiveSelfDistillation,
)

LOSSES: dict[str, Callable[..., Any]] = {
    **CALIBRATION_LOSSES,
    **DISTILLATION_LOSSES,
    **MEMORY_LOSSES,  # modules: called once to build them, then as the functions
}
# Losses whose value on a batch is the mean of their values on its parts. All others look at the batch as a whole.
BY_EXAMPLE = CALIBRATION_BY_EXAMPLE | DISTILLATION_BY_EXAMPLE | MEMORY_BY_EXAMPLE

__all__ = [
    "BY_EXAMPLE",
    "LOSSES",
    "AdaFocal",
    "ContrastiveDistillation",
    "CorrectnessRanking",
    "ProgressiveSelfDistillation",
    "acls",
    "brier",
    "confidence_penalty",
    "cpc",
    "cross_entropy",
    "dca",
    "flsd53",
    "focal",
    "hard_kd",
    "kd",
    "mbls",
    "mdca",
    "mmce",
    "mmce_weighted",
    "needs_labels",
    "needs_teacher",
    "required_inputs",
    "rkd",
    "rows_in_use",
    "smooth_targets",
    "softmax_bce",
]


def required_inputs(loss: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments that a loss is called with, in order.

    Keyword-only arguments are settings; all others come from the batch.

    Parameters
    ----------
    loss : callable
        A function, a module, or the class of a module.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> required_inputs(kd)
    ('logits', 'teacher_logits')
    >>> required_inputs(LOSSES["crd"])
    ('features', 'teacher_features', 'ids')
    """
    is_module = isinstance(loss, nn.Module) or (isinstance(loss, type) and issubclass(loss, nn.Module))
    call = loss.forward if is_module else loss  # type: ignore[attr-defined]
    names = [p.name for p in inspect.signature(call).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    return tuple(name for name in names if name != "self")


def needs_labels(loss: Callable[..., Any]) -> bool:
    """Return whether a loss can only look at labelled examples.

    Parameters
    ----------
    loss : callable
        A function, a module, or the class of a module.

    Returns
    -------
    bool
        True if it reads ``labels`` or ``targets``, or is built from the labels of all training examples as CRD is.

    Examples
    --------
    >>> needs_labels(cross_entropy), needs_labels(kd), needs_labels(LOSSES["crd"])
    (True, False, True)
    """
    if isinstance(loss, nn.Module):
        loss = type(loss)
    built_from = inspect.signature(loss).parameters if isinstance(loss, type) else ()
    return not {"labels", "targets"}.isdisjoint((*required_inputs(loss), *built_from))


def needs_teacher(loss: Callable[..., Any]) -> bool:
    """Return whether a loss can only look at examples that a teacher has outputs for.

    Parameters
    ----------
    loss : callable
        A function, a module, or the class of a module.

    Returns
    -------
    bool

    Examples
    --------
    >>> needs_teacher(kd), needs_teacher(confidence_penalty)
    (True, False)
    """
    return any(name.startswith("teacher_") for name in required_inputs(loss))


def rows_in_use(
    losses: Iterable[Callable[..., Any]], is_labelled: NDArray[np.bool_], known: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which training examples at least one of the losses can look at.

    Parameters
    ----------
    losses : iterable of callable
        Functions, modules or classes of modules.
    is_labelled : array of bool, shape (N,)
        Which examples have a label.
    known : array of bool, shape (N,)
        Which examples the teacher has outputs for.

    Returns
    -------
    array of bool, shape (N,)

    Examples
    --------
    >>> is_labelled, known = np.array([True, False, False]), np.array([False, True, False])
    >>> rows_in_use([cross_entropy, kd], is_labelled, known).tolist()
    [True, True, False]
    """
    in_use = np.zeros(len(is_labelled), dtype=bool)
    for loss in losses:
        rows = np.ones(len(is_labelled), dtype=bool)
        if needs_labels(loss):
            rows &= is_labelled
        if needs_teacher(loss):
            rows &= known
        in_use |= rows
    return in_use
