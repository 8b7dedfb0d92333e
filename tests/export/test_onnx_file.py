"""Exported files give the calibrated probabilities of torch and replace nothing before they are complete."""

import json
import re
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from small import SMALL, vectors

from distilcal.calibrate import FITS
from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.data import Dataset, Vectors
from distilcal.errors import InputError, MissingDependencyError
from distilcal.export import as_student
from distilcal.export.report import AccuracyWarning
from distilcal.inference.onnx import METADATA, load_onnx
from distilcal.io.atomic import atomic_write
from distilcal.models import build_classifier
from distilcal.training import fit, predict
from distilcal.views import build_term

TRAIN, DEV, TEST = vectors(300), vectors(200, seed=1), vectors(250, seed=2)


@pytest.fixture(scope="module")
def classifier():
    model = build_classifier(SMALL, TRAIN, seed=0)
    fit(model, TRAIN, DEV, [build_term("cross_entropy")], TrainSettings(epochs=8, lr=0.02))
    return model


def calibrated(classifier, method="temperature"):
    return as_student(classifier, calibrator=FITS[method](predict(classifier, DEV)), dev=predict(classifier, DEV))


@pytest.fixture(scope="module")
def files(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    student = calibrated(classifier)
    return folder, student, student.export_onnx(folder / "student.onnx", test=TEST)


@pytest.mark.parametrize("method", ["vector", "matrix", "dirichlet", "isotonic", "histogram"])
def test_every_calibrator_travels_with_the_file(classifier, tmp_path, method):
    student = calibrated(classifier, method)
    report = student.export_onnx(tmp_path / "student.onnx", test=TEST)
    loaded = load_onnx(tmp_path / "student.onnx")
    assert np.abs(loaded.predict_proba(TEST) - student.predict_proba(TEST)).max() < 1e-5
    outputs = [output.name for output in onnxruntime.InferenceSession(tmp_path / "student.onnx").get_outputs()]
    if method in ("isotonic", "histogram"):
        assert outputs == ["logits", "uncalibrated_probabilities"]
        assert "not part of the graph" in str(report)
    else:
        assert outputs == ["probabilities"]


def test_a_calibrator_that_did_not_converge_is_noted(classifier, files, tmp_path):
    swapped = replace(DEV, labels=(DEV.labels + 1) % 3)  # the logits say the contrary: the temperature ends at its bound
    student = as_student(classifier, calibrator=FITS["temperature"](predict(classifier, swapped)))
    report = student.export_onnx(tmp_path / "student.onnx", test=TEST)
    assert "calibrator is doubtful: stopped at the upper bound" in str(report)
    assert "doubtful" not in str(files[2])


def test_plain_onnxruntime_gives_the_calibrated_probabilities(files):
    folder, student, _ = files
    session = onnxruntime.InferenceSession(folder / "student.onnx")
    (probs,) = session.run(["probabilities"], {"vectors": TEST.inputs.values})
    assert np.abs(probs - student.predict_proba(TEST)).max() < 1e-5
    assert student.calibrator.value != pytest.approx(1, abs=0.01)


def test_thresholds_are_those_of_the_dev_rows(files):
    folder, student, _ = files
    loaded = load_onnx(folder / "student.onnx")
    assert loaded.threshold(0.6).confidence == pytest.approx(student.threshold(0.6).confidence, abs=1e-6)
    assert loaded.classes == student.classes


def test_the_report_compares_with_torch(files):
    folder, student, report = files
    assert report.reference.name == "torch"
    assert report.flipped == 0
    assert report.accuracy_drop == (0, 0, 0)
    assert re.search(r"accuracy +0\.\d{3} \[0\.\d{3}, 0\.\d{3}\]", str(report))
    stored = json.loads((folder / "student.report.json").read_text())
    assert stored["models"][1]["bytes"] == (folder / "student.onnx").stat().st_size
    assert stored["models"][1]["metrics"]["accuracy"]["value"] == pytest.approx(student.predictions(TEST).correct.mean())
    assert set(stored["models"][0]["milliseconds"]) == {"1", "32"}


def test_the_file_names_no_local_file(files):
    assert b"site-packages" not in (files[0] / "student.onnx").read_bytes()


def test_8_bits_are_calibrated_by_what_the_file_itself_predicts(files, tmp_path):
    student = files[1]
    report = student.export_onnx(tmp_path / "student.onnx", int8=True, dev=DEV, test=TEST, max_drop=50)
    model = onnx.load(tmp_path / "student.onnx")
    (entry,) = [entry for entry in model.metadata_props if entry.key == METADATA]
    description = json.loads(entry.value)
    assert description["quantised"]
    temperature = onnx.numpy_helper.to_array(next(i for i in model.graph.initializer if i.name == "calibration_temperature"))
    assert temperature == pytest.approx(description["calibration"]["value"])
    loaded = load_onnx(tmp_path / "student.onnx")
    uncalibrated = replace(loaded.predictions(DEV), logits=loaded.predictions(DEV).logits * temperature)
    assert FITS["temperature"](uncalibrated).value == pytest.approx(float(temperature), rel=1e-3)
    assert len(loaded.dev) == len(DEV)
    assert report.reference.name == "float"
    assert report.exported.name == "int8"


def test_a_certain_loss_is_an_error_that_keeps_the_float_file(files, tmp_path, monkeypatch):
    """A quantiser that zeroes every weight loses for certain."""
    student = files[1]
    monkeypatch.setattr("distilcal.export.onnx_file.quantise", zeroed)
    (tmp_path / "student.onnx").write_bytes(b"earlier")
    with pytest.raises(InputError, match=r"points of accuracy.*more than the 0\.5.*student\.float\.onnx"):
        student.export_onnx(tmp_path / "student.onnx", int8=True, dev=DEV, test=TEST)
    assert (tmp_path / "student.onnx").read_bytes() == b"earlier"
    kept = load_onnx(tmp_path / "student.float.onnx")
    assert np.abs(kept.predict_proba(TEST) - student.predict_proba(TEST)).max() < 1e-5


def test_an_uncertain_loss_is_a_warning(files, tmp_path, monkeypatch):
    monkeypatch.setattr("distilcal.export.onnx_file.quantise", zeroed)
    few = TEST.select(np.arange(6))
    student = files[1]
    assert (student.predictions(few).predicted == few.labels).any()
    with pytest.warns(AccuracyWarning, match="8 bits cost"):
        student.export_onnx(tmp_path / "student.onnx", int8=True, dev=DEV, test=few, max_drop=0.01)
    assert (tmp_path / "student.onnx").exists()


def zeroed(model, pixels=None):
    from copy import deepcopy

    changed = deepcopy(model)
    for tensor in changed.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros_like(values), tensor.name))
    return changed


def test_8_bits_need_dev_data(files, tmp_path):
    with pytest.raises(InputError, match="no dev data"):
        files[1].export_onnx(tmp_path / "student.onnx", int8=True)
    unlabelled = Dataset(Vectors(np.zeros((3, 6), np.float32)), name="rows")
    with pytest.raises(InputError, match="'rows' has no labels"):
        files[1].export_onnx(tmp_path / "student.onnx", int8=True, dev=unlabelled)
    with pytest.raises(InputError, match="class"):
        files[1].export_onnx(tmp_path / "student.onnx", test=replace(TEST, classes=("x", "y", "z")))
    assert not list(tmp_path.iterdir())


def test_where_it_cannot_be_written_is_told_before_work_starts(files, tmp_path, monkeypatch):
    student = files[1]
    with pytest.raises(InputError, match="not an .onnx"):
        student.export_onnx(tmp_path / "student.bin")
    with pytest.raises(InputError, match="does not exist"):
        student.export_onnx(tmp_path / "nowhere" / "student.onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'distilcal\[export\]'"):
        student.export_onnx(tmp_path / "student.onnx")


def test_without_data_there_is_a_file_and_a_note(classifier, tmp_path):
    report = as_student(classifier).export_onnx(tmp_path / "student.onnx")
    assert "no test data" in str(report)
    loaded = load_onnx(tmp_path / "student.onnx")
    assert loaded.dev is None
    np.testing.assert_allclose(loaded.predict_proba(TEST), as_student(classifier).predict_proba(TEST), atol=1e-6)


def test_a_network_that_is_too_large_is_refused(tmp_path, monkeypatch, files):
    monkeypatch.setattr("distilcal.export.graph.LARGEST_FILE", 100)
    with pytest.raises(InputError, match="do not fit into one .onnx"):
        files[1].export_onnx(tmp_path / "student.onnx")


def test_a_file_that_differs_from_torch_is_not_written(files, tmp_path, monkeypatch):
    monkeypatch.setattr("distilcal.export.onnx_file.trace_logits", lambda *_, **__: zeroed(onnx.load(files[0] / "logits.onnx")))
    from distilcal.export.graph import trace_logits

    onnx.save(trace_logits(files[1].classifier), files[0] / "logits.onnx")
    with pytest.raises(InputError, match="other probabilities than torch"):
        files[1].export_onnx(tmp_path / "student.onnx", test=TEST)
    assert not list(tmp_path.iterdir())


def test_images_are_normalised_in_the_graph(tmp_path):
    from small import pictures

    data = pictures(40)
    student = as_student(build_classifier(ModelSettings(name="resnet8", mean=(0.4, 0.5, 0.6)), data))
    student.export_onnx(tmp_path / "student.onnx", test=data)
    session = onnxruntime.InferenceSession(tmp_path / "student.onnx")
    (probs,) = session.run(None, {"pixels": data.inputs.pixels})
    assert np.abs(probs - student.predict_proba(data)).max() < 1e-5
    with pytest.raises(InputError, match="images of 32 × 32 × 3, got 16 × 16 × 3"):
        load_onnx(tmp_path / "student.onnx").predict(np.zeros((1, 16, 16, 3), np.uint8))
    with pytest.raises(InputError, match="size of the images.*as dev or test"):
        student.export_onnx(tmp_path / "other.onnx")


@pytest.mark.slow
def test_convolutions_are_in_8_bits_and_calibrated_again(tmp_path):
    from small import pictures

    data = pictures(60)
    model = build_classifier(ModelSettings(name="resnet8x4"), data)
    student = as_student(model, calibrator=FITS["temperature"](predict(model, data)))
    report = student.export_onnx(tmp_path / "student.onnx", int8=True, dev=data, test=data, max_drop=100)
    assert report.exported.size < 0.3 * report.reference.size
    assert report.comparison["nll"].difference == pytest.approx(0, abs=0.02)


def test_8_bits_of_a_student_with_folded_calibration_are_calibrated_again(classifier, tmp_path):
    student = as_student(classifier, folded={"kind": "temperature", "value": 2.0, "folded": True})
    student.export_onnx(tmp_path / "student.onnx", int8=True, dev=DEV)
    description = load_onnx(tmp_path / "student.onnx").backend.description
    assert description.calibration["fit"]["rows"] == len(DEV)
    assert description.dev["rows"] == len(DEV)


def test_a_tokenizer_that_needs_transformers_is_refused(tmp_path, monkeypatch):
    from tiny import save_model

    from distilcal.export import load_student

    student = load_student(save_model(tmp_path / "model", labels=("neg", "pos"), num_hidden_layers=1))
    tokenizer = student.classifier.inputs.tokenizer
    with monkeypatch.context() as patch:
        patch.setattr(type(tokenizer), "__call__", lambda self, *texts, **_: {"input_ids": [[0]]})
        with pytest.raises(InputError, match="other tokens without transformers"):
            student.export_onnx(tmp_path / "student.onnx")
    monkeypatch.setattr(type(tokenizer), "backend_tokenizer", None)
    with pytest.raises(InputError, match="needs transformers at run time"):
        student.export_onnx(tmp_path / "student.onnx")
    assert not (tmp_path / "student.onnx").exists()


def test_a_network_that_cannot_be_traced_is_refused(files, tmp_path, monkeypatch):
    import torch

    def fails(*_, **__):
        raise torch.onnx.OnnxExporterError("no such\noperator")

    monkeypatch.setattr(torch.onnx, "export", fails)
    with pytest.raises(InputError, match="cannot export this network: no such operator"):
        files[1].export_onnx(tmp_path / "student.onnx")


def test_a_full_disk_keeps_an_earlier_export_with_its_tokenizer(tmp_path, monkeypatch):
    """Another student with another tokenizer under the same name: the graph does not fit any more."""
    from tiny import save_model
    from tokenizers.normalizers import Lowercase

    from distilcal.export import load_student

    student = load_student(save_model(tmp_path / "model", labels=("neg", "pos"), num_hidden_layers=1))
    target = tmp_path / "exported" / "student.onnx"
    target.parent.mkdir()
    student.export_onnx(target)
    before = {path.name: path.read_bytes() for path in target.parent.iterdir()}
    student.classifier.inputs.tokenizer.backend_tokenizer.normalizer = Lowercase()

    @contextmanager
    def full(path):
        with atomic_write(path) as file:
            if path == target:
                raise OSError(28, "No space left on device")
            yield file

    monkeypatch.setattr("distilcal.export.onnx_file.atomic_write", full)
    with pytest.raises(OSError, match="No space left"):
        student.export_onnx(target)
    assert {path.name: path.read_bytes() for path in target.parent.iterdir()} == before
