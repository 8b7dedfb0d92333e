"""The theorems on linear models."""

from __future__ import annotations

import numpy as np
import pytest

from distilcal.study.schema import TheoremSettings
from distilcal.study.theory import theorem


def test_theorems_say_what_the_linear_models_do():
    first = theorem(TheoremSettings(name="theorem1"))
    errors = np.array([row[2:] for row in first["rows"]], dtype=float)
    sizes = np.array([row[0] for row in first["rows"]])
    assert errors[sizes == 0.1].max() < 0.05 < errors[sizes == 2.0].max()
    assert errors[[row[1] == 1.0 for row in first["rows"]]].max() < 1e-6  # α = 1: the student is its teacher
    second = theorem(TheoremSettings(name="theorem2", temperatures=(1.0,)))
    for bias, alpha, teacher, student in second["rows"]:
        assert student == pytest.approx(alpha * teacher, abs=1e-6)  # exact at T = 1
        assert (abs(teacher) < 1e-8) == (bias == 0)
