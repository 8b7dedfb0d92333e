"""Files: what is written is read back; every mistake names file, line or row, and remedy."""

import csv
import json
import pickle
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from samples import make

from distilcal import InputError, Predictions
from distilcal.errors import NewerFormatError
from distilcal.io.atomic import atomic_write
from distilcal.io.predictions import SUFFIXES, read_predictions, write_predictions


def example(kind: str) -> Predictions:
    p = make(23, 3)
    names = {"ids": [f"é{i}" for i in range(23)], "classes": ["joy, or", 'an"ger', "<b>fear</b>"]}
    if kind == "logits":
        return Predictions.from_logits(p.logits, p.labels, label_probs=p.probs, **names)
    if kind == "float32":
        return Predictions.from_logits(p.logits.astype(np.float32), p.labels, **names)
    if kind == "probs":
        probs = np.round(p.probs, 2)
        probs[:, 0] = 1 - probs[:, 1:].sum(axis=1)
        return Predictions.from_probs(np.abs(probs), p.labels, **names)
    return Predictions.from_confidences(p.confidence, p.correct, ids=names["ids"])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["logits", "float32", "probs", "confidences"])
def test_what_is_written_is_read_back(tmp_path, suffix, kind):
    p = example(kind)
    path = tmp_path / f"dev{suffix}"
    p.save(path)
    back = Predictions.load(path)
    assert back.name == "dev"
    assert back.ids.tolist() == p.ids.tolist()
    assert back.confidence_only == p.confidence_only
    np.testing.assert_allclose(back.confidence, p.confidence, rtol=1e-12)
    np.testing.assert_array_equal(back.correct, p.correct)
    if kind != "confidences":
        assert back.classes == p.classes
        np.testing.assert_array_equal(back.labels, p.labels)
        np.testing.assert_array_equal(back.logits, p.logits)
        np.testing.assert_array_equal(back.probs, p.probs)
    if kind == "logits":
        np.testing.assert_allclose(back.label_probs, p.label_probs, rtol=1e-12)
    assert [f.name for f in tmp_path.iterdir()] == [path.name]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


GOOD = "id,text,label,prob_cat,prob_dog\na,hello,cat,0.7,0.3\nb,world,dog,0.4,0.6\n"


def test_csv_columns_of_other_tools_are_left_alone(tmp_path):
    p = read_predictions(write(tmp_path / "x.csv", GOOD))
    assert p.classes == ("cat", "dog")
    assert p.labels.tolist() == [0, 1]
    with_bom = read_predictions(write(tmp_path / "bom.csv", "\ufeff" + GOOD.replace("\n", "\r\n")))
    np.testing.assert_array_equal(with_bom.probs, p.probs)


def test_plain_class_columns_need_the_unit(tmp_path):
    path = write(tmp_path / "x.csv", "label,cat,dog\ncat,0.7,0.3\n1,0.4,0.6\n".replace("\n1,", "\ndog,"))
    with pytest.raises(InputError, match="--probs or --logits"):
        read_predictions(path)
    assert read_predictions(path, unit="probs").probs[0, 0] == 0.7
    assert read_predictions(path, unit="logits").logits[0, 0] == 0.7


def test_both_units_in_one_file_need_a_word(tmp_path):
    path = write(tmp_path / "x.csv", "label,prob_a,prob_b,logit_a,logit_b\na,0.5,0.5,1,2\n")
    with pytest.raises(InputError, match="both logits and probabilities"):
        read_predictions(path)
    assert read_predictions(path, unit="logits").logits.tolist() == [[1.0, 2.0]]


def test_confidence_and_correct_in_words(tmp_path):
    p = read_predictions(write(tmp_path / "x.csv", "confidence,correct\n0.9,True\n0.4,false\n0.5,1\n"))
    assert p.correct.tolist() == [True, False, True]
    assert p.confidence_only


CSV_MISTAKES = {
    "no rows": ("label,prob_a,prob_b\n", "no rows"),
    "blank header": ("\n\n", "no header"),
    "nan": ("label,prob_a,prob_b\na,nan,1\n", "line 2: nan is not a probability"),
    "infinite logit": ("label,logit_a,logit_b\na,1,2\nb,inf,2\n", "line 3: a logit is inf"),
    "not a number": ("label,prob_a,prob_b\na,0.5,0.5\nb,half,0.5\n", "line 3: 'half' in column 'prob_a' is not a number"),
    "missing value": ("label,prob_a,prob_b\na,,0.5\n", "line 2: '' in column 'prob_a' is not a number"),
    "sum": ("label,prob_a,prob_b\na,0.5,0.5\na,0.5,0.4\n", "line 3: probabilities sum to 0.9"),
    "unknown label": ("label,prob_a,prob_b\na,0.5,0.5\nc,0.5,0.5\n", "line 3: label 'c' is not a class name"),
    "label out of range": ("label,prob_a,prob_b\n0,0.5,0.5\n7,0.5,0.5\n", "line 3: label '7' is not"),
    "repeated id": ("id,label,prob_a,prob_b\nx,a,0.5,0.5\nx,a,0.5,0.5\n", "line 3: duplicate id 'x'"),
    "ragged": ("label,prob_a,prob_b\na,0.5,0.5\na,0.5\n", "line 3: 2 fields where the header has 3"),
    "after a blank line": ("label,prob_a,prob_b\na,0.5,0.5\n\na,x,0.5\n", "line 4: 'x' in column 'prob_a'"),
    "after a long field": (
        'text,label,prob_a,prob_b\n"one\ntwo",a,0.5,0.5\nthree,a,0.5,0.4\n',
        "line 4: probabilities sum to 0.9",
    ),
    "huge logit": ("label,logit_a,logit_b\na,1e308,-1e308\n", "line 2: a logit is 1e+308"),
    "no name": ("label,prob_a,prob_\na,0.5,0.5\n", "invalid class name ''"),
    "one class": ("label,prob_a\na,1.0\n", "only one class"),
    "no scores": ("id,label\nx,a\n", "it needs one column per class"),
    "repeated column": ("label,prob_a,prob_a\na,0.5,0.5\n", "duplicate column 'prob_a'"),
    "open quote": ('label,prob_a,prob_b\na,"0.5,0.5\n', "not readable as CSV"),
    "votes": ("label,prob_a,prob_b,label_prob_a,label_prob_c\na,0.5,0.5,1,0\n", "name other classes"),
}


@pytest.mark.parametrize("name", CSV_MISTAKES)
def test_csv_mistakes(tmp_path, name):
    text, said = CSV_MISTAKES[name]
    path = write(tmp_path / "bad.csv", text)
    with pytest.raises(InputError) as error:
        read_predictions(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_csv_errors_beyond_the_first_chunk_name_their_line(tmp_path, monkeypatch):
    monkeypatch.setattr("distilcal.io.tables.CHUNK_ROWS", 3)
    rows = ["a,0.5,0.5"] * 10
    assert len(read_predictions(write(tmp_path / "ok.csv", "label,prob_a,prob_b\n" + "\n".join(rows) + "\n"))) == 10
    rows[7] = "a,oops,0.5"
    with pytest.raises(InputError, match="line 9"):
        read_predictions(write(tmp_path / "bad.csv", "label,prob_a,prob_b\n" + "\n".join(rows) + "\n"))


JSONL_MISTAKES = {
    "not json": ('{"label": 0\n', "line 1: not JSON"),
    "not an object": ("[1, 2]\n", "line 1: not a JSON object"),
    "keys": ('{"label": 0, "probs": [0.5, 0.5]}\n{"label": 0}\n', "line 2: 'probs' is not in every line"),
    "ragged": ('{"label": 0, "probs": [0.5, 0.5]}\n{"label": 0, "probs": [1.0]}\n', "line 2: 1 probs where line 1 has 2"),
    "classes": (
        '{"label": "a", "probs": {"a": 0.5, "b": 0.5}}\n{"label": "a", "probs": {"a": 0.5, "c": 0.5}}\n',
        "line 2: class 'b' is not in every line",
    ),
    "string": ('{"label": 0, "probs": [0.5, "x"]}\n', "line 1: 'x' is not a number"),
    "mixed labels": (
        '{"label": "a", "probs": {"a": 0.5, "b": 0.5}}\n{"label": 1, "probs": {"a": 0.5, "b": 0.5}}\n',
        "partly names and partly numbers",
    ),
    "nan": ('{"label": 0, "logits": [0.5, NaN]}\n', "line 1: a logit is nan"),
    "nothing": ('{"text": "x"}\n', "it needs 'logits' or 'probs'"),
    "scalar": ('{"label": 0, "probs": 3}\n', "neither a list nor an object"),
}


@pytest.mark.parametrize("name", JSONL_MISTAKES)
def test_jsonl_mistakes(tmp_path, name):
    text, said = JSONL_MISTAKES[name]
    with pytest.raises(InputError) as error:
        read_predictions(write(tmp_path / "bad.jsonl", text))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "x", "label": "a", "probs": [0.5, 0.5]}', "'id' is not in every line"),
        ('{"label": "a", "probs": [1.0]}', "1 probs where line 1 has 2"),
        ('{"label": 1, "probs": [0.5, 0.5]}', "partly names and partly numbers"),
        ('{"label": true, "probs": [0.5, 0.5]}', "label True is neither a name nor an index"),
        ('{"label": "a", "probs": [0.5, true]}', "True is not a number"),
        ('{"label": "a", "probs": [0.5, 1' + "0" * 400 + "]}", "too large"),
    ],
)
def test_jsonl_mistakes_beyond_the_first_chunk_name_their_line(tmp_path, monkeypatch, line, message):
    monkeypatch.setattr("distilcal.io.tables.CHUNK_ROWS", 2)
    good = '{"label": "0", "probs": [0.5, 0.5]}\n'
    assert len(read_predictions(write(tmp_path / "ok.jsonl", good * 5))) == 5
    with pytest.raises(InputError, match=message) as error:
        read_predictions(write(tmp_path / "bad.jsonl", good * 4 + "\n" + line + "\n"))
    assert error.value.line == 6


def test_jsonl_confidences(tmp_path):
    text = '{"confidence": 0.9, "correct": true, "id": 7}\n{"confidence": 0.4, "correct": 0, "id": 8}\n'
    p = read_predictions(write(tmp_path / "x.jsonl", text))
    assert (p.correct.tolist(), p.ids.tolist()) == ([True, False], ["7", "8"])
    with pytest.raises(InputError, match="line 1: confidence True is not a number"):
        read_predictions(write(tmp_path / "bad.jsonl", text.replace("0.9", "true")))


def test_jsonl_classes_may_stand_in_any_order(tmp_path):
    text = '{"label": "b", "probs": {"a": 0.3, "b": 0.7}}\n{"label": "a", "probs": {"b": 0.4, "a": 0.6}}\n'
    p = read_predictions(write(tmp_path / "x.jsonl", text))
    assert p.probs.tolist() == [[0.3, 0.7], [0.6, 0.4]]


class Harmful:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_a_pickle_inside_an_npz_is_refused_and_never_run(tmp_path, capsys):
    path = tmp_path / "x.npz"
    np.savez(path, logits=np.array([Harmful()], dtype=object), labels=[0])
    with pytest.raises(InputError, match="pickled objects, which are never loaded"):
        read_predictions(path)
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(InputError):
        read_predictions(tmp_path / "raw.npz")
    assert "never run" not in capsys.readouterr().out


def test_damaged_files(tmp_path):
    p = make(200, 4)
    for suffix in (".npz", ".parquet"):
        path = tmp_path / f"x{suffix}"
        p.save(path)
        whole = path.read_bytes()
        for size in (1, len(whole) // 3, len(whole) - 30):
            path.write_bytes(whole[:size])
            with pytest.raises(InputError, match=r"damaged|cut off|not parquet"):
                read_predictions(path)
    path = tmp_path / "flipped.npz"
    p.save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="damaged"):
        read_predictions(path)


def test_other_files_are_refused(tmp_path):
    for name, content, said in [
        ("x.pkl", b"abc", "cannot read '.pkl'"),
        ("noend", b"abc", "file without suffix"),
        ("empty.csv", b"", "the file is empty"),
        ("latin.csv", "label,prob_é\n".encode("latin-1"), "not UTF-8"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=said):
            read_predictions(tmp_path / name)
    np.savez(tmp_path / "keys.npz", scores=np.ones((2, 2)))
    with pytest.raises(InputError, match="it holds scores; it needs 'logits' or 'probs'"):
        read_predictions(tmp_path / "keys.npz")
    with open(tmp_path / "array.npz", "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(InputError, match="single array"):
        read_predictions(tmp_path / "array.npz")
    with pytest.raises(InputError, match="no such file"):
        read_predictions(tmp_path / "missing.csv")
    with pytest.raises(InputError, match="folder"):
        read_predictions(tmp_path)


def test_text_too_large_to_parse_is_refused_with_advice(tmp_path):
    path = tmp_path / "huge.csv"
    with open(path, "wb") as file:
        file.truncate(10_000_000_000)  # sparse: takes no room
    with pytest.raises(InputError, match=r"10.0 GB of text.*\.parquet or \.npz"):
        read_predictions(path)


def test_parquet_with_a_missing_value(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"label": ["a", "b"], "prob_a": [0.5, None], "prob_b": [0.5, 0.5]})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"row 1 \(counting from 0\): column 'prob_a' has no value"):
        read_predictions(tmp_path / "x.parquet")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(b"old")

    def half():
        with atomic_write(path) as file:
            file.write(b"half of the new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert path.read_bytes() == b"old"
    assert [f.name for f in tmp_path.iterdir()] == ["x.npz"]
    with pytest.raises(InputError, match="does not exist"):
        write_predictions(make(), tmp_path / "nowhere" / "x.npz")
    with pytest.raises(InputError, match=r"cannot write '\.xls'"):
        write_predictions(make(), tmp_path / "x.xls")


def test_formats_are_what_they_say(tmp_path):
    p = example("probs")
    for suffix in SUFFIXES:
        p.save(tmp_path / f"x{suffix}")
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        assert {"probs.npy", "labels.npy", "classes.npy"} <= set(archive.namelist())
    with open(tmp_path / "x.csv", encoding="utf-8", newline="") as file:
        assert next(csv.reader(file)) == ["id", "label", *(f"prob_{c}" for c in p.classes)]
    first = json.loads((tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert set(first) == {"id", "label", "probs"}


def test_numbers_may_be_names_in_every_text_format(tmp_path):
    rows = [(1, 0.9, 0.05, 0.05), (2, 0.1, 0.8, 0.1), (1, 0.7, 0.2, 0.1)]
    lines = "\n".join(",".join(map(str, row)) for row in rows)
    write(tmp_path / "x.csv", f"label,prob_1,prob_2,prob_3\n{lines}\n")
    records = [{"label": row[0], "probs": dict(zip("123", row[1:], strict=True))} for row in rows]
    write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, records)))
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = ("label", "prob_1", "prob_2", "prob_3")
    parquet.write_table(pyarrow.table(dict(zip(names, zip(*rows, strict=True), strict=True))), tmp_path / "x.parquet")
    for suffix in ("csv", "jsonl", "parquet"):
        assert read_predictions(tmp_path / f"x.{suffix}").correct.all(), suffix


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_bytes_give_predictions_or_one_clear_error(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    example("probs").save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, len(data))] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        with suppress(InputError):  # anything else fails the test
            read_predictions(path)


def test_arrays_have_a_format_and_a_newer_one_is_refused(tmp_path):
    path = tmp_path / "test.npz"
    predictions = Predictions.from_logits([[2.0, 0.5], [0.1, 0.9]], [0, 1])
    predictions.save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    assert arrays.pop("distilcal_format") == 1
    np.savez(path, **arrays)
    assert np.array_equal(Predictions.load(path).logits, predictions.logits)  # as files of others are
    np.savez(path, **arrays, distilcal_format=2)
    with pytest.raises(NewerFormatError, match="test.npz: it is of format 2, this version of distilcal reads up to 1"):
        Predictions.load(path)
    for wrong in ("one", [1, 2], 0, 1.5):
        np.savez(path, **arrays, distilcal_format=wrong)
        with pytest.raises(InputError, match="which format"):
            Predictions.load(path)


def test_a_changed_byte_in_the_values_of_a_parquet_is_noticed(tmp_path):
    pytest.importorskip("pyarrow")
    logits = np.random.default_rng(0).normal(size=(300, 3))
    Predictions.from_logits(logits, np.arange(300) % 3).save(tmp_path / "p.parquet")
    content = (tmp_path / "p.parquet").read_bytes()
    place = content.index(logits[150, 0].tobytes())
    (tmp_path / "p.parquet").write_bytes(content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :])
    with pytest.raises(InputError, match="p.parquet: the file is damaged"):
        read_predictions(tmp_path / "p.parquet")


def test_times_in_a_parquet_are_no_numbers(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    times = pyarrow.array([1, 2], pyarrow.timestamp("s"))
    parquet.write_table(pyarrow.table({"logit_a": times, "logit_b": times, "label": ["a", "b"]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="x.parquet: column 'logit_a' holds times, not numbers"):
        read_predictions(tmp_path / "x.parquet")
