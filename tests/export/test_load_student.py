"""A student is loaded from a run, from what it saved, or from a folder of transformers."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from shell import command
from tiny import reviews, save_model, write_csv

import distilcal as dc
from distilcal import Predictions
from distilcal.calibrate import load_calibrator
from distilcal.errors import InputError
from distilcal.export import load_student


@pytest.mark.parametrize("stage", ["student", "teacher"])
def test_a_run_gives_the_model_with_its_calibrator_and_threshold(run, stage):
    student = load_student(run, stage="" if stage == "student" else stage)
    facts = json.loads((run / "metrics.json").read_text())["stages"][stage]
    assert student.source.stage == stage
    chosen = student.threshold(student.required_accuracy)
    assert chosen.confidence == facts["threshold"]["confidence"]
    assert chosen.message == facts["threshold"]["message"]
    test = Predictions.load(run / stage / "predictions" / "test.npz")
    data = student.source.read_dev_and_test()[1]
    calibrated = load_calibrator(run / stage / "calibrator.json")(test)
    np.testing.assert_allclose(student.predict_proba(data), calibrated.probs, atol=1e-5)
    assert (student.predictions(data).ids == test.ids).all()


def test_a_folder_of_transformers_has_no_calibration_and_no_dev(tmp_path):
    student = load_student(save_model(tmp_path / "plain", labels=("neg", "pos")))
    assert student.classes == ("neg", "pos")
    assert student.calibrator is None
    assert student.classifier.inputs.max_length == 32
    assert student.predict_proba(reviews(5)).shape == (5, 2)
    with pytest.raises(InputError, match="no dev predictions"):
        student.threshold()


def test_what_cannot_be_loaded_is_one_clear_error(run, tmp_path):
    with pytest.raises(InputError, match="no stage 'tutor'.*teacher, student"):
        load_student(run, stage="tutor")
    with pytest.raises(InputError, match="not the folder of a finished run"):
        load_student(tmp_path, stage="student")
    with pytest.raises(InputError, match="nor of a saved model"):
        load_student(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        load_student(tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("a file")
    with pytest.raises(InputError, match=r"notes\.txt: this file is not a model; give the folder of one, or an \.onnx"):
        load_student(tmp_path / "notes.txt")
    (tmp_path / "run" / "nothing").mkdir(parents=True)
    shutil.copy(run / "metrics.json", tmp_path / "run")
    with pytest.raises(InputError, match="no stage 'nothing'.*teacher, student"):
        load_student(tmp_path / "run" / "nothing")


@pytest.mark.parametrize("source", [None, 3, "", ["runs/reviews"], b"runs"], ids=repr)
def test_what_is_no_path_is_one_clear_error(source):
    for load in (dc.load, load_student):
        with pytest.raises(InputError, match="expected the path of a model, got .*; give the folder of a run"):
            load(source)


def test_a_stage_is_loaded_by_its_folder(run):
    by_folder, by_name = dc.load(run / "teacher"), load_student(run, "teacher")
    assert by_folder.source == by_name.source
    np.testing.assert_array_equal(by_folder.predict_proba(["a great film"]), by_name.predict_proba(["a great film"]))


def test_threads_that_share_a_student_take_turns(tmp_path):
    save_model(tmp_path / "model", labels=("pos", "neg"))
    student = load_student(tmp_path / "model")
    batches = [[f"a film {'very ' * length} good"] * 3 for length in range(12)] * 5
    expected = [student.predict_proba(texts) for texts in batches]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads get in each other's way as often as they can
    try:
        with ThreadPoolExecutor(6) as threads:
            for got, probs in zip(threads.map(student.predict_proba, batches), expected, strict=True):
                np.testing.assert_array_equal(got, probs)
    finally:
        sys.setswitchinterval(interval)


def test_stages_without_a_model_are_refused(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    shutil.rmtree(copied / "teacher" / "model")
    with pytest.raises(InputError, match="teacher.model: there is no such folder; run the recipe"):
        load_student(copied, stage="teacher")


def test_a_flipped_bit_of_the_weights_of_a_run_is_refused(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    weights = copied / "student" / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 64
    weights.write_bytes(content)
    (tmp_path / "new.csv").write_text("text\na great film\n")
    for arguments in (("predict", copied, tmp_path / "new.csv", "-o", tmp_path / "out.csv"), ("serve", copied)):
        refused = command(*arguments, code=2).stderr
        assert "'model.safetensors' missing or damaged (wrong checksum); run the recipe of the run again" in refused
    with pytest.raises(InputError, match="missing or damaged"):
        dc.load(weights.parent)
    assert dc.load(copied, "teacher").predict(["a great film"])[0] in ("neg", "pos")


@pytest.mark.parametrize(
    "file",
    ["metrics.json", "recipe.toml"]
    + [f"student/{name}" for name in ("calibrator.json", "predictions/dev.npz", "model/manifest.json", "model/distilcal.json")],
)
def test_files_of_a_run_of_another_shape_are_one_clear_error(run, tmp_path, file):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    for content in (b"", b"{", b"[]", b'"x"', b"null", b"3", b"NaN", b"{}", b'{"a": 1}', b"[" * 100_000, b"\x00\xff"):
        (copied / file).write_bytes(content)
        with pytest.raises(InputError, match="."):
            load_student(copied)


@pytest.mark.parametrize(
    "file",
    ["recipe.toml", "teacher/predictions/dev.npz"]
    + [f"student/{name}" for name in ("calibrator.json", "predictions/dev.npz", "model/manifest.json")],
)
def test_files_of_another_run_are_refused(run, tmp_path, file):
    """Each is whole by itself, so that only the checksums of the run tell."""
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    path = copied / file
    if path.suffix == ".toml":
        path.write_text(path.read_text().replace("accuracy = 0.7", "accuracy = 0.6"))
    elif path.suffix == ".npz":
        shutil.copy(path.with_name("other.npz"), path)
    elif path.name == "calibrator.json":
        shutil.copy(copied / "teacher" / path.name, path)
    else:
        shutil.rmtree(path.parent)
        shutil.copytree(copied / "teacher" / "model", path.parent)
    with pytest.raises(InputError, match=f"'{file}' missing or damaged.*remove its manifest.json if you changed it yourself"):
        load_student(copied)
    path.unlink()
    with pytest.raises(InputError, match=f"'{file}' missing or damaged"):
        load_student(copied)


def test_a_run_without_dev_predictions_promises_nothing(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    (copied / "manifest.json").unlink()
    (copied / "student" / "predictions" / "dev.npz").unlink()
    assert load_student(copied).dev is None


def test_a_student_outlives_its_run(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    student = load_student(copied)
    shutil.rmtree(copied)
    student.save_pretrained(tmp_path / "saved")
    assert "Accuracy and calibration" not in (tmp_path / "saved" / "README.md").read_text()
    with pytest.raises(InputError, match="no dev data.*give labelled data as dev"):
        student.export_onnx(tmp_path / "student.onnx", int8=True)


def test_data_that_changed_since_the_run_are_not_its_dev_and_test(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    (copied / "manifest.json").unlink()
    write_csv(tmp_path / "train.csv", 850, 0, ids=True)
    recipe = (copied / "recipe.toml").read_text()
    (copied / "recipe.toml").write_text(recipe.replace(str(run.parent / "train.csv"), str(tmp_path / "train.csv")))
    student = load_student(copied)
    with pytest.raises(InputError, match=r"train\.csv.*changed since the run.*restore the data"):
        student.export_onnx(tmp_path / "student.onnx", int8=True)
    assert "changed since the run" in str(student.export_onnx(tmp_path / "student.onnx"))


def test_multiple_choice_of_transformers_needs_our_description(tmp_path):
    save_model(tmp_path, labels=("neg", "pos"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMultipleChoice"]}))
    with pytest.raises(InputError, match="number of choices"):
        load_student(tmp_path)
