"""Affine maps of logits or log-probabilities: vector, matrix and Dirichlet scaling. All are convex problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from distilcal.calibrate.base import Calibrator, Fit, check_fit, folds_of, log_softmax, mean_nll
from distilcal.predictions import FloatArray, IntArray, Predictions

ODIR_GRID = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class Vector(Calibrator):
    """``softmax(weight ⊙ z + bias)``."""

    kind: ClassVar[str] = "vector"
    weight: FloatArray  # (K,)
    bias: FloatArray  # (K,) sums to 0: only differences matter

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        return log_softmax(_finite_logits(predictions) * self.weight + self.bias)


@dataclass(frozen=True, kw_only=True)
class Matrix(Calibrator):
    """``softmax(weight · z + bias)``."""

    kind: ClassVar[str] = "matrix"
    weight: FloatArray  # (K, K)
    bias: FloatArray  # (K,)

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        return log_softmax(_finite_logits(predictions) @ self.weight.T + self.bias)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Calibrator):
    """``softmax(weight · log p + bias)``, off-diagonal weights and bias kept small (ODIR)."""

    kind: ClassVar[str] = "dirichlet"
    weight: FloatArray  # (K, K)
    bias: FloatArray  # (K,)
    penalty: float  # λ on off-diagonal weights
    bias_penalty: float  # μ on the bias

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        return log_softmax(_finite_log_probs(predictions) @ self.weight.T + self.bias)


def fit_vector(predictions: Predictions) -> Vector:
    """Per-class scale and bias of the logits that minimise NLL, from identity; Guo et al. 2017."""
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

    It has K² + K parameters: with few rows per class it overfits, and `fit_dirichlet` is the better choice.
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
    taken equal first and μ is then searched alone.
    """
    check_fit(predictions)
    log_probs = _finite_log_probs(predictions)
    message = ""
    if penalty is None or bias_penalty is None:
        scores: dict[tuple[float, float], float] = {}

        def score(pair: tuple[float, float]) -> float:
            if pair not in scores:
                scores[pair] = _held_out_nll(log_probs, predictions, pair, folds, seed)
            return scores[pair]

        if penalty is None and bias_penalty is None:
            penalty = min(((g, g) for g in grid), key=score)[0]
            bias_penalty = min(((penalty, g) for g in grid), key=score)[1]
        elif penalty is None:
            assert bias_penalty is not None
            penalty = min(((g, bias_penalty) for g in grid), key=score)[0]
        else:
            bias_penalty = min(((penalty, g) for g in grid), key=score)[1]
        message = f"λ = {penalty:g}, μ = {bias_penalty:g} by {folds}-fold NLL {scores[penalty, bias_penalty]:.4f}"
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
) -> tuple[FloatArray, FloatArray, Fit]:
    k = inputs.shape[1]

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        value, grad_weight, grad_bias = odir_objective(
            x[: k * k].reshape(k, k), x[k * k :], inputs, predictions.labels, penalty, bias_penalty
        )
        return value, np.concatenate([grad_weight.ravel(), grad_bias])

    start = np.concatenate([np.eye(k).ravel(), np.zeros(k)])
    x, report = _minimise(objective, start, predictions)
    weight, bias = x[: k * k].reshape(k, k), x[k * k :]
    after, _ = _nll_residual(inputs @ weight.T + bias, predictions.labels)
    return weight, bias, replace(report, nll_after=after)


def _minimise(
    objective: Callable[[FloatArray], tuple[float, FloatArray]], start: FloatArray, predictions: Predictions
) -> tuple[FloatArray, Fit]:
    """L-BFGS to a flat gradient; the objective is convex, so a flat gradient is the optimum."""
    from scipy.optimize import minimize

    options = {"maxiter": 5000, "maxfun": 10000, "maxcor": 30, "ftol": 0.0, "gtol": 1e-8}
    result = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    value, gradient = objective(result.x)
    largest = float(np.abs(gradient).max())
    converged = largest < 1e-5
    message = (
        ""
        if converged
        else (
            f"the gradient is still {largest:.1g} after {result.nit} steps: the classes may be separable, "
            "or there are too few rows for this many parameters; prefer a temperature"
        )
    )
    report = Fit(len(predictions), mean_nll(predictions), float(value), converged, int(result.nit), largest, message)
    return np.asarray(result.x), report


def _held_out_nll(inputs: FloatArray, predictions: Predictions, pair: tuple[float, float], folds: int, seed: int) -> float:
    """Mean NLL of the rows of each fold under the fit on the others; folds are stratified and the same for every pair."""
    fold = folds_of(predictions, folds, seed)
    total = 0.0
    for held in np.unique(fold):
        rest = fold != held
        weight, bias, _ = _fit_affine(inputs[rest], predictions.select(rest), *pair)
        nll, _ = _nll_residual(inputs[~rest] @ weight.T + bias, predictions.labels[~rest])
        total += nll * int((~rest).sum())
    return total / len(predictions)


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
