"""Our losses as ``compute_loss_func`` of a plain Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from distilcal.errors import InputError
from distilcal.integrations.transformers.data import logits_of
from distilcal.integrations.transformers.objective import IGNORED, class_labels, parse_terms, select_rows
from distilcal.losses import LOSSES, required_inputs
from distilcal.views import Term, View, build_term


def loss_func(
    loss: str | Mapping[str, float | Mapping[str, Any]], *, weight: float = 1.0, **settings: Any
) -> Callable[..., Tensor]:
    """Return a function for ``Trainer(compute_loss_func=…)`` that minimises one of our losses, or a weighted sum of them.

    Any loss that reads logits and labels only will do. With gradient accumulation, and over several processes, losses that
    are means over examples have the gradient of the whole batch; losses that look at a batch as a whole (mdca, mmce, …) see
    the parts. Rows with the label -100 are left out.

    Parameters
    ----------
    loss : str or mapping
        The name of a loss, or a weight for each loss: ``{"cross_entropy": 1.0, "mdca": 1.0}``. A dict in place of a weight
        has ``weight`` and settings.
    weight : float, default 1.0
        Factor of a loss that is named by a str.
    **settings
        Its settings.

    Returns
    -------
    callable
        ``(outputs, labels, num_items_in_batch=None) -> Tensor``.

    Raises
    ------
    InputError
        If there is no such loss or setting, or if a loss needs a teacher, features or a memory.

    Examples
    --------
    >>> compute_loss = loss_func({"cross_entropy": 1.0, "mdca": 1.0})
    >>> outputs = {"logits": torch.tensor([[2.0, 0.0], [0.0, 1.0]])}
    >>> round(float(compute_loss(outputs, torch.tensor([0, 1]))), 4)
    0.295
    """
    if isinstance(loss, str):
        loss = {loss: {**settings, "weight": weight}}
    elif settings or weight != 1.0:
        raise InputError("weight and settings are given beside a dict of losses", remedy="put them into the dict")
    terms = []
    for parsed in parse_terms(loss):
        assert not isinstance(parsed, Term)
        _check_reads_logits_and_labels(parsed.loss)
        terms.append(build_term(parsed.loss, parsed.weight, settings=parsed.settings))

    def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits = logits_of(outputs, len(labels))
        labels = class_labels(labels, logits.shape[1])
        view = View(logits, logits[:, :0], labels, labels, torch.arange(len(labels), device=logits.device))
        total = logits.new_zeros((), dtype=torch.float32)
        for term in terms:
            total = total + term(select_rows(view, term)) * term.weight
        return total * _share_of_step(labels, num_items_in_batch)

    return compute_loss


def _check_reads_logits_and_labels(name: str) -> None:
    """Refuse losses that need more than Trainer passes; names that do not exist are left to `build_term`."""
    if name not in LOSSES:
        return
    loss = LOSSES[name]
    if isinstance(loss, type) or not {"logits", "labels", "targets"}.issuperset(required_inputs(loss)):
        raise InputError(
            f"{name} needs more than logits and labels: {', '.join(required_inputs(loss))}"
            f"{' and a memory' if isinstance(loss, type) else ''}",
            remedy="train with distilcal.integrations.transformers.DistillationTrainer",
        )


def _share_of_step(labels: Tensor, num_items: Tensor | int | None) -> Tensor | float:
    """The share of these rows in all of a step's: Trainer divides no further."""
    if num_items is None:
        return 1.0
    items = torch.as_tensor(num_items, device=labels.device)
    # DataParallel: one count per GPU, and Trainer multiplies the loss by their number.
    devices = len(items) if items.ndim else 1
    return (labels != IGNORED).sum() / items.flatten()[0] / devices
