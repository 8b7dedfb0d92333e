"""Parts of studies: what was asked for, what a scale leaves out, and the points that a paper chose."""

from __future__ import annotations

import pytest

from distilcal.errors import InputError
from distilcal.study.claim_settings import claim_pairs
from distilcal.study.expand import expand
from distilcal.study.loading import load_study
from distilcal.study.schema import pair_premises
from distilcal.study.selection import select

PAPER = """
[scales.paper]
like = "small"
search = false
leave_out = ["Taught, T *"]

[chosen.near]
big = { "train.lr" = 5e-3, "train.epochs" = 3 }
"""


def study_with(place, tmp_path, more):
    path = tmp_path / "s.toml"
    before, _, after = (place / "tiny.toml").read_text().partition("[chosen.near]\nbig =")  # its own point, a line
    path.write_text(before + after.partition("\n")[2] + more)
    return str(path)


def test_a_selection_is_about_nothing_else(place):
    study = load_study(str(place / "tiny.toml"))
    part = select(study, methods=["Large", "Taught"])
    (table,) = part.tables
    assert [row.method for row in table.rows] == ["Large", "Taught"]
    assert [row.against for row in table.rows] == ["", ""]
    assert [list(map(str, row)) for row in table.paper] == [["1.0", "[2.0, 0.5]", "nan"], ["nan", "2.5", "1"]]
    assert not part.claims
    assert not part.theorems
    assert [(figure.name, figure.methods) for figure in part.figures] == [
        ("training", ("Large",)),
        ("scatter", ("Large",)),
        ("bars", ("Large",)),
        ("bins", ("Large", "Taught")),
        ("plane", ("Large",)),
        ("batches", ("Large",)),
    ]
    assert set(expand(part).cells) == {(m, "near", s) for m in ("Large", "Taught") for s in (0, 1)}
    line, chains, grouped = select(study, methods=["Taught, T 4"]).figures
    assert (line.methods, line.values) == (("Taught, T 4",), (4,))
    assert [[point.x for point in figure.points] for figure in (chains, grouped)] == [[4], ["T = 4"]]
    assert len(select(study, methods=["Large", "Alone"]).claims) == 1
    assert select(study) is study
    with pytest.raises(InputError, match="has no method 'Lage'"):
        select(study, methods=["Lage"])


def test_a_claim_keeps_the_comparisons_that_are_left():
    study = load_study("calibration-transfer")
    claim = next(claim for claim in study.claims if len(claim.pairs) > 1)
    first = claim.pairs[0]
    of_premises = [method for premise in pair_premises(claim, claim_pairs(claim)[0]) for method in premise.methods]
    part = select(study, methods=[*first, *of_premises], tasks=[claim.places[0].task])
    kept = [other for other in part.claims if other.text == claim.text]
    assert [other.pairs for other in kept] == [(first,)]
    assert {place.task for other in part.claims for place in other.places} == set(part.tasks)
    assert all(other.at_least <= len(other.places) * max(len(other.pairs), 1) for other in part.claims)


def test_at_the_scale_of_the_paper_only_its_points_are_trained(place, tmp_path):
    path = study_with(place, tmp_path, PAPER)
    study = load_study(path, "paper")
    assert study.note == "tiny"  # of the scale that it is like
    graph = expand(study)
    assert not graph.choices
    assert graph.points == 0
    large = graph.jobs[graph.cells["Large", "near", 0]]
    assert (large.stage.train.lr, large.stage.train.epochs, large.stage.train.choose) == (5e-3, 3, "last")
    assert not large.candidate
    assert {method for method, _, _ in graph.cells} == {"Large", "Alone", "Alone, scaled", "Taught"}
    assert len(study.theorems) == 2
    assert expand(load_study(path, "small")).choices  # elsewhere the paper's points change nothing


def test_a_stage_without_a_point_is_searched(place, tmp_path):
    only_kd = PAPER.replace('big = { "train.lr" = 5e-3', 'kd = { "train.lr" = 5e-3')
    assert expand(load_study(study_with(place, tmp_path, only_kd), "paper")).points == 2 * 8


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("chosen.near", "chosen.neer", "there is no task 'neer'"),
        ("\nbig =", "\nbigg =", "chosen.near: there is no stage 'bigg'"),
        ("train.lr", "train.lrr", "chosen.near.big: "),
        ('"Taught, T *"', '"Tought*"', "leave_out: there is no method 'Tought[*]'"),
        ('like = "small"', 'like = "tiny"', "scales.paper.like: there is no scale without like 'tiny'"),
        ('like = "small"', 'like = "paper"', "scales.paper.like: there is no scale without like 'paper'"),
    ],
)
def test_wrong_names_are_refused(place, tmp_path, old, new, words):
    assert old in PAPER
    with pytest.raises(InputError, match=words):
        load_study(study_with(place, tmp_path, PAPER.replace(old, new, 1)), "paper")
