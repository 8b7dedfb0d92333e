"""Files are labelled by any student: an .onnx without torch, what has dev rows and what has none."""

import csv
import os
import subprocess
import sys

import numpy as np
import pytest
from served import dev_rows, length_student
from shell import command
from small_onnx import word_probs, write_word_student

from distilcal.data import Columns
from distilcal.errors import InputError
from distilcal.inference import predict_file
from distilcal.inference.onnx import load_onnx

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
    assert list(rows[0]) == ["id", "label", "confidence", "hand_over", "prob_neg", "prob_pos"]
    assert [row["id"] for row in rows] == ["r0", "r1", "r2", "r3", "r4"]
    expected = [word_probs(text.replace(",", " ,")) for text in TEXTS]
    assert [float(row["prob_pos"]) for row in rows] == pytest.approx(expected, abs=2e-6)
    assert [row["label"] for row in rows] == ["pos" if prob > 0.5 else "neg" for prob in expected]
    lowest = length_student(dev=dev_rows()).threshold(0.8).confidence
    assert [row["hand_over"] == "1" for row in rows] == [max(prob, 1 - prob) < lowest for prob in expected]
    assert done.output.startswith(f"Wrote {place / 'out.csv'}: 5 rows, 1 of them (20%) below {lowest:.3f}")


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


def test_the_data_are_not_replaced(place):
    content = (place / "new.csv").read_bytes()
    os.symlink(place / "new.csv", place / "link.csv")
    for name in ("new.csv", "link.csv"):
        refused = command("predict", place / "words.onnx", place / "new.csv", "-o", place / name, code=2)
        assert "the output would replace the data; give another name" in refused.stderr
    assert (place / "new.csv").read_bytes() == content


def test_columns_may_be_named(place):
    (place / "other.csv").write_text("key,review\nx,good\ny,bad\n")
    command("predict", place / "words.onnx", place / "other.csv", "-o", place / "out.csv", "--text", "review", "--id", "key")
    assert [(row["id"], row["label"]) for row in read(place / "out.csv")] == [("x", "pos"), ("y", "neg")]
    refused = command("predict", place / "words.onnx", place / "other.csv", "-o", place / "o.csv", code=2)
    assert "--text" in refused.stderr


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
    ):
        assert message in command("predict", source, place / "new.csv", "-o", place / "o.csv", code=2).stderr
    refused = command("predict", place / "words.onnx", place / "new.csv", "-o", place / "o.csv", "--stage", "a", code=2)
    assert "leave out stage" in refused.stderr


def test_a_teacher_answers_what_the_student_defers(place):
    write_word_student(place / "teacher.onnx", swapped=True)
    arguments = ["predict", place / "words.onnx", place / "new.csv", "-o", place / "out.csv", "--probs"]
    done = command(*arguments, "--threshold", 0.875, "--defer-to", place / "teacher.onnx")
    rows = read(place / "out.csv")
    assert list(rows[0]) == ["id", "label", "confidence", "hand_over", "answered_by", "prob_neg", "prob_pos"]
    probs = [word_probs(text.replace(",", " ,")) for text in TEXTS]
    sure = [max(prob, 1 - prob) >= 0.875 for prob in probs]
    assert [row["answered_by"] == "student" for row in rows] == sure == [True, False, True, False, True]
    expected = [prob if is_sure else 1 - prob for prob, is_sure in zip(probs, sure, strict=True)]
    assert [float(row["prob_pos"]) for row in rows] == pytest.approx(expected, abs=2e-6)
    assert [row["label"] for row in rows] == ["pos" if prob > 0.5 else "neg" for prob in expected]
    assert {row["hand_over"] for row in rows} == {"0"}
    assert f"out.csv: 5 rows, 3 answered by the student, 2 by {place / 'teacher.onnx'}; about " in done.output
    assert "% of the time of the teacher alone." in done.output


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
