"""A batch on its way into the student, and a view: what a loss may see of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distilcal.models.base import Mix, Output, Tensors

Rows = NDArray[np.int64]
LAMBDA, PAIRS, CROPS = 0, 1, 2  # uses of random numbers in a step


@dataclass(frozen=True)
class Draws:
    """The whole batch of a step, of all parts and processes, and its random numbers: the same however it is cut."""

    rows: Rows  # positions in the training set
    seed: tuple[int, ...] = (0,)  # of the run, the epoch and the step

    def rng(self, *use: int) -> np.random.Generator:
        return np.random.default_rng([*self.seed, *use])


class Asked(Protocol):
    """A teacher that is run on the inputs it is given."""

    def __call__(self, inputs: Tensors, mix: Mix | None = None) -> dict[str, Tensor]: ...


@dataclass
class Batch:
    """Examples on their way into the student, and what is known about them."""

    inputs: Tensors
    labels: Tensor  # (N,)
    targets: Tensor  # (N,) labels, or (N, K) distributions
    ids: Tensor  # (N,) positions in the training set
    teacher_logits: Tensor | None = None
    teacher_features: Tensor | None = None
    # What views that mix need beside: who else is in this step, and how to get at any example and at a live teacher.
    draws: Draws = None  # type: ignore[assignment]  # of the step; not given: the batch is all of it
    place: Rows = None  # type: ignore[assignment]  # (N,) where these examples stand in the step
    fetch: Callable[[Rows, int, bool], Batch] | None = None  # rows, a seed for crops, whether the teacher is asked
    ask: Asked | None = None
    wanted: frozenset[str] = frozenset()  # what the losses of the view that is made now look at
    said: Output | None = field(default=None, repr=False)  # of the plain pass, once somebody needed it

    def __post_init__(self) -> None:
        if self.draws is None:
            self.draws = Draws(self.ids.cpu().numpy())
        if self.place is None:
            self.place = np.arange(len(self.labels))

    @property
    def rows(self) -> Rows:
        """Positions in the training set, as ``ids``."""
        return self.draws.rows[self.place]

    def plain(self, network: Callable[[Tensors], Output]) -> Output:
        """What the student says about the batch as it stands: computed once, shared by all views."""
        if self.said is None:
            self.said = network(self.inputs)
        return self.said

    def taken(self, index: Tensor) -> Batch:
        """The examples at these places of the batch, in that order."""

        def at(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.index_select(0, index)

        inputs = {name: value.index_select(0, index) for name, value in self.inputs.items()}
        labels, ids = self.labels.index_select(0, index), self.ids.index_select(0, index)
        targets = labels if self.targets is self.labels else self.targets.index_select(0, index)
        place = self.place[index.cpu().numpy()]
        return Batch(inputs, labels, targets, ids, at(self.teacher_logits), at(self.teacher_features), self.draws, place)


@dataclass
class View:
    """What a loss may see, under the names that losses ask for."""

    logits: Tensor  # (N, K)
    features: Tensor  # (N, …)
    labels: Tensor
    targets: Tensor
    ids: Tensor
    teacher_logits: Tensor | None = None
    teacher_features: Tensor | None = None
    keep: Tensor | None = None  # (N,) True for rows that count; None: all

    def __len__(self) -> int:
        return len(self.logits)


SEEN = tuple(f.name for f in fields(View) if f.name != "keep")
ViewMaker = Callable[[Any, Batch], View]


def plain(network: Callable[[Tensors], Output], batch: Batch) -> View:
    """The batch as it stands."""
    said = batch.plain(network)
    return View(
        said.logits, said.features, batch.labels, batch.targets, batch.ids, batch.teacher_logits, batch.teacher_features
    )


def joined(views: Iterable[View]) -> View:
    """Parts of a batch as one."""
    parts = list(views)
    values: dict[str, list[Any]] = {name: [getattr(p, name) for p in parts] for name in (*SEEN, "keep")}
    whole: dict[str, Any] = {name: None if v[0] is None else torch.cat(v) for name, v in values.items()}
    return View(**whole)


def kept(view: View) -> View:
    """Only the rows that count."""
    if view.keep is None:
        return view
    rows = view.keep.nonzero().squeeze(1)
    values: Mapping[str, Tensor | None] = {name: getattr(view, name) for name in SEEN}
    return View(**{name: None if v is None else v.index_select(0, rows) for name, v in values.items()})  # type: ignore[arg-type]
