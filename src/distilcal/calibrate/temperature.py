"""Temperature scaling: one number for all logits, the simplest calibration and most often the best."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from distilcal.arguments import checked
from distilcal.calibrate.base import Calibrator, FitReport, check_fit, log_softmax
from distilcal.errors import InputError
from distilcal.predictions import Predictions
from distilcal.softmax import BLOCK_ENTRIES

IMPOSSIBLE = -1e150  # in place of a logit of -inf: its weight is 0 at any temperature, and not 0 · inf
NO_CONFIDENCE = "every row gives probability 1 to one class: labels without a confidence have no temperature, T = 1 was kept"
BOUNDS_FACTOR = 1e6  # default bounds reach this far beyond 1 and beyond the spread of the logits


@dataclass(frozen=True, kw_only=True)
class Temperature(Calibrator):
    """Temperature scaling ``softmax(z / value)`` of logits z; the ranking of the classes stays.

    Attributes
    ----------
    value : float
        The temperature, greater than 0.
    """

    kind: ClassVar[str] = "temperature"
    value: float

    def __post_init__(self) -> None:
        is_number = isinstance(self.value, Real) and not isinstance(self.value, bool)
        if not is_number or not 0 < self.value < np.inf:
            raise InputError(f"temperature {self.value!r:.40} is not a positive number", remedy="fit it again, or give one")

    def _calibrated(self, predictions: Predictions) -> Predictions:
        return predictions.with_log_probs(log_softmax(predictions.logits.astype(np.float64) / self.value))


@checked
def fit_temperature(
    predictions: Predictions,
    *,
    grid: tuple[float, float, float] | None = None,
    bounds: tuple[float, float] | None = None,
) -> Temperature:
    """Fit the temperature T > 0 that minimises the NLL of ``softmax(z / T)``.

    NLL is convex in 1/T, so there is one optimum. Newton's method on log T, inside a bracket that shrinks at every step,
    computes it to machine precision; the report of the fit (``.fit``) holds the gradient there as a certificate, and a fit
    that stops at a bound says so.

    Rows without a mistake have no optimum: NLL falls as T does, until every confidence is 1. So few rows do not show that. T is
    then fitted as Laplace's rule of succession has it, with one right and one wrong row more, both like the row in which the
    largest logit has the median lead: N rows of equal lead get the confidence (N + 1) / (N + 2). It is never above 1, since no
    row says that the model is too sure, and the report of the fit says that it has not converged.

    Parameters
    ----------
    predictions : Predictions
        Predictions on a development split.
    grid : (first, last, step), optional
        Return what a scan of this grid would choose, the smallest T among equals, also for rows without a mistake.
        Hosseini & Caragea and Park & Caragea use ``(0.01, 5.0, 0.01)``. Only grid points around the optimum are computed.
    bounds : (low, high), optional
        Limits of T; by default far beyond what any logits need.

    Returns
    -------
    Temperature

    Raises
    ------
    InputError
        If the predictions are named a test split or hold confidences only, or if the grid or the bounds are impossible.

    References
    ----------
    Guo et al. 2017, "On calibration of modern neural networks".

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(4000, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)  # calibrated at T = 1
    >>> calibrator = fit_temperature(Predictions.from_logits(3 * logits, labels, name="dev"))
    >>> round(calibrator.value, 1), calibrator.fit.converged
    (3.0, True)
    """
    check_fit(predictions)
    problem = _TemperatureProblem(predictions)
    if predictions.one_hot:
        return problem.calibrator(1.0, converged=False, message=NO_CONFIDENCE)
    if grid is not None and problem.possible:
        points = _grid_points(*grid)
        best = _minimise_on_grid(problem, points)
        message = f"best of {len(points)} grid points from {points[0]:g} to {points[-1]:g}"
        if best in (0, len(points) - 1):
            message += f"; T = {points[best]:g} is an end of the grid, so the optimum may lie outside"
        return problem.calibrator(points[best], converged=True, message=message)
    if bounds is None:
        bounds = problem.default_bounds()
    elif not 0 < bounds[0] < bounds[1]:
        raise InputError(f"bounds {bounds} are not two positive numbers in order")
    if problem.separable and not problem.flat:
        return _fit_without_mistakes(problem, bounds)
    value, gradient, message = _minimise_over_log(problem, bounds)
    return problem.calibrator(value, converged=not message, gradient=gradient, message=message)


class _TemperatureProblem:
    """NLL of ``softmax(β z)`` and its two derivatives in β = 1/T, a block of rows at a time."""

    def __init__(self, predictions: Predictions):
        z, labels = predictions.logits, predictions.labels
        self.classes = predictions.classes
        self.rows = len(z)
        self.possible = bool(np.isfinite(z[np.arange(len(z)), labels]).all())
        self.passes = 0
        self._nll: dict[float, float] = {}  # by temperature
        self.axis = 0 if z.shape[1] <= 64 else 1  # of the classes; a short last axis would be slow to sum over
        # Blocks are laid out once, shifted so that the largest logit of a row is 0.
        self.blocks: list[tuple[NDArray[Any], float]] = []
        distance, entries = 0.0, 0
        step = max(1, BLOCK_ENTRIES // z.shape[1])
        for start in range(0, len(z), step):
            rows = slice(start, start + step)
            block = np.array(z[rows].T if self.axis == 0 else z[rows], dtype=np.float64, order="C")
            block -= block.max(axis=self.axis, keepdims=True)
            by_row = block.T if self.axis == 0 else block
            picked = float(by_row[np.arange(len(by_row)), labels[rows]].sum())
            if predictions.given_probs is not None:
                impossible = np.isneginf(block)
                entries -= int(impossible.sum())
                block[impossible] = 0.0
                distance -= float(block.sum())
                block[impossible] = IMPOSSIBLE
            else:
                distance -= float(block.sum())
            entries += block.size
            self.blocks.append((block, picked))
        self.spread = distance / max(entries, 1)  # mean distance of a row's logits from its largest
        self.flat = distance == 0.0
        self.separable = not any(picked for _, picked in self.blocks)

    @cached_property
    def rough_blocks(self) -> list[tuple[NDArray[Any], float]]:
        """The blocks in single precision, in which an exponential costs a fourth: good enough to come near."""
        return [(np.maximum(block, -1e15, dtype=np.float32, casting="same_kind"), picked) for block, picked in self.blocks]

    def default_bounds(self) -> tuple[float, float]:
        """Return limits of T that no optimum of such logits reaches."""
        lowest = max(min(1.0, self.spread) / BOUNDS_FACTOR, float(np.finfo(np.float64).tiny))  # 1/T must be a number
        return lowest, max(1.0, self.spread) * BOUNDS_FACTOR

    def with_succession(self) -> _TemperatureProblem:
        """Return the problem with one right and one wrong row more, both like the row of the median lead.

        A lead is how far the largest logit of a row is above the next that differs from it and is possible.
        """
        leads = [-np.where(block < 0, block, -np.inf).max(axis=self.axis) for block, _ in self.blocks]
        all_leads = np.concatenate(leads)
        order = np.argsort(all_leads, kind="stable")
        comparable = int((all_leads < -IMPOSSIBLE).sum())
        number = int(order[comparable // 2])
        step = len(leads[0])  # rows of each block but the last
        typical = np.take(self.blocks[number // step][0], [number % step] * 2, axis=1 - self.axis)
        problem = copy.copy(self)
        problem.blocks = [*self.blocks, (typical, -float(all_leads[number]))]
        problem.rows, problem.separable, problem._nll = self.rows + 2, False, {}
        return problem

    def derivatives(self, temperature: float, *, rough: bool) -> tuple[float, float, float]:
        """Mean NLL, and its slope and curvature in log T; in β they are E[z] - z_y and Var[z]."""
        self.passes += 1
        beta = 1.0 / temperature
        value = slope = curvature = 0.0
        for block, picked in self.rough_blocks if rough else self.blocks:
            weight = np.exp(block.dtype.type(beta) * block)
            total = weight.sum(axis=self.axis)
            weight *= block
            first = weight.sum(axis=self.axis) / total
            second = np.einsum("kn,kn->n" if self.axis == 0 else "nk,nk->n", weight, block) / total
            value += float(np.log(total).sum(dtype=np.float64)) - beta * picked
            slope += float(first.sum(dtype=np.float64)) - picked
            curvature += float((second - first**2).sum(dtype=np.float64))
        if not rough:
            self._nll[temperature] = value / self.rows
        slope, curvature = slope / self.rows, max(curvature / self.rows, 0.0)
        return value / self.rows, -beta * slope, beta * (beta * curvature + slope)

    def nll(self, temperature: float) -> float:
        """Mean NLL at T."""
        if not self.possible:
            return np.inf
        if temperature not in self._nll:
            self.passes += 1
            beta = 1.0 / temperature
            parts = (
                float(np.log(np.exp(beta * block).sum(axis=self.axis)).sum()) - beta * picked for block, picked in self.blocks
            )
            self._nll[temperature] = sum(parts) / self.rows
        return self._nll[temperature]

    def remember(self, temperature: float, nll: float) -> None:
        """Take a value of the NLL that is known to rounding without a pass."""
        self._nll[temperature] = nll

    def calibrator(self, value: float, *, converged: bool, gradient: float = 0.0, message: str = "") -> Temperature:
        nll_before, nll_after = self.nll(1.0), self.nll(value)  # may add a pass, so before the report counts them
        report = FitReport(self.rows, nll_before, nll_after, converged, self.passes, gradient, message)
        return Temperature(classes=self.classes, value=float(value), fit=report)


def _fit_without_mistakes(problem: _TemperatureProblem, bounds: tuple[float, float]) -> Temperature:
    """Fit by the rule of succession where every label is the most probable class; see `fit_temperature`."""
    more = problem.with_succession()
    optimum, _, _ = _minimise_over_log(more, bounds)
    problem.passes = more.passes
    value = float(np.clip(min(optimum, 1.0), *bounds))
    message = "every label is the most probable class, so NLL falls as T does and has no optimum: "
    if value == 1.0:
        message += "T = 1 was kept"
    else:
        message += f"T = {value:.3g} is the optimum with one right and one wrong row more"
    message += "; more rows, with some mistakes among them, would tell"
    return problem.calibrator(value, converged=False, message=message)


def _minimise_over_log(problem: _TemperatureProblem, bounds: tuple[float, float]) -> tuple[float, float, str]:
    """Return the optimal T, |dNLL/d log T| there, and a message if it is not the optimum."""
    if not problem.possible:
        return 1.0, 0.0, "some label has probability 0, which no temperature changes: T = 1 was kept"
    if problem.flat:
        return 1.0, 0.0, "the logits of every row are equal, so NLL does not depend on T: T = 1 was kept"
    if problem.separable:
        return bounds[0], 0.0, "every label is the most probable class, so NLL falls as T does"
    lowest, highest = float(np.log(bounds[0])), float(np.log(bounds[1]))
    near = _newton(problem, float(np.clip(0.0, lowest, highest)), lowest, highest, rough=True)[0]
    at, slope = _newton(problem, near, lowest, highest, rough=False)
    if at == highest and slope < 0:
        message = f"stopped at the upper bound T = {bounds[1]:.3g}: the optimum lies above it"
        if bounds[1] >= BOUNDS_FACTOR:
            message += "; the logits say nothing about these labels, or the contrary"
        return bounds[1], abs(slope), message + "; check that labels and classes match"
    if at == lowest and slope > 0:
        return bounds[0], abs(slope), f"stopped at the lower bound T = {bounds[0]:.3g}: the optimum lies below it"
    return float(np.exp(at)), abs(slope), ""


def _newton(problem: _TemperatureProblem, at: float, lowest: float, highest: float, *, rough: bool) -> tuple[float, float]:
    """Run Newton's method on log T from ``at``, inside a bracket that shrinks; return the end and dNLL/d log T there."""
    low, high = lowest - 1e-12, highest + 1e-12  # open: a bound may be tried itself
    slope = 0.0
    # Single precision may never settle; it only has to come near. Far from the optimum NLL is linear in 1/T, and each step
    # multiplies T by e: logits of 1e150 take 350.
    for _ in range(8 if rough else 1000):
        nll, slope, curvature = problem.derivatives(float(np.exp(at)), rough=rough)
        if (at == highest and slope < 0) or (at == lowest and slope > 0):
            break
        if slope > 0:
            high = at
        else:
            low = at
        if slope == 0 or high - low < 1e-13:
            break
        # Past the turning point of NLL over log T, or outside the bracket, Newton's step is no guide.
        if curvature > 0:
            target = at - slope / curvature
            gain = slope * slope / curvature / 2
        else:
            target = np.inf if slope < 0 else -np.inf
            gain = np.inf
        # Each step squares the distance: when a step gains so little, the next would gain less than rounding.
        if gain < (1e-9 if rough else 1e-13) * nll and low < target < high and abs(target - at) < 0.1:
            at = float(target)
            if not rough:
                problem.remember(float(np.exp(at)), nll - gain)
            break
        if not low < target < high:
            bound = highest if slope < 0 else lowest
            bound_untried = high > highest if slope < 0 else low < lowest
            target = bound if bound_untried else (low + high) / 2
        at = float(target)
    return at, slope


def _grid_points(first: float, last: float, step: float) -> list[float]:
    if not (1e-9 < first <= last < np.inf and step > 0):
        raise InputError(f"grid ({first}, {last}, {step}) is not (first, last, step) with 1e-9 < first ≤ last and step > 0")
    # Rounded, so that the 198th point of (0.01, 5, 0.01) is 1.98 and not 1.9800000000000002.
    return [round(first + i * step, 10) for i in range(int(round((last - first) / step, 9)) + 1)]


def _minimise_on_grid(problem: _TemperatureProblem, points: list[float]) -> int:
    """Return the index of the grid point with the least NLL, the first among equals; NLL falls, then rises along the grid."""
    if len(points) == 1:
        return 0
    optimum, _, _ = _minimise_over_log(problem, (points[0], points[-1]))
    right = min(max(int(np.searchsorted(points, optimum)), 1), len(points) - 1)
    scores = {i: problem.nll(points[i]) for i in (right - 1, right)}
    best = right - 1 if scores[right - 1] <= scores[right] else right
    if scores[best] == problem.nll(points[0]):
        return 0  # NLL is flat to the last digit from the first point on
    while best > 0 and problem.nll(points[best - 1]) <= scores[best]:
        best -= 1
        scores[best] = problem.nll(points[best])
    return best
