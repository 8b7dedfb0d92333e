"""Runs are followed by trackers: every epoch once, however often the run is started, and the results at the end."""

import importlib.machinery
import json
import logging
import sys
import types

import pytest
from run_cases import recipe_file
from shell import command
from tiny import save_model, write_csv

from distilcal.config.loading import load_recipe
from distilcal.errors import InputError, MissingDependencyError
from distilcal.io.atomic import read_json
from distilcal.pipeline.tracking import RunTracker, check_tracker, flat_settings, track_run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, an encoder, and a finished run that was not followed."""
    folder = tmp_path_factory.mktemp("tracked")
    write_csv(folder / "train.csv", 200, 0, ids=True)
    save_model(folder / "encoder", head=False)
    recipe_file(folder, folder / "recipe.toml")
    command("run", folder / "recipe.toml", "--out", folder / "run", "--store", folder / "store")
    return folder


@pytest.fixture
def recipe(place):
    return load_recipe(place / "recipe.toml")


def entry(epoch):
    losses = {"total": 1.0 / (epoch + 1), "kd": 0.5}
    return {"epoch": epoch, "losses": losses, "lr": 0.1, "dev": {"accuracy": 0.6, "nll": 0.7}, "seconds": 2.0}


def finished(folder, recipe, epochs=3):
    """The folder of a finished run, as far as trackers read it."""
    stages = {}
    for stage in recipe.stages:
        (folder / stage).mkdir(parents=True, exist_ok=True)
        (folder / stage / "history.json").write_text(json.dumps([entry(epoch) for epoch in range(epochs)]))
        given = {"accuracy": {"value": 0.75}, "nll": {"value": None}}
        stages[stage] = {"sets": {"test": {"given": given, "calibrated": None}}}
    (folder / "metrics.json").write_text(json.dumps({"stages": stages}))


def scalars(folder):
    """Tags of TensorBoard's files to their (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = (folder / "track" / "tensorboard").iterdir()
    events = EventAccumulator(str(run))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_has_the_epochs_and_the_results_of_a_run(place, tmp_path):
    out = tmp_path / "run"
    command("run", place / "recipe.toml", "--out", out, "--store", tmp_path / "store", "--track", "tensorboard")
    found = scalars(out)
    facts = read_json(out / "metrics.json")["stages"]
    for stage in ("teacher", "student"):
        (epoch,) = read_json(out / stage / "history.json")
        for name, value in epoch["losses"].items():
            assert found[f"{stage}/loss/{name}"] == [(1, pytest.approx(value))]
        for name, value in epoch["dev"].items():
            assert found[f"{stage}/dev/{name}"] == [(1, pytest.approx(value))]
        assert found[f"{stage}/lr"] == [(1, pytest.approx(epoch["lr"]))]
        test = facts[stage]["sets"]["test"]
        assert found[f"{stage}/test/given/accuracy"] == [(1, pytest.approx(test["given"]["accuracy"]["value"]))]
        assert found[f"{stage}/test/calibrated/nll"] == [(1, pytest.approx(test["calibrated"]["nll"]["value"]))]
    assert list((out / "track" / "tensorboard").rglob("hparams.yml"))


def test_stages_from_the_store_are_logged_too_and_nothing_twice(place, tmp_path):
    arguments = ["run", place / "recipe.toml", "--out", tmp_path / "run", "--store", place / "store", "--track", "tensorboard"]
    command(*arguments)
    first = scalars(tmp_path / "run")
    assert len(first["student/loss/kd"]) == len(first["teacher/dev/accuracy"]) == 1
    command(*arguments)
    assert scalars(tmp_path / "run") == first


def test_a_resumed_run_goes_on_with_the_next_step(recipe, tmp_path):
    with pytest.raises(KeyboardInterrupt), track_run("tensorboard", recipe, tmp_path) as on_epoch:
        on_epoch("teacher", entry(0))
        on_epoch("teacher", entry(1))
        raise KeyboardInterrupt
    with track_run("tensorboard", recipe, tmp_path) as on_epoch:
        on_epoch("teacher", entry(1))  # trained again: it was not saved
        on_epoch("teacher", entry(2))
        on_epoch("student", entry(0))
        finished(tmp_path, recipe)
    found = scalars(tmp_path)
    assert [step for step, _ in found["teacher/loss/total"]] == [1, 2, 3]
    assert [value for _, value in found["teacher/loss/total"]] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [step for step, _ in found["student/loss/kd"]] == [1, 2, 3]
    assert found["student/test/given/accuracy"] == [(3, 0.75)]
    assert "student/test/given/nll" not in found  # JSON has no infinity


def test_another_recipe_has_its_own_curves(recipe, tmp_path):
    finished(tmp_path, recipe)
    for seed in (0, 1):
        with track_run("tensorboard", recipe.replace(seed=seed), tmp_path):
            pass
    assert len(list((tmp_path / "track" / "tensorboard").iterdir())) == 2


class WandbRun:
    def __init__(self, calls):
        self.calls = calls
        self.define_metric = lambda *given, **named: calls.append(("define_metric", given, named))
        self.finish = lambda: calls.append(("finish",))

    def log(self, values, step=None):
        self.calls.append(("log", values, step))


@pytest.fixture
def wandb_calls(monkeypatch):
    """What is asked of Weights & Biases, in place of which stands a small module."""
    calls = []
    module = types.ModuleType("wandb")
    module.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    module.init = lambda **settings: calls.append(("init", settings)) or WandbRun(calls)
    module.config = types.SimpleNamespace(update=lambda values, **_: calls.append(("config", values)))
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls


def test_wandb_is_offline_and_its_steps_never_go_back(recipe, tmp_path, wandb_calls, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    finished(tmp_path, recipe, epochs=2)
    with track_run("wandb", recipe, tmp_path) as on_epoch:
        on_epoch("teacher", entry(0))
    kinds = [call[0] for call in wandb_calls]
    assert kinds[0] == "init"
    assert kinds[-1] == "finish"
    settings = wandb_calls[0][1]
    assert settings["mode"] == "offline"
    assert settings["dir"] == str(tmp_path / "track")
    assert ("define_metric", ("student/*",), {"step_metric": "student/epoch"}) in wandb_calls
    assert wandb_calls[kinds.index("config")][1]["stages.student.teacher"] == "teacher"
    logged = [call for call in wandb_calls if call[0] == "log"]
    assert all(step is None for _, _, step in logged)
    assert [(values["teacher/epoch"], "teacher/lr" in values) for _, values, _ in logged if "teacher/epoch" in values] == [
        (1, True), (2, True), (2, False),
    ]  # fmt: skip


def test_a_resumed_run_is_the_same_run_of_wandb(recipe, tmp_path, wandb_calls, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    for epoch in (0, 1):
        tracker = RunTracker("wandb", recipe, tmp_path)
        tracker.on_epoch("teacher", entry(epoch))
        tracker.finish()
    starts = [call[1] for call in wandb_calls if call[0] == "init"]
    assert len({start["id"] for start in starts}) == 1
    assert {start["mode"] for start in starts} == {"online"}
    assert len([call for call in wandb_calls if call[0] == "config"]) == 1


def test_a_tracker_that_fails_does_not_end_the_run(recipe, tmp_path, wandb_calls, caplog):
    finished(tmp_path, recipe)
    sys.modules["wandb"].init = lambda **_: (_ for _ in ()).throw(ConnectionError("no route to the server"))
    with caplog.at_level(logging.WARNING, "distilcal"), track_run("wandb", recipe, tmp_path) as on_epoch:
        on_epoch("teacher", entry(0))
        on_epoch("teacher", entry(1))
    assert [record.getMessage() for record in caplog.records] == ["tracking with wandb stopped: no route to the server"]


@pytest.mark.slow
def test_mlflow_keeps_its_runs_beside_the_run(recipe, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(KeyboardInterrupt), track_run("mlflow", recipe, tmp_path) as on_epoch:
        on_epoch("teacher", entry(0))
        raise KeyboardInterrupt
    assert not mlflow.is_tracking_uri_set()
    finished(tmp_path, recipe)
    with track_run("mlflow", recipe, tmp_path) as on_epoch:
        on_epoch("teacher", entry(1))
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'track' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'distilcal'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "small"
    assert run.data.params["stages.student.teacher"] == "teacher"
    assert run.data.metrics["student/test/given/accuracy"] == 0.75
    history = client.get_metric_history(run.info.run_id, "teacher/loss/total")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]


def test_settings_are_flat(recipe):
    flat = flat_settings(recipe)
    assert flat["stages.student.train.lr"] == 0.005
    assert flat["stages.student.terms.1.loss"] == "kd"
    assert flat["stages.student.model.layers"] == "0"
    assert all(isinstance(value, bool | int | float | str) for value in flat.values())


def test_mistakes_are_found_before_anything_is_trained(place, tmp_path, monkeypatch):
    refused = command("run", place / "recipe.toml", "--out", tmp_path / "run", "--track", "tensorbord", code=2)
    assert "there is no tracker 'tensorbord'; did you mean tensorboard" in refused.stderr
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="give one of tensorboard, wandb, mlflow"):
        check_tracker("comet")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match="needs the package wandb; pip install wandb"):
        check_tracker("wandb")


def test_no_tracker_is_no_callback(recipe, tmp_path):
    with track_run("", recipe, tmp_path) as on_epoch:
        assert on_epoch is None


def test_only_the_main_process_logs_results(recipe, tmp_path, wandb_calls, monkeypatch):
    finished(tmp_path, recipe)
    monkeypatch.setenv("RANK", "1")
    with track_run("wandb", recipe, tmp_path):
        pass
    assert wandb_calls == []
