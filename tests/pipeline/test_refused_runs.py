"""What cannot be run is refused in one line, before anything is trained."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from run_cases import FAST, recipe_file, teacher_file
from shell import command
from tiny import reviews, save_model

from distilcal import Predictions
from distilcal.config.loading import load_recipe
from distilcal.pipeline import run_recipe


def refused(place, tmp_path, *arguments):
    done = command("distill", "--no-alone", "--out", tmp_path / "run", "--store", tmp_path / "store", *FAST, *arguments, code=2)
    assert not (tmp_path / "run" / "metrics.json").exists()
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--train", "train.csv", "--teacher", "encoder", "--label", "mood"], "no column 'mood'; it has id, text, label"),
        (["--train", "train.csv", "--teacher", "encoder", "--text", "words"], "no column 'words'"),
        (["--train", "train.csv", "--teacher", "encoder", "--test", "odd.csv"], "odd.csv, line 3: label 'neutral' is not"),
        (["--train", "train.csv", "--teacher", "other-classes"], "knows the classes 'sad', 'happy', the data 'neg', 'pos'"),
        (
            ["--train", "train.csv", "--teacher", "short.csv", "--student", "encoder"],
            "rows of dev, too few for its temp",
        ),
        (
            ["--train", "train.csv", "--teacher", "strange.csv", "--student", "encoder"],
            "has classes 'up', 'down', not 'neg', 'pos'",
        ),
        (["--train", "train.csv", "--teacher", "full.csv"], "name a student (--student)"),
        (["--train", "train.csv", "--teacher", "encoder", "--student", "./no-such-folder"], "no such folder"),
        (["--train", "no.csv", "--teacher", "encoder"], "no such file"),
        (["--train", "train.csv", "--teacher", "encoder", "--layers", "0,x"], "layers: '0,x' is not a list of numbers"),
        (["--train", "train.csv", "--teacher", "encoder", "--layers", "0,9"], "layer 9 of a model with 4"),
        (
            ["--train", "train.csv", "--teacher", "encoder", "--set", "stages.student.trian.lr=1"],
            "unknown key stages.student.trian",
        ),
    ],
)
def test_bad_input_is_one_line_with_the_remedy(place, tmp_path, arguments, words):
    (place / "odd.csv").write_text("text,label\ngood,pos\nmeh,neutral\n")
    teacher_file(place / "full.csv", place / "train.csv")
    teacher_file(place / "short.csv", place / "train.csv", drop=290)
    teacher_file(place / "strange.csv", place / "train.csv", classes=("up", "down"))
    if not (place / "other-classes").exists():
        save_model(place / "other-classes", labels=("sad", "happy"))
    given = [str(place / a) if (place / a).exists() and a != "." else a for a in arguments]
    assert words in refused(place, tmp_path, *given)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("stages.student.terms=[{loss='kdd'}]", "no loss 'kdd'; did you mean kd"),
        ("stages.student.terms=[{loss='kd', temprature=2}]", "no setting 'temprature'"),
        ("stages.student.terms=[{loss='kd', temperature=-2.0}]", "cannot be computed"),
        ("stages.student.terms=[{loss='focal', gamma='x'}]", "cannot be computed"),
        ("stages.student.terms=[{loss='kd', view='mixed'}]", "no view 'mixed'"),
        ("stages.student.model.name=./nowhere", "no such folder"),
        ("stages.student.model.layers=[7]", "layer 7 of a model with 4 layers"),
        ("data.limit_test=5", "dev has 5 examples"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(place, tmp_path, change, words):
    path = recipe_file(place, tmp_path / "r.toml")
    for more in (["--dry-run"], []):
        done = command("run", path, "--set", change, "--out", tmp_path / "run", "--store", tmp_path / "store", *more, code=2)
        assert words in done.stderr
        assert "training" not in done.stderr


def predictions_recipe(place, tmp_path, teacher, data=""):
    path = recipe_file(place, tmp_path / "r.toml", data=data)
    text = path.read_text()
    start, end = text.index("[stages.teacher]"), text.index("[stages.student]")
    path.write_text(text[:start] + f"[stages.teacher]\npredictions = [{str(teacher)!r}]\n" + text[end:])
    return path


def test_ids_that_mean_other_rows_in_another_split_are_refused(place, tmp_path):
    teacher = teacher_file(tmp_path / "api.csv", place / "train.csv")
    (tmp_path / "dev.csv").write_text((place / "other.csv").read_text().replace("r1-", "r0-"))
    path = predictions_recipe(place, tmp_path, teacher, f"dev = {str(tmp_path / 'dev.csv')!r}")
    done = command("run", path, "--out", tmp_path / "run", "--store", tmp_path / "store", code=2)
    assert "is in train and in dev" in done.stderr


def test_a_teacher_file_with_other_labels_is_refused(place, tmp_path):
    teacher = teacher_file(tmp_path / "api.csv", place / "train.csv")
    text = teacher.read_text().replace(",neg,", ",?,").replace(",pos,", ",neg,").replace(",?,", ",pos,")
    teacher.write_text(text)
    path = predictions_recipe(place, tmp_path, teacher)
    done = command("run", path, "--out", tmp_path / "run", "--store", tmp_path / "store", code=2)
    assert "use ids that mean the same rows" in done.stderr


def test_a_run_started_again_leaves_nothing_of_the_old_one(place, tmp_path):
    path = recipe_file(place, tmp_path / "r.toml")
    where = ["--out", tmp_path / "run", "--store", tmp_path / "store"]
    command("run", path, *where)
    command("run", path, *where, "--set", "stages.student.calibrate=vector")
    assert not (tmp_path / "run" / "student" / "calibrator.json").exists()
    command("predict", tmp_path / "run", place / "other.csv", "-o", tmp_path / "o.csv", "--id", "id")
    from distilcal.calibrate import load_calibrator

    fitted = load_calibrator(tmp_path / "run" / "student" / "calibrator.npz")
    said = fitted(Predictions.load(tmp_path / "run" / "student" / "predictions" / "test.npz"))
    assert np.isfinite(said.confidence).all()
    with open(tmp_path / "o.csv", encoding="utf-8") as file:
        rows = {r["id"]: float(r["confidence"]) for r in csv.DictReader(file)}
    assert set(rows) == {f"r1-{i}" for i in range(80)}
    command("run", path, *where, "--set", "data.text=nothing", code=2)
    command("run", path, *where, "--set", f"stages.student.model.name={place / 'train.csv'}", code=2)
    assert (
        "no column"
        in command("predict", tmp_path / "run", place / "other.csv", "-o", tmp_path / "o.csv", "--text", "no", code=2).stderr
    )


@pytest.mark.slow
def test_start_from_works_for_every_kind_of_network(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 240)
    vectors = (rng.normal(size=(240, 4)) + labels[:, None]).astype(np.float32)
    pixels = np.clip(rng.normal(100 + 60 * labels[:, None, None, None], 20, (240, 32, 32, 3)), 0, 255).astype(np.uint8)
    np.savez(tmp_path / "v.npz", vectors=vectors, labels=labels)
    np.savez(tmp_path / "i.npz", images=pixels, labels=labels)
    for name, model in (("v", 'name = "mlp", hidden = [5]'), ("i", 'name = "resnet8"')):
        (tmp_path / f"{name}.toml").write_text(f"""
name = "{name}"
[data]
train = {str(tmp_path / f"{name}.npz")!r}
[stages.first]
model = {{ {model} }}
train = {{ epochs = 8, lr = 0.02 }}
terms = [{{ loss = "cross_entropy" }}]
[stages.second]
model = {{ start_from = "first" }}
train = {{ epochs = 1, lr = 0.001 }}
teacher = "first"
scale_teacher = true
terms = [{{ loss = "kd" }}]
""")
        run_recipe(load_recipe(tmp_path / f"{name}.toml"), tmp_path / f"run-{name}", tmp_path / "store")
        sets = json.loads((tmp_path / f"run-{name}" / "metrics.json").read_text())["stages"]["second"]["sets"]
        assert sets["test"]["given"]["accuracy"]["value"] > 0.7


def test_two_tokenizers_with_the_same_words_do_not_share_tokens(tmp_path):
    from tiny import tokenizer

    from distilcal.models.inputs import TokenInputs

    data = reviews(10)
    with_kinds, without, left = tokenizer(), tokenizer(), tokenizer()
    with_kinds.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    without.model_input_names = ["input_ids", "attention_mask"]
    left.truncation_side = "left"
    inputs = [TokenInputs(t, 4) for t in (without, with_kinds, left)]
    stored = [i.prepare(data, tmp_path).batch(np.arange(10)) for i in inputs]
    fresh = [i.prepare(data).batch(np.arange(10)) for i in inputs]
    for a, b in zip(stored, fresh, strict=True):
        assert a.keys() == b.keys()
        assert all((a[k] == b[k]).all() for k in a)
    assert not (stored[0]["input_ids"] == stored[2]["input_ids"]).all()


def test_features_of_a_predictions_only_teacher_are_refused(place, tmp_path):
    teacher = teacher_file(tmp_path / "api.csv", place / "train.csv")
    path = predictions_recipe(place, tmp_path, teacher)
    path.write_text(path.read_text().replace('{ loss = "kd" }', '{ loss = "rkd" }'))
    done = command("run", path, "--out", tmp_path / "run", "--store", tmp_path / "store", code=2)
    assert "known by its predictions only and has no features" in done.stderr


def test_two_runs_in_one_folder_at_once(place, tmp_path):
    from distilcal.io.locks import file_lock

    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, time\nfrom pathlib import Path\nfrom distilcal.io.locks import file_lock\n"
         "with file_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)",
         str(tmp_path / "run" / ".lock")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout.readline() == "held\n"
        assert "another run is working in" in refused(
            place, tmp_path, "--train", place / "train.csv", "--teacher", place / "encoder"
        )
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with file_lock(tmp_path / "run" / ".lock"):
        pass
