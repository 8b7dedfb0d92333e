"""Deferral: a student keeps the answers that it is confident in, a teacher gives the others, and each row tells who answered.

``Student.predict``, ``predict_file`` and the service put the same three steps together: `Acceptance` decides which rows are
deferred, `ask_about` asks a teacher about them, and `merge_answers` joins both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distilcal.arguments import checked
from distilcal.data.dataset import Dataset
from distilcal.errors import DistilcalError, InputError, TeacherError
from distilcal.inference.called import NO_CLASS, CalledAnswer
from distilcal.predictions import FloatArray, IntArray
from distilcal.selective import counted


class Answer(NamedTuple):
    """The answer to one example.

    Attributes
    ----------
    label : str or None
        The class; None where nobody answered, so that a human should.
    confidence : float or None
        The probability of the label according to who gave it, that of the student where nobody did; None if a teacher gave a
        label only.
    answered_by : {"student", "teacher"} or None
        Who gave the label.
    deferred : bool
        Whether the student's confidence was too low.
    """

    label: str | None
    confidence: float | None
    answered_by: str | None = "student"
    deferred: bool = False


@dataclass(frozen=True)
class Acceptance:
    """Which of its answers a student keeps.

    Attributes
    ----------
    confidence : float or None
        The lowest confidence that is kept; None: nothing is, as no confidence can promise what was required.
    message : str
        What is promised, as a sentence.
    accuracy : float, optional
        The accuracy that was required of the answers that are kept.
    max_loss : float, optional
        The accuracy that student and teacher together may lose to the teacher alone.
    """

    confidence: float | None
    message: str
    accuracy: float | None = None
    max_loss: float | None = None

    def defers(self, confidence: FloatArray) -> NDArray[np.bool_]:
        """Return which answers of these confidences (N,) are not kept."""
        lowest = np.inf if self.confidence is None else self.confidence
        deferred: NDArray[np.bool_] = confidence < lowest
        return deferred


@checked
def accept_from(confidence: float) -> Acceptance:
    """Return the rule that keeps answers from a confidence on, and promises nothing.

    Parameters
    ----------
    confidence : float
        Between 0 and 1.

    Returns
    -------
    Acceptance

    Raises
    ------
    InputError
        If it is no number between 0 and 1.

    Examples
    --------
    >>> accept_from(0.8).defers(np.array([0.7, 0.8, 0.9])).tolist()
    [True, False, False]
    """
    if not 0 <= confidence <= 1:
        raise InputError(f"the confidence {confidence} is not between 0 and 1", remedy="give one such as 0.8")
    return Acceptance(float(confidence), f"accept from {confidence:g} on, as chosen; no accuracy is promised")


@dataclass(frozen=True)
class DeferralTeacher:
    """Who answers what a student defers; `distilcal.inference.teachers.as_deferral_teacher` builds one.

    Attributes
    ----------
    name : str
        What it is, for messages.
    answer : callable
        Returns the answers to the examples of a Dataset, as classes of the student.
    is_service : bool
        Whether it is reached over HTTP.
    """

    name: str
    answer: Callable[[Dataset], CalledAnswer]
    is_service: bool = False


@dataclass(frozen=True)
class MergedAnswers:
    """The answers of a student and of a teacher to the same examples.

    Attributes
    ----------
    classes : tuple of str
        The classes.
    predicted : array of int, shape (N,)
        Index of the class of each example; -1 where nobody answered.
    confidence : array of float, shape (N,)
        According to who answered, or to the student; NaN where a teacher gave a label only.
    probs : array of float, shape (N, K)
        The same for every class; rows of NaN where a teacher gave a label only.
    deferred : array of bool, shape (N,)
        Where the student's confidence was too low.
    """

    classes: tuple[str, ...]
    predicted: IntArray
    confidence: FloatArray
    probs: FloatArray
    deferred: NDArray[np.bool_]

    @property
    def labels(self) -> list[str | None]:
        """The class of each example; None where nobody answered."""
        names = (*self.classes, None)  # the last is that of NO_CLASS
        return [names[k] for k in self.predicted.tolist()]

    @property
    def answered_by(self) -> list[str | None]:
        """Who answered: "student", "teacher" or None."""
        by_teacher = np.where(self.predicted == NO_CLASS, 2, 1)
        names = ("student", "teacher", None)
        return [names[k] for k in np.where(self.deferred, by_teacher, 0).tolist()]

    def to_list(self) -> list[Answer]:
        """Return the answers one by one."""
        known = [None if value != value else value for value in self.confidence.tolist()]
        return list(map(Answer, self.labels, known, self.answered_by, self.deferred.tolist()))


def ask_about(teacher: DeferralTeacher, data: Dataset) -> CalledAnswer:
    """Ask a teacher about examples, in one call and about equal ones once.

    Parameters
    ----------
    teacher : DeferralTeacher
        The teacher.
    data : Dataset
        The examples that a student deferred.

    Returns
    -------
    CalledAnswer
        One answer per example, in their order.

    Raises
    ------
    TeacherError
        If the teacher fails, or its answer is not one for each example.
    """
    _, first, inverse = np.unique(data.content_keys, return_index=True, return_inverse=True)
    order = np.argsort(first)  # the teacher sees them as they come
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    asked = data.select(first[order])
    try:
        return teacher.answer(asked).take(place[inverse])
    except TeacherError:
        raise
    except DistilcalError as error:
        raise TeacherError(error.problem, remedy=error.remedy, source=error.source) from error
    except Exception as error:  # whatever a function of the user raises
        raise TeacherError(
            f"it failed on {counted(len(asked), 'example')}: {type(error).__name__}: {error}", source=f"teacher {teacher.name}"
        ) from error


def merge_answers(
    classes: Sequence[str], probs: FloatArray, deferred: NDArray[np.bool_], answer: CalledAnswer | None = None
) -> MergedAnswers:
    """Join what a student answered and what a teacher answered in its place.

    Parameters
    ----------
    classes : sequence of str
        The classes.
    probs : array of float, shape (N, K)
        The student's probabilities.
    deferred : array of bool, shape (N,)
        Which answers the student does not keep.
    answer : CalledAnswer, optional
        The teacher's answers to these, in their order; None: there are none, and they are left to a human.

    Returns
    -------
    MergedAnswers

    Examples
    --------
    >>> probs, deferred = np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([False, True])
    >>> merge_answers(("neg", "pos"), probs, deferred).to_list()[1]
    Answer(label=None, confidence=0.6, answered_by=None, deferred=True)
    >>> merge_answers(("neg", "pos"), probs, deferred, CalledAnswer(np.array([0]), np.array([np.nan]))).to_list()[1]
    Answer(label='neg', confidence=None, answered_by='teacher', deferred=True)
    """
    predicted, confidence, merged = probs.argmax(axis=1), probs.max(axis=1), probs.copy()
    rows = np.flatnonzero(deferred)
    predicted[rows] = NO_CLASS
    if answer is not None:
        is_answered = answer.predicted != NO_CLASS
        answered = rows[is_answered]
        predicted[answered] = answer.predicted[is_answered]
        confidence[answered] = answer.confidence[is_answered]
        merged[answered] = np.nan if answer.probs is None else answer.probs[is_answered]
    return MergedAnswers(tuple(classes), predicted, confidence, merged, deferred)
