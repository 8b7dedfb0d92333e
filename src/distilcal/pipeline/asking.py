"""Teachers that are called: their probabilities on every example of a run, asked for in chunks and checked.

Answers of a function are kept beside the run until it is finished, so that an interrupted call does not ask again. They belong
to the function's own code, the plain values that it is built with, and to the content of each example.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.convert import label_text
from distilcal.data.splits import Splits
from distilcal.errors import InputError, list_names
from distilcal.inference.called import check_probs, plain_inputs
from distilcal.io.atomic import atomic_write, open_npz
from distilcal.io.folders import digest
from distilcal.pipeline.logs import main_process_logger
from distilcal.predictions import FloatArray, Predictions

CHUNK = 1000  # examples that a teacher is asked about at once
ANSWERS = "answers"  # folder of the chunks that an interrupted call has answered

OnProgress = Callable[[int, int], None]  # examples done, examples in all
logger = main_process_logger(__name__)


@dataclass(frozen=True)
class AskedTeacher:
    """A teacher that is called for probabilities.

    Attributes
    ----------
    predict : callable
        Returns probabilities (N, K) for N inputs: a list of texts, of pairs, or of ``(prompt, endings)``, or an array.
    name : str
        What it is, for messages.
    classes : tuple of str
        The classes of the columns; empty: those of the data.
    identity : str
        A hash of its code and of the values that it is built with, to which kept answers belong; empty: not known, and it is
        asked again after an interruption.
    """

    predict: Callable[[Any], Any]
    name: str
    classes: tuple[str, ...] = ()
    identity: str = ""


def estimator_teacher(estimator: Any) -> AskedTeacher:
    """Return a fitted classifier of scikit-learn, or a student, as a teacher; its classes are matched by name.

    Parameters
    ----------
    estimator : object
        With ``predict_proba``, and ``classes_`` or ``classes``.

    Returns
    -------
    AskedTeacher

    Raises
    ------
    InputError
        If it is not fitted yet.
    """
    _check_fitted(estimator)
    classes: Any = getattr(estimator, "classes_", None)
    if classes is None:
        classes = getattr(estimator, "classes", ())
    names = tuple(label_text(name) or "" for name in classes)
    return AskedTeacher(estimator.predict_proba, type(estimator).__name__, names)


def _check_fitted(estimator: Any) -> None:
    """Refuse an estimator of scikit-learn that was not fitted; of others it is not known."""
    if "sklearn" not in sys.modules or not hasattr(estimator, "get_params"):
        return
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):  # the latter for what is no estimator, though it looks like one
        if not hasattr(estimator, "classes_"):
            raise InputError(
                f"the {type(estimator).__name__} is not fitted", source="teacher", remedy="call its fit first"
            ) from None


def callable_teacher(function: Callable[[Any], Any]) -> AskedTeacher:
    """Return a function as a teacher; its columns are the classes of the data.

    Parameters
    ----------
    function : callable
        Returns probabilities (N, K) for N inputs.

    Returns
    -------
    AskedTeacher
    """
    inner = function.func if isinstance(function, partial) else function
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return AskedTeacher(function, name, identity=_identity(function))


def ask_teacher(
    teacher: AskedTeacher,
    splits: Splits,
    folder: Path,
    *,
    labels: tuple[str, ...] = (),
    on_progress: OnProgress | None = None,
) -> Predictions:
    """Return a teacher's predictions on every example of all splits.

    Parameters
    ----------
    teacher : AskedTeacher
        The teacher; examples that read the same are asked about once.
    splits : Splits
        The examples.
    folder : Path
        Where the answers of a function are kept, in ``answers``, until `forget_answers`.
    labels : tuple of str
        Classes of its columns, in order; by default its own, or those of the data.
    on_progress : callable, optional
        Called with the number of examples answered, and of all.

    Returns
    -------
    Predictions
        Without labels, by the ids of the data.

    Raises
    ------
    InputError
        If its classes are not those of the data, or an answer is not an array of as many distributions, with the chunk.
    """
    classes = teacher_classes(teacher, labels, splits.train.classes)
    answers = _KeptAnswers(folder / ANSWERS / digest([teacher.identity, classes]) if teacher.identity else None)
    total = len(np.unique(np.concatenate([data.content_keys for data in splits])))
    if answers.count:
        kept = f"{answers.count:,}"
        logger.warning(
            "%s: %s answers of an interrupted call are used; delete %s to ask again", teacher.name, kept, folder / ANSWERS
        )
    for data in splits:
        _, first = np.unique(data.content_keys, return_index=True)
        rows = np.sort(first)
        rows = rows[~np.isin(data.content_keys[rows], answers.keys())]
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            where = f"teacher {teacher.name}, {len(chunk):,} examples of {data.name} from row {int(chunk[0]):,}"
            probs = check_probs(teacher.predict(plain_inputs(data.inputs.take(chunk))), len(chunk), classes, where)
            answers.add(data.content_keys[chunk], probs)
            if on_progress is not None:
                on_progress(answers.count, total)
    return _predictions(answers, splits, classes)


def teacher_classes(teacher: AskedTeacher, labels: Sequence[str], classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the classes of the teacher's columns, in order.

    Parameters
    ----------
    teacher : AskedTeacher
        The teacher.
    labels : sequence of str
        What the user calls its columns; empty: its own names, or those of the data.
    classes : tuple of str
        The classes of the data.

    Returns
    -------
    tuple of str

    Raises
    ------
    InputError
        If they are not the classes of the data.
    """
    names = tuple(labels) or teacher.classes or classes
    if sorted(names) != sorted(classes):
        raise InputError(
            f"the teacher {teacher.name} knows the classes {list_names(names)}, the data have {list_names(classes)}",
            remedy="name the classes of its columns in order, as teacher_labels=[...]",
        )
    return names


def forget_answers(folder: Path) -> None:
    """Delete the kept answers of a teacher, once the run that they belong to is finished.

    Parameters
    ----------
    folder : Path
        The folder that `ask_teacher` was given.
    """
    shutil.rmtree(folder / ANSWERS, ignore_errors=True)


class _KeptAnswers:
    """Probabilities by the content of the examples, each chunk kept in a file if there is a folder."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.count = 0
        self.probs: list[FloatArray] = []
        self._keys: list[NDArray[np.str_]] = []
        for path in sorted(folder.glob("*.npz")) if folder is not None else ():
            with open_npz(path) as arrays:
                self._append(arrays["keys"].astype(str), arrays["probs"])

    def add(self, keys: NDArray[np.str_], probs: FloatArray) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.folder / f"{len(self.probs):06d}.npz") as file:
                np.savez(file, keys=keys, probs=probs)
        self._append(keys, probs)

    def _append(self, keys: NDArray[np.str_], probs: FloatArray) -> None:
        self.count += len(keys)
        self._keys.append(keys)
        self.probs.append(probs)

    def keys(self) -> NDArray[np.str_]:
        return np.concatenate([np.array([], dtype=str), *self._keys])


def _predictions(answers: _KeptAnswers, splits: Splits, classes: tuple[str, ...]) -> Predictions:
    """The answers as predictions, one row for each id; equal ids of equal examples share one."""
    ids = np.concatenate([data.ids for data in splits])
    keys = np.concatenate([data.content_keys for data in splits])
    answered = answers.keys()
    order = np.argsort(answered)
    rows = order[np.searchsorted(answered, keys, sorter=order)]
    distinct, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    if (keys != keys[first][inverse]).any():
        shared = ids[int((keys != keys[first][inverse]).argmax())]
        raise InputError(
            f"two examples that differ have the id {str(shared)!r}", remedy="give every example of all splits an id of its own"
        )
    probs = np.concatenate(answers.probs)[rows[first]]
    return Predictions.from_probs(probs, ids=distinct, classes=classes, name="teacher")


# ---- identity of a function --------------------------------------------------------------------------------------------


class _NotPlainError(Exception):
    """A value of which it is not known whether it is the same in another process."""


def _identity(function: Callable[[Any], Any]) -> str:
    """A hash of a function, the same in every process; empty if it is built with more than plain values and functions."""
    try:
        return digest(_callable_facts(function))
    except (_NotPlainError, RecursionError):  # a function may refer to itself
        return ""


def _callable_facts(function: Any) -> list[Any]:
    """What a function consists of, or an object that is called: its code and its attributes."""
    if isinstance(function, partial | FunctionType):
        return _facts(function)
    if isinstance(function, MethodType):
        return [_facts(function.__func__), _facts(getattr(function.__self__, "__dict__", function.__self__))]
    call = type(function).__call__
    if not isinstance(call, FunctionType) or not hasattr(function, "__dict__"):
        raise _NotPlainError
    return [type(function).__qualname__, _facts(call), _facts(vars(function))]


def _facts(value: Any) -> list[Any]:
    """A plain value, or a function with all that it is built with, as lists of texts."""
    if value is None or value is ... or type(value) in (str, bytes, bool, int, float, complex):
        return [repr(value)]
    if isinstance(value, partial):
        return ["partial", _callable_facts(value.func), _facts(value.args), _facts(value.keywords)]
    if isinstance(value, FunctionType):
        cells = [_cell_facts(cell) for cell in value.__closure__ or ()]
        defaults = [_facts(value.__defaults__), _facts(value.__kwdefaults__)]
        return ["function", value.__qualname__, _facts(value.__code__), defaults, cells]
    if isinstance(value, CodeType):
        return ["code", value.co_code.hex(), list(value.co_names), _facts(value.co_consts)]
    if type(value) in (tuple, list):
        return [type(value).__name__, *map(_facts, value)]
    if type(value) in (set, frozenset):  # their order is another one in every process
        return [type(value).__name__, *sorted(map(_facts, value), key=str)]
    if type(value) is dict:
        return ["dict", *([_facts(key), _facts(part)] for key, part in value.items())]
    raise _NotPlainError


def _cell_facts(cell: CellType) -> list[Any]:
    try:
        return _facts(cell.cell_contents)
    except ValueError:  # empty
        raise _NotPlainError from None
