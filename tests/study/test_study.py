"""Studies: settings, expansion, choices on dev, failures that stay local, executors that agree, sweeps."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from shell import command

from distilcal.config.loading import as_table, load_recipe, with_values
from distilcal.errors import InputError
from distilcal.pipeline.stage import Stage
from distilcal.study import executors
from distilcal.study.analysis import Findings, Sample, difference, interval
from distilcal.study.executors import LocalExecutor, local_processes
from distilcal.study.expand import expand, job_recipe, together
from distilcal.study.job import Measure, work
from distilcal.study.results import checked_claim, verdict
from distilcal.study.run import measures, run_study
from distilcal.study.scheduler import carry_out_graph, remove_losers
from distilcal.study.schema import (
    GridSettings,
    MetricSettings,
    TheoremSettings,
    points,
    read_study,
    study_names,
)
from distilcal.study.sweep import Sweep, axes_from, run_sweep
from distilcal.study.theory import theorem

STUDY = """
title = "Tiny"
seeds = [0, 1]

[metrics]
accuracy = { percent = true, digits = 1 }
error = { metric = "ece", bins = 10, closed = "left", percent = true }

[tasks.near]
data = { train = "TRAIN", ood = ["OTHER"] }
sets = { home = "test", away = "other" }

[stages.big]
model = { name = "mlp", hidden = [16] }
train = { epochs = 4, batch = 32, lr = 1e-2, schedule = "none", choose = "last" }
terms = [{ loss = "cross_entropy" }]

[stages.small]
like = "big"
model = { name = "linear", hidden = [] }

[stages.kd]
like = "small"
teacher = "big"
terms = [{ loss = "cross_entropy", weight = 0.5 }, { loss = "kd", weight = 0.5 }]

[grids.rates]
stages = ["big"]
axes = [{ "train.lr" = [1e-4, 1e-2] }, { "train.epochs" = [1, 2, 3, 4] }]

[methods]
Large = { stage = "big" }
Alone = { stage = "small" }
"Alone, scaled" = { stage = "small", scaled = true }
Taught = { stage = "kd" }

[[variants]]
of = "Taught"
axes = [{ "terms.1.temperature" = [1, 4] }]
names = ["T"]

[[tables]]
name = "table1"
title = "Error"
common = { metric = "error", task = "near" }
rows = [
  { method = "Large" },
  { method = "Alone" },
  { method = "Alone, scaled", against = "Alone" },
  { method = "Taught", against = "Alone" },
]
columns = [{ name = "home", set = "home" }, { set = "away" }, { name = "scaled", set = "home", scaled = true }]
paper = [[1.0, [2.0, 0.5], nan], [nan, nan, nan], [3, 4, 5], [nan, 2.5, 1]]

[[claims]]
text = "The large model is better than a constant."
metric = "accuracy"
higher = "Large"
than = "Alone"
places = [{ task = "near", set = "home" }]

[[figures]]
name = "training"
title = "While training"
kind = "training"
y = "entropy"
methods = ["Large", "Alone"]
places = [{ task = "near" }]

[[figures]]
name = "scatter"
title = "Both"
x = "accuracy"
y = "error"
methods = ["Large", "Alone"]
places = [{ task = "near", set = "home" }, { task = "near", set = "away" }]

[[figures]]
name = "temperature"
title = "Temperature"
kind = "line"
x = "temperature"
y = "error"
methods = ["Taught, T 1", "Taught, T 4"]
values = [1, 4]
places = [{ task = "near", set = "home" }]

[[figures]]
name = "bins"
title = "Bins"
kind = "reliability"
methods = ["Large", "Taught"]
places = [{ task = "near", set = "home" }, { task = "near", set = "away" }]

[[figures]]
name = "plane"
title = "Features"
kind = "projection"
methods = ["Large"]
classes = ["0", "1", "2"]
places = [{ task = "near", set = "home" }]

[[theorems]]
name = "theorem1"
[[theorems]]
name = "theorem2"

[scales.small]
note = "tiny"
[scales.full]
note = "as written"
seeds = [0, 1, 2]
tasks.near.data.limit = 100
"""


def blobs(path, count, seed, shift=0.0):
    """Three classes of vectors that overlap."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = np.random.default_rng(5).normal(size=(3, 6)) * 1.2
    np.savez(path, vectors=(centres[labels] + rng.normal(size=(count, 6)) + shift).astype(np.float32), labels=labels)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    blobs(folder / "train.npz", 500, 0)
    blobs(folder / "other.npz", 150, 1, shift=0.7)
    text = STUDY.replace("TRAIN", str(folder / "train.npz")).replace("OTHER", str(folder / "other.npz"))
    (folder / "tiny.toml").write_text(text)
    return folder


class Here:
    """Carries jobs out in this process, one at a time."""

    slots = 1

    def __init__(self, before=lambda id_, arguments: None):
        self.ended, self.before, self.asked = [], before, []

    def submit(self, id_, arguments):
        self.asked.append((id_, arguments))
        try:
            self.before(id_, arguments)
            self.ended.append((id_, work(**arguments)))
        except Exception as error:
            self.ended.append((id_, error))

    def finished(self, timeout):
        ended, self.ended = self.ended, []
        return ended

    def close(self):
        pass

    def describe(self):
        return {"processes": 1, "threads": 1}


def figures_of(found):
    """All that a study says, without what differs from run to run."""
    return {
        key: value for key, value in found.items() if key not in ("environment", "seconds", "training", "trained", "command")
    }


@pytest.fixture(scope="module")
def carried_out(place, tmp_path_factory):
    """The study, carried out in this process; what test data each stage was asked about."""
    folder = tmp_path_factory.mktemp("whole")
    looked = []
    real = Stage.predictions

    def predictions(self, data):
        looked.append((self.key, data.name))
        return real(self, data)

    Stage.predictions = predictions
    try:
        study = read_study(str(place / "tiny.toml"))
        outcome = run_study(study, folder / "out", folder / "store", Here())
    finally:
        Stage.predictions = real
    return folder, study, outcome, looked


# ---- settings ----------------------------------------------------------------------------------------------------------


def test_a_scale_changes_data_and_stages_and_nothing_else(place):
    small, full = (read_study(str(place / "tiny.toml"), scale) for scale in ("small", "full"))
    assert (small.seeds, full.seeds) == ((0, 1), (0, 1, 2))
    assert "limit" not in small.tasks["near"].data
    assert full.tasks["near"].data["limit"] == 100
    assert str(small.tables) == str(full.tables)  # as text: nan is not nan
    assert read_study(str(place / "tiny.toml"), seeds=4).seeds == (0, 1, 2, 3)
    assert read_study(str(place / "tiny.toml"), seeds=1).seeds == (0,)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[scales.full]", "[scales.full]\ntables = []", "scales.full.tables cannot be changed by a scale"),
        ('stage = "kd"', 'stage = "kdd"', "there is no stage 'kdd'; did you mean kd"),
        ('{ method = "Large" },', '{ method = "Larg" },', "there is no method 'Larg'; did you mean Large"),
        ('teacher = "big"', 'teacher = "huge"', "tasks.near: stages.kd depends on 'huge', which is not a stage"),
        ('[stages.big]', '[stages.big]\nteacher = "kd"', "in a cycle"),
        ('task = "near" }', 'task = "nera" }', "there is no task 'nera'; did you mean near"),
        ('set = "away"', 'set = "far"', "task 'near' has no set 'far'; its sets are test, home, away"),
        ('metric = "error", task', 'metric = "eror", task', "there is no metric 'eror'; did you mean error"),
        ('stages = ["big"]', 'stages = ["bg"]', "grids.rates: there is no stage 'bg'; did you mean big"),
        ("[1.0, [2.0, 0.5], nan]", "[1.0]", "the paper's values do not fit"),
        ("[1.0, [2.0, 0.5], nan]", '["1.0", 2, 3]', "the paper's value '1.0' is not a number"),
        ("seeds = [0, 1, 2]", "seeds = [0, 0]", "seeds contains 0 twice"),
        ("seeds = [0, 1, 2]", "seeds = []", "seeds = [], expected at least 1 entries"),
        ("[scales.full]", "[scales.full.grids.rats]\nsample = 2\n[scales.full]", "there is no 'rats'; did you mean rates"),
        ('than = "Alone"', 'than = "Alone"\nat_least = 5', "at_least = 5 of 1 comparisons"),
        ('than = "Alone"', 'than = "Alone"\nlower = "Taught"', "needs lower or higher, and than"),
        ('than = "Alone"', 'than = "Large"', "compares 'Large' with itself"),
        ('x = "accuracy"', 'x = "acuracy"', "there is no metric 'acuracy'; did you mean accuracy"),
        ('y = "entropy"', 'y = "entropie"', "training does not record 'entropie'; did you mean entropy"),
        ('classes = ["0", "1", "2"]', 'classes = ["0", "1"]', "expected three classes"),
        ("bins = 10", "binz = 10", "ece has no parameter 'binz'"),
        ('metric = "ece"', 'metric = "ecee"', "there is no metric 'ecee'; did you mean ece"),
        ("digits = 1 }", "digits = -1 }", "digits = -1, expected at least 0"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "teacher" = ["big", "kd"] }', "teacher cannot be searched"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lr" = [] }', "empty or not of one length"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lrr" = [1] }', "unknown key train.lrr"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lr.x" = [1] }', "lr is not a table, so train.lr.x is no setting"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lr" = [-1.0] }', "train.lr = -1.0, expected a number above 0"),
        ('names = ["T"]', "names = []", "give a name for each axis"),
        ("[metrics]", "[metrics]\nbrier = true", "metrics.brier = true, expected a table"),
        ("[[theorems]]", "[[theorem]]", "unknown key theorem"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lr" = [1e-4, 1e-2], "train.batch" = [8] }', "not of one length"),
        ("values = [1, 4]", "values = [1]", "give a value for each method"),
        ('of = "Taught"', 'of = "Taugt"', "there is no method 'Taugt'; did you mean Taught"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_refused_before_anything_runs(place, tmp_path, old, new, words):
    text = (place / "tiny.toml").read_text()
    assert old in text
    (tmp_path / "s.toml").write_text(text.replace(old, new, 1))
    done = command("study", tmp_path / "s.toml", "--scale", "full", "--store", tmp_path / "store", code=2)
    assert words in done.stderr
    assert not (tmp_path / "store").exists()


def test_unknown_names_list_the_near_ones(place, tmp_path):
    assert "there is no study 'p03'; did you mean p003" in command("study", "p03", code=2).stderr
    assert "the scales are" in command("study", "p003", "--scale", "huge", code=2).stderr
    study = place / "tiny.toml"
    assert "did you mean Large" in command("study", study, "--only", "method=Lage", code=2).stderr
    assert "did you mean near" in command("study", study, "--only", "task=neer", code=2).stderr
    assert "write it as method=A,task=B" in command("study", study, "--only", "Large", code=2).stderr
    assert "cannot be read" in command("study", tmp_path / "none.toml", code=2).stderr


def test_a_value_is_set_along_its_path(place):
    stage = read_recipe_of(place).stages["kd"]
    assert with_values(stage, [("train.lr", 3)]).train.lr == 3.0
    assert with_values(stage, [("terms.1.temperature", 4)]).terms[1].settings == {"temperature": 4}
    assert with_values(stage, [("terms.0.weight", 0.25)]).terms[0].weight == 0.25
    for path, value, words in [
        ("train.lrr", 1, "unknown key train.lrr; did you mean lr"),
        ("terms.7.weight", 1, "there is no entry '7' in a list of 2"),
        ("train.lr", "fast", "train.lr = 'fast', expected a number"),
    ]:
        with pytest.raises(InputError) as error:
            with_values(stage, [(path, value)])
        assert words in str(error.value)


def read_recipe_of(place):
    from distilcal.study.schema import task_recipe

    return task_recipe(read_study(str(place / "tiny.toml")), "near")


# ---- the studies of the papers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", study_names())
def test_every_cell_of_the_full_scale_exists_in_the_small_one(name):
    full, small = (read_study(name, scale, seeds=1) for scale in ("full", "small"))
    cells = [set(expand(study).cells) for study in (full, small)]
    assert cells[0] == cells[1] != set()
    assert str(full.tables) == str(small.tables)
    for study in (full, small):
        asked = {(m, t) for m, t, _ in expand(study).cells}
        assert {m for m, _ in asked} <= set(study.methods)
        assert set(study.tasks) == {t for _, t in asked}, "a task that no table looks at"


def test_the_grids_of_p003_are_the_paper_s():
    study = read_study("p003", "full")
    sizes = {name: len(points(grid.axes)) for name, grid in study.grids.items()}
    assert sizes == {"erm": 70, "ls": 630, "kd": 630, "ls-fine": 1960, "kd-tau": 1960}
    graph = expand(study)
    assert graph.points == 4 * (2 * 70 + 5 * 630 + 5 * 1960)
    assert len(graph.choices) == 4 * 12
    # one run for ten numbers of epochs; τ = 1, α = 0.5 of KD and α = 0.1 of LS stand in two grids and are trained once
    assert len(graph.jobs) == 4 * (2 * 7 + 5 * 63 + 5 * 196) - 4 * (3 * 7 + 2 * 7)
    taught = [job for job in graph.jobs.values() if "standard-kd ·" in job.label]
    assert all(job.needs["teacher"] in graph.choices for job in taught)


# ---- expansion ---------------------------------------------------------------------------------------------------------


def test_equal_stages_are_trained_once_and_only_what_is_looked_at(place):
    graph = expand(read_study(str(place / "tiny.toml")))
    assert len(graph.cells) == 2 * 6
    assert graph.cells["Alone", "near", 0] == graph.cells["Alone, scaled", "near", 0]
    variants = [graph.jobs[graph.cells[f"Taught, T {t}", "near", 0]].stage.terms[1].settings["temperature"] for t in (1, 4)]
    assert variants == [1, 4]
    per_seed = 2 + 1 + 3  # two rates (all epochs in one run), alone, taught and its two variants
    assert len(graph.jobs) == 2 * per_seed
    assert graph.points == 2 * 8
    order = graph.order()
    for id_ in order:
        assert all(order.index(needed) < order.index(id_) for needed in graph.needs(id_))
    some = expand(read_study(str(place / "tiny.toml")), methods=["Alone"])
    assert len(some.jobs) == 2


def test_an_axis_of_epochs_is_one_run_only_where_nothing_depends_on_it(place):
    stage = read_recipe_of(place).stages["big"]
    grid = GridSettings(stages=("big",), axes=({"train.epochs": [2, 4]}, {"train.lr": [1.0]}))
    axes, whole = together(grid, stage)
    assert axes == [{"train.lr": [1.0]}]
    assert (whole.train.epochs, whole.train.choose, whole.train.choose_among) == (4, "accuracy", (2, 4))
    assert len(together(grid, with_values(stage, [("record", True)]))[0]) == 2
    for other in ({"train.schedule": ["none", "linear"]}, {"terms.0.loss": ["cross_entropy", "pskd"]}):
        assert len(together(GridSettings(stages=("big",), axes=(*grid.axes, other)), stage)[0]) == 3
    for path, value in [("train.schedule", "linear"), ("train.warmup", 0.1), ("train.choose", "nll"), ("train.patience", 2)]:
        assert len(together(grid, with_values(stage, [(path, value)]))[0]) == 2
    assert len(together(grid, with_values(stage, [("terms.0.loss", "pskd")]))[0]) == 2


# ---- carrying out ------------------------------------------------------------------------------------------------------


def test_the_choice_is_on_dev_and_test_is_read_for_the_chosen_point_only(carried_out):
    folder, study, outcome, looked = carried_out
    graph = expand(study)
    for seed in study.seeds:
        choice = graph.choices[graph.cells["Large", "near", seed]]
        best = outcome.chosen[choice.id]
        dev = {job: [e["dev"]["accuracy"] for e in outcome.results[job]["epochs"]] for job in choice.jobs}
        assert max(dev[best]) == max(max(course) for course in dev.values())
        assert outcome.results[best]["best"] == int(np.argmax(dev[best]))  # the first of equals
        losers = {outcome.results[job]["key"] for job in choice.jobs} - {outcome.results[best]["key"]}
        assert losers
        assert not [key for key, name in looked if key in losers]
        assert {name for key, name in looked if key == outcome.results[best]["key"]} >= {"test", "other"}
        for key in losers:  # how they were is known, their weights are not kept
            assert not (folder / "store" / "stages" / key).exists()
            assert (folder / "store" / "points" / f"{key}.json").exists()
        assert (folder / "store" / "stages" / outcome.results[best]["key"]).exists()


def test_an_epoch_of_one_long_run_is_the_run_of_so_many_epochs(place, tmp_path):
    """What collapsing the axis of epochs rests on."""
    recipe = read_recipe_of(place)
    long = work(as_table(recipe), "small", str(tmp_path / "a"))
    for epochs in (1, 3):
        short = with_values(recipe, [("stages.small.train.epochs", epochs)])
        said = work(as_table(short), "small", str(tmp_path / "b"))
        assert said["epochs"][-1]["dev"] == long["epochs"][epochs - 1]["dev"]


def test_the_teacher_of_a_student_is_the_chosen_point(carried_out):
    _, study, outcome, _ = carried_out
    graph = expand(study)
    recipe, name = job_recipe(graph, graph.cells["Taught", "near", 0], outcome.chosen)
    teacher = recipe.stages[recipe.stages[name].teacher]
    assert teacher == graph.jobs[outcome.chosen[graph.cells["Large", "near", 0]]].stage


def test_a_finished_study_trains_nothing_again_and_says_the_same(carried_out, tmp_path):
    folder, study, first, _ = carried_out
    again = run_study(study, tmp_path / "out", folder / "store", Here())
    assert first.trained == 12
    assert again.trained == 0
    a, b = (json.loads((f / "out" / "results.json").read_text()) for f in (folder, tmp_path))
    assert figures_of(a) == figures_of(b)


def test_every_figure_is_that_of_the_predictions(carried_out):
    from distilcal.metrics import ece
    from distilcal.predictions import Predictions

    folder, study, outcome, _ = carried_out
    found = json.loads((folder / "out" / "results.json").read_text())
    cell = found["tables"][0]["cells"][1][1]  # Alone, away
    graph = expand(study)
    values = []
    for seed in study.seeds:
        key = outcome.results[graph.cells["Alone", "near", seed]]["measured"]
        said = Predictions.load(folder / "store" / "measured" / key / "other.npz")
        values.append(ece(said.probs, said.labels, bins=10, closed="left"))
    assert cell["mean"] == pytest.approx(np.mean(values))
    assert cell["std"] == pytest.approx(np.std(values, ddof=1))
    assert cell["low"] <= cell["mean"] <= cell["high"]
    assert (cell["seeds"], cell["examples"]) == (2, 150)
    assert "10" in cell["definition"]
    assert "[lo, hi)" in cell["definition"]
    assert found["tables"][0]["cells"][0][1]["paper"] == {"mean": 0.02, "std": 0.005}
    assert found["tables"][0]["cells"][0][2]["paper"] is None
    scaled = found["tables"][0]["cells"][2]
    assert scaled[0]["mean"] == scaled[2]["mean"] != found["tables"][0]["cells"][1][0]["mean"]
    assert found["tables"][0]["cells"][1][2]["mean"] == scaled[0]["mean"]  # a column that scales
    assert "lr 0.01" in found["tables"][0]["cells"][0][0]["chosen"]


def test_figures_and_theorems_are_there(carried_out):
    found = json.loads((carried_out[0] / "out" / "results.json").read_text())
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert set(figures) == {"training", "scatter", "temperature", "bins-home", "bins-away", "plane-large"}
    assert [len(s["points"]) for s in figures["training"]["series"]] == [4, 4]
    assert [p[0] for p in figures["temperature"]["series"][0]["points"]] == [1, 4]
    assert all(len(s["points"]) == 2 for s in figures["scatter"]["series"])
    assert figures["scatter"]["x"] == "accuracy (%)"
    assert sum(p[4] for p in figures["bins-away"]["series"][0]["points"]) == 2 * 150  # both seeds
    assert {s["name"] for s in figures["plane-large"]["series"]} == {"0", "1", "2"}
    assert [t["name"] for t in found["theorems"]] == ["theorem1", "theorem2"]
    assert (carried_out[0] / "out" / "study.html").exists()


@pytest.mark.slow
def test_what_fails_is_marked_and_the_rest_goes_on(place, tmp_path):
    study = read_study(str(place / "tiny.toml"), seeds=1)
    graph = expand(study)
    bad = graph.cells["Alone", "near", 0]

    def before(id_, arguments):
        if id_ == bad:
            raise InputError("no luck", remedy="try again")

    run_study(study, tmp_path / "out", tmp_path / "store", Here(before))
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    cells = found["tables"][0]["cells"]
    assert cells[1][0]["failed"] == "no luck; try again"
    assert cells[1][0]["mean"] is None
    assert cells[0][0]["mean"] is not None
    assert cells[3][0]["mean"] is not None
    assert cells[3][0]["difference"] is None  # what it is compared with is not there
    assert [f["error"] for f in found["failures"]] == ["no luck; try again"]
    assert found["claims"][0]["verdict"] == "undecided"
    again = run_study(study, tmp_path / "out", tmp_path / "store", Here())
    assert (again.trained, again.failed) == (1, {})


def test_a_failed_teacher_takes_its_students_along_and_a_failed_point_does_not(place, tmp_path):
    study = read_study(str(place / "tiny.toml"), seeds=1)
    graph = expand(study)
    choice = graph.choices[graph.cells["Large", "near", 0]]

    def run(bad, store):
        def before(id_, arguments):
            if id_ in bad:
                raise RuntimeError("boom")

        return carry_out_graph(graph, Here(before), store, measures(study, graph))

    one = run({choice.jobs[0]}, tmp_path / "a")
    assert set(one.failed) == {choice.jobs[0]}
    assert one.chosen[choice.id] == choice.jobs[1]
    both = run(set(choice.jobs), tmp_path / "b")
    assert graph.cells["Taught", "near", 0] in both.failed
    assert "which failed" in both.failed[graph.cells["Taught", "near", 0]]
    assert graph.cells["Alone", "near", 0] in both.results


def test_losers_in_use_are_left_alone(place, tmp_path):
    from distilcal.io.locks import file_lock

    study = read_study(str(place / "tiny.toml"), seeds=1)
    graph = expand(study, methods=["Large"])
    outcome = carry_out_graph(graph, Here(), tmp_path, measures(study, graph), keep_points=True)
    choice = next(iter(graph.choices.values()))
    loser = next(j for j in choice.jobs if j != outcome.chosen[choice.id])
    key = outcome.results[loser]["key"]
    with file_lock(tmp_path / "locks" / key, busy="no"):
        assert remove_losers(graph, outcome, tmp_path, choice) == 0
    assert (tmp_path / "stages" / key).exists()
    assert remove_losers(graph, outcome, tmp_path, choice) > 0
    assert not (tmp_path / "stages" / key).exists()
    assert (tmp_path / "stages" / outcome.results[outcome.chosen[choice.id]]["key"]).exists()


def test_what_a_run_trained_is_not_a_study_s_to_remove(place, tmp_path):
    study = read_study(str(place / "tiny.toml"), seeds=1)
    graph = expand(study, methods=["Large"])
    choice = next(iter(graph.choices.values()))
    keys = []
    for job in choice.jobs:  # as a run would train them
        recipe, name = job_recipe(graph, job, {})
        keys.append(work(as_table(recipe), name, str(tmp_path))["key"])
    carry_out_graph(graph, Here(), tmp_path, measures(study, graph))
    assert all((tmp_path / "stages" / key).exists() for key in keys)


def test_a_damaged_record_of_a_point_is_made_again(place, tmp_path):
    study = read_study(str(place / "tiny.toml"), seeds=1)
    outcomes = []
    for damage in (None, "{", '{"key": 1}', "[]"):
        graph = expand(study, methods=["Large"])
        for record in (tmp_path / "points").glob("*.json") if damage else ():
            record.write_text(damage)
        outcomes.append(carry_out_graph(graph, Here(), tmp_path, measures(study, graph)))
        assert not outcomes[-1].failed
    assert {tuple(o.chosen.items()) for o in outcomes} == {tuple(outcomes[0].chosen.items())}


def test_a_model_that_cannot_be_measured_still_teaches(place, tmp_path, monkeypatch):
    import distilcal.study.job as module

    study = read_study(str(place / "tiny.toml"), seeds=1)
    real, calls = module._measured, []

    def measured(stage, *rest):
        calls.append(stage.name)
        if stage.name == "big":
            raise ValueError("no room")
        return real(stage, *rest)

    monkeypatch.setattr(module, "_measured", measured)
    outcome = run_study(study, tmp_path / "out", tmp_path / "store", Here())
    assert "big" in calls
    assert list(outcome.unmeasured.values()) == ["ValueError: no room"]
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["tables"][0]["cells"][0][0]["failed"] == "ValueError: no room"
    assert found["tables"][0]["cells"][3][0]["mean"] is not None


def test_two_methods_that_are_one_model_may_look_at_other_sets(place, tmp_path):
    """A grid's winner that is also a stage of its own, each looked at on its own set."""
    text = (place / "tiny.toml").read_text()
    text = (
        text[: text.index("[[variants]]")]
        + """
[[tables]]
name = "t"
common = { metric = "error", task = "near" }
rows = [{ method = "Large", set = "home" }, { method = "Fixed", set = "away" }]
columns = [{ name = "x" }]
[scales.small]
note = ""
"""
    )
    text = text.replace(
        "[methods]", '[stages.fixed]\nlike = "big"\ntrain = { choose = "accuracy" }\n[methods]\nFixed = { stage = "fixed" }'
    )
    text = text.replace("[1e-4, 1e-2]", "[1e-2]")
    (tmp_path / "s.toml").write_text(text)
    study = read_study(str(tmp_path / "s.toml"), seeds=1)
    graph = expand(study)
    assert len(graph.jobs) == 1
    run_study(study, tmp_path / "out", tmp_path / "store", Here())
    cells = json.loads((tmp_path / "out" / "results.json").read_text())["tables"][0]["cells"]
    assert [row[0]["examples"] for row in cells] == [100, 150]


def test_a_set_that_is_not_there_is_named(place, tmp_path):
    with pytest.raises(InputError, match="there is no set 'mars' to measure on"):
        work(as_table(read_recipe_of(place)), "small", str(tmp_path), measure=Measure(("mars",), {}))


# ---- statistics --------------------------------------------------------------------------------------------------------


def sample(values, spread, seed, shared=None, n=200):
    rng = np.random.default_rng(seed)
    draws = np.array(values)[:, None] + rng.normal(size=(len(values), 500)) * spread
    return Sample(tuple(range(len(values))), np.array(values), draws if shared is None else draws + shared, n)


def test_the_interval_grows_with_the_spread_over_seeds_and_over_examples():
    calm, seeds, rows = sample([0.2, 0.2, 0.2], 0.001, 0), sample([0.1, 0.2, 0.3], 0.001, 0), sample([0.2, 0.2, 0.2], 0.05, 0)
    widths = [interval(s)[2] - interval(s)[1] for s in (calm, seeds, rows)]
    assert widths[0] < 0.01
    assert widths[1] > 0.1
    assert widths[2] > 0.05
    assert interval(seeds)[0] == pytest.approx(0.2)


def test_differences_are_paired():
    """What is common to two methods, in a seed or in a resample, cancels."""
    common = np.random.default_rng(9).normal(size=500) * 0.1
    base = np.array([0.1, 0.3, 0.5])
    a, b = sample(base + 0.02, 0.001, 1, common), sample(base, 0.001, 2, common)
    value, low, high, p = difference(a, b)
    assert value == pytest.approx(0.02)
    assert 0.015 < low < high < 0.025
    assert p < 0.05
    assert interval(a)[2] - interval(a)[1] > 0.2
    assert difference(a, sample(base, 0.1, 2, n=100)) is None  # other examples
    some = Sample((2, 1), a.values[[2, 1]], a.draws[[2, 1]], 200)
    assert difference(some, b)[0] == pytest.approx(0.02)  # matched by seed, not by position


# One seed knows nothing of the spread between trainings, as the documentation says: there it is 0.
@pytest.mark.parametrize(("seeds", "between"), [(1, 0.0), *((s, b) for s in (2, 3, 5) for b in (0.0, 1.0, 10.0))])
def test_equal_methods_are_rarely_called_different(seeds, between):
    """Differences of rows and of trainings that are nothing but chance: about one in twenty is significant."""
    rng = np.random.default_rng(1)
    called = 0
    for _ in range(400):
        rows = rng.normal()  # the same test rows for every seed
        values = rows + between * rng.normal(size=seeds)
        draws = values[:, None] + rng.normal(size=300)[None] + np.zeros((seeds, 300))
        other = Sample(tuple(range(seeds)), np.zeros(seeds), np.zeros((seeds, 300)), 200)
        called += difference(Sample(tuple(range(seeds)), values, draws, 200), other)[3] < 0.05
    assert called / 400 < (0.09 if seeds != 2 else 0.15)  # of two seeds the spread is hardly known


@pytest.mark.parametrize(
    ("parts", "need", "word"),
    [
        (["holds"] * 4, 0, "holds"),
        (["holds", "undecided"], 0, "undecided"),
        (["holds", "fails"], 0, "fails"),
        (["holds", "holds", "holds", "fails"], 3, "holds"),
        (["holds", "fails", "fails", "undecided"], 3, "fails"),
        (["holds", "fails", "undecided", "undecided"], 3, "undecided"),
    ],
)
def test_verdicts(parts, need, word):
    assert verdict(parts, need)["verdict"] == word


def test_a_claim_that_is_turned_round_turns_its_verdict(carried_out):
    folder, study, outcome, _ = carried_out
    findings = Findings(study, expand(study), outcome, folder / "store")
    claim = study.claims[0]
    said = checked_claim(findings, claim)

    other = checked_claim(findings, claim.replace(higher="", lower="Large"))
    turned = {"holds": "fails", "fails": "holds", "undecided": "undecided"}
    assert turned[said["verdict"]] == other["verdict"]
    assert said["parts"][0]["value"] == other["parts"][0]["value"]


def test_a_metric_has_its_own_name_and_parameters(place):
    study = read_study(str(place / "tiny.toml"))
    assert study.metrics["error"] == MetricSettings(
        metric="ece", percent=True, digits=3, settings={"bins": 10, "closed": "left"}
    )


def test_theorems_say_what_the_linear_models_do():
    first = theorem(TheoremSettings(name="theorem1"))
    errors = np.array([row[2:] for row in first["rows"]], dtype=float)
    sizes = np.array([row[0] for row in first["rows"]])
    assert errors[sizes == 0.1].max() < 0.05 < errors[sizes == 2.0].max()
    assert errors[[row[1] == 1.0 for row in first["rows"]]].max() < 1e-6  # α = 1: the student is its teacher
    second = theorem(TheoremSettings(name="theorem2", temperatures=(1.0,)))
    for bias, alpha, teacher, student in second["rows"]:
        assert student == pytest.approx(alpha * teacher, abs=1e-6)  # exact at T = 1
        assert (abs(teacher) < 1e-8) == (bias == 0)


# ---- executors ---------------------------------------------------------------------------------------------------------


def test_processes_and_threads_fit_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert local_processes() == (8, 1)
    assert local_processes(2) == (2, 4)
    assert local_processes(None, 2) == (4, 2)
    assert local_processes(16) == (16, 1)


def slow_work(arguments):
    """Real work, but the first time a marked job comes, its process is killed in the middle of it."""
    import distilcal.training.loop as loop

    mark = arguments["store"] + "/killed"
    if not os.path.exists(mark) and arguments["keep"]:
        real, calls = loop._Loop._backward, []

        def backward(self, *given):
            calls.append(1)
            if len(calls) > 20:
                with open(mark, "w") as file:
                    file.write(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *given)

        loop._Loop._backward = backward
    return executors.carry(arguments)


def run_with(executor, place, folder):
    study = read_study(str(place / "tiny.toml"))
    try:
        run_study(study, folder / "out", folder / "store", executor)
    finally:
        executor.close()
    return json.loads((folder / "out" / "results.json").read_text())


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_the_study_ends_equal(place, carried_out, tmp_path):
    (tmp_path / "store").mkdir()
    found = run_with(LocalExecutor(2, 1, call=slow_work), place, tmp_path)
    assert (tmp_path / "store" / "killed").exists()
    assert not found["failures"]
    whole = json.loads((carried_out[0] / "out" / "results.json").read_text())
    assert figures_of(found) == figures_of(whole)


def always_killed(arguments):
    if arguments["keep"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return executors.carry(arguments)


@pytest.mark.slow
def test_a_job_that_kills_its_process_every_time_is_given_up(place, tmp_path):
    study = read_study(str(place / "tiny.toml"), seeds=1)
    executor = LocalExecutor(1, 1, call=always_killed)
    graph = expand(study, methods=["Alone"])
    try:
        outcome = carry_out_graph(graph, executor, tmp_path, measures(study, graph))
    finally:
        executor.close()
    assert "was killed 3 times" in next(iter(outcome.failed.values()))


@pytest.mark.slow
def test_ray_gives_the_same_and_survives_a_killed_worker(place, carried_out, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # its workers must find slow_work
    from distilcal.study.executors import RayExecutor

    (tmp_path / "store").mkdir()
    found = run_with(RayExecutor(call=slow_work), place, tmp_path)
    assert not found["failures"]
    assert (tmp_path / "store" / "killed").exists()
    assert not found["failures"]
    whole = json.loads((carried_out[0] / "out" / "results.json").read_text())
    assert figures_of(found) == figures_of(whole)


@pytest.mark.slow
def test_a_killed_study_goes_on_where_it_stopped(place, carried_out, tmp_path):
    """The whole command is killed, with its workers; the same command ends it, equal to one that was never stopped."""
    line = [sys.executable, "-m", "distilcal", "study", str(place / "tiny.toml"), "--processes", "1", "--store",
            str(tmp_path / "store"), "--out", str(tmp_path / "out")]  # fmt: skip
    running = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
    lines = []
    for text in running.stderr:
        lines.append(text)
        if len(lines) == 4:
            os.killpg(running.pid, signal.SIGKILL)
            break
    running.wait()
    running.stderr.close()
    time.sleep(0.2)
    assert not (tmp_path / "out" / "results.json").exists()
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "from the store" in done.stderr
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert 0 < found["trained"] < 12
    whole = json.loads((carried_out[0] / "out" / "results.json").read_text())
    assert figures_of(found) == figures_of(whole)


# ---- the command -------------------------------------------------------------------------------------------------------


def test_dry_run_says_what_is_there_and_what_it_would_take(place, carried_out, tmp_path):
    study, store = place / "tiny.toml", carried_out[0] / "store"
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
    cells = found["tables"][0]["cells"]
    assert cells[2][0]["mean"] is not None
    assert cells[0][0]["missing"] == "not run"
    assert "study.html" in done.output


# ---- sweeps ------------------------------------------------------------------------------------------------------------

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
    assert float(chosen[0]["dev_accuracy"]) == max(float(row["dev_accuracy"]) for row in rows)
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
    run_sweep(sweep, swept / "out", swept / "store", Here())
    for row in rows_of(swept / "out"):
        alone = with_values(recipe, [("stages.student.train.lr", float(row["train.lr"]))])
        alone = with_values(alone, [("stages.student.train.epochs", int(row["epochs"]))])
        said = work(as_table(alone), "student", str(swept / "other"))
        assert float(row["dev_nll"]) == said["epochs"][-1]["dev"]["nll"]


def test_random_points_are_some_of_the_grid(swept):
    recipe = load_recipe(swept / "r.toml")
    axes = ({"train.lr": [1e-4, 1e-3, 1e-2]}, {"terms.1.temperature": [1.0, 2.0]})
    taken = []
    for seed in (0, 0, 1):
        made = run_sweep(Sweep(recipe, "student", axes, "nll", "random", 2, seed), swept / "out", swept / "store", Here())
        assert made["runs"] == 2
        taken.append([(row["train.lr"], row["terms.1.temperature"]) for row in rows_of(swept / "out")])
    assert taken[0] == taken[1] != taken[2]
    best = min(rows_of(swept / "out"), key=lambda row: float(row["dev_nll"]))
    assert best["chosen"] == "yes"


def test_optuna_proposes_points(swept):
    pytest.importorskip("optuna", reason="optuna is not installed")
    recipe = load_recipe(swept / "r.toml")
    sweep = Sweep(recipe, "student", ({"train.lr": [1e-5, 1e-4, 1e-3, 1e-2]},), "accuracy", "optuna", 3)
    made = run_sweep(sweep, swept / "out", swept / "store", Here())
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
    ],
)
def test_a_wrong_grid_is_one_line(swept, arguments, words):
    assert words in command("sweep", swept / "r.toml", *arguments, "--store", swept / "store", code=2).stderr
    assert not (swept / "store").exists()


def test_axes_name_their_stage(swept):
    recipe = load_recipe(swept / "r.toml")
    assert axes_from(["train.lr=1,2"], recipe)[0] == "student"
    assert axes_from(["stages.teacher.train.lr=1,2"], recipe) == ("teacher", ({"train.lr": [1, 2]},))
    assert axes_from(["train.schedule=none,cosine"], recipe)[1] == ({"train.schedule": ["none", "cosine"]},)
