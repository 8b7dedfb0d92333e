"""Every kind of network gives the same probabilities from its ONNX file as from torch, whatever the lengths of texts."""

import numpy as np
import pytest
from small import pictures
from tiny import reviews, save_model

from distilcal.calibrate import FitReport, Temperature
from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, choices, texts
from distilcal.export import as_student
from distilcal.export.graph import is_apart
from distilcal.inference.onnx import load_onnx
from distilcal.models import build_classifier

pytestmark = pytest.mark.slow
ODD = ["-", "great", "film " * 100, "😀 naïve film", "[SEP] great [PAD]", "awful plot " * 9]
PAIRS = [(first, second) for first in ODD for second in reversed(ODD)]


def same_probabilities(classifier, examples, path):
    report = FitReport(rows=1, nll_before=1.0, nll_after=1.0, converged=True)
    student = as_student(classifier, calibrator=Temperature(value=0.5, classes=classifier.classes, fit=report))
    student.export_onnx(path, test=examples[0] if student.input_kind == "images" else None)
    loaded = load_onnx(path)
    for part in examples:
        assert np.abs(loaded.predict_proba(part) - student.predict_proba(part)).max() < 1e-5


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "mpnet"])
def test_text_models(tmp_path, kind):
    folder = save_model(tmp_path / "model", kind, labels=("neg", "pos"), num_hidden_layers=2, n_layers=2, initializer_range=0.3)
    settings = ModelSettings(name=str(folder), head="keep")
    classifier = build_classifier(settings, reviews(4))
    same_probabilities(classifier, [ODD, ["great"], reviews(70)], tmp_path / "student.onnx")
    pairs = Dataset(texts([first for first, _ in PAIRS], [second for _, second in PAIRS]), classes=("neg", "pos"))
    same_probabilities(build_classifier(settings, pairs), [PAIRS, PAIRS[1:2]], tmp_path / "pairs.onnx")


def test_multiple_choice(tmp_path):
    save_model(tmp_path / "encoder", head=False, num_hidden_layers=1, initializer_range=0.3)
    endings = [["great fun", "dull", "stale plot " * (i % 12)] for i in range(40)]
    data = Dataset(choices([f"film {i % 7 * 'a '}" for i in range(40)], endings), np.arange(40) % 3, ("0", "1", "2"))
    classifier = build_classifier(ModelSettings(name=str(tmp_path / "encoder"), head="new"), data)
    same_probabilities(classifier, [data], tmp_path / "student.onnx")


@pytest.mark.parametrize("pairs", ["together", "apart"])
@pytest.mark.parametrize("kind", ["texts", "pairs", "choices"])
def test_frozen_encoders(tmp_path, kind, pairs):
    save_model(tmp_path / "encoder", head=False, num_hidden_layers=1, initializer_range=0.3)
    made = {
        "texts": texts(ODD * 3),
        "pairs": texts([a for a, _ in PAIRS], [b for _, b in PAIRS]),
        "choices": choices(ODD * 3, [[text, "dull film"] for text in reversed(ODD * 3)]),
    }[kind]
    data = Dataset(made, np.arange(len(made)) % 2, ("0", "1"), ids=np.arange(len(made)).astype(str))
    settings = ModelSettings(name=str(tmp_path / "encoder"), frozen=True, hidden=(5,), pairs=pairs)
    classifier = build_classifier(settings, data)
    assert is_apart(classifier) == (pairs == "apart" and kind != "texts")
    same_probabilities(classifier, [data], tmp_path / "student.onnx")


@pytest.mark.parametrize("name", ["resnet8x4", "vgg8", "mobilenet_v2", "wrn_16_1"])
def test_image_networks(tmp_path, name):
    data = pictures(40)
    same_probabilities(build_classifier(ModelSettings(name=name), data), [data], tmp_path / "student.onnx")
