"""A teacher's outputs, joined with the training data by id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data import Dataset
from distilcal.errors import InputError
from distilcal.predictions import Predictions, find_rows


@dataclass(frozen=True, eq=False)
class Features:
    """Features of examples, by id: what a network's head reads.

    They travel beside `Predictions` where a loss compares features (RKD, CRD).

    Parameters
    ----------
    ids : array of str, shape (N,)
        Ids of the examples, each once.
    values : array of float, shape (N, ...)
        The features, one row an example.

    Examples
    --------
    >>> features = Features(np.array(["a", "b"]), np.zeros((2, 4), dtype=np.float32))
    >>> len(features)
    2
    """

    ids: NDArray[np.str_]
    values: NDArray[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", np.asarray(self.ids).astype(str))
        object.__setattr__(self, "values", np.asarray(self.values))
        if self.ids.shape != (len(self.values),):
            raise InputError(f"{self.ids.size} ids for {len(self.values)} rows of features", remedy="give one id per row")
        if len(np.unique(self.ids)) < len(self.ids):
            raise InputError("two rows of features have the same id", remedy="give every example a unique id")

    def __len__(self) -> int:
        return len(self.values)


def align_teacher(train: Dataset, predictions: Predictions | None, features: Features | None) -> dict[str, NDArray[Any]]:
    """Return a teacher's outputs in the row order of the training data.

    Parameters
    ----------
    train : Dataset
        The training data: its ids and class names decide rows and columns.
    predictions : Predictions, optional
        The teacher's predictions, in any order; there may be more rows than needed, and some may be missing.
    features : Features, optional
        The teacher's features, by id too.

    Returns
    -------
    dict of str to array
        ``logits`` (N, K) and ``features`` (N, ...), where given, in the precision in which they were given; NaN in the rows
        that the teacher does not know.

    Raises
    ------
    InputError
        If the teacher knows none of the training examples, if the predictions have no ids, or if the classes have other names.

    Examples
    --------
    >>> from distilcal.data import Vectors
    >>> train = Dataset(Vectors(np.zeros((2, 3))), [0, 1], ("a", "b"), np.array(["x", "y"]))
    >>> teacher = Predictions([[2.0, 5.0], [3.0, 4.0]], [0, 0], ids=["y", "x"], classes=["b", "a"])
    >>> align_teacher(train, teacher, None)["logits"].tolist()
    [[4.0, 3.0], [5.0, 2.0]]
    """
    outputs: dict[str, NDArray[Any]] = {}
    if predictions is not None:
        if predictions.ids is None:
            raise InputError(
                f"the teacher's predictions {predictions.name!r} have no ids",
                remedy=f"give them the ids of {train.name!r}: teacher rows are matched by id",
            )
        logits = predictions.reorder_classes(train.classes).logits
        outputs["logits"] = _rows_by_id(logits, predictions.ids, train, "predictions")
    if features is not None:
        outputs["features"] = _rows_by_id(features.values, features.ids, train, "features")
    return outputs


def unknown_rows(outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.bool_]]:
    """Return which training examples a teacher does not know.

    Parameters
    ----------
    outputs : mapping of str to array, shape (N, ...)
        Logits and features from `align_teacher`.

    Returns
    -------
    dict of str to array of bool, shape (N,)
        By field of a view, ``teacher_logits`` and ``teacher_features``; only those that lack some examples.

    Examples
    --------
    >>> unknown_rows({"logits": np.array([[1.0, 2.0], [np.nan, np.nan]]), "features": np.zeros((2, 3))})
    {'teacher_logits': array([False,  True])}
    """
    unknown = {}
    for name, values in outputs.items():
        is_unknown: NDArray[np.bool_] = np.isnan(values.reshape(len(values), -1)[:, 0])
        if is_unknown.any():
            unknown[f"teacher_{name}"] = is_unknown
    return unknown


def _rows_by_id(values: NDArray[Any], ids: NDArray[np.str_], train: Dataset, kind: str) -> NDArray[Any]:
    """The values of each training example, which are those of its id; NaN where there is none."""
    rows, missing = find_rows(ids, train.ids)
    if not len(missing):
        return values[rows]
    if len(missing) == len(train):
        raise InputError(
            f"the teacher's {kind} lack all {len(train)} rows of {train.name!r}, the first with id {str(missing[0])!r}",
            remedy="use the same ids in both",
        )
    aligned = values[rows]
    aligned[np.isin(train.ids, missing)] = np.nan
    return aligned
