"""Runs from beginning to end: what is in the folder, what is not trained again, what a kill leaves behind, what is refused."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shell import command
from tiny import reviews, save_model, sentences, write_csv

from distilcal import Predictions
from distilcal.config.loading import load_recipe
from distilcal.data import read_dataset
from distilcal.models import load_classifier
from distilcal.pipeline import plan, run_recipe
from distilcal.report.runs import render_runs
from distilcal.runs import main_stage, read_run, summarise_runs
from distilcal.training import predict

FAST = ["--epochs", "1", "--batch", "32", "--lr", "0.005"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_csv(folder / "train.csv", 300, 0, ids=True)
    write_csv(folder / "other.csv", 80, 1, ids=True)
    save_model(folder / "encoder", head=False)
    save_model(folder / "trained", labels=("pos", "neg"))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    command("distill", "--train", folder / "train.csv", "--teacher", folder / "encoder", "--ood", folder / "other.csv", *FAST,
            "--out", folder / "run", "--store", folder / "store")  # fmt: skip
    return folder


def recipe_file(place, path, *, student="layers = [0]", terms='{ loss = "cross_entropy" }, { loss = "kd" }', data="", more=""):
    path.write_text(f"""
name = "small"
[data]
train = {str(place / "train.csv")!r}
{data}
[stages.teacher]
model = {{ name = {str(place / "encoder")!r}, head = "new" }}
train = {{ epochs = 1, lr = 0.005 }}
terms = [{{ loss = "cross_entropy" }}]
[stages.student]
model = {{ name = {str(place / "encoder")!r}, head = "new", {student} }}
train = {{ epochs = 1, lr = 0.005 }}
teacher = "teacher"
terms = [{terms}]
{more}
""")
    return path


# ---- the folder --------------------------------------------------------------------------------------------------------


def test_the_folder_holds_all_that_was_promised(place):
    run = place / "run"
    for name in ("recipe.toml", "environment.json", "metrics.json", "evaluation.json", "report.html"):
        assert (run / name).stat().st_size > 0
    for stage in ("teacher", "alone", "student"):
        files = {str(f.relative_to(run / stage)) for f in (run / stage).rglob("*") if f.is_file()}
        assert {
            "history.json",
            "calibrator.json",
            "model/model.safetensors",
            "model/config.json",
            "model/distilcal.json",
        } <= files
        assert {"predictions/dev.npz", "predictions/test.npz", "predictions/other.npz"} <= files
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["torch"].startswith("2.")
    assert load_recipe(run / "recipe.toml").stages["student"].teacher == "teacher"


def test_saved_predictions_are_those_of_the_saved_model(place):
    run = place / "run"
    data = read_dataset(place / "other.csv", classes=("neg", "pos"))
    for stage in ("teacher", "student"):
        saved = Predictions.load(run / stage / "predictions" / "other.npz")
        said = predict(load_classifier(run / stage / "model"), data)
        assert (saved.ids == said.ids).all()
        np.testing.assert_allclose(saved.logits, said.logits, atol=1e-5)


def test_metrics_are_those_of_the_predictions(place):
    facts = json.loads((place / "run" / "metrics.json").read_text())
    for stage, found in facts["stages"].items():
        for name in ("test", "other"):
            said = Predictions.load(place / "run" / stage / "predictions" / f"{name}.npz")
            assert found["sets"][name]["given"]["accuracy"]["value"] == pytest.approx(said.correct.mean())
            assert found["sets"][name]["given"]["nll"]["value"] == pytest.approx(said.row_nll.mean(), abs=1e-6)
    assert facts["stages"]["student"]["parameters"] < facts["stages"]["teacher"]["parameters"]
    assert facts["stages"]["student"]["ms_per_example"] > 0
    assert main_stage(facts["stages"]) == "student"


def test_a_teacher_without_its_student_is_trained_alike(place):
    """The alone stage differs from the student in its terms only."""
    recipe = load_recipe(place / "run" / "recipe.toml")
    assert recipe.stages["alone"].model == recipe.stages["student"].model
    assert recipe.stages["alone"].train == recipe.stages["student"].train
    assert recipe.stages["student"].scale_teacher
    assert recipe.stages["student"].model.layers == (0, 2)


# ---- the store ---------------------------------------------------------------------------------------------------------


def test_what_is_in_the_store_is_not_trained_again(place, tmp_path, monkeypatch, caplog):
    recipe = load_recipe(recipe_file(place, tmp_path / "r.toml"))
    run_recipe(recipe, tmp_path / "a", tmp_path / "store")
    caplog.set_level("INFO", logger="distilcal")
    other = load_recipe(recipe_file(place, tmp_path / "r.toml", student="layers = [1, 3]"))
    made = plan(other, tmp_path / "store")
    assert {s.name: s.done for s in made.stages} == {"teacher": True, "student": False}
    run_recipe(other, tmp_path / "b", tmp_path / "store")
    assert "teacher: already trained" in caplog.text
    assert "student: training" in caplog.text
    import distilcal.pipeline.train as stages

    monkeypatch.setattr(stages, "fit", lambda *_, **__: pytest.fail("trained again"))
    run_recipe(other, tmp_path / "c", tmp_path / "store")
    first, second = (json.loads((tmp_path / f / "metrics.json").read_text()) for f in ("b", "c"))
    assert first["stages"]["student"]["sets"] == second["stages"]["student"]["sets"]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ("stages.teacher.train.lr=0.001", {"teacher", "student"}),
        ("seed=3", {"teacher", "student"}),
        ("data.seed=3", {"teacher", "student"}),
        ("stages.student.scale_teacher=true", {"student"}),
        ("stages.student.calibrate=isotonic", set()),
        ("accuracy=0.8", set()),
        ("name=other", set()),
    ],
)
def test_a_stage_is_named_by_all_that_determines_it(place, tmp_path, change, again):
    path = recipe_file(place, tmp_path / "r.toml")
    keys = {s.name: s.key for s in plan(load_recipe(path), tmp_path / "store").stages}
    changed = {s.name: s.key for s in plan(load_recipe(path, [change]), tmp_path / "store").stages}
    assert {name for name in keys if keys[name] != changed[name]} == again


def test_other_test_data_do_not_train_anything_again(place, tmp_path):
    path = recipe_file(place, tmp_path / "r.toml", data=f"test = {str(place / 'other.csv')!r}")
    before = [s.key for s in plan(load_recipe(path), tmp_path).stages]
    other = plan(load_recipe(path, [f"data.ood=['{place / 'other.csv'}']", f"data.test={place / 'train.csv'}"]), tmp_path)
    assert len(other.splits.test) == 300
    assert [s.key for s in other.stages] == before


def test_a_damaged_stage_is_trained_again_to_the_same_numbers(place, tmp_path):
    recipe = load_recipe(recipe_file(place, tmp_path / "r.toml"))
    run_recipe(recipe, tmp_path / "a", tmp_path / "store")
    stage = plan(recipe, tmp_path / "store").stages[1]
    weights = stage.folder / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 255
    weights.unlink()  # the run's folder has a link to the same file
    weights.write_bytes(content)
    with pytest.warns(UserWarning, match="computed again"):
        run_recipe(recipe, tmp_path / "b", tmp_path / "store")
    first, second = (json.loads((tmp_path / f / "metrics.json").read_text()) for f in ("a", "b"))
    assert first["stages"]["student"]["sets"] == second["stages"]["student"]["sets"]


# ---- killed ------------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import distilcal.training.checkpoint as checkpoint
import distilcal.training.loop as loop
point, count = sys.argv[1], int(sys.argv[2])
calls = {"n": 0}
def die():
    calls["n"] += 1
    if calls["n"] == count:
        os.kill(os.getpid(), signal.SIGKILL)
if point == "step":
    step = loop.add_gradient
    def backward(self, *a):
        die(); return step(self, *a)
    loop.add_gradient = backward
elif point == "save":
    save = checkpoint.save_file
    def half(tensors, path, metadata):
        calls["n"] += 1
        if calls["n"] == count:
            save(tensors, path, metadata)
            with open(path, "r+b") as file:
                file.truncate(os.path.getsize(path) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return save(tensors, path, metadata)
    checkpoint.save_file = half
elif point == "rename":
    replace = os.replace
    def renamed(a, b):
        replace(a, b); die()
    os.replace = renamed
from distilcal.cli.main import main
sys.argv = ["distilcal", *sys.argv[3:]]
main()
"""


def launch(program, *arguments):
    command_line = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command_line, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def uninterrupted(place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    path = recipe_file(place, folder / "r.toml", terms='{ loss = "cross_entropy" }, { loss = "kd" }, { loss = "crl" }')
    path.write_text(path.read_text().replace("epochs = 1", "epochs = 3"))
    done = launch(KILLED, "never", 0, "run", path, "--out", folder / "run", "--store", folder / "store")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "count"), [("step", 5), ("step", 30), ("save", 1), ("save", 4), ("rename", 5), ("rename", 14)]
)
def test_a_killed_run_goes_on_to_the_same_weights_and_metrics(uninterrupted, tmp_path, point, count):
    arguments = ("run", uninterrupted / "r.toml", "--out", tmp_path / "run", "--store", tmp_path / "store")
    killed = launch(KILLED, point, count, *arguments)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "run" / "metrics.json").exists()
    done = launch(KILLED, "never", 0, *arguments)
    assert done.returncode == 0, done.stderr
    for stage in ("teacher", "student"):
        a, b = (folder / "run" / stage for folder in (uninterrupted, tmp_path))
        assert (a / "model" / "model.safetensors").read_bytes() == (b / "model" / "model.safetensors").read_bytes()
        histories = [json.loads((f / "history.json").read_text()) for f in (a, b)]
        assert [h["dev"] for h in histories[0]] == [h["dev"] for h in histories[1]]
        sets = [json.loads((f / "stage.json").read_text())["sets"] for f in (a, b)]
        assert sets[0] == sets[1]
    assert not list((tmp_path / "store").rglob("*.part/*")) or point == "rename"


# ---- teachers ----------------------------------------------------------------------------------------------------------


def teacher_file(path, source, *, drop=0, classes=("neg", "pos"), seed=0):
    """The predictions of a model that is not here, as a CSV of probabilities."""
    with open(source, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", *(f"prob_{c}" for c in classes)])
        for row in rows[drop:]:
            p = float(np.clip(rng.normal(0.8, 0.1), 0.02, 0.98))
            label = row["label"] if row["label"] in classes else classes[0]
            writer.writerow([row["id"], label, *(f"{p if c == label else 1 - p:.4f}" for c in classes)])
    return path


def distilled(place, tmp_path, *arguments):
    where = ["--out", tmp_path / "run", "--store", tmp_path / "store"]
    return command("distill", "--train", place / "train.csv", "--no-alone", *FAST, *where, *arguments)


def test_a_student_learns_from_predictions_alone(place, tmp_path):
    teacher = teacher_file(tmp_path / "api.csv", place / "train.csv", classes=("pos", "neg"))
    done = distilled(place, tmp_path, "--teacher", teacher, "--student", place / "encoder", "--epochs", 8)
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert facts["stages"]["teacher"]["parameters"] is None
    assert facts["stages"]["student"]["sets"]["test"]["given"]["accuracy"]["value"] > 0.7
    assert "student" in done.output
    assert not (tmp_path / "run" / "teacher" / "model").exists()


def test_a_trained_teacher_is_used_as_it_stands_by_the_names_of_its_classes(place, tmp_path):
    distilled(place, tmp_path, "--teacher", place / "trained")
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert facts["stages"]["teacher"]["epochs"] == 0
    said = Predictions.load(tmp_path / "run" / "teacher" / "predictions" / "test.npz")
    assert said.classes == ("neg", "pos")
    by_hand = load_classifier(tmp_path / "run" / "teacher" / "model").network.model.config.id2label
    assert by_hand == {0: "neg", 1: "pos"}


def test_a_run_is_a_teacher(place, tmp_path):
    distilled(place, tmp_path, "--teacher", place / "run", "--student", place / "encoder")
    recipe = load_recipe(tmp_path / "run" / "recipe.toml")
    assert recipe.stages["teacher"].model.name == str(place / "run" / "student" / "model")


def test_students_of_students(place, tmp_path):
    more = """
[stages.second]
model = { start_from = "student" }
train = { epochs = 1, lr = 0.001 }
teacher = "student"
terms = [{ loss = "kd" }, { loss = "rkd", weight = 0.01 }]
"""
    recipe = load_recipe(recipe_file(place, tmp_path / "r.toml", more=more))
    run_recipe(recipe, tmp_path / "run", tmp_path / "store")
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert facts["stages"]["second"]["teacher"] == "student"
    assert facts["stages"]["second"]["parameters"] == facts["stages"]["student"]["parameters"]


@pytest.mark.slow
def test_a_frozen_encoder_and_images_run_too(place, tmp_path):
    path = recipe_file(place, tmp_path / "r.toml", student="frozen = true, hidden = [8]", terms='{ loss = "kd" }')
    run_recipe(load_recipe(path), tmp_path / "frozen", tmp_path / "store")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 240)
    pixels = (rng.integers(0, 100, (240, 32, 32, 3)) + 100 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, labels=labels, classes=np.array(["dark", "light"]))
    (tmp_path / "i.toml").write_text(f"""
name = "images"
[data]
train = {str(tmp_path / "images.npz")!r}
[stages.teacher]
model = {{ name = "resnet14" }}
train = {{ epochs = 1, optimizer = "sgd", lr = 0.05 }}
terms = [{{ loss = "cross_entropy" }}, {{ loss = "mdca" }}]
[stages.student]
model = {{ name = "resnet8" }}
train = {{ epochs = 1, optimizer = "sgd", lr = 0.05, schedule = "cosine" }}
teacher = "teacher"
scale_teacher = true
terms = [{{ loss = "kd", temperature = 4.0 }}, {{ loss = "crd", weight = 0.8, negatives = 10 }}]
""")
    run_recipe(load_recipe(tmp_path / "i.toml"), tmp_path / "images", tmp_path / "store")
    facts = json.loads((tmp_path / "images" / "metrics.json").read_text())
    assert facts["stages"]["teacher"]["epochs"] == 1
    made = load_classifier(tmp_path / "images" / "student" / "model")
    said = Predictions.load(tmp_path / "images" / "student" / "predictions" / "dev.npz")
    assert made.classes == said.classes == ("dark", "light")


# ---- commands ----------------------------------------------------------------------------------------------------------


def test_predict_labels_new_data(place, tmp_path):
    made, _ = sentences(50, 9)
    with open(tmp_path / "new.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([m] for m in made)])
    done = command("predict", place / "run", tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert "50 rows" in done.output
    with open(tmp_path / "out.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 50
    assert {r["label"] for r in rows} <= {"neg", "pos"}
    from distilcal.calibrate import load_calibrator

    limit = json.loads((place / "run" / "metrics.json").read_text())["stages"]["student"]["threshold"]["confidence"]
    data = reviews(50, 9)
    said = load_calibrator(place / "run" / "student" / "calibrator.json")(
        predict(load_classifier(place / "run" / "student" / "model"), data)
    )
    np.testing.assert_allclose([float(r["confidence"]) for r in rows], said.confidence, atol=1e-5)
    over = [r["hand_over"] == "1" for r in rows]
    assert over == [limit is None or c < limit for c in said.confidence]
    command("predict", place / "run", tmp_path / "new.csv", "-o", tmp_path / "t.csv", "--stage", "teacher")
    assert (tmp_path / "t.csv").read_text() != (tmp_path / "out.csv").read_text()


@pytest.mark.slow
def test_report_compares_runs(place, tmp_path):
    done = command("report", place / "run", "--html", tmp_path / "r.html")
    assert "student is right on" in done.output
    assert "Against alone (no teacher)" in done.output
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page
    assert page.count("<figure>") >= 8
    command("distill", "--train", place / "train.csv", "--teacher", place / "encoder", *FAST, "--no-alone", "--seed", "5",
            "--out", tmp_path / "second", "--store", place / "store")  # fmt: skip
    both = command("report", place / "run", tmp_path / "second")
    assert "second: student" in both.output


@pytest.mark.slow
def test_names_from_the_data_stay_text(place, tmp_path):
    run = read_run(place / "run")
    facts = json.loads(json.dumps(run.facts))
    facts["name"] = "<script>alert(1)</script>"
    facts["stages"]["<b>evil</b>"] = facts["stages"].pop("teacher")
    (place / "run" / "teacher").rename(place / "run" / "kept")
    try:
        (place / "run" / "<b>evil<").mkdir(exist_ok=True)
        (place / "run" / "<b>evil<" / "b>").mkdir(exist_ok=True)
        (place / "run" / "<b>evil<" / "b>" / "history.json").write_text("[]")
        comparisons = tuple(replace(c, a="<b>evil</b>") if c.a == "teacher" else c for c in run.comparisons)
        page = render_runs(summarise_runs([replace(run, facts=facts, comparisons=comparisons)]))
    finally:
        (place / "run" / "kept").rename(place / "run" / "teacher")
    assert "<script>alert" not in page
    assert "<b>evil" not in page


def test_dry_run_says_what_would_be_done(place, tmp_path):
    done = command("run", recipe_file(place, tmp_path / "r.toml"), "--dry-run", "--store", tmp_path / "store")
    assert "teacher: would train 1 epochs: 1·cross_entropy" in done.output
    assert "student: would train 1 epochs, taught by teacher" in done.output
    assert not (tmp_path / "store").exists()
    assert not Path("runs/small").exists()


def test_examples_are_printed():
    listed = command("example").output
    assert "demo" in listed
    assert command("example", "demo").output.startswith("# ")
    assert "did you mean demo" in command("example", "dmo", code=2).stderr


# ---- refused -----------------------------------------------------------------------------------------------------------


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
        (["--train", "train.csv", "--teacher", "short.csv", "--student", "encoder"], "of the 210 rows of 'train'"),
        (
            ["--train", "train.csv", "--teacher", "strange.csv", "--student", "encoder"],
            "has classes 'up', 'down', not 'neg', 'pos'",
        ),
        (["--train", "train.csv", "--teacher", "full.csv"], "name a --student"),
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
    teacher_file(place / "short.csv", place / "train.csv", drop=10)
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
         "with file_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)",
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


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from distilcal.cli.main import main
main()
"""


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_nothing_is_half_written(place, tmp_path):
    path = recipe_file(place, tmp_path / "r.toml")
    arguments = ["run", path, "--out", tmp_path / "run", "--store", tmp_path / "store"]
    done = launch(FULL, *arguments)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert not list((tmp_path / "store").rglob("*.part"))
    assert launch(KILLED, "never", 0, *arguments).returncode == 0


def test_what_is_no_run_is_refused(tmp_path):
    assert "not the folder of a finished run" in command("report", tmp_path, code=2).stderr
    assert "not the folder of a finished run" in command("predict", tmp_path, "x.csv", "-o", tmp_path / "o.csv", code=2).stderr
    assert "is not a .csv" in command("predict", tmp_path, "x.csv", "-o", tmp_path / "o.txt", code=2).stderr


def test_commands_answer_fast():
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "distilcal", "distill", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "torch" not in done.stderr
    assert "transformers" not in done.stderr
    assert time.perf_counter() - begun < 30


# ---- data --------------------------------------------------------------------------------------------------------------


def test_the_benchmarks_are_listed_and_shown(tmp_path, monkeypatch):
    import gzip

    monkeypatch.delenv("DISTILCAL_DATA", raising=False)
    listed = command("data", "list").output
    assert "vader_movie" in listed
    assert "Set DISTILCAL_DATA" in listed
    assert "DISTILCAL_DATA" in command("data", "show", "mrpc", code=2).stderr
    (tmp_path / "mrpc").mkdir()
    for split, count in (("train", 6), ("validation", 4), ("test", 4)):
        with gzip.open(tmp_path / "mrpc" / f"{split}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("idx\tsentence1\tsentence2\tlabel\n")
            file.writelines(f"{i}\tfirst {split} {i}\tsecond [b]{i}\t{i % 2}\n" for i in range(count))
    monkeypatch.setenv("DISTILCAL_DATA", str(tmp_path))
    shown = command("data", "show", "mrpc").output
    assert "train (6)" in shown
    assert "Licence" in shown or "licence" in shown
    assert "second [b]" in shown  # text from the data is not markup
    assert "mrpc" in command("data", "show", "mrcp", code=2).stderr
    (tmp_path / "mrpc" / "train.tsv.gz").write_bytes(b"damaged")
    assert "train.tsv.gz" in command("data", "show", "mrpc", code=2).stderr
