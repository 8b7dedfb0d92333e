"""The studies of the papers: scales that agree, grids of the right size."""

from __future__ import annotations

import tomllib

import pytest

from distilcal.study.expand import expand
from distilcal.study.loading import ALIASES, load_study, study_names
from distilcal.study.schema import grid_points


@pytest.mark.parametrize("name", study_names())
def test_every_cell_of_the_full_scale_exists_in_the_small_one(name):
    full, small = (load_study(name, scale, seeds=1) for scale in ("full", "small"))
    cells = [set(expand(study).cells) for study in (full, small)]
    assert cells[0] == cells[1] != set()
    # titles name the networks of the scale
    full_tables, small_tables = ([table.replace(title="") for table in study.tables] for study in (full, small))
    assert str(full_tables) == str(small_tables)
    for study in (full, small):
        asked = {(m, t) for m, t, _ in expand(study).cells}
        assert {m for m, _ in asked} <= set(study.methods)
        assert set(study.tasks) == {t for _, t in asked}, "a task that no table looks at"


WITH_PAPER_SCALE = [name for name, file in study_names().items() if "paper" in tomllib.loads(file.read_text())["scales"]]


@pytest.mark.parametrize("name", WITH_PAPER_SCALE)
def test_the_scale_of_the_paper_has_no_other_cells_and_fewer_jobs(name):
    paper, full = (expand(load_study(name, scale, seeds=1)) for scale in ("paper", "full"))
    assert set(paper.cells) <= set(full.cells)
    assert len(paper.jobs) < len(full.jobs)


def test_every_study_names_its_paper_and_has_an_alias():
    assert sorted(ALIASES.values()) == sorted(study_names())
    for alias, name in ALIASES.items():
        study = load_study(alias.upper(), "small")
        assert str(study) == str(load_study(name, "small"))  # a nan does not equal itself
        assert study.name == name
        assert all((study.paper.authors, study.paper.title, study.paper.venue))


def test_the_grids_of_kd_or_smoothing_are_the_paper_s():
    study = load_study("kd-or-smoothing", "full")
    sizes = {name: len(grid_points(grid.axes)) for name, grid in study.grids.items()}
    assert sizes == {"erm": 70, "ls": 630, "kd": 630, "ls-fine": 1960, "kd-tau": 1960}
    graph = expand(study)
    assert graph.points == 4 * (2 * 70 + 5 * 630 + 5 * 1960)
    assert len(graph.choices) == 4 * 12
    # one run for ten numbers of epochs; τ = 1, α = 0.5 of KD and α = 0.1 of LS stand in two grids and are trained once
    assert len(graph.jobs) == 4 * (2 * 7 + 5 * 63 + 5 * 196) - 4 * (3 * 7 + 2 * 7)
    taught = [job for job in graph.jobs.values() if "standard-kd ·" in job.label]
    assert all(job.needs["teacher"] in graph.choices for job in taught)
