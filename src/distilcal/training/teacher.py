"""A teacher's outputs, joined with the training data by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data import Dataset
from distilcal.errors import InputError
from distilcal.predictions import Predictions, find_rows

RowIndices = NDArray[np.int64]


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
        The teacher's predictions, in any order; more rows than needed are allowed.
    features : Features, optional
        The teacher's features, by id too.

    Returns
    -------
    dict of str to array
        ``logits`` (N, K) and ``features`` (N, ...), where given, in the precision in which they were given.

    Raises
    ------
    InputError
        If a training example is missing, if the predictions have no ids, or if the classes have other names.

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
        rows = _rows_by_id(predictions.ids, train, "predictions")
        outputs["logits"] = predictions.reorder_classes(train.classes).logits[rows]
    if features is not None:
        outputs["features"] = features.values[_rows_by_id(features.ids, train, "features")]
    return outputs


def _rows_by_id(ids: NDArray[np.str_], train: Dataset, kind: str) -> RowIndices:
    """Where each training example stands among ``ids``."""
    rows, missing = find_rows(ids, train.ids)
    if len(missing):
        raise InputError(
            f"the teacher's {kind} lack {len(missing)} of the {len(train)} rows of {train.name!r}, "
            f"the first with id {str(missing[0])!r}",
            remedy="run the teacher on all of them, or leave those rows out of the data",
        )
    return rows
