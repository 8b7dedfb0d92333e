"""Examples from Python objects as a Dataset: DataFrames, Hugging Face data sets, lists, columns and arrays.

``to_dataset`` reads them all. pandas, polars, datasets and pyarrow are known by what their objects can do and are never
imported. To add a kind of object, write a function that returns its columns and a case in ``to_dataset``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.data.dataset import Choices, Dataset, Images, Inputs, Vectors, choices, texts
from distilcal.data.sources import from_hugging_face, read_dataset, read_unlabelled
from distilcal.data.table_source import (
    SOFT_LABEL_PREFIX,
    USUAL_PAIRS,
    USUAL_TEXTS,
    Columns,
    dataset_from_table,
    distinct_classes,
    refuse_indices,
    resolve_columns,
)
from distilcal.data.writing import CHOICES, PAIR, TEXT
from distilcal.errors import InputError, list_names
from distilcal.io.tables import Table, is_blank
from distilcal.predictions import IntArray, labels_from_text, unmasked_array

SPLIT_NAMES = {"train": "train", "dev": "dev", "validation": "dev", "valid": "dev", "test": "test"}  # of a DatasetDict
NOT_A_NUMBER = ("NAType", "NaTType")  # pandas' own missing values
NO_LABEL = "\0"  # no column has this name: labels, if there are any, are not read


def to_dataset(
    data: Any,
    *,
    argument: str = "data",
    columns: Columns | None = None,
    classes: Sequence[str] | None = None,
    labelled: bool = True,
    partly: bool = False,
    by_index: bool = True,
) -> Dataset:
    """Return examples of any form as a Dataset.

    Parameters
    ----------
    data : object
        A path or ``hub:NAME@SPLIT``; a pandas or polars DataFrame, a ``datasets.Dataset``, an Arrow table or a dict of columns;
        a list of dicts; a list of ``(text, label)``, where the text may be a pair of texts or a prompt with its endings; a
        tuple of two lists or arrays, inputs and labels; or a Dataset. Without labels a list of texts, or an array of pixels
        (N, H, W, 3) or vectors (N, D).
    argument : str
        Name of the argument, for messages.
    columns : Columns, optional
        Which columns hold what. By default they are found by their usual names.
    classes : sequence of str, optional
        Names and order of the classes; other labels are refused. By default those that the object names (``ClassLabel``,
        categories), or the labels in the data.
    labelled : bool
        Whether the examples have labels. If False, labels are not read.
    partly : bool
        Whether an example without a label (None or NaN) is an unlabelled one, with label -1. By default it is an error.
    by_index : bool
        Whether labels may be indices where the classes have other names. False refuses them, as in `read_dataset`.

    Returns
    -------
    Dataset
        The examples, with the ids of the id column or ids that are made from content.

    Raises
    ------
    InputError
        If the object is of another kind or empty, or if a column or a value is invalid, with the argument and the row.

    Examples
    --------
    >>> to_dataset([("a fine film", "pos"), ("dull", "neg")])
    Dataset('data', 2 texts, 2 classes)
    >>> to_dataset({"review": ["a fine film", "dull"], "stars": [5, 1]}, columns=Columns(text="review", label="stars")).classes
    ('1', '5')
    >>> to_dataset(["a fine film"], labelled=False)
    Dataset('data', 1 texts, 0 classes)
    """
    columns = columns or Columns()
    if isinstance(data, str | Path):
        if labelled:
            return read_dataset(data, columns=columns, classes=classes, partly=partly, by_index=by_index)
        return read_unlabelled(data, columns=columns)
    if type(data).__name__ == "LazyFrame":
        raise InputError("a LazyFrame holds no rows yet", source=argument, remedy="call its collect() first")
    try:
        dataset = _convert(data, argument, columns, classes, labelled, by_index)
        if labelled and not partly and not dataset.is_labelled.all():
            row = int((~dataset.is_labelled).argmax())
            raise InputError("this example has no label", row=row, remedy="label it, or leave it out")
    except InputError as error:
        error.source = error.source or argument
        raise
    return replace(dataset, name=argument)


def split_data(data: Any) -> dict[str, Any] | None:
    """Return the splits of a ``datasets.DatasetDict``, or of a dict of DataFrames, by train, dev and test.

    Parameters
    ----------
    data : object
        Anything that `to_dataset` reads, or a dict of such objects by the names of splits.

    Returns
    -------
    dict, optional
        The splits; "validation" is dev. None if the object is not a dict of tables.

    Raises
    ------
    InputError
        If a split has another name, or comes twice, as validation and dev.

    Examples
    --------
    >>> split_data({"text": ["fine"], "label": ["pos"]}) is None
    True
    """
    if not isinstance(data, Mapping) or not data or not all(_has_columns(part) for part in data.values()):
        return None
    splits: dict[str, Any] = {}
    for name, part in data.items():
        if str(name) not in SPLIT_NAMES:
            raise InputError(
                f"there is no use for a split {str(name)!r}",
                remedy=f"name splits train, validation and test, or give one of {list_names(list(data))} alone",
            )
        split = SPLIT_NAMES[str(name)]
        if split in splits:
            raise InputError(
                f"several of {list_names(list(data))} are the split {split}", remedy="leave out all but one, or join them"
            )
        splits[split] = part
    return splits


def names_classes(data: Any, label: str) -> bool:
    """Return whether a table names its classes in order: by a ``ClassLabel`` or by categories.

    Parameters
    ----------
    data : object
        Anything that `to_dataset` reads.
    label : str
        The column of labels.

    Returns
    -------
    bool
        Whether a number may be the index of a class.

    Examples
    --------
    >>> names_classes({"text": ["fine"], "label": ["pos"]}, "label")
    False
    """
    is_table = isinstance(data, Mapping) or _has_columns(data)
    return is_table and label in _column_names(data) and bool(_class_names(data, label))


# ---- one kind of object after the other --------------------------------------------------------------------------------


def _convert(
    data: Any, argument: str, columns: Columns, classes: Sequence[str] | None, labelled: bool, by_index: bool
) -> Dataset:
    if isinstance(data, Dataset):
        return _checked_dataset(data, classes, labelled)
    if _has_images(data):
        return from_hugging_face(data.with_format(None), argument, columns, classes, labelled, partly=True)
    if isinstance(data, Mapping) or (_has_columns(data) and _column_names(data)):
        return _from_columns(data, argument, columns, classes, labelled, by_index)
    if _is_inputs_and_labels(data):
        inputs, labels = data
        return _from_parts(as_inputs(inputs), _values(labels), argument, classes, by_index)
    if not labelled and isinstance(data, np.ndarray):
        return Dataset(as_inputs(data))
    rows = [_by_name(row, columns) for row in _rows(data)]
    if isinstance(rows[0], Mapping):
        return _from_columns(_columns_of_records(rows), argument, columns, classes, labelled, by_index)
    if not labelled:
        return Dataset(as_inputs(rows))
    for row, value in enumerate(rows):
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise InputError(
                f"expected a pair (text, label), got {value!r:.60}",
                row=row,
                remedy="give a list of pairs or of dicts, or a tuple of two lists: texts and labels",
            )
    labels = [label for _, label in rows]
    return _from_parts(as_inputs([first for first, _ in rows]), labels, argument, classes, by_index)


def _checked_dataset(data: Dataset, classes: Sequence[str] | None, labelled: bool) -> Dataset:
    if not labelled:
        return replace(data, labels=None, label_probs=None, classes=())
    if data.labels is None:
        raise InputError("it has no labels", remedy="give a Dataset with labels and classes")
    return data if classes is None else data.with_classes(classes)


def _rows(data: Any) -> list[Any]:
    if isinstance(data, tuple) or not hasattr(data, "__iter__"):
        raise InputError(
            f"cannot read a {type(data).__name__}",
            remedy="give a path, a DataFrame, a datasets.Dataset, a list of (text, label), two lists (texts, labels), "
            "a dict of columns, or a Dataset",
        )
    _refuse_set(data)
    rows = list(data)
    if not rows:
        raise InputError("there are no examples", remedy="give at least one")
    return rows


def _by_name(row: Any, columns: Columns) -> Any:
    """A namedtuple, as ``itertuples`` of pandas yields them, as a dict: its fields may be in any order."""
    is_named = {columns.label, columns.text or TEXT} & set(getattr(row, "_fields", ()))
    return row._asdict() if is_named else row


def _refuse_set(values: Any) -> None:
    if isinstance(values, set | frozenset):
        raise InputError("a set has no order, which other values could follow", remedy="give a list")


def _is_inputs_and_labels(data: Any) -> bool:
    """Whether this is a tuple of two columns; two tuples or texts could as well be two examples."""
    return isinstance(data, tuple) and len(data) == 2 and not any(isinstance(part, str | tuple | Mapping) for part in data)


def _has_columns(data: Any) -> bool:
    return not isinstance(data, type) and (hasattr(data, "column_names") or hasattr(data, "columns"))


def _has_images(data: Any) -> bool:
    features = getattr(data, "features", None)
    return isinstance(features, Mapping) and any(type(feature).__name__ == "Image" for feature in features.values())


# ---- tables ------------------------------------------------------------------------------------------------------------


def _from_columns(
    data: Any, argument: str, columns: Columns, classes: Sequence[str] | None, labelled: bool, by_index: bool
) -> Dataset:
    if hasattr(data, "with_format"):  # a datasets.Dataset that may return tensors
        data = data.with_format(None)
    names = _column_names(data)
    if not labelled:  # labels are not read, and groups may be missing
        columns = replace(columns, label=NO_LABEL, group=columns.group if columns.group in names else "")
    _check_columns(names, columns, labelled)
    needed = {columns.text, columns.pair, columns.label, columns.id, columns.group, "id", *columns.choices, *USUAL_TEXTS}
    needed.update(name for pair in USUAL_PAIRS for name in pair)
    selected = [name for name in names if name in needed or (labelled and str(name).startswith(SOFT_LABEL_PREFIX))]
    values = {str(name): _values(data[name]) for name in selected}
    _check_equal_lengths(values)
    table = Table(argument, values)
    if not len(table):
        raise InputError("there are no rows", remedy="give at least one example")
    columns = resolve_columns(table, columns)
    for name in (columns.text, columns.pair, *(columns.choices if len(columns.choices) > 1 else ())):
        if name:
            _check_texts(table, name)
    if columns.label in values:
        label_names = _class_names(data, columns.label)
        by_class_label = isinstance(getattr(data, "features", None), Mapping)
        values[columns.label] = _label_texts(values[columns.label], label_names, by_class_label=by_class_label)
        classes = classes or label_names or None
    return dataset_from_table(table, columns, classes, labelled=labelled, partly=labelled, by_index=by_index)


def _column_names(data: Any) -> list[Any]:
    found: Any = data if isinstance(data, Mapping) else getattr(data, "column_names", None)
    if found is None:  # not a data set, or one that is streamed and knows its columns only when it is read
        found = getattr(data, "columns", ())
    names = list(found)
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(f"duplicate column {repeated[0]!r}", remedy="give every column its own name")
    return names


def _check_columns(names: Sequence[Any], columns: Columns, labelled: bool) -> None:
    """Refuse names of columns that do not exist, with those that are near."""
    wanted = {"text": columns.text, "pair": columns.pair, "id_column": columns.id, "group": columns.group}
    wanted["choices"] = next((name for name in columns.choices if name not in names), "")
    has_soft_labels = any(str(name).startswith(SOFT_LABEL_PREFIX) for name in names)
    if labelled and not has_soft_labels:
        wanted["label"] = columns.label
    usual = {*USUAL_TEXTS, *(first for first, _ in USUAL_PAIRS)}
    if not columns.text and not usual & set(names):
        wanted["text"] = "text"
    for argument, name in wanted.items():
        if name and name not in names:
            near = get_close_matches(name, [str(other) for other in names], n=1, cutoff=0.5)
            example = near[0] if near else "NAME"
            raise InputError(
                f"there is no column {name!r}; it has {', '.join(map(str, names)) or 'none'}",
                remedy=f"{'did you mean ' + repr(example) + '? ' if near else ''}name it, as {argument}={example!r}",
            )


def _check_equal_lengths(columns: Mapping[str, Sequence[Any]]) -> None:
    first, *others = columns.items()
    for name, values in others:
        if len(values) != len(first[1]):
            raise InputError(
                f"column {first[0]!r} has {len(first[1])} rows, {name!r} {len(values)}", remedy="give columns of one length"
            )


def _check_texts(table: Table, name: str) -> None:
    for row, value in enumerate(table.columns[name]):
        if not isinstance(value, str):
            raise InputError(
                f"column {name!r} holds {value!r:.60}, not a text", row=row, remedy="fill or drop the row, or convert it by str"
            )


def _columns_of_records(records: Sequence[Any]) -> dict[str, list[Any]]:
    for row, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise InputError(f"expected a dict, got {record!r:.60}", row=row, remedy="give a dict for every example")
    names = dict.fromkeys(name for record in records for name in record)  # a dict keeps their order
    return {name: [record.get(name) for record in records] for name in names}


def _values(column: Any) -> list[Any]:
    """Return a column as a list of Python objects."""
    if isinstance(column, str) or not hasattr(column, "__iter__"):
        raise InputError(f"expected a column, got {column!r:.60}", remedy="give a list or an array")
    _refuse_set(column)
    for method in ("to_pylist", "to_list", "tolist"):  # Arrow; pandas and polars; NumPy
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column[:] if isinstance(column, Sequence) else column)  # a slice of a Hugging Face column is read at once


def _class_names(data: Any, label: str) -> tuple[str, ...]:
    """Return the names of the classes in order where the column of labels has them, else nothing."""
    features = getattr(data, "features", None)
    if isinstance(features, Mapping):
        return tuple(getattr(features.get(label), "names", None) or ())
    categories = getattr(getattr(data[label], "dtype", None), "categories", None)
    if categories is None or not hasattr(categories, "__len__") or not len(categories):
        return ()
    return tuple(label_text(name) or "" for name in _values(categories))


def _label_texts(labels: Sequence[Any], names: Sequence[str] = (), *, by_class_label: bool = False) -> list[str | None]:
    """Return labels as names of classes, None where there is no label. Where there are names, a number is the index of one."""
    for row, label in enumerate(labels):
        if isinstance(label, Sized) and not isinstance(label, str | bytes) and getattr(label, "ndim", 1) != 0:
            raise InputError(f"label {label!r:.60} is not one class", row=row, remedy="give each example a text or a number")
    if not names:
        return [label_text(label) for label in labels]
    # A ClassLabel counts: its 1 is the second class, though the first may be called 1.
    is_name: set[str] = set() if by_class_label else set(names)
    converted = []
    for row, label in enumerate(labels):
        text = label_text(label)
        if text is None or text in is_name:
            converted.append(text)
        elif text == "-1":  # Hugging Face's sign for no label
            converted.append(None)
        elif text.isdecimal() and int(text) < len(names):
            converted.append(names[int(text)])
        else:
            raise InputError(f"label {text!r} is not among {list_names(names)}", row=row, remedy="correct the label")
    return converted


def label_text(label: Any) -> str | None:
    """Return a label as the name of a class.

    Parameters
    ----------
    label : object
        A text, also as bytes, a number or a bool; also as an array or a tensor of no dimension.

    Returns
    -------
    str, optional
        None where there is no label: None, NaN or an empty text.

    Raises
    ------
    InputError
        If bytes are not UTF-8.

    Examples
    --------
    >>> label_text(2.0), label_text(True), label_text(float("nan"))
    ('2', 'True', None)
    """
    if getattr(label, "ndim", None) == 0 and hasattr(label, "item"):
        label = label.item()
    if label is None or type(label).__name__ in NOT_A_NUMBER:
        return None
    if isinstance(label, float):  # whole numbers become floats beside missing ones
        if label != label:
            return None
        return str(int(label)) if label.is_integer() else str(label)
    if isinstance(label, bytes):
        try:
            label = label.decode()
        except UnicodeDecodeError:
            raise InputError(f"label {label!r:.80} is not UTF-8", remedy="decode the labels, as b.decode('latin-1')") from None
    return (str.__str__(label) if isinstance(label, str) else str(label)) or None  # str() of an Enum of texts is its name


# ---- inputs and labels apart -------------------------------------------------------------------------------------------


def _from_parts(inputs: Inputs, labels: Sequence[Any], argument: str, classes: Sequence[str] | None, by_index: bool) -> Dataset:
    if len(labels) != len(inputs):
        raise InputError(f"{len(inputs)} examples and {len(labels)} labels", remedy="give one label for each example")
    names = _label_texts(labels)
    if isinstance(inputs, Images | Vectors):
        if classes is None:
            known = [name for name in names if name is not None]
            if not known:
                raise InputError("no example has a label", remedy="label some of them, or name the classes")
            classes = distinct_classes(known)
        if not by_index:
            refuse_indices([name for name in names if name is not None], classes, argument)
        return Dataset(inputs, _label_indices(names, tuple(classes)), tuple(classes))
    columns = Columns(text=TEXT, label="label")
    values: dict[str, Sequence[Any]] = {"label": names}
    if isinstance(inputs, Choices):
        columns = replace(columns, choices=(CHOICES,))
        values |= {TEXT: inputs.prompt.tolist(), CHOICES: inputs.endings.tolist()}
    else:
        values[TEXT] = inputs.text.tolist()
        if inputs.pair is not None:
            columns = replace(columns, pair=PAIR)
            values[PAIR] = inputs.pair.tolist()
    return dataset_from_table(Table(argument, values), columns, classes, partly=True, by_index=by_index)


def _label_indices(names: Sequence[str | None], classes: tuple[str, ...]) -> IntArray:
    """Return the index of each label, -1 where there is none."""
    known = np.array([name is not None for name in names])
    indices = np.full(len(names), -1, dtype=np.int64)
    if known.any():
        indices[known] = labels_from_text(np.array([name for name in names if name is not None]), classes)
    return indices


def as_inputs(examples: Any) -> Inputs:
    """Return examples from Python as the inputs of a Dataset.

    Parameters
    ----------
    examples : sequence or array
        A list, array or column of texts; a list of pairs of texts; a list of ``(prompt, [ending, ending])``; pixels as uint8
        (N, H, W, 3); or vectors as floats (N, D).

    Returns
    -------
    Texts, Choices, Images or Vectors

    Raises
    ------
    InputError
        If the examples are none of these, or a text is empty, with the first row that is.

    Examples
    --------
    >>> as_inputs(["a fine film"]).example(0)
    'a fine film'
    >>> as_inputs([("It rains.", "It is wet.")]).example(0)
    'It rains. ⏐ It is wet.'
    >>> as_inputs(np.zeros((5, 3))).values.shape
    (5, 3)
    """
    if isinstance(examples, str | bytes):
        raise InputError("got one text where a list is expected", remedy="put it in brackets: [text]")
    if hasattr(examples, "columns") or hasattr(examples, "column_names") or isinstance(examples, Mapping):
        raise InputError(
            f"got a {type(examples).__name__} with its columns where a list of examples is expected",
            remedy='give the column, as table["text"], or dc.load_dataset(table, labelled=False)',
        )
    if not isinstance(examples, Iterable):
        raise InputError(f"expected a list of examples, got {examples!r:.60}", remedy="give a list of texts, or an array")
    _refuse_set(examples)
    if isinstance(examples, np.ndarray) and examples.dtype == np.uint8:
        return Images(unmasked_array(examples, "pixels"))
    if isinstance(examples, np.ndarray) and examples.dtype.kind in "fiu":
        return Vectors(unmasked_array(examples, "values").astype(np.float32))
    rows: list[Any] = examples.tolist() if hasattr(examples, "tolist") else list(examples)
    if not rows:
        raise InputError("there are no examples", remedy="give at least one")
    if isinstance(rows[0], str):
        _check_rows(rows, _is_text, "a text")
        return texts(rows)
    if _is_text_pair(rows[0]):
        _check_rows(rows, lambda row: _is_text_pair(row) and all(map(_is_text, row)), "a pair of texts")
        return texts([first for first, _ in rows], [second for _, second in rows])
    if _is_choice(rows[0]):
        _check_rows(rows, lambda row: _is_choice(row) and all(map(_is_text, (row[0], *row[1]))), "a prompt with its endings")
        return choices([prompt for prompt, _ in rows], [endings for _, endings in rows])
    raise InputError(
        f"{type(rows[0]).__name__} is neither a text, a pair of texts nor a prompt with its endings",
        row=0,
        remedy="give a list of texts, pairs, or (prompt, [ending, ending]), or an array",
    )


def _check_rows(rows: Sequence[Any], is_valid: Callable[[Any], bool], expected: str) -> None:
    for row, value in enumerate(rows):
        if not is_valid(value):
            raise InputError(f"expected {expected}, got {value!r:.60}", row=row, remedy="fill or drop the row")


def _is_text(value: Any) -> bool:
    """Whether this is a text to learn from or to answer: an empty cell of a table is none either."""
    return isinstance(value, str) and not is_blank(value)


def _is_text_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(text, str) for text in value)


def _is_choice(value: Any) -> bool:
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    return is_pair and isinstance(value[0], str) and isinstance(value[1], tuple | list)
