"""distilcal study: dry run, list, parts."""

from __future__ import annotations

import json

import pytest
from shell import command

from distilcal.study.loading import study_names


def test_dry_run_says_what_is_there_and_what_it_would_take(place, finished_study, tmp_path):
    study, store = place / "tiny.toml", finished_study[0] / "store"
    fresh = command("study", study, "--store", tmp_path / "new", "--dry-run").output
    assert "12 jobs for 12 cells and 16 points of grids; 0 in the store, 12 to do" in fresh
    assert "the best of 2 by dev accuracy" in fresh
    assert "taught by the best of near · big" in fresh
    assert not (tmp_path / "new").exists()
    known = command("study", study, "--store", store, "--dry-run").output
    assert "12 in the store, 0 to do" in known
    missing = (place / "tiny.toml").read_text().replace(str(place / "train.npz"), str(tmp_path / "none.npz"))
    (tmp_path / "s.toml").write_text(missing)
    assert "cannot be told" in command("study", tmp_path / "s.toml", "--dry-run", "--store", tmp_path / "new").output


def test_studies_are_listed():
    listed = command("study").output
    for name in study_names():
        assert name in listed


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_folder_of_something_else_is_neither_results_nor_store(place, tmp_path, options):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.json").write_text("{}")
    for out, store, message in (
        ("run", "store", "this folder is not empty and not that of a study: it holds 'metrics.json'; give a new folder"),
        ("out", "run", "this is the folder of a run, not a store"),
        ("out", "out", "the study and the store are one folder"),
    ):
        where = ("--out", tmp_path / out, "--store", tmp_path / store)
        assert message in command("study", place / "tiny.toml", *where, *options, code=2).stderr
    assert [file.name for file in tmp_path.rglob("*")] == ["run", "metrics.json"]


def test_a_recipe_is_no_study(tmp_path):
    (tmp_path / "recipe.toml").write_text('name = "r"\n[data]\ntrain = "train.csv"\n')
    assert "a recipe is run with distilcal run" in command("study", tmp_path / "recipe.toml", code=2).stderr


@pytest.mark.slow
def test_only_some_methods(place, tmp_path):
    done = command("study", place / "tiny.toml", "--only", "method=Alone, scaled,task=near", "--seeds", "1", "--processes", "1",
                   "--store", tmp_path / "store", "--out", tmp_path / "out")  # fmt: skip
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["jobs"] == 1
    cells = [cell for table in found["tables"] for row in table["cells"] for cell in row]
    assert cells
    assert all(cell["mean"] is not None for cell in cells)
    assert {row for table in found["tables"] for row in table["rows"]} == {"Alone, scaled"}
    assert not found["claims"]
    assert not found["theorems"]
    assert "study.html" in done.output
