"""The gradient of one step: forward passes of all views, the weighted sum of losses, and backward.

A step's batch can be divided into parts (gradient accumulation) and between processes; the gradient stays that of the whole
batch, whatever the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from distilcal.dynamics import Recorder
from distilcal.models.network import Output
from distilcal.training.batches import BatchSource
from distilcal.training.distributed import gather_view, own_part
from distilcal.views import Batch, StepContext, Term, View, concatenate_views, select_kept_rows
from distilcal.views.batch import RowIndices
from distilcal.views.pairs import current_saliency


@dataclass(frozen=True)
class Objective:
    """What is minimised, ``Σ weight · loss(view)``, and where it is computed. Nothing here changes while it trains."""

    network: Any  # as Accelerate prepared it
    accelerator: Any
    source: BatchSource
    terms: tuple[Term, ...]
    views: Mapping[str, Callable[[Any, Batch], View]]
    accumulate: int  # parts into which a batch is divided
    recorder: Recorder | None

    @cached_property
    def required_inputs(self) -> dict[str, frozenset[str]]:
        """For each view that terms look at, the fields that their losses read."""
        names = dict.fromkeys(term.view for term in self.terms)
        return {view: frozenset(name for t in self.terms if t.view == view for name in t.inputs) for view in names}

    @cached_property
    def is_mean_of_parts(self) -> bool:
        """Whether the losses of a batch are the means of the losses of its parts.

        They are not if a loss looks at the batch as a whole, nor if a view drops rows: the parts then keep different numbers.
        """
        drops_rows = any(getattr(self.views[name], "drops_rows", False) for name in self.required_inputs)
        return all(term.by_example for term in self.terms) and not drops_rows


class StepLosses(NamedTuple):
    """The value of each term on a batch, detached, and the number of rows that it is a mean over."""

    values: list[Tensor]
    counts: list[int]


def add_gradient(objective: Objective, step: StepContext, augment: torch.Generator) -> StepLosses:
    """Add the gradient of one step's batch to the parameters' ``grad``.

    Parameters
    ----------
    objective : Objective
        What is minimised.
    step : StepContext
        The rows of the step and its random numbers.
    augment : torch.Generator
        Decides how images are cropped and flipped.

    Returns
    -------
    StepLosses
        The value of each term, and over how many rows it was taken.
    """
    positions = np.arange(len(step.rows))
    if objective.accumulate == 1:
        return _add_gradient_of_part(objective, step, positions, augment)
    parts = [part for part in np.array_split(positions, objective.accumulate) if len(part)]
    if objective.is_mean_of_parts:
        return _add_gradient_by_parts(objective, step, parts, augment)
    return _add_gradient_in_two_passes(objective, step, parts, augment)


def _add_gradient_of_part(
    objective: Objective, step: StepContext, positions: RowIndices, augment: torch.Generator, share: float = 1.0
) -> StepLosses:
    """Forward, losses and backward of some rows of a step; the gradient is multiplied by ``share``."""
    batch = _build_batch(objective, step, positions, augment)
    views = _forward_views(objective, batch, len(positions))
    _record(objective, views)
    total, losses = _weighted_sum(objective.terms, views)
    _backward(objective, total if share == 1.0 else total * share)
    return losses


def _add_gradient_by_parts(
    objective: Objective, step: StepContext, parts: Sequence[RowIndices], augment: torch.Generator
) -> StepLosses:
    """The usual gradient accumulation: each part counts by its share of the rows."""
    values = [torch.zeros((), device=objective.source.device) for _ in objective.terms]
    for number, part in enumerate(parts):
        share = len(part) / len(step.rows)
        is_last = number + 1 == len(parts)
        # Processes exchange gradients once a step, with the last part.
        with nullcontext() if is_last else objective.accelerator.no_sync(objective.network):
            losses = _add_gradient_of_part(objective, step, part, augment, share)
        values = [total + value * share for total, value in zip(values, losses.values, strict=True)]
    return StepLosses(values, [len(step.rows)] * len(objective.terms))


def _add_gradient_in_two_passes(
    objective: Objective, step: StepContext, parts: Sequence[RowIndices], augment: torch.Generator
) -> StepLosses:
    """The gradient of losses that look at the whole batch, in the memory of one part.

    The mean of such losses over parts is not their value on the batch. So every part goes through the network without
    gradient first; the losses are computed on all outputs together, which gives their gradient at the outputs; then every part
    goes through once more, with the same dropout, to propagate it to the parameters.
    """
    device = objective.source.device
    batches = [_build_batch(objective, step, part, augment) for part in parts]
    rng_states, views_of_parts = [], []
    with torch.no_grad():
        for batch, part in zip(batches, parts, strict=True):
            rng_states.append(_rng_state(device))
            views_of_parts.append(_forward_views(objective, batch, len(part)))
    views = {name: concatenate_views([part[name] for part in views_of_parts]) for name in objective.required_inputs}
    _record(objective, views)
    for view in views.values():
        view.logits.requires_grad_()
        view.features.requires_grad_()
    total, losses = _weighted_sum(objective.terms, views)
    _backward(objective, total)
    start = 0
    for batch, part, rng_state in zip(batches, parts, rng_states, strict=True):
        _set_rng_state(rng_state, device)
        rows = slice(start, start + len(part))
        outputs, gradients = [], []
        for name, view in _forward_views(objective, batch, len(part)).items():
            for output, first_output in ((view.logits, views[name].logits), (view.features, views[name].features)):
                if first_output.grad is not None:
                    outputs.append(output)
                    gradients.append(first_output.grad[rows])
        torch.autograd.backward(outputs, gradients)
        start += len(part)
    return losses


def _build_batch(objective: Objective, step: StepContext, positions: RowIndices, augment: torch.Generator) -> Batch:
    """The rows at these positions of a step; of several processes, each builds its part of them."""
    accelerator = objective.accelerator
    if accelerator.num_processes > 1:
        positions = own_part(positions, accelerator.process_index, accelerator.num_processes)
    return objective.source.build_batch(step, positions, augment)


def _forward_views(objective: Objective, batch: Batch, count: int) -> dict[str, View]:
    """Run the student on every view of a batch; each process gets the views of all ``count`` rows."""
    batch.plain_output = None  # of an earlier pass
    views = {}
    for name, required_inputs in objective.required_inputs.items():
        batch.required_inputs = required_inputs
        views[name] = objective.views[name](objective.network, batch)
    if objective.accelerator.num_processes > 1:
        views = {name: gather_view(view, count, objective.accelerator) for name, view in views.items()}
    return views


def _record(objective: Objective, views: Mapping[str, View]) -> None:
    """Record the student's logits on the plain view, and where asked for the saliency of its features."""
    recorder = objective.recorder
    if recorder is None:
        return
    view = views["plain"]
    saliency = None
    if recorder.width:
        saliency = current_saliency(objective.network, Output(view.logits, view.features), view.labels, "features")
    recorder.record(view.ids, view.logits, saliency)


def _weighted_sum(terms: Sequence[Term], views: Mapping[str, View]) -> tuple[Tensor, StepLosses]:
    views = {name: select_kept_rows(view) for name, view in views.items()}
    values = [term(views[term.view]) for term in terms]
    total = values[0] if terms[0].weight == 1 else values[0] * terms[0].weight
    for value, term in zip(values[1:], terms[1:], strict=True):
        total = total + value * term.weight
    return total, StepLosses([value.detach() for value in values], [len(views[term.view]) for term in terms])


def _backward(objective: Objective, total: Tensor) -> None:
    if objective.accelerator.scaler is not None:  # float16: the loss is scaled up so that small gradients do not vanish
        objective.accelerator.backward(total)
    else:
        total.backward()  # type: ignore[no-untyped-call]


def _rng_state(device: torch.device) -> Tensor:
    """The state of the generator that dropout draws from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_rng_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
