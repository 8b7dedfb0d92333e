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
