"""The theorems behind calibration transfer (Hebbalaguppe et al. 2024), on linear models whose optimum is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.study.schema import TheoremSettings

SIZES = (0.1, 0.5, 2.0)  # typical logits of the teacher: the closed form is exact to first order in them
FEW_ROWS = (20, 50)  # examples and features, for the case of Theorem 1 with fewer examples than features
BIASES = (0.5, 1.0)  # by how much the logits of teachers that are not calibrated in the large are off


def theorem(settings: TheoremSettings) -> dict[str, Any]:
    """Compare what a theorem states with what the exact student of a linear teacher does.

    Parameters
    ----------
    settings : TheoremSettings
        Which theorem, and the sizes, shares and temperatures it is tested with.

    Returns
    -------
    dict
        ``name``, ``title``, ``columns``, ``rows`` and ``text`` of a table.

    Examples
    --------
    >>> theorem(TheoremSettings(name="theorem2", alphas=[1.0], temperatures=[1.0]))["columns"]
    ['teacher', 'α', "teacher's gap", "student's gap at T = 1"]
    """
    table = _closed_form(settings) if settings.name == "theorem1" else _calibration_handed_on(settings)
    return {**table, "title": settings.title or table["title"]}


def _closed_form(settings: TheoremSettings) -> dict[str, Any]:
    """Theorem 1: how far the student's weights are from α·w_t + 4(1 - α)·X⁺(y - ½), relative to their length."""
    rows: list[list[Any]] = []
    for size in SIZES:
        inputs, labels, teacher = _problem(settings.rows, settings.columns, size)
        rows += _formula_errors(settings, "any", size, inputs, labels, teacher)
    for size in SIZES:
        inputs, labels, teacher = _problem(*FEW_ROWS, size)
        projected = np.linalg.pinv(inputs) @ (inputs @ teacher)  # same logits, without what is orthogonal to all rows
        rows += _formula_errors(settings, "in the span", size, inputs, labels, projected)
        rows += _formula_errors(settings, "any", size, inputs, labels, teacher)
    many, few = (f"{n} × {d}" for n, d in ((settings.rows, settings.columns), FEW_ROWS))
    worst = {size: max(error for row in rows if row[:1] == [many] and row[2] == size for error in row[4:]) for size in SIZES}
    text = (
        "A linear student is α·w_t + 4(1 - α)·X⁺(y - ½) to first order in its logits, whatever the temperature. With more "
        + "examples than features, the largest relative error of the formula is "
        + ", ".join(f"{error:.3f} at logits of {size:g}" for size, error in worst.items())
        + f". With fewer ({few}), gradient descent from 0 cannot leave the span of the examples: the first term holds for a "
        + "teacher in that span, and the labels alone ask for logits of ±2(1 - α), for which the first order is a poor "
        + "guide. At α = 1 the student of a teacher in the span is the teacher."
    )
    return {
        "name": "theorem1",
        "title": "Theorem 1: the linear student in closed form",
        "columns": [
            "examples × features", "teacher", "teacher's logits (std)", "α",
            *(f"error at T = {t:g}" for t in settings.temperatures),
        ],
        "rows": rows,
        "text": text,
    }  # fmt: skip


def _formula_errors(
    settings: TheoremSettings,
    kind: str,
    size: float,
    inputs: NDArray[np.float64],
    labels: NDArray[np.float64],
    teacher: NDArray[np.float64],
) -> list[list[Any]]:
    """A row for each α: the distance of the formula from where descent from 0 ends, at every temperature."""
    from distilcal.study.linear_theory import exact_student, theorem1_student

    start = np.zeros(inputs.shape[1])
    rows: list[list[Any]] = []
    for alpha in settings.alphas:
        formula = theorem1_student(inputs, labels, teacher, alpha=alpha)
        errors = []
        for temperature in settings.temperatures:
            exact = exact_student(inputs, labels, teacher, alpha=alpha, temperature=temperature, start=start)
            errors.append(float(np.linalg.norm(exact - formula) / np.linalg.norm(exact)))
        rows.append([f"{inputs.shape[0]} × {inputs.shape[1]}", kind, size, alpha, *errors])
    return rows


def _calibration_handed_on(settings: TheoremSettings) -> dict[str, Any]:
    """Theorem 2: mean probability minus share of positives, for teachers that are calibrated in the large and for others."""
    from distilcal.study.linear_theory import exact_student

    inputs, labels, _ = _problem(settings.rows, settings.columns, 1.0)
    optimum = exact_student(inputs, labels, np.zeros(inputs.shape[1]), alpha=0.0)  # Σp = Σy where cross-entropy is lowest
    other: NDArray[np.float64] = np.asarray(np.random.default_rng(1).normal(size=inputs.shape[1]))
    calibrated = {
        "optimum of cross-entropy": optimum,
        "optimum, logits × 4": _balanced(inputs, labels, 4 * optimum),
        "any direction": _balanced(inputs, labels, other),
        "any direction, logits × 4": _balanced(inputs, labels, 4 * other),
    }
    off = {f"optimum, off by {bias:g}": optimum + bias * np.eye(len(optimum))[0] for bias in BIASES}  # of the constant column
    rows: list[list[Any]] = []
    for name, teacher in {**calibrated, **off}.items():
        for alpha in settings.alphas:
            gaps = [_gap(inputs, labels, teacher)]
            for temperature in settings.temperatures:
                student = exact_student(inputs, labels, teacher, alpha=alpha, temperature=temperature)
                gaps.append(_gap(inputs, labels, student))
            rows.append([name, alpha, *gaps])
    columns = ["teacher", "α", "teacher's gap", *(f"student's gap at T = {t:g}" for t in settings.temperatures)]
    largest = {
        temperature: max(abs(row[3 + i]) for row in rows if row[0] in calibrated)
        for i, temperature in enumerate(settings.temperatures)
    }
    left = min((abs(gap) for row in rows if row[0] == list(off)[-1] and row[1] >= 0.5 for gap in row[3:]), default=0.0)
    without = _largest_gap_without_constant(inputs, labels, optimum, settings.alphas)
    text = (
        "Teachers whose probabilities sum to the number of positives, whether they are the optimum or not: the largest gap "
        + "between their students' mean probability and the share of positives is "
        + ", ".join(f"{gap:.4f} at T = {temperature:g}" for temperature, gap in largest.items())
        + ". At T = 1 that sum is handed on exactly, since one feature is constant (a bias, which the paper's equation 1 does "
        + f"not write): without it, students of the optimum have a gap of up to {without:.4f} there. At other temperatures the "
        + f"theorem holds for the optimum and at α = 1, not for every such teacher. A teacher that is off by {BIASES[-1]:g} in "
        + f"its logits leaves its student a gap of {left:.3f} or more at α ≥ 0.5."
    )
    return {
        "name": "theorem2",
        "title": "Theorem 2: calibration in the large is handed on",
        "columns": columns,
        "rows": rows,
        "text": text,
    }


def _largest_gap_without_constant(
    inputs: NDArray[np.float64], labels: NDArray[np.float64], teacher: NDArray[np.float64], alphas: Sequence[float]
) -> float:
    """The largest gap at T = 1 of students that lack the first feature, which is constant; their teacher has it."""
    from scipy.special import expit

    from distilcal.study.linear_theory import exact_student

    rest = inputs[:, 1:]
    gaps = []
    for alpha in alphas:
        targets = (1 - alpha) * labels + alpha * expit(inputs @ teacher)  # at T = 1 both terms are one cross-entropy
        gaps.append(abs(_gap(rest, labels, exact_student(rest, targets, np.zeros(rest.shape[1]), alpha=0.0))))
    return max(gaps)


def _balanced(inputs: NDArray[np.float64], labels: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """These weights with the constant at which the probabilities sum to the number of positives."""
    from scipy.optimize import brentq

    constant = np.eye(len(weights))[0]
    shift = brentq(lambda value: _gap(inputs, labels, weights + value * constant), -100, 100, xtol=1e-13)
    return np.asarray(weights + shift * constant)


def _problem(rows: int, columns: int, size: float) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Inputs with a constant column, labels drawn from a linear model, and a teacher with logits of about this size."""
    rng = np.random.default_rng(0)
    inputs = np.concatenate([np.ones((rows, 1)), rng.normal(size=(rows, columns - 1))], axis=1)
    teacher = rng.normal(size=columns)
    teacher *= size / np.std(inputs @ teacher)
    truth = 1 / (1 + np.exp(-(inputs @ teacher)))
    return inputs, (rng.random(rows) < truth).astype(np.float64), teacher


def _gap(inputs: NDArray[np.float64], labels: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    from scipy.special import expit

    return float(expit(inputs @ weights).mean() - labels.mean())
