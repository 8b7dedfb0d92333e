"""A classifier that is ready for use: `Student` gives labels, calibrated probabilities, and hands over what it cannot promise.

What runs the network is a `Backend`: onnxruntime in `distilcal.inference.onnx`, torch in `distilcal.export`. To add another,
write a class with ``compute_logits``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from distilcal.calibrate import Calibrator
from distilcal.data.convert import as_inputs as as_inputs
from distilcal.data.dataset import Choices, Dataset
from distilcal.errors import InputError
from distilcal.inference.deferral import Acceptance, Answer, DeferralTeacher, accept_from, ask_about, merge_answers
from distilcal.predictions import FloatArray, Predictions
from distilcal.selective import CascadeThreshold, Threshold, loss_threshold, threshold

PACKAGE = "package:"  # a model inside an installed Python package
OnProgress = Callable[[int, int], None]  # examples done, examples in all


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
    teacher_correct : array of bool, shape (N,), optional
        Whether the teacher of its run was right about the rows of ``dev``.
    text_pairs : bool, optional
        Whether it was trained on pairs of texts. None: not on texts, or it is not known.

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
    teacher_correct: NDArray[np.bool_] | None = None
    text_pairs: bool | None = None

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
        if _is_empty(inputs):
            return np.zeros((0, len(self.classes)))
        return self.predictions(self.as_dataset(inputs), on_progress=on_progress).probs

    @overload
    def predict(self, inputs: Any, *, on_progress: OnProgress | None = None) -> list[str]: ...

    @overload
    def predict(
        self,
        inputs: Any,
        *,
        accuracy: float | None = None,
        confidence: float | None = None,
        max_loss: float | None = None,
        defer_to: Any = None,
        on_progress: OnProgress | None = None,
    ) -> list[Answer]: ...

    def predict(
        self,
        inputs: Any,
        *,
        accuracy: float | None = None,
        confidence: float | None = None,
        max_loss: float | None = None,
        defer_to: Any = None,
        on_progress: OnProgress | None = None,
    ) -> list[str] | list[Answer]:
        """Return the most probable class of each example, or leave what is doubtful to a teacher or a human.

        Parameters
        ----------
        inputs : list of str, list of pairs, array, or Dataset
            The examples; see `as_inputs`.
        accuracy : float, optional
            Required accuracy, such as 0.95: answers whose confidence cannot promise it are deferred. The threshold is chosen
            on dev by `distilcal.selective.threshold`; it holds for data like dev, with 95 % confidence.
        confidence : float, optional
            The threshold itself, in place of ``accuracy``: answers of lower confidence are deferred.
        max_loss : float, optional
            In place of both, the accuracy that student and teacher together may lose to the teacher alone: 0.005 is half a
            percentage point. The threshold is chosen on dev by `distilcal.selective.loss_threshold`; it holds for the teacher
            of the student's run, for data like dev, with 95 % confidence.
        defer_to : Student, str, Path, model, classifier or callable, optional
            Who answers what is deferred: another student or the path of one, the URL of a ``distilcal serve``, a model or
            pipeline of transformers, a classifier of scikit-learn, or a function from a list of inputs to labels (None for no
            answer) or to probabilities in the order of ``classes``. It gets the deferred examples in one call, equal ones once.
            By default the accuracy is the one that the run required.
        on_progress : callable, optional
            Called with the number of examples done and the number of all.

        Returns
        -------
        list of str, or list of Answer
            Class names; with any of ``accuracy``, ``confidence``, ``max_loss`` and ``defer_to``, for each example its label,
            confidence, who answered, and whether it was deferred. The label is None where nobody answered.

        Raises
        ------
        InputError
            If the examples are not of the kind that the model reads, the model has no dev rows to choose a threshold on, or the
            teacher cannot answer for this student.
        TeacherError
            If the teacher fails, or gives an answer that cannot be used.

        Examples
        --------
        >>> class Length:
        ...     def compute_logits(self, data, on_progress=None):
        ...         return np.array([[0.0, len(text) - 5.0] for text in data.inputs.text])
        >>> student = Student(Length(), ("short", "long"), "texts")
        >>> answers = student.predict(["a long film", "films"], confidence=0.8, defer_to=lambda texts: ["short"] * len(texts))
        >>> [(answer.label, answer.answered_by) for answer in answers]
        [('long', 'student'), ('short', 'teacher')]
        """
        if all(setting is None for setting in (accuracy, confidence, max_loss, defer_to)):
            return [self.classes[k] for k in self.predict_proba(inputs, on_progress=on_progress).argmax(axis=1)]
        acceptance = self.acceptance(accuracy=accuracy, confidence=confidence, max_loss=max_loss)
        teacher = None if defer_to is None else self.teacher(defer_to)
        if _is_empty(inputs):
            return []
        data = self.as_dataset(inputs)
        probs = self.predictions(data, on_progress=on_progress).probs
        deferred = acceptance.defers(probs.max(axis=1))
        answer = None
        if teacher is not None and deferred.any():
            answer = ask_about(teacher, data.select(deferred))
        return merge_answers(self.classes, probs, deferred, answer).to_list()

    def acceptance(
        self, *, accuracy: float | None = None, confidence: float | None = None, max_loss: float | None = None
    ) -> Acceptance:
        """Return which of its answers the student keeps.

        Parameters
        ----------
        accuracy : float, optional
            The accuracy that these answers should have; by default the one that the student's run required.
        confidence : float, optional
            The lowest confidence of these answers, in place of an accuracy.
        max_loss : float, optional
            In place of both, the accuracy that student and teacher together may lose to the teacher alone.

        Returns
        -------
        Acceptance

        Raises
        ------
        InputError
            If several are given, one is not between 0 and 1, or there are no dev rows to choose a threshold on.
        """
        given = {"accuracy": accuracy, "confidence (--threshold)": confidence, "max_loss": max_loss}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise InputError(f"{' and '.join(names)} each choose the threshold", remedy="give one of them")
        if confidence is not None:
            return accept_from(confidence)
        if max_loss is not None:
            limit = self.loss_threshold(max_loss)
            return Acceptance(limit.confidence, limit.message, max_loss=max_loss)
        chosen = self.threshold(self.required_accuracy if accuracy is None else accuracy)
        return Acceptance(chosen.confidence, chosen.message, accuracy=chosen.target_accuracy)

    def teacher(self, defer_to: Any) -> DeferralTeacher:
        """Return who answers what is deferred, after checking that its classes are those of the student.

        Parameters
        ----------
        defer_to : object
            See `predict`.

        Returns
        -------
        DeferralTeacher
            It may be given to `predict` again, so that a model is loaded once.

        Raises
        ------
        InputError
            If it cannot answer for this student.
        """
        from distilcal.inference.teachers import as_deferral_teacher

        return as_deferral_teacher(defer_to, self)

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
                remedy="load a run of distilcal or what it exported, or choose a confidence (--threshold)",
            )
        return threshold(self.dev, accuracy=accuracy)

    def loss_threshold(self, max_loss: float = 0.005) -> CascadeThreshold:
        """Return the confidence from which answers are kept, so that student and teacher together lose little to the teacher.

        Parameters
        ----------
        max_loss : float, default 0.005
            The accuracy that may be lost: 0.005 is half a percentage point.

        Returns
        -------
        CascadeThreshold
            Its ``confidence`` is None if no confidence can promise it: then all is left to the teacher.

        Raises
        ------
        InputError
            If the model does not know how its teacher did on its dev rows.
        """
        if self.dev is None or self.teacher_correct is None:
            raise InputError(
                f"{self.name} has no dev predictions of its teacher, so no loss can be promised",
                remedy="load a run of distilcal that has a teacher or what it exported, or choose an accuracy or a confidence",
            )
        confidence = self.dev.confidence
        own = Predictions.from_confidences(confidence, self.dev.correct, name="dev")
        return loss_threshold(own, Predictions.from_confidences(confidence, self.teacher_correct), max_loss)

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

        Raises
        ------
        InputError
            If the examples are not of the kind that the model reads.
        """
        data = self.as_dataset(data)
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
        if isinstance(data.inputs, Choices) and data.inputs.endings.shape[1] != len(self.classes):
            raise InputError(
                f"{self.name} reads {len(self.classes)} choices, got {data.inputs.endings.shape[1]}",
                remedy="give as many endings everywhere",
            )
        # The rule of training: another domain may have one text where the student learned from two.
        if self.text_pairs is False and data.holds_pairs:
            raise InputError(f"{self.name} was trained on single texts, got pairs of texts", remedy="give single texts")
        if self.text_pairs and data.input_kind == "texts" and not data.holds_pairs:
            message = f"{self.name} was trained on pairs of texts, got single texts: its answers may be worth little"
            warnings.warn(message, stacklevel=1)  # this line, so that it is shown once
        return data


def model_path(source: Any) -> Path:
    """Return where a model is, after checking that it can be one.

    Parameters
    ----------
    source : str or Path
        A folder, an .onnx, or a hub name.

    Returns
    -------
    Path

    Raises
    ------
    InputError
        If it is no path, a file that is not an .onnx, or missing where it can only be a path: a ``Path``, or a text as
        ``./name``, ``a/b/c`` or that of something in an existing folder. Other names may be on the hub.

    Examples
    --------
    >>> model_path("student.onnx").suffix
    '.onnx'
    >>> model_path("./reviews")
    Traceback (most recent call last):
    distilcal.errors.InputError: ./reviews: there is no such folder; give the folder of a run or of a saved model, or an .onnx
    """
    if not isinstance(source, str | Path) or not str(source).strip():
        raise InputError(
            f"expected the path of a model, got {source!r:.60}",
            remedy="give the folder of a run or of a saved model, or an .onnx",
        )
    if str(source).startswith(PACKAGE):
        return Path(source)
    path = Path(source)
    is_onnx = path.suffix.lower() == ".onnx"
    if path.exists() and not path.is_dir() and not is_onnx:
        raise InputError("this file is not a model", source=str(source), remedy="give the folder of one, or an .onnx")
    if path.is_dir() and is_onnx:
        raise InputError("this is a folder, not an .onnx file", source=str(source), remedy="give the file")
    if not path.exists() and not is_onnx and (isinstance(source, Path) or _is_only_a_path(source)):
        raise InputError(
            "there is no such folder", source=str(source), remedy="give the folder of a run or of a saved model, or an .onnx"
        )
    return path


def _is_only_a_path(name: str) -> bool:
    """Whether a name cannot be one of the hub, NAME or OWNER/NAME, or its first part is a folder here."""
    has_parent = len(Path(name).parts) > 1
    return (
        name.startswith((".", "/", "~"))
        or name.endswith("/")
        or "\\" in name
        or len(Path(name).parts) > 2
        or (has_parent and Path(name).parent.is_dir())
    )


def _is_empty(inputs: Any) -> bool:
    return isinstance(inputs, list | tuple | np.ndarray) and not len(inputs)
