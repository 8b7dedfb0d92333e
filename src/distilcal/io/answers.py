"""Answers of language models: ``.jsonl`` files of log-probabilities or labels, one answer a line.

An answer names its example by ``id`` or by ``text`` (and ``pair`` where examples are pairs of texts), and holds one of:

- ``top_logprobs``: log-probabilities of some classes, as an object by class name, or as the list of tokens that APIs return,
- ``label``: a class, without any confidence,
- ``labels``: several such votes.

Several answers about one example are averaged as probabilities. Beside ``top_logprobs``, ``label`` is the true class of the
example; alone it is the answer. To add a form of answers, write a parser like ``_parse_tokens``, called in ``_add_answer``.
"""

from __future__ import annotations

import hashlib
import logging
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError, list_names
from distilcal.io.tables import stream_records
from distilcal.predictions import UNKNOWN, FloatArray, Predictions

SCORES = "top_logprobs"
TEXT_ID_DIGITS = 16  # of the hash of a text that is its id, as in a Dataset without ids
SEPARATOR = "\x1f"  # between the texts of a pair
ROUNDING = 1e-3  # how far the probabilities of an answer may be above 1 by rounding
LOWEST_LOGPROB = -9999  # as APIs give it for what is very unlikely
SMALLEST_PROBABILITY = 1e-7  # of a class in an answer with log-probabilities: a language model rules nothing out

logger = logging.getLogger(__name__)


def read_answers(path: str | Path, *, classes: Sequence[str] | None = None) -> Predictions:
    """Read answers of a language model as predictions.

    Probabilities of classes that an answer does not name share what the named ones leave, 1 − Σ exp(log-probability), evenly.
    An answer that names all classes is divided by its sum, and so is one whose sum is above 1 by rounding. No class of an
    answer with log-probabilities gets less than 1e-7, so that one mistake does not make the likelihood of all answers 0.
    A label without log-probabilities gives all probability to its class.

    Parameters
    ----------
    path : str or Path
        A .jsonl file.
    classes : sequence of str, optional
        The classes in order. By default those that the file names, sorted; lists of tokens do not tell classes from other
        words, so for these the classes are needed.

    Returns
    -------
    Predictions
        One row an example, in the order of its first answer. Examples that are named by their text have the ids that a
        Dataset without ids gives them.

    Raises
    ------
    InputError
        If a line is malformed or names an unknown class, with the line.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answers.jsonl"
    >>> _ = path.write_text('{"id": "a", "top_logprobs": {"pos": -0.105}}\\n{"id": "b", "labels": ["neg", "neg", "pos"]}\\n')
    >>> read_answers(path).probs.round(2).tolist()
    [[0.1, 0.9], [0.67, 0.33]]
    """
    path = Path(path)
    answers = _Answers(classes)
    for line, record in stream_records(path):
        try:
            _add_answer(answers, record)
        except InputError as error:
            error.source, error.line = str(path), line
            raise
    if not answers.examples:
        raise InputError("there are no answers", source=str(path), remedy="write one JSON object per line")
    try:
        return answers.to_predictions().rename(path.stem)
    except InputError as error:
        error.source, error.row = str(path), None
        raise


def is_answer(record: dict[str, Any]) -> bool:
    """Return whether a line of a .jsonl file is an answer, and not a prediction with a score for every class.

    Parameters
    ----------
    record : dict
        The object of the line.

    Returns
    -------
    bool
        True if it has ``top_logprobs``, ``labels``, or a ``label`` without scores.

    Examples
    --------
    >>> is_answer({"id": "a", "label": "pos"}), is_answer({"id": "a", "label": "pos", "probs": [0.1, 0.9]})
    (True, False)
    """
    keys = {key for key, value in record.items() if value is not None}
    if SCORES in keys or "labels" in keys:
        return True
    return "label" in keys and not keys & {"logits", "probs", "correct"}


def text_id(text: str, pair: str | None = None) -> str:
    """Return the id of an example without one: a hash of its text, the same that a Dataset gives it.

    Parameters
    ----------
    text : str
        The text, or the first of a pair.
    pair : str, optional
        The second text.

    Returns
    -------
    str
        16 hexadecimal digits.

    Examples
    --------
    >>> text_id("good")
    '8cb260423daf712f'
    """
    content = text if pair is None else text + SEPARATOR + pair
    # Half of a surrogate pair is no character: a Dataset replaces it.
    return hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=16).hexdigest()[:TEXT_ID_DIGITS]


@dataclass
class _Answers:
    """The answers that were read so far: one vote a line or label, and one entry for each class that a vote names."""

    given_classes: Sequence[str] | None
    class_names: list[str] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    by_folded_name: dict[str, int | None] = field(default_factory=dict)  # None where classes differ in case only
    examples: dict[str, int] = field(default_factory=dict)  # id to row
    true_class: dict[int, int] = field(default_factory=dict)  # by row, where it is known
    vote_row: array[int] = field(default_factory=lambda: array("q"))
    vote_is_soft: bytearray = field(default_factory=bytearray)
    entry_vote: array[int] = field(default_factory=lambda: array("q"))
    entry_class: array[int] = field(default_factory=lambda: array("q"))
    entry_probability: array[float] = field(default_factory=lambda: array("d"))

    def __post_init__(self) -> None:
        for name in self.given_classes or ():
            self.add_class(str(name))

    def add_class(self, name: str) -> int:
        """Add a class and return its index."""
        index = len(self.class_names)
        self.class_names.append(name)
        exact, folded = name.strip(), name.strip().casefold()
        self.by_name[exact] = index
        self.by_folded_name[folded] = None if folded in self.by_folded_name else index
        return index

    def look_up(self, name: str) -> int | None:
        """Return the index of a class by its name, or by its name in another case; None if there is none."""
        name = name.strip()
        index = self.by_name.get(name)
        return self.by_folded_name.get(name.casefold()) if index is None else index

    def find_class(self, name: object) -> int:
        """Return the index of the class that an answer names; it is new if the classes come from the file."""
        if type(name) is int:
            name = str(name)
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"class {name!r} is not a name", remedy="write the name of a class in quotes")
        index = self.look_up(name)
        if index is not None:
            return index
        if self.given_classes is None:
            return self.add_class(name.strip())
        raise InputError(f"there is no class {name!r}", remedy=f"the classes are {list_names(self.class_names)}")

    def add_vote(self, row: int, probabilities: dict[int, float], *, soft: bool) -> None:
        vote = len(self.vote_row)
        self.vote_row.append(row)
        self.vote_is_soft.append(soft)
        for index, probability in probabilities.items():
            self.entry_vote.append(vote)
            self.entry_class.append(index)
            self.entry_probability.append(probability)

    def to_predictions(self) -> Predictions:
        """Return the mean of each example's votes."""
        if len(self.class_names) < 2:
            raise InputError(
                f"all answers name one class, {self.class_names[0]!r}" if self.class_names else "no answer names a class",
                remedy="use it with data, whose classes are known, or give classes=[…]",
            )
        rows, classes = len(self.examples), len(self.class_names)
        vote_row = np.array(self.vote_row, dtype=np.int64)
        votes = _distributions(self, classes)
        if rows == len(votes):
            probs = votes
        else:
            probs = np.zeros((rows, classes))
            np.add.at(probs, vote_row, votes)
            probs /= np.bincount(vote_row, minlength=rows)[:, None]
        labels = np.full(rows, UNKNOWN, dtype=np.int64)
        labels[list(self.true_class)] = list(self.true_class.values())
        ids = np.array(list(self.examples))
        predictions = Predictions.from_probs(probs, labels, ids=ids, classes=self.class_names)
        if self.given_classes is not None:
            return predictions
        return predictions.reorder_classes(sorted(self.class_names))


def _distributions(answers: _Answers, classes: int) -> FloatArray:
    """Return the distribution over the classes of every vote (V, K)."""
    vote = np.array(answers.entry_vote, dtype=np.int64)
    probs = np.zeros((len(answers.vote_row), classes))
    probs[vote, np.array(answers.entry_class, dtype=np.int64)] = np.array(answers.entry_probability)
    is_soft = np.frombuffer(bytes(answers.vote_is_soft), dtype=np.uint8).astype(bool)
    unnamed = classes - np.bincount(vote, minlength=len(probs))
    rest = np.maximum(1 - probs.sum(axis=1), 0.0)
    share = np.divide(rest, unnamed, out=np.zeros(len(probs)), where=unnamed > 0)
    nothing_named = int((is_soft & (unnamed == classes)).sum())
    if nothing_named:
        logger.warning("%d answers name none of the classes: all classes are equally probable in them", nothing_named)
    is_named = np.zeros(probs.shape, dtype=bool)
    is_named[vote, np.array(answers.entry_class, dtype=np.int64)] = True
    soft: NDArray[np.bool_] = is_soft[:, None]
    probs = np.where(soft & ~is_named, share[:, None], probs)
    probs = np.where(soft, np.maximum(probs, SMALLEST_PROBABILITY), probs)
    normalised: FloatArray = probs / probs.sum(axis=1, keepdims=True)
    return normalised


# ---- one line ----------------------------------------------------------------------------------------------------------


def _add_answer(answers: _Answers, record: dict[str, Any]) -> None:
    for key in ("logits", "probs"):
        if record.get(key) is not None:
            raise InputError(
                f"{key!r} among answers", remedy="write predictions, which have a score for every class, to a file of their own"
            )
    row = answers.examples.setdefault(_example_id(record), len(answers.examples))
    scores, label, labels = record.get(SCORES), record.get("label"), record.get("labels")
    if scores is not None:
        if isinstance(scores, dict):
            probabilities = _parse_classes(answers, scores)
        elif isinstance(scores, list):
            probabilities = _parse_tokens(answers, scores)
        else:
            raise InputError(
                f"{SCORES} {scores!r} is neither an object nor a list", remedy="give log-probabilities by class or by token"
            )
        answers.add_vote(row, probabilities, soft=True)
        if label is not None:
            _set_true_class(answers, row, label)
    elif labels is not None:
        if not isinstance(labels, list) or not labels:
            raise InputError(f"labels {labels!r} is not a list of classes", remedy='give one class or more, as in ["a", "b"]')
        for vote in labels:
            answers.add_vote(row, {answers.find_class(vote): 1.0}, soft=False)
    elif label is not None:
        answers.add_vote(row, {answers.find_class(label): 1.0}, soft=False)
    else:
        raise InputError(
            f"the object has {', '.join(record) or 'nothing'}", remedy=f"an answer needs '{SCORES}', 'label' or 'labels'"
        )


def _example_id(record: dict[str, Any]) -> str:
    id_, text, pair = record.get("id"), record.get("text"), record.get("pair")
    if id_ is not None:
        if type(id_) not in (str, int):
            raise InputError(f"id {id_!r} is neither text nor a number", remedy="fix the line")
        return str(id_)
    if text is None:
        raise InputError("the answer names no example", remedy="give its 'id' or its 'text'")
    for key, value in (("text", text), ("pair", pair)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"{key} {value!r} is not a text", remedy="fix the line")
    return text_id(text, pair)


def _parse_classes(answers: _Answers, scores: dict[str, Any]) -> dict[int, float]:
    """Return the probabilities of an object of log-probabilities by class."""
    probabilities: dict[int, float] = {}
    for name, logprob in scores.items():
        index = answers.find_class(name)
        probabilities[index] = probabilities.get(index, 0.0) + _probability(name, logprob)
    return _check_sum(probabilities)


def _parse_tokens(answers: _Answers, tokens: list[Any]) -> dict[int, float]:
    """Return the probabilities of a list of tokens: those that are no class are left out, equal ones are added."""
    if answers.given_classes is None:
        raise InputError(
            "a list of tokens does not tell which of them are classes",
            remedy="use it with data, whose classes are known, or give classes=[…]",
        )
    probabilities: dict[int, float] = {}
    for entry in tokens:
        if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
            raise InputError(f"{entry!r} is not a token", remedy='give objects such as {"token": "yes", "logprob": -0.1}')
        probability = _probability(entry["token"], entry.get("logprob"))
        index = answers.look_up(entry["token"])
        if index is not None:
            probabilities[index] = probabilities.get(index, 0.0) + probability
    return _check_sum(probabilities)


def _probability(name: str, logprob: Any) -> float:
    if type(logprob) is int:
        logprob = float(max(min(logprob, 1), LOWEST_LOGPROB))  # an integer may have more digits than a float can hold
    if type(logprob) is not float or math.isnan(logprob):
        raise InputError(f"the log-probability of {name!r} is {logprob!r}, not a number", remedy="give a natural logarithm")
    if logprob > ROUNDING:
        raise InputError(
            f"the log-probability of {name!r} is {logprob!r}, above 0", remedy="give the natural logarithm of a probability"
        )
    return math.exp(min(logprob, 0.0))


def _check_sum(probabilities: dict[int, float]) -> dict[int, float]:
    total = sum(probabilities.values())
    if total > 1 + ROUNDING:
        raise InputError(
            f"the probabilities of the classes sum to {total:.6g}", remedy="give natural logarithms of probabilities"
        )
    return probabilities


def _set_true_class(answers: _Answers, row: int, label: object) -> None:
    index = answers.find_class(label)
    if answers.true_class.setdefault(row, index) != index:
        other = answers.class_names[answers.true_class[row]]
        raise InputError(f"the label is {label!r}, of an earlier answer about the same example {other!r}", remedy="correct one")
