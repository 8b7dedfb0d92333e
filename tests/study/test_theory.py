"""The theorems on linear models."""

from __future__ import annotations

import re

import pytest

from distilcal.study.schema import TheoremSettings
from distilcal.study.theory import theorem


def test_theorem_1_is_near_for_small_logits_and_for_teachers_in_the_span():
    rows = theorem(TheoremSettings(name="theorem1"))["rows"]
    errors = {tuple(row[:4]): max(row[4:]) for row in rows}
    many = {key: error for key, error in errors.items() if key[0] == "400 × 5"}
    assert max(error for key, error in many.items() if key[2] == 0.1) < 0.05
    assert max(error for key, error in many.items() if key[2] == 2.0) > 0.05
    for (shape, kind, _, alpha), error in errors.items():
        if alpha == 1.0:  # the student is its teacher, as far as descent can go
            assert (error < 1e-6) == (shape == "400 × 5" or kind == "in the span")
    assert {key[0] for key in errors} == {"400 × 5", "20 × 50"}


def test_theorem_2_is_exact_at_temperature_1_for_every_teacher_and_not_beyond():
    rows = theorem(TheoremSettings(name="theorem2", temperatures=(1.0, 20.0)))["rows"]
    for name, alpha, teacher, student, hot in rows:
        assert student == pytest.approx(alpha * teacher, abs=1e-6)
        assert (abs(teacher) > 1e-8) == ("off by" in name)
        if name == "optimum of cross-entropy" or alpha == 1.0:
            assert hot == pytest.approx(teacher, abs=1e-6)
    assert max(abs(row[-1]) for row in rows if row[0] == "any direction, logits × 4") > 0.01


def test_theorem_2_needs_a_constant_feature():
    text = theorem(TheoremSettings(name="theorem2"))["text"]
    [gap] = re.findall(r"without it, students of the optimum have a gap of up to ([\d.]+) there", text)
    assert float(gap) > 0.01
