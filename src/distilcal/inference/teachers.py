"""Teachers that a student can defer to: students, models and services by their path or URL, and whatever can be called.

To add a kind, add a case to `as_deferral_teacher`. What needs torch is imported when such a teacher is given, so that an .onnx
can defer to an .onnx, a service or a function without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.data.convert import label_text
from distilcal.data.dataset import Dataset
from distilcal.errors import InputError, optional_packages
from distilcal.inference.called import CalledAnswer, bare_model, check_probs, plain_inputs, read_answer, unknown_classes
from distilcal.inference.deferral import DeferralTeacher
from distilcal.inference.onnx import load_onnx
from distilcal.inference.remote import is_url, remote_teacher
from distilcal.inference.student import Student, model_path
from distilcal.predictions import FloatArray


def as_deferral_teacher(teacher: Any, student: Student) -> DeferralTeacher:
    """Return anything that can answer in place of a student, after checking that its classes are those of the student.

    Parameters
    ----------
    teacher : Student, str, Path, model, classifier or callable
        A loaded student; the path of one: the folder of a run, of one of its stages or of a saved model, or an .onnx; the URL
        of a ``distilcal serve``; a model or text-classification pipeline of transformers; a fitted classifier of scikit-learn;
        or a function of a list of N inputs that returns N labels, None for no answer, or probabilities (N, K) in the order of
        the student's classes.
    student : Student
        Who defers.

    Returns
    -------
    DeferralTeacher

    Raises
    ------
    InputError
        If it is none of these, cannot be loaded, reads other inputs, or knows a class that the student does not know.
    TeacherError
        If a service does not answer.
    """
    if isinstance(teacher, DeferralTeacher):
        return teacher
    if isinstance(teacher, str) and is_url(teacher):
        return remote_teacher(teacher, student.classes, student.input_kind)
    if isinstance(teacher, str | Path):
        teacher = _load(teacher)
    elif bare_model(teacher) is not None:
        from distilcal.export.transformers_model import wrap_transformers_model

        teacher = wrap_transformers_model(teacher)
    if isinstance(teacher, Student):
        return _student_teacher(teacher, student)
    name = _name_of(teacher)
    classes = _known_classes(teacher)
    _check_classes(classes, student.classes, name)
    if hasattr(teacher, "predict_proba"):
        if not classes:
            return DeferralTeacher(name, partial(_call, teacher.predict_proba, student.classes, name))
        return DeferralTeacher(name, partial(_call_for_probs, teacher.predict_proba, classes, student.classes, name))
    if classes and hasattr(teacher, "predict"):
        return DeferralTeacher(name, partial(_call, teacher.predict, student.classes, name))
    if callable(teacher):
        return DeferralTeacher(name, partial(_call, teacher, student.classes, name))
    raise InputError(
        f"a {type(teacher).__name__} cannot answer for a student",
        source="defer_to",
        remedy="give a student, the path of one, the URL of a service, a model of transformers, a classifier of scikit-learn, "
        "or a function that returns labels or probabilities for a list of inputs",
    )


def _load(path: str | Path) -> Student:
    """A student of any kind; only an .onnx is loaded without torch."""
    if model_path(path).suffix.lower() == ".onnx":
        return load_onnx(path)
    with optional_packages("a teacher that is not an .onnx"):
        from distilcal.export import load_student

    return load_student(path)


def _student_teacher(teacher: Student, student: Student) -> DeferralTeacher:
    if teacher.input_kind != student.input_kind:
        raise InputError(
            f"it reads {teacher.input_kind}, the student {student.input_kind}",
            source=f"teacher {teacher.name}",
            remedy=f"give a teacher that reads {student.input_kind}",
        )
    if teacher.text_pairs is False and student.text_pairs:
        raise InputError(
            "it was trained on single texts, the student on pairs of texts",
            source=f"teacher {teacher.name}",
            remedy="give a teacher that reads pairs",
        )
    _check_classes(teacher.classes, student.classes, teacher.name)

    def answer(data: Dataset) -> CalledAnswer:
        probs = teacher.predictions(data).probs
        return CalledAnswer.from_probs(_in_order(probs, teacher.classes, student.classes))

    return DeferralTeacher(teacher.name, answer)


def _call(function: Callable[[Any], Any], classes: Sequence[str], name: str, data: Dataset) -> CalledAnswer:
    return read_answer(function(plain_inputs(data.inputs)), len(data), classes, f"teacher {name}")


def _call_for_probs(
    function: Callable[[Any], Any], own_classes: Sequence[str], classes: Sequence[str], name: str, data: Dataset
) -> CalledAnswer:
    probs = check_probs(function(plain_inputs(data.inputs)), len(data), own_classes, f"teacher {name}")
    return CalledAnswer.from_probs(_in_order(probs, own_classes, classes))


def _in_order(probs: FloatArray, own_classes: Sequence[str], classes: Sequence[str]) -> FloatArray:
    """Probabilities in the order of the student's classes; 0 for those that the teacher does not know."""
    ordered = np.zeros((len(probs), len(classes)))
    ordered[:, [classes.index(name) for name in own_classes]] = probs
    return ordered


def _known_classes(teacher: Any) -> tuple[str, ...]:
    """The classes that an object names, as classifiers of scikit-learn do."""
    classes: Any = getattr(teacher, "classes_", None)
    if classes is None:
        return ()
    return tuple(label_text(name) or "" for name in classes)


def _check_classes(own_classes: Sequence[str], classes: Sequence[str], name: str) -> None:
    unknown = [own for own in own_classes if own not in classes]
    if unknown:
        raise unknown_classes(unknown, classes, f"teacher {name}")


def _name_of(teacher: Any) -> str:
    inner = teacher.func if isinstance(teacher, partial) else teacher
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))
