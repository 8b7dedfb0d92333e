"""The one reader of tables, ``.csv``, ``.tsv`` and ``.jsonl``, also compressed as ``.gz`` or ``.xz``, and ``.parquet``.

And the one writer of CSV. ``read_table`` returns a whole file, ``stream_table`` parts of one. Every fault is an
InputError that names the file, the line (of a parquet file the row) and the remedy. To add a format, write a generator of
Tables like ``_stream_csv`` and enter it in ``stream_table``.
"""

from __future__ import annotations

import csv
import gzip
import lzma
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError, MissingDependencyError
from distilcal.io.atomic import check_input, parse_json

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
COMPRESSED = (".gz", ".xz")
CHUNK_ROWS = 20_000  # of a text file, held as Python objects
PARQUET_CHUNK_ROWS = 200_000
csv.field_size_limit(1 << 27)  # a document may be long
ANSWER_COLUMNS = ("label", "confidence", "hand_over")  # of a table that ``distilcal predict`` wrote
ESCAPED = "distilcal_escaped"  # the column of a .csv that tells in which rows texts have an apostrophe before them
FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Place(TypedDict, total=False):
    """Where a row is, as keyword arguments of an error."""

    source: str
    line: int
    row: int


@dataclass(frozen=True)
class Table:
    """Rows of a file by column: a whole file, or consecutive rows of a larger one.

    Attributes
    ----------
    source : str
        The file, for messages.
    columns : dict of str to sequence
        Values by column name: text from .csv and .tsv, any JSON value from .jsonl (None where a line lacks the key), an
        Arrow array from .parquet. The methods return them in other forms.
    lines : sequence of int
        The line on which each row ends, from 1; empty where rows are not lines.
    first_row : int
        Index in the file of this table's first row.

    Examples
    --------
    >>> table = Table("votes.csv", {"text": ["fine", "bad"], "votes": ["3", "many"]}, lines=[2, 3])
    >>> table.texts("text")
    ['fine', 'bad']
    >>> table.numbers("votes")
    Traceback (most recent call last):
    distilcal.errors.InputError: votes.csv, line 3: 'many' in column 'votes' is not a number; fix the value or drop the row
    """

    source: str
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int] = ()
    first_row: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def place(self, row: int) -> Place:
        """Return where a row of this table is, as arguments of an error: ``source`` and ``line`` or ``row``."""
        if self.lines:
            return {"source": self.source, "line": self.lines[row]}
        return {"source": self.source, "row": self.first_row + row}

    def require(self, name: str, remedy: str = "name one of them") -> None:
        """Raise an InputError that lists the columns if this one does not exist."""
        if name not in self.columns:
            existing = ", ".join(self.columns) or "none"
            raise InputError(f"there is no column {name!r}; it has {existing}", source=self.source, remedy=remedy)

    def values(self, name: str) -> list[Any]:
        """Return a column as a list of Python objects."""
        self.require(name)
        column = self.columns[name]
        if _is_arrow(column):
            with _arrow_errors(self.source):
                return cast(list[Any], cast(Any, column).to_pylist())
        return list(column)

    def texts(self, name: str) -> list[str]:
        """Return a column as strings; a missing or blank value is an InputError."""
        values = self._single_values(name)
        for row, value in enumerate(values):
            if is_blank(value):
                raise self.missing_value(name, row)
        return [str(value) for value in values]

    def _single_values(self, name: str) -> list[Any]:
        """The values of a column as Python objects, bytes as text; lists and objects in it are an InputError."""
        values = self.values(name)
        for row, value in enumerate(values):
            if isinstance(value, list | dict):
                kind = "a list" if isinstance(value, list) else "an object"
                raise InputError(f"{kind} in column {name!r}", remedy="give a text or a number", **self.place(row))
            if isinstance(value, bytes):
                values[row] = self._decode(name, row, value)
        return values

    def _decode(self, name: str, row: int, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InputError(f"column {name!r} is not UTF-8", remedy="save it as UTF-8", **self.place(row)) from None

    def array(self, name: str) -> NDArray[Any]:
        """Return a column as a NumPy array; a missing value is an InputError."""
        self.require(name)
        column: Any = self.columns[name]
        if not _is_arrow(column):
            if None in column:
                raise self.missing_value(name, column.index(None))
            return np.asarray(column)
        with _arrow_errors(self.source):
            if column.null_count:
                raise self.missing_value(name, column.is_null().to_pylist().index(True))
            if hasattr(column, "dictionary_decode"):
                column = column.dictionary_decode()
            return np.asarray(column.to_numpy(zero_copy_only=False))

    def text_array(self, name: str) -> NDArray[np.str_]:
        """Return a column as a NumPy array of strings, empty where a value is missing."""
        values = self._single_values(name)
        return np.array(["" if value is None else str(value) for value in values], dtype=np.str_)

    def numbers(self, name: str, words: Mapping[str, float] | None = None) -> NDArray[np.float64]:
        """Return a column as float64; what is not a number is an InputError.

        Parameters
        ----------
        name : str
            The column.
        words : mapping of str to float, optional
            Words in lower case that stand for numbers, e.g. ``{"true": 1, "false": 0}``.

        Returns
        -------
        ndarray, shape (N,)
            The numbers.
        """
        self.require(name)
        values: Any = self.columns[name]
        if _is_arrow(values):
            values = self.array(name)
            if values.dtype.kind in "mM":  # NumPy would count the nanoseconds
                raise InputError(f"column {name!r} holds times, not numbers", source=self.source, remedy="give numbers")
        if words is not None:
            values = [words.get(str(value).strip().lower(), value) for value in values]
        try:
            numbers = np.array(values, dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            raise self._not_a_number(name, values) from None
        if np.isnan(numbers).any() and None in values:
            raise self.missing_value(name, list(values).index(None))
        return numbers

    def select(self, rows: Sequence[int]) -> Table:
        """Return a table of these rows; lines stay those of the file."""
        columns = {}
        for name in self.columns:
            values = self.values(name)
            columns[name] = [values[row] for row in rows]
        return Table(self.source, columns, [self.lines[row] for row in rows] if self.lines else ())

    def missing_value(self, name: str, row: int) -> InputError:
        """Return the error of a row without a value in a column."""
        return InputError(f"column {name!r} has no value", remedy="fill or drop the row", **self.place(row))

    def _not_a_number(self, name: str, values: Sequence[Any]) -> InputError:
        row = next(row for row, value in enumerate(values) if not _is_number(value))
        return InputError(
            f"{values[row]!r:.80} in column {name!r} is not a number", remedy="fix the value or drop the row", **self.place(row)
        )


def is_blank(value: Any) -> bool:
    """Return whether a cell of a table has no value: None, NaN, or nothing but spaces.

    Parameters
    ----------
    value : Any
        The cell.

    Returns
    -------
    bool

    Examples
    --------
    >>> [is_blank(value) for value in (None, float("nan"), " ", 0, "no")]
    [True, True, True, False, False]
    """
    return value is None or value != value or not str(value).strip()


def table_kind(path: Path) -> str:
    """Return the suffix that tells a file's format, in lower case and without that of its compression.

    Parameters
    ----------
    path : Path
        The file, which need not exist.

    Returns
    -------
    str
        The suffix with its dot; empty if there is none.

    Examples
    --------
    >>> table_kind(Path("reviews.CSV.gz"))
    '.csv'
    """
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def read_table(path: str | Path, *, quoted: bool = True, header: Sequence[str] | None = None) -> Table:
    """Read a whole table into lists of Python objects.

    Parameters
    ----------
    path : str or Path
        A .csv, .tsv, .jsonl or .parquet file; the first three may be compressed as .gz or .xz.
    quoted : bool
        Whether fields of a .csv or .tsv may stand in double quotes. If False, quotes are part of the text.
    header : sequence of str, optional
        Column names of a .csv or .tsv that has no header line.

    Returns
    -------
    Table
        All rows. A key that only some lines of a .jsonl have is a column with None in the other rows.

    Raises
    ------
    InputError
        If the file is missing, damaged, malformed or has no rows.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "reviews.csv"
    >>> _ = path.write_text("text,label\\ngood,pos\\nbad,neg\\n")
    >>> read_table(path).columns
    {'text': ['good', 'bad'], 'label': ['pos', 'neg']}
    """
    columns: dict[str, list[Any]] = {}
    lines = array("q")
    count = 0
    for part in stream_table(path, quoted=quoted, header=header):
        for name in part.columns:
            columns.setdefault(name, [None] * count).extend(part.values(name))
        count += len(part)
        for values in columns.values():
            values.extend([None] * (count - len(values)))
        lines.extend(part.lines)
    if not count:
        raise InputError("there are no rows", source=str(path), remedy="give at least one example")
    return Table(str(path), columns, lines)


def stream_table(
    path: str | Path, *, quoted: bool = True, header: Sequence[str] | None = None, exact_names: tuple[str, ...] = ()
) -> Iterator[Table]:
    """Read a table in parts of consecutive rows, so that a large file needs little memory.

    Parameters
    ----------
    path, quoted, header
        As for ``read_table``.
    exact_names : tuple of str
        Beginnings of column names whose last spaces belong to the name. Other names are read without spaces around them.

    Yields
    ------
    Table
        Consecutive rows. There is at least one table, so that the columns of a file without rows are known; those of a
        .jsonl are the keys of the lines in this part.
    """
    path = Path(path)
    kind = table_kind(path)
    check_input(path)
    if kind not in SUFFIXES:
        raise InputError(
            f"cannot read {kind or 'a file without suffix'!r}", source=str(path), remedy=f"give one of {', '.join(SUFFIXES)}"
        )
    with _file_errors(path):
        if kind == ".parquet":
            yield from _stream_parquet(path)
        elif kind == ".jsonl":
            yield from _stream_jsonl(path)
        else:
            delimiter = "\t" if kind == ".tsv" else ","
            yield from _stream_csv(path, delimiter=delimiter, quoted=quoted, header=header, exact_names=exact_names)


def stream_records(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of a .jsonl file one by one.

    Parameters
    ----------
    path : str or Path
        The file; it may be compressed as .gz or .xz.

    Yields
    ------
    line : int
        The line of the object, from 1. Blank lines are left out.
    record : dict
        The object.
    """
    path = Path(path)
    check_input(path)
    with _file_errors(path):
        yield from _parse_jsonl(path)


def write_csv(
    file: BinaryIO, columns: Mapping[str, Iterable[Any]], *, delimiter: str = ",", escape_formulas: bool = True
) -> None:
    """Write columns to a binary file as UTF-8 CSV with Unix line ends; `read_table` reads the same values back as text.

    A spreadsheet runs cells that begin with ``=``, ``+``, ``-`` or ``@``. Texts that do, numbers excepted, get an apostrophe
    before them, and a column ``distilcal_escaped`` tells the rows that have such cells: 1, else 0. `read_table` takes the
    apostrophes away again, in these rows only. Without such texts there is no such column.

    Parameters
    ----------
    file : BinaryIO
        The open file; it stays open.
    columns : mapping of str to iterable
        The values by column, all of one length. None is an empty cell; numbers are never changed.
    delimiter : str
        What separates fields.
    escape_formulas : bool, default True
        False writes texts as they are, for programs that know nothing of the apostrophe.

    Raises
    ------
    InputError
        If a text cannot be written in UTF-8, or a column has the name of ours.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> write_csv(file, {"id": ["=1+1", "-5", "a"], "count": [-1, 2, 3]})
    >>> print(file.getvalue().decode(), end="")
    id,count,distilcal_escaped
    '=1+1,-1,1
    -5,2,0
    a,3,0
    """
    if ESCAPED in columns:
        raise InputError(f"the name of the column {ESCAPED!r} has a meaning of its own", remedy="rename it")
    lists = {name: _as_list(values) for name, values in columns.items()}
    names: list[Any] = list(lists)
    rows: Iterable[Sequence[Any]] = zip(*lists.values(), strict=True)
    if escape_formulas and any(_holds_formulas(values) for values in (names, *lists.values())):
        names = [*map(_escape, names), ESCAPED]
        rows = ([*map(_escape, row), int(_holds_formulas(row))] for row in rows)
    text = TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
    writer = csv.writer(_UnixLines(text), delimiter=delimiter, lineterminator="\r\n")
    try:
        writer.writerow(names)
        writer.writerows(rows)
        text.flush()
    except UnicodeEncodeError as error:
        raise InputError(f"{error.object!r:.80} is not readable text", remedy="replace what is no character") from None
    finally:
        text.detach()


@dataclass(frozen=True)
class _UnixLines:
    """A file for csv.writer, which quotes a carriage return only if that is part of the line end: the end is shortened here."""

    file: TextIO

    def write(self, line: str) -> int:
        return self.file.write(f"{line[:-2]}\n")


def _as_list(values: Iterable[Any]) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _holds_formulas(values: Iterable[Any]) -> bool:
    return any(isinstance(value, str) and _is_formula(value) for value in values)


def _is_formula(text: str) -> bool:
    """Whether a spreadsheet may run a cell with this text, or an apostrophe before it would be taken for our own."""
    return FORMULA.match(text) is not None and NUMBER.fullmatch(text) is None


def _escape(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def _unescape(text: str) -> str:
    return text[1:] if text.startswith("'") and _is_formula(text[1:]) else text


def import_pyarrow() -> tuple[Any, Any]:
    """Return the modules ``pyarrow`` and ``pyarrow.parquet``, or raise a MissingDependencyError."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("parquet needs pyarrow", remedy="pip install 'distilcal[parquet]'") from None
    return pyarrow, pyarrow.parquet


# ---- text files --------------------------------------------------------------------------------------------------------


def _stream_csv(
    path: Path, *, delimiter: str, quoted: bool, header: Sequence[str] | None, exact_names: tuple[str, ...]
) -> Iterator[Table]:
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    with _open_text(path) as file:
        reader = csv.reader(file, delimiter=delimiter, quoting=cast(Any, quoting), strict=quoted)
        try:
            names = _header_names(next(reader, []), exact_names) if header is None else list(header)
            _check_names(names, path, line=1)
            rows: list[list[str]] = []
            lines = array("q")
            first_row = 0
            for row in reader:
                if not row:
                    continue  # a blank line
                if len(row) != len(names):
                    raise InputError(
                        f"{len(row)} fields where the header has {len(names)}",
                        source=str(path),
                        line=reader.line_num,
                        remedy="fix the line, or put the field in quotes",
                    )
                rows.append(row)
                lines.append(reader.line_num)
                if len(rows) == CHUNK_ROWS:
                    yield _table_of_rows(path, names, rows, lines, first_row)
                    first_row += len(rows)
                    rows, lines = [], array("q")
        except csv.Error as error:
            raise InputError(
                f"not readable as CSV: {error}",
                source=str(path),
                line=reader.line_num,
                remedy="check its quotes and line ends",
            ) from None
        if rows or not first_row:
            yield _table_of_rows(path, names, rows, lines, first_row)


def _header_names(names: Sequence[str], exact_names: tuple[str, ...]) -> list[str]:
    """Return the names of columns without the spaces around them, except those that end a name with one of the prefixes."""
    stripped = [name.lstrip() if name.lstrip().startswith(exact_names) else name.strip() for name in names]
    return [_unescape(name) for name in stripped] if ESCAPED in stripped else stripped


def _table_of_rows(path: Path, names: list[str], rows: list[list[str]], lines: Sequence[int], first_row: int) -> Table:
    values: Iterable[Sequence[str]] = zip(*rows, strict=True) if rows else [()] * len(names)
    columns = dict(zip(names, values, strict=True))
    escaped = columns.pop(ESCAPED, None)
    table = Table(str(path), columns, lines, first_row)
    if escaped is None:
        return table
    for row, value in enumerate(escaped):
        if value not in ("0", "1"):
            raise InputError(f"{value!r} in column {ESCAPED!r} is neither 0 nor 1", remedy="fix it", **table.place(row))
    for name, cells in columns.items():
        columns[name] = [_unescape(cell) if flag == "1" else cell for cell, flag in zip(cells, escaped, strict=True)]
    return table


def _stream_jsonl(path: Path) -> Iterator[Table]:
    records: list[dict[str, Any]] = []
    lines = array("q")
    first_row = 0
    for number, record in _parse_jsonl(path):
        records.append(record)
        lines.append(number)
        if len(records) == CHUNK_ROWS:
            yield _table_of_records(path, records, lines, first_row)
            first_row += len(records)
            records, lines = [], array("q")
    if records or not first_row:
        yield _table_of_records(path, records, lines, first_row)


def _parse_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open_text(path) as file:
        for number, text in enumerate(file, start=1):
            if text.strip():  # else a blank line
                yield number, _parse_record(text, path, number)


def _table_of_records(path: Path, records: list[dict[str, Any]], lines: Sequence[int], first_row: int) -> Table:
    names = dict.fromkeys(name for record in records for name in record)  # a dict keeps their order
    columns = {name: [record.get(name) for record in records] for name in names}
    return Table(str(path), columns, lines, first_row)


def _parse_record(text: str, path: Path, line: int) -> dict[str, Any]:
    try:
        record = parse_json(text, source=str(path), line=line)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        problem = getattr(error, "msg", "nested too deeply, or a number with too many digits")
        raise InputError(f"not JSON: {problem}", source=str(path), line=line, remedy="write one object per line") from None
    if not isinstance(record, dict):
        raise InputError("not a JSON object", source=str(path), line=line, remedy="write one object per line")
    return record


def _open_text(path: Path, errors: str = "strict") -> TextIO:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors=errors, newline="")
    if suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8-sig", errors=errors, newline="")
    return open(path, encoding="utf-8-sig", errors=errors, newline="")


def _check_names(names: Sequence[str], path: Path, line: int | None) -> None:
    if not any(name.strip() for name in names):
        raise InputError("there is no header", source=str(path), line=line, remedy="name the columns in the first line")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(
            f"duplicate column {repeated[0]!r}", source=str(path), line=line, remedy="give every column its own name"
        )


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Turn what opening, decompressing and decoding raise into an InputError that names the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"byte 0x{byte:02x} is not UTF-8", source=str(path), line=_first_undecodable_line(path), remedy="save it as UTF-8"
        ) from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError):
        raise InputError("the file is damaged or cut off", source=str(path), remedy="write it again") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", source=str(path), remedy="check the file") from None


def _first_undecodable_line(path: Path) -> int | None:
    """Return the line of the first byte that is not UTF-8: files are decoded in blocks, so the error itself cannot tell."""
    with _open_text(path, errors="surrogateescape") as file:
        for number, text in enumerate(file, start=1):
            if any("\udc80" <= character <= "\udcff" for character in text):
                return number
    return None


# ---- parquet -----------------------------------------------------------------------------------------------------------


def _stream_parquet(path: Path) -> Iterator[Table]:
    pyarrow, parquet = import_pyarrow()
    with _arrow_errors(str(path)), parquet.ParquetFile(path, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        _check_names(names, path, line=None)
        first_row = 0
        batches = file.iter_batches(batch_size=PARQUET_CHUNK_ROWS)
        for batch in batches:
            yield Table(str(path), dict(zip(names, batch.columns, strict=True)), first_row=first_row)
            first_row += batch.num_rows
        if not first_row:
            yield Table(str(path), {name: pyarrow.array([], file.schema_arrow.field(name).type) for name in names})


@contextmanager
def _arrow_errors(source: str) -> Iterator[None]:
    """Turn what Arrow raises for a damaged parquet file into an InputError that names it."""
    pyarrow, _ = import_pyarrow()
    try:
        yield
    except PermissionError:
        raise InputError("cannot be read: Permission denied", source=source, remedy="check the file") from None
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError):  # damaged text is decoded late
        raise InputError("the file is damaged or is not parquet", source=source, remedy="write it again") from None


def _is_arrow(column: Any) -> bool:
    return hasattr(column, "null_count")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError, OverflowError):
        return False
    return True
