"""Tables of text: .csv, .tsv, .jsonl and .parquet, the first three also compressed (.gz, .xz), as columns of values."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from distilcal.errors import InputError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
COMPRESSED = (".gz", ".xz")
csv.field_size_limit(1 << 27)  # a document may be long


@dataclass(frozen=True)
class Table:
    """Columns by name, and on which line of the file each row ends (empty where rows are not lines)."""

    source: str
    columns: dict[str, list[Any]]
    lines: list[int]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def column(self, name: str, remedy: str = "") -> list[Any]:
        """A column's values; a missing one is an error that names those there are."""
        if name not in self.columns:
            have = ", ".join(self.columns) or "none"
            raise InputError(
                f"there is no column {name!r}; it has {have}", source=self.source, remedy=remedy or "name one of them"
            )
        return self.columns[name]

    def where(self, row: int) -> dict[str, int]:
        """The place of a row, for an error."""
        return {"line": self.lines[row]} if self.lines else {"row": row}

    def filled(self, name: str, remedy: str = "") -> list[str]:
        """A column as text in which no value is missing."""
        values = self.column(name, remedy)
        for row, value in enumerate(values):
            if value is None or value != value or not str(value).strip():
                raise InputError(
                    f"column {name!r} has no value", source=self.source, remedy="fill or drop the row", **self.where(row)
                )
        return [value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in values]


def kind_of(path: Path) -> str:
    """The suffix that says how a file is written, without that of its compression."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in COMPRESSED else path.suffix.lower()


def read_table(path: str | Path, *, quoted: bool = True, header: Sequence[str] | None = None) -> Table:
    """The columns of a file. ``quoted=False`` takes quotes as they stand; ``header`` names columns of a file without one."""
    path = Path(path)
    if not path.exists():
        raise InputError("there is no such file", source=str(path), remedy="check the path")
    kind = kind_of(path)
    if kind not in SUFFIXES:
        raise InputError(
            f"cannot read {kind or 'a file without suffix'!r}", source=str(path), remedy=f"give one of {', '.join(SUFFIXES)}"
        )
    try:
        if kind == ".parquet":
            table = _from_parquet(path)
        elif kind == ".jsonl":
            table = _from_jsonl(path)
        else:
            table = _from_csv(path, "\t" if kind == ".tsv" else ",", quoted, header)
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8", source=str(path), remedy="save the file as UTF-8") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError):
        raise InputError("the file is damaged or cut off", source=str(path), remedy="write it again") from None
    if not len(table):
        raise InputError("there are no rows", source=str(path), remedy="give at least one example")
    return table


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    elif suffix == ".xz":
        with lzma.open(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    else:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield file


def _from_csv(path: Path, delimiter: str, quoted: bool, header: Sequence[str] | None) -> Table:
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    lines: list[int] = []
    rows: list[list[str]] = []
    with _opened(path) as file:
        reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=quoted)  # type: ignore[arg-type]
        try:
            titles = [t.strip() for t in next(reader, [])] if header is None else list(header)
            if not any(titles):
                raise InputError("there is no header", source=str(path), line=1, remedy="name the columns in the first line")
            repeated = next((t for i, t in enumerate(titles) if t in titles[:i]), None)
            if repeated is not None:
                raise InputError(f"column {repeated!r} stands twice", source=str(path), line=1, remedy="name every column once")
            for row in reader:
                if not row:
                    continue  # a blank line
                if len(row) != len(titles):
                    raise InputError(
                        f"{len(row)} fields where the header has {len(titles)}",
                        source=str(path),
                        line=reader.line_num,
                        remedy="mend the line, or put the field in quotes",
                    )
                lines.append(reader.line_num)
                rows.append(row)
        except csv.Error as error:
            raise InputError(
                f"not readable as CSV: {error}", source=str(path), line=reader.line_num, remedy="check its quotes"
            ) from None
    columns = zip(*rows, strict=True) if rows else ([] for _ in titles)
    return Table(str(path), {t: list(c) for t, c in zip(titles, columns, strict=True)}, lines)


def _from_jsonl(path: Path) -> Table:
    lines: list[int] = []
    columns: dict[str, list[Any]] = {}
    with _opened(path) as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                what = getattr(error, "msg", "nested too deeply or too long a number")
                raise InputError(
                    f"not JSON: {what}", source=str(path), line=number, remedy="write one object per line"
                ) from None
            if not isinstance(record, dict):
                raise InputError("not a JSON object", source=str(path), line=number, remedy="write one object per line")
            for key in record:
                if key not in columns:
                    columns[key] = [None] * len(lines)
            for key, values in columns.items():
                values.append(record.get(key))
            lines.append(number)
    return Table(str(path), columns, lines)


def _from_parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("parquet needs pyarrow", remedy="pip install 'distilcal[parquet]'") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.lib.ArrowException, OSError):
        raise InputError("the file is damaged or is not parquet", source=str(path), remedy="write it again") from None
    return Table(str(path), {name: table.column(name).to_pylist() for name in table.column_names}, [])
