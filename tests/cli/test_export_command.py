"""distilcal export: files and folders that are used at once, and mistakes in one line."""

import json

import numpy as np
import pytest
from shell import command
from small import SMALL, vectors
from tiny import save_model, write_csv

from distilcal.export import as_student, load_student
from distilcal.inference.onnx import load_onnx
from distilcal.models import build_classifier


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved student, with dev and test rows as .npz."""
    folder = tmp_path_factory.mktemp("export")
    classifier = build_classifier(SMALL, vectors())
    as_student(classifier).save_pretrained(folder / "saved")
    for seed, name in enumerate(("dev", "test")):
        data = vectors(60, seed=seed)
        np.savez(folder / f"{name}.npz", vectors=data.inputs.values, labels=np.array(data.classes)[data.labels])
    return folder


def test_a_folder_becomes_an_onnx_in_8_bits(folder, tmp_path):
    done = command("export", folder / "saved", tmp_path / "student.onnx", "--int8", "--max-drop", "90",
                   "--dev", folder / "dev.npz", "--test", folder / "test.npz")  # fmt: skip
    assert "int8" in done.stdout
    assert "accuracy" in done.stdout
    assert f"distilcal predict {tmp_path / 'student.onnx'}" in done.stdout
    assert json.loads((tmp_path / "student.report.json").read_text())["rows"] == 60
    assert load_onnx(tmp_path / "student.onnx").classes == ("a", "b", "c")


def test_a_folder_becomes_another(folder, tmp_path):
    done = command("export", folder / "saved", tmp_path / "again")
    assert "README.md" in done.stdout
    np.testing.assert_allclose(
        load_student(tmp_path / "again").predict_proba(vectors()), load_student(folder / "saved").predict_proba(vectors())
    )


def test_columns_of_a_table_can_be_named(tmp_path):
    save_model(tmp_path / "model", labels=("neg", "pos"))
    write_csv(tmp_path / "dev.csv", 30, 0)
    text = (tmp_path / "dev.csv").read_text().replace("text,label", "body,sentiment", 1)
    (tmp_path / "dev.csv").write_text(text)
    named = ("--text", "body", "--label", "gold")
    done = command("export", tmp_path / "model", tmp_path / "s.onnx", "--int8", "--dev", tmp_path / "dev.csv", *named, code=2)
    assert "gold" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("saved", "student.onnx", "--int8"), "no dev data"),
        (("saved", "folder", "--int8"), "neither 8 bits nor data"),
        (("nowhere", "student.onnx"), "nowhere"),
        (("saved", "student.onnx", "--dev", "nothing.csv"), "nothing.csv"),
        (("saved", "missing/student.onnx"), "does not exist"),
        (("saved", "student.onnx", "--stage", "student"), "not a finished run"),
        (("saved", "student.onnx", "--max-drop", "-1"), "max-drop"),
    ],
)
def test_mistakes_are_one_line(folder, arguments, problem, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    assert (
        problem in command("export", *(str(argument).replace("nowhere", "./nowhere") for argument in arguments), code=2).stderr
    )
    assert sorted(folder.rglob("*")) == before


@pytest.mark.slow
def test_a_run_becomes_an_onnx(tmp_path):
    write_csv(tmp_path / "train.csv", 200, 0)
    save_model(tmp_path / "encoder", head=False)
    command("distill", "--train", tmp_path / "train.csv", "--teacher", tmp_path / "encoder", "--no-alone", "--epochs", "1",
            "--out", tmp_path / "run", "--store", tmp_path / "store")  # fmt: skip
    done = command("export", tmp_path / "run", tmp_path / "teacher.onnx", "--stage", "teacher", "--int8", "--max-drop", "99")
    assert "int8" in done.stdout
    (tmp_path / "train.csv").unlink()
    done = command("export", tmp_path / "run", tmp_path / "student.onnx")
    assert "cannot be read, so that accuracy was not measured" in done.stdout
    assert "train.csv" in command("export", tmp_path / "run", tmp_path / "again.onnx", "--int8", code=2).stderr
    assert load_onnx(tmp_path / "student.onnx").dev is not None
