"""The results of a finished run stay until new ones are complete, and nothing of them is left then."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import distilcal as dc
from distilcal.config.loading import load_recipe
from distilcal.errors import InputError
from distilcal.pipeline import results, run
from distilcal.pipeline.results import NEW, new_results

VECTORS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
LABELS = np.where(VECTORS[:, 0] > 0, "yes", "no")


def steep(rows):
    positive = 1 / (1 + np.exp(-4 * rows[:, 0]))
    return np.column_stack([1 - positive, positive])


def distil(tmp_path, data=(VECTORS, LABELS), **settings):
    settings = {"out": tmp_path / "run", "epochs": 1, "lr": 0.05, "progress": False, **settings}
    return dc.distill(data, steep, "linear", store=tmp_path / "store", **settings)


def files(folder):
    """The files of a run; the answers of a teacher are kept until a call that asked for them succeeds."""
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in contents.items() if not name.startswith("data/answers/")}


class DiskFull(OSError):
    pass


@pytest.fixture
def finished(tmp_path):
    distil(tmp_path, alone=True)
    return files(tmp_path / "run")


@pytest.mark.parametrize("where", ["run_stage", "write_results", "write_runs_page", "_fit_baseline"])
def test_a_run_that_fails_changes_nothing(tmp_path, finished, monkeypatch, where):
    def fails(*_, **__):
        raise DiskFull(28, "No space left on device")

    monkeypatch.setattr(run, where, fails)
    other = np.where(VECTORS[:, 1] > 0, "yes", "no")
    with pytest.raises(DiskFull):
        distil(tmp_path, (VECTORS, other), epochs=2)
    assert files(tmp_path / "run") == finished


def test_a_first_run_that_fails_keeps_its_data_and_its_recipe(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise DiskFull(28, "No space left on device")

    monkeypatch.setattr(run, "write_results", fails)
    with pytest.raises(DiskFull):
        distil(tmp_path)
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"recipe.toml", "data"}
    assert not (tmp_path / "run" / NEW).exists()
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_what_only_the_earlier_run_had_is_gone_and_the_users_own_files_stay(tmp_path, finished):
    assert "alone/stage.json" in finished
    note = tmp_path / "run" / "student" / "note.txt"
    note.write_text("mine")
    (tmp_path / "run" / "budget.json").write_text("{}")
    (tmp_path / "run" / "frontier.html").write_text("")
    distil(tmp_path, alone=False, epochs=2, changes=["stages.student.calibrate=none"])
    now = files(tmp_path / "run")
    assert note.read_text() == "mine"
    assert not {name for name in now if name.startswith(("alone/", ".new", "budget", "frontier", "data/.old"))}
    assert "student/calibrator.json" in finished
    assert "student/calibrator.json" not in now
    assert "frontier.html" not in (tmp_path / "run" / "report.html").read_text()
    assert json.loads(now["metrics.json"])["stages"]["student"]["epochs"] == 2
    assert b"epochs = 2" in now["recipe.toml"]


def test_a_kill_while_results_are_moved_leaves_a_run_that_is_not_finished(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    (folder / "student").mkdir(parents=True)
    (folder / "metrics.json").write_text('{"stages": {"student": {}}}')

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), new_results(folder) as new:
        (new / "student").mkdir()
        (new / "metrics.json").write_text('{"stages": {"student": {}}}')
        patch.setattr(results, "_replace_entries", killed)
    assert not (folder / "metrics.json").exists()


def test_damaged_metrics_of_an_earlier_run_are_replaced(tmp_path, finished):
    (tmp_path / "run" / "metrics.json").write_text("[1")
    distil(tmp_path)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["stages"]


@pytest.mark.parametrize("locked", ["student", "student/predictions", "teacher/predictions"])
def test_results_that_cannot_be_replaced_are_refused_before_any_work(tmp_path, finished, monkeypatch, locked):
    """Some of its folders are of another user, or were made read-only."""
    folder = tmp_path / "run" / locked
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    with pytest.raises(InputError, match=f"{re.escape(str(folder))}' is not writable; give a new folder"):
        distil(tmp_path, epochs=2)
    assert files(tmp_path / "run") == finished


def test_a_file_in_the_way_of_a_stage_loses_no_result(tmp_path, finished):
    (tmp_path / "run" / "small").write_text("mine")
    (tmp_path / "r.toml").write_text((tmp_path / "run" / "recipe.toml").read_text().replace("stages.alone", "stages.small"))
    with pytest.raises(FileExistsError):
        run.run_recipe(load_recipe(tmp_path / "r.toml"), tmp_path / "run", tmp_path / "store")
    assert files(tmp_path / "run") == {**finished, "small": b"mine"}
