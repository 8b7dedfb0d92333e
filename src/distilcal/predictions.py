"""Predictions: what a classifier said about a set of examples, and what was true.

Everything before a model makes Predictions, everything after reads them. They are NumPy arrays behind one validated, frozen
dataclass; files are read and written by ``distilcal.io.predictions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilcal.errors import InputError, list_names

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ROW_SUM_TOLERANCE = 1e-3  # probabilities printed with few digits pass, percentages and logits do not
LARGEST_LOGIT = 1e150  # beyond, the difference of two logits may overflow
BLOCK_ENTRIES = 1 << 16  # softmax works on blocks of rows that stay in the processor's cache


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits (N, K), labels (N,), and what names them.

    ``labels`` are class indices, or class names when ``classes`` is given. ``ids`` tie rows of two sets together; without
    them rows can only be matched by position. ``label_probs`` (N, K) holds human label distributions. Probabilities enter
    through :meth:`from_probs` only: a unit is never guessed from values.

    >>> p = Predictions([[2.0, 0.0], [0.0, 1.0]], ["cat", "cat"], classes=["cat", "dog"], name="dev")
    >>> p
    Predictions('dev', 2 rows, 2 classes)
    >>> p.predicted.tolist(), p.confidence.round(3).tolist()
    ([0, 1], [0.881, 0.731])
    """

    logits: NDArray[Any]  # (N, K) float32 or float64; -inf only where given_probs is exactly 0
    labels: NDArray[Any]  # (N,) int64
    ids: NDArray[np.str_] | None = None  # (N,) unique
    classes: tuple[str, ...] = ()  # None or empty: "0", "1", …
    label_probs: FloatArray | None = None  # (N, K) human votes
    name: str = "predictions"
    given_probs: FloatArray | None = field(default=None, repr=False, kw_only=True)  # (N, K) as the user gave them
    confidence_only: bool = field(default=False, kw_only=True)  # made by from_confidences: only top-label figures mean anything

    def __post_init__(self) -> None:
        logits = _matrix(self.logits, "logits")
        if logits.dtype not in (np.float32, np.float64):
            logits = logits.astype(np.float32 if logits.dtype == np.float16 else np.float64)
        n, k = logits.shape
        if n == 0:
            raise InputError("there are no rows", remedy="give at least one prediction")
        if k < 2:
            raise InputError("there is only one class", remedy="give one column per class; a binary classifier has two")
        if self.given_probs is None and not (float(logits.min()) >= -LARGEST_LOGIT and float(logits.max()) <= LARGEST_LOGIT):
            fine = np.abs(logits.astype(np.float64)) <= LARGEST_LOGIT  # false for NaN
            row = _first(~fine.all(axis=1))
            raise InputError(
                f"a logit is {logits[row][~fine[row]][0]:g}",
                row=row,
                remedy="give finite logits, or probabilities where a class cannot happen",
            )
        classes = tuple(str(c) for c in self.classes or ()) or tuple(str(c) for c in range(k))
        if len(classes) != k:
            raise InputError(f"{len(classes)} class names for {k} columns", remedy="give one name per column")
        for c in classes:
            if not c.strip() or c.encode("utf-8", "replace").decode() != c:
                raise InputError(f"{c!r} is no name for a class", remedy="give every class a name in readable text")
        if len(set(classes)) != k:
            repeated = next(c for c in classes if classes.count(c) > 1)
            raise InputError(f"class name {repeated!r} stands twice", remedy="give every class a name of its own")
        values: dict[str, Any] = {
            "logits": logits,
            "labels": _label_indices(self.labels, classes, n),
            "ids": None if self.ids is None else _unique_ids(self.ids, n),
            "classes": classes,
            "label_probs": None if self.label_probs is None else _votes(self.label_probs, (n, k)),
            "given_probs": self.given_probs,
        }
        assert self.given_probs is None or self.given_probs.shape == (n, k)
        for key, value in values.items():
            if isinstance(value, np.ndarray):
                value = value.view()  # read-only for us; the caller's own array is neither copied nor locked: do not change it
                value.flags.writeable = False
            object.__setattr__(self, key, value)

    # ---- ways in -------------------------------------------------------------------------------------------------------

    @classmethod
    def from_logits(cls, logits: ArrayLike, labels: ArrayLike, **names: Any) -> Predictions:
        """Predictions from scores before the softmax; half precision is raised to single before anything is computed."""
        return cls(_matrix(logits, "logits"), np.asarray(labels), **names)

    @classmethod
    def from_probs(
        cls, probs: ArrayLike, labels: ArrayLike, *, tolerance: float = ROW_SUM_TOLERANCE, **names: Any
    ) -> Predictions:
        """Predictions from probabilities. Rows must sum to one within ``tolerance`` and are then divided by their sum.

        An exact zero stays an exact zero: its logit is -inf, its probability 0 and the NLL of such a label is infinite.

        >>> Predictions.from_probs([[0.7, 0.3, 0.0]], [0]).probs.tolist()
        [[0.7, 0.3, 0.0]]
        """
        probs = _distributions(probs, tolerance, "probabilities")
        with np.errstate(divide="ignore"):
            logits = np.log(probs)
        return cls(logits, np.asarray(labels), given_probs=probs, **names)

    @classmethod
    def from_confidences(cls, confidence: ArrayLike, correct: ArrayLike, **names: Any) -> Predictions:
        """Predictions from a top-label confidence and whether the prediction was right.

        Column 0 stands for the predicted class; the rest of the probability is spread over as many other classes as keep
        it the largest. Accuracy and every top-label figure are exact, anything about single classes is not known.

        >>> Predictions.from_confidences([0.9, 0.4], [True, False]).confidence.tolist()
        [0.9, 0.4]
        """
        r, right = np.asarray(confidence).ravel(), np.asarray(correct).ravel()
        if len(r) and (r.dtype.kind not in "fiu" or right.dtype.kind not in "fiub"):
            raise InputError("confidences and outcomes are not all numbers", remedy="give fractions, and 1 or 0")
        r = r.astype(np.float64)
        if len(r) == 0:
            raise InputError("there are no rows", remedy="give at least one prediction")
        if len(r) != len(right):
            raise InputError(f"{len(r)} confidences for {len(right)} outcomes", remedy="give one outcome per confidence")
        bad = ~((r >= 0.001) & (r <= 1.0))
        if bad.any():
            raise InputError(
                f"confidence {r[_first(bad)]:g} is not in [0.001, 1]",
                row=_first(bad),
                remedy="give the probability of the predicted class, as a fraction",
            )
        bad = (right != 0) & (right != 1)
        if bad.any():
            raise InputError(
                f"outcome {right[_first(bad)]:g} is neither 0 nor 1", row=_first(bad), remedy="give 1 for right, 0 for wrong"
            )
        others = 1 if r.min() >= 0.5 else int(np.ceil((1 - r.min()) / r.min())) + 1
        probs = np.empty((len(r), others + 1))
        probs[:, 0] = r
        probs[:, 1:] = ((1 - r) / others)[:, None]
        with np.errstate(divide="ignore"):
            logits = np.log(probs)
        classes = ("predicted", *(f"other {i}" for i in range(1, others + 1)))
        labels = np.where(right.astype(bool), 0, 1)
        return cls(logits, labels, given_probs=probs, confidence_only=True, **{"classes": classes, **names})

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Predictions:
        """Read .npz, .csv, .tsv, .jsonl or .parquet; see ``distilcal.io.predictions.read_predictions``."""
        from distilcal.io.predictions import read_predictions

        return read_predictions(path, **options)

    def save(self, path: str | Path) -> None:
        """Write .npz, .csv, .tsv, .jsonl or .parquet, aside first and then renamed."""
        from distilcal.io.predictions import write_predictions

        write_predictions(self, path)

    # ---- what they say -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Predictions({self.name!r}, {len(self):,} rows, {len(self.classes)} classes)"

    @cached_property
    def _softmax(self) -> Softmax:
        return softmax_rows(self.logits, self.labels)

    @cached_property
    def probs(self) -> FloatArray:
        """Probabilities (N, K) in float64: those that were given, else the softmax of the logits."""
        return self._softmax.probs if self.given_probs is None else self.given_probs

    @cached_property
    def row_nll(self) -> FloatArray:
        """Negative log-likelihood of each label (N,); from the logits, so it is finite where a probability underflows."""
        if self.given_probs is None:
            return self._softmax.nll
        nll: FloatArray = np.abs(self.logits[np.arange(len(self)), self.labels]).astype(np.float64)  # abs: -log 1 is 0, not -0
        return nll

    @cached_property
    def row_vote_nll(self) -> FloatArray | None:
        """Cross-entropy of each row's human votes (N,), from the logits; None without votes."""
        if self.label_probs is None:
            return None
        if self.given_probs is None:
            normaliser = self.row_nll + self.logits[np.arange(len(self)), self.labels]  # log Σ exp z
            nll: FloatArray = normaliser - np.einsum("nk,nk->n", self.label_probs, self.logits)
            return nll
        from scipy.special import xlogy

        return np.asarray(-xlogy(self.label_probs, self.given_probs).sum(axis=1))

    @cached_property
    def row_entropy(self) -> FloatArray:
        """Entropy of each predicted distribution in nats (N,), with 0·log 0 = 0."""
        if self.given_probs is None:
            return self._softmax.entropy
        finite = np.maximum(self.logits, -1e300)  # the logarithms are at hand; 0 · log 0 must be 0
        entropy: FloatArray = np.abs(np.einsum("nk,nk->n", self.given_probs, finite))
        return entropy

    @cached_property
    def predicted(self) -> IntArray:
        """Index of the most probable class (N,); the first one wins a tie."""
        return self._softmax.predicted if self.given_probs is None else self.given_probs.argmax(axis=1)

    @cached_property
    def confidence(self) -> FloatArray:
        """Probability of the predicted class (N,)."""
        if self.given_probs is None:
            return self._softmax.confidence
        return self.given_probs[np.arange(len(self)), self.predicted]

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the predicted class is the label (N,)."""
        correct: NDArray[np.bool_] = self.predicted == self.labels
        return correct

    # ---- other views of the same rows ----------------------------------------------------------------------------------

    def select(self, rows: ArrayLike) -> Predictions:
        """The given rows, by index, by mask, or by id when given strings."""
        wanted = np.asarray(rows)
        if not wanted.size:
            raise InputError("no rows are selected", remedy="select at least one")
        if wanted.dtype.kind in "USO":
            wanted = self.rows_of(wanted.astype(str))
        if wanted.dtype == bool and len(wanted) != len(self):
            raise InputError(f"the mask has {len(wanted)} rows, the predictions {len(self)}")

        def pick(values: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if values is None else values[wanted]

        return replace(
            self,
            logits=self.logits[wanted],
            labels=self.labels[wanted],
            ids=pick(self.ids),
            label_probs=pick(self.label_probs),
            given_probs=pick(self.given_probs),
        )

    def rows_of(self, ids: NDArray[np.str_]) -> IntArray:
        """Row index of each id; an id that is not here is an error."""
        if self.ids is None:
            raise InputError(f"{self.name!r} has no ids", remedy="add an id column")
        order = np.argsort(self.ids)
        found: IntArray = order[np.searchsorted(self.ids, ids, sorter=order).clip(max=len(self) - 1)]
        missing = self.ids[found] != ids
        if missing.any():
            raise InputError(f"{self.name!r} has no row with id {str(ids[_first(missing)])!r}", remedy="check the id columns")
        return found

    def split(self, fraction: float, *, seed: int, stratified: bool = True) -> tuple[Predictions, Predictions]:
        """Two disjoint parts, the first with ``round(fraction · N)`` rows, in the original order.

        Stratified, every class is divided in that proportion to within one row.
        """
        if not 0.0 < fraction < 1.0:
            raise InputError(f"fraction {fraction} is not between 0 and 1")
        n = len(self)
        rng = np.random.default_rng(seed)
        key = rng.random(n)
        order = np.lexsort((key, self.labels)) if stratified else np.argsort(key)
        # Systematic sampling along rows sorted by class: exact in all, within one row in each class.
        size = min(max(round(fraction * n), 1), n - 1) if n > 1 else 0
        steps = np.floor(np.arange(n + 1) * size / n + rng.random())
        first = np.zeros(n, dtype=bool)
        first[order[np.diff(steps) > 0]] = True
        if not first.any() or first.all():
            raise InputError(f"{n} rows cannot be split in two", remedy="give at least two")
        return self.select(first), self.select(~first)

    def reorder_classes(self, classes: Sequence[str]) -> Predictions:
        """The same predictions with the columns in the given order, matched by name."""
        wanted = tuple(str(c) for c in classes)
        if wanted == self.classes:
            return self
        if sorted(wanted) != sorted(self.classes):
            raise InputError(
                f"{self.name!r} has classes {list_names(self.classes)}, not {list_names(wanted)}",
                remedy="rename them so that both sets use the same names",
            )
        columns = np.array([self.classes.index(c) for c in wanted])
        return replace(
            self,
            logits=self.logits[:, columns],
            labels=np.argsort(columns)[self.labels],
            classes=wanted,
            label_probs=None if self.label_probs is None else self.label_probs[:, columns],
            given_probs=None if self.given_probs is None else self.given_probs[:, columns],
        )

    def rename(self, name: str) -> Predictions:
        """The same predictions under another name."""
        return replace(self, name=name)

    def with_probs(self, probs: FloatArray) -> Predictions:
        """The same rows with other probabilities, already normalised."""
        with np.errstate(divide="ignore"):
            return replace(self, logits=np.log(probs), given_probs=probs)

    def with_log_probs(self, log_probs: FloatArray) -> Predictions:
        """The same rows with other scores, given as normalised log-probabilities (-inf where a class is impossible)."""
        given = np.exp(log_probs) if np.isneginf(log_probs).any() else None
        return replace(self, logits=log_probs, given_probs=given)


def join(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions]:
    """The rows that two sets share, in the order of ``a``, with the classes of ``a``; labels must agree.

    Rows are matched by id. Where neither set has ids they are matched by position, if length and labels are the same.
    """
    both_bare = a.confidence_only and b.confidence_only  # no classes to match, and a label says only right or wrong
    b = b if both_bare else b.reorder_classes(a.classes)
    if a.ids is not None and b.ids is not None:
        common = np.intersect1d(a.ids, b.ids)
        if not len(common):
            raise InputError(f"{a.name!r} and {b.name!r} share no id", remedy="check that both use the same id column")
        a = a.select(np.isin(a.ids, common))
        assert a.ids is not None
        b = b.select(b.rows_of(a.ids))
    elif a.ids is not None or b.ids is not None:
        raise InputError(f"only one of {a.name!r} and {b.name!r} has ids", remedy="add the same id column to both")
    elif len(a) != len(b):
        raise InputError(
            f"{a.name!r} has {len(a)} rows, {b.name!r} has {len(b)}, and there are no ids to match them by",
            remedy="add an id column to both",
        )
    differ = a.labels != b.labels
    if differ.any() and not both_bare:
        row = _first(differ)
        which = f"id {str(a.ids[row])!r}" if a.ids is not None else f"row {row} (counting from 0)"
        raise InputError(
            f"{a.name!r} and {b.name!r} disagree on the label of {which}: "
            f"{a.classes[a.labels[row]]!r} and {a.classes[b.labels[row]]!r}",
            remedy="both must hold the same examples",
        )
    return a, b


def ensemble(members: Sequence[Predictions], name: str = "ensemble") -> Predictions:
    """The mean of the members' probabilities, on the rows that all of them share."""
    if not members:
        raise InputError("an ensemble needs at least one member")
    if any(member.confidence_only for member in members):
        raise InputError("an ensemble needs class probabilities", remedy="leave out sets that hold confidences only")
    first = members[0]
    for member in members[1:]:
        first, _ = join(first, member)
    aligned = [join(first, member)[1] for member in members]
    mean = np.mean([m.probs for m in aligned], axis=0)
    return Predictions.from_probs(
        mean, first.labels, ids=first.ids, classes=first.classes, label_probs=first.label_probs, name=name
    )


class Softmax(NamedTuple):
    """What one pass over logits gives, all in float64."""

    probs: FloatArray  # (N, K)
    nll: FloatArray  # (N,) of the labels
    entropy: FloatArray  # (N,) in nats
    predicted: IntArray  # (N,) the first largest logit, which a softmax that rounds to a tie cannot tell any more
    confidence: FloatArray  # (N,)


def softmax_rows(logits: NDArray[Any], labels: IntArray) -> Softmax:
    """Softmax and what follows from it, a block of rows at a time."""
    n, k = logits.shape
    narrow = k <= 64  # sums over a short last axis are slow: a few classes are worked on, and kept, class by class
    axis = 0 if narrow else 1
    probs = np.empty((k, n)).T if narrow else np.empty((n, k))
    nll, entropy, confidence = np.empty(n), np.empty(n), np.empty(n)
    predicted = np.zeros(n, np.int64)
    step = max(1, BLOCK_ENTRIES // k)
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        z = np.array(logits[rows].T if narrow else logits[rows], dtype=np.float64, order="C")
        z -= z.max(axis=axis, keepdims=True)
        if narrow:
            for c in range(k - 1, -1, -1):
                predicted[rows][z[c] == 0] = c
        else:
            predicted[rows] = z.argmax(axis=1)
        p = np.exp(z)
        total = p.sum(axis=axis, keepdims=True)
        p /= total
        confidence[rows] = 1.0 / total.ravel()  # the largest shifted logit is 0, its exponential 1
        log_total = np.log(total).ravel()
        if narrow:
            z, p = z.T, p.T
        probs[rows] = p
        nll[rows] = log_total - z[np.arange(len(z)), labels[rows]]
        entropy[rows] = log_total - np.einsum("nk,nk->n", p, z)  # both parts are ≥ 0, so nothing cancels
    found = Softmax(probs, nll, entropy, predicted, confidence)
    for array in found:
        array.flags.writeable = False
    return found


def _first(mask: Any) -> int:
    return int(np.argmax(mask))


def _matrix(values: ArrayLike, what: str) -> NDArray[Any]:
    try:
        matrix = np.asarray(values)
    except ValueError:
        raise InputError(
            f"the rows of the {what} have different lengths", remedy="give one value per class in every row"
        ) from None
    if matrix.ndim != 2:
        raise InputError(f"{what} of shape {matrix.shape} are not a table of rows × classes", remedy="give two dimensions")
    if matrix.dtype.kind not in "fiu":
        raise InputError(f"{what} of type {matrix.dtype} are not numbers", remedy="give real numbers")
    return matrix


def _distributions(values: ArrayLike, tolerance: float, what: str) -> FloatArray:
    matrix = _matrix(values, what).astype(np.float64)
    if matrix.shape[1] < 2:
        raise InputError("there is only one class", remedy="give one column per class; a binary classifier has two")
    if np.isnan(matrix).any():
        raise InputError("nan is not a probability", row=_first(np.isnan(matrix).any(axis=1)), remedy="mend or drop the row")
    bad = ~((matrix >= 0) & (matrix <= 1 + tolerance)).all(axis=1)
    if bad.any():
        row = _first(bad)
        value = matrix[row][~((matrix[row] >= 0) & (matrix[row] <= 1 + tolerance))][0]
        raise InputError(
            f"{value} is not a probability", row=row, remedy="if these are logits, say so; percentages must be divided by 100"
        )
    total = matrix.sum(axis=1)
    bad = np.abs(total - 1) > tolerance
    if bad.any():
        row = _first(bad)
        raise InputError(
            f"{what} sum to {total[row]:.6g}, not to 1 within {tolerance:g}",
            row=row,
            remedy="normalise the rows, or if these are logits, say so",
        )
    # Dividing by a sum that is one but for rounding would only move values off bin edges such as 0.7.
    off = np.abs(total - 1) > 1e-12
    if off.any():
        matrix[off] /= total[off, None]
    return matrix


def _votes(values: ArrayLike, shape: tuple[int, int]) -> FloatArray:
    votes = _distributions(values, ROW_SUM_TOLERANCE, "human label probabilities")
    if votes.shape != shape:
        raise InputError(f"human label probabilities have shape {votes.shape}, the predictions {shape}")
    return votes


def _unique_ids(values: ArrayLike, n: int) -> NDArray[np.str_]:
    ids = np.asarray(values).astype(str)
    if ids.shape != (n,):
        raise InputError(f"{ids.size} ids for {n} rows", remedy="give one id per row")
    ordered = np.sort(ids)
    repeated = ordered[1:] == ordered[:-1]
    if repeated.any():
        twice = ordered[1:][repeated][0]
        row = int(np.flatnonzero(ids == twice)[1])
        raise InputError(
            f"id {str(twice)!r} stands twice", row=row, remedy="ids must be unique: drop or rename the repeated row"
        )
    return ids


def _label_indices(values: ArrayLike, classes: tuple[str, ...], n: int) -> IntArray:
    labels = np.asarray(values)
    if labels.shape != (n,):
        raise InputError(f"{labels.size} labels for {n} rows", remedy="give one label per row")
    if labels.dtype.kind in "USO":
        return labels_from_text(labels.astype(str), classes)
    if labels.dtype.kind == "f":
        odd = ~(np.abs(labels) < 2**53) | (labels != np.floor(labels))
        if odd.any():
            raise InputError(
                f"label {labels[_first(odd)]:g} is no index", row=_first(odd), remedy="give class names or indices"
            )
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "iub":
        raise InputError(f"labels of type {labels.dtype} are neither class names nor indices", remedy="give one of them")
    bad = (labels < 0) | (labels >= len(classes))
    if bad.any():
        raise InputError(
            f"label {labels[_first(bad)]} is not between 0 and {len(classes) - 1}",
            row=_first(bad),
            remedy=f"there are {len(classes)} classes: {list_names(classes)}",
        )
    return labels.astype(np.int64, copy=False)


def labels_from_text(labels: NDArray[np.str_], classes: tuple[str, ...]) -> IntArray:
    """Class indices of labels written as text: all of them class names, or else all of them indices."""
    distinct, inverse = np.unique(labels, return_inverse=True)
    by_name = {c: i for i, c in enumerate(classes)}
    # Where class names are numbers themselves, a number is a name: it cannot be told from an index.
    numbered = any(c.lstrip("-").isdigit() for c in classes) and set(classes) != {str(i) for i in range(len(classes))}
    by_index = {} if numbered else {str(i): i for i in range(len(classes))}
    # Names are tried first. A set that mixes names and indices is refused.
    for known in (by_name, by_index):
        if all(str(d) in known for d in distinct):
            return np.array([known[str(d)] for d in distinct], dtype=np.int64)[inverse]
    named = numbered or any(str(d) in by_name for d in distinct)
    known = by_name if named else by_index
    unknown = next(d for d in distinct if str(d) not in known)
    row = _first(labels == unknown)
    kind = "a class name" if named else "a class name or an index"
    raise InputError(f"label {str(unknown)!r} is not {kind}", row=row, remedy=f"the classes are {list_names(classes)}")
