"""A classifier that is ready for use: `Student` gives labels, calibrated probabilities, and hands over what it cannot promise.

What runs the network is a `Backend`: onnxruntime in `distilcal.inference.onnx`, torch in `distilcal.export`. To add another,
write a class with ``compute_logits``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from distilcal.calibrate import Calibrator
from distilcal.data.convert import as_inputs as as_inputs
from distilcal.data.dataset import Dataset
from distilcal.errors import InputError
from distilcal.predictions import FloatArray, Predictions
from distilcal.selective import Threshold, threshold

OnProgress = Callable[[int, int], None]  # examples done, examples in all


class Answer(NamedTuple):
    """An answer with its confidence; the label is None where the example is handed over."""

    label: str | None
    confidence: float


class Backend(Protocol):
    """What runs the network."""

    def compute_logits(self, data: Dataset, on_progress: OnProgress | None = None) -> NDArray[Any]:
        """Return the logits (N, K) of examples, in the order of the student's classes."""


@dataclass(repr=False)
class Student:
    """A trained classifier with its calibration.

    ``distilcal.load`` returns one, and ``distilcal.distill(...).student`` is one.

    Parameters
    ----------
    backend : Backend
        Runs the network.
    classes : tuple of str
        The classes, in the order of the columns of `predict_proba`.
    input_kind : {"texts", "choices", "images", "vectors"}
        What it reads.
    calibrator : Calibrator, optional
        Applied to the backend's logits. None: they are calibrated already, or the model was never calibrated.
    dev : Predictions, optional
        Calibrated predictions on labelled rows that the model was not trained on: thresholds are chosen on them.
    name : str
        Where it comes from, for messages.
    required_accuracy : float
        The accuracy that its run required of answers that are not handed over.

    Examples
    --------
    >>> class Length:
    ...     def compute_logits(self, data, on_progress=None):
    ...         return np.array([[0.0, len(text) - 5.0] for text in data.inputs.text])
    >>> student = Student(Length(), ("short", "long"), "texts")
    >>> student.predict(["fine", "a film to forget"])
    ['short', 'long']
    >>> student.predict_proba(["fine"]).round(2).tolist()
    [[0.73, 0.27]]
    """

    backend: Backend
    classes: tuple[str, ...]
    input_kind: str
    calibrator: Calibrator | None = None
    dev: Predictions | None = None
    name: str = "student"
    required_accuracy: float = 0.95

    @property
    def calibration(self) -> str | None:
        """The kind of calibration, such as "temperature", also if it is part of the network; None if there is none."""
        return getattr(self.backend, "calibration", None) if self.calibrator is None else self.calibrator.kind

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.input_kind}, {len(self.classes)} classes)"

    def predict_proba(self, inputs: Any, *, on_progress: OnProgress | None = None) -> FloatArray:
        """Return calibrated probabilities.

        Parameters
        ----------
        inputs : list of str, list of pairs, array, or Dataset
            The examples; see `as_inputs`.
        on_progress : callable, optional
            Called with the number of examples done and the number of all.

        Returns
        -------
        array of float, shape (N, K)
            One row per example, one column per class in the order of ``classes``; rows sum to 1.

        Raises
        ------
        InputError
            If the examples are not of the kind that the model reads.
        """
        if isinstance(inputs, list | tuple | np.ndarray) and not len(inputs):
            return np.zeros((0, len(self.classes)))
        return self.predictions(self.as_dataset(inputs), on_progress=on_progress).probs

    @overload
    def predict(self, inputs: Any, *, accuracy: None = None, on_progress: OnProgress | None = None) -> list[str]: ...

    @overload
    def predict(self, inputs: Any, *, accuracy: float, on_progress: OnProgress | None = None) -> list[Answer]: ...

    def predict(
        self, inputs: Any, *, accuracy: float | None = None, on_progress: OnProgress | None = None
    ) -> list[str] | list[Answer]:
        """Return the most probable class of each example.

        Parameters
        ----------
        inputs : list of str, list of pairs, array, or Dataset
            The examples; see `as_inputs`.
        accuracy : float, optional
            Required accuracy, such as 0.95: answers whose confidence cannot promise it are handed over. The threshold is chosen
            on dev by `distilcal.selective.threshold`; it holds for data like dev, with 95 % confidence.
        on_progress : callable, optional
            Called with the number of examples done and the number of all.

        Returns
        -------
        list of str, or list of Answer
            Class names; with ``accuracy`` pairs of label and confidence, the label None where the example is handed over.

        Raises
        ------
        InputError
            If the examples are not of the kind that the model reads, or ``accuracy`` is asked of a model without dev rows.
        """
        lowest = None if accuracy is None else self.threshold(accuracy)
        probs = self.predict_proba(inputs, on_progress=on_progress)
        labels = [self.classes[k] for k in probs.argmax(axis=1)]
        if lowest is None:
            return labels
        confidence = probs.max(axis=1)
        accepted = np.zeros(len(probs), dtype=bool)
        if lowest.confidence is not None:
            accepted = confidence >= lowest.confidence
        answers = zip(labels, confidence.tolist(), accepted.tolist(), strict=True)
        return [Answer(label if is_accepted else None, value) for label, value, is_accepted in answers]

    def threshold(self, accuracy: float = 0.95) -> Threshold:
        """Return the confidence from which answers have a required accuracy.

        Parameters
        ----------
        accuracy : float, default 0.95
            The accuracy that accepted answers should have.

        Returns
        -------
        Threshold
            Its ``confidence`` is None if no confidence can promise the accuracy: then everything is handed over.

        Raises
        ------
        InputError
            If the model has no dev rows to choose it on.
        """
        if self.dev is None:
            raise InputError(
                f"{self.name} has no dev predictions, so no accuracy can be promised",
                remedy="load a run of distilcal or what it exported, or leave out accuracy",
            )
        return threshold(self.dev, accuracy=accuracy)

    def predictions(self, data: Dataset, *, on_progress: OnProgress | None = None) -> Predictions:
        """Return calibrated predictions, with the ids and, where the data have them, the labels of the data.

        Parameters
        ----------
        data : Dataset
            The examples, with or without labels; classes are matched by name.
        on_progress : callable, optional
            Called with the number of examples done and the number of all.

        Returns
        -------
        Predictions
        """
        logits = self.backend.compute_logits(data, on_progress)
        matched = data if data.labels is None else data.with_classes(self.classes)
        predictions = Predictions.from_logits(logits, matched.labels, ids=data.ids, classes=self.classes, name=data.name)
        return predictions if self.calibrator is None else self.calibrator(predictions)

    def as_dataset(self, inputs: Any) -> Dataset:
        """Return examples as a Dataset, after checking that the model reads their kind.

        Parameters
        ----------
        inputs : list of str, list of pairs, array, or Dataset
            The examples; see `as_inputs`.

        Returns
        -------
        Dataset
        """
        data = inputs if isinstance(inputs, Dataset) else Dataset(as_inputs(inputs), name="inputs")
        if data.input_kind != self.input_kind:
            raise InputError(f"{self.name} reads {self.input_kind}, got {data.input_kind}", remedy=f"give {self.input_kind}")
        return data
