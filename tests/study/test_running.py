"""Running studies: choices on dev, failures that stay local, models that are removed or stay."""

from __future__ import annotations

import json

import numpy as np
import pytest
from study_cases import InProcessExecutor, near_recipe, without_times

from distilcal.config.loading import as_table, with_values
from distilcal.errors import InputError
from distilcal.evaluation import bootstrap_splits
from distilcal.io.locks import file_lock, in_use
from distilcal.metrics import ece
from distilcal.predictions import Predictions
from distilcal.study.expand import expand, job_recipe
from distilcal.study.job import Measure, run_job
from distilcal.study.loading import load_study
from distilcal.study.run import measures_of, run_study
from distilcal.study.scheduler import remove_losers, run_graph


def test_the_choice_is_on_dev_and_test_is_read_for_the_chosen_point_only(finished_study):
    folder, study, outcome, looked = finished_study
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
    recipe = near_recipe(place)
    long = run_job(as_table(recipe), "small", str(tmp_path / "a"))
    for epochs in (1, 3):
        short = with_values(recipe, [("stages.small.train.epochs", epochs)])
        said = run_job(as_table(short), "small", str(tmp_path / "b"))
        assert said["epochs"][-1]["dev"] == long["epochs"][epochs - 1]["dev"]


def test_the_teacher_of_a_student_is_the_chosen_point(finished_study):
    _, study, outcome, _ = finished_study
    graph = expand(study)
    recipe, name = job_recipe(graph, graph.cells["Taught", "near", 0], outcome.chosen)
    teacher = recipe.stages[recipe.stages[name].teacher]
    assert teacher == graph.jobs[outcome.chosen[graph.cells["Large", "near", 0]]].stage


def test_a_finished_study_trains_nothing_again_and_says_the_same(finished_study, tmp_path):
    folder, study, first, _ = finished_study
    again = run_study(study, tmp_path / "out", folder / "store", InProcessExecutor())
    assert first.trained == 12
    assert again.trained == 0
    a, b = (json.loads((f / "out" / "results.json").read_text()) for f in (folder, tmp_path))
    assert without_times(a) == without_times(b)


def test_every_figure_is_that_of_the_predictions(finished_study):
    folder, study, outcome, _ = finished_study
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


def test_temperatures_come_from_the_grid_of_the_study(finished_study):
    folder, study, outcome, _ = finished_study
    graph = expand(study)
    id_ = graph.cells["Alone", "near", 0]
    measure = measures_of(study.replace(temperature_grid=(0.01, 5.0, 0.01)), graph)(id_)
    assert measures_of(study, graph)(id_).grid is None
    assert measure.grid == (0.01, 5.0, 0.01)
    key = outcome.results[id_]["measured"]
    splits = {name: Predictions.load(folder / "store" / "measured" / key / f"{name}.npz") for name in ("dev", "test")}
    exact, gridded = (
        bootstrap_splits(splits, ["test"], {"error": {"metric": "ece"}}, resamples=5, grid=grid).temperature
        for grid in (None, measure.grid)
    )
    assert gridded == pytest.approx(exact, abs=0.01)
    assert gridded == pytest.approx(round(gridded, 2), abs=1e-9) != exact


def test_the_chosen_points_stand_beside_the_paper_s(finished_study):
    (table,) = json.loads((finished_study[0] / "out" / "results.json").read_text())["points_chosen"]
    heads = ["task", "method", "alpha", "alpha, paper", "learning rate", "learning rate, paper", "epochs", "epochs, paper"]
    assert table["columns"] == heads
    large, taught = (dict(zip(heads, row, strict=True)) for row in table["rows"])
    assert (large["learning rate, paper"], large["epochs, paper"], large["alpha, paper"]) == (5e-3, 3, None)
    assert large["learning rate"] in (1e-4, 1e-2, "0.0001 / 0.01", "0.01 / 0.0001")
    assert (taught["alpha"], taught["learning rate"], taught["epochs"], taught["epochs, paper"]) == (0.5, 1e-2, 4, None)


def test_figures_and_theorems_are_there(finished_study):
    found = json.loads((finished_study[0] / "out" / "results.json").read_text())
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert set(figures) == {
        "training", "scatter", "temperature", "batches", "chains", "bars", "grouped", "bins-home", "bins-away", "plane-large"
    }  # fmt: skip
    assert [len(s["points"]) for s in figures["training"]["series"]] == [4, 4]
    assert [p[0] for p in figures["temperature"]["series"][0]["points"]] == [1, 4]
    assert {s["name"]: [p[0] for p in s["points"]] for s in figures["chains"]["series"]} == {"taught": [1, 4], "alone": [1]}
    assert figures["grouped"]["groups"] == ["T = 1", "T = 4"]
    assert {s["name"]: [p[0] for p in s["points"]] for s in figures["grouped"]["series"]} == {"taught": [0, 1], "alone": [0]}
    assert all(len(s["points"]) == 2 for s in figures["scatter"]["series"])
    x, y, low, high, left, right = figures["scatter"]["series"][0]["points"][0]  # one standard deviation of two seeds
    assert low < y < high
    assert left < x < right
    assert y - low == pytest.approx(high - y)
    assert figures["scatter"]["x"] == "accuracy (%)"
    assert figures["bars"]["groups"] == ["home", "away"]
    assert figures["batches"]["y"] == "entropy on training batches"
    large, alone = (series["points"] for series in figures["batches"]["series"])
    assert len(alone) == 4 * 10  # ten parts of every epoch
    assert len(large) % 10 == 0, "up to the chosen number of epochs"
    assert alone[0][0] == pytest.approx(0.05)
    assert 0 < alone[-1][1] < alone[0][1] <= 1.1  # nats of three classes: the model grows more certain
    assert [[len(p) for p in s["points"]] for s in figures["bars"]["series"]] == [[4, 4], [4, 4]]
    assert sum(p[4] for p in figures["bins-away"]["series"][0]["points"]) == 2 * 150  # both seeds
    assert {s["name"] for s in figures["plane-large"]["series"]} == {"0", "1", "2"}
    for series in figures["plane-large"]["series"]:
        np.testing.assert_allclose(series["centre"], np.mean(series["points"], axis=0), atol=1e-4)
    assert [t["name"] for t in found["theorems"]] == ["theorem1", "theorem2"]
    assert (finished_study[0] / "out" / "study.html").exists()


@pytest.mark.slow
def test_what_fails_is_marked_and_the_rest_goes_on(place, tmp_path):
    study = load_study(str(place / "tiny.toml"), seeds=1)
    graph = expand(study)
    bad = graph.cells["Alone", "near", 0]

    def before(id_, arguments):
        if id_ == bad:
            raise InputError("no luck", remedy="try again")

    run_study(study, tmp_path / "out", tmp_path / "store", InProcessExecutor(before))
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    cells = found["tables"][0]["cells"]
    assert cells[1][0]["failed"] == "no luck; try again"
    assert cells[1][0]["mean"] is None
    assert cells[0][0]["mean"] is not None
    assert cells[3][0]["mean"] is not None
    assert cells[3][0]["difference"] is None  # what it is compared with is not there
    assert [f["error"] for f in found["failures"]] == ["no luck; try again"]
    assert found["claims"][0]["verdict"] == "undecided"
    again = run_study(study, tmp_path / "out", tmp_path / "store", InProcessExecutor())
    assert (again.trained, again.failed) == (1, {})


def test_a_failed_teacher_takes_its_students_along_and_a_failed_point_does_not(place, tmp_path):
    study = load_study(str(place / "tiny.toml"), seeds=1)
    graph = expand(study)
    choice = graph.choices[graph.cells["Large", "near", 0]]

    def run(bad, store):
        def before(id_, arguments):
            if id_ in bad:
                raise RuntimeError("boom")

        return run_graph(graph, InProcessExecutor(before), store, measures_of(study, graph))

    one = run({choice.jobs[0]}, tmp_path / "a")
    assert set(one.failed) == {choice.jobs[0]}
    assert one.chosen[choice.id] == choice.jobs[1]
    both = run(set(choice.jobs), tmp_path / "b")
    assert graph.cells["Taught", "near", 0] in both.failed
    assert "which failed" in both.failed[graph.cells["Taught", "near", 0]]
    assert graph.cells["Alone", "near", 0] in both.results


def test_losers_in_use_are_left_alone(place, tmp_path):
    study = load_study(str(place / "tiny.toml"), seeds=1)
    graph = expand(study, methods=["Large"])
    outcome = run_graph(graph, InProcessExecutor(), tmp_path, measures_of(study, graph), keep_points=True)
    choice = next(iter(graph.choices.values()))
    loser = next(j for j in choice.jobs if j != outcome.chosen[choice.id])
    key = outcome.results[loser]["key"]
    with file_lock(tmp_path / "locks" / key, busy="no"):
        assert remove_losers(graph, outcome, tmp_path, choice) == 0
    with in_use(tmp_path / "stages" / key):
        assert remove_losers(graph, outcome, tmp_path, choice) == 0
    assert (tmp_path / "stages" / key).exists()
    assert remove_losers(graph, outcome, tmp_path, choice) > 0
    assert not (tmp_path / "stages" / key).exists()
    assert (tmp_path / "stages" / outcome.results[outcome.chosen[choice.id]]["key"]).exists()


def test_what_a_run_trained_is_not_a_study_s_to_remove(place, tmp_path):
    study = load_study(str(place / "tiny.toml"), seeds=1)
    graph = expand(study, methods=["Large"])
    choice = next(iter(graph.choices.values()))
    keys = []
    for job in choice.jobs:  # as a run would train them
        recipe, name = job_recipe(graph, job, {})
        keys.append(run_job(as_table(recipe), name, str(tmp_path))["key"])
    run_graph(graph, InProcessExecutor(), tmp_path, measures_of(study, graph))
    assert all((tmp_path / "stages" / key).exists() for key in keys)


def test_a_damaged_record_of_a_point_is_made_again(place, tmp_path):
    study = load_study(str(place / "tiny.toml"), seeds=1)
    outcomes = []
    for damage in (None, "{", '{"key": 1}', "[]"):
        graph = expand(study, methods=["Large"])
        for record in (tmp_path / "points").glob("*.json") if damage else ():
            record.write_text(damage)
        outcomes.append(run_graph(graph, InProcessExecutor(), tmp_path, measures_of(study, graph)))
        assert not outcomes[-1].failed
    assert {tuple(o.chosen.items()) for o in outcomes} == {tuple(outcomes[0].chosen.items())}


def test_a_model_that_cannot_be_measured_still_teaches(place, tmp_path, monkeypatch):
    import distilcal.study.job as module

    study = load_study(str(place / "tiny.toml"), seeds=1)
    real, calls = module._measured, []

    def measured(stage, *rest):
        calls.append(stage.name)
        if stage.name == "big":
            raise ValueError("no room")
        return real(stage, *rest)

    monkeypatch.setattr(module, "_measured", measured)
    outcome = run_study(study, tmp_path / "out", tmp_path / "store", InProcessExecutor())
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
    study = load_study(str(tmp_path / "s.toml"), seeds=1)
    graph = expand(study)
    assert len(graph.jobs) == 1
    run_study(study, tmp_path / "out", tmp_path / "store", InProcessExecutor())
    cells = json.loads((tmp_path / "out" / "results.json").read_text())["tables"][0]["cells"]
    assert [row[0]["examples"] for row in cells] == [100, 150]


def test_a_set_that_is_not_there_is_named(place, tmp_path):
    with pytest.raises(InputError, match="there is no set 'mars' to measure on"):
        run_job(as_table(near_recipe(place)), "small", str(tmp_path), measure=Measure(("mars",), {}))


@pytest.mark.parametrize("name", ["out", "store"])
def test_a_folder_that_is_a_file_is_refused_before_any_job(place, tmp_path, name):
    study = load_study(str(place / "tiny.toml"), seeds=1)
    folders = {"out": tmp_path / "out", "store": tmp_path / "store"}
    folders[name].write_text("mine")
    with pytest.raises(InputError, match=f"{name}: this is a file"):
        run_study(study, folders["out"], folders["store"], InProcessExecutor())
    assert [path.name for path in tmp_path.iterdir()] == [name]
