"""Reading and writing Predictions: .npz, .csv, .tsv, .jsonl, .parquet; docs/files.md describes the columns.

A file says what its numbers are: by the column prefix ``logit_`` or ``prob_`` (keys ``logits`` or ``probs``), or by the
``unit`` the caller names. Nothing is unpickled. Every fault is an InputError with file, line or row, and remedy.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write, open_npz
from distilcal.predictions import ROW_SUM_TOLERANCE, Predictions

Unit = Literal["logits", "probs"]
PREFIX: dict[Unit, str] = {"logits": "logit_", "probs": "prob_"}
VOTES = "label_prob_"
SUFFIXES = (".npz", ".csv", ".tsv", ".jsonl", ".parquet")
MAX_TEXT_BYTES = 2 << 30
CHUNK_ROWS = 20_000


def read_predictions(
    path: str | Path, *, unit: Unit | None = None, name: str | None = None, tolerance: float = ROW_SUM_TOLERANCE
) -> Predictions:
    """Predictions from a file, named after it unless the file or the caller says otherwise.

    ``unit`` says what the class columns are where they carry no prefix; it is never guessed from the values. Probabilities
    must sum to one within ``tolerance``.
    """
    path = Path(path)
    if unit not in (None, "logits", "probs"):
        raise InputError(f"unit {unit!r} is neither 'logits' nor 'probs'", remedy="give one of them, or None")
    if not 0 <= tolerance <= 0.1:
        raise InputError(f"tolerance {tolerance} is not between 0 and 0.1", remedy="normalise rows that are further off")
    if not path.exists():
        raise InputError("there is no such file", source=str(path), remedy="check the path")
    if path.is_dir():
        raise InputError("this is a folder", source=str(path), remedy="give the file in it")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"cannot read {path.suffix or 'a file without suffix'!r}",
            source=str(path),
            remedy=f"give one of {', '.join(SUFFIXES)}",
        )
    suffix = path.suffix.lower()
    size = path.stat().st_size
    if size == 0:
        raise InputError("the file is empty", source=str(path), remedy="write the predictions again")
    if suffix in (".csv", ".tsv", ".jsonl") and size > MAX_TEXT_BYTES:
        raise InputError(
            f"{size / 1e9:.1f} GB of text is too much to parse",
            source=str(path),
            remedy="save it as .parquet or .npz, which hold the same in a fraction, or take a sample of rows",
        )
    read = {".npz": _from_npz, ".jsonl": _from_jsonl, ".parquet": _from_parquet}.get(suffix, _from_csv)
    lines: list[int] = []  # of a text file: on which line each row ends
    try:
        made = read(path, _How(unit, tolerance, lines))
    except InputError as error:
        error.source = str(path)
        if error.row is not None and error.line is None and error.row < len(lines):
            error.line = lines[error.row]
        if suffix in (".npz", ".parquet"):
            error.line = None
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8", source=str(path), remedy="save the file as UTF-8") from None
    except MemoryError:
        raise
    except Exception as error:
        # What no check above foresaw is still the file's fault, not the user's to read a traceback of.
        what = str(getattr(error, "strerror", None) or error).split("\n")[0]
        raise InputError(f"cannot be read: {what}", source=str(path), remedy="check the file") from None
    if name is None and made.name == "predictions":
        name = path.stem
    # A file name may hold bytes that are no text.
    return made if name is None else made.rename(name.encode("utf-8", "replace").decode())


def write_predictions(predictions: Predictions, path: str | Path) -> None:
    """Write a file that ``read_predictions`` gives back: aside first, then renamed, so that it is whole or not there."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"cannot write {path.suffix or 'a file without suffix'!r}",
            source=str(path),
            remedy=f"give one of {', '.join(SUFFIXES)}",
        )
    with atomic_write(path) as file:
        if path.suffix == ".npz":
            np.savez(file, **_arrays(predictions))
        elif path.suffix == ".parquet":
            pyarrow, parquet = _pyarrow()
            parquet.write_table(pyarrow.table(dict(_columns(predictions))), file)
        elif path.suffix == ".jsonl":
            for record in _records(predictions):
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        else:
            columns = _columns(predictions)
            lines = _Lines(file)
            writer = csv.writer(lines, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
            writer.writerow([title for title, _ in columns])
            writer.writerows(zip(*(values for _, values in columns), strict=True))


@dataclass(frozen=True)
class _How:
    """What the caller said about a file, and where a reader notes the line of each row."""

    unit: Unit | None
    tolerance: float
    lines: list[int]


# ---- reading -----------------------------------------------------------------------------------------------------------


def _from_npz(path: Path, how: _How) -> Predictions:
    with open_npz(path) as arrays:
        names = set(arrays)
        given = {key: arrays[key] for key in ("labels", "ids", "classes", "label_probs", "name") if key in names}
        if {"confidence", "correct"} <= names and not names & {"logits", "probs"}:
            return Predictions.from_confidences(arrays["confidence"], arrays["correct"], ids=given.get("ids"))
        found: list[Unit] = [u for u in ("logits", "probs") if u in names]
        if "labels" not in names or not found:
            raise InputError(
                f"it holds {', '.join(sorted(names)) or 'nothing'}",
                remedy="it needs 'labels' and 'logits' or 'probs' (optional: ids, classes, label_probs)",
            )
        kind = _one_unit(found, how.unit)
        scores = arrays[kind]
    optional: dict[str, Any] = {key: given[key] for key in ("ids", "label_probs") if key in given}
    if "classes" in given:
        optional["classes"] = tuple(np.atleast_1d(given["classes"]).astype(str).tolist())
    if "name" in given and given["name"].ndim == 0:
        optional["name"] = str(given["name"])
    return _build(kind, scores, given["labels"], how, **optional)


def _from_csv(path: Path, how: _How) -> Predictions:
    parts: dict[str, list[NDArray[Any]]] = {}
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        try:
            header = [title.strip() for title in next(reader, [])]
            layout = _Layout(header, how)
            rows: list[list[str]] = []
            start = 0
            for row in reader:
                if not row:
                    continue  # a blank line
                if len(row) != len(header):
                    raise InputError(
                        f"{len(row)} fields where the header has {len(header)}", line=reader.line_num, remedy="mend the line"
                    )
                how.lines.append(reader.line_num)
                rows.append(row)
                if len(rows) == CHUNK_ROWS:
                    layout.add(parts, list(zip(*rows, strict=True)), start)
                    start += len(rows)
                    rows = []
        except csv.Error as error:
            raise InputError(
                f"not readable as CSV: {error}", line=reader.line_num, remedy="check quotes and line ends"
            ) from None
        if rows:
            layout.add(parts, list(zip(*rows, strict=True)), start)
    return layout.predictions(parts)


def _from_parquet(path: Path, how: _How) -> Predictions:
    pyarrow, parquet = _pyarrow()
    try:
        layout = _Layout(parquet.read_schema(path).names, how)
        table = parquet.read_table(path)
    except (pyarrow.lib.ArrowException, OSError):
        raise InputError("the file is damaged or is not parquet", remedy="write it again") from None
    parts: dict[str, list[NDArray[Any]]] = {}
    if len(table):
        wanted = set(layout.wanted)
        columns = [table.column(i) if i in wanted else None for i in range(table.num_columns)]
        for i, column in enumerate(columns):
            if column is not None and column.null_count:
                row = column.is_null().to_pylist().index(True)
                raise InputError(f"column {table.column_names[i]!r} has no value", row=row, remedy="fill or drop the row")
        layout.add(parts, [[] if c is None else c.to_numpy() for c in columns], 0)
    return layout.predictions(parts)


def _from_jsonl(path: Path, how: _How) -> Predictions:
    ids: list[str] = []
    labels: list[Any] = []
    scores: list[list[float]] = []
    votes: list[list[float]] = []
    outcomes: list[tuple[float, float]] = []
    kind: Unit | None = None
    classes: tuple[str, ...] = ()
    first: set[str] = set()
    with open(path, encoding="utf-8-sig") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue  # a blank line
            try:
                record = json.loads(text)
            except json.JSONDecodeError as error:
                raise InputError(f"not JSON: {error.msg}", line=number, remedy="write one JSON object per line") from None
            if not isinstance(record, dict):
                raise InputError("not a JSON object", line=number, remedy="write one JSON object per line")
            keys = set(record) & {"id", "label", "logits", "probs", "label_probs", "confidence", "correct"}
            if not how.lines:
                first = keys
                found: list[Unit] = [u for u in ("logits", "probs") if u in keys]
                if {"confidence", "correct"} <= keys and not found:
                    pass
                elif "label" in keys and found:
                    kind = _one_unit(found, how.unit)
                    if isinstance(record[kind], dict):
                        classes = tuple(record[kind])
                else:
                    raise InputError(
                        f"the object has {', '.join(record) or 'nothing'}",
                        line=number,
                        remedy="it needs 'label' and 'logits' or 'probs', or 'confidence' and 'correct'",
                    )
            elif keys != first:
                odd = sorted(keys ^ first)[0]
                raise InputError(f"{odd!r} is not in every line", line=number, remedy="give every line the same keys")
            how.lines.append(number)
            if "id" in keys:
                if not isinstance(record["id"], (str, int)):
                    raise InputError(f"id {record['id']!r} is neither text nor a number", line=number, remedy="mend the line")
                ids.append(str(record["id"]))
            if kind is None:
                right = record["correct"]
                right = int(right) if isinstance(right, bool) else right
                outcomes.append((_number(record["confidence"], number), _number(right, number)))
                continue
            if isinstance(record["label"], bool) or not isinstance(record["label"], (str, int)):
                raise InputError(
                    f"label {record['label']!r} is neither a name nor an index", line=number, remedy="mend the line"
                )
            labels.append(record["label"])
            scores.append(_vector(record[kind], classes, number))
            if "label_probs" in keys:
                votes.append(_vector(record["label_probs"], classes, number))
            if len(scores[-1]) != len(scores[0]):
                raise InputError(
                    f"{len(scores[-1])} {kind} where line 1 has {len(scores[0])}",
                    line=number,
                    remedy="give one value per class",
                )
    named: dict[str, Any] = {"ids": np.array(ids)} if ids else {}
    if not how.lines:
        raise InputError("there are no rows", remedy="write the predictions again")
    if kind is None:
        return Predictions.from_confidences(*np.array(outcomes).T, **named)
    if votes:
        named["label_probs"] = _table(votes, "label_probs")
    texts = [isinstance(label, str) for label in labels]
    if any(texts) and not all(texts):
        raise InputError("labels are partly names and partly numbers", row=texts.index(not texts[0]), remedy="use one form")
    return _build(kind, _table(scores, kind), np.array(labels).astype(str), how, classes=classes, **named)


class _Layout:
    """Which column of a table is what."""

    def __init__(self, header: Sequence[str], how: _How):
        unit, self.how = how.unit, how
        self.header = list(header)
        if not any(h.strip() for h in self.header):
            raise InputError("there is no header", line=1, remedy="name the columns in the first line")
        repeated = next((h for i, h in enumerate(self.header) if h in self.header[:i]), None)
        if repeated is not None:
            raise InputError(f"column {repeated!r} stands twice", line=1, remedy="name every column once")
        self.single = {h: i for i, h in enumerate(self.header) if h in ("id", "label", "confidence", "correct")}
        self.votes = [i for i, h in enumerate(self.header) if h.startswith(VOTES)]
        found: list[Unit] = [u for u, prefix in PREFIX.items() if any(h.startswith(prefix) for h in self.header)]
        self.only_confidence = False
        self.kind: Unit = unit or "probs"
        if "label" in self.single and found:
            self.kind = _one_unit(found, unit)
            prefix = PREFIX[self.kind]
            self.scores = [i for i, h in enumerate(self.header) if h.startswith(prefix)]
            self.classes = tuple(self.header[i].removeprefix(prefix) for i in self.scores)
        elif "label" in self.single and unit is not None:
            self.scores = [i for i, h in enumerate(self.header) if h not in self.single and not h.startswith(VOTES)]
            self.classes = tuple(self.header[i] for i in self.scores)
        elif {"confidence", "correct"} <= set(self.single):
            self.only_confidence, self.classes = True, ()
            self.scores = [self.single["confidence"], self.single["correct"]]
        else:
            raise InputError(
                f"the columns are {', '.join(self.header)}",
                line=1,
                remedy="it needs 'label' and one column per class named prob_<class> or logit_<class> (or plain class names "
                "and the unit said: --probs or --logits), or 'confidence' and 'correct'",
            )
        if self.votes:
            named = tuple(self.header[i].removeprefix(VOTES) for i in self.votes)
            if sorted(named) != sorted(self.classes):
                raise InputError(
                    f"the {VOTES} columns name other classes than the predictions", line=1, remedy="name the same classes"
                )
            self.votes = [self.votes[named.index(c)] for c in self.classes]
        self.wanted = [*self.single.values(), *self.scores, *self.votes]

    def add(self, parts: dict[str, list[NDArray[Any]]], columns: Sequence[Sequence[Any]], start: int) -> None:
        """Append the rows of one chunk, which begins at row ``start``."""
        for name in ("id", "label"):
            if name in self.single:
                # As text: a label that is a number may be the name of a class.
                parts.setdefault(name, []).append(np.asarray(columns[self.single[name]]).astype(str))
        for name, places in (("scores", self.scores), ("votes", self.votes)):
            if places:
                numbers = [_numbers(columns[i], self.header[i], start) for i in places]
                parts.setdefault(name, []).append(np.column_stack(numbers))

    def predictions(self, parts: dict[str, list[NDArray[Any]]]) -> Predictions:
        if not parts:
            raise InputError("there are no rows", remedy="write the predictions again")
        whole = {name: np.concatenate(chunks) for name, chunks in parts.items()}
        named: dict[str, Any] = {"ids": whole["id"].astype(str)} if "id" in whole else {}
        if self.only_confidence:
            return Predictions.from_confidences(*whole["scores"].T, **named)
        if "votes" in whole:
            named["label_probs"] = whole["votes"]
        return _build(self.kind, whole["scores"], whole["label"], self.how, classes=self.classes, **named)


def _build(kind: Unit, scores: NDArray[Any], labels: NDArray[Any], how: _How, **named: Any) -> Predictions:
    if kind == "logits":
        return Predictions.from_logits(scores, labels, **named)
    return Predictions.from_probs(scores, labels, tolerance=how.tolerance, **named)


def _one_unit(found: list[Unit], unit: Unit | None) -> Unit:
    if unit is None:
        if len(found) == 2:
            raise InputError("it has both logits and probabilities", remedy="say which to use: --probs or --logits")
        return found[0]
    if unit not in found:
        raise InputError(f"it holds {found[0]}, not {unit}", remedy=f"leave out --{unit}")
    return unit


def _numbers(values: Sequence[Any], title: str, start: int) -> NDArray[np.float64]:
    try:
        return np.array(_as_outcome(values) if title == "correct" else values, dtype=np.float64)
    except (ValueError, TypeError):
        for i, value in enumerate(values):
            try:
                float(value)
            except (ValueError, TypeError):
                raise InputError(
                    f"{value!r} in column {title!r} is not a number", row=start + i, remedy="mend the value or drop the row"
                ) from None
        raise


def _as_outcome(values: Sequence[Any]) -> Sequence[Any]:
    words = {"true": 1, "false": 0}
    return [words.get(str(v).strip().lower(), v) for v in values]


def _number(value: Any, line: int) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{value!r} is not a number", line=line, remedy="give a number")
    return float(value)


def _vector(value: Any, classes: tuple[str, ...], line: int) -> list[float]:
    if isinstance(value, dict):
        if set(value) != set(classes):
            odd = sorted(set(value) ^ set(classes))[0]
            raise InputError(f"class {odd!r} is not in every line", line=line, remedy="name the same classes in every line")
        value = [value[c] for c in classes]
    if not isinstance(value, list):
        raise InputError(f"{value!r} is neither a list nor an object by class", line=line, remedy="give one number per class")
    return [_number(v, line) for v in value]


def _table(rows: list[list[float]], what: str) -> NDArray[np.float64]:
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        line = next(i for i, row in enumerate(rows, start=1) if len(row) != len(rows[0]))
        raise InputError(
            f"{len(rows[line - 1])} {what} where line 1 has {len(rows[0])}", line=line, remedy="give one per class"
        )
    return np.array(rows)


# ---- writing -----------------------------------------------------------------------------------------------------------


def _arrays(p: Predictions) -> dict[str, Any]:
    arrays: dict[str, Any] = {} if p.ids is None else {"ids": p.ids}
    if p.confidence_only:
        return {**arrays, "confidence": p.confidence, "correct": p.correct}
    if p.label_probs is not None:
        arrays["label_probs"] = p.label_probs
    scores = {"logits": p.logits} if p.given_probs is None else {"probs": p.given_probs}
    return {**arrays, **scores, "labels": p.labels, "classes": np.array(p.classes), "name": np.array(p.name)}


def _columns(p: Predictions) -> list[tuple[str, list[Any]]]:
    columns: list[tuple[str, list[Any]]] = [] if p.ids is None else [("id", p.ids.tolist())]
    if p.confidence_only:
        return [*columns, ("confidence", p.confidence.tolist()), ("correct", p.correct.astype(int).tolist())]
    columns.append(("label", [p.classes[y] for y in p.labels]))
    kind: Unit = "logits" if p.given_probs is None else "probs"
    scores = p.logits if p.given_probs is None else p.given_probs
    columns += [(PREFIX[kind] + c, scores[:, k].tolist()) for k, c in enumerate(p.classes)]
    if p.label_probs is not None:
        columns += [(VOTES + c, p.label_probs[:, k].tolist()) for k, c in enumerate(p.classes)]
    return columns


def _records(p: Predictions) -> Iterator[dict[str, Any]]:
    kind = "logits" if p.given_probs is None else "probs"
    scores = p.logits if p.given_probs is None else p.given_probs
    for i in range(len(p)):
        record: dict[str, Any] = {} if p.ids is None else {"id": str(p.ids[i])}
        if p.confidence_only:
            yield {**record, "confidence": float(p.confidence[i]), "correct": int(p.correct[i])}
            continue
        record |= {"label": p.classes[p.labels[i]], kind: dict(zip(p.classes, scores[i].tolist(), strict=True))}
        if p.label_probs is not None:
            record["label_probs"] = dict(zip(p.classes, p.label_probs[i].tolist(), strict=True))
        yield record


class _Lines:
    """What csv.writer needs, over a binary file."""

    def __init__(self, file: BinaryIO):
        self.file = file

    def write(self, text: str) -> None:
        self.file.write(text.encode())


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("parquet needs pyarrow", remedy="pip install 'distilcal[parquet]'") from None
    return pyarrow, pyarrow.parquet
