"""The theory of P004 on linear models: closed form, exact optimum, and what is handed on."""

import numpy as np
import pytest
from golden_cases import cases
from scipy.optimize import minimize
from scipy.special import expit

from distilcal import InputError

pytest.importorskip("torch")  # distilcal.models holds networks too

from distilcal.study.linear_theory import exact_student, linear_kd_losses, theorem1_student

GOLDEN = cases("theory_linear_kd.json")


@pytest.mark.parametrize("case", GOLDEN.values(), ids=GOLDEN.keys())
def test_goldens(case):
    i, p, expected = case["inputs"], case["params"], case["expected"]
    x, y, w = np.array(i["X_d_by_N"]).T, np.array(i["labels"]), np.array(i["W_teacher"])
    found = theorem1_student(x, y, w, alpha=p["alpha"])
    np.testing.assert_allclose(found, expected["W_student_theorem1"], rtol=1e-8)
    losses = linear_kd_losses(found, x, y, w, alpha=p["alpha"], temperature=p["T"])
    wanted = [expected[f"L_{name}_at_theorem1"] for name in ("bce", "kd", "total")]
    np.testing.assert_allclose(losses, wanted, rtol=1e-8)
    exact = exact_student(x, y, w, alpha=p["alpha"], temperature=p["T"])
    np.testing.assert_allclose(exact, expected["W_student_exact_sigmoid_minimiser"], rtol=1e-6)


def problem(rows=400, columns=4, seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(rows), 0.4 * rng.normal(size=(rows, columns - 1))])
    truth = 0.5 * rng.normal(size=columns)
    return x, (rng.random(rows) < expit(x @ truth)).astype(float), truth


@pytest.mark.parametrize(("alpha", "temperature"), [(0.0, 1.0), (0.5, 1.0), (0.9, 4.0), (1.0, 20.0)])
def test_the_exact_student_is_where_descent_ends(alpha, temperature):
    x, y, w = problem()
    descent = minimize(lambda s: linear_kd_losses(s, x, y, w, alpha=alpha, temperature=temperature)[2], np.zeros(4))
    np.testing.assert_allclose(exact_student(x, y, w, alpha=alpha, temperature=temperature), descent.x, atol=2e-4)


def test_a_student_of_the_teacher_alone_is_the_teacher():
    x, y, w = problem()
    np.testing.assert_allclose(exact_student(x, y, w, alpha=1.0, temperature=3.0), w, atol=1e-9)
    np.testing.assert_allclose(theorem1_student(x, y, w, alpha=1.0), w)


def test_theorem_1_is_near_where_logits_are_small():
    x, y, w = problem(4000)
    for alpha in (0.3, 0.9):
        close, exact = theorem1_student(x, y, w, alpha=alpha), exact_student(x, y, w, alpha=alpha)
        assert np.abs(close - exact).max() < 0.1 * np.abs(exact).max()


def test_theorem_2_calibration_in_the_large_is_handed_on():
    x, y, _ = problem()
    calibrated = exact_student(x, y, np.zeros(4), alpha=0.0)  # a logistic regression with intercept: Σp = Σy
    assert expit(x @ calibrated).sum() == pytest.approx(y.sum())
    student = exact_student(x, y, calibrated, alpha=0.7)
    assert expit(x @ student).sum() == pytest.approx(y.sum())
    off = calibrated + np.array([1.0, 0, 0, 0])  # claims too much everywhere
    assert expit(x @ exact_student(x, y, off, alpha=0.7)).sum() > 1.05 * y.sum()


def test_fewer_rows_than_columns():
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(3, 6)), np.array([0, 1, 1.0]), rng.normal(size=6)
    found = theorem1_student(x, y, w, alpha=0.5)
    np.testing.assert_allclose(found, 0.5 * w + 2 * x.T @ np.linalg.solve(x @ x.T, y - 0.5))
    with pytest.raises(InputError, match="do not fit"):
        theorem1_student(x, y, w[:2], alpha=0.5)
