"""The command that tells what a student should hand over."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from distilcal import Predictions
from distilcal.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cascade")
    rng = np.random.default_rng(0)
    for split, rows in (("dev", 1500), ("final", 1200)):
        labels = rng.integers(0, 3, rows)
        ids = [f"{split}{i}" for i in range(rows)]
        for model, signal in (("student", 3.0), ("teacher", 4.0)):
            logits = signal * np.eye(3)[labels] + rng.normal(size=(rows, 3))
            Predictions.from_logits(logits, labels, ids=ids).save(folder / f"{model}_{split}.npz")
    return folder


def cascade(folder, *options):
    files = ("student_final.npz", "teacher_final.npz", "--calib", "student_dev.npz", "teacher_dev.npz")
    arguments = [str(folder / name) if name.endswith(".npz") else name for name in files]
    return CliRunner().invoke(main, ["cascade", *arguments, *options])


def test_it_shows_the_sentence_the_curve_and_the_promises(folder):
    done = cascade(folder, "--cost", "student=1,teacher=40", "--max-loss", "0.02")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "stay with the student; accuracy as the teacher's within 2 points (95%)" in lines[0]
    assert "of its cost" in lines[0]
    shares = [line.split()[0] for line in lines if line[:11].strip().endswith("%")]
    assert shares == ["0%", "5%", "10%", "20%", "30%", "50%", "100%"]
    assert sum(line.startswith("- ") for line in lines) == 3


def test_json_is_what_a_run_stores(folder):
    done = cascade(folder, "--json", "--max-loss", "0.0005")
    stored = json.loads(done.stdout)
    assert stored["sentence"].startswith("do not: ")
    assert list(stored["splits"]) == ["dev", "test"]
    assert stored["costs"] is None


@pytest.mark.parametrize(
    "cost",
    [
        "40",
        "student=1",
        "student=1,teacher=x",
        "student=1,teacher=2,human=3",
        "student=0,teacher=2",
        "student=1,student=2,teacher=3",
    ],
)
def test_costs_that_are_not_two_positive_numbers_are_refused(folder, cost):
    done = cascade(folder, "--cost", cost)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_other_rows_are_refused(folder, tmp_path):
    other = Predictions.load(folder / "teacher_final.npz")
    ids = [f"other {name}" for name in other.ids]
    Predictions.from_logits(other.logits, other.labels, ids=ids).save(tmp_path / "other.npz")
    arguments = ["cascade", folder / "student_final.npz", tmp_path / "other.npz"]
    calib = ["--calib", folder / "student_dev.npz", folder / "teacher_dev.npz"]
    done = CliRunner().invoke(main, [str(argument) for argument in (*arguments, *calib)])
    assert (done.exit_code, "share no id" in done.stderr) == (2, True)


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_the_curve_is_a_figure(folder, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curve{suffix}"
    done = cascade(folder, "--figure", str(path), "--max-loss", "0.02")
    assert done.exit_code == 0, done.stderr
    assert f"Wrote {path}" in done.stdout
    content = path.read_bytes()
    assert content.startswith({".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}[suffix])
    assert cascade(folder, "--figure", str(path), "--max-loss", "0.02", "--json").exit_code == 0
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "message"),
    [("curve.gif", "ends neither in .svg"), ("no/curve.svg", "does not exist"), ("link.svg", "this output is the input")],
)
def test_a_figure_that_cannot_be_written_is_refused_before_any_work(folder, tmp_path, name, message):
    pytest.importorskip("matplotlib")
    (tmp_path / "link.svg").symlink_to(folder / "student_final.npz")
    before = (folder / "student_final.npz").read_bytes()
    done = cascade(folder, "--figure", str(tmp_path / name))
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert (folder / "student_final.npz").read_bytes() == before


def test_a_development_split_that_is_the_test_split_is_refused(folder):
    files = [str(folder / f"{name}.npz") for name in ("student_final", "teacher_final", "student_final", "teacher_final")]
    done = CliRunner().invoke(main, ["cascade", *files[:2], "--calib", *files[2:]])
    assert done.exit_code == 2
    assert "100% of the rows of 'student_final' are in 'student_final' too" in done.stderr
    assert done.stderr.count("\n") == 1
