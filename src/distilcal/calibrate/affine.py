"""Affine maps of logits or log-probabilities: vector, matrix and Dirichlet scaling. All are convex problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from distilcal.calibrate.base import Calibrator, FitReport, check_fit, folds_of, log_softmax, mean_nll
from distilcal.errors import InputError
from distilcal.predictions import FloatArray, IntArray, Predictions

ODIR_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
Objective = Callable[[FloatArray], tuple[float, FloatArray]]  # value and gradient


@dataclass(frozen=True, kw_only=True)
class Vector(Calibrator):
    """``softmax(weight ⊙ z + bias)``."""

    kind: ClassVar[str] = "vector"
    weight: FloatArray  # (K,)
    bias: FloatArray  # (K,) sums to 0: only differences matter

    def _calibrated(self, predictions: Predictions) -> Predictions:
        return predictions.with_log_probs(log_softmax(_finite_logits(predictions) * self.weight + self.bias))


@dataclass(frozen=True, kw_only=True)
class Matrix(Calibrator):
    """``softmax(weight · z + bias)``."""

    kind: ClassVar[str] = "matrix"
    weight: FloatArray  # (K, K)
    bias: FloatArray  # (K,)

    def _calibrated(self, predictions: Predictions) -> Predictions:
        return predictions.with_log_probs(log_softmax(_finite_logits(predictions) @ self.weight.T + self.bias))


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Calibrator):
    """``softmax(weight · log p + bias)``, off-diagonal weights and bias kept small (ODIR)."""

    kind: ClassVar[str] = "dirichlet"
    weight: FloatArray  # (K, K)
    bias: FloatArray  # (K,)
    penalty: float  # λ on off-diagonal weights
    bias_penalty: float  # μ on the bias

    def _calibrated(self, predictions: Predictions) -> Predictions:
        return predictions.with_log_probs(log_softmax(_finite_log_probs(predictions) @ self.weight.T + self.bias))


def fit_vector(predictions: Predictions) -> Vector:
    """Per-class scale and bias of the logits that minimise NLL, from identity; Guo et al. 2017.

    It looks at the logits themselves, so it is for the same network's logits (or, fitted on probabilities, for their
    logarithms): a constant added to a row, which no softmax sees, does change it.
    """
    check_fit(predictions)
    z = _finite_logits(predictions)
    k = z.shape[1]

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        nll, residual = _nll_residual(z * x[:k] + x[k:], predictions.labels)
        return nll, np.concatenate([(residual * z).sum(axis=0), residual.sum(axis=0)])

    x, report = _minimise(objective, np.concatenate([np.ones(k), np.zeros(k)]), predictions)
    return Vector(classes=predictions.classes, weight=x[:k], bias=x[k:] - x[k:].mean(), fit=report)


def fit_matrix(predictions: Predictions) -> Matrix:
    """An affine map of the logits that minimises NLL, from identity, without penalty; Guo et al. 2017.

    It looks at the logits themselves, as `fit_vector` does, and has K² + K parameters: with few rows per class it overfits,
    and `fit_dirichlet` is the better choice.
    """
    check_fit(predictions)
    weight, bias, report = _fit_affine(_finite_logits(predictions), predictions, 0.0, 0.0)
    return Matrix(classes=predictions.classes, weight=weight, bias=bias, fit=report)


def fit_dirichlet(
    predictions: Predictions,
    *,
    penalty: float | None = None,
    bias_penalty: float | None = None,
    grid: Sequence[float] = ODIR_GRID,
    folds: int = 5,
    seed: int = 0,
) -> Dirichlet:
    """Dirichlet calibration with ODIR: ``NLL + λ Σ_{i≠j} W_ij² + μ Σ_j b_j²``; Kull et al. 2019.

    A penalty that is not given is chosen from ``grid`` by the NLL of cross-validation; where both are open, λ and μ are
    taken equal first and μ is then searched alone. A search goes from the strongest penalty to weaker ones, each fit
    starting from the last, and ends when two in a row have made it worse.
    """
    check_fit(predictions)
    if not grid or any(not value >= 0 for value in (*grid, penalty or 0.0, bias_penalty or 0.0)):
        raise InputError("a penalty is negative, or the grid is empty", remedy="give penalties of at least 0")
    log_probs = _finite_log_probs(predictions)
    message = ""
    if penalty is None or bias_penalty is None:
        held_out = _HeldOut(log_probs, predictions, folds, seed)
        if penalty is None:
            fixed = bias_penalty
            penalty = held_out.search(grid, lambda g: (g, g if fixed is None else fixed))
        if bias_penalty is None:
            chosen = penalty
            bias_penalty = held_out.search(grid, lambda g: (chosen, g))
        score = held_out.nll((penalty, bias_penalty))
        message = f"λ = {penalty:g}, μ = {bias_penalty:g} by {len(held_out.held)}-fold NLL {score:.4f}"
    weight, bias, report = _fit_affine(log_probs, predictions, penalty, bias_penalty)
    report = replace(report, message="; ".join(m for m in (message, report.message) if m))
    return Dirichlet(
        classes=predictions.classes, weight=weight, bias=bias, penalty=penalty, bias_penalty=bias_penalty, fit=report
    )


def odir_objective(
    weight: FloatArray, bias: FloatArray, inputs: FloatArray, labels: IntArray, penalty: float, bias_penalty: float
) -> tuple[float, FloatArray, FloatArray]:
    """``NLL + λ Σ_{i≠j} W_ij² + μ Σ b_j²`` of ``softmax(W x + b)``, with its gradients; the diagonal is free.

    P004 divides the sums by K(K - 1) and K: give λ/(K(K - 1)) and μ/K for its objective.
    """
    nll, residual = _nll_residual(inputs @ weight.T + bias, labels)
    off = weight - np.diag(np.diag(weight))
    value = nll + penalty * float((off**2).sum()) + bias_penalty * float(bias @ bias)
    return value, residual.T @ inputs + 2 * penalty * off, residual.sum(axis=0) + 2 * bias_penalty * bias


def _fit_affine(
    inputs: FloatArray, predictions: Predictions, penalty: float, bias_penalty: float
) -> tuple[FloatArray, FloatArray, FitReport]:
    k = inputs.shape[1]
    x, report = _minimise(_affine_objective(inputs, predictions.labels, penalty, bias_penalty), _identity(k), predictions)
    weight, bias = _unpack(x, k)
    after, _ = _nll_residual(inputs @ weight.T + bias, predictions.labels)
    return weight, bias, replace(report, nll_after=after)


def _identity(k: int) -> FloatArray:
    return np.concatenate([np.eye(k).ravel(), np.zeros(k)])


def _unpack(x: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
    return x[: k * k].reshape(k, k), x[k * k :]


def _affine_objective(inputs: FloatArray, labels: IntArray, penalty: float, bias_penalty: float) -> Objective:
    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        weight, bias = _unpack(x, inputs.shape[1])
        value, grad_weight, grad_bias = odir_objective(weight, bias, inputs, labels, penalty, bias_penalty)
        return value, np.concatenate([grad_weight.ravel(), grad_bias])

    return objective


def _minimise(objective: Objective, start: FloatArray, predictions: Predictions) -> tuple[FloatArray, FitReport]:
    """L-BFGS to a flat gradient; the objective is convex, so a flat gradient is the optimum."""
    x, steps = _descend(objective, start, steps=1000, flat=1e-8)
    value, gradient = objective(x)
    largest = float(np.abs(gradient).max())
    converged = largest < 1e-5
    message = (
        ("the fit leaves almost no loss: the classes are separable in these rows, and it is surer than they warrant")
        * (value < 1e-4)
        if converged
        else (
            f"the gradient is still {largest:.1g} after {steps} steps: the classes may be separable, "
            "or there are too few rows for this many parameters; prefer a temperature"
        )
    )
    return x, FitReport(len(predictions), mean_nll(predictions), float(value), converged, steps, largest, message)


def _descend(objective: Objective, start: FloatArray, *, steps: int, flat: float) -> tuple[FloatArray, int]:
    from scipy.optimize import minimize

    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 30, "ftol": 1e-13, "gtol": flat}
    result = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(result.x), int(result.nit)


class _HeldOut:
    """Cross-validated NLL of ODIR penalties; every fold remembers its last fit and the next one starts there."""

    def __init__(self, inputs: FloatArray, predictions: Predictions, folds: int, seed: int):
        fold = folds_of(predictions, folds, seed)
        self.inputs, self.labels = inputs, predictions.labels
        self.held = [fold == f for f in np.unique(fold)]
        self.last = [_identity(inputs.shape[1]) for _ in self.held]
        self.scores: dict[tuple[float, float], float] = {}

    def nll(self, pair: tuple[float, float]) -> float:
        """Mean NLL of the rows of each fold under the fit on the others."""
        if pair not in self.scores:
            total = 0.0
            for i, held in enumerate(self.held):
                objective = _affine_objective(self.inputs[~held], self.labels[~held], *pair)
                self.last[i], _ = _descend(objective, self.last[i], steps=100, flat=1e-4)  # enough to tell penalties apart
                weight, bias = _unpack(self.last[i], self.inputs.shape[1])
                nll, _ = _nll_residual(self.inputs[held] @ weight.T + bias, self.labels[held])
                total += nll * int(held.sum())
            self.scores[pair] = total / len(self.labels)
        return self.scores[pair]

    def search(self, grid: Sequence[float], pair_of: Callable[[float], tuple[float, float]]) -> float:
        """The value of the grid with the least held-out NLL."""
        best, worse = max(grid), 0
        for value in sorted(grid, reverse=True):
            if self.nll(pair_of(value)) <= self.nll(pair_of(best)):
                best, worse = value, 0
            else:
                worse += 1
                if worse == 2:
                    break
        return best


def _finite_log_probs(predictions: Predictions) -> FloatArray:
    # An exact zero counts as the smallest normal number, as in the Dirichlet authors' program.
    floor = np.log(np.finfo(np.float64).tiny)
    if predictions.given_probs is not None:
        return np.maximum(predictions.logits.astype(np.float64), floor)
    return np.maximum(log_softmax(predictions.logits.astype(np.float64)), floor)


def _finite_logits(predictions: Predictions) -> FloatArray:
    return _finite_log_probs(predictions) if predictions.given_probs is not None else predictions.logits.astype(np.float64)


def _nll_residual(z: FloatArray, labels: IntArray) -> tuple[float, FloatArray]:
    """Mean NLL of logits z, and its gradient with respect to them."""
    log_probs = log_softmax(z)
    rows = np.arange(len(z))
    residual = np.exp(log_probs)
    residual[rows, labels] -= 1
    return float(-log_probs[rows, labels].mean()), residual / len(z)
