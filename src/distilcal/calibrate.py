"""Post-hoc calibration: fit a small map on held-out predictions, apply it to others.

``fit_x(predictions)`` returns a frozen calibrator that is called on Predictions, carries a report of its fit and is saved
with ``save`` and read with ``load_calibrator``. To add one: a dataclass with ``kind``, its numbers and ``_log_probs``, a
``fit_x``, and an entry in ``CALIBRATORS``. Fitting on a split that is named test raises: what is fitted is chosen on dev.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from distilcal.errors import InputError
from distilcal.predictions import BLOCK_ENTRIES, FloatArray, IntArray, Predictions

BOUNDS = (1e-3, 1e3)  # of a temperature, in units of the logits' spread: beyond, a softmax is all or nothing
Fitted = TypeVar("Fitted", bound="Calibrator")
ODIR_GRID = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)


@dataclass(frozen=True)
class Fit:
    """How a fit went: on what, from which NLL to which, and whether to believe it."""

    rows: int
    nll_before: float
    nll_after: float
    converged: bool
    steps: int = 0
    gradient: float = 0.0  # largest partial derivative of the mean objective where it stopped
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Calibrator:
    """What all calibrators share: class names, the report of the fit, calling, saving."""

    kind: ClassVar[str] = ""
    classes: tuple[str, ...]
    fit: Fit

    def __call__(self, predictions: Predictions) -> Predictions:
        """The same rows with calibrated scores; classes are matched by name."""
        if predictions.confidence_only:
            raise InputError(f"{predictions.name!r} holds confidences only", remedy="calibration needs every class's score")
        ordered = predictions.reorder_classes(self.classes)
        return ordered.with_log_probs(self._log_probs(ordered)).reorder_classes(predictions.classes)

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        raise AssertionError("each calibrator defines its own map")

    def save(self, path: str | Path) -> None:
        """Write as .json or .npz, aside first and then renamed."""
        from distilcal.files import write_aside

        path = Path(path)
        fields = {k: v for k, v in vars(self).items() if k not in ("classes", "fit")}
        head = {"format": "distilcal.calibrator/1", "kind": self.kind, "classes": list(self.classes), "fit": asdict(self.fit)}
        if path.suffix == ".json":
            body = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()}
            with write_aside(path) as file:
                file.write(json.dumps({**head, **body}, indent=2).encode())
        elif path.suffix == ".npz":
            arrays = {k: np.asarray(v) for k, v in fields.items()}
            with write_aside(path) as file:
                np.savez(file, head=np.asarray(json.dumps(head)), **cast(Any, arrays))
        else:
            raise InputError(f"{path.name!r} is neither .json nor .npz", remedy="give a name that ends in one of them")


@dataclass(frozen=True, kw_only=True)
class Temperature(Calibrator):
    """``softmax(z / value)``: one number, the ranking of classes stays."""

    kind: ClassVar[str] = "temperature"
    value: float

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        return _log_softmax(predictions.logits.astype(np.float64) / self.value)


@dataclass(frozen=True, kw_only=True)
class Vector(Calibrator):
    """``softmax(weight ⊙ z + bias)``."""

    kind: ClassVar[str] = "vector"
    weight: FloatArray  # (K,)
    bias: FloatArray  # (K,) sums to 0: only differences matter

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        return _log_softmax(_finite_logits(predictions) * self.weight + self.bias)


@dataclass(frozen=True, kw_only=True)
class Matrix(Calibrator):
    """``softmax(weight · z + bias)``."""

    kind: ClassVar[str] = "matrix"
    weight: FloatArray  # (K, K)
    bias: FloatArray  # (K,)

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        return _log_softmax(_finite_logits(predictions) @ self.weight.T + self.bias)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Calibrator):
    """``softmax(weight · log p + bias)``, off-diagonal weights and bias kept small (ODIR)."""

    kind: ClassVar[str] = "dirichlet"
    weight: FloatArray  # (K, K)
    bias: FloatArray  # (K,)
    penalty: float  # λ on off-diagonal weights
    bias_penalty: float  # μ on the bias

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        return _log_softmax(_finite_log_probs(predictions) @ self.weight.T + self.bias)


@dataclass(frozen=True, kw_only=True)
class Isotonic(Calibrator):
    """A non-decreasing step function of each class's probability, interpolated; rows are divided by their sum."""

    kind: ClassVar[str] = "isotonic"
    starts: IntArray  # (K + 1,) where each class's knots begin
    knots: FloatArray
    values: FloatArray

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        def of_class(k: int, p: FloatArray) -> FloatArray:
            part = slice(self.starts[k], self.starts[k + 1])
            return np.interp(p, self.knots[part], self.values[part])

        return _by_class(predictions.probs, of_class)


@dataclass(frozen=True, kw_only=True)
class Histogram(Calibrator):
    """The frequency of each class among rows of like probability (equal-width bins); rows are divided by their sum."""

    kind: ClassVar[str] = "histogram"
    values: FloatArray  # (K, bins)

    def _log_probs(self, predictions: Predictions) -> FloatArray:
        bins = self.values.shape[1]
        return _by_class(predictions.probs, lambda k, p: self.values[k][_bin_of(p, bins)])


# ---- fitting -----------------------------------------------------------------------------------------------------------


def fit_temperature(
    predictions: Predictions,
    *,
    grid: tuple[float, float, float] | None = None,
    bounds: tuple[float, float] | None = None,
) -> Temperature:
    """The temperature T > 0 that minimises the NLL of ``softmax(z / T)``; Guo et al. 2017.

    NLL is convex in 1/T, so there is one optimum; Newton's method on log T inside a bracket that shrinks at every step
    finds it to machine precision, within ``bounds`` (by default far beyond what the spread of the logits could ask for); a
    fit that stops at a bound says so. ``grid=(first, last, step)`` gives what a scan of that grid would choose (P000, P001:
    ``(0.01, 5.0, 0.01)``), the smallest T winning ties, from the grid points around the optimum.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(4000, 3))
    >>> labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)  # calibrated at T = 1
    >>> round(fit_temperature(Predictions.from_logits(3 * z, labels, name="dev")).value, 1)
    3.0
    """
    _check_fit(predictions)
    problem = _TemperatureProblem(predictions)
    if grid is not None:
        points = _grid_points(*grid)
        best = _minimise_on_grid(problem, points)
        message = f"best of {len(points)} grid points from {points[0]:g} to {points[-1]:g}"
        if best in (0, len(points) - 1):
            message += f"; T = {points[best]:g} is an end of the grid, so the optimum may lie outside"
        return problem.calibrator(points[best], converged=True, message=message)
    if bounds is None:
        bounds = (BOUNDS[0] * problem.spread, BOUNDS[1] * problem.spread)
    elif not 0 < bounds[0] < bounds[1]:
        raise InputError(f"bounds {bounds} are not two positive numbers in order")
    value, gradient, message = _minimise_over_log(problem, bounds)
    return problem.calibrator(value, converged=not message, gradient=gradient, message=message)


def fit_vector(predictions: Predictions) -> Vector:
    """Per-class scale and bias of the logits that minimise NLL, from identity; Guo et al. 2017."""
    _check_fit(predictions)
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
    _check_fit(predictions)
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
    _check_fit(predictions)
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


def fit_isotonic(predictions: Predictions) -> Isotonic:
    """One isotonic regression per class against the rest, renormalised; Zadrozny & Elkan 2002."""
    from scipy.optimize import isotonic_regression

    _check_fit(predictions)
    knots: list[FloatArray] = []
    values: list[FloatArray] = []
    for k in range(len(predictions.classes)):
        # Equal probabilities must have equal values, so they enter as one point with their mean and weight.
        points, inverse, count = np.unique(predictions.probs[:, k], return_inverse=True, return_counts=True)
        hits = np.bincount(inverse, predictions.labels == k)
        blocks = isotonic_regression(hits / count, weights=count)
        ends = np.unique(np.concatenate([blocks.blocks[:-1], blocks.blocks[1:] - 1]))
        knots.append(points[ends])
        values.append(np.asarray(blocks.x, dtype=np.float64)[ends])
    starts = np.cumsum([0, *(len(part) for part in knots)])
    draft = Isotonic(
        classes=predictions.classes, starts=starts, knots=np.concatenate(knots), values=np.concatenate(values), fit=_NO_FIT
    )
    return _with_report(draft, predictions)


def fit_histogram(predictions: Predictions, *, bins: int = 15) -> Histogram:
    """Histogram binning per class against the rest, equal widths, renormalised; an empty bin keeps its midpoint.

    Zadrozny & Elkan 2001. Coarse: rows of one bin get one probability, so accuracy may change.
    """
    _check_fit(predictions)
    if bins < 1:
        raise InputError(f"{bins} bins", remedy="give at least one")
    values = np.empty((len(predictions.classes), bins))
    middle = (np.arange(bins) + 0.5) / bins
    for k, p in enumerate(predictions.probs.T):
        cell = _bin_of(p, bins)
        count = np.bincount(cell, minlength=bins)
        hits = np.bincount(cell, predictions.labels == k, minlength=bins)
        values[k] = np.where(count > 0, hits / np.maximum(count, 1), middle)
    return _with_report(Histogram(classes=predictions.classes, values=values, fit=_NO_FIT), predictions)


FITS: dict[str, Callable[..., Calibrator]] = {
    "temperature": fit_temperature,
    "vector": fit_vector,
    "matrix": fit_matrix,
    "dirichlet": fit_dirichlet,
    "isotonic": fit_isotonic,
    "histogram": fit_histogram,
}
CALIBRATORS: dict[str, type[Calibrator]] = {c.kind: c for c in (Temperature, Vector, Matrix, Dirichlet, Isotonic, Histogram)}


def cross_fitted(
    predictions: Predictions, fit: Callable[[Predictions], Calibrator] = fit_temperature, *, folds: int = 5, seed: int = 0
) -> Predictions:
    """The rows as calibrated by a fit on the other folds, so that none is judged by a map that has seen its label."""
    fold = _folds(predictions, folds, seed)
    log_probs = np.empty((len(predictions), len(predictions.classes)))
    for held in np.unique(fold):
        calibrated = fit(predictions.select(fold != held))(predictions.select(fold == held))
        log_probs[fold == held] = calibrated.logits
    return predictions.with_log_probs(log_probs)


def load_calibrator(path: str | Path) -> Calibrator:
    """Read what ``Calibrator.save`` wrote; no pickle is ever loaded."""
    from distilcal.files import open_npz

    path = Path(path)
    try:
        if path.suffix == ".npz":
            with open_npz(path) as arrays:
                head = json.loads(str(arrays["head"]))
                body: dict[str, Any] = {name: arrays[name] for name in arrays if name != "head"}
        elif path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            head = {name: content.pop(name) for name in ("format", "kind", "classes", "fit")}
            body = content
        else:
            raise InputError("is neither .json nor .npz", source=str(path), remedy="give what Calibrator.save wrote")
        if head["format"] != "distilcal.calibrator/1":
            raise KeyError("format")
        values = {k: _number_or_array(v) for k, v in body.items()}
        made = CALIBRATORS[head["kind"]](classes=tuple(head["classes"]), fit=Fit(**head["fit"]), **values)
    except FileNotFoundError:
        raise InputError("there is no such file", source=str(path)) from None
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError):
        raise InputError("this is not a saved calibrator", source=str(path), remedy="give what Calibrator.save wrote") from None
    if isinstance(made, Temperature) and not made.value > 0:
        raise InputError(f"temperature {made.value} is not positive", source=str(path), remedy="fit it again")
    return made


# ---- parts -------------------------------------------------------------------------------------------------------------

_NO_FIT = Fit(rows=0, nll_before=np.nan, nll_after=np.nan, converged=False)


def _number_or_array(value: Any) -> Any:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array


def _check_fit(predictions: Predictions) -> None:
    if "test" in re.split(r"[^a-z]+", predictions.name.lower()):
        raise InputError(
            f"{predictions.name!r} is named a test split: what is fitted on it cannot be tested on it",
            remedy="fit on a development split, or rename these predictions if they are one",
        )
    if predictions.confidence_only:
        raise InputError(f"{predictions.name!r} holds confidences only", remedy="calibration needs every class's score")


def _log_softmax(z: FloatArray) -> FloatArray:
    z = z - z.max(axis=1, keepdims=True)
    log_probs: FloatArray = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return log_probs


def _finite_log_probs(predictions: Predictions) -> FloatArray:
    # An exact zero counts as the smallest normal number, as in the Dirichlet authors' program.
    floor = np.log(np.finfo(np.float64).tiny)
    if predictions.given_probs is not None:
        return np.maximum(predictions.logits.astype(np.float64), floor)
    return np.maximum(_log_softmax(predictions.logits.astype(np.float64)), floor)


def _finite_logits(predictions: Predictions) -> FloatArray:
    return _finite_log_probs(predictions) if predictions.given_probs is not None else predictions.logits.astype(np.float64)


def _nll_residual(z: FloatArray, labels: IntArray) -> tuple[float, FloatArray]:
    """Mean NLL of logits z, and its gradient with respect to them."""
    log_probs = _log_softmax(z)
    rows = np.arange(len(z))
    residual = np.exp(log_probs)
    residual[rows, labels] -= 1
    return float(-log_probs[rows, labels].mean()), residual / len(z)


def _mean_nll(predictions: Predictions) -> float:
    return float(predictions.row_nll.mean())


def _with_report(draft: Fitted, predictions: Predictions) -> Fitted:
    after = _mean_nll(draft(predictions))
    message = "" if np.isfinite(after) else "some labels have probability 0 after calibration: their NLL is infinite"
    report = Fit(len(predictions), _mean_nll(predictions), after, converged=True, message=message)
    return replace(draft, fit=report)


def _bin_of(p: FloatArray, bins: int) -> IntArray:
    """Bin (lo, hi] of each probability, 0 in the first."""
    return np.searchsorted(np.arange(1, bins) / bins, p, side="left")


def _by_class(probs: FloatArray, of_class: Callable[[int, FloatArray], FloatArray]) -> FloatArray:
    """Log of class-wise values divided by their row sum; a row in which all are 0 keeps its probabilities."""
    mapped = np.column_stack([of_class(k, p) for k, p in enumerate(probs.T)])
    empty = mapped.sum(axis=1) <= 0
    mapped[empty] = probs[empty]
    with np.errstate(divide="ignore"):
        log_probs: FloatArray = np.log(mapped / mapped.sum(axis=1, keepdims=True))
    return log_probs


# ---- temperature -------------------------------------------------------------------------------------------------------


class _TemperatureProblem:
    """NLL of ``softmax(β z)`` and its two derivatives in β = 1/T, a block of rows at a time."""

    def __init__(self, predictions: Predictions):
        z, labels = predictions.logits, predictions.labels
        self.classes = predictions.classes
        self.rows = len(z)
        self.possible = bool(np.isfinite(z[np.arange(len(z)), labels]).all())
        self.passes = 0
        self._nll: dict[float, float] = {}  # by β
        # Blocks are laid out once: class by class, shifted so that the largest logit of a row is 0.
        self.blocks: list[tuple[FloatArray, float]] = []
        step = max(1, BLOCK_ENTRIES // z.shape[1])
        for start in range(0, len(z), step):
            rows = slice(start, start + step)
            block = np.array(z[rows].T, dtype=np.float64, order="C")
            block -= block.max(axis=0)
            picked = float(block[labels[rows], np.arange(block.shape[1])].sum())
            np.maximum(block, -1e150, out=block)  # an impossible class: its weight is 0 at any temperature, not 0 · inf
            self.blocks.append((block, picked))

    @property
    def spread(self) -> float:
        """Mean distance of a row's logits from its largest, impossible classes aside; 1 where all are equal."""
        finite = [(block, block > -1e150) for block, _ in self.blocks]
        total = sum(float(-block[kept].sum()) for block, kept in finite)
        return total / max(sum(int(kept.sum()) for _, kept in finite), 1) or 1.0

    def derivatives(self, beta: float) -> tuple[float, float, float]:
        """Mean NLL, slope and curvature at β: log Σ e^{βz} - β z_y, E[z] - z_y, Var[z]."""
        self.passes += 1
        value = slope = curvature = 0.0
        for block, picked in self.blocks:
            weight = np.exp(beta * block)
            total = weight.sum(axis=0)
            weight *= block
            first = weight.sum(axis=0) / total
            second = np.einsum("kn,kn->n", weight, block) / total
            value += float(np.log(total).sum()) - beta * picked
            slope += float(first.sum()) - picked
            curvature += float((second - first**2).sum())
        self._nll[beta] = value / self.rows
        return self._nll[beta], slope / self.rows, max(curvature / self.rows, 0.0)

    def nll(self, temperature: float) -> float:
        """Mean NLL at T."""
        if not self.possible:
            return np.inf
        beta = 1.0 / temperature
        if beta not in self._nll:
            self.passes += 1
            parts = (float(np.log(np.exp(beta * block).sum(axis=0)).sum()) - beta * picked for block, picked in self.blocks)
            self._nll[beta] = sum(parts) / self.rows
        return self._nll[beta]

    def calibrator(self, value: float, *, converged: bool, gradient: float = 0.0, message: str = "") -> Temperature:
        report = Fit(self.rows, self.nll(1.0), self.nll(value), converged, self.passes, gradient, message)
        return Temperature(classes=self.classes, value=float(value), fit=report)


def _minimise_over_log(problem: _TemperatureProblem, bounds: tuple[float, float]) -> tuple[float, float, str]:
    """The optimal T, |dNLL/d log T| there, and why it is not an optimum, if it is not."""
    if not problem.possible:
        return 1.0, 0.0, "some label has probability 0, which no temperature changes: T = 1 was kept"
    if not any(block.any() for block, _ in problem.blocks):
        return 1.0, 0.0, "the logits of every row are equal, so NLL does not depend on T: T = 1 was kept"
    if not any(picked for _, picked in problem.blocks):
        return (
            bounds[0],
            0.0,
            (
                f"stopped at the lower bound T = {bounds[0]:.3g}: every label is the most probable class, so NLL falls as T "
                "does; more rows, with some mistakes among them, would tell"
            ),
        )
    lowest, highest = np.log(bounds[0]), np.log(bounds[1])
    low, high = lowest - 1e-12, highest + 1e-12  # open: a bound may be tried itself
    at = float(np.clip(0.0, lowest, highest))
    slope = 0.0
    for _ in range(100):
        beta = float(np.exp(-at))
        nll, dbeta, ddbeta = problem.derivatives(beta)
        slope = -beta * dbeta  # d NLL / d log T
        curvature = beta * beta * ddbeta + beta * dbeta
        if at == highest and slope < 0:
            return (
                bounds[1],
                abs(slope),
                (
                    f"stopped at the upper bound T = {bounds[1]:.3g}: the logits say nothing about these labels, or the "
                    "contrary; check that labels and classes match"
                ),
            )
        if at == lowest and slope > 0:
            return bounds[0], abs(slope), f"stopped at the lower bound T = {bounds[0]:.3g}: the optimum lies below it"
        low, high = (low, at) if slope > 0 else (at, high)
        # What one more Newton step could still gain is slope²/curvature; below rounding this is the optimum.
        if slope == 0 or (curvature > 0 and slope * slope / curvature < 1e-17 * nll) or high - low < 1e-13:
            break
        # Past the turning point of NLL over log T, or outside the bracket, Newton's step is no guide.
        aim = at - slope / curvature if curvature > 0 else (np.inf if slope < 0 else -np.inf)
        if not low < aim < high:
            bound_untried = high > highest if slope < 0 else low < lowest
            aim = (highest if slope < 0 else lowest) if bound_untried else (low + high) / 2
        at = float(aim)
    return 1 / beta, abs(slope), ""


def _grid_points(first: float, last: float, step: float) -> list[float]:
    if not (0 < first <= last and step > 0):
        raise InputError(f"grid ({first}, {last}, {step}) is not (first, last, step) with 0 < first ≤ last and step > 0")
    # Rounded, so that the 198th point of (0.01, 5, 0.01) is 1.98 and not 1.9800000000000002.
    return [round(first + i * step, 10) for i in range(int(round((last - first) / step, 9)) + 1)]


def _minimise_on_grid(problem: _TemperatureProblem, points: list[float]) -> int:
    """Index of the grid point with the least NLL, the first one among equals; NLL falls, then rises along the grid."""
    if len(points) == 1 or not problem.possible:
        return 0
    optimum, _, _ = _minimise_over_log(problem, (points[0], points[-1]))
    right = min(max(int(np.searchsorted(points, optimum)), 1), len(points) - 1)
    scores = {i: problem.nll(points[i]) for i in (right - 1, right)}
    best = right - 1 if scores[right - 1] <= scores[right] else right
    if scores[right - 1] == problem.nll(points[0]):
        return 0  # NLL is flat to the last digit from the first point on
    while best > 0 and problem.nll(points[best - 1]) <= scores[best]:
        best -= 1
        scores[best] = problem.nll(points[best])
    return best


# ---- affine maps -------------------------------------------------------------------------------------------------------


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
    report = Fit(len(predictions), _mean_nll(predictions), float(value), converged, int(result.nit), largest, message)
    return np.asarray(result.x), report


def _folds(predictions: Predictions, folds: int, seed: int) -> IntArray:
    """A fold for every row, stratified by label."""
    n = len(predictions)
    if n < 2:
        raise InputError("cross-validation needs at least two rows", remedy="give more rows")
    order = np.lexsort((np.random.default_rng(seed).random(n), predictions.labels))
    fold = np.empty(n, np.int64)
    fold[order] = np.arange(n) % min(folds, n)
    return fold


def _held_out_nll(inputs: FloatArray, predictions: Predictions, pair: tuple[float, float], folds: int, seed: int) -> float:
    """Mean NLL of the rows of each fold under the fit on the others; folds are stratified and the same for every pair."""
    fold = _folds(predictions, folds, seed)
    total = 0.0
    for held in np.unique(fold):
        rest = fold != held
        weight, bias, _ = _fit_affine(inputs[rest], predictions.select(rest), *pair)
        nll, _ = _nll_residual(inputs[~rest] @ weight.T + bias, predictions.labels[~rest])
        total += nll * int((~rest).sum())
    return total / len(predictions)
