"""Files that are not what they seem: whatever is in them, a reader returns rows or says in one line what is wrong and where."""

import gzip
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from distilcal import InputError, Predictions
from distilcal.calibrate import load_calibrator
from distilcal.cli.main import main
from distilcal.data import read_dataset
from distilcal.data.sources import read_unlabelled
from distilcal.io.answers import read_answers
from distilcal.io.atomic import read_json

PREDICTIONS = "id,label,prob_a,prob_b\n1,a,0.5,0.5\n2,b,0.2,0.8\n"
READERS = {
    "predictions": Predictions.load,
    "labelled": lambda path: Predictions.load(path, labelled=True),
    "probabilities": lambda path: Predictions.load(path, unit="probs"),
    "examples": read_dataset,
    "partly": lambda path: read_dataset(path, partly=True),
    "unlabelled": read_unlabelled,
    "answers": lambda path: read_answers(path, classes=["a", "b"]),
}
TEXT_FILES = {
    "empty.csv": b"",
    "lines.csv": b"\n\n\n",
    "header.csv": b"id,label,prob_a,prob_b\n",
    "binary.csv": bytes(range(256)),
    "utf16.csv": PREDICTIONS.encode("utf-16"),
    "latin.csv": "text,label\ncaf\xe9,a\n".encode("latin-1"),
    "semicolons.csv": PREDICTIONS.replace(",", ";").encode(),
    "quote.csv": b'text,label\n"good,a\nbad,b\n',
    "fields.csv": b"text,label\n" + b"x," * 2000 + b"\n",
    "twice.csv": b"text,text\na,b\n",
    "blank.csv": b" , \n1,2\n",
    "plain.csv.gz": PREDICTIONS.encode(),
    "cut.csv.gz": gzip.compress(PREDICTIONS.encode() * 100)[:60],
    "plain.csv.xz": PREDICTIONS.encode(),
    "plain.parquet": PREDICTIONS.encode(),
    "damaged.parquet": b"PAR1" + b"\0" * 100 + b"PAR1",
    "plain.npz": PREDICTIONS.encode(),
    "damaged.npz": b"PK\x03\x04" + b"x" * 100,
    "none": PREDICTIONS.encode(),
    "sheet.xlsx": b"PK",
    "null.jsonl": b"null\n",
    "number.jsonl": b"1\n",
    "list.jsonl": b"[1, 2]\n",
    "array.jsonl": b'[{"text": "x", "label": "a"},\n{"text": "y", "label": "b"}]\n',
    "half.jsonl": b'{"id": 1\n',
    "deep.jsonl": b"[" * 100_000 + b"\n",
    "digits.jsonl": b'{"probs": [' + b"9" * 5000 + b', 1], "label": 0}\n',
    "probs.jsonl": b'{"probs": "ab", "label": 0}\n',
    "nested.jsonl": b'{"probs": [[0.5, 0.5]], "label": 0}\n',
    "true.jsonl": b'{"probs": [true, false], "label": 0}\n',
    "no classes.jsonl": b'{"probs": {}, "label": 0}\n',
    "object label.jsonl": b'{"probs": [0.5, 0.5], "label": {"a": 1}}\n',
    "large label.jsonl": b'{"probs": [0.5, 0.5], "label": 99999999999999999999999}\n',
    "object id.jsonl": b'{"id": {}, "probs": [0.5, 0.5], "label": 0}\n',
    "half id.jsonl": b'{"id": "\\ud800", "probs": [0.5, 0.5], "label": 0}\n',
    "half class.jsonl": b'{"probs": {"\\ud800": 0.5, "b": 0.5}, "label": "b"}\n',
    "votes.jsonl": b'{"probs": [0.5, 0.5], "label": 0, "label_probs": "x"}\n',
    "answers.jsonl": b'{"id": 1, "labels": [[]]}\n',
    "tokens.jsonl": b'{"id": 1, "top_logprobs": [1]}\n',
    "logprobs.jsonl": b'{"id": 1, "top_logprobs": {"a": 1}}\n',
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_names_the_file(tmp_path, reader):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    for name, content in TEXT_FILES.items():
        (tmp_path / name).write_bytes(content)
    names = [*TEXT_FILES, "folder.csv", "folder.npz", "loop.csv", "missing.csv"]
    for name in names if reader != "answers" else [name for name in names if name.endswith(".jsonl")]:
        with pytest.raises(InputError) as failed:
            READERS[reader](tmp_path / name)
        message = str(failed.value)
        assert message.startswith(str(tmp_path / name)), name
        assert len(message) < 600, name


WRONG_SHAPES = {
    '{"text": {"a": 1}, "label": "a"}': "line 1: an object in column 'text'; give a text or a number",
    '{"text": ["a"], "label": "a"}': "line 1: a list in column 'text'",
    '{"text": "x", "label": {"a": 1}}': "line 1: an object in column 'label'",
    '{"text": "x", "label": "a", "id": [1]}': "line 1: a list in column 'id'",
}


@pytest.mark.parametrize("line", WRONG_SHAPES)
def test_a_list_or_an_object_is_no_text(tmp_path, line):
    path = tmp_path / "t.jsonl"
    path.write_text(line + '\n{"text": "y", "label": "b", "id": "2"}\n')
    with pytest.raises(InputError, match=re.escape(WRONG_SHAPES[line])):
        read_dataset(path)


def test_columns_of_parquet_that_are_no_text(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    for values, message in (
        ([b"\xff", b"x"], "row 0 .*: column 'text' is not UTF-8"),
        ([[1], [2]], "row 0 .*: a list in column 'text'"),
        ([{"a": 1}, None], "row 0 .*: an object in column 'text'"),
    ):
        parquet.write_table(pyarrow.table({"text": values, "label": ["a", "b"]}), path)
        with pytest.raises(InputError, match=message):
            read_dataset(path)
    parquet.write_table(pyarrow.table({"label": [["a"], ["b"]], "prob_a": [0.5, 0.2], "prob_b": [0.5, 0.8]}), path)
    with pytest.raises(InputError, match=r"row 0 .*: a list in column 'label'"):
        Predictions.load(path)


def test_arrays_of_other_shapes_name_the_file_and_the_row(tmp_path):
    path = tmp_path / "a.npz"
    for arrays, message in (
        ({"vectors": np.full((2, 2), np.nan)}, "row 0 .*: a value is not finite"),
        ({"vectors": np.array([[1.0, 2], [1e300, 3]])}, "row 1 .*: a value is not finite"),
        ({"vectors": np.zeros(2)}, r"vectors of type float32 and shape \(2,\)"),
        ({"vectors": np.zeros((2, 0))}, r"vectors of type float32 and shape \(2, 0\)"),
        ({"images": np.zeros((2, 4), dtype=np.uint8)}, r"images of type uint8 and shape \(2, 4\)"),
        ({"images": np.zeros((2, 0, 4, 3), dtype=np.uint8)}, r"shape \(2, 0, 4, 3\)"),
    ):
        np.savez(path, labels=[0, 1], **arrays)
        with pytest.raises(InputError, match=f"a.npz.*{message}"):
            read_dataset(path)


def test_a_document_in_place_of_a_number_is_not_printed_whole(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(f"label,prob_a,prob_b\na,{'x' * 100_000},1\n")
    done = CliRunner().invoke(main, ["eval", str(path)])
    assert done.exit_code == 2
    assert "in column 'prob_a' is not a number" in done.stderr
    assert len(done.stderr) < 400
    done = CliRunner().invoke(main, ["eval", "x" * 100_000])
    assert done.exit_code == 2
    assert len(done.stderr) < 2100


OPTIONS = {
    "--intervals": ("1000000000", "1e9", "1"),
    "--accuracy": ("nan", "inf", "0", "95"),
    "--confidence": ("nan", "1"),
    "--tolerance": ("nan", "1"),
    "--bins": ("0", "1e3", "100000"),
    "--seed": ("-1", "x"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_numbers_out_of_range_are_refused(tmp_path, option):
    Predictions.from_logits([[1.0, 0.0], [0.0, 1.0]], [0, 1]).save(tmp_path / "p.npz")
    for value in OPTIONS[option]:
        done = CliRunner().invoke(main, ["eval", str(tmp_path / "p.npz"), option, value])
        assert (done.exit_code, done.stdout) == (2, ""), (option, value)
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


def test_a_command_without_arguments_shows_its_help():
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 2
    assert "Commands:\n" in done.stderr
    assert json.dumps(done.stderr).count("\\n") > 10


def test_a_repeated_key_is_refused(tmp_path):
    path = tmp_path / "twice.jsonl"
    path.write_text('{"probs": [0.5, 0.5], "label": 0}\n{"probs": [0.5, 0.5], "label": 0, "label": 1}\n')
    with pytest.raises(InputError, match="twice.jsonl, line 2: the key 'label' comes twice"):
        Predictions.load(path)
    path = tmp_path / "temperature.json"
    path.write_text('{"format": "distilcal-calibrator/1", "value": 1.0, "value": 2.0}')
    with pytest.raises(InputError, match="temperature.json: the key 'value' comes twice"):
        load_calibrator(path)
    with pytest.raises(InputError, match="the key 'value' comes twice"):
        read_json(path)


PIPES = {
    "eval": ("eval", "pipe.csv"),
    "eval of arrays": ("eval", "pipe.npz"),
    "answers": ("eval", "pipe.jsonl"),
    "parquet": ("eval", "pipe.parquet"),
    "recipe": ("run", "pipe.toml"),
    "study": ("study", "pipe.toml"),
    "student": ("predict", "pipe.onnx", "other.csv", "-o", "out.csv"),
    "device": ("run", "/dev/zero"),
    "folder": ("eval", "folder.csv"),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", PIPES)
def test_pipes_devices_and_folders_are_no_files(tmp_path, name):
    arguments = PIPES[name]
    for argument in arguments:
        if argument.startswith("pipe."):
            os.mkfifo(tmp_path / argument)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "other.csv").write_text("text\na\n")
    # In a process of its own: a reader that opens a pipe would wait for ever.
    done = subprocess.run(
        [sys.executable, "-m", "distilcal", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert ("this is a folder" if name == "folder" else "this is a pipe or a device, not a file") in done.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_among_pictures_is_no_picture(tmp_path):
    pytest.importorskip("PIL")
    (tmp_path / "cats").mkdir()
    os.mkfifo(tmp_path / "cats" / "pipe.png")
    code = f"from distilcal.data import read_dataset; read_dataset({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert "pipe.png: this is a pipe or a device, not a file" in done.stderr


@pytest.mark.parametrize("key", ["probs", "label_probs"])
def test_a_list_among_objects_by_class_is_refused(tmp_path, key):
    first = {"label": "cat", "probs": {"cat": 0.9, "dog": 0.1}, "label_probs": {"cat": 1.0, "dog": 0.0}}
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (first, {**first, key: [0.2, 0.8]})))
    with pytest.raises(InputError, match="line 2: a list where line 1 has an object by class; name the classes"):
        Predictions.load(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_document_in_place_of_a_label_is_refused_before_all_labels_are_as_wide(tmp_path, suffix):
    document = "word " * 3000
    path = tmp_path / f"labels{suffix}"
    if suffix == ".csv":
        path.write_text(f"label,prob_cat,prob_dog\ncat,0.9,0.1\n{document},0.2,0.8\n")
    else:
        lines = [{"label": label, "probs": {"cat": 0.9, "dog": 0.1}} for label in ("cat", document)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=r"label 'word .* has more than 10,000 characters; give a class") as error:
        Predictions.load(path)
    assert len(str(error.value)) < 400


def test_class_names_of_an_npz_that_are_bytes_are_utf8_or_refused(tmp_path):
    path = tmp_path / "bytes.npz"
    for encoding in ("utf-8", "latin-1"):
        names = np.array(["é".encode(encoding), b"b"])
        np.savez(path, logits=np.zeros((2, 2)), labels=names, classes=names)
        if encoding == "utf-8":
            assert Predictions.load(path).classes == ("é", "b")
            continue
        with pytest.raises(InputError, match=r"bytes.npz: class name b'.xe9' is not UTF-8"):
            Predictions.load(path)


def test_a_number_that_is_too_large_is_found_by_its_line(tmp_path):
    path = tmp_path / "large.jsonl"
    path.write_text('{"label": 0, "logits": [1, 2]}\n{"label": 0, "logits": [1, -1' + "0" * 400 + "]}\n")
    with pytest.raises(InputError, match=r"large.jsonl, line 2: a number under 'logits' is too large"):
        Predictions.load(path)
