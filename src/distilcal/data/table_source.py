"""Examples from tables: which columns hold the input, the label, the id and the group of each example."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Choices, Dataset, Inputs, choices, texts
from distilcal.errors import InputError, list_names
from distilcal.io.tables import ANSWER_COLUMNS, Place, Table, is_blank
from distilcal.predictions import FloatArray, IntArray, labels_from_text, text_array

SOFT_LABEL_PREFIX = "label_prob_"  # one column per class
INTEGER = re.compile(r"-?[0-9]{1,18}")
# Column names tried in this order where the user names none.
USUAL_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text", "text_pair"),
)
USUAL_TEXTS = ("text", "sentence")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what.

    Attributes
    ----------
    text : str
        The text, the first text of a pair, or the prompt of choices. Empty: found by the usual names, such as ``text``,
        ``sentence`` or ``premise``.
    pair : str
        The second text. Empty: none, or the partner of a first text that was found by its usual name.
    choices : tuple of str
        One column per ending, or a single column that holds lists. Empty: the examples are texts.
    label : str
        The label: a class name or an index.
    id : str
        The id. Empty: a column ``id`` if there is one, else ids are made from content.
    group : str
        What must not be divided by a split, such as the writer. Empty: none.

    Examples
    --------
    >>> Columns(text="premise", pair="hypothesis", label="gold")
    Columns(text='premise', pair='hypothesis', choices=(), label='gold', id='', group='')
    """

    text: str = ""
    pair: str = ""
    choices: tuple[str, ...] = ()
    label: str = "label"
    id: str = ""
    group: str = ""


def dataset_from_table(
    table: Table,
    columns: Columns,
    classes: Sequence[str] | None = None,
    *,
    labelled: bool = True,
    partly: bool = False,
    by_index: bool = True,
) -> Dataset:
    """Return the examples of a table.

    Parameters
    ----------
    table : Table
        The rows.
    columns : Columns
        Which columns hold what.
    classes : sequence of str, optional
        Names and order of the classes; other labels are refused. By default the labels in the table.
    labelled : bool
        Whether a table without labels is an error.
    partly : bool
        Whether a row without a label is an unlabelled example, with label -1. By default it is an error.
    by_index : bool
        Whether labels may be indices where the classes have other names.

    Returns
    -------
    Dataset
        The examples in the order of the rows, named after the table's source.

    Raises
    ------
    InputError
        If a column or value is missing or invalid, with the line.

    Examples
    --------
    >>> table = Table("reviews.csv", {"text": ["good", "bad"], "label": ["pos", "neg"]})
    >>> dataset_from_table(table, Columns()).classes
    ('neg', 'pos')
    """
    columns = resolve_columns(table, columns)
    inputs = _read_inputs(table, columns)
    rows = _labelled_rows(table, columns) if partly else np.ones(len(table), dtype=bool)
    labels, label_probs, classes = _read_answers(table, columns, classes, inputs, rows, labelled=labelled, by_index=by_index)
    id_texts = table.texts(columns.id) if columns.id else []
    group_texts = table.texts(columns.group) if columns.group else None
    try:
        ids = text_array(id_texts, "id")
        groups = None if group_texts is None else text_array(group_texts, "group")
        return Dataset(inputs, labels, tuple(classes or ()), ids, label_probs, groups, name=table.source)
    except InputError as error:
        raise _located(error, table) from None


def distinct_classes(labels: Sequence[str]) -> list[str]:
    """Return the classes among labels: in numerical order where all are whole numbers, else in alphabetical order.

    Parameters
    ----------
    labels : sequence of str
        The label of each example.

    Returns
    -------
    list of str
        Each class once.

    Examples
    --------
    >>> distinct_classes(["10", "9", "10"]), distinct_classes(["pos", "neg"])
    (['9', '10'], ['neg', 'pos'])
    """
    names = sorted(set(labels))
    return sorted(names, key=int) if _all_integers(names) else names


def refuse_indices(labels: Sequence[str], classes: Sequence[str], source: str) -> None:
    """Refuse labels that are numbers where the classes have other names.

    Parameters
    ----------
    labels : sequence of str
        The labels.
    classes : sequence of str
        The classes, whose order nobody listed.
    source : str
        Where the labels are from.

    Raises
    ------
    InputError
        If every label is a whole number and none is a class.
    """
    distinct = set(labels)
    if distinct and not distinct & set(classes) and _all_integers(distinct):
        raise InputError(
            f"labels are numbers ({labels[0]}, …) where the classes are {list_names(classes)}",
            source=source,
            remedy="write names, or list the classes in the order of the numbers: classes = [...] in [data]",
        )


def resolve_columns(table: Table, columns: Columns) -> Columns:
    """Check the columns that the user named, and find those that have usual names.

    Parameters
    ----------
    table : Table
        The rows.
    columns : Columns
        The names, empty where the usual ones are meant.

    Returns
    -------
    Columns
        With the names of the columns of text, pair and id that the table has.

    Raises
    ------
    InputError
        If a column does not exist.
    """
    for name in (columns.text, columns.pair, columns.id, columns.group, *columns.choices):
        if name:
            table.require(name)
    if not columns.id and "id" in table.columns:
        columns = replace(columns, id="id")
    if columns.text:
        return columns
    if not columns.pair and not columns.choices:
        for first, second in USUAL_PAIRS:
            if first in table.columns and second in table.columns:
                return replace(columns, text=first, pair=second)
    for name in USUAL_TEXTS:
        if name in table.columns:
            return replace(columns, text=name)
    table.require("text", "name the column of texts, as text = ... in [data] or --text")
    raise AssertionError("the usual name of a text column exists")


def _read_inputs(table: Table, columns: Columns) -> Inputs:
    text = table.texts(columns.text)
    if columns.choices:
        return choices(text, _read_endings(table, columns.choices))
    return texts(text, table.texts(columns.pair) if columns.pair else None)


def _read_endings(table: Table, names: Sequence[str]) -> list[list[str]]:
    """Return the endings of each example, from one column per ending or a single column of lists."""
    if len(names) > 1:
        return [list(row) for row in zip(*(table.texts(name) for name in names), strict=True)]
    endings = []
    for row, value in enumerate(table.values(names[0])):
        if not isinstance(value, list) or len(value) < 2:
            raise InputError(
                f"column {names[0]!r} holds no list of choices",
                remedy="give a list, or one column per choice",
                **table.place(row),
            )
        if any(is_blank(ending) for ending in value):
            raise InputError(f"a choice in column {names[0]!r} is empty", remedy="fill or drop the row", **table.place(row))
        endings.append([str(ending) for ending in value])
    return endings


def _read_soft_labels(table: Table, soft_classes: list[str], classes: Sequence[str]) -> FloatArray:
    """Return the distribution over the classes of each example (N, K), in the order of ``classes``."""
    if sorted(soft_classes) != sorted(classes):
        raise InputError(
            f"the soft labels are for {list_names(soft_classes)}, not {list_names(classes)}",
            source=table.source,
            remedy=f"name the columns {SOFT_LABEL_PREFIX}<class> for every class",
        )
    probs: NDArray[np.float64] = np.column_stack([table.numbers(f"{SOFT_LABEL_PREFIX}{name}") for name in classes])
    return probs


def label_columns(table: Table, columns: Columns) -> list[str]:
    """Return the names of the columns that hold labels or soft labels.

    Parameters
    ----------
    table : Table
        The rows.
    columns : Columns
        Which column holds the label.

    Returns
    -------
    list of str

    Examples
    --------
    >>> label_columns(Table("a.csv", {"text": ["x"], "label": ["a"], "label_prob_a": ["1"]}), Columns())
    ['label', 'label_prob_a']
    """
    return [name for name in table.columns if name == columns.label or name.startswith(SOFT_LABEL_PREFIX)]


def _labelled_rows(table: Table, columns: Columns) -> NDArray[np.bool_]:
    """Whether each row has a label: any value in the column of labels, or in one of the columns of soft labels."""
    names = label_columns(table, columns)
    if not names:
        return np.ones(len(table), dtype=bool)
    is_labelled = np.zeros(len(table), dtype=bool)
    for name in names:
        is_labelled |= [not is_blank(value) for value in table.values(name)]
    return is_labelled


def _read_answers(
    table: Table,
    columns: Columns,
    classes: Sequence[str] | None,
    inputs: Inputs,
    is_labelled: NDArray[np.bool_],
    *,
    labelled: bool,
    by_index: bool,
) -> tuple[IntArray | None, FloatArray | None, Sequence[str] | None]:
    """The labels (N,), the soft labels (N, K) and the classes, those of them that the table has."""
    rows = np.flatnonzero(is_labelled)
    if not len(rows) and classes is None:
        raise InputError(
            "no row has a label", source=table.source, remedy="label some rows, or list the classes: classes = [...] in [data]"
        )
    answers = table if len(rows) == len(table) else table.select(rows.tolist())
    labels, label_probs = None, None
    soft_classes = [name.removeprefix(SOFT_LABEL_PREFIX) for name in table.columns if name.startswith(SOFT_LABEL_PREFIX)]
    if soft_classes:
        classes = soft_classes if classes is None else classes
        label_probs = _read_soft_labels(answers, soft_classes, classes)
    if columns.label in table.columns:
        if columns.label in (columns.text, columns.pair, *columns.choices):
            raise InputError(
                f"column {columns.label!r} is both the label and what is to be read",
                source=table.source,
                remedy="name another column for one of them",
            )
        _warn_of_answers(table, columns)
        names = answers.texts(columns.label)
        classes = _default_classes(names, inputs) if classes is None else classes
        labels = _read_labels(table, names, rows, classes, by_index=by_index)
    elif label_probs is None and labelled:
        table.require(columns.label, "name the column of labels, as label = ... in [data] or --label")
    if len(rows) < len(table):
        if labels is None and label_probs is not None:
            labels = label_probs.argmax(axis=1)
        labels = None if labels is None else _spread(labels, rows, np.full(len(table), -1))
        label_probs = None if label_probs is None else _spread(label_probs, rows, np.zeros((len(table), label_probs.shape[1])))
    return labels, label_probs, classes


def _warn_of_answers(table: Table, columns: Columns) -> None:
    """Warn of labels that a model gave: to train on them may be meant, to measure with them is always wrong."""
    if columns.label != "label" or not set(ANSWER_COLUMNS) <= set(table.columns):
        return
    message = f"{table.source}: distilcal predict wrote this file, and its column 'label' holds the answers of a model"
    if "input_label" in table.columns:
        message += "; the true classes are in 'input_label': give label = \"input_label\" in [data], or --label"
    warnings.warn(message, stacklevel=1)  # this line, so that each file is named once


def _spread(values: NDArray[Any], rows: NDArray[np.int64], others: NDArray[Any]) -> NDArray[Any]:
    """The values at these rows, the others everywhere else."""
    others[rows] = values
    return others


def _default_classes(labels: Sequence[str], inputs: Inputs) -> list[str]:
    if isinstance(inputs, Choices):  # the classes are the positions of the endings
        return [str(position) for position in range(inputs.endings.shape[1])]
    return distinct_classes(labels)


def _read_labels(
    table: Table, names: list[str], rows: NDArray[np.int64], classes: Sequence[str], *, by_index: bool
) -> IntArray:
    """The class indices of the labels at some rows of a table."""
    if not by_index:
        refuse_indices(names, classes, table.source)
    try:
        return labels_from_text(np.array(names), tuple(classes))
    except InputError as error:
        error.row = None if error.row is None else int(rows[error.row])
        raise _located(error, table) from None


def _all_integers(names: Sequence[str] | set[str]) -> bool:
    return all(INTEGER.fullmatch(name) for name in names)


def _located(error: InputError, table: Table) -> InputError:
    """Return the error of a row with the place of that row in the file."""
    place: Place = {"source": table.source} if error.row is None else table.place(error.row)
    return InputError(error.problem, remedy=error.remedy, **place)
