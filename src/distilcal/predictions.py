"""Predictions: what a classifier predicted for a set of examples, and their labels as far as they are known.

Everything before a model makes Predictions, everything after reads them. They are NumPy arrays behind one validated, frozen
dataclass; files are read and written by ``distilcal.io.predictions``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilcal.arguments import checked
from distilcal.errors import InputError, list_names
from distilcal.softmax import FloatArray as FloatArray
from distilcal.softmax import IntArray as IntArray
from distilcal.softmax import Softmax, softmax_rows

ROW_SUM_TOLERANCE = 1e-3  # probabilities printed with few digits pass, percentages and logits do not
ROUNDING = 1e-12  # a row sum that is this near to one is one but for rounding
LARGEST_LOGIT = 1e150  # beyond, the difference of two logits may overflow
SMALLEST_CONFIDENCE = 0.001
UNKNOWN = -1  # in place of the class index of a row without a label
LONGEST_ID = 10_000  # characters
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character
NO_LABELS: Any = None


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits, labels, ids and class names of a set of examples.

    Probabilities enter through :meth:`from_probs`: a unit is never guessed from values.
    The arrays are read-only views; the caller's own arrays are neither copied nor locked, so do not change them.

    Parameters
    ----------
    logits : array, shape (N, K)
        Scores before the softmax, in float32 or float64; other types are converted. Columns of a DataFrame, here and in
        ``label_probs``, are matched with ``classes`` by name, or name the classes themselves.
    labels : array of int or str, shape (N,), optional
        Class indices, or class names when ``classes`` is given. The label of a row with -1, None or an empty name is unknown.
        True and False are names where the classes are called so, else 1 and 0.
        Without labels, they are the most probable classes of ``label_probs`` if those are given, and unknown otherwise.
        Everything that measures or fits refuses rows whose label is unknown.
    ids : array of str, shape (N,), optional
        Unique ids, which match the rows of two sets. Without them rows can only be matched by position.
    classes : sequence of str, optional
        Names of the columns. By default "0", "1", …
    label_probs : array, shape (N, K), optional
        Human label distributions.
    name : str
        Name of the set, for messages, tables and files.
    given_probs : array, shape (N, K), optional
        Set by :meth:`from_probs`: the probabilities as they were given. A logit is -inf only where they are exactly 0.
    confidence_only : bool
        Set by :meth:`from_confidences`: only metrics of the predicted class have a meaning.

    Raises
    ------
    InputError
        If a value is invalid or the parts do not fit together, with the row.

    Examples
    --------
    >>> p = Predictions([[2.0, 0.0], [0.0, 1.0]], ["cat", "cat"], classes=["cat", "dog"], name="dev")
    >>> p
    Predictions('dev', 2 rows, 2 classes)
    >>> p.predicted.tolist(), p.confidence.round(3).tolist()
    ([0, 1], [0.881, 0.731])
    >>> Predictions([[2.0, 0.0]], name="answers")
    Predictions('answers', 1 rows, 2 classes, no labels)
    """

    logits: NDArray[Any]
    labels: NDArray[Any] = NO_LABELS  # an array (N,) as soon as it is checked, UNKNOWN where there is no label
    ids: NDArray[np.str_] | None = None
    classes: tuple[str, ...] = ()
    label_probs: FloatArray | None = None
    name: str = "predictions"
    given_probs: FloatArray | None = field(default=None, repr=False, kw_only=True)
    confidence_only: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        given_logits, given_classes = _match_columns(self.logits, self.classes, "logits")
        logits = _float_logits(given_logits)
        n, k = logits.shape
        if n == 0:
            raise InputError("there are no rows", remedy="give at least one prediction")
        if k < 2:
            raise _one_class()
        if self.given_probs is None:
            _check_finite(logits)
        assert self.given_probs is None or self.given_probs.shape == (n, k)
        classes = _class_names(given_classes, k)
        label_probs = None
        if self.label_probs is not None:
            votes, _ = _match_columns(self.label_probs, classes, "human label probabilities")
            label_probs = label_distributions(votes, (n, k))
        validated: dict[str, Any] = {
            "logits": logits,
            "labels": _labels_or_unknown(self.labels, label_probs, classes, n),
            "ids": None if self.ids is None else _unique_ids(self.ids, n),
            "classes": classes,
            "label_probs": label_probs,
            "given_probs": self.given_probs,
            "name": str(self.name),
        }
        for key, value in validated.items():
            if isinstance(value, np.ndarray):
                value = value.view()
                value.flags.writeable = False
            object.__setattr__(self, key, value)

    # ---- constructors --------------------------------------------------------------------------------------------------

    @classmethod
    def from_logits(cls, logits: ArrayLike, labels: ArrayLike | None = None, **names: Any) -> Predictions:
        """Return predictions from scores before the softmax.

        Parameters
        ----------
        logits : array, shape (N, K)
            Finite scores. Half precision is raised to single before anything is computed.
        labels : array of int or str, shape (N,), optional
            Class indices or names, as for the class.
        **names
            ``ids``, ``classes``, ``label_probs`` and ``name``, as for the class.

        Returns
        -------
        Predictions
            The predictions.

        Examples
        --------
        >>> Predictions.from_logits([[1.0, 2.0, 0.0]], [1]).predicted.tolist()
        [1]
        """
        logits, names["classes"] = _match_columns(logits, names.get("classes"), "logits")
        return cls(_number_matrix(logits, "logits"), cast(Any, labels), **names)

    @classmethod
    @checked
    def from_probs(
        cls, probs: ArrayLike, labels: ArrayLike | None = None, *, tolerance: float = ROW_SUM_TOLERANCE, **names: Any
    ) -> Predictions:
        """Return predictions from probabilities.

        An exact zero stays an exact zero: its logit is -inf, its probability 0 and the NLL of such a label is infinite.

        Parameters
        ----------
        probs : array, shape (N, K)
            Probabilities, whose rows are divided by their sums.
        labels : array of int or str, shape (N,), optional
            Class indices or names, as for the class.
        tolerance : float
            How far a row may be from summing to one.
        **names
            ``ids``, ``classes``, ``label_probs`` and ``name``, as for the class.

        Returns
        -------
        Predictions
            The predictions.

        Examples
        --------
        >>> Predictions.from_probs([[0.7, 0.3, 0.0]], [0]).probs.tolist()
        [[0.7, 0.3, 0.0]]
        """
        probs, names["classes"] = _match_columns(probs, names.get("classes"), "probabilities")
        normalised = _check_distributions(probs, tolerance, "probabilities")
        return cls(_log(normalised), cast(Any, labels), given_probs=normalised, **names)

    @classmethod
    def from_confidences(cls, confidence: ArrayLike, correct: ArrayLike, **names: Any) -> Predictions:
        """Return predictions from a confidence in the predicted class and whether it was right.

        Column 0 stands for the predicted class; the rest of the probability is spread over as many other classes as keep
        it the largest. Accuracy and every metric of the predicted class are exact; nothing is known about single classes.

        Parameters
        ----------
        confidence : array, shape (N,)
            Probability of the predicted class, from 0.001 to 1.
        correct : array of bool, shape (N,)
            Whether the prediction was right.
        **names
            ``ids`` and ``name``, as for the class.

        Returns
        -------
        Predictions
            The predictions, with ``confidence_only`` set.

        Examples
        --------
        >>> Predictions.from_confidences([0.9, 0.4], [True, False]).confidence.tolist()
        [0.9, 0.4]
        """
        confidence, outcome = _check_outcomes(confidence, correct)
        smallest = confidence.min()
        others = 1 if smallest >= 0.5 else int(np.ceil((1 - smallest) / smallest)) + 1
        probs = np.empty((len(confidence), others + 1))
        probs[:, 0] = confidence
        probs[:, 1:] = ((1 - confidence) / others)[:, None]
        classes = ("predicted", *(f"other {i}" for i in range(1, others + 1)))
        labels = np.where(outcome, 0, 1)
        return cls(_log(probs), labels, given_probs=probs, confidence_only=True, **{"classes": classes, **names})

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Predictions:
        """Read a .npz, .csv, .tsv, .jsonl or .parquet file.

        Parameters
        ----------
        path : str or Path
            The file.
        **options
            ``unit``, ``name``, ``tolerance``, ``classes`` and ``labelled`` of ``distilcal.io.predictions.read_predictions``.

        Returns
        -------
        Predictions
            The rows of the file.
        """
        from distilcal.io.predictions import read_predictions

        return read_predictions(path, **options)

    def save(self, path: str | Path, *, escape_formulas: bool = True) -> None:
        """Write a .npz, .csv, .tsv, .jsonl or .parquet file atomically; :meth:`load` reads the same back.

        Parameters
        ----------
        path : str or Path
            The file; its suffix tells the format.
        escape_formulas : bool, default True
            Whether ids and labels in a .csv or .tsv that a spreadsheet would run get an apostrophe before them, which
            :meth:`load` takes away again.
        """
        from distilcal.io.predictions import write_predictions

        write_predictions(self, path, escape_formulas=escape_formulas)

    # ---- results per row -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        known = ""
        if not self.has_labels:
            known = f", {int(self.is_labelled.sum()):,} labels" if self.is_labelled.any() else ", no labels"
        return f"Predictions({self.name!r}, {len(self):,} rows, {len(self.classes)} classes{known})"

    @property
    def is_labelled(self) -> NDArray[np.bool_]:
        """Whether the label of each row is known (N,)."""
        labelled: NDArray[np.bool_] = self.labels != UNKNOWN
        return labelled

    @cached_property
    def has_labels(self) -> bool:
        """Whether the label of every row is known."""
        return bool(self.is_labelled.all())

    def require_labels(self) -> None:
        """Raise an InputError unless the label of every row is known: for what measures, fits or compares.

        Raises
        ------
        InputError
            With the first row that has no label.

        Examples
        --------
        >>> Predictions([[2.0, 0.0]], name="answers").require_labels()
        Traceback (most recent call last):
        distilcal.errors.InputError: 'answers' has no labels; add a label column, or give labels to Predictions
        """
        if self.has_labels:
            return
        if not self.is_labelled.any():
            raise InputError(f"{self.name!r} has no labels", remedy="add a label column, or give labels to Predictions")
        unknown = ~self.is_labelled
        raise InputError(
            f"{int(unknown.sum()):,} of the {len(self):,} rows of {self.name!r} have no label, the first is this one",
            row=_first(unknown),
            remedy="add the missing labels, or leave these rows out: predictions.select(predictions.is_labelled)",
        )

    @cached_property
    def _softmax(self) -> Softmax:
        return softmax_rows(self.logits, self.labels)  # the NLL of a row without a label is read by nobody

    @cached_property
    def probs(self) -> FloatArray:
        """Probabilities (N, K) in float64: those that were given, else the softmax of the logits."""
        return self._softmax.probs if self.given_probs is None else self.given_probs

    @cached_property
    def row_nll(self) -> FloatArray:
        """Negative log-likelihood of each label (N,); from the logits, so it is finite where a probability underflows."""
        self.require_labels()
        if self.given_probs is None:
            return self._softmax.nll
        nll: FloatArray = np.abs(self.logits[np.arange(len(self)), self.labels]).astype(np.float64)  # abs: -log 1 is 0, not -0
        return nll

    @cached_property
    def row_vote_nll(self) -> FloatArray | None:
        """Cross-entropy of each row's human label distribution (N,), from the logits; None without label_probs."""
        if self.label_probs is None:
            return None
        if self.given_probs is None:
            # From the largest logit down: a common offset, or a label whose logit is far below, would swallow the digits.
            below = self.logits.astype(np.float64) - self.logits.max(axis=1, keepdims=True)
            nll: FloatArray = -np.log(self.confidence) - np.einsum("nk,nk->n", self.label_probs, below)
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
    def one_hot(self) -> bool:
        """Whether every row gives probability 1 to one class, as labels that come without a confidence do."""
        return self.given_probs is not None and bool((self.given_probs.max(axis=1) == 1.0).all())

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the predicted class is the label (N,)."""
        self.require_labels()
        correct: NDArray[np.bool_] = self.predicted == self.labels
        return correct

    # ---- the same rows in another form ---------------------------------------------------------------------------------

    def select(self, rows: ArrayLike) -> Predictions:
        """Return predictions with these rows only.

        Parameters
        ----------
        rows : array of int, bool or str
            Indices, a mask, or ids.

        Returns
        -------
        Predictions
            The rows in this order.

        Examples
        --------
        >>> p = Predictions([[1.0, 0.0], [0.0, 1.0]], [0, 1], ids=["a", "b"])
        >>> p.select(["b"]).labels.tolist()
        [1]
        """
        indices = np.asarray(rows)
        if not indices.size:
            raise InputError("no rows are selected", remedy="select at least one")
        if indices.ndim != 1 or indices.dtype.kind not in "USObiu":
            raise InputError(
                f"rows of type {indices.dtype} and shape {indices.shape}", remedy="give a list of indices, a mask, or ids"
            )
        if indices.dtype.kind in "USO":
            indices = self.rows_of(text_array(indices, "id"))
        if indices.dtype == bool and len(indices) != len(self):
            raise InputError(f"the mask has {len(indices)} rows, the predictions {len(self)}")
        if indices.dtype != bool and not (-len(self) <= int(indices.min()) and int(indices.max()) < len(self)):
            raise InputError(
                f"rows from {indices.min()} to {indices.max()} are selected", remedy=f"there are rows 0 to {len(self) - 1}"
            )
        return replace(
            self,
            logits=self.logits[indices],
            labels=self.labels[indices],
            ids=None if self.ids is None else self.ids[indices],
            label_probs=None if self.label_probs is None else self.label_probs[indices],
            given_probs=None if self.given_probs is None else self.given_probs[indices],
        )

    def rows_of(self, ids: NDArray[np.str_]) -> IntArray:
        """Return the row index of each id.

        Parameters
        ----------
        ids : ndarray of str
            Ids of rows, in any order.

        Returns
        -------
        ndarray of int
            One index per id.

        Raises
        ------
        InputError
            If a row with one of the ids is missing, or there are no ids.
        """
        if self.ids is None:
            raise InputError(f"{self.name!r} has no ids", remedy="add an id column")
        wanted = text_array(ids, "id")
        if wanted.ndim != 1:
            raise InputError(f"ids of shape {wanted.shape}", remedy="give a list of ids")
        rows, missing = find_rows(self.ids, wanted)
        if len(missing):
            raise InputError(f"{self.name!r} has no row with id {str(missing[0])!r}", remedy="check the id columns")
        return rows

    @checked
    def split(self, fraction: float, *, seed: int, stratified: bool = True) -> tuple[Predictions, Predictions]:
        """Divide the rows at random in two parts.

        Parameters
        ----------
        fraction : float
            Size of the first part: ``round(fraction · N)`` rows.
        seed : int
            Seed of the division.
        stratified : bool
            Whether every class is divided in that proportion, to within one row.

        Returns
        -------
        tuple of Predictions
            The two parts, in the original order.
        """
        if not 0.0 < fraction < 1.0:
            raise InputError(f"fraction {fraction} is not between 0 and 1")
        n = len(self)
        if n < 2:
            raise InputError(f"{n} rows cannot be split in two", remedy="give at least two")
        rng = np.random.default_rng(seed)
        key = rng.random(n)
        order = np.lexsort((key, self.labels)) if stratified else np.argsort(key)
        # Systematic sampling along rows sorted by class: exact in all, within one row in each class.
        size = min(max(round(fraction * n), 1), n - 1)
        steps = np.floor(np.arange(n + 1) * size / n + rng.random())
        in_first_part = np.zeros(n, dtype=bool)
        in_first_part[order[np.diff(steps) > 0]] = True
        return self.select(in_first_part), self.select(~in_first_part)

    def reorder_classes(self, classes: Sequence[str]) -> Predictions:
        """Return the same predictions with the columns in another order.

        Parameters
        ----------
        classes : sequence of str
            The class names in that order.

        Returns
        -------
        Predictions
            The predictions with columns and labels matched by name.

        Raises
        ------
        InputError
            If the names are not those of the predictions.
        """
        classes = _name_tuple(classes)
        if classes == self.classes:
            return self
        if sorted(classes) != sorted(self.classes):
            ours, theirs = sorted(set(self.classes) - set(classes)), sorted(set(classes) - set(self.classes))
            if ours and {_composed(name) for name in ours} == {_composed(name) for name in theirs}:
                raise InputError(
                    f"{self.name!r} writes classes with other characters that look the same: "
                    f"{', '.join(map(ascii, ours[:8]))}, not {', '.join(map(ascii, theirs[:8]))}",
                    remedy="write the names of both sets in one form of Unicode, such as NFC",
                )
            raise InputError(
                f"{self.name!r} has classes {list_names(self.classes)}, not {list_names(classes)}",
                remedy="rename them so that both sets use the same names",
            )
        columns = np.array([self.classes.index(name) for name in classes])
        return replace(
            self,
            logits=self.logits[:, columns],
            labels=np.append(np.argsort(columns), UNKNOWN)[self.labels],  # UNKNOWN is the last index
            classes=classes,
            label_probs=None if self.label_probs is None else self.label_probs[:, columns],
            given_probs=None if self.given_probs is None else self.given_probs[:, columns],
        )

    def rename(self, name: str) -> Predictions:
        """Return the same predictions under another name."""
        return replace(self, name=name)

    def with_probs(self, probs: FloatArray) -> Predictions:
        """Return the same rows with other probabilities (N, K), which must be normalised."""
        return replace(self, logits=_log(probs), given_probs=probs)

    def with_log_probs(self, log_probs: FloatArray) -> Predictions:
        """Return the same rows with other normalised log-probabilities (N, K), -inf where a class is impossible."""
        given_probs = np.exp(log_probs) if np.isneginf(log_probs).any() else None
        return replace(self, logits=log_probs, given_probs=given_probs)


def find_rows(
    ids: NDArray[np.str_], requested: NDArray[np.str_], *, order: IntArray | None = None
) -> tuple[IntArray, NDArray[np.str_]]:
    """Find rows by id.

    Parameters
    ----------
    ids : array of str, shape (N,)
        The ids of all rows, each once.
    requested : array of str, shape (M,)
        The ids to look up, in any order.
    order : array of int, shape (N,), optional
        ``np.argsort(ids)``, for callers that look up many times.

    Returns
    -------
    rows : array of int, shape (M,)
        The row of each requested id; meaningful only if none is missing.
    missing : array of str
        The requested ids that no row has, in the order of the request.

    Examples
    --------
    >>> rows, missing = find_rows(np.array(["a", "b", "c"]), np.array(["c", "a"]))
    >>> rows.tolist(), missing.tolist()
    ([2, 0], [])
    >>> find_rows(np.array(["a", "b"]), np.array(["a", "z"]))[1].tolist()
    ['z']
    """
    if np.array_equal(ids, requested):
        return np.arange(len(ids)), requested[:0]
    if not len(ids):
        return np.zeros(len(requested), dtype=np.int64), requested
    if order is None:
        order = np.argsort(ids, kind="stable")
    positions = np.searchsorted(ids, requested, sorter=order)
    rows: IntArray = order[positions.clip(max=len(ids) - 1)]
    return rows, requested[ids[rows] != requested]


@checked
def join(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions]:
    """Return the rows that two sets share.

    Rows are matched by id. Where neither set has ids they are matched by position, if length and labels are the same.

    Parameters
    ----------
    a, b : Predictions
        Sets with the same class names in any order.

    Returns
    -------
    tuple of Predictions
        The rows of both, in the order of rows and classes of ``a``.

    Raises
    ------
    InputError
        If no rows are shared or labels differ.

    Examples
    --------
    >>> a = Predictions([[1.0, 0.0], [0.0, 1.0]], [0, 1], ids=["x", "y"])
    >>> b = Predictions([[0.0, 2.0], [3.0, 0.0]], [1, 0], ids=["y", "x"])
    >>> join(a, b)[1].logits.tolist()
    [[3.0, 0.0], [0.0, 2.0]]
    """
    # Two sets of confidences have no classes to match, and their labels tell only right from wrong.
    confidences = a.confidence_only and b.confidence_only
    if a.confidence_only != b.confidence_only:
        only, other = (a, b) if a.confidence_only else (b, a)
        raise InputError(
            f"{only.name!r} holds confidences only, {other.name!r} class probabilities", remedy="give both in the same form"
        )
    if not confidences:
        b = b.reorder_classes(a.classes)
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
    if not confidences:
        _check_same_labels(a, b)
    return a, b


def _check_same_labels(a: Predictions, b: Predictions) -> None:
    differ = (a.labels != b.labels) & a.is_labelled & b.is_labelled
    if differ.any():
        row = _first(differ)
        which = f"id {str(a.ids[row])!r}" if a.ids is not None else f"row {row} (counting from 0)"
        raise InputError(
            f"{a.name!r} and {b.name!r} disagree on the label of {which}: "
            f"{a.classes[a.labels[row]]!r} and {a.classes[b.labels[row]]!r}",
            remedy="both must hold the same examples",
        )


@checked
def ensemble(members: Sequence[Predictions], name: str = "ensemble") -> Predictions:
    """Return the mean of the probabilities of several models.

    Parameters
    ----------
    members : sequence of Predictions
        One set per model, with the same class names.
    name : str
        Name of the result.

    Returns
    -------
    Predictions
        The mean on the rows that all members share, in the order of the first.

    Examples
    --------
    >>> a = Predictions.from_probs([[0.9, 0.1]], [0])
    >>> b = Predictions.from_probs([[0.5, 0.5]], [0])
    >>> ensemble([a, b]).probs.tolist()
    [[0.7, 0.3]]
    """
    if not members:
        raise InputError("an ensemble needs at least one member")
    if any(member.confidence_only for member in members):
        raise InputError("an ensemble needs class probabilities", remedy="leave out sets that hold confidences only")
    first = members[0]
    for member in members[1:]:
        first, _ = join(first, member)
    aligned = [join(first, member)[1] for member in members]
    mean = np.mean([member.probs for member in aligned], axis=0)
    return Predictions.from_probs(
        mean, first.labels, ids=first.ids, classes=first.classes, label_probs=first.label_probs, name=name
    )


def labels_from_text(labels: NDArray[np.str_], classes: tuple[str, ...]) -> IntArray:
    """Return the class indices of labels that are written as text.

    Parameters
    ----------
    labels : ndarray of str, shape (N,)
        Class names, or indices. All must be of one form. Where class names are numbers themselves, a number is a name.
    classes : tuple of str
        Class names in order.

    Returns
    -------
    ndarray of int, shape (N,)
        Class indices.

    Raises
    ------
    InputError
        If a label is neither, with its row.

    Examples
    --------
    >>> labels_from_text(np.array(["dog", "cat"]), ("cat", "dog")).tolist()
    [1, 0]
    >>> labels_from_text(np.array(["1", "0"]), ("cat", "dog")).tolist()
    [1, 0]
    """
    distinct, inverse = np.unique(labels, return_inverse=True)
    texts = [str(label) for label in distinct]
    by_name = {name: index for index, name in enumerate(classes)}
    by_index = {str(index): index for index in range(len(classes))}
    names_are_numbers = any(name.lstrip("-").isdigit() for name in classes) and set(classes) != set(by_index)
    if names_are_numbers:  # a number cannot be told from an index
        by_index = {}
    for index_of in (by_name, by_index):
        if all(text in index_of for text in texts):
            return np.array([index_of[text] for text in texts], dtype=np.int64)[inverse]
    uses_names = names_are_numbers or any(text in by_name for text in texts)
    expected = by_name if uses_names else by_index
    unknown = next(text for text in texts if text not in expected)
    kind = "a class name" if uses_names else "a class name or an index"
    raise InputError(
        f"label {unknown!r:.80} is not {kind}", row=_first(labels == unknown), remedy=f"the classes are {list_names(classes)}"
    )


# ---- checks ------------------------------------------------------------------------------------------------------------


def _first(mask: Any) -> int:
    return int(np.argmax(mask))


def _log(probs: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        logarithm: FloatArray = np.log(probs)
    return logarithm


def unmasked_array(values: ArrayLike, what: str) -> NDArray[Any]:
    """Return values as an array; masked ones are refused, for NumPy would go on with what the mask hides.

    Parameters
    ----------
    values : array-like
        The values; also a tensor of torch.
    what : str
        What they are, for messages.

    Returns
    -------
    ndarray

    Raises
    ------
    InputError
        If a value is masked, with its row.

    Examples
    --------
    >>> unmasked_array(np.ma.array([0, 1], mask=[False, True]), "labels")
    Traceback (most recent call last):
    distilcal.errors.InputError: row 1 (counting from 0): some labels are masked; fill them or drop these rows
    """
    tensor: Any = values
    if hasattr(tensor, "detach"):  # of torch: it may need a gradient or lie on a GPU, and NumPy has no bfloat16
        tensor = tensor.detach().cpu()
        values = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    if np.ma.is_masked(values):
        hidden = np.atleast_1d(np.ma.getmaskarray(cast(Any, values)))
        row = _first(hidden.reshape(len(hidden), -1).any(axis=1))
        raise InputError(f"some {what} are masked", row=row, remedy="fill them or drop these rows")
    return np.asarray(values)


def _count_or_shape(array: NDArray[Any], what: str) -> str:
    """How many values there are; of a table, such as a DataFrame with one column, its shape, for the number may be right."""
    return f"{array.size} {what}" if array.ndim == 1 else f"{what} of shape {array.shape}"


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _one_class() -> InputError:
    return InputError("there is only one class", remedy="give one column per class; a binary classifier has two")


def _match_columns(table: Any, classes: Sequence[str] | None, what: str) -> tuple[Any, Sequence[str] | None]:
    """Return the columns of a DataFrame in the order of the classes, and the classes; anything else as it is.

    Columns that are only counted have no names to match. Without classes, names of columns are those of the classes.
    """
    if not hasattr(table, "columns") or hasattr(table, "column_names"):  # an Arrow table has other columns
        return table, classes
    columns = list(table.columns)
    names = [_text(column, "column") for column in columns]
    counted = names == [str(number) for number in range(len(names))]
    if classes is None or not len(classes):
        return table, classes if counted else names
    wanted = [_text(name, "class name") for name in classes]
    if sorted(names) == sorted(wanted):
        return table[[columns[names.index(name)] for name in wanted]], classes
    if counted or len(names) != len(wanted):
        return table, classes
    raise InputError(
        f"the columns of the {what} are {list_names(names)}, the classes {list_names(wanted)}",
        remedy="name the columns by the classes, or give an array in their order",
    )


def _number_matrix(values: ArrayLike, what: str) -> NDArray[Any]:
    try:
        matrix = unmasked_array(values, what)
    except InputError:
        raise
    except ValueError:
        raise InputError(
            f"the rows of the {what} have different lengths", remedy="give one value per class in every row"
        ) from None
    if matrix.ndim != 2:
        raise InputError(f"{what} of shape {matrix.shape} are not a table of rows × classes", remedy="give two dimensions")
    if matrix.dtype.kind not in "fiu":
        raise InputError(f"{what} of type {matrix.dtype} are not numbers", remedy="give real numbers")
    return matrix


def _float_logits(values: ArrayLike) -> NDArray[Any]:
    logits = _number_matrix(values, "logits")
    if logits.dtype in (np.float32, np.float64):
        return logits
    return logits.astype(np.float32 if logits.dtype == np.float16 else np.float64)


def _check_finite(logits: NDArray[Any]) -> None:
    if float(logits.min()) >= -LARGEST_LOGIT and float(logits.max()) <= LARGEST_LOGIT:
        return
    fine = np.abs(logits.astype(np.float64)) <= LARGEST_LOGIT  # false for NaN
    row = _first(~fine.all(axis=1))
    raise InputError(
        f"a logit is {logits[row][~fine[row]][0]:g}",
        row=row,
        remedy="give finite logits, or probabilities where a class cannot happen",
    )


def check_class_names(names: Sequence[str]) -> None:
    """Raise an InputError for a class name that is blank, that no file can hold, or that is absurdly long.

    Parameters
    ----------
    names : sequence of str
        The names.

    Raises
    ------
    InputError
        With the name.

    Examples
    --------
    >>> check_class_names(["pos", " "])
    Traceback (most recent call last):
    distilcal.errors.InputError: invalid class name ' '; give every class a name in readable text
    """
    for name in names:
        if not name.strip() or "\0" in name or SURROGATE.search(name) or len(name) > LONGEST_ID:
            raise InputError(f"invalid class name {name!r:.80}", remedy="give every class a name in readable text")


def _name_tuple(names: Sequence[str]) -> tuple[str, ...]:
    """Class names in their order; refuses letters of a text, names in no order, and the keys in place of the names."""
    if isinstance(names, str | bytes | set | frozenset | Mapping) or not hasattr(names, "__len__") or np.ndim(names) == 0:
        kind = "text" if isinstance(names, str) else type(names).__name__
        raise InputError(f"the {kind} {names!r:.80} for class names", remedy="give a list of names")
    return tuple(_text(name, "class name") for name in names)


def _class_names(names: Sequence[str] | None, k: int) -> tuple[str, ...]:
    classes = () if names is None else _name_tuple(names)
    classes = classes or tuple(str(number) for number in range(k))
    if len(classes) != k:
        raise InputError(f"{len(classes)} class names for {k} columns", remedy="give one name per column")
    check_class_names(classes)
    if len(set(classes)) != k:
        duplicate = next(name for name in classes if classes.count(name) > 1)
        raise InputError(f"duplicate class name {duplicate!r}", remedy="give every class a name of its own")
    return classes


def _check_outcomes(confidence: ArrayLike, correct: ArrayLike) -> tuple[FloatArray, NDArray[np.bool_]]:
    values = unmasked_array(confidence, "confidences").ravel()
    outcome = unmasked_array(correct, "outcomes").ravel()
    if not len(values):
        raise InputError("there are no rows", remedy="give at least one prediction")
    if values.dtype.kind not in "fiu" or outcome.dtype.kind not in "fiub":
        raise InputError("confidences and outcomes are not all numbers", remedy="give fractions, and 1 or 0")
    values = values.astype(np.float64)
    if len(values) != len(outcome):
        raise InputError(f"{len(values)} confidences for {len(outcome)} outcomes", remedy="give one outcome per confidence")
    bad = ~((values >= SMALLEST_CONFIDENCE) & (values <= 1.0))
    if bad.any():
        raise InputError(
            f"confidence {values[_first(bad)]:g} is not in [{SMALLEST_CONFIDENCE:g}, 1]",
            row=_first(bad),
            remedy="give the probability of the predicted class, as a fraction",
        )
    bad = (outcome != 0) & (outcome != 1)
    if bad.any():
        raise InputError(
            f"outcome {outcome[_first(bad)]:g} is neither 0 nor 1", row=_first(bad), remedy="give 1 for right, 0 for wrong"
        )
    return values, outcome.astype(bool)


def _check_distributions(values: ArrayLike, tolerance: float, what: str) -> FloatArray:
    """Return probabilities whose rows sum to one, as float64."""
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance {tolerance} is not between 0 and 1", remedy="normalise rows that are further off")
    probs = _number_matrix(values, what).astype(np.float64)
    if probs.shape[1] < 2:
        raise _one_class()
    if np.isnan(probs).any():
        raise InputError("nan is not a probability", row=_first(np.isnan(probs).any(axis=1)), remedy="fix or drop the row")
    possible = (probs >= 0) & (probs <= 1 + tolerance)
    bad = ~possible.all(axis=1)
    if bad.any():
        row = _first(bad)
        raise InputError(
            f"{probs[row][~possible[row]][0]} is not a probability",
            row=row,
            remedy="if these are logits, name that unit; percentages must be divided by 100",
        )
    total = probs.sum(axis=1)
    bad = np.abs(total - 1) > tolerance
    if bad.any():
        row = _first(bad)
        raise InputError(
            f"{what} sum to {total[row]:.6g}, not to 1 within {tolerance:g}",
            row=row,
            remedy="normalise the rows, or if these are logits, name that unit",
        )
    # Dividing by a sum that is one but for rounding would only move values off bin edges such as 0.7.
    off = np.abs(total - 1) > ROUNDING
    if off.any():
        probs[off] /= total[off, None]
    return probs


def label_distributions(values: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Return human label distributions after checking that they are distributions for these predictions.

    Parameters
    ----------
    values : array, shape (N, K)
        Shares of the human votes; rows are divided by their sums.
    shape : tuple of int
        Shape (N, K) of the predictions.

    Returns
    -------
    ndarray, shape (N, K)

    Raises
    ------
    InputError
        If the shape is another one, or a row is no distribution.

    Examples
    --------
    >>> label_distributions([[0.75, 0.25]], (1, 2)).tolist()
    [[0.75, 0.25]]
    """
    label_probs = _check_distributions(values, ROW_SUM_TOLERANCE, "human label probabilities")
    if label_probs.shape != shape:
        raise InputError(f"human label probabilities have shape {label_probs.shape}, the predictions {shape}")
    return label_probs


def text_array(values: ArrayLike, what: str) -> NDArray[np.str_]:
    """Return ids or the like as a NumPy array of strings, which are the same after they were saved and loaded.

    Parameters
    ----------
    values : array of str or numbers
        The values.
    what : str
        What they are, for messages.

    Returns
    -------
    ndarray of str

    Raises
    ------
    InputError
        If one holds a NUL, which NumPy drops at the end of a string, half of a character, which no file can hold, or very many
        characters: an array of strings is as wide as its longest.

    Examples
    --------
    >>> text_array([1, "b"], "id").tolist()
    ['1', 'b']
    >>> text_array(["a", "b\\0"], "id")
    Traceback (most recent call last):
    distilcal.errors.InputError: row 1 (counting from 0): id 'b\\x00' holds a NUL character; rename it
    """
    array = unmasked_array(values if isinstance(values, np.ndarray) else np.array(values, dtype=object), f"{what}s")
    if array.ndim == 1 and array.dtype.kind == "f" and np.isnan(array).any():
        array = array.astype(object)  # to be refused as in a list
    if array.ndim != 1 or array.dtype.kind not in "USO":
        return array.astype(str)
    if array.dtype.kind == "U" and array.dtype.itemsize <= 4 * LONGEST_ID:
        codes = np.ascontiguousarray(array).view(np.uint32).reshape(-1, max(array.dtype.itemsize // 4, 1))
        is_half = (codes >= 0xD800) & (codes < 0xE000)
        is_nul_inside = (codes[:, :-1] == 0) & (codes[:, 1:] != 0)  # those at the end fill up shorter strings
        if not is_half.any() and not is_nul_inside.any():
            return array
    texts = [value if type(value) is str else _text(value, what, row) for row, value in enumerate(array.tolist())]
    joined = "".join(texts)
    if "\0" in joined:
        raise _invalid_text(texts, what, "holds a NUL character", lambda text: "\0" in text)
    if not joined.isascii() and SURROGATE.search(joined):
        raise _invalid_text(texts, what, "is not readable text", lambda text: SURROGATE.search(text) is not None)
    if len(joined) > LONGEST_ID and max(map(len, texts)) > LONGEST_ID:
        raise _invalid_text(texts, what, f"has more than {LONGEST_ID:,} characters", lambda text: len(text) > LONGEST_ID)
    return np.array(texts, dtype=str)


def _is_missing(value: object) -> bool:
    """Whether a value stands for none, as in a DataFrame."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def _text(value: object, what: str, row: int | None = None) -> str:
    """Return a name as text; bytes in another encoding are refused, for different ones would become the same text."""
    if _is_missing(value):  # "None" and "nan" may be names of others
        raise InputError(f"{what} {value} is a missing value", row=row, remedy="give it a name, or drop it")
    if isinstance(value, list | tuple | set | dict | np.ndarray):
        raise InputError(f"{what} {value!s:.40} is a {type(value).__name__}", row=row, remedy="give one text each")
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InputError(f"{what} {value!r:.80} is not UTF-8", row=row, remedy="decode it, as b.decode('latin-1')") from None


def _invalid_text(texts: list[str], what: str, problem: str, is_invalid: Callable[[str], bool]) -> InputError:
    row = next(row for row, text in enumerate(texts) if is_invalid(text))
    return InputError(f"{what} {texts[row]!r:.80} {problem}", row=row, remedy="rename it")


def _unique_ids(values: ArrayLike, n: int) -> NDArray[np.str_]:
    ids = text_array(values, "id")
    if ids.shape != (n,):
        raise InputError(f"{_count_or_shape(ids, 'ids')} for {n} rows", remedy="give one id per row")
    ordered = np.sort(ids)
    repeated = ordered[1:] == ordered[:-1]
    if repeated.any():
        duplicate = ordered[1:][repeated][0]
        row = int(np.flatnonzero(ids == duplicate)[1])
        raise InputError(
            f"duplicate id {str(duplicate)!r:.80}", row=row, remedy="ids must be unique: drop or rename the repeated row"
        )
    return ids


def _labels_or_unknown(values: ArrayLike | None, label_probs: FloatArray | None, classes: tuple[str, ...], n: int) -> IntArray:
    if values is not None:
        return _label_indices(values, classes, n)
    if label_probs is None:
        return np.full(n, UNKNOWN, dtype=np.int64)
    most_probable: IntArray = label_probs.argmax(axis=1)
    return most_probable


def _label_indices(values: ArrayLike, classes: tuple[str, ...], n: int) -> IntArray:
    labels = unmasked_array(values, "labels")
    if labels.shape != (n,):
        raise InputError(f"{_count_or_shape(labels, 'labels')} for {n} rows", remedy="give one label per row")
    if {name.casefold() for name in classes} == {"false", "true"} and _are_truths(labels):
        return _truth_indices(labels, classes)
    if labels.dtype.kind == "O" and all(label is None or isinstance(label, int | np.integer) for label in labels):
        labels = np.array([UNKNOWN if label is None else label for label in labels])  # numbers are indices beside None, too
    if labels.dtype.kind in "USO":
        return _named_labels(labels, classes)
    if labels.dtype.kind == "f":
        labels = _whole_numbers(labels)
    if labels.dtype.kind not in "iub":
        raise InputError(f"labels of type {labels.dtype} are neither class names nor indices", remedy="give one of them")
    bad = (labels < UNKNOWN) | (labels >= len(classes))
    if bad.any():
        raise InputError(
            f"label {labels[_first(bad)]} is not between 0 and {len(classes) - 1}",
            row=_first(bad),
            remedy=f"there are {len(classes)} classes: {list_names(classes)}",
        )
    return labels.astype(np.int64, copy=False)


def _are_truths(labels: NDArray[Any]) -> bool:
    if labels.dtype.kind == "O":
        return all(label is None or isinstance(label, bool | np.bool_) for label in labels)
    return labels.dtype.kind == "b"


def _truth_indices(labels: NDArray[Any], classes: tuple[str, ...]) -> IntArray:
    """Return the indices of True and False by their names: as numbers they would be the second and the first class."""
    index_of = {name.casefold() == "true": index for index, name in enumerate(classes)}
    return np.array([UNKNOWN if label is None else index_of[bool(label)] for label in labels], dtype=np.int64)


def _named_labels(labels: NDArray[Any], classes: tuple[str, ...]) -> IntArray:
    """Return the indices of labels that are written as text; None, an empty text and "-1" are unknown."""
    texts = labels
    if labels.dtype.kind != "U":
        texts = np.array(["" if label is None else _text(label, "label", row) for row, label in enumerate(labels.tolist())])
    unknown = texts == ""
    if str(UNKNOWN) not in classes:
        unknown |= texts == str(UNKNOWN)
    if not unknown.any():
        return labels_from_text(texts, classes)
    indices = np.full(len(labels), UNKNOWN, dtype=np.int64)
    known = np.flatnonzero(~unknown)
    if len(known):
        try:
            indices[known] = labels_from_text(texts[known], classes)
        except InputError as error:
            if error.row is not None:
                error.row = int(known[error.row])
            raise
    return indices


def _whole_numbers(labels: NDArray[Any]) -> IntArray:
    odd = ~(np.abs(labels) < 2**53) | (labels != np.floor(labels))
    if odd.any():
        raise InputError(
            f"label {labels[_first(odd)]:g} is not an index", row=_first(odd), remedy="give class names or indices"
        )
    return labels.astype(np.int64)
