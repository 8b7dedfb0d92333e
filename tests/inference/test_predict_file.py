"""Files are labelled by any student: an .onnx without torch, what has dev rows and what has none."""

import csv
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from served import dev_rows, length_student
from shell import command
from small_onnx import word_probs, write_word_student

from distilcal import load_dataset
from distilcal.data import Columns
from distilcal.errors import InputError
from distilcal.inference import predict_file
from distilcal.inference.onnx import load_onnx
from distilcal.io.predictions import read_predictions

TEXTS = ["good", "bad film", "very, very good good", "a", "bad"]


@pytest.fixture
def place(tmp_path):
    with open(tmp_path / "new.csv", "w", newline="", encoding="utf-8") as file:
        rows = [["id", "text", "label"], *([f"r{n}", text, "unknown class"] for n, text in enumerate(TEXTS))]
        csv.writer(file).writerows(rows)
    write_word_student(tmp_path / "words.onnx", dev_rows())
    return tmp_path


def read(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_an_onnx_labels_a_file(place):
    done = command("predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv", "--accuracy", 0.8, "--probs")
    rows = read(place / "out.csv")
    assert list(rows[0]) == ["id", "label", "confidence", "hand_over", "prob_neg", "prob_pos", "text", "input_label"]
    assert [row["id"] for row in rows] == ["r0", "r1", "r2", "r3", "r4"]
    expected = [word_probs(text.replace(",", " ,")) for text in TEXTS]
    assert [float(row["prob_pos"]) for row in rows] == pytest.approx(expected, abs=2e-6)
    assert [row["label"] for row in rows] == ["pos" if prob > 0.5 else "neg" for prob in expected]
    lowest = length_student(dev=dev_rows()).threshold(0.8).confidence
    assert [row["hand_over"] == "1" for row in rows] == [max(prob, 1 - prob) < lowest for prob in expected]
    assert done.output.startswith(f"Wrote {place / 'out.csv'}: 5 rows, 1 of them (20%) below {lowest:.3f}")


def test_what_was_predicted_is_measured_with_the_labels_of_the_input(place):
    """The column label of the output is the answer: measured with it, any model would be right."""
    (place / "new.csv").write_text((place / "new.csv").read_text().replace("unknown class", "neg"))
    command("predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv", "--probs")
    predictions = read_predictions(place / "out.csv", labelled=True)
    assert predictions.labels.tolist() == [predictions.classes.index("neg")] * 5
    assert 0 < predictions.correct.mean() < 1
    command("predict", place / "words.onnx", place / "out.csv", "-o", place / "again.csv")
    twice = read(place / "again.csv")[0]
    assert {"input_prob_neg", "input_prob_pos", "input_input_label"} <= set(twice)
    assert "prob_neg" not in twice
    command("predict", place / "words.onnx", place / "out.csv", "-o", place / "again.csv", "--probs")
    assert read_predictions(place / "again.csv").labels.tolist() == predictions.labels.tolist()


def test_data_whose_labels_are_answers_are_warned_of(place):
    (place / "new.csv").write_text((place / "new.csv").read_text().replace("unknown class", "true class", 1))
    command("predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv")
    with pytest.warns(UserWarning, match=r"out.csv: distilcal predict wrote this file.*the true classes are in 'input_label'"):
        assert load_dataset(place / "out.csv").classes == ("neg", "pos")
    with warnings.catch_warnings(action="error"):
        assert load_dataset(place / "out.csv", label="input_label").classes == ("true class", "unknown class")


def test_answers_without_labels_are_not_measured(place):
    (place / "bare.csv").write_text("text\ngood\nbad\n")
    command("predict", place / "words.onnx", place / "bare.csv", "-o", place / "out.csv", "--probs")
    assert not read_predictions(place / "out.csv").has_labels  # a teacher's predictions need none
    refused = command("eval", place / "out.csv", code=2)
    assert "there is no label column" in refused.stderr
    assert "'input_label'" in refused.stderr


def test_an_onnx_needs_neither_torch_nor_pydantic(place):
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'pydantic', 'accelerate', 'onnx', 'datasets', 'pandas', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "from distilcal.cli.main import main\nmain()"
    )
    arguments = ["predict", "words.onnx", "new.csv", "-o", "out.csv", "--probs"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(read(place / "out.csv")) == 5


def test_the_accuracy_is_that_of_the_run(place):
    write_word_student(place / "words.onnx", dev_rows(), required_accuracy=0.7)
    out = command("predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv").output
    assert f"below {length_student(dev=dev_rows()).threshold(0.7).confidence:.3f}" in out


def test_without_dev_rows_nothing_is_promised(place):
    write_word_student(place / "words.onnx")
    out = command("predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv").output
    assert "no accuracy can be promised" in out
    assert {row["hand_over"] for row in read(place / "out.csv")} == {""}
    refused = command("predict", place / "words.onnx", place / "new.csv", "-o", place / "o.csv", "--accuracy", 0.9, code=2)
    assert "no dev predictions" in refused.stderr
    assert not (place / "o.csv").exists()


def test_the_data_are_not_replaced(place, monkeypatch):
    content = (place / "new.csv").read_bytes()
    os.symlink(place / "new.csv", place / "link.csv")
    os.link(place / "new.csv", place / "hard.csv")
    (place / "sub").mkdir()
    monkeypatch.chdir(place / "sub")
    for name in (place / "new.csv", place / "link.csv", place / "hard.csv", "../new.csv", "../sub/../new.csv"):
        refused = command("predict", place / "words.onnx", place / "new.csv", "-o", name, code=2)
        assert "this output is the input" in refused.stderr
        refused = command("predict", place / "words.onnx", name, "-o", place / "new.csv", code=2)
        assert "this output is the input" in refused.stderr
    assert (place / "new.csv").read_bytes() == content


def test_columns_may_be_named(place):
    (place / "other.csv").write_text("key,review\nx,good\ny,bad\n")
    command("predict", place / "words.onnx", place / "other.csv", "-o", place / "out.csv", "--text", "review", "--id", "key")
    assert [(row["id"], row["label"]) for row in read(place / "out.csv")] == [("x", "pos"), ("y", "neg")]
    refused = command("predict", place / "words.onnx", place / "other.csv", "-o", place / "o.csv", code=2)
    assert "--text" in refused.stderr


def test_the_columns_of_the_data_are_kept(place):
    lines = [
        {"uid": "a", "text": "good", "label": "x", "input_label": 1, "tags": ["p", "q"], "id": "i"},
        {"uid": "b", "text": "bad", "more": None, "label_prob_x": 7, "confidence": True},
    ]
    (place / "other.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["predict", place / "words.onnx", place / "other.jsonl", "-o", place / "out.csv", "--id", "uid"]
    command(*arguments)
    first, second = read(place / "out.csv")
    assert (first["id"], first["uid"], first["input_id"], second["input_id"]) == ("a", "a", "i", "")
    assert (first["label"], first["input_label"], first["input_input_label"]) == ("pos", "x", "1")
    assert (first["tags"], second["input_confidence"], second["label_prob_x"]) == ('["p", "q"]', "true", "7")
    command(*arguments, "--no-columns")
    assert list(read(place / "out.csv")[0]) == ["id", "label", "confidence", "hand_over"]


def test_pictures_need_no_labels(tmp_path):
    """They may lie in a folder as they are, or in folders by class."""
    from PIL import Image

    from distilcal.inference import Student

    class Brightness:
        def compute_logits(self, data, on_progress=None):
            return np.stack([np.zeros(len(data)), data.inputs.pixels.mean(axis=(1, 2, 3)) / 255 - 0.5], axis=1)

    folder = tmp_path / "pictures"
    (folder / "by class").mkdir(parents=True)
    Image.new("RGB", (8, 8), "white").save(folder / "a.png")
    Image.new("RGB", (4, 6), "black").save(folder / "by class" / "b.jpg")
    student = Student(Brightness(), ("dark", "light"), "images")
    with pytest.raises(InputError, match="--size"):
        predict_file(student, folder, tmp_path / "out.csv")
    assert predict_file(student, folder, tmp_path / "out.csv", size=8).rows == 2
    expected = [("a.png", "light"), (os.path.join("by class", "b.jpg"), "dark")]
    assert [(row["id"], row["label"]) for row in read(tmp_path / "out.csv")] == expected


def test_choices_are_read(tmp_path):
    class EndingLengths:
        def compute_logits(self, data, on_progress=None):
            return np.array([[len(ending) for ending in row] for row in data.inputs.endings], dtype=float)

    from distilcal.inference import Student

    (tmp_path / "choices.csv").write_text("prompt,a,b\nthe cat,sleeps,is\n")
    columns = Columns(text="prompt", choices=("a", "b"))
    student = Student(EndingLengths(), ("0", "1"), "choices")
    written = predict_file(student, tmp_path / "choices.csv", tmp_path / "out.csv", columns=columns)
    assert (written.rows, written.handed_over, written.acceptance) == (1, 0, None)
    assert read(tmp_path / "out.csv")[0]["label"] == "0"
    with pytest.raises(InputError, match="reads choices, got texts"):
        predict_file(student, tmp_path / "choices.csv", tmp_path / "out.csv", columns=Columns(text="prompt"))


def test_sources_that_are_no_model_are_refused(place):
    (place / "empty").mkdir()
    for source, message in (
        (place / "missing.onnx", "there is no such file"),
        (place / "empty", "not the folder of a finished run, nor of a saved model"),
        (place / "missing", "there is no such folder"),
        ("/dev/null", "this file is not a model"),
    ):
        assert message in command("predict", source, place / "new.csv", "-o", place / "o.csv", code=2).stderr
    refused = command("predict", place / "words.onnx", place / "new.csv", "-o", place / "o.csv", "--stage", "a", code=2)
    assert "leave out stage" in refused.stderr


@pytest.mark.parametrize("name", ["./missing", "sub/missing", "a/b/missing", "~/missing", "../missing", "missing/"])
def test_what_can_only_be_a_path_is_not_looked_up_elsewhere(place, monkeypatch, name):
    """Without torch, and so at once."""
    monkeypatch.chdir(place)
    monkeypatch.setitem(sys.modules, "distilcal.export", None)
    (place / "sub").mkdir()
    for arguments in (["predict", name, "new.csv", "-o", "o.csv"], ["serve", name]):
        assert command(*arguments, code=2).stderr.startswith(
            f"error: {name}: there is no such folder; give the folder of a run"
        )
    refused = command("predict", "words.onnx", "new.csv", "-o", "o.csv", "--threshold", 0.9, "--defer-to", name, code=2)
    assert "there is no such folder" in refused.stderr


def test_data_that_are_not_named_are_not_this_folder(place, monkeypatch):
    monkeypatch.chdir(place)
    assert "no data are named" in command("predict", "words.onnx", "", "-o", "o.csv", code=2).stderr


def test_a_teacher_answers_what_the_student_defers(place):
    write_word_student(place / "teacher.onnx", swapped=True)
    arguments = ["predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv", "--probs"]
    done = command(*arguments, "--threshold", 0.875, "--defer-to", place / "teacher.onnx")
    rows = read(place / "out.csv")
    ours = ["id", "label", "confidence", "hand_over", "answered_by", "prob_neg", "prob_pos"]
    assert list(rows[0]) == [*ours, "text", "input_label"]
    probs = [word_probs(text.replace(",", " ,")) for text in TEXTS]
    sure = [max(prob, 1 - prob) >= 0.875 for prob in probs]
    assert [row["answered_by"] == "student" for row in rows] == sure == [True, False, True, False, True]
    expected = [prob if is_sure else 1 - prob for prob, is_sure in zip(probs, sure, strict=True)]
    assert [float(row["prob_pos"]) for row in rows] == pytest.approx(expected, abs=2e-6)
    assert [row["label"] for row in rows] == ["pos" if prob > 0.5 else "neg" for prob in expected]
    assert {row["hand_over"] for row in rows} == {"0"}
    assert f"out.csv: 5 rows, 3 answered by the student, 2 by {place / 'teacher.onnx'}; about " in done.output
    assert "% of the time of the teacher alone." in done.output


def test_costs_are_those_of_the_user(place):
    arguments = ["predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv", "--threshold", 0.875]
    done = command(*arguments, "--defer-to", place / "words.onnx", "--cost", "student=1,teacher=20")
    # Two of five rows are deferred: 1 + 0.4 · 20 in place of 20.
    assert done.output.endswith("; 9 per row, 45% of the cost of the teacher alone.\n")
    for cost, message in (
        ("student=1", "does not name both costs; write --cost student=1,teacher=40"),
        ("student=1,teacher=0", "the cost of the teacher is 0"),
        ("student=nan,teacher=1", "the cost of the student is nan"),
    ):
        refused = command(*arguments, "--defer-to", place / "words.onnx", "--cost", cost, code=2)
        assert message in refused.stderr
    assert "--defer-to" in command(*arguments, "--cost", "student=1,teacher=40", code=2).stderr


def test_nothing_deferred_costs_nothing_more(place):
    done = command(
        "predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv", "--threshold", 0,
        "--defer-to", place / "words.onnx",
    )  # fmt: skip
    assert done.output.endswith(f"5 rows, 5 answered by the student, 0 by {place / 'words.onnx'}.\n")


def test_rows_that_nobody_answered_are_left_to_a_human(place):
    student = load_onnx(place / "words.onnx")
    written = predict_file(
        student, place / "new.csv", place / "out.csv", confidence=0.875, probs=True, defer_to=lambda texts: ["neg", None]
    )
    rows = read(place / "out.csv")
    assert (written.rows, written.by_teacher, written.handed_over) == (5, 1, 1)
    assert [row["answered_by"] for row in rows] == ["student", "teacher", "student", "", "student"]
    assert [row["hand_over"] for row in rows] == ["0", "0", "0", "1", "0"]
    assert (rows[1]["label"], rows[1]["confidence"], rows[1]["prob_neg"]) == ("neg", "", "")
    assert (rows[3]["label"], float(rows[3]["confidence"])) == ("", pytest.approx(word_probs("b"), abs=1e-6))


def test_all_goes_to_the_teacher_where_nothing_can_be_promised(place):
    write_word_student(place / "words.onnx", dev_rows(20))
    done = command(
        "predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv", "--defer-to", place / "words.onnx"
    )
    assert (
        f"0 answered by the student, 5 by {place / 'words.onnx'}; no confidence of the student could promise it" in done.output
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--defer-to", "missing.onnx"], "there is no such file"),
        (["--defer-to", "new.csv"], "this file is not a model"),
        (["--defer-to", "http://127.0.0.1:1"], "teacher http://127.0.0.1:1: it cannot be reached"),
        (["--defer-to", "words.onnx", "--accuracy", 0.9, "--threshold", 0.9], "give one of them"),
        (["--defer-to", "plain.onnx", "--threshold", 2], "--threshold"),
    ],
)
def test_mistakes_about_teachers_are_one_line(place, monkeypatch, options, message):
    monkeypatch.chdir(place)
    refused = command("predict", "words.onnx", "new.csv", "-o", "o.csv", *options, code=2)
    assert message in refused.stderr
    assert not (place / "o.csv").exists()


def test_a_student_without_dev_rows_needs_a_threshold_to_defer(place):
    write_word_student(place / "words.onnx")
    refused = command(
        "predict", place / "words.onnx", place / "new.csv", "-o", place / "o.csv", "--defer-to", place / "words.onnx", code=2
    )
    assert "no dev predictions" in refused.stderr
    assert "confidence (--threshold)" in refused.stderr
