"""A batch on its way into the student, and a view: what a loss may see of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distilcal.models.network import Mix, Output, Tensors

RowIndices = NDArray[np.int64]
LAMBDA, PAIRS, CROPS = 0, 1, 2  # uses of random numbers in a step


@dataclass(frozen=True)
class StepContext:
    """All rows of one optimiser step and its random numbers.

    A step may be divided into parts (gradient accumulation) and between processes. Whatever is drawn here is drawn for the
    whole step, so the division changes nothing.

    Examples
    --------
    >>> step = StepContext(np.array([4, 2, 7]), seed=(0, 1, 5))
    >>> float(step.rng(LAMBDA).random()) == float(step.rng(LAMBDA).random())
    True
    """

    rows: RowIndices  # (N,) positions in the training set
    seed: tuple[int, ...] = (0,)  # of the run, the epoch and the step
    is_labelled: NDArray[np.bool_] | None = None  # (N,) which rows are; None: all, or it does not matter

    def rng(self, *use: int) -> np.random.Generator:
        """Return a new generator for one use of random numbers in this step."""
        return np.random.default_rng([*self.seed, *use])


class RunTeacher(Protocol):
    """A teacher that can be run on any inputs: returns ``teacher_logits`` and ``teacher_features``."""

    def __call__(self, inputs: Tensors, mix: Mix | None = None) -> dict[str, Tensor]: ...


class LoadRows(Protocol):
    """A function that loads any rows of the training set; ``seed`` decides how images are cropped."""

    def __call__(self, rows: RowIndices, seed: int, with_teacher: bool) -> Batch: ...


@dataclass
class Batch:
    """Examples on their way into the student, and what is known about them.

    A batch is the whole of a step, or the part of it that this process works on.

    Examples
    --------
    >>> labels = torch.tensor([0, 1])
    >>> batch = Batch({"vectors": torch.zeros(2, 3)}, labels, targets=labels, ids=torch.tensor([8, 3]))
    >>> batch.rows.tolist(), batch.select(torch.tensor([1])).rows.tolist()
    ([8, 3], [3])
    """

    inputs: Tensors  # what the network reads, by name
    labels: Tensor  # (N,) -1: unlabelled
    targets: Tensor  # (N,) labels, or (N, K) distributions
    ids: Tensor  # (N,) positions in the training set
    teacher_logits: Tensor | None = None  # (N, K) NaN: unknown to the teacher
    teacher_features: Tensor | None = None  # (N, …) likewise
    # What views that mix examples need beside.
    step: StepContext = None  # type: ignore[assignment]  # default: the batch is the whole step
    positions: RowIndices = None  # type: ignore[assignment]  # (N,) of these examples in the step; default: all, in order
    load_rows: LoadRows | None = None
    run_teacher: RunTeacher | None = None
    required_inputs: frozenset[str] = frozenset()  # fields that the losses of the current view read
    plain_output: Output | None = field(default=None, repr=False)  # of the network on the unchanged batch, once computed

    def __post_init__(self) -> None:
        if self.step is None:
            self.step = StepContext(self.ids.cpu().numpy())
        if self.positions is None:
            self.positions = np.arange(len(self.labels))

    @property
    def rows(self) -> RowIndices:
        """Positions in the training set (N,), as ``ids``."""
        return self.step.rows[self.positions]

    def run_plain(self, network: Callable[[Tensors], Output]) -> Output:
        """Return the network's output on the unchanged batch: computed once, shared by all views."""
        if self.plain_output is None:
            self.plain_output = network(self.inputs)
        return self.plain_output

    def select(self, index: Tensor) -> Batch:
        """Return the examples at the given positions of the batch, in that order."""

        def select_rows(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.index_select(0, index)

        labels = self.labels.index_select(0, index)
        return Batch(
            inputs={name: value.index_select(0, index) for name, value in self.inputs.items()},
            labels=labels,
            targets=labels if self.targets is self.labels else self.targets.index_select(0, index),
            ids=self.ids.index_select(0, index),
            teacher_logits=select_rows(self.teacher_logits),
            teacher_features=select_rows(self.teacher_features),
            step=self.step,
            positions=self.positions[index.cpu().numpy()],
        )


@dataclass
class View:
    """What a loss may see, under the names of the losses' arguments.

    Examples
    --------
    >>> labels = torch.tensor([0, 1])
    >>> view = View(torch.zeros(2, 3), torch.zeros(2, 5), labels, labels, ids=torch.tensor([8, 3]))
    >>> len(view)
    2
    """

    logits: Tensor  # (N, K)
    features: Tensor  # (N, …)
    labels: Tensor  # (N,) -1: unlabelled; of a mixed example also if its partner is
    targets: Tensor  # (N,) labels, or (N, K) distributions; of unlabelled rows no loss sees them
    ids: Tensor  # (N,) positions in the training set
    teacher_logits: Tensor | None = None  # (N, K) NaN: unknown to the teacher
    teacher_features: Tensor | None = None  # (N, …) likewise
    keep: Tensor | None = None  # (N,) True for rows that count; None: all

    def __len__(self) -> int:
        return len(self.logits)


VIEW_FIELDS = tuple(f.name for f in fields(View) if f.name != "keep")  # what a loss may name as an argument
ViewMaker = Callable[[Any, Batch], View]


def plain(network: Callable[[Tensors], Output], batch: Batch) -> View:
    """Return the view of the unchanged batch.

    Parameters
    ----------
    network : callable
        The student: inputs by name to an `Output`.
    batch : Batch
        The examples.

    Returns
    -------
    View
        Logits and features of the batch with its labels, targets, ids and teacher outputs.
    """
    output = batch.run_plain(network)
    return View(
        logits=output.logits,
        features=output.features,
        labels=batch.labels,
        targets=batch.targets,
        ids=batch.ids,
        teacher_logits=batch.teacher_logits,
        teacher_features=batch.teacher_features,
    )


def concatenate_views(views: Iterable[View]) -> View:
    """Concatenate the views of the parts of a batch.

    Parameters
    ----------
    views : iterable of View
        At least one view; all have the same fields.

    Returns
    -------
    View
        The rows of all parts, in order.

    Examples
    --------
    >>> rows = torch.tensor([0, 1])
    >>> view = View(torch.zeros(2, 3), torch.zeros(2, 5), rows, rows, ids=rows)
    >>> len(concatenate_views([view, view]))
    4
    """
    parts = list(views)
    columns: dict[str, Any] = {}
    for name in (*VIEW_FIELDS, "keep"):
        values = [getattr(part, name) for part in parts]
        columns[name] = None if values[0] is None else torch.cat(values)
    return View(**columns)


def select_kept_rows(view: View, *, labelled: bool = False, known: Iterable[str] = ()) -> View:
    """Return the view of only the rows that count for a loss.

    Parameters
    ----------
    view : View
        A view of N rows.
    labelled : bool, default False
        Whether to leave out unlabelled rows, those whose label is -1.
    known : iterable of str
        Fields with a teacher's outputs; rows that it does not know, where they are NaN, are left out.

    Returns
    -------
    View
        The rows where ``keep`` is True and that have what is asked for, without ``keep``; the same view if nothing is left out
        by ``keep`` or asked for.

    Examples
    --------
    >>> labels = torch.tensor([-1, 1])
    >>> view = View(torch.zeros(2, 3), torch.zeros(2, 5), labels, labels, ids=torch.tensor([4, 7]))
    >>> select_kept_rows(view).ids.tolist(), select_kept_rows(view, labelled=True).ids.tolist()
    ([4, 7], [7])
    """
    masks = [] if view.keep is None else [view.keep]
    if labelled:
        masks.append(view.labels >= 0)
    masks += [~getattr(view, name).flatten(1)[:, 0].isnan() for name in known]
    if not masks:
        return view
    rows = torch.stack(masks).all(dim=0).nonzero().squeeze(1)
    columns: dict[str, Any] = {}
    for name in VIEW_FIELDS:
        value = getattr(view, name)
        columns[name] = None if value is None else value.index_select(0, rows)
    return View(**columns)
