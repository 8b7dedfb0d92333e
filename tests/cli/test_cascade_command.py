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
    "cost", ["40", "student=1", "student=1,teacher=x", "student=1,teacher=2,human=3", "student=0,teacher=2"]
)
def test_costs_that_are_not_two_positive_numbers_are_refused(folder, cost):
    done = cascade(folder, "--cost", cost)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_other_rows_are_refused(folder):
    arguments = ["cascade", folder / "student_final.npz", folder / "teacher_dev.npz"]
    calib = ["--calib", folder / "student_dev.npz", folder / "teacher_dev.npz"]
    done = CliRunner().invoke(main, [str(argument) for argument in (*arguments, *calib)])
    assert (done.exit_code, "share no id" in done.stderr) == (2, True)
