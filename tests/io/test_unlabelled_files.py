"""Predictions files without labels, or with some: read, written, and refused where labels are needed."""

import json

import numpy as np
import pytest
from samples import make

from distilcal import InputError, Predictions
from distilcal.io.predictions import SUFFIXES, read_predictions

LABELS = {"none": None, "some": [2, -1, 0, -1, 1, 1, -1]}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("known", LABELS)
@pytest.mark.parametrize("unit", ["logits", "probs"])
def test_unknown_labels_are_written_and_read_back(tmp_path, suffix, known, unit):
    p = make(7, 3)
    names = {"ids": p.ids, "classes": ["joy", "-2", "fear"]}
    build = Predictions.from_logits if unit == "logits" else Predictions.from_probs
    predictions = build(getattr(p, unit), LABELS[known], **names)
    path = tmp_path / f"dev{suffix}"
    predictions.save(path)
    back = Predictions.load(path)
    assert back.labels.tolist() == predictions.labels.tolist()
    assert back.classes == predictions.classes
    np.testing.assert_array_equal(back.probs, predictions.probs)
    with pytest.raises(InputError, match="no label") as error:
        Predictions.load(path, labelled=True)
    assert str(path) in str(error.value)
    if known == "some":
        assert error.value.row == 1
        assert error.value.line == {".csv": 3, ".tsv": 3, ".jsonl": 2}.get(suffix)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "id,prob_a,prob_b\nx,0.5,0.5\ny,0.1,0.9\n",
        "id,label,prob_a,prob_b\nx,,0.5,0.5\ny,,0.1,0.9\n",
        "id,label,prob_a,prob_b\nx,-1,0.5,0.5\ny,-1,0.1,0.9\n",
    ],
    ids=["no column", "empty", "minus one"],
)
def test_a_table_needs_no_labels(tmp_path, text):
    p = read_predictions(write(tmp_path / "teacher.csv", text))
    assert (p.ids.tolist(), p.classes, p.labels.tolist()) == (["x", "y"], ("a", "b"), [-1, -1])
    with pytest.raises(InputError, match=r"teacher.csv: there is no label column; add a column 'label'"):
        read_predictions(tmp_path / "teacher.csv", labelled=True)


def test_plain_class_columns_need_no_labels_either(tmp_path):
    p = read_predictions(write(tmp_path / "x.csv", "id,a,b\nx,0.5,0.5\n"), unit="probs")
    assert (p.classes, p.has_labels) == (("a", "b"), False)


def test_outcomes_beside_probabilities_are_read_as_before(tmp_path):
    outcomes = read_predictions(write(tmp_path / "x.csv", "confidence,correct,prob_a,prob_b\n0.5,1,0.5,0.5\n"))
    assert outcomes.confidence_only
    probs = read_predictions(write(tmp_path / "y.csv", "label,confidence,correct,prob_a,prob_b\na,0.5,1,0.5,0.5\n"))
    assert not probs.confidence_only
    plain = "label,confidence,correct,a,b\na,0.5,1,0.6,0.4\n"
    assert read_predictions(write(tmp_path / "z.csv", plain)).confidence_only
    assert read_predictions(tmp_path / "z.csv", unit="probs").probs.tolist() == [[0.6, 0.4]]


def test_lines_with_and_without_a_label(tmp_path, monkeypatch):
    monkeypatch.setattr("distilcal.io.tables.CHUNK_ROWS", 2)
    labels = [None, None, "b", None, None, "a"]
    records = [{"id": i, "probs": {"a": 0.5, "b": 0.5}, "label": label} for i, label in enumerate(labels)]
    del records[0]["label"]
    path = write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, records)))
    assert read_predictions(path).labels.tolist() == [-1, -1, 1, -1, -1, 0]
    records[5]["label"] = 1
    with pytest.raises(InputError, match="line 6: labels are partly names and partly numbers"):
        read_predictions(write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, records))))


def test_parquet_nulls_are_unknown_labels(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for labels in ([1, None], ["1", None]):
        table = pyarrow.table({"label": labels, "prob_a": [0.5, 0.5], "prob_b": [0.5, 0.5]})
        parquet.write_table(table, tmp_path / "x.parquet")
        assert read_predictions(tmp_path / "x.parquet").labels.tolist() == [1, -1]


def test_votes_tell_the_labels_of_every_kind_of_file(tmp_path):
    (tmp_path / "a.csv").write_text("prob_x,prob_y,label_prob_x,label_prob_y\n0.7,0.3,0.2,0.8\n0.7,0.3,0.9,0.1\n")
    votes = ({"x": 0.2, "y": 0.8}, {"x": 0.9, "y": 0.1})
    lines = [json.dumps({"probs": {"x": 0.7, "y": 0.3}, "label_probs": vote}) for vote in votes]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    for name in ("a.csv", "a.jsonl"):
        assert read_predictions(tmp_path / name, labelled=True).labels.tolist() == [1, 0]
