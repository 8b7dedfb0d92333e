"""Runs within a budget: what is chosen, that test is read once, and that a killed search goes on."""

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from shell import command
from tiny import save_model, write_csv

import distilcal as dc
from distilcal.config.loading import load_recipe
from distilcal.errors import InputError, StoreError, TrainingError
from distilcal.io.locks import file_lock, in_use
from distilcal.pipeline.budget import search as search_module
from distilcal.pipeline.budget import timing
from distilcal.pipeline.budget.halving import Workload
from distilcal.pipeline.stage import Stage
from distilcal.runs import read_run

SECONDS = 6000.0  # of the tests' budget, far more than they take
PACE = 5.0  # seconds of a step that the search believes in


@pytest.fixture(autouse=True)
def short_rungs(monkeypatch):
    """Steps that cost what we say, and few of them, so that the search does the same on every machine."""
    monkeypatch.setattr(search_module, "measure_speed", lambda *_: timing.Speed(0.0, 0.0, 1))
    monkeypatch.setattr(search_module, "expected_workload", lambda stage, splits, speed: Workload(4, PACE, 0.1))
    monkeypatch.setattr(search_module._Search, "update_pace", lambda *_: None)
    monkeypatch.setattr("distilcal.pipeline.budget.halving.MOST_STEPS", 8)
    monkeypatch.setattr("distilcal.pipeline.budget.halving.MOST_EPOCHS", 2)


def table(seed, rows=200):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    weights = np.random.default_rng(9).normal(size=(6, 3))
    return x, (3 * x @ weights + rng.gumbel(size=(rows, 3))).argmax(axis=1)


def vectors(**changes):
    """Arguments of a call that trains heads on vectors, a teacher that knows, and a lr at which the first candidate learns."""
    weights = np.random.default_rng(9).normal(size=(6, 3))

    def teacher(inputs):
        scores = 3 * np.asarray(inputs) @ weights
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    settings = {"train": table(0), "teacher": teacher, "student": "linear", "classes": ["a", "b", "c"], "lr": 0.05}
    return {**settings, "batch": 32, "progress": False, "budget": SECONDS, **changes}


def facts_of(folder):
    """What is known of a search that is under way, or finished."""
    under_way = folder / ".budget.json"
    return json.loads((under_way if under_way.exists() else folder / "budget.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search among heads on vectors, and which data were predicted before and after the choice."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("finished")
        short_rungs.__wrapped__(patch)
        seen = {"before": set(), "after": set()}
        outputs = Stage.outputs

        def record(self, data, *arguments, **named):
            path = folder / "run" / ".budget.json"
            chosen = path.exists() and "chosen" in json.loads(path.read_text())
            seen["after" if chosen else "before"].add((self.name, data.role))
            return outputs(self, data, *arguments, **named)

        patch.setattr(Stage, "outputs", record)
        result = dc.distill(**vectors(out=folder / "run", store=folder / "store", ood={"other": table(5)}))
    return result, seen


def test_a_budget_ends_with_an_ordinary_run(finished):
    result, _ = finished
    run = read_run(result.folder)
    assert next(iter(run.facts["stages"])) == "teacher"
    assert run.main == "student"
    assert result.student.predict(table(3)[0][:2])
    assert (result.folder / "report.html").exists()
    recipe = load_recipe(result.folder / "recipe.toml")
    facts = facts_of(result.folder)
    assert recipe.stages["student"].train.epochs in (facts["student"]["epochs"], (facts["control"] or {}).get("epochs"))


def test_test_is_not_predicted_before_the_choice(finished):
    _, seen = finished
    roles = {role for _, role in seen["before"]}
    assert "dev" in roles
    assert not roles & {"test", "ood"}
    assert {name for name, role in seen["after"] if role == "test"} <= {"teacher", "alone", "student"}
    assert ("student", "test") in seen["after"]


def test_all_that_was_tried_is_kept_and_shown(finished):
    result, _ = finished
    facts = facts_of(result.folder)
    tried = {name for rung in facts["rungs"] for name in rung["trials"]}
    assert {"kd", "kd-fast", "kd-only"} <= tried
    assert facts["state"] == "finished"
    assert 0 < facts["used"] < SECONDS
    assert {point["name"] for point in facts["points"]} == tried
    assert [point["name"] for point in facts["points"] if point["chosen"]] == [facts["chosen"]]
    assert not (result.folder / ".budget.json").exists()
    assert 'href="frontier.html"' in (result.folder / "report.html").read_text()
    page = (result.folder / "frontier.html").read_text()
    assert all(name in page for name in tried)
    assert facts["reasons"][0] in page.replace("&#39;", "'")


def test_losers_are_removed_from_the_store(finished):
    result, _ = finished
    facts = facts_of(result.folder)
    kept = {path.name for path in (result.folder.parent / "store" / "stages").iterdir()}
    keys = {trial["key"] for rung in facts["rungs"] for trial in rung["trials"].values()}
    wanted = {trial["key"] for trial in (facts["student"], facts["control"]) if trial}
    assert kept & keys == wanted
    assert len(keys) > len(wanted)


def test_losers_that_another_run_uses_stay(tmp_path, monkeypatch):
    run_stage = search_module.run_stage
    with ExitStack() as others:

        def used(stage, *arguments, **named):
            run_stage(stage, *arguments, **named)
            others.enter_context(in_use(stage.folder))

        monkeypatch.setattr(search_module, "run_stage", used)
        result = dc.distill(**vectors(out=tmp_path / "run", store=tmp_path / "store"))
        keys = {trial["key"] for rung in facts_of(result.folder)["rungs"] for trial in rung["trials"].values()}
        assert {path.name for path in (tmp_path / "store" / "stages").iterdir()} >= keys


def test_the_same_call_again_trains_nothing_and_chooses_the_same(finished, monkeypatch):
    result, _ = finished
    before = facts_of(result.folder)
    monkeypatch.setattr(search_module, "run_stage", None)
    again = dc.distill(**vectors(out=result.folder, store=result.folder.parent / "store", ood={"other": table(5)}))
    after = facts_of(again.folder)
    assert (after["chosen"], after["rungs"]) == (before["chosen"], before["rungs"])
    assert after["used"] > before["used"]


def test_the_better_candidate_is_chosen(tmp_path):
    """At a tenth of a sensible learning rate the faster variant learns more in the same steps."""
    result = dc.distill(**vectors(lr=0.005, alone=False, out=tmp_path / "run", store=tmp_path / "store"))
    facts = facts_of(result.folder)
    assert facts["chosen"] == "kd-fast"
    nll = {name: trial["dev"]["calibrated_nll"] for name, trial in facts["rungs"][0]["trials"].items()}
    assert nll["kd-fast"] < nll["kd"] < nll["kd-slow"]
    assert "it was not asked for" in facts["reasons"][-1]
    assert list(read_run(result.folder).facts["stages"])[:2] == ["teacher", "student"]


def test_a_student_that_is_better_alone_is_chosen_alone_and_that_is_said(tmp_path):
    def wrong(inputs):
        return np.roll(vectors()["teacher"](inputs), 1, axis=1)

    confident = ["stages.student.scale_teacher=false"]
    result = dc.distill(**vectors(teacher=wrong, changes=confident, out=tmp_path / "run", store=tmp_path / "store"))
    facts = facts_of(result.folder)
    assert facts["chosen"].endswith("-alone")
    assert "Distillation did not help" in facts["reasons"][-1]
    recipe = load_recipe(result.folder / "recipe.toml")
    assert "alone" not in recipe.stages
    assert [term.loss for term in recipe.stages["student"].terms] == ["cross_entropy"]
    assert not recipe.stages["student"].teacher


def test_a_candidate_whose_training_fails_is_left_out(tmp_path, monkeypatch):
    run_stage = search_module.run_stage

    def fails(stage, *arguments, **named):
        if stage.name == "kd-fast":
            raise TrainingError("the loss kd became nan in epoch 1")
        run_stage(stage, *arguments, **named)

    monkeypatch.setattr(search_module, "run_stage", fails)
    result = dc.distill(**vectors(out=tmp_path / "run", store=tmp_path / "store"))
    facts = facts_of(result.folder)
    assert facts["rungs"][0]["trials"]["kd-fast"] is None
    assert not facts["chosen"].startswith("kd-fast")


def test_a_candidate_whose_time_is_over_is_cut_short_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("distilcal.training.loop.PROGRESS_INTERVAL", 0.0)
    train = search_module._Search.train

    def hurried(self, name, amount, deadline):
        return train(self, name, amount, 0.0 if name == "kd-only" else deadline)

    monkeypatch.setattr(search_module._Search, "train", hurried)
    result = dc.distill(**vectors(out=tmp_path / "run", store=tmp_path / "store"))
    assert facts_of(result.folder)["rungs"][0]["trials"]["kd-only"] is None
    assert not list((tmp_path / "store" / "work").glob("*"))


def test_more_data_than_time_is_tried_on_a_part_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(search_module, "expected_workload", lambda stage, splits, speed: Workload(400, PACE, 0.1))
    sizes = []
    run_stage = search_module.run_stage

    def record(stage, recipe, splits, *arguments, **named):
        sizes.append((stage.name, len(splits.train)))
        run_stage(stage, recipe, splits, *arguments, **named)

    monkeypatch.setattr(search_module, "run_stage", record)
    result = dc.distill(**vectors(budget=7000.0, alone=False, out=tmp_path / "run", store=tmp_path / "store"))
    facts = facts_of(result.folder)
    rows = dict(sizes)
    assert 0 < facts["rungs"][0]["trials"]["kd"]["share"] < 1
    assert rows["kd-fast"] < 140 or facts["chosen"] == "kd-fast"
    assert facts["student"]["share"] == 1
    assert sizes[-1] == (facts["chosen"], 140)


def test_a_teacher_that_took_the_time_leaves_one_student_and_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(search_module, "fitting_count", lambda *_: 0)
    result = dc.distill(**vectors(out=tmp_path / "run", store=tmp_path / "store"))
    assert facts_of(result.folder)["tried"] == ["kd"]
    assert "the budget will probably be exceeded" in caplog.text


def test_an_error_in_the_only_candidate_is_raised(tmp_path, monkeypatch):
    def fails(stage, *_, **__):
        if stage.name == "kd":
            raise TrainingError("the loss kd became nan in epoch 1")

    monkeypatch.setattr(search_module, "fitting_count", lambda *_: 1)
    monkeypatch.setattr(search_module, "run_stage", fails)
    with pytest.raises(TrainingError, match="became nan"):
        dc.distill(**vectors(out=tmp_path / "run", store=tmp_path / "store"))


def test_a_call_that_was_interrupted_after_the_choice_searches_no_more(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    call = vectors(out=tmp_path / "run", store=tmp_path / "store", alone=False)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(search_module, "run_recipe", interrupted)
        dc.distill(**call)
    before = facts_of(tmp_path / "run")
    assert before["state"] == "chosen"
    monkeypatch.setattr(search_module, "run_stage", None)
    after = facts_of(dc.distill(**call).folder)
    assert (after["state"], after["chosen"]) == ("finished", before["chosen"])


# ---- refused -----------------------------------------------------------------------------------------------------------


def test_a_budget_that_is_too_short_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(search_module, "expected_workload", lambda stage, splits, speed: Workload(400, 1.0, 0.1))
    with pytest.raises(InputError, match=r"a budget of 1 min is too short: about 1\d min \d+ s are needed at least") as error:
        dc.distill(**vectors(budget="60s", out=tmp_path / "run", store=tmp_path / "store"))
    assert "give at least 1" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_second_search_with_the_same_store_is_refused(tmp_path):
    lock = tmp_path / "store" / "locks" / search_module.SEARCH_LOCK
    with file_lock(lock), pytest.raises(StoreError, match="another search within a budget works with the store"):
        dc.distill(**vectors(out=tmp_path / "run", store=tmp_path / "store"))
    assert not (tmp_path / "run").exists() or {path.name for path in (tmp_path / "run").iterdir()} == {"data", ".lock"}


@pytest.mark.parametrize("text", ["30", "abc", "0", "99999999999h"])
def test_invalid_budgets_are_one_line(tmp_path, text):
    done = command("distill", "--train", "no.csv", "--teacher", "x", "--budget", text, "--out", tmp_path / "run", code=2)
    assert "write it as 30m, 1h30m or 90s" in done.stderr
    assert not (tmp_path / "run").exists()


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="one process"):
        dc.distill(**vectors(out=tmp_path / "run", store=tmp_path / "store", dry_run=True))


def test_a_file_cannot_be_the_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="this is a file"):
        dc.distill(**vectors(out=tmp_path / "run", store=tmp_path / "store"))


# ---- text --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_csv(folder / "train.csv", 300, 0, ids=True)
    save_model(folder / "encoder", head=False, num_hidden_layers=6)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return folder


def distill_texts(texts, folder, *more):
    arguments = ["--train", texts / "train.csv", "--teacher", texts / "encoder", "--epochs", "1", "--lr", "0.005"]
    return command("distill", *arguments, "--out", folder / "run", "--store", folder / "store", "--budget", "10m", *more)


def test_a_dry_run_lists_the_candidates(texts, tmp_path):
    shown = distill_texts(texts, tmp_path, "--dry-run").stdout
    assert "within 10 min, the best on dev" in shown
    assert "small-kd: 2 of 6 layers" in shown
    assert not (tmp_path / "run").exists()
    named = distill_texts(texts, tmp_path, "--dry-run", "--layers", "0,1").stdout
    assert "small-kd" not in named
    changed = distill_texts(texts, tmp_path, "--dry-run", "--set", "stages.student.model.layers=[0]").stdout
    assert "small-kd" not in changed


@pytest.mark.slow
def test_texts_from_the_command_line(texts, tmp_path):
    done = distill_texts(texts, tmp_path)
    assert "rung 1 of" in done.stderr
    assert "used," in done.stderr
    assert "Chosen on dev:" in done.stdout
    assert "frontier.html" in done.stdout
    facts = facts_of(tmp_path / "run")
    sizes = {point["name"]: point["parameters"] for point in facts["points"]}
    assert sizes["small-kd"] < sizes["kd"] < sizes["teacher"]
    assert logging.getLogger("distilcal.pipeline.train").level == logging.NOTSET


# ---- killed ------------------------------------------------------------------------------------------------------------

KILLED = """
import logging, os, signal, sys
import numpy as np
import distilcal as dc
from distilcal.pipeline.budget import halving, search, timing
count, folder = int(sys.argv[1]), sys.argv[2]
logging.basicConfig(level=logging.INFO)
search.measure_speed = lambda *_: timing.Speed(0.0, 0.0, 1)
search.expected_workload = lambda stage, splits, speed: halving.Workload(7, 5.0, 0.1)
search._Search.update_pace = lambda *_: None
halving.MOST_STEPS, halving.MOST_EPOCHS = 8, 2
run_stage, calls = search.run_stage, []
def killed(stage, *arguments, on_progress=None, **named):
    def die(progress):
        calls.append(stage.name)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        on_progress(progress)
    run_stage(stage, *arguments, on_progress=die if on_progress else None, **named)
search.run_stage = killed
x = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
dc.distill((x, np.array(["no", "yes"])[(x.sum(axis=1) > 0) * 1]), teacher="mlp", student="linear", lr=0.05, epochs=2,
           budget="2h", out=folder + "/run", store=folder + "/store", progress=False)
"""


def run_killed(count, folder):
    program = [sys.executable, "-c", KILLED, str(count), str(folder)]
    return subprocess.run(program, capture_output=True, text=True, timeout=1800)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = run_killed(0, folder)
    assert done.returncode == 0, done.stderr
    return facts_of(folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 9, 16])
def test_a_killed_search_goes_on_to_the_same_choice(uninterrupted, tmp_path, count):
    killed = run_killed(count, tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "run" / "metrics.json").exists()
    used = facts_of(tmp_path / "run")["used"]
    done = run_killed(0, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "going on with a search that was interrupted" in done.stderr
    found = facts_of(tmp_path / "run")
    assert found["used"] > used > 0
    assert found["chosen"] == uninterrupted["chosen"]
    for a, b in zip(uninterrupted["rungs"], found["rungs"], strict=True):
        assert {n: t["dev"] for n, t in a["trials"].items()} == {n: t["dev"] for n, t in b["trials"].items()}
