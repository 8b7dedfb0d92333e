"""Distillation as a classifier of scikit-learn."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from distilcal.api import distill
from distilcal.data import Dataset, Vectors, texts
from distilcal.data.convert import NOT_A_NUMBER, label_text
from distilcal.errors import InputError
from distilcal.export import TorchStudent
from distilcal.inference import Student
from distilcal.pipeline.distill import DistillSettings
from distilcal.pipeline.preflight import MIN_DEV_EXAMPLES
from distilcal.predictions import FloatArray

TEXT_RATE, VECTOR_RATE = 5e-5, 0.01  # learning rates, where none is given

TOO_SMALL = "it fits fewer than 20 examples, which are too few to choose an epoch and a temperature on"
# Checks of sklearn.utils.estimator_checks that do not apply; all others pass on vectors. The checks know no texts.
EXPECTED_FAILED_CHECKS = {
    "check_n_features_in_after_fitting": TOO_SMALL,
    "check_estimators_nan_inf": TOO_SMALL,
    "check_classifier_data_not_an_array": TOO_SMALL,
    "check_fit2d_1feature": TOO_SMALL,
}


class DistilledClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A student that learns from a teacher and from labels, with calibrated probabilities.

    `fit` calls ``distilcal.distill``. A part of its rows is held out as development data, on which the epoch is chosen and the
    temperature is fitted.

    Parameters
    ----------
    teacher : classifier, str, Path, model or callable
        A classifier of scikit-learn: one that is not fitted is fitted to the training rows first. Or any teacher of
        ``distilcal.distill``: the folder or hub name of a model, a model of transformers, or a function that returns
        probabilities (N, K) for N inputs, one column per class in the order of ``classes_``.
    student : str, Path or model, optional
        Hub name or folder of an encoder for texts; ``"linear"`` or ``"mlp"`` for vectors, which is the default for these:
        ``"linear"``. For texts by default every second layer of a teacher that is an encoder.
    epochs : int, optional
        Passes over the training rows. By default 3, or as many as make 300 steps, ending early if dev does not improve.
    batch : int, optional
        Examples in a batch. By default 16 for fewer than 2,000 training rows, else 32.
    lr : float, optional
        Learning rate at its highest; by default 5e-5 for texts, 0.01 for vectors.
    max_length : int, default 256
        Tokens after which a text is cut off.
    dev_fraction : float, default 0.1
        Share of the rows that is held out of training, at least 20 rows. Of fewer than 40 rows none is held out, with a
        warning; fewer than 20 are refused.
    layers : sequence of int
        Layers of a text student to keep, counted from 0; empty: all.
    teacher_labels : sequence of str
        Classes of the teacher's outputs, in order, if it does not name them.
    changes : sequence of str
        Changes to the recipe, such as ``stages.student.model.hidden=[64]`` for an ``mlp``.
    seed : int, default 0
        Seed of the held-out rows, of the student and of the order of the data.
    out : str or Path, optional
        Folder of the run, with its report, whose test set is the held-out part. By default a temporary one, which is deleted.
    store : str or Path, optional
        Where trained stages are kept. By default in the temporary folder, or with ``out`` as for ``distilcal.distill``.
    progress : bool, default False
        Whether to show bars.

    Attributes
    ----------
    classes_ : array, shape (K,)
        The classes, in the order of the columns of `predict_proba`.
    student_ : Student
        What was distilled: it can hand over, be saved and be exported.
    teacher_ : classifier
        The fitted teacher, if `fit` fitted it.
    n_features_in_ : int
        Width of the vectors, if the examples are vectors.

    Notes
    -----
    ``sklearn.base.clone`` forgets the fit of a teacher, so that a cross-validation fits it to each training part. Wrap a
    teacher that shall stay as it is in ``sklearn.frozen.FrozenEstimator``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DistilledClassifier(RandomForestClassifier(random_state=0), epochs=30).fit(X, y)  # doctest: +SKIP
    >>> model.predict_proba(X).shape  # doctest: +SKIP
    (150, 3)
    """

    def __init__(
        self,
        teacher: Any,
        student: Any = None,
        *,
        epochs: int | None = None,
        batch: int | None = None,
        lr: float | None = None,
        max_length: int = 256,
        dev_fraction: float = 0.1,
        layers: Sequence[int] = (),
        teacher_labels: Sequence[str] = (),
        changes: Sequence[str] = (),
        seed: int = 0,
        out: str | Path | None = None,
        store: str | Path | None = None,
        progress: bool = False,
    ):
        self.teacher = teacher
        self.student = student
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.max_length = max_length
        self.dev_fraction = dev_fraction
        self.layers = layers
        self.teacher_labels = teacher_labels
        self.changes = changes
        self.seed = seed
        self.out = out
        self.store = store
        self.progress = progress

    def fit(self, X: Any, y: Any) -> DistilledClassifier:
        """Distil the teacher into the student.

        Parameters
        ----------
        X : list, array, Series or DataFrame of one column of texts; or array, shape (N, D), of vectors
            The examples.
        y : array, shape (N,)
            Their labels.

        Returns
        -------
        DistilledClassifier
            Itself.

        Raises
        ------
        InputError
            If examples, labels or settings are invalid, before anything is trained.
        """
        inputs = self._read_inputs(X, y, fit=True)
        if isinstance(y, list | tuple) or str(getattr(y, "dtype", "")) in ("object", "str", "string", "category"):
            _check_labels(list(y))
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        check_consistent_length(inputs, y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has one class only, {self.classes_[0]}", remedy="give examples of two or more")
        # Row numbers as ids tell which rows were held out.
        data = Dataset(inputs, labels, self._class_names(), np.arange(len(y)).astype(str), name="train")
        dev, train = self._hold_out(data)
        teacher = self._fit_teacher(train, y)
        is_text = not isinstance(inputs, Vectors)
        learning_rate = (TEXT_RATE if is_text else VECTOR_RATE) if self.lr is None else self.lr
        with self._folders() as (out, store):
            result = distill(
                train,
                teacher,
                "linear" if self.student is None and not is_text else self.student,
                dev=dev,
                test=dev,
                epochs=self.epochs,
                batch=self.batch,
                lr=learning_rate,
                max_length=self.max_length,
                seed=self.seed,
                layers=self.layers,
                teacher_labels=[label_text(name) or "" for name in self.teacher_labels],
                alone=False,
                out=out,
                store=store,
                changes=self.changes,
                progress=self.progress,
            )
            student = result.student
        if self.out is None and isinstance(student, TorchStudent):
            student.source = None  # the run is deleted
        self.student_: Student = student
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Return calibrated probabilities.

        Parameters
        ----------
        X : as for `fit`
            The examples.

        Returns
        -------
        array, shape (N, K)
            One column per class, in the order of ``classes_``.
        """
        check_is_fitted(self)
        probs = self.student_.predict_proba(Dataset(self._read_inputs(X, fit=False)))
        columns = [self.student_.classes.index(name) for name in self._class_names()]
        return probs[:, columns]

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each example.

        Parameters
        ----------
        X : as for `fit`
            The examples.

        Returns
        -------
        array, shape (N,)
        """
        check_is_fitted(self)
        classes: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        return tags

    def _read_inputs(self, X: Any, y: Any = None, *, fit: bool) -> Any:
        """The examples as inputs of a Dataset: texts, or vectors that are checked as scikit-learn does it."""
        found = as_texts(X)
        if found is not None:
            return texts(found)
        values = validate_data(self, X, reset=fit, dtype=np.float32)
        return Vectors(values)

    def _class_names(self) -> tuple[str, ...]:
        return tuple(label_text(value) or "" for value in self.classes_)

    def _hold_out(self, data: Dataset) -> tuple[Dataset, Dataset]:
        """The rows that are held out, and those to train on."""
        DistillSettings(train="", teacher="", seed=self.seed)  # refuses a seed that cannot be one
        if not isinstance(self.dev_fraction, Real) or not 0 <= self.dev_fraction < 1:
            raise InputError(
                f"dev_fraction = {self.dev_fraction!r:.60} is no share of the rows", remedy="give one below 1, as 0.1"
            )
        if len(data) < MIN_DEV_EXAMPLES:
            raise InputError(f"X has {len(data)} examples", remedy=f"give at least {MIN_DEV_EXAMPLES}")
        if len(data) < 2 * MIN_DEV_EXAMPLES:
            warnings.warn(
                f"X has only {len(data)} examples: none is held out, so calibration is fitted on training rows", stacklevel=3
            )
            return data, data
        smallest = (MIN_DEV_EXAMPLES + len(data.classes)) / len(data)
        return data.split(max(self.dev_fraction, min(smallest, 0.5)), seed=self.seed)

    def _fit_teacher(self, train: Dataset, y: NDArray[Any]) -> Any:
        """The teacher; a classifier of scikit-learn that is not fitted is fitted to the training rows."""
        if not (hasattr(self.teacher, "fit") and hasattr(self.teacher, "get_params")):
            return self.teacher
        try:
            check_is_fitted(self.teacher)
        except NotFittedError:
            inputs: Any = train.inputs
            examples = inputs.values if isinstance(inputs, Vectors) else inputs.text.tolist()
            self.teacher_ = clone(self.teacher).fit(examples, y[train.ids.astype(np.int64)])
            return self.teacher_
        return self.teacher

    @contextmanager
    def _folders(self) -> Iterator[tuple[Path, Path | None]]:
        """The folder of the run and the store, temporary ones where none is given."""
        store = None if self.store is None else Path(self.store)
        if self.out is not None:
            yield Path(self.out), store
            return
        with tempfile.TemporaryDirectory(prefix="distilcal-") as folder:
            yield Path(folder) / "distilled", store or Path(folder) / "store"


def as_texts(X: Any) -> list[str] | None:
    """Return examples as a list if they are texts.

    Parameters
    ----------
    X : list, array, Series or DataFrame
        One column of texts, or something else.

    Returns
    -------
    list of str or None
        None if the first example is not a text.

    Raises
    ------
    InputError
        If it is a text, or the examples are texts in several columns or only some of them are.

    Examples
    --------
    >>> as_texts(np.array([["a fine film"], ["dull"]]))
    ['a fine film', 'dull']
    >>> as_texts([[0.1, 0.2]]) is None
    True
    """
    if isinstance(X, str):
        raise InputError("X is one text", remedy="put it in brackets: [text]")
    if hasattr(X, "columns") and hasattr(X, "iloc"):  # a DataFrame
        X = X.iloc[:, 0] if X.shape[1] == 1 else X.to_numpy()
    values = X.tolist() if hasattr(X, "tolist") else X
    if not isinstance(values, list | tuple) or not values:
        return None
    first = values[0]
    if isinstance(first, list) and first and isinstance(first[0], str):
        if any(len(row) != 1 for row in values):
            raise InputError(f"X has {len(first)} columns of texts", remedy="give one, such as X['text']")
        values = [row[0] for row in values]
        first = values[0]
    if not isinstance(first, str):
        return None
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise InputError(f"{value!r:.60} is not a text", source="X", row=row, remedy="fill or drop the row")
    return list(values)


def _check_labels(labels: Sequence[Any]) -> None:
    """NumPy makes a text of a missing label or a number among texts, which would become a class, or cannot sort them."""
    for row, label in enumerate(labels):
        if label is None or type(label).__name__ in NOT_A_NUMBER or (isinstance(label, float) and math.isnan(label)):
            raise InputError("a label is missing", row=row, remedy="give y a label for every row")
        if isinstance(label, str) != isinstance(labels[0], str):
            raise InputError(
                f"label {label!r:.60} is not of the same type as {labels[0]!r:.60}",
                row=row,
                remedy="give y texts only or numbers only",
            )
