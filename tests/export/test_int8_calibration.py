"""Calibrators of files in 8 bits are fitted to the logits to which the file applies them."""

import logging
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from small import SMALL, vectors

from distilcal.calibrate import FITS, cross_fitted
from distilcal.config.schema import TrainSettings
from distilcal.export import as_student, load_student
from distilcal.inference.onnx import load_onnx
from distilcal.models import build_classifier
from distilcal.predictions import Predictions
from distilcal.training import fit, predict
from distilcal.views import build_term

TRAIN, DEV, TEST = vectors(300), vectors(200, seed=1), vectors(250, seed=2)


@pytest.fixture(scope="module")
def classifier():
    model = build_classifier(SMALL, TRAIN, seed=0)
    fit(model, TRAIN, DEV, [build_term("cross_entropy")], TrainSettings(epochs=8, lr=0.02))
    with torch.no_grad():
        model.network.output.bias += 7  # the same probabilities, but logits far from log-probabilities
    return model


def calibrated(classifier, method):
    dev = predict(classifier, DEV)
    return as_student(classifier, calibrator=FITS[method](dev), dev=dev)


def logits_of_file(path, data):
    """Predictions from logits inside the graph, one vector at a time as `load_onnx` has them, which decides the ranges."""
    model = onnx.load(path)
    if "logits" not in [output.name for output in model.graph.output]:
        model.graph.output.append(onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    logits = np.concatenate([session.run(["logits"], {"vectors": row[None]})[0] for row in data.inputs.values])
    return Predictions.from_logits(logits, data.labels, ids=data.ids, classes=data.classes, name="dev")


@pytest.mark.parametrize("method", FITS)
def test_the_calibrator_is_fitted_to_the_logits_that_it_is_applied_to(classifier, tmp_path, method):
    student, path = calibrated(classifier, method), tmp_path / "student.onnx"
    student.export_onnx(path, int8=True, dev=DEV, test=TEST, max_drop=100)
    loaded = load_onnx(path)
    assert abs(loaded.predictions(DEV).row_nll.mean() - student.predictions(DEV).row_nll.mean()) < 0.02
    dev = logits_of_file(path, DEV)
    np.testing.assert_allclose(loaded.predict_proba(DEV), FITS[method](dev)(dev).probs, atol=1e-4)
    expected = cross_fitted(dev, FITS[method], seed=0)
    np.testing.assert_allclose(loaded.dev.confidence, expected.confidence, atol=1e-4)
    assert (loaded.dev.correct == expected.correct).all()


def test_the_answer_to_a_vector_does_not_depend_on_those_beside_it(classifier, tmp_path):
    calibrated(classifier, "temperature").export_onnx(tmp_path / "student.onnx", int8=True, dev=DEV, test=TEST, max_drop=100)
    student, rows = load_onnx(tmp_path / "student.onnx"), TEST.inputs.values[:20]
    alone = np.concatenate([student.predict_proba(row[None]) for row in rows])
    beside_a_large_one = student.predict_proba(np.concatenate([rows, np.full_like(rows[:1], 1e6)]))[:-1]
    np.testing.assert_array_equal(beside_a_large_one, alone)


@pytest.mark.parametrize("method", ["vector", "matrix"])
def test_folded_calibrators_are_fitted_again_in_the_same_way(classifier, tmp_path, method):
    student, path = calibrated(classifier, method), tmp_path / "student.onnx"
    student.save_pretrained(tmp_path / "saved")
    folded = load_student(tmp_path / "saved")
    with torch.no_grad():
        folded.classifier.network.output.bias -= 5
    folded.export_onnx(path, int8=True, dev=DEV, test=TEST, max_drop=100)
    loaded = load_onnx(path)
    assert loaded.calibration == method
    assert abs(loaded.predictions(DEV).row_nll.mean() - student.predictions(DEV).row_nll.mean()) < 0.02
    dev = logits_of_file(path, DEV)
    np.testing.assert_allclose(loaded.dev.confidence, cross_fitted(dev, FITS[method], seed=0).confidence, atol=1e-4)


def test_a_fit_that_did_not_converge_is_noted_and_logged(classifier, tmp_path, caplog):
    """Labels that are the network's own answers have no best temperature."""
    student = calibrated(classifier, "temperature")
    easy = student.predictions(DEV)
    sure = easy.correct & (easy.confidence > 0.9)
    dev = replace(DEV.select(np.flatnonzero(sure)), name="dev")
    with caplog.at_level(logging.WARNING, logger="distilcal"):
        report = student.export_onnx(tmp_path / "student.onnx", int8=True, dev=dev, test=TEST, max_drop=100)
    message = load_onnx(tmp_path / "student.onnx").backend.description.calibration["fit"]["message"]
    assert message
    assert message in str(report)
    assert message in caplog.text
