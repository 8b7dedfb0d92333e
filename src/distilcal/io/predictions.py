"""Files of Predictions: ``.npz``, ``.csv``, ``.tsv``, ``.jsonl`` and ``.parquet``.

A file tells what its numbers are: by the column prefix ``logit_`` or ``prob_`` (keys ``logits`` or ``probs``), or the caller
names the ``unit``. Nothing is unpickled. Every fault is an InputError with file, line or row, and remedy.

To add a format of tables, add it to ``distilcal.io.tables``; the columns are the same for all of them. Lines that hold a
language model's answers are read by ``distilcal.io.answers``.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError
from distilcal.io.answers import is_answer, read_answers
from distilcal.io.atomic import atomic_write, check_format, check_input, open_npz
from distilcal.io.tables import ANSWER_COLUMNS, Place, Table, import_pyarrow, stream_records, stream_table, write_csv
from distilcal.predictions import LONGEST_ID, ROW_SUM_TOLERANCE, Predictions, text_array

Unit = Literal["logits", "probs"]
UNITS: tuple[Unit, ...] = get_args(Unit)
PREFIX: dict[Unit, str] = {"logits": "logit_", "probs": "prob_"}
VOTES_PREFIX = "label_prob_"
FORMAT = 1  # of .npz files; those without it are of this format too
FORMAT_KEY = "distilcal_format"
SUFFIXES = (".npz", ".csv", ".tsv", ".jsonl", ".parquet")
TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl")
MAX_TEXT_BYTES = 2 << 30
LARGEST_TOLERANCE = 0.1
OUTCOME_WORDS = {"true": 1.0, "false": 0.0}
RECORD_KEYS = ("id", "label", "logits", "probs", "label_probs", "confidence", "correct")
OPTIONAL_KEYS = ("label",)  # those that only some lines of a file may have


def read_predictions(
    path: str | Path,
    *,
    unit: Unit | None = None,
    name: str | None = None,
    tolerance: float = ROW_SUM_TOLERANCE,
    classes: Sequence[str] | None = None,
    labelled: bool = False,
) -> Predictions:
    """Read predictions from a file.

    Labels may be missing, in all rows or in some: a teacher's predictions need none. A .jsonl file may also hold answers of a
    language model: ``top_logprobs``, or a ``label`` without scores, which is then the answer and not the true class; see
    ``distilcal.io.answers``.

    Parameters
    ----------
    path : str or Path
        A .npz, .csv, .tsv, .jsonl or .parquet file.
    unit : {"logits", "probs"}, optional
        What the class columns hold where their names have no prefix ``logit_`` or ``prob_``, or which of the two to use
        where a file has both. It is never guessed from the values.
    name : str, optional
        The name of the predictions. By default the one in the file, else the file's own name without its suffix.
    tolerance : float
        How far the probabilities of a row may be from summing to one, between 0 and 0.1.
    classes : sequence of str, optional
        The classes in this order. Answers may name some of them; other files must have all of them and no other.
    labelled : bool
        Whether to refuse a file in which a row has no label.

    Returns
    -------
    Predictions
        The rows of the file in their order.

    Raises
    ------
    InputError
        If the file is missing, damaged or malformed, with its line or row.
    MissingDependencyError
        For .parquet without the ``pyarrow`` package.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "dev.csv"
    >>> _ = path.write_text("label,prob_cat,prob_dog\\ncat,0.7,0.3\\ndog,0.4,0.6\\n")
    >>> read_predictions(path)
    Predictions('dev', 2 rows, 2 classes)
    """
    path = Path(path)
    if unit is not None and unit not in UNITS:
        raise InputError(f"unit {unit!r} is neither 'logits' nor 'probs'", remedy="give one of them, or None")
    if not 0 <= tolerance <= LARGEST_TOLERANCE:
        raise InputError(f"tolerance {tolerance} is not between 0 and 0.1", remedy="normalise rows that are further off")
    _check_file(path)
    try:
        predictions, lines = _read(path, unit, tolerance, classes)
        if name is None and predictions.name == "predictions":
            name = path.stem
        if name is not None:
            predictions = predictions.rename(
                name.encode("utf-8", "replace").decode()
            )  # a file name may hold bytes that are no text
        if classes is not None:
            predictions = predictions.reorder_classes(classes)
        if labelled:
            _check_labelled(predictions, lines)
    except InputError as error:
        error.source = str(path)
        raise
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", source=str(path), remedy="check the file") from None
    return predictions


def write_predictions(predictions: Predictions, path: str | Path, *, escape_formulas: bool = True) -> None:
    """Write predictions to a file atomically; ``read_predictions`` reads the same back.

    Parameters
    ----------
    predictions : Predictions
        What to write.
    path : str or Path
        A file that ends in .npz, .csv, .tsv, .jsonl or .parquet.
    escape_formulas : bool, default True
        Whether ids and labels that a spreadsheet would run get an apostrophe before them in a .csv or .tsv;
        see ``distilcal.io.tables.write_csv``.

    Raises
    ------
    InputError
        If the suffix is another one, or the file cannot be written.
    MissingDependencyError
        For .parquet without the ``pyarrow`` package.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise _unknown_suffix("write", path)
    with atomic_write(path) as file:
        if path.suffix == ".npz":
            np.savez(file, **_to_arrays(predictions))
        elif path.suffix == ".parquet":
            pyarrow, parquet = import_pyarrow()
            parquet.write_table(pyarrow.table(_to_columns(predictions)), file, write_page_checksum=True)
        elif path.suffix == ".jsonl":
            for record in _to_records(predictions):
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        else:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            write_csv(file, _to_columns(predictions), delimiter=delimiter, escape_formulas=escape_formulas)


def _check_file(path: Path) -> None:
    check_input(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise _unknown_suffix("read", path)
    size = path.stat().st_size
    if size == 0:
        raise InputError("the file is empty", source=str(path), remedy="write the predictions again")
    if suffix in TEXT_SUFFIXES and size > MAX_TEXT_BYTES:
        raise InputError(
            f"{size / 1e9:.1f} GB of text is too much to parse",
            source=str(path),
            remedy="save it as .parquet or .npz, which hold the same in a fraction, or take a sample of rows",
        )


def _unknown_suffix(verb: str, path: Path) -> InputError:
    return InputError(
        f"cannot {verb} {path.suffix or 'a file without suffix'!r}",
        source=str(path),
        remedy=f"give one of {', '.join(SUFFIXES)}",
    )


def _read(path: Path, unit: Unit | None, tolerance: float, classes: Sequence[str] | None) -> tuple[Predictions, Sequence[int]]:
    """Return the predictions of a file, and the line of each row where rows are lines."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _read_npz(path, unit, tolerance), ()
    if suffix == ".jsonl" and is_answer(next(stream_records(path), (0, {}))[1]):
        if unit is not None:
            raise InputError("it holds answers of a language model, whose unit is known", remedy=f"leave out --{unit}")
        return read_answers(path, classes=classes), ()
    return _read_table_file(path, unit, tolerance)


def _check_labelled(predictions: Predictions, lines: Sequence[int]) -> None:
    if predictions.has_labels:
        return
    unknown = ~predictions.is_labelled
    if unknown.all():
        raise InputError(
            "there is no label column",
            remedy="add a column 'label' with the class of every row; in a file of distilcal predict, whose own label is the "
            "answer, call it 'input_label'",
        )
    row = int(unknown.argmax())
    raise InputError(
        f"the row has no label, as {int(unknown.sum()):,} of {len(predictions):,} rows",
        row=row,
        line=lines[row] if lines else None,
        remedy="add the missing labels or drop these rows",
    )


def _build(unit: Unit, scores: NDArray[Any], labels: NDArray[Any] | None, tolerance: float, **named: Any) -> Predictions:
    if unit == "logits":
        return Predictions.from_logits(scores, labels, **named)
    return Predictions.from_probs(scores, labels, tolerance=tolerance, **named)


def _choose_unit(available: Sequence[Unit], unit: Unit | None) -> Unit:
    """Return which of the units in a file to read, given the one that the user named, if any."""
    if unit is None:
        if len(available) > 1:
            raise InputError("it has both logits and probabilities", remedy="choose one: --probs or --logits")
        return available[0]
    if unit not in available:
        raise InputError(f"it holds {available[0]}, not {unit}", remedy=f"leave out --{unit}")
    return unit


# ---- .npz --------------------------------------------------------------------------------------------------------------


def _read_npz(path: Path, unit: Unit | None, tolerance: float) -> Predictions:
    with open_npz(path) as arrays:
        if FORMAT_KEY in arrays:
            check_format(_number(arrays[FORMAT_KEY]), FORMAT, str(path))
        available = [u for u in UNITS if u in arrays]
        if not available and "confidence" in arrays and "correct" in arrays:
            return Predictions.from_confidences(arrays["confidence"], arrays["correct"], ids=arrays.get("ids"))
        if not available:
            raise InputError(
                f"it holds {', '.join(sorted(arrays)) or 'nothing'}",
                remedy="it needs 'logits' or 'probs' (optional: labels, ids, classes, label_probs)",
            )
        unit = _choose_unit(available, unit)
        scores, labels = arrays[unit], arrays.get("labels")
        named: dict[str, Any] = {key: arrays[key] for key in ("ids", "label_probs") if key in arrays}
        if "classes" in arrays:
            named["classes"] = tuple(np.atleast_1d(arrays["classes"]).tolist())
        if "name" in arrays and arrays["name"].ndim == 0:
            named["name"] = str(arrays["name"])
    return _build(unit, scores, labels, tolerance, **named)


def _number(array: NDArray[Any]) -> Any:
    """The one value of an array, or None if it holds several or none."""
    return array.item() if array.size == 1 else None


# ---- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """Which columns of a table, or keys of JSON objects, hold what."""

    unit: Unit | None  # of the scores; None: there are only confidences and outcomes
    scores: tuple[str, ...]  # one column per class; of JSON objects the one key
    classes: tuple[str, ...] = ()  # empty: not named in the file
    votes: tuple[str, ...] = ()  # human label probabilities, in the order of the classes
    keys: frozenset[str] = frozenset()  # all that the file has of RECORD_KEYS
    label: str | None = None  # of a table, the column of the true classes


@dataclass
class _Parts:
    """Arrays of the tables that were read so far."""

    ids: list[NDArray[np.str_]] = field(default_factory=list)
    labels: list[NDArray[np.str_]] = field(default_factory=list)  # empty text where a row has none
    scores: list[NDArray[np.float64]] = field(default_factory=list)  # (n, K), or confidence and outcome (n, 2)
    votes: list[NDArray[np.float64]] = field(default_factory=list)  # (n, K)
    lines: array[int] = field(default_factory=lambda: array("q"))
    label_type: type | None = None  # of JSON objects, where a label may be text or a number; None: no label yet


def _read_table_file(path: Path, unit: Unit | None, tolerance: float) -> tuple[Predictions, Sequence[int]]:
    """Return the predictions of a file and the line of each row, where rows are lines."""
    is_jsonl = path.suffix.lower() == ".jsonl"
    find_layout: Callable[[Table, Unit | None], _Layout] = _find_keys if is_jsonl else _find_columns
    add_rows: Callable[[Table, _Layout, _Parts], None] = _add_records if is_jsonl else _add_columns
    layout: _Layout | None = None
    parts = _Parts()
    for table in stream_table(path, exact_names=(*PREFIX.values(), VOTES_PREFIX)):
        if is_jsonl and not len(table):
            break
        if layout is None:
            layout = find_layout(table, unit)
        if len(table):
            add_rows(table, layout, parts)
            parts.lines.extend(table.lines)
        del table  # frees its values before the next ones are parsed
    if layout is None or not parts.scores:
        raise InputError("there are no rows", remedy="write the predictions again")
    try:
        return _assemble(parts, layout, tolerance), parts.lines
    except InputError as error:
        if error.row is not None and parts.lines:
            error.line = parts.lines[error.row]
        raise


def _assemble(parts: _Parts, layout: _Layout, tolerance: float) -> Predictions:
    scores = np.concatenate(parts.scores)
    named: dict[str, Any] = {}
    if parts.ids:
        named["ids"] = np.concatenate(parts.ids)
    if layout.unit is None:
        return Predictions.from_confidences(scores[:, 0], scores[:, 1], **named)
    if parts.votes:
        named["label_probs"] = np.concatenate(parts.votes)
    labels = np.concatenate(parts.labels) if parts.labels else None
    if labels is not None and not (labels != "").any():
        labels = None  # so that human votes tell them
    return _build(layout.unit, scores, labels, tolerance, classes=_class_names(layout.classes, labels), **named)


def _class_names(names: tuple[str, ...], labels: NDArray[np.str_] | None) -> tuple[str, ...]:
    """Return the names of classes as the labels have them: spaces at the end of a column's name may belong to it or not."""
    if labels is None or all(name == name.strip() for name in names):
        return names
    return names if np.isin(labels, ("", *names)).all() else tuple(name.strip() for name in names)


# ---- one column per class: .csv, .tsv, .parquet ------------------------------------------------------------------------


def _find_columns(table: Table, unit: Unit | None) -> _Layout:
    names = list(table.columns)
    keys = frozenset(RECORD_KEYS) & set(names)
    available = [u for u in UNITS if any(name.startswith(PREFIX[u]) for name in names)]
    has_outcomes = "confidence" in keys and "correct" in keys
    if has_outcomes and ("label" not in keys or (unit is None and not available)):
        return _Layout(unit=None, scores=("confidence", "correct"), keys=keys)
    if available:
        unit = _choose_unit(available, unit)
        scores = tuple(name for name in names if name.startswith(PREFIX[unit]))
        classes = tuple(name.removeprefix(PREFIX[unit]) for name in scores)
    elif unit is not None:
        other = ("id", "label", "confidence", "correct")
        scores = tuple(name for name in names if name not in other and not name.startswith(VOTES_PREFIX))
        classes = scores
    else:
        raise InputError(
            f"the columns are {', '.join(names)}",
            remedy="it needs one column per class named prob_<class> or logit_<class> (or plain class names and their unit: "
            "--probs or --logits) and to be measured 'label', or 'confidence' and 'correct'",
        )
    return _Layout(unit, scores, classes, votes=_find_votes(names, classes), keys=keys, label=_label_column(set(names)))


def _label_column(names: set[str]) -> str | None:
    """The column of the true classes. Files of ``distilcal predict`` have the answer as ``label``, and the input's own columns
    with ``input_`` before them; what was predicted twice has it twice."""
    prefix = ""
    while names.issuperset(prefix + name for name in ANSWER_COLUMNS):
        prefix += "input_"
    return f"{prefix}label" if f"{prefix}label" in names else None


def _find_votes(names: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    voted = [name.removeprefix(VOTES_PREFIX) for name in names if name.startswith(VOTES_PREFIX)]
    if not voted:
        return ()
    if sorted(voted) != sorted(classes):
        raise InputError(f"the {VOTES_PREFIX} columns name other classes than the predictions", remedy="name the same classes")
    return tuple(VOTES_PREFIX + name for name in classes)


def _add_columns(table: Table, layout: _Layout, parts: _Parts) -> None:
    if "id" in layout.keys:
        parts.ids.append(_ids(table))
    if layout.unit is None:
        outcomes = table.numbers("correct", words=OUTCOME_WORDS)
        parts.scores.append(np.column_stack([table.numbers("confidence"), outcomes]))
        return
    if layout.label is not None:  # as text: a label that is a number may be the name of a class
        parts.labels.append(_labels(table, layout.label))
    parts.scores.append(np.column_stack([table.numbers(name) for name in layout.scores]))
    if layout.votes:
        parts.votes.append(np.column_stack([table.numbers(name) for name in layout.votes]))


def _ids(table: Table) -> NDArray[np.str_]:
    values = table.values("id")
    if None in values:
        raise table.missing_value("id", values.index(None))
    try:
        return text_array(values, "id")
    except InputError as error:
        raise InputError(error.problem, remedy=error.remedy, **table.place(error.row or 0)) from None


def _labels(table: Table, column: str = "label") -> NDArray[np.str_]:
    """Return the labels as strings; one of many characters is refused, for an array of strings is as wide as its longest."""
    for row, label in enumerate(table.values(column)):
        if isinstance(label, str | bytes) and len(label) > LONGEST_ID:
            raise InputError(
                f"label {label!r:.80} has more than {LONGEST_ID:,} characters", remedy="give a class", **table.place(row)
            )
    return table.text_array(column)


# ---- one key for all classes: .jsonl -----------------------------------------------------------------------------------


def _find_keys(table: Table, unit: Unit | None) -> _Layout:
    first = {key: values[0] for key, values in table.columns.items() if values[0] is not None}
    keys = frozenset(RECORD_KEYS) & set(first)
    available = [u for u in UNITS if u in keys]
    if not available and "confidence" in keys and "correct" in keys:
        return _Layout(unit=None, scores=("confidence", "correct"), keys=keys)
    if not available:
        raise InputError(
            f"the object has {', '.join(first) or 'nothing'}",
            remedy="it needs 'logits' or 'probs' and to be measured 'label', or 'confidence' and 'correct'",
            **table.place(0),
        )
    unit = _choose_unit(available, unit)
    classes = tuple(first[unit]) if isinstance(first[unit], dict) else ()
    votes = ("label_probs",) if "label_probs" in keys else ()
    return _Layout(unit, (unit,), classes, votes, keys)


def _add_records(table: Table, layout: _Layout, parts: _Parts) -> None:
    _check_keys(table, layout.keys)
    if "id" in layout.keys:
        _check_types(table, "id", {str, int}, "neither text nor a number")
        parts.ids.append(_ids(table))
    if layout.unit is None:
        _check_types(table, "confidence", {int, float}, "not a number")
        _check_types(table, "correct", {int, float, bool}, "neither true, false, 1 nor 0")
        parts.scores.append(np.column_stack([table.numbers("confidence"), table.numbers("correct")]))
        return
    parts.labels.append(_record_labels(table, parts))
    width = parts.scores[0].shape[1] if parts.scores else None
    scores = _record_matrix(table, layout.unit, layout.classes, width)
    parts.scores.append(scores)
    if layout.votes:
        parts.votes.append(_record_matrix(table, "label_probs", layout.classes, width=scores.shape[1]))


def _check_keys(table: Table, keys: Collection[str]) -> None:
    """Refuse a line that has other keys than the first one."""
    for key in RECORD_KEYS:
        if key in OPTIONAL_KEYS:
            continue
        expected = key in keys
        values = table.columns.get(key, [None])
        for row, value in enumerate(values):
            if (value is not None) != expected:
                raise InputError(f"{key!r} is not in every line", remedy="give every line the same keys", **table.place(row))


def _check_types(table: Table, key: str, allowed: set[type], problem: str) -> None:
    values = table.columns[key]
    if set(map(type, values)) <= allowed:
        return
    row = next(row for row, value in enumerate(values) if type(value) not in allowed)
    raise InputError(f"{key} {values[row]!r} is {problem}", remedy="fix the line", **table.place(row))


def _record_labels(table: Table, parts: _Parts) -> NDArray[np.str_]:
    if "label" not in table.columns:
        return np.full(len(table), "", dtype=np.str_)
    _check_types(table, "label", {str, int, type(None)}, "neither a name nor an index")
    for row, label in enumerate(table.columns["label"]):
        if label is None:
            continue
        parts.label_type = parts.label_type or type(label)
        if type(label) is not parts.label_type:
            raise InputError("labels are partly names and partly numbers", remedy="use one form", **table.place(row))
    return _labels(table)


def _record_matrix(table: Table, key: str, classes: Sequence[str], width: int | None) -> NDArray[np.float64]:
    """Return the numbers under a key (n, K), given as lists or as objects by class name."""
    rows = [_in_class_order(value, classes, table.place(row)) for row, value in enumerate(table.columns[key])]
    width = len(rows[0]) if width is None else width
    for row, numbers in enumerate(rows):
        if len(numbers) != width:
            raise InputError(
                f"{len(numbers)} {key} where line 1 has {width}", remedy="give one value per class", **table.place(row)
            )
    if not {type(number) for numbers in rows for number in numbers} <= {int, float}:
        row, odd = next((i, n) for i, numbers in enumerate(rows) for n in numbers if type(n) not in (int, float))
        raise InputError(f"{odd!r} is not a number", remedy="give a number", **table.place(row))
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        row = next(i for i, numbers in enumerate(rows) if any(abs(number) > sys.float_info.max for number in numbers))
        raise InputError(
            f"a number under {key!r} is too large", remedy="give numbers that fit into 64 bits", **table.place(row)
        ) from None


def _in_class_order(value: Any, classes: Sequence[str], place: Place) -> list[Any]:
    if isinstance(value, list):
        if classes:  # line 1 names them, maybe in another order
            raise InputError("a list where line 1 has an object by class", remedy="name the classes in every line", **place)
        return value
    if not isinstance(value, dict):
        raise InputError(f"{value!r} is neither a list nor an object by class", remedy="give one number per class", **place)
    odd = sorted(set(value) ^ set(classes))
    if odd:
        raise InputError(f"class {odd[0]!r} is not in every line", remedy="name the same classes in every line", **place)
    return [value[name] for name in classes]


# ---- writing -----------------------------------------------------------------------------------------------------------


def _scores(predictions: Predictions) -> tuple[Unit, NDArray[Any]]:
    """Return what is written: probabilities where these were given, else logits."""
    if predictions.given_probs is not None:
        return "probs", predictions.given_probs
    return "logits", predictions.logits


def _to_arrays(predictions: Predictions) -> dict[str, Any]:
    arrays: dict[str, Any] = {FORMAT_KEY: FORMAT}
    if predictions.ids is not None:
        arrays["ids"] = predictions.ids
    if predictions.confidence_only:
        return {**arrays, "confidence": predictions.confidence, "correct": predictions.correct}
    if predictions.label_probs is not None:
        arrays["label_probs"] = predictions.label_probs
    unit, scores = _scores(predictions)
    arrays[unit] = scores
    if predictions.is_labelled.any():
        arrays["labels"] = predictions.labels
    arrays["classes"] = np.array(predictions.classes)
    arrays["name"] = np.array(predictions.name)
    return arrays


def _to_columns(predictions: Predictions) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    if predictions.ids is not None:
        columns["id"] = predictions.ids.tolist()
    if predictions.confidence_only:
        columns["confidence"] = predictions.confidence.tolist()
        columns["correct"] = predictions.correct.astype(int).tolist()
        return columns
    if predictions.is_labelled.any():
        columns["label"] = _label_names(predictions)
    unit, scores = _scores(predictions)
    for k, name in enumerate(predictions.classes):
        columns[PREFIX[unit] + name] = scores[:, k].tolist()
    if predictions.label_probs is not None:
        for k, name in enumerate(predictions.classes):
            columns[VOTES_PREFIX + name] = predictions.label_probs[:, k].tolist()
    return columns


def _to_records(predictions: Predictions) -> Iterator[dict[str, Any]]:
    unit, scores = _scores(predictions)
    labels = _label_names(predictions)
    for row in range(len(predictions)):
        record: dict[str, Any] = {}
        if predictions.ids is not None:
            record["id"] = str(predictions.ids[row])
        if predictions.confidence_only:
            record["confidence"] = float(predictions.confidence[row])
            record["correct"] = int(predictions.correct[row])
        else:
            if labels[row]:
                record["label"] = labels[row]
            record[unit] = _by_class(predictions.classes, scores[row])
            if predictions.label_probs is not None:
                record["label_probs"] = _by_class(predictions.classes, predictions.label_probs[row])
        yield record


def _label_names(predictions: Predictions) -> list[str]:
    """Return the class of each label, an empty text where it is unknown."""
    names = (*predictions.classes, "")  # UNKNOWN is the last index
    return [names[label] for label in predictions.labels]


def _by_class(classes: Sequence[str], values: NDArray[Any]) -> dict[str, float]:
    return dict(zip(classes, values.tolist(), strict=True))
