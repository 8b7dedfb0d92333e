"""Runs from beginning to end: what is in the folder, what is not trained again, teachers of every kind, commands."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from processes import children_seconds
from run_cases import FAST, distilled, recipe_file, teacher_file
from shell import command
from tiny import reviews, sentences

from distilcal import Predictions
from distilcal.cli.main import main
from distilcal.config.loading import load_recipe, only_stages
from distilcal.data import read_dataset
from distilcal.models import load_classifier
from distilcal.pipeline import plan, run_recipe
from distilcal.report.runs.page import render_runs
from distilcal.runs import main_stage, read_run, summarise_runs
from distilcal.training import predict

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


def test_the_cascade_of_student_and_teacher_is_stored(place):
    run = read_run(place / "run")
    assert (run.cascade.student, run.cascade.teacher, run.cascade.alone) == ("student", "teacher", "alone")
    assert list(run.cascade.splits) == ["dev", "test", "other"]
    stages = run.facts["stages"]
    assert run.cascade.costs == (stages["student"]["ms_per_example"], stages["teacher"]["ms_per_example"])
    for name in ("test", "other"):
        split = run.cascade.splits[name]
        for stage, point in (
            ("student", split.cascade.student_alone),
            ("teacher", split.cascade.teacher_alone),
            ("alone", split.alone.student_alone),
        ):
            calibrated = stages[stage]["sets"][name]["calibrated"]
            assert point.accuracy == pytest.approx(calibrated["accuracy"]["value"])
            assert point.nll == pytest.approx(calibrated["nll"]["value"])
            assert point.ece == pytest.approx(calibrated["ece"]["value"])
        assert set(split.checks) == {"accepted", "output", "loss"}
    assert run.cascade.sentence.startswith("do not: no threshold")  # a dev set this small can promise nothing


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


def test_dev_is_not_predicted_again_after_training(place, tmp_path, monkeypatch):
    import distilcal.training.prediction as prediction

    predicted = []

    def count(network, batches, *rest, **settings):
        predicted.append(len(batches))
        return run_network(network, batches, *rest, **settings)

    run_network = prediction.run_network
    monkeypatch.setattr(prediction, "run_network", count)
    recipe = load_recipe(recipe_file(place, tmp_path / "r.toml"))
    run_recipe(recipe, tmp_path / "run", tmp_path / "store")
    splits = plan(recipe, tmp_path / "store").splits
    assert len(splits.test) in predicted
    assert len(splits.dev) not in predicted


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ("stages.teacher.train.lr=0.001", {"teacher", "student"}),
        ("seed=3", {"teacher", "student"}),
        ("data.seed=3", {"teacher", "student"}),
        ("stages.student.scale_teacher=true", {"student"}),
        ("stages.student.teacher_grid=[0.01, 5.0, 0.01]", {"student"}),
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


# ---- teachers ----------------------------------------------------------------------------------------------------------


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
        page = render_runs(summarise_runs([replace(run, facts=facts, comparisons=comparisons, calibrated_comparisons={})]))
    finally:
        (place / "run" / "kept").rename(place / "run" / "teacher")
    assert "<script>alert" not in page
    assert "<b>evil" not in page


def test_dry_run_says_what_would_be_done(place, tmp_path):
    done = command("run", recipe_file(place, tmp_path / "r.toml"), "--dry-run", "--store", tmp_path / "store")
    assert "teacher: would train 1 epochs in batches of 32: 1·cross_entropy" in done.output
    assert "student: would train 1 epochs in batches of 32, taught by teacher" in done.output
    assert not (tmp_path / "store").exists()
    assert not Path("runs/small").exists()


def test_some_stages_and_those_they_need():
    path = files("distilcal").joinpath("config", "recipes", "informed_mixup.toml")
    recipe = load_recipe(path)
    assert list(only_stages(recipe, ["student"]).stages) == ["map", "teacher", "student"]
    assert list(only_stages(recipe, ["mixup", "map"]).stages) == ["map", "mixup"]
    done = CliRunner().invoke(main, ["run", str(path), "--only", "studnt"])
    assert done.exit_code == 2
    assert "there is no stage 'studnt'; did you mean student" in done.stderr


def test_examples_are_printed():
    listed = command("example").output
    assert "demo" in listed
    assert command("example", "demo").output.startswith("# ")
    assert "did you mean demo" in command("example", "dmo", code=2).stderr


def test_what_is_no_run_is_refused(tmp_path):
    assert "not the folder of a finished run" in command("report", tmp_path, code=2).stderr
    assert "not the folder of a finished run" in command("predict", tmp_path, "x.csv", "-o", tmp_path / "o.csv", code=2).stderr
    assert "is not a .csv" in command("predict", tmp_path, "x.csv", "-o", tmp_path / "o.txt", code=2).stderr


def test_commands_answer_fast():
    begun = children_seconds()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "distilcal", "distill", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "torch" not in done.stderr
    assert "transformers" not in done.stderr
    assert children_seconds() - begun < 30


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
