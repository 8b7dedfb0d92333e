"""Runs with unlabelled examples: who learns from them, under which keys, and what a teacher that knows some rows does."""

import json
import logging

import numpy as np
import pytest

pytest.importorskip("torch")

from distilcal.config.loading import parse_recipe
from distilcal.data.splits import read_splits
from distilcal.dynamics import load_dynamics
from distilcal.errors import InputError
from distilcal.pipeline import run_recipe
from distilcal.pipeline.run import plan
from distilcal.predictions import Predictions

CLASSES = np.array(["neg", "pos"])
TRUTH = np.random.default_rng(0).normal(size=(8, 2))
MLP = {"name": "mlp", "hidden": [16]}
FAST = {"epochs": 2, "lr": 0.02}
CE, KD, PENALTY = {"loss": "cross_entropy"}, {"loss": "kd"}, {"loss": "confidence_penalty", "weight": 0.1}


def examples(count, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 8)).astype(np.float32)
    logits = np.tanh(x) @ TRUTH * 3
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return x, labels, logits


def save(path, count, seed, *, labelled=True, start=0):
    x, labels, logits = examples(count, seed)
    more = {"labels": CLASSES[labels], "classes": CLASSES} if labelled else {}
    ids = np.array([f"{path.stem}-{i}" for i in range(start, start + count)])
    np.savez(path, vectors=x, ids=ids, **more)
    return ids, logits


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of data, and the predictions of a teacher on all of them."""
    folder = tmp_path_factory.mktemp("data")
    sizes = {"train": 60, "dev": 60, "test": 400, "more": 300}
    rows = {
        name: save(folder / f"{name}.npz", n, seed, labelled=name != "more") for seed, (name, n) in enumerate(sizes.items())
    }
    ids = np.concatenate([ids for ids, _ in rows.values()])
    logits = np.concatenate([logits for _, logits in rows.values()])
    Predictions(logits, ids=ids, classes=("neg", "pos")).save(folder / "teacher.npz")
    return folder


def settings(data, *, unlabelled=True, **more):
    named = {name: str(data / f"{name}.npz") for name in ("train", "dev", "test")}
    return {**named, **({"unlabelled": [str(data / "more.npz")]} if unlabelled else {}), **more}


def recipe(data, stages, **more):
    return parse_recipe({"data": settings(data, **more), "stages": stages})


def student(terms=(CE, KD), train=FAST, **more):
    return {"model": MLP, "teacher": "teacher", "terms": list(terms), "train": dict(train), **more}


def trained_teacher(*terms):
    return {"model": MLP, "terms": list(terms) or [CE], "train": FAST}


def teacher_of(data, tmp_path, keep):
    """A file with the teacher's predictions of the ids that are kept."""
    whole = Predictions.load(data / "teacher.npz")
    whole.select(np.array([bool(keep(id_)) for id_ in whole.ids])).save(tmp_path / "part.npz")
    return {"predictions": [str(tmp_path / "part.npz")]}


# ---- runs --------------------------------------------------------------------------------------------------------------


def test_only_stages_that_can_use_unlabelled_examples_do(data, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="distilcal")
    stages = {"teacher": trained_teacher(CE, {"loss": "crl"}), "alone": trained_teacher(), "student": student()}
    with_more, without = recipe(data, stages), recipe(data, stages, unlabelled=False)
    keys = [{s.name: s.key for s in plan(r, tmp_path / "store").stages} for r in (with_more, without)]
    assert {name for name in stages if keys[0][name] != keys[1][name]} == {"student"}
    run_recipe(with_more, tmp_path / "a", tmp_path / "store")
    lines = [record.getMessage() for record in caplog.records]
    assert "data: train 360 (300 unlabelled), dev 60, test 400; 2 classes" in lines
    assert any(line.startswith("teacher: training a network of 178 parameters on 60 examples") for line in lines)
    assert any("on 360 examples, 300 of them unlabelled, " in line for line in lines)
    caplog.clear()
    run_recipe(without, tmp_path / "b", tmp_path / "store")
    lines = [record.getMessage() for record in caplog.records]
    assert "teacher: already trained, loaded from the store" in lines
    assert "alone: already trained, loaded from the store" in lines
    assert any(line.startswith("student: training") for line in lines)


def test_the_share_of_labelled_examples_is_in_the_key_where_it_matters(data, tmp_path):
    def keys(train, **more):
        stages = {"teacher": {**trained_teacher(), "train": train}, "student": student(train=train)}
        return {s.name: s.key for s in plan(recipe(data, stages, **more), tmp_path).stages}

    shared = {**FAST, "labelled_share": 0.5}
    assert keys(FAST, unlabelled=False) == keys(shared, unlabelled=False)
    assert keys(FAST)["teacher"] == keys(shared)["teacher"] == keys(FAST, unlabelled=False)["teacher"]
    assert keys(FAST)["student"] != keys(shared)["student"]


def test_everything_is_recorded_and_saved_of_labelled_examples(data, tmp_path):
    train = {**FAST, "labelled_share": 0.5}
    stages = {"teacher": trained_teacher(), "student": student((CE, KD, {"loss": "pskd"}), train, record=True)}
    table = {"data": settings(data), "stages": stages, "train_predictions": True}
    run_recipe(parse_recipe(table), tmp_path / "run", tmp_path / "store")
    dynamics = load_dynamics(tmp_path / "run" / "student")
    assert dynamics.ids.tolist() == [f"train-{i}" for i in range(60)]
    assert (dynamics.epochs == 2).all()  # however often a labelled example came in an epoch
    saved = Predictions.load(tmp_path / "run" / "student" / "predictions" / "train.npz")
    assert saved.has_labels
    assert len(saved) == 60


@pytest.mark.slow
def test_more_examples_that_a_teacher_labels_make_a_better_student(data, tmp_path):
    """60 labelled examples, 300 that only the teacher knows: the student of both is nearer to the truth."""
    stages = {"teacher": {"predictions": [str(data / "teacher.npz")]}, "student": student(train={"epochs": 30, "lr": 0.02})}
    nll = []
    for name, unlabelled in (("with", True), ("without", False)):
        run_recipe(recipe(data, stages, unlabelled=unlabelled), tmp_path / name, tmp_path / "store")
        facts = json.loads((tmp_path / name / "metrics.json").read_text())
        nll.append(facts["stages"]["student"]["sets"]["test"]["given"]["nll"]["value"])
    assert nll[0] < nll[1] - 0.01, nll


# ---- teachers that know some rows ---------------------------------------------------------------------------------------


def test_rows_that_a_teacher_does_not_know_are_taught_by_labels_or_left_out(data, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="distilcal")
    teacher = teacher_of(data, tmp_path, lambda id_: not id_.endswith("0") or id_.startswith(("dev", "test")))
    run_recipe(recipe(data, {"teacher": teacher, "student": student()}), tmp_path / "run", tmp_path / "store")
    lines = [record.getMessage() for record in caplog.records]
    assert "student: 6 examples of train not among the predictions of teacher, taught by labels alone" in lines
    left_out = "student: 30 examples of train left out: not among the predictions of teacher, and no term can use them"
    assert left_out in lines
    assert any("on 330 examples, 270 of them unlabelled, " in line for line in lines)
    caplog.clear()
    terms = (KD,)
    run_recipe(recipe(data, {"teacher": teacher, "student": student(terms)}), tmp_path / "b", tmp_path / "store")
    lines = [record.getMessage() for record in caplog.records]
    assert left_out.replace("30", "36") in lines
    assert not any("labels alone" in line for line in lines)
    caplog.clear()
    terms = (CE, KD, PENALTY)  # of which one needs neither label nor teacher
    run_recipe(recipe(data, {"teacher": teacher, "student": student(terms)}), tmp_path / "c", tmp_path / "store")
    assert not any("left out" in record.getMessage() for record in caplog.records)


def test_a_teacher_of_unlabelled_examples_alone_is_enough(data, tmp_path):
    teacher = teacher_of(data, tmp_path, lambda id_: id_.startswith("more"))
    run_recipe(recipe(data, {"teacher": teacher, "student": student()}), tmp_path / "run", tmp_path / "store")
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert facts["stages"]["student"]["sets"]["test"]["given"]["accuracy"]["value"] > 0.6


def test_train_may_have_no_labels_at_all(data, tmp_path):
    table = {"data": settings(data, unlabelled=False), "stages": {}}
    table["data"] |= {"train": str(data / "none.npz"), "classes": ["neg", "pos"]}
    x, _, _ = examples(300, 3)
    np.savez(data / "none.npz", vectors=x, ids=[f"more-{i}" for i in range(300)], labels=np.full(300, ""))
    teacher = {"predictions": [str(data / "teacher.npz")]}
    table["stages"] = {"teacher": teacher, "student": student((KD,), {"epochs": 10, "lr": 0.02})}
    run_recipe(parse_recipe(table), tmp_path / "run", tmp_path / "store")
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert facts["stages"]["student"]["sets"]["test"]["given"]["accuracy"]["value"] > 0.7
    table["stages"]["student"] = student()
    with pytest.raises(InputError, match=r"stages\.student\.terms\[0\]: cross_entropy needs labels, and no training example"):
        plan(parse_recipe(table), tmp_path / "store")


# ---- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": {**FAST, "labelled_share": 1.0}}, r"stages\.student\.train: labelled_share = 1 leaves no room"),
        (
            {
                "terms": [CE, KD, {"loss": "cross_entropy", "view": "mixed"}],
                "views": {"mixed": {"pairs": "regions"}},
                "map": "teacher",
            },
            r"stages\.student\.views\.mixed: a map has no unlabelled examples, so pairs = 'regions' cannot be drawn",
        ),
    ],
)
def test_what_unlabelled_examples_cannot_take_part_in_is_refused(data, tmp_path, change, words):
    stages = {"teacher": {**trained_teacher(), "record": True}, "student": {**student(), **change}}
    with pytest.raises(InputError, match=words):
        plan(recipe(data, stages), tmp_path)
    plan(recipe(data, stages, unlabelled=False), tmp_path)


def test_a_recipe_names_its_unlabelled_data(data):
    splits = read_splits(recipe(data, {"teacher": trained_teacher()}).data)
    assert len(splits.train) == 360
    assert len(splits.labelled) == 60
    with pytest.raises(InputError, match=r"data\.unlabelled"):
        parse_recipe({"data": {"train": "a.csv", "unlabelled": "more.csv"}, "stages": {"s": trained_teacher()}})
    with pytest.raises(InputError, match=r"labelled_share = 0"):
        parse_recipe({"data": {"train": "a.csv"}, "stages": {"s": {**trained_teacher(), "train": {"labelled_share": 0}}}})


def test_a_stage_can_leave_out_the_unlabelled_examples(data, tmp_path):
    """It is then the stage that a run without them has, under the same key."""

    def keys(stage, **more):
        stages = {"teacher": trained_teacher(), "student": stage}
        return {s.name: s.key for s in plan(recipe(data, stages, **more), tmp_path).stages}

    assert keys(student(unlabelled=False)) == keys(student(), unlabelled=False)
    assert keys(student(unlabelled=True)) == keys(student())
    assert keys(student(unlabelled=False))["student"] != keys(student())["student"]
