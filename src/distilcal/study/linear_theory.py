"""Linear binary students, for which distillation can be solved: the theory behind calibration transfer (Hebbalaguppe et al.).

The student w minimises ``(1 - α)·BCE(y, σ(Xw)) + α·T²·BCE(σ(X w_t/T), σ(Xw/T))``, sums over rows, where BCE takes
probabilities as targets. With σ(z) ≈ ½ + z/4 the optimum has a closed form in which T cancels (Theorem 1); `exact_student`
finds the optimum itself. At T = 1 and with a constant feature, a teacher whose probabilities sum to the number of positives
hands that on (Theorem 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilcal.errors import InputError

FloatArray = NDArray[np.float64]


def theorem1_student(inputs: ArrayLike, labels: ArrayLike, teacher: ArrayLike, *, alpha: float) -> FloatArray:
    """Return ``α·w_t + 4(1 - α)·X⁺(y - ½)``: what a linear student learns, to first order in its logits.

    Parameters
    ----------
    inputs : array of shape (N, d)
        With fewer rows than columns, X⁺ is the pseudo-inverse and the first term holds where the teacher lies in the span of
        the rows.
    labels : array of shape (N,)
        0 or 1, or probabilities of class 1.
    teacher : array of shape (d,)
        Weights of the teacher, w_t.
    alpha : float
        Weight of the teacher in the loss, from 0 to 1.

    Returns
    -------
    array of shape (d,)
        Weights of the student.

    Raises
    ------
    InputError
        If the shapes do not fit.

    Examples
    --------
    >>> theorem1_student([[1.0, 0.0], [0.0, 1.0]], [1, 0], [2.0, -4.0], alpha=0.5)
    array([ 2., -3.])
    """
    x, y, w = _checked(inputs, labels, teacher)
    solution, *_ = np.linalg.lstsq(x, y - 0.5, rcond=None)
    return alpha * w + 4 * (1 - alpha) * solution


def linear_kd_losses(
    student: ArrayLike, inputs: ArrayLike, labels: ArrayLike, teacher: ArrayLike, *, alpha: float, temperature: float = 1.0
) -> tuple[float, float, float]:
    """Return the cross-entropy with the labels, T² times that with the teacher, and their weighted sum.

    Parameters
    ----------
    student : array of shape (d,)
        Weights of the student.
    inputs : array of shape (N, d)
        One row for each example.
    labels : array of shape (N,)
        0 or 1, or probabilities of class 1.
    teacher : array of shape (d,)
        Weights of the teacher.
    alpha : float
        Weight of the teacher in the sum, from 0 to 1.
    temperature : float
        T, by which the logits of both are divided in the second loss; above 0.

    Returns
    -------
    hard_loss, soft_loss, total : float
        In nats, summed over rows; ``total = (1 - alpha)·hard_loss + alpha·soft_loss``.

    Raises
    ------
    InputError
        If the shapes of inputs, labels and teacher do not fit.

    Examples
    --------
    >>> losses = linear_kd_losses([0.0], [[1.0]], [1], [0.0], alpha=0.5)
    >>> [round(loss, 4) for loss in losses]
    [0.6931, 0.6931, 0.6931]
    """
    x, y, w = _checked(inputs, labels, teacher)
    logits = x @ np.asarray(student, np.float64)
    soft = _sigmoid(x @ w / temperature)
    hard_loss = _cross_entropy(y, logits)
    soft_loss = temperature**2 * _cross_entropy(soft, logits / temperature)
    return hard_loss, soft_loss, (1 - alpha) * hard_loss + alpha * soft_loss


def exact_student(
    inputs: ArrayLike,
    labels: ArrayLike,
    teacher: ArrayLike,
    *,
    alpha: float,
    temperature: float = 1.0,
    start: ArrayLike | None = None,
) -> FloatArray:
    """Return the student that minimises the loss, by Newton's method with halved steps; the objective is convex.

    Parameters
    ----------
    inputs : array of shape (N, d)
        One row for each example.
    labels : array of shape (N,)
        0 or 1, or probabilities of class 1.
    teacher : array of shape (d,)
        Weights of the teacher.
    alpha : float
        Weight of the teacher in the loss, from 0 to 1.
    temperature : float
        Temperature of the distillation, above 0.
    start : array of shape (d,), optional
        Where descent starts, by default at `theorem1_student`. It matters with fewer rows than columns: then many students
        have the same loss, and the part of the start that is orthogonal to all rows stays.

    Returns
    -------
    array of shape (d,)
        Weights of the student, after at most 200 steps.

    Raises
    ------
    InputError
        If the shapes do not fit.

    Examples
    --------
    >>> exact_student([[1.0], [-1.0]], [1, 0], [2.0], alpha=1.0, temperature=4.0).round(6)
    array([2.])
    """
    x, y, w = _checked(inputs, labels, teacher)
    soft = _sigmoid(x @ w / temperature)
    student = theorem1_student(x, y, w, alpha=alpha) if start is None else np.asarray(start, np.float64)

    def total(weights: FloatArray) -> float:
        return linear_kd_losses(weights, x, y, w, alpha=alpha, temperature=temperature)[2]

    for _ in range(200):
        p, q = _sigmoid(x @ student), _sigmoid(x @ student / temperature)
        gradient = x.T @ ((1 - alpha) * (p - y) + alpha * temperature * (q - soft))
        if np.abs(gradient).max() < 1e-10:
            break
        curvature = (x.T * ((1 - alpha) * p * (1 - p) + alpha * q * (1 - q))) @ x
        step, *_ = np.linalg.lstsq(curvature, gradient, rcond=None)
        size, before = 1.0, total(student)
        while total(student - size * step) > before and size > 1e-10:
            size /= 2
        if size <= 1e-10:  # what is left of the gradient is rounding
            break
        student = student - size * step
    return student


def _checked(inputs: ArrayLike, labels: ArrayLike, teacher: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    x, y, w = (np.asarray(a, np.float64) for a in (inputs, labels, teacher))
    if x.ndim != 2 or y.shape != x.shape[:1] or w.shape != x.shape[1:]:
        raise InputError(
            f"inputs {x.shape}, labels {y.shape} and teacher {w.shape} do not fit", remedy="give (N, d), (N,) and (d,)"
        )
    return x, y, w


def _sigmoid(z: FloatArray) -> FloatArray:
    from scipy.special import expit

    return np.asarray(expit(z))


def _cross_entropy(targets: FloatArray, logits: FloatArray) -> float:
    return float((np.logaddexp(0.0, logits) - targets * logits).sum())
