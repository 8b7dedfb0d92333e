"""Sweeps: grids, random points, Optuna, mistakes."""

from __future__ import annotations

import csv
import json
import shutil

import pytest
from shell import command
from study_cases import InProcessExecutor

from distilcal.config.loading import as_table, load_recipe, with_values
from distilcal.io.folders import MANIFEST, file_digest
from distilcal.study.job import run_job
from distilcal.study.schema import GridSettings
from distilcal.study.sweep import Sweep, parse_axes, run_sweep

RECIPE = """
name = "swept"
[data]
train = "TRAIN"
[stages.teacher]
model = { name = "mlp", hidden = [8] }
train = { epochs = 2, lr = 1e-2, schedule = "none" }
terms = [{ loss = "cross_entropy" }]
[stages.student]
model = { name = "linear" }
train = { epochs = 3, lr = 1e-3, schedule = "none", choose = "last" }
teacher = "teacher"
terms = [{ loss = "cross_entropy", weight = 0.5 }, { loss = "kd", weight = 0.5 }]
"""


@pytest.fixture
def swept(place, tmp_path):
    (tmp_path / "r.toml").write_text(RECIPE.replace("TRAIN", str(place / "train.npz")))
    return tmp_path


def rows_of(folder):
    with open(folder / "points.csv") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_sweep_chooses_on_dev_and_carries_the_recipe_out(swept):
    done = command("sweep", swept / "r.toml", "--grid", "stages.student.train.lr=1e-4,1e-2", "--grid", "train.epochs=1,3",
                   "--grid", "terms.0.weight=0.9,0.1;terms.1.weight=0.1,0.9", "--processes", "1",
                   "--store", swept / "store", "--out", swept / "out")  # fmt: skip
    assert "of 8 points" in done.output
    rows = rows_of(swept / "out")
    assert len(rows) == 8  # two rates × two weights × two numbers of epochs
    chosen = [row for row in rows if row["chosen"]]
    assert len(chosen) == 1
    assert float(chosen[0]["dev_calibrated_nll"]) == min(float(row["dev_calibrated_nll"]) for row in rows)
    assert {row["epochs"] for row in rows} == {"1", "3"}
    facts = json.loads((swept / "out" / "metrics.json").read_text())
    history = json.loads((swept / "out" / "student" / "history.json").read_text())
    assert len(history) == 3
    best = load_recipe(swept / "out" / "best.toml")
    assert best.stages["student"].train.lr == float(chosen[0]["train.lr"])
    assert best.stages["student"].terms[1].weight == float(chosen[0]["terms.1.weight"])
    assert set(facts["stages"]) == {"teacher", "student"}


def test_points_of_a_sweep_are_the_runs_they_stand_for(swept, place):
    """The chosen point, trained on its own, has the dev figures that the sweep saw."""
    recipe = load_recipe(swept / "r.toml")
    sweep = Sweep(recipe, "student", ({"train.lr": [1e-3, 1e-2]}, {"train.epochs": [2, 3]}))
    run_sweep(sweep, swept / "out", swept / "store", InProcessExecutor())
    for row in rows_of(swept / "out"):
        alone = with_values(recipe, [("stages.student.train.lr", float(row["train.lr"]))])
        alone = with_values(alone, [("stages.student.train.epochs", int(row["epochs"]))])
        said = run_job(as_table(alone), "student", str(swept / "other"))
        assert float(row["dev_nll"]) == said["epochs"][-1]["dev"]["nll"]


@pytest.mark.parametrize("models", ["kept", "removed"])
def test_points_that_were_trained_before_the_default_was_recorded_are_chosen_all_the_same(swept, models):
    """Their kept epoch is given the figure from its model; a point without its model is trained anew."""
    sweep = Sweep(load_recipe(swept / "r.toml"), "student", ({"train.lr": [1e-4, 1e-2]},))
    first = run_sweep(sweep, swept / "out", swept / "store", InProcessExecutor())
    for file in [*(swept / "store").glob("points/*.json"), *(swept / "store").glob("stages/*/history.json")]:
        facts = json.loads(file.read_text())
        for epoch in facts["epochs"]:
            del epoch["dev"]["calibrated_nll"]
        file.write_text(json.dumps(facts))
        if file.name == "history.json":
            manifest = json.loads((file.parent / MANIFEST).read_text())
            manifest["files"][file.name] = file_digest(file)
            (file.parent / MANIFEST).write_text(json.dumps(manifest))
    if models == "removed":
        for folder in (swept / "store" / "stages").iterdir():
            shutil.rmtree(folder)
    again = run_sweep(sweep, swept / "out", swept / "store", InProcessExecutor())
    assert again["chosen"] == first["chosen"]
    assert again["dev"]["calibrated_nll"] == pytest.approx(first["dev"]["calibrated_nll"], abs=1e-6)


def test_random_points_are_some_of_the_grid(swept):
    recipe = load_recipe(swept / "r.toml")
    axes = ({"train.lr": [1e-4, 1e-3, 1e-2]}, {"terms.1.temperature": [1.0, 2.0]})
    taken = []
    for seed in (0, 0, 1):
        made = run_sweep(
            Sweep(recipe, "student", axes, "nll", "random", 2, seed), swept / "out", swept / "store", InProcessExecutor()
        )
        assert made["runs"] == 2
        taken.append([(row["train.lr"], row["terms.1.temperature"]) for row in rows_of(swept / "out")])
    assert taken[0] == taken[1] != taken[2]
    best = min(rows_of(swept / "out"), key=lambda row: float(row["dev_nll"]))
    assert best["chosen"] == "yes"


def test_optuna_proposes_points(swept):
    pytest.importorskip("optuna", reason="optuna is not installed")
    recipe = load_recipe(swept / "r.toml")
    sweep = Sweep(recipe, "student", ({"train.lr": [1e-5, 1e-4, 1e-3, 1e-2]},), "accuracy", "optuna", 3)
    made = run_sweep(sweep, swept / "out", swept / "store", InProcessExecutor())
    rows = rows_of(swept / "out")
    assert len(rows) == 3 == len({row["train.lr"] for row in rows})
    assert made["chosen"]["train.lr"] == float(next(row["train.lr"] for row in rows if row["chosen"]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "train.lr"], "is not key=a,b,c"),
        (["--grid", "stages.student.train.lr=1", "--grid", "stages.teacher.train.lr=1"], "one stage at a time"),
        (["--grid", "stages.studnt.train.lr=1"], "there is no stage 'studnt'; did you mean student"),
        (["--grid", "train.lrr=1"], "unknown key train.lrr"),
        (["--grid", "train.lr=1,2;train.batch=4"], "as many values each"),
        (["--grid", "train.lr=fast"], "train.lr = 'fast', expected a number"),
        (["--grid", "train.lr=1", "--random", "2", "--optuna", "2"], "give one of them"),
        (["--grid", "train.lr=nan"], "train.lr = nan, expected a finite number"),
        (["--grid", "terms.1.temperature=1,-2"], "kd cannot be computed with {'temperature': -2}"),
        (["--grid", "terms.1.loss=kd,kdd", "--dry-run"], "no loss 'kdd'"),
        (
            [f"--grid=terms.{i}.{key}={','.join(map(str, range(1, 100)))}" for i in (0, 1) for key in ("weight", "x", "y")],
            "--grid: too many points, expected at most 100,000",
        ),
    ],
)
def test_a_wrong_grid_is_one_line(swept, arguments, words):
    assert words in command("sweep", swept / "r.toml", *arguments, "--store", swept / "store", code=2).stderr
    assert not (swept / "store").exists()


def test_points_are_chosen_by_nll_unless_told_otherwise(swept):
    sweep = Sweep(load_recipe(swept / "r.toml"), "student", ({"train.lr": [1e-3]},))
    assert sweep.choose == "calibrated_nll" == GridSettings(stages=("student",), axes=({"train.lr": [1e-3]},)).choose
    assert "the best by dev calibrated_nll" in command("sweep", swept / "r.toml", "--grid", "train.lr=1e-3", "--dry-run").stdout


def test_axes_name_their_stage(swept):
    recipe = load_recipe(swept / "r.toml")
    assert parse_axes(["train.lr=1,2"], recipe)[0] == "student"
    assert parse_axes(["stages.teacher.train.lr=1,2"], recipe) == ("teacher", ({"train.lr": [1, 2]},))
    assert parse_axes(["train.schedule=none,cosine"], recipe)[1] == ({"train.schedule": ["none", "cosine"]},)
