"""Outputs of a network: computed once, found by content."""

import numpy as np
import pytest
from tiny import reviews, save_model

from distilcal.config.schema import ModelSettings
from distilcal.models import build_classifier
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
