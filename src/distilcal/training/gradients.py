"""The gradient of one step: forward passes of all views, the weighted sum of losses, and backward.

A step's batch can be divided into parts (gradient accumulation) and between processes; the gradient stays that of the whole
batch, whatever the loss. A loss that needs labels sees the labelled rows of a view only, and one that needs a teacher the rows
that the teacher knows; its value is the mean over those, and 0 where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distilcal.dynamics import Recorder
from distilcal.models.network import Output
from distilcal.training.batches import BatchSource
from distilcal.training.distributed import gather_view, own_part
from distilcal.views import Batch, StepContext, Term, View, concatenate_views, plain, select_kept_rows
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
        """Whether the losses of a batch are means of the losses of its parts, weighted by numbers that are known before.

        They are not if a loss looks at the batch as a whole, nor if a view drops rows: the parts then keep different numbers.
        Which rows are mixed with unlabelled ones, or with ones that the teacher does not know, is not known before either.
        """
        drops_rows = any(getattr(self.views[name], "drops_rows", False) for name in self.required_inputs)
        counts_are_known = all(
            rows is None or self.views[term.view] is plain for term, rows in zip(self.terms, self.counting_rows, strict=True)
        )
        return all(term.by_example for term in self.terms) and not drops_rows and counts_are_known

    @cached_property
    def counting_rows(self) -> list[NDArray[np.bool_] | None]:
        """For each term, which rows of the training data count for its loss (N,); None: all of them."""
        return [term.counting_rows(self.source.train.is_labelled, self.source.unknown) for term in self.terms]

    def views_of_terms(self, views: Mapping[str, View]) -> list[View]:
        """For each term, the rows of its view that count for its loss; terms for which the same rows count share them."""
        selected: dict[tuple[str, bool, tuple[str, ...]], View] = {}
        for_terms = []
        for term in self.terms:
            needs_labels = term.needs_labels and self.source.is_partly_labelled
            known = tuple(name for name in term.inputs if name in self.source.unknown)
            key = (term.view, needs_labels, known)
            if key not in selected:
                selected[key] = select_kept_rows(views[term.view], labelled=needs_labels, known=known)
            for_terms.append(selected[key])
        return for_terms


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
    objective: Objective,
    step: StepContext,
    positions: RowIndices,
    augment: torch.Generator,
    shares: Sequence[float] | None = None,
) -> StepLosses:
    """Forward, losses and backward of some rows of a step; the gradient of each term is multiplied by its share."""
    batch = _build_batch(objective, step, positions, augment)
    views = _forward_views(objective, batch, len(positions))
    _record(objective, views)
    if shares is None or len(set(shares)) == 1:
        total, losses = _weighted_sum(objective, views)
        _backward(objective, total if shares is None else total * shares[0])
    else:
        total, losses = _weighted_sum(objective, views, shares)
        _backward(objective, total)
    return losses


def _add_gradient_by_parts(
    objective: Objective, step: StepContext, parts: Sequence[RowIndices], augment: torch.Generator
) -> StepLosses:
    """The usual gradient accumulation: each part counts by its share of the rows that count for a term."""
    values = [torch.zeros((), device=objective.source.device) for _ in objective.terms]
    counts = _count_rows(objective, step.rows)
    for number, part in enumerate(parts):
        part_counts = _count_rows(objective, step.rows[part])
        shares = [count / max(total, 1) for count, total in zip(part_counts, counts, strict=True)]
        is_last = number + 1 == len(parts)
        # Processes exchange gradients once a step, with the last part.
        with nullcontext() if is_last else objective.accelerator.no_sync(objective.network):
            losses = _add_gradient_of_part(objective, step, part, augment, shares)
        values = [total + value * share for total, value, share in zip(values, losses.values, shares, strict=True)]
    return StepLosses(values, counts)


def _count_rows(objective: Objective, rows: RowIndices) -> list[int]:
    """How many of these rows of the training data count for each term."""
    return [len(rows) if counting is None else int(counting[rows].sum()) for counting in objective.counting_rows]


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
    total, losses = _weighted_sum(objective, views)
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
    """Record the student's logits on the labelled rows of the plain view, and where asked for the saliency of its features."""
    recorder = objective.recorder
    if recorder is None:
        return
    view = select_kept_rows(views["plain"], labelled=objective.source.is_partly_labelled)
    saliency = None
    if recorder.width:
        saliency = current_saliency(objective.network, Output(view.logits, view.features), view.labels, "features")
    recorder.record(view.ids, view.logits, saliency)


def _weighted_sum(
    objective: Objective, views: Mapping[str, View], shares: Sequence[float] | None = None
) -> tuple[Tensor, StepLosses]:
    """The weighted sum of the terms, each multiplied by its share, and the value of each without weight and share."""
    terms = objective.terms
    factors = [term.weight for term in terms]
    if shares is not None:
        factors = [factor * share for factor, share in zip(factors, shares, strict=True)]
    views_of_terms = objective.views_of_terms(views)
    values = [term(view) for term, view in zip(terms, views_of_terms, strict=True)]
    total = values[0] if factors[0] == 1 else values[0] * factors[0]
    for value, factor in zip(values[1:], factors[1:], strict=True):
        total = total + value * factor
    return total, StepLosses([value.detach() for value in values], [len(view) for view in views_of_terms])


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
