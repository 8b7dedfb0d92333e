"""Outputs of a network: computed once, found by content."""

import numpy as np
import pytest
from tiny import reviews, save_model

from distilcal.config.schema import ModelSettings, StageSettings
from distilcal.models import build_classifier
from distilcal.models.classifier import Classifier, save_classifier
from distilcal.pipeline.stage import Stage
from distilcal.training import compute_outputs


def test_teacher_outputs_are_computed_once_and_found_by_content(tmp_path, monkeypatch):
    save_model(tmp_path / "m", labels=("neg", "pos"))
    data = reviews(40)
    made = build_classifier(ModelSettings(name=str(tmp_path / "m")), data)
    first = compute_outputs(made, data, ("logits", "features"), store=tmp_path / "store")
    monkeypatch.setattr(type(made.network), "forward", lambda *_: pytest.fail("the teacher ran again"))
    order = np.random.default_rng(0).permutation(40)[:23]
    again = compute_outputs(made, data.select(order), ("logits", "features"), store=tmp_path / "store")
    for name in ("logits", "features"):
        np.testing.assert_array_equal(again[name], first[name][order])


def test_a_finished_stage_hashes_its_weights_once(tmp_path, monkeypatch):
    save_model(tmp_path / "m", labels=("neg", "pos"))
    data = reviews(12)
    model = ModelSettings(name=str(tmp_path / "m"))
    made = build_classifier(model, data)
    save_classifier(made, tmp_path / "stage" / "model")
    stage = Stage("m", "key", StageSettings(model=model), tmp_path / "stage", tmp_path / "store", data.classes)
    hashed = []
    fingerprint = Classifier.fingerprint.fget
    monkeypatch.setattr(Classifier, "fingerprint", property(lambda self: hashed.append(1) or fingerprint(self)))
    parts = [stage.outputs(data.select(np.arange(start, start + 4)))["logits"] for start in (0, 4, 8)]
    assert len(hashed) == 1
    # What it stored is found by anybody who has the classifier.
    monkeypatch.setattr(type(made.network), "forward", lambda *_: pytest.fail("the model ran again"))
    np.testing.assert_array_equal(compute_outputs(made, data, store=tmp_path / "store")["logits"], np.concatenate(parts))
