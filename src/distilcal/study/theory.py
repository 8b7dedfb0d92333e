"""The theorems behind calibration transfer (P004), tested on linear models whose optimum can be computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.study.schema import TheoremSettings

SIZES = (0.1, 0.5, 2.0)  # typical logits of the teacher: the closed form is exact to first order in them
BIASES = (0.0, 0.5, 1.0)  # by how much a teacher's logits are off: 0 is one that is calibrated in the large


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
    ['bias of the teacher', 'α', "teacher's gap", "student's gap at T = 1"]
    """
    table = _closed_form(settings) if settings.name == "theorem1" else _calibration_handed_on(settings)
    return {**table, "title": settings.title or table["title"]}


def _closed_form(settings: TheoremSettings) -> dict[str, Any]:
    """Theorem 1: how far the student's weights are from α·w_t + 4(1 - α)·X⁺(y - ½), relative to their length."""
    from distilcal.study.linear_theory import exact_student, theorem1_student

    rows = []
    worst = dict.fromkeys(SIZES, 0.0)
    for size in SIZES:
        inputs, labels, teacher = _problem(settings, size)
        for alpha in settings.alphas:
            formula = theorem1_student(inputs, labels, teacher, alpha=alpha)
            errors = []
            for temperature in settings.temperatures:
                exact = exact_student(inputs, labels, teacher, alpha=alpha, temperature=temperature)
                errors.append(float(np.linalg.norm(exact - formula) / np.linalg.norm(exact)))
            worst[size] = max(worst[size], *errors)
            rows.append([size, alpha, *errors])
    columns = ["teacher's logits (std)", "α", *(f"error at T = {t:g}" for t in settings.temperatures)]
    text = (
        "A linear student is α·w_t + 4(1 - α)·X⁺(y - ½) to first order in its logits, whatever the temperature. The largest "
        + "relative error of the formula is "
        + ", ".join(f"{error:.3f} at logits of {size:g}" for size, error in worst.items())
        + "."
    )
    return {
        "name": "theorem1",
        "title": "Theorem 1: the linear student in closed form",
        "columns": columns,
        "rows": rows,
        "text": text,
    }


def _calibration_handed_on(settings: TheoremSettings) -> dict[str, Any]:
    """Theorem 2: mean probability minus share of positives, for teacher and student."""
    from distilcal.study.linear_theory import exact_student

    inputs, labels, _ = _problem(settings, 1.0)
    fitted = exact_student(inputs, labels, np.zeros(inputs.shape[1]), alpha=0.0)  # Σp = Σy at the optimum of cross-entropy
    rows = []
    for bias in BIASES:
        teacher = fitted.copy()
        teacher[0] += bias  # of the constant column
        for alpha in settings.alphas:
            gaps = [_gap(inputs, labels, teacher)]
            for temperature in settings.temperatures:
                student = exact_student(inputs, labels, teacher, alpha=alpha, temperature=temperature)
                gaps.append(_gap(inputs, labels, student))
            rows.append([bias, alpha, *gaps])
    columns = ["bias of the teacher", "α", "teacher's gap", *(f"student's gap at T = {t:g}" for t in settings.temperatures)]
    calibrated = max(abs(gap) for row in rows if row[0] == 0 for gap in row[2:])
    biased = min(abs(gap) for row in rows if row[0] == BIASES[-1] and row[1] >= 0.5 for gap in row[3:])
    text = (
        "A teacher whose probabilities sum to the number of positives hands that on: no gap between mean probability and share "
        f"of positives above {calibrated:.4f}. A teacher that is off by {BIASES[-1]:g} in its logits leaves its student a gap "
        f"of {biased:.3f} or more at α ≥ 0.5."
    )
    return {
        "name": "theorem2",
        "title": "Theorem 2: calibration in the large is handed on",
        "columns": columns,
        "rows": rows,
        "text": text,
    }


def _problem(settings: TheoremSettings, size: float) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Inputs with a constant column, labels drawn from a linear model, and a teacher with logits of about this size."""
    rng = np.random.default_rng(0)
    inputs = np.concatenate([np.ones((settings.rows, 1)), rng.normal(size=(settings.rows, settings.columns - 1))], axis=1)
    teacher = rng.normal(size=settings.columns)
    teacher *= size / np.std(inputs @ teacher)
    truth = 1 / (1 + np.exp(-(inputs @ teacher)))
    return inputs, (rng.random(settings.rows) < truth).astype(np.float64), teacher


def _gap(inputs: NDArray[np.float64], labels: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    return float((1 / (1 + np.exp(-(inputs @ weights)))).mean() - labels.mean())
