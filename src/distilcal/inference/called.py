"""Models that are called: what a function, a classifier of scikit-learn or a pipeline gets, and how its answer is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from distilcal.data.convert import label_text
from distilcal.data.dataset import Choices, Images, Inputs, Texts, Vectors
from distilcal.errors import InputError, list_names
from distilcal.predictions import ROUNDING, ROW_SUM_TOLERANCE, FloatArray, IntArray, unmasked_array

NO_CLASS = -1  # in place of the index of a class where a model gave no label


@dataclass(frozen=True)
class CalledAnswer:
    """What a model that was called answered.

    Attributes
    ----------
    predicted : array of int, shape (N,)
        Index of the class of each example; -1 where the model gave none.
    confidence : array of float, shape (N,)
        The confidence in it; NaN where the model gave a label only.
    probs : array of float, shape (N, K), optional
        The probability of every class; None if the model gave labels only.
    """

    predicted: IntArray
    confidence: FloatArray
    probs: FloatArray | None = None

    @classmethod
    def from_probs(cls, probs: FloatArray) -> CalledAnswer:
        """Return the most probable classes with their probabilities."""
        return cls(probs.argmax(axis=1), probs.max(axis=1), probs)

    def take(self, rows: IntArray) -> CalledAnswer:
        """Return the answers of some rows; a row may be taken several times."""
        return CalledAnswer(self.predicted[rows], self.confidence[rows], None if self.probs is None else self.probs[rows])


def plain_inputs(inputs: Inputs) -> Any:
    """Return inputs as a function takes them.

    Parameters
    ----------
    inputs : Texts, Choices, Images or Vectors
        The examples.

    Returns
    -------
    list or array
        A list of texts, of pairs or of ``(prompt, endings)``; an array of pixels or numbers.

    Examples
    --------
    >>> from distilcal.data import texts
    >>> plain_inputs(texts(["a fine film", "dull"]))
    ['a fine film', 'dull']
    """
    if isinstance(inputs, Images):
        return inputs.pixels
    if isinstance(inputs, Vectors):
        return inputs.values
    if isinstance(inputs, Choices):
        return list(zip(inputs.prompt.tolist(), inputs.endings.tolist(), strict=True))
    assert isinstance(inputs, Texts)
    if inputs.pair is None:
        return inputs.text.tolist()
    return list(zip(inputs.text.tolist(), inputs.pair.tolist(), strict=True))


def bare_model(value: Any) -> Any:
    """Return a model of transformers itself, or that of a pipeline; None for anything else.

    Parameters
    ----------
    value : object
        Anything.

    Returns
    -------
    transformers.PreTrainedModel or None
    """
    for model in (value, getattr(value, "model", None)):  # in this order: some models call their encoder ``model`` too
        if hasattr(model, "save_pretrained") and hasattr(model, "config"):
            return model
    return None


def check_probs(answer: Any, count: int, classes: Sequence[str], source: str) -> FloatArray:
    """Return the answer of a model as an array of distributions.

    Parameters
    ----------
    answer : array, tensor, nested list or DataFrame
        What the model returned. Columns of a DataFrame are matched by name, unless they are only counted.
    count : int
        For how many examples.
    classes : sequence of str
        The classes of its columns.
    source : str
        The model and the examples, for messages.

    Returns
    -------
    array of float, shape (N, K)

    Raises
    ------
    InputError
        If the shape is another one, the columns have other names, or a row is no distribution.

    Examples
    --------
    >>> check_probs([[0.2, 0.8]], 1, ["neg", "pos"], "teacher").tolist()
    [[0.2, 0.8]]
    """
    if hasattr(answer, "columns"):  # a DataFrame
        answer = _in_order_of_classes(answer, classes, source)
    if hasattr(answer, "detach"):  # a tensor; NumPy has no bfloat16
        answer = answer.detach().cpu()
        answer = answer if answer.is_complex() else answer.double()
    try:
        array = np.asarray(unmasked_array(answer, "probabilities"))
        if array.dtype.kind == "c":  # NumPy would leave out the imaginary parts
            raise InputError("the probabilities are complex numbers", remedy="return real ones")
        probs: FloatArray = array.astype(np.float64)
    except InputError as error:
        error.source = source
        raise
    except (TypeError, ValueError):
        raise InputError(
            f"expected an array of probabilities, got {type(answer).__name__}",
            source=source,
            remedy="return one of shape (N, K)",
        ) from None
    if probs.shape != (count, len(classes)):
        raise InputError(
            f"expected probabilities of shape ({count}, {len(classes)}), got {probs.shape}",
            source=source,
            remedy=f"return one row for each example, and one column for each of {list_names(classes)}",
        )
    valid = np.isfinite(probs).all(axis=1) & (probs >= 0).all(axis=1) & (np.abs(probs.sum(axis=1) - 1) <= ROW_SUM_TOLERANCE)
    if not valid.all():
        row = int((~valid).argmax())
        raise InputError(
            f"row {row} of the answer, {probs[row].round(6).tolist()}, is no distribution",
            source=source,
            remedy="return probabilities that are finite and sum to 1",
        )
    total = probs.sum(axis=1, keepdims=True)
    return np.where(np.abs(total - 1) > ROUNDING, probs / total, probs)  # else it would only move values such as 0.7


def read_answer(answer: Any, count: int, classes: Sequence[str], source: str) -> CalledAnswer:
    """Read labels or probabilities, as a function or a pipeline returned them.

    Parameters
    ----------
    answer : array, tensor or list
        Probabilities (N, K) in the order of the classes; or one label per example: the name of a class, None for no answer,
        or ``{"label": …, "score": …}`` as the pipelines of transformers return it.
    count : int
        For how many examples.
    classes : sequence of str
        The classes; labels are matched by name.
    source : str
        The model and the examples, for messages.

    Returns
    -------
    CalledAnswer

    Raises
    ------
    InputError
        If there are more or fewer answers than examples, a label is no class, or a row is no distribution.

    Examples
    --------
    >>> read_answer(["pos", None], 2, ["neg", "pos"], "teacher").predicted.tolist()
    [1, -1]
    >>> read_answer([[0.2, 0.8]], 1, ["neg", "pos"], "teacher").confidence.tolist()
    [0.8]
    """
    is_table = getattr(answer, "ndim", 1) == 2 or hasattr(answer, "columns")
    if is_table or (isinstance(answer, list | tuple) and answer and _is_row(answer[0])):
        return CalledAnswer.from_probs(check_probs(answer, count, classes, source))
    if isinstance(answer, str | bytes | dict) or not hasattr(answer, "__len__"):
        raise InputError(
            f"expected labels or probabilities, got {type(answer).__name__}",
            source=source,
            remedy="return a list with a class for each example, or an array of probabilities (N, K)",
        )
    if len(answer) != count:
        raise InputError(
            f"expected {count} answers, got {len(answer)}", source=source, remedy="return one for each example, in their order"
        )
    labels, scores = [], []
    for item in answer:
        label, score = _label_and_score(item, source)
        labels.append(label)
        scores.append(score)
    return match_labels(labels, np.array(scores, dtype=np.float64), classes, source)


def _label_and_score(item: Any, source: str) -> tuple[str | None, float]:
    """A label and its score, NaN if there is none; of several, as of a pipeline with top_k, the one with the highest score."""
    if isinstance(item, list):
        scored = [_label_and_score(part, source) for part in item]
        return max(scored, key=lambda pair: pair[1]) if scored else (None, math.nan)
    if not isinstance(item, dict) or "label" not in item:
        return label_text(item), math.nan
    score = item.get("score")
    is_number = isinstance(score, Real) and not isinstance(score, bool)
    if score is not None and not (is_number and 0 <= score <= 1 + ROW_SUM_TOLERANCE):
        raise InputError(f"the score {score!r:.40} is not a probability", source=source, remedy="return one from 0 to 1")
    return label_text(item["label"]), math.nan if score is None else min(float(score), 1.0)


def match_labels(labels: Sequence[str | None], confidence: FloatArray, classes: Sequence[str], source: str) -> CalledAnswer:
    """Find the classes that labels name.

    Parameters
    ----------
    labels : sequence of str or None
        One per example.
    confidence : array of float, shape (N,)
        The confidences in them; NaN where there is none.
    classes : sequence of str
        The classes.
    source : str
        The model, for messages.

    Returns
    -------
    CalledAnswer

    Raises
    ------
    InputError
        If a label is no class, with its name.
    """
    index: dict[str | None, int] = {name: k for k, name in enumerate(classes)}
    index[None] = NO_CLASS
    unknown = [label for label in dict.fromkeys(labels) if label not in index]
    if unknown:
        raise unknown_classes(unknown, classes, source)
    predicted = np.array([index[label] for label in labels], dtype=np.int64)
    return CalledAnswer(predicted, confidence)


def unknown_classes(names: Sequence[object], classes: Sequence[str], source: str) -> InputError:
    """Return the error for classes that a student does not know.

    Parameters
    ----------
    names : sequence of str
        The unknown ones.
    classes : sequence of str
        Those of the student.
    source : str
        The model that named them.

    Returns
    -------
    InputError
    """
    noun = "class" if len(names) == 1 else "classes"
    return InputError(
        f"the student does not know the {noun} {list_names(names)}",
        source=source,
        remedy=f"use the names of its classes, {list_names(classes)}",
    )


def _in_order_of_classes(table: Any, classes: Sequence[str], source: str) -> Any:
    """The columns of a DataFrame in the order of the classes; as they are if nobody named them."""
    columns = list(table.columns)
    names = [label_text(column) for column in columns]
    if sorted(map(str, names)) == sorted(classes):
        return table[[columns[names.index(name)] for name in classes]]
    if names == [str(number) for number in range(len(classes))] or len(names) != len(classes):
        return table
    raise InputError(
        f"the columns of the answer are {list_names(columns)}, the classes {list_names(classes)}",
        source=source,
        remedy="name the columns by the classes, or return an array in their order",
    )


def _is_row(value: Any) -> bool:
    """Whether this is a row of numbers, not the answer of a pipeline."""
    if isinstance(value, list | tuple):
        return not value or not isinstance(value[0], dict)
    return getattr(value, "ndim", 0) == 1
