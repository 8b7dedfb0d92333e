"""Affine maps of logits or log-probabilities: vector, matrix and Dirichlet scaling. All are convex problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from distilcal.arguments import checked
from distilcal.calibrate.base import Calibrator, FitReport, assign_folds, check_fit, log_softmax, mean_nll
from distilcal.errors import InputError
from distilcal.predictions import FloatArray, IntArray, Predictions

ODIR_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
Objective = Callable[[FloatArray], tuple[float, FloatArray]]  # value and gradient


@dataclass(frozen=True, kw_only=True)
class Vector(Calibrator):
    """Vector scaling ``softmax(weight ⊙ z + bias)`` of logits z.

    Attributes
    ----------
    weight : array (K,)
        Scale of each class's logit.
    bias : array (K,)
        Added to the logits; sums to 0, since only differences matter.
    """

    kind: ClassVar[str] = "vector"
    weight: FloatArray
    bias: FloatArray

    def _calibrated(self, predictions: Predictions) -> Predictions:
        return predictions.with_log_probs(log_softmax(_finite_logits(predictions) * self.weight + self.bias))


@dataclass(frozen=True, kw_only=True)
class Matrix(Calibrator):
    """Matrix scaling ``softmax(weight · z + bias)`` of logits z.

    Attributes
    ----------
    weight : array (K, K)
        The linear map.
    bias : array (K,)
        Added to the mapped logits.
    """

    kind: ClassVar[str] = "matrix"
    weight: FloatArray
    bias: FloatArray

    def _calibrated(self, predictions: Predictions) -> Predictions:
        return predictions.with_log_probs(log_softmax(_finite_logits(predictions) @ self.weight.T + self.bias))


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Calibrator):
    """Dirichlet calibration ``softmax(weight · log p + bias)``, with penalties on off-diagonal weights and bias (ODIR).

    Attributes
    ----------
    weight : array (K, K)
        The linear map of the log-probabilities.
    bias : array (K,)
        Added to the mapped log-probabilities.
    penalty : float
        λ, the penalty on off-diagonal weights.
    bias_penalty : float
        μ, the penalty on the bias.
    """

    kind: ClassVar[str] = "dirichlet"
    weight: FloatArray
    bias: FloatArray
    penalty: float
    bias_penalty: float

    def _calibrated(self, predictions: Predictions) -> Predictions:
        return predictions.with_log_probs(log_softmax(_finite_log_probs(predictions) @ self.weight.T + self.bias))


@checked
def fit_vector(predictions: Predictions) -> Vector:
    """Fit vector scaling: the scale and bias of each class's logit that minimise NLL.

    It looks at the logits themselves, so it is for the logits of the same network (or, fitted on probabilities, for their
    logarithms): a constant added to a row, which does not change the softmax, does change the result.

    Parameters
    ----------
    predictions : Predictions
        Predictions on a development split.

    Returns
    -------
    Vector

    References
    ----------
    Guo et al. 2017, "On calibration of modern neural networks".

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(500, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> calibrator = fit_vector(Predictions.from_logits(3 * logits, labels, name="dev"))
    >>> calibrator.weight.shape, calibrator.fit.converged
    ((3,), True)
    """
    check_fit(predictions)
    z = _finite_logits(predictions)
    k = z.shape[1]

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        nll, residual = _nll_residual(z * x[:k] + x[k:], predictions.labels)
        return nll, np.concatenate([(residual * z).sum(axis=0), residual.sum(axis=0)])

    x, report = _minimise(objective, np.concatenate([np.ones(k), np.zeros(k)]), predictions)
    return Vector(classes=predictions.classes, weight=x[:k], bias=x[k:] - x[k:].mean(), fit=report)


@checked
def fit_matrix(predictions: Predictions) -> Matrix:
    """Fit matrix scaling: the affine map of the logits that minimises NLL, without penalty.

    It looks at the logits themselves, as `fit_vector` does, and has K² + K parameters: with few rows for each class it
    overfits, and `fit_dirichlet` is the better choice.

    Parameters
    ----------
    predictions : Predictions
        Predictions on a development split.

    Returns
    -------
    Matrix

    References
    ----------
    Guo et al. 2017, "On calibration of modern neural networks".

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(500, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> fit_matrix(Predictions.from_logits(3 * logits, labels, name="dev")).weight.shape
    (3, 3)
    """
    check_fit(predictions)
    weight, bias, report = _fit_affine(_finite_logits(predictions), predictions, 0.0, 0.0)
    return Matrix(classes=predictions.classes, weight=weight, bias=bias, fit=report)


@checked
def fit_dirichlet(
    predictions: Predictions,
    *,
    penalty: float | None = None,
    bias_penalty: float | None = None,
    grid: Sequence[float] = ODIR_GRID,
    folds: int = 5,
    seed: int = 0,
) -> Dirichlet:
    """Fit Dirichlet calibration with ODIR: minimise ``NLL + λ Σ_{i≠j} W_ij² + μ Σ_j b_j²``.

    A penalty that is None is chosen from ``grid`` by cross-validated NLL. If both are, they are first chosen together as
    λ = μ, and then μ alone. A search goes from the strongest penalty to weaker ones, each fit starting from the last, and
    ends when two in a row are worse.

    Parameters
    ----------
    predictions : Predictions
        Predictions on a development split.
    penalty, bias_penalty : float, optional
        λ on off-diagonal weights and μ on the bias, at least 0.
    grid : sequence of float
        The penalties to choose from.
    folds : int
        Number of folds of the cross-validation.
    seed : int
        Seed of the assignment of rows to folds.

    Returns
    -------
    Dirichlet

    References
    ----------
    Kull et al. 2019, "Beyond temperature scaling: obtaining well-calibrated multi-class probabilities with Dirichlet
    calibration".

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(200, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> calibrator = fit_dirichlet(Predictions.from_logits(3 * logits, labels, name="dev"), penalty=0.01, bias_penalty=0.01)
    >>> calibrator.fit.converged
    True
    """
    check_fit(predictions)
    if not len(grid) or any(not 0 <= value < np.inf for value in (*grid, penalty or 0.0, bias_penalty or 0.0)):
        raise InputError("a penalty is negative or infinite, or the grid is empty", remedy="give penalties of at least 0")
    log_probs = _finite_log_probs(predictions)
    messages = []
    if penalty is None or bias_penalty is None:
        validation = _CrossValidation(log_probs, predictions, folds, seed)
        penalty, bias_penalty = validation.choose(grid, penalty, bias_penalty)
        score = validation.nll(penalty, bias_penalty)
        messages.append(f"λ = {penalty:g}, μ = {bias_penalty:g} by {len(validation.held_out)}-fold NLL {score:.4f}")
    weight, bias, report = _fit_affine(log_probs, predictions, penalty, bias_penalty)
    if report.message:
        messages.append(report.message)
    report = replace(report, message="; ".join(messages))
    return Dirichlet(
        classes=predictions.classes, weight=weight, bias=bias, penalty=penalty, bias_penalty=bias_penalty, fit=report
    )


def odir_objective(
    weight: FloatArray, bias: FloatArray, inputs: FloatArray, labels: IntArray, penalty: float, bias_penalty: float
) -> tuple[float, FloatArray, FloatArray]:
    """Compute ``NLL + λ Σ_{i≠j} W_ij² + μ Σ b_j²`` of ``softmax(W x + b)`` with its gradients.

    Hebbalaguppe et al. divide the sums by K(K - 1) and K: use λ/(K(K - 1)) and μ/K for its objective.

    Parameters
    ----------
    weight : array (K, K)
        W; its diagonal has no penalty.
    bias : array (K,)
        b.
    inputs : array (N, K)
        x, the log-probabilities.
    labels : array (N,)
        Class indices.
    penalty, bias_penalty : float
        λ and μ.

    Returns
    -------
    value : float
    weight_gradient : array (K, K)
    bias_gradient : array (K,)
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
    """Minimise by L-BFGS until the gradient is flat; the objective is convex, so a flat gradient is the optimum."""
    x, steps = _descend(objective, start, steps=1000, flat=1e-8)
    value, gradient = objective(x)
    largest = float(np.abs(gradient).max())
    converged = largest < 1e-5
    message = ""
    if not converged:
        message = (
            f"the gradient is still {largest:.1g} after {steps} steps: the classes may be separable, "
            "or there are too few rows for this many parameters; prefer a temperature"
        )
    elif value < 1e-4:
        message = "the fit leaves almost no loss: the classes are separable in these rows, and it is surer than they warrant"
    return x, FitReport(len(predictions), mean_nll(predictions), float(value), converged, steps, largest, message)


def _descend(objective: Objective, start: FloatArray, *, steps: int, flat: float) -> tuple[FloatArray, int]:
    from scipy.optimize import minimize

    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 30, "ftol": 1e-13, "gtol": flat}
    result = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(result.x), int(result.nit)


class _CrossValidation:
    """Cross-validated NLL of ODIR penalties; the fit of each fold starts from its fit with the penalties before."""

    def __init__(self, inputs: FloatArray, predictions: Predictions, folds: int, seed: int):
        fold = assign_folds(predictions, folds, seed)
        self.inputs = inputs
        self.labels = predictions.labels
        self.held_out = [fold == f for f in np.unique(fold)]  # masks (N,)
        self.last_fit = [_identity(inputs.shape[1]) for _ in self.held_out]
        self.scores: dict[tuple[float, float], float] = {}

    def choose(self, grid: Sequence[float], penalty: float | None, bias_penalty: float | None) -> tuple[float, float]:
        """Choose the penalties that are None from the grid."""
        if penalty is None and bias_penalty is None:
            penalty = self._search(grid, lambda value: self.nll(value, value))
        elif penalty is None:
            fixed_bias_penalty = cast(float, bias_penalty)
            penalty = self._search(grid, lambda value: self.nll(value, fixed_bias_penalty))
        if bias_penalty is None:
            fixed_penalty = penalty
            bias_penalty = self._search(grid, lambda value: self.nll(fixed_penalty, value))
        return penalty, bias_penalty

    def nll(self, penalty: float, bias_penalty: float) -> float:
        """Return the mean NLL of the rows of each fold with the fit on the others."""
        pair = (penalty, bias_penalty)
        if pair not in self.scores:
            total = sum(self._fold_nll(i, penalty, bias_penalty) for i in range(len(self.held_out)))
            self.scores[pair] = total / len(self.labels)
        return self.scores[pair]

    def _fold_nll(self, i: int, penalty: float, bias_penalty: float) -> float:
        """Fit all folds but one; return the sum of the NLL of its rows."""
        held_out = self.held_out[i]
        objective = _affine_objective(self.inputs[~held_out], self.labels[~held_out], penalty, bias_penalty)
        self.last_fit[i], _ = _descend(objective, self.last_fit[i], steps=100, flat=1e-4)  # enough to rank penalties
        weight, bias = _unpack(self.last_fit[i], self.inputs.shape[1])
        nll, _ = _nll_residual(self.inputs[held_out] @ weight.T + bias, self.labels[held_out])
        return nll * int(held_out.sum())

    def _search(self, grid: Sequence[float], nll: Callable[[float], float]) -> float:
        """Return the value of the grid with the least NLL, from the largest down, until two in a row are worse."""
        best, worse_in_a_row = max(grid), 0
        for value in sorted(grid, reverse=True):
            if nll(value) <= nll(best):
                best, worse_in_a_row = value, 0
                continue
            worse_in_a_row += 1
            if worse_in_a_row == 2:
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
    """Return the mean NLL of logits z and its gradient with respect to them."""
    log_probs = log_softmax(z)
    rows = np.arange(len(z))
    residual = np.exp(log_probs)
    residual[rows, labels] -= 1
    return float(-log_probs[rows, labels].mean()), residual / len(z)
