"""What a Trainer minimises: terms by name, matched with its data and a teacher, and the rows of a batch that count for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from distilcal.config.schema import TermSettings
from distilcal.errors import InputError
from distilcal.integrations.transformers.data import LABELS, read_column
from distilcal.integrations.transformers.teachers import CachedTeacher, ModelTeacher
from distilcal.io.folders import digest
from distilcal.losses import required_inputs
from distilcal.losses.memory import MEMORY_LOSSES
from distilcal.models.text import last_linear
from distilcal.views import Term, View, build_term, select_kept_rows

IGNORED = -100  # the label that Trainer does not count as an item

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


# ---- the training data -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingRows:
    """What is known about the rows of a Trainer's training data before it trains.

    Attributes
    ----------
    count : int or None
        Number N of rows; None: a stream.
    ids : array of str, shape (N,), or None
        Their ids, each once; None: there are none.
    labels : array of int, shape (N,), or None
        Class indices, negative for unlabelled rows; None: they cannot be read at once, or are no class indices.
    """

    count: int | None
    ids: NDArray[np.str_] | None
    labels: NDArray[Any] | None

    @property
    def is_labelled(self) -> NDArray[np.bool_] | None:
        """Which rows have a label (N,)."""
        return None if self.labels is None else self.labels >= 0


def read_rows(dataset: Any, ids: str | ArrayLike, label_names: Sequence[str]) -> TrainingRows:
    """Read ids and labels of training data.

    Parameters
    ----------
    dataset : dataset
        The ``train_dataset`` of a Trainer.
    ids : str or array of str, shape (N,)
        The column of ids, or the ids.
    label_names : sequence of str
        Names that the column of labels may have beside the usual ones.

    Returns
    -------
    TrainingRows

    Raises
    ------
    InputError
        If there are not as many ids as rows, or two rows have one.

    Examples
    --------
    >>> rows = read_rows([{"id": "a", "label": 1}, {"id": "b", "label": -1}], "id", [])
    >>> rows.ids.tolist(), rows.is_labelled.tolist()
    (['a', 'b'], [True, False])
    """
    count = len(dataset) if hasattr(dataset, "__len__") else None
    labels = read_column(dataset, (*label_names, *LABELS))
    if labels is not None and (labels.ndim != 1 or labels.dtype.kind not in "iub"):
        labels = None
    if labels is not None:
        is_wrong = (labels < -1) & (labels != IGNORED)  # the number of classes is known with the first logits only
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise InputError(
                f"label {labels[row]} is no class",
                source="train_dataset",
                row=row,
                remedy=f"give -1 or {IGNORED} for an unlabelled example",
            )
    values = read_column(dataset, [ids]) if isinstance(ids, str) else np.asarray(ids)
    if values is None:
        return TrainingRows(count, None, labels)
    if values.shape != (count,):
        raise InputError(f"ids of shape {values.shape} for {count} training examples", remedy="give each example one id")
    names = values.astype(str)
    unique, counts = np.unique(names, return_counts=True)
    if len(unique) < len(names):
        raise InputError(
            f"two examples of train_dataset have the id {str(unique[counts > 1][0])!r}", remedy="give every example a unique id"
        )
    return TrainingRows(count, names, labels)


# ---- terms, teacher and data together ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparedObjective:
    """Terms that are built for the training data, with the teacher.

    Attributes
    ----------
    terms : list of Term
        What is minimised.
    teacher : CachedTeacher, ModelTeacher or None
        Where the teacher's outputs come from.
    positions : Tensor or None, shape (N,)
        The position of each row among the labelled ones, which alone are in the memories of losses; None: all rows are.
    key : str
        A hash of terms and ids: a saved memory belongs to it.
    """

    terms: list[Term]
    teacher: CachedTeacher | ModelTeacher | None
    positions: Tensor | None
    key: str

    @property
    def unknown(self) -> dict[str, Tensor]:
        """Which rows the teacher does not know (N,), for those of its outputs that lack some."""
        return {} if self.teacher is None else self.teacher.unknown

    @property
    def needs_rows(self) -> bool:
        """Whether a batch must have the row numbers of its examples."""
        return isinstance(self.teacher, CachedTeacher) or any("ids" in term.inputs for term in self.terms)

    @property
    def needs_features(self) -> bool:
        """Whether a term reads the features of the student."""
        return any("features" in term.inputs for term in self.terms)

    @property
    def loss_modules(self) -> list[Any]:
        """The losses that have a memory."""
        return [term.loss for term in self.terms if isinstance(term.loss, nn.Module)]

    @property
    def log_names(self) -> list[str]:
        """A name for the value of each term in the log."""
        names = [f"loss_{term.name}" for term in self.terms]
        return [name if names.count(name) == 1 else f"{name}_{names[:i].count(name) + 1}" for i, name in enumerate(names)]

    def counting_rows(self, term: Term, labels: Tensor | None, rows: Tensor | None, count: int) -> Tensor:
        """Return which rows of a batch of ``count`` examples count for a term, a mask (count,) on the CPU."""
        counting = torch.ones(count, dtype=torch.bool)
        if term.needs_labels:
            counting = torch.zeros_like(counting) if labels is None else (labels >= 0).cpu()
        for name, unknown in self.unknown.items():
            if name in term.inputs:
                assert rows is not None
                counting = counting & ~unknown[rows.cpu()]
        return counting

    def memory_positions(self, rows: Tensor | None, count: int, device: torch.device) -> Tensor:
        """Return where the memories of losses have the rows of a batch; any numbers if there is no memory."""
        if rows is None:
            return torch.arange(count, device=device)
        return rows if self.positions is None else self.positions[rows.cpu()].to(device)


def prepare_objective(
    terms: Sequence[Term | TermSettings],
    teacher: CachedTeacher | ModelTeacher | None,
    rows: TrainingRows,
    model: nn.Module,
    *,
    seed: int,
) -> PreparedObjective:
    """Build the terms for a model and its training data, and check that each of them has what it reads.

    Parameters
    ----------
    terms : sequence of Term or TermSettings
        From `parse_terms`.
    teacher : CachedTeacher, ModelTeacher or None
        From `build_teacher`.
    rows : TrainingRows
        From `read_rows`.
    model : Module
        The model to train.
    seed : int
        Of the parameters of losses.

    Returns
    -------
    PreparedObjective

    Raises
    ------
    InputError
        If a loss or setting does not exist, if a term lacks a teacher's output, or if a row takes part in no term.
    """
    needs_context = any(not isinstance(term, Term) and term.loss in MEMORY_LOSSES for term in terms)
    context = _loss_context(teacher, rows, model) if needs_context else {}
    built = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for term in terms:
            if not isinstance(term, Term):
                _check_teacher_has(MEMORY_LOSSES.get(term.loss), term.loss, teacher)
                term = build_term(term.loss, term.weight, settings=term.settings, context=context, path="terms")
            _check_teacher_has(term.loss, term.name, teacher)
            built.append(term)
    is_labelled = rows.is_labelled
    described = [[term.name, term.weight, dict(term.settings)] for term in built]
    prepared = PreparedObjective(
        terms=built,
        teacher=teacher,
        positions=None if is_labelled is None else torch.from_numpy(is_labelled.cumsum() - 1),
        key=digest([described, None if rows.ids is None else rows.ids.tolist()]),
    )
    if is_labelled is not None:
        _check_rows_are_used(prepared, is_labelled)
    return prepared


def _loss_context(teacher: CachedTeacher | ModelTeacher | None, rows: TrainingRows, model: nn.Module) -> dict[str, Any]:
    """What losses with a memory are built from, as far as data and models have it."""
    if rows.count is None:
        raise InputError(
            "the training data is a stream, whose examples cannot be remembered by losses with a memory",
            remedy="give a train_dataset with a length, or leave out " + ", ".join(MEMORY_LOSSES),
        )
    head = last_linear(model)[1]
    context: dict[str, Any] = {"n_data": rows.count, "classes": head.out_features, "features": head.in_features}
    if rows.labels is not None:
        class_labels(torch.from_numpy(rows.labels), head.out_features)
        labels = rows.labels[rows.is_labelled]
        context |= {"n_data": len(labels), "labels": torch.from_numpy(labels)}
    if teacher is not None and "teacher_features" in teacher.outputs:
        context["teacher_features"] = teacher.feature_width
    return context


def _check_teacher_has(loss: Any, name: str, teacher: CachedTeacher | ModelTeacher | None) -> None:
    available = frozenset() if teacher is None else teacher.outputs
    missing = [] if loss is None else [i for i in required_inputs(loss) if i.startswith("teacher_") and i not in available]
    if missing:
        given = "teacher_features=, or a model as teacher" if missing[0] == "teacher_features" else "teacher="
        raise InputError(f"{name} needs {missing[0]}", remedy=f"pass {given}, or leave it out")


def _check_rows_are_used(prepared: PreparedObjective, is_labelled: NDArray[np.bool_]) -> None:
    unknown = {name: rows.numpy() for name, rows in prepared.unknown.items()}
    counting = [term.counting_rows(is_labelled, unknown) for term in prepared.terms]
    if any(rows is None for rows in counting):
        return
    unused = ~np.any(counting, axis=0)  # type: ignore[arg-type]
    if unused.any():
        raise InputError(
            f"{int(unused.sum())} of the {len(unused)} rows take part in no term: they lack a label or a teacher's output",
            source="train_dataset",
            row=int(unused.argmax()),
            remedy="add what is missing, or leave those rows out of the data",
        )


# ---- batches -----------------------------------------------------------------------------------------------------------


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


def class_labels(labels: Tensor, classes: int) -> Tensor:
    """Return the labels of a batch if they are class indices.

    Parameters
    ----------
    labels : Tensor of int, shape (N,)
        Class indices; -1 or -100: unlabelled.
    classes : int
        How many classes the model has.

    Returns
    -------
    Tensor of int, shape (N,)

    Raises
    ------
    InputError
        If they are anything else, such as the several labels of a multi-label problem, or no class of the model.
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise InputError(
            f"labels of shape {tuple(labels.shape)} and type {labels.dtype}",
            remedy="give each example one class index; only classifiers can be trained",
        )
    is_valid = (labels >= -1) & (labels < classes) | (labels == IGNORED)
    if not bool(is_valid.all()):
        raise InputError(
            f"label {int(labels[~is_valid][0])} is no class of the model, which has {classes}",
            remedy=f"give 0 to {classes - 1}, or -1 or {IGNORED} for an unlabelled example",
        )
    return labels
