"""The reader of tables: the same rows from every format, and faults named with their line."""

import gzip
import io
import json
import sys

import numpy as np
import pytest

from distilcal.errors import InputError, MissingDependencyError
from distilcal.io import tables
from distilcal.io.tables import Table, read_table, stream_table, table_kind, write_csv


def write(path, text):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        file.write(text)
    return path


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.csv.gz"])
def test_parts_are_the_whole_table_in_order(tmp_path, monkeypatch, name, chunk):
    monkeypatch.setattr(tables, "CHUNK_ROWS", chunk)
    rows = [(f"row {i}", str(i)) for i in range(7)]
    if ".jsonl" in name:
        text = "".join(json.dumps({"text": text, "n": n}) + "\n" for text, n in rows)
    else:
        delimiter = "\t" if ".tsv" in name else ","
        text = "".join(f"{text}{delimiter}{n}\n" for text, n in [("text", "n"), *rows])
    path = write(tmp_path / name, text)
    whole = read_table(path)
    assert whole.columns == {"text": [text for text, _ in rows], "n": [n for _, n in rows]}
    parts = list(stream_table(path))
    assert [part.first_row for part in parts] == list(range(0, 7, chunk))
    assert [line for part in parts for line in part.lines] == list(whole.lines)
    assert np.concatenate([part.numbers("n") for part in parts]).tolist() == list(range(7))


def test_keys_that_come_and_go_are_columns_with_gaps(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_ROWS", 2)
    path = write(tmp_path / "t.jsonl", '{"a": 1}\n\n{"a": 2, "b": 3}\n{"c": 4}\n')
    table = read_table(path)
    assert table.columns == {"a": [1, 2, None], "b": [None, 3, None], "c": [None, None, 4]}
    assert list(table.lines) == [1, 3, 4]


FAULTS = {
    "empty": ("t.csv", "", "line 1: there is no header"),
    "duplicate column": ("t.csv", "a,b,a\n1,2,3\n", "line 1: duplicate column 'a'"),
    "too many fields": ("t.csv", 'a,b\n"x\ny",1\n1,2,3\n', "line 4: 3 fields where the header has 2"),
    "quote": ("t.csv", 'a,b\n1,"2\n', "line 2: not readable as CSV"),
    "no rows": ("t.tsv", "a\tb\n", "there are no rows"),
    "no objects": ("t.jsonl", "\n\n", "there are no rows"),
    "not JSON": ("t.jsonl", '{"a": 1}\n\n{"a": \n', "line 3: not JSON"),
    "not an object": ("t.jsonl", "3\n", "line 1: not a JSON object"),
    "too deep": ("t.jsonl", "[" * 200_000 + "\n", "line 1: not JSON"),
    "long number": ("t.jsonl", '{"a": ' + "1" * 5000 + "}\n", "line 1: not JSON"),
    "unknown suffix": ("t.xlsx", "a", "cannot read '.xlsx'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_its_file_and_line(tmp_path, fault):
    name, text, message = FAULTS[fault]
    path = write(tmp_path / name, text)
    with pytest.raises(InputError) as error:
        read_table(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("before", [0, 1, 50_000])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_byte_that_is_not_utf_8_is_named_with_its_line(tmp_path, before, end):
    path = tmp_path / "t.csv"
    path.write_bytes(("a" + end + ("é" + end) * before).encode() + "é".encode("latin-1") + end.encode())
    with pytest.raises(InputError, match=f"line {before + 2}: byte 0xe9 is not UTF-8"):
        read_table(path)


def test_a_file_that_cannot_be_opened_is_the_user_s_fault(tmp_path):
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(InputError, match="this is a folder; give a file"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / "missing.csv")


def test_quotes_can_be_part_of_the_text_and_a_header_can_be_given(tmp_path):
    path = write(tmp_path / "t.tsv", 'say "no\t1\n"yes\t2\n')
    assert read_table(path, quoted=False, header=("text", "n")).columns == {"text": ['say "no', '"yes'], "n": ["1", "2"]}


def test_columns_of_parquet(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = {"text": ["a", "b", "a"], "n": [1, 2, 3], "gap": [0.5, None, 1.5], "list": [["x"], ["y", "z"], []]}
    table = pyarrow.table({**values, "kind": pyarrow.array(["u", "v", "u"]).dictionary_encode()})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    assert read_table(tmp_path / "t.parquet").columns == {**values, "kind": ["u", "v", "u"]}
    first, second = stream_table(tmp_path / "t.parquet")
    assert (len(first), len(second), second.first_row) == (2, 1, 2)
    assert first.array("kind").tolist() == ["u", "v"]
    with pytest.raises(InputError, match=r"row 1 \(counting from 0\): column 'gap' has no value"):
        first.numbers("gap")
    with pytest.raises(InputError, match=r"row 2 \(counting from 0\): 'a' in column 'text' is not a number"):
        second.numbers("text")
    parquet.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    (empty,) = stream_table(tmp_path / "empty.parquet")
    assert (len(empty), list(empty.columns)) == (0, [*values, "kind"])


def test_without_pyarrow_the_remedy_is_named(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match="distilcal\\[parquet\\]"):
        read_table(tmp_path / "t.parquet")


def test_values_of_a_table():
    table = Table("t.jsonl", {"n": [1, None], "word": ["TRUE", " false "], "mixed": ["x", 2]}, lines=[3, 5])
    with pytest.raises(InputError, match="line 5: column 'n' has no value"):
        table.numbers("n")
    with pytest.raises(InputError, match="line 5: column 'n' has no value"):
        table.array("n")
    assert table.numbers("word", words={"true": 1, "false": 0}).tolist() == [1, 0]
    assert table.texts("mixed") == ["x", "2"]
    assert table.select([1]).lines == [5]
    assert table.select([1]).values("mixed") == [2]
    with pytest.raises(InputError, match="no column 'x'; it has n, word, mixed"):
        table.values("x")
    with pytest.raises(InputError, match="line 3: 1000.* in column 'n' is not a number"):
        Table("t.jsonl", {"n": [10**400]}, lines=[3]).numbers("n")


def test_the_kind_of_a_table_is_not_its_compression(tmp_path):
    assert [table_kind(tmp_path / name) for name in ("a.CSV", "a.jsonl.xz", "a.gz", "a")] == [".csv", ".jsonl", "", ""]


def test_rows_written_as_csv_are_read_back(tmp_path):
    file = io.BytesIO()
    write_csv(file, {"text": ['a "quoted", ☂\n'], "n": [1]})
    (tmp_path / "t.csv").write_bytes(file.getvalue())
    assert read_table(tmp_path / "t.csv").columns == {"text": ['a "quoted", ☂\n'], "n": ["1"]}


def test_a_parquet_file_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")

    def refused(path, **settings):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(parquet, "ParquetFile", refused)
    with pytest.raises(InputError, match="t.parquet: cannot be read: Permission denied; check the file"):
        read_table(tmp_path / "t.parquet")


def test_a_very_wide_table_is_read_at_once(tmp_path):
    names = [f"c{i}" for i in range(100_000)]  # comparing each with all before it would take minutes
    (tmp_path / "w.csv").write_text(f"{','.join(names)}\n{','.join('1' * len(names))}\n")
    assert list(read_table(tmp_path / "w.csv").columns) == names
