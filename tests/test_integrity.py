"""``distilcal check`` finds what is damaged, stale or foreign; a repair removes what can be made again and nothing else."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from shell import command

from distilcal.config.loading import parse_recipe
from distilcal.errors import InputError
from distilcal.integrity import check_integrity
from distilcal.io.folders import DamagedWarning
from distilcal.io.locks import file_lock, in_use, is_in_use
from distilcal.io.parts import part_folder
from distilcal.pipeline import run_recipe
from distilcal.training.checkpoint import save_tensors

KEY = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a store and a run: a teacher that recorded, and its student."""
    folder = tmp_path_factory.mktemp("integrity")
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=300)
    vectors = rng.normal(size=(300, 5)) + np.eye(3, 5)[labels]
    np.savez(folder / "data.npz", vectors=vectors.astype(np.float32), labels=labels)
    run_recipe(recipe(folder), folder / "run", folder / "store")
    return folder


def recipe(folder):
    term = {"loss": "cross_entropy"}
    model = {"model": {"name": "linear"}, "train": {"epochs": 1}, "terms": [term]}
    stages = {"teacher": {**model, "record": True}, "student": {**model, "teacher": "teacher", "terms": [term, {"loss": "kd"}]}}
    return parse_recipe({"name": "small", "data": {"train": str(folder / "data.npz")}, "stages": stages})


@pytest.fixture
def place(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "place")
    return tmp_path / "place"


def kinds(folder, **settings):
    return [(finding.kind, finding.path.name) for finding in check_integrity(folder, **settings).findings]


def flip(path, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_a_finished_run_and_its_store_are_clean(place):
    done = command("check", place / "store", place / "run")
    assert done.stdout.count("nothing found") == 2
    assert not list((place / "store").rglob("*.lock"))
    assert not list((place / "store" / "work").glob("*"))
    assert not list((place / "store" / "locks").glob("*"))


def test_every_damaged_file_of_a_store_is_found_removed_and_made_again(finished, place):
    files = sorted(path for path in (place / "store").rglob("*") if path.is_file())
    assert len(files) > 12
    for file in files:
        content = file.read_bytes()
        flip(file, len(content) // 2)
        assert [kind for kind, _ in kinds(place / "store")] == ["damaged"], file
        file.write_bytes(content)
    for file in files:
        flip(file, 0)
    done = command("check", place / "store", code=1)
    assert "damaged" in done.stdout
    assert "removed" in command("check", place / "store", "--repair").stdout
    assert not kinds(place / "store")
    assert not list((place / "store" / "stages").iterdir())
    run_recipe(recipe(finished), place / "run", place / "store")
    assert not kinds(place / "store")
    assert not kinds(place / "run")


def test_every_damaged_file_of_a_run_is_found_and_stays(place):
    run = place / "run"
    text = ("report.html", "recipe.toml", "environment.json")
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name not in text)
    assert len(files) > 15
    for file in files:
        content = file.read_bytes()
        for damaged in (content[: len(content) // 2], b"[]", b"{}", b""):
            if content in (damaged, damaged + b"\n"):  # the history of a model that was not trained
                continue
            file.unlink()  # it is linked to the store
            file.write_bytes(damaged)
            assert "damaged" in {kind for kind, _ in kinds(run, repair=True)}, file
            assert file.exists()
        file.unlink()
        assert "damaged" in {kind for kind, _ in kinds(run)} or file.name in ("manifest.json", "metrics.json"), file
        file.write_bytes(content)
    assert not kinds(run)
    for name in text:
        content = (run / name).read_bytes()
        (run / name).write_text("")
        assert ("damaged", name) in kinds(run)
        (run / name).write_bytes(content)


def test_a_single_bit_of_any_result_is_found(place):
    run = place / "run"
    assert len([path for path in run.glob("*.*") if path.is_file()]) == 6
    for file in sorted(path for path in run.rglob("*") if path.is_file()):
        if file.name == "report.html":  # distilcal report may write it again
            continue
        content = file.read_bytes()
        file.unlink()  # it is linked to the store
        for at in (0, len(content) // 2, len(content) - 2):
            file.write_bytes(content)
            flip(file, at)
            found = kinds(run)
            assert {kind for kind, _ in found} == {"damaged"}, (file, found)
            if file != run / "manifest.json":  # which of its entries is wrong, nobody can tell
                assert {file.name, file.parent.name} & {name for _, name in found}, (file, found)
        file.write_bytes(content)
    assert not kinds(run)


def test_runs_of_earlier_versions_have_no_checksums(place):
    (place / "run" / "manifest.json").unlink()
    report = check_integrity(place / "run")
    assert not report.findings
    assert "written by an earlier version" in report.notes[0]


def test_a_stage_in_use_is_not_removed(place):
    store = place / "store"
    stage = next((store / "stages").iterdir())
    flip(stage / "history.json", 0)
    with in_use(stage):
        assert kinds(store, repair=True) == [("damaged", stage.name)]
        assert stage.exists()
    kinds(store, repair=True)
    assert not stage.exists()


def test_a_run_marks_its_stages_as_in_use_until_its_results_are_written(finished, place):
    store = place / "store"
    stages = list((store / "stages").iterdir())
    assert len(stages) == 2
    seen = []
    run_recipe(recipe(finished), place / "run", store, on_results=lambda new: seen.extend(map(is_in_use, stages)))
    assert seen == [True, True]
    assert not any(map(is_in_use, stages))


def test_what_killed_processes_left_is_stale_and_removed(place):
    store, run = place / "store", place / "run"
    stage = next((store / "stages").iterdir()).name
    left = [
        store / "stages" / f".{KEY}.abcdefgh.part",
        store / "outputs" / "owner" / f".{KEY}.abcdefgh.part",
        store / "work" / stage,
        store / "work" / KEY,
        run / ".new",
    ]
    for folder in left:
        folder.mkdir(parents=True)
    files = [store / "locks" / stage, store / "outputs" / "owner" / ".lock", run / ".lock", run / ".metrics.json.abcdefgh.part"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    assert sorted(kind for folder in (store, run) for kind, _ in kinds(folder)) == ["stale"] * 9
    assert all(path.exists() for path in left + files)
    command("check", store, run, code=1)
    assert command("check", store, run, "--repair").stdout.count("(removed)") == 9
    assert not any(path.exists() for path in left + files)
    assert not kinds(store)


def test_what_is_in_use_is_no_finding(place):
    store = place / "store"
    (store / "work" / KEY).mkdir(parents=True)
    with (
        part_folder(store / "stages" / KEY) as part,
        file_lock(store / "locks" / KEY, busy="busy"),
        file_lock(place / "run" / ".lock", busy="busy"),
    ):
        assert not kinds(store, repair=True)
        assert not kinds(place / "run", repair=True)
        assert part.exists()
    assert kinds(store) == [("stale", KEY)]


def test_foreign_files_are_named_and_never_removed(place):
    store, run = place / "store", place / "run"
    stage = next((store / "stages").iterdir())
    foreign = [
        store / "notes.txt",
        store / "stages" / "mine.txt",
        store / "stages" / "copy of a stage" / "a.txt",
        stage / "mine.txt",
        store / "locks" / "mine",
        store / "points" / "mine.json",
        store / "outputs" / "mine.txt",
        store / "work" / "mine.txt",
        run / "mine.csv",
        run / "student" / "mine.csv",
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    found = [finding for folder in (store, run) for finding in check_integrity(folder, repair=True).findings]
    assert {finding.kind for finding in found} == {"foreign"}
    assert len(found) == len(foreign)
    assert all(path.read_text() == "mine" for path in foreign)
    assert command("check", run, "--repair", code=1).stdout.count("foreign: ") == 2


def test_what_commands_write_into_a_run_is_not_foreign(place):
    run = place / "run"
    command("map", run)
    command("export", run, run / "model.onnx")
    for name in ("points.csv", "best.toml", "sweep.json"):  # of a sweep, whose folder is that of a run
        (run / name).write_text("")
    assert (run / "teacher" / "map.csv").exists()
    assert (run / "model.report.json").exists()
    assert kinds(run) == []


def test_what_is_damaged_stays_while_foreign_files_are_in_it(place):
    store = place / "store"
    stage = next((store / "stages").iterdir())
    flip(stage / "history.json", 0)
    foreign = [
        stage / "mine.txt",
        store / "work" / KEY / "mine.txt",
        store / "stages" / ".mine.part",
        place / "run" / ".mine.part",
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    found = kinds(store, repair=True) + kinds(place / "run", repair=True)
    assert sorted(kind for kind, _ in found) == ["damaged", *["foreign"] * 4, "stale"]
    assert all(path.read_text() == "mine" for path in foreign)
    for path in foreign:
        path.unlink()
    assert sorted(kind for kind, _ in kinds(store, repair=True)) == ["damaged", "stale"]
    assert not kinds(store)


def test_nothing_foreign_is_removed_with_a_stage_of_which_a_file_is_missing(place):
    store = place / "store"
    stage = next((store / "stages").iterdir())
    (stage / "history.json").unlink()
    (place / "mine").mkdir()
    (stage / "mine.txt").write_text("mine")
    (stage / "folder").mkdir()
    (stage / "link").symlink_to(place / "mine")
    (stage / "nowhere").symlink_to(place / "nowhere")
    os.mkfifo(stage / "pipe")
    names = ["folder", "link", "mine.txt", "nowhere", "pipe"]
    assert kinds(store, repair=True) == [*(("foreign", name) for name in names), ("damaged", stage.name)]
    assert all(os.path.lexists(stage / name) for name in names)


def test_a_stage_whose_manifest_has_a_wrong_name_is_removed(place):
    stage = next((place / "store" / "stages").iterdir())
    manifest = stage / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"history.json"', '"hastory.json"'))
    assert kinds(place / "store", repair=True) == [("damaged", stage.name)]
    assert not stage.exists()


@pytest.mark.parametrize("path", [f"locks/{KEY}", f"stages/.{KEY}.abcdefgh.part"])
def test_pipes_and_links_in_place_of_locks_and_temporary_files_are_foreign(place, path):
    """No process of ours creates any; a pipe without a writer would be waited for without end."""
    odd = place / "store" / path
    (place / "mine").mkdir()
    for create in (os.mkfifo, partial(os.symlink, place / "mine")):
        create(odd)
        done = subprocess.run(
            [sys.executable, "-m", "distilcal", "check", "--repair", place / "store"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout.startswith(f"foreign: {odd}: ")) == (1, True), done
        odd.unlink()


@pytest.mark.parametrize("create", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_in_place_of_a_checkpoint_is_foreign(place, create):
    work = place / "store" / "work" / ("a" * 20)
    work.mkdir(parents=True)
    create(work / "last.safetensors")
    assert kinds(place / "store", repair=True) == [("foreign", "last.safetensors")]
    assert (work / "last.safetensors").exists()


def test_checkpoints_are_verified(place):
    work = place / "store" / "work" / KEY
    work.mkdir(parents=True)
    for name in ("last", "previous"):
        save_tensors(work / f"{name}.safetensors", {"a": torch.ones(3)}, {"key": "k", "history": [{}, {}]})
    report = check_integrity(place / "store")
    assert not report.findings
    assert "interrupted after epoch 2" in report.notes[0]
    flip(work / "last.safetensors")
    (work / ".last.safetensors.part").write_text("")
    (work / "mine").write_text("")
    assert sorted(kinds(place / "store", repair=True)) == [
        ("damaged", "last.safetensors"),
        ("foreign", "mine"),
        ("stale", ".last.safetensors.part"),
    ]
    assert sorted(path.name for path in work.iterdir()) == ["mine", "previous.safetensors"]


def test_points_and_newer_versions(place):
    store, run = place / "store", place / "run"
    (store / "points").mkdir()
    (store / "points" / f"{KEY}.json").write_text("[]")
    assert kinds(store, repair=True) == [("damaged", f"{KEY}.json")]
    assert not kinds(store)
    manifest = next((store / "stages").iterdir()) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 5}))
    metrics = run / "metrics.json"
    metrics.write_text(json.dumps({**json.loads(metrics.read_text()), "format": 5}))
    assert [kind for kind, _ in kinds(store, repair=True)] == ["newer"]
    assert manifest.exists()
    assert "newer" in {kind for kind, _ in kinds(run)}
    assert "of format 5, this version of distilcal reads up to 1" in command("report", run, code=2).stderr


@pytest.mark.parametrize("file", ["metrics.json", "evaluation.json"])
@pytest.mark.parametrize(
    "content", ["[]", "3", '{"format": 1}', '{"format": true}', '{"format": 1, "stages": {"a": 3}}', "{", "[" * 9999]
)
def test_json_of_another_shape_is_one_line(place, file, content):
    (place / "run" / file).write_text(content)
    done = command("report", place / "run", code=2)
    assert file in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_runs_that_are_not_finished_studies_and_other_folders(place, tmp_path):
    (place / "run" / "metrics.json").unlink()
    report = check_integrity(place / "run")
    assert not report.findings
    assert "not finished" in report.notes[0]
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "results.json").write_text("{}")
    assert kinds(tmp_path / "study") == [("damaged", "results.json")]
    results = tmp_path / "study" / "results.json"
    for path, problem in ((tmp_path / "nowhere", "no such folder"), (results, "this is a file"), (tmp_path, "neither a store")):
        with pytest.raises(InputError, match=problem):
            check_integrity(path)
    assert command("check", tmp_path / "nowhere", code=2).stderr.startswith("error: ")


def test_a_run_removes_what_an_earlier_one_left_of_its_stages(finished, place):
    store = place / "store"
    stage = next((store / "stages").iterdir()).name
    (store / "work" / stage).mkdir(parents=True)
    (store / "stages" / f".{stage}.abcdefgh.part").mkdir()
    assert len(kinds(store)) == 2
    run_recipe(recipe(finished), place / "run", store)
    assert not kinds(store)


def test_a_run_touches_no_folder_beside_it_that_its_metrics_name(finished, place):
    """Stages of an earlier run are removed with a new one; their names are what somebody wrote there."""
    other = place / "other" / "student"
    shutil.copytree(place / "run" / "student", other)
    metrics = place / "run" / "metrics.json"
    facts = json.loads(metrics.read_text())
    for name in ("../other/student", str(other), "..", "."):
        facts["stages"][name] = facts["stages"]["student"]
    metrics.write_text(json.dumps(facts))
    run_recipe(recipe(finished), place / "run", place / "store")
    assert not kinds(place / "run")
    assert (other / "stage.json").exists()
    assert (other / "model").is_dir()


def test_a_run_replaces_a_damaged_stage_with_one_line(finished, place):
    flip(next((place / "store" / "stages").glob("*/history.json")), 0)
    with pytest.warns(DamagedWarning) as shown:
        run_recipe(recipe(finished), place / "run", place / "store")
    assert len(shown) == 1
    assert not kinds(place / "store")
    assert not kinds(place / "run")
