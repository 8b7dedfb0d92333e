"""One question, one answer: can this classifier's confidence be trusted, how sure are we, and what would fix it?

``evaluate_model`` measures, calibrates and chooses a threshold; ``distilcal.report`` shows the result as text, tables, JSON or
a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.calibrate import FITS, Calibrator, Dirichlet, cross_fitted, fit_dirichlet
from distilcal.errors import InputError
from distilcal.metrics import Comparison, Evaluation, Reliability, compare, evaluate, reliability
from distilcal.metrics.bootstrap import OnProgress
from distilcal.metrics.rows import Closed, Rows
from distilcal.predictions import IntArray, Predictions
from distilcal.selective import RiskCoverage, Threshold, area_under, excess_area, risk_coverage, threshold

TELLING = 0.98  # share of distinct rows from which an equal row in another set is no accident
RESAMPLED_ENTRIES = 1_000_000_000  # rows × classes × resamples that take some twenty seconds


@dataclass(frozen=True)
class ClassRow:
    """How one class fares."""

    name: str
    rows: int
    predicted: int
    recall: float  # nan where the class has no row
    precision: float  # nan where it is never predicted
    mean_probability: float
    frequency: float
    error: float  # the class's part of `sce`


@dataclass(frozen=True)
class SetEvaluation:
    """Everything measured on one set of predictions."""

    name: str
    evaluation: Evaluation
    reliability: Reliability
    right: IntArray  # rows per bin of confidence whose prediction is right …
    wrong: IntArray  # … and wrong
    curve: RiskCoverage
    aurc: float
    excess_aurc: float
    classes: tuple[ClassRow, ...]

    def value(self, name: str) -> float:
        return self.evaluation[name].value


@dataclass(frozen=True)
class ThresholdCheck:
    """What a threshold does on a set it was not chosen on."""

    name: str
    accuracy: float  # nan where nothing is accepted
    coverage: float


@dataclass(frozen=True)
class ModelEvaluation:
    """The whole answer."""

    test: SetEvaluation
    calibrated: SetEvaluation | None
    calibrator: Calibrator | None
    calibrated_on: str | None
    threshold: Threshold
    threshold_on: str
    checks: tuple[ThresholdCheck, ...]
    ood: tuple[tuple[SetEvaluation, SetEvaluation | None], ...]  # before and after calibration
    comparison: Comparison | None
    resamples: int
    overlap: float = 0.0  # share of the test rows that are in the calibration set too, told by their content


def evaluate_model(
    test: Predictions,
    calib: Predictions | None = None,
    other: Predictions | None = None,
    ood: Sequence[Predictions] = (),
    *,
    method: str = "temperature",
    bins: int = 15,
    closed: Closed = "right",
    intervals: int | None = None,
    accuracy: float = 0.95,
    confidence: float = 0.95,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> ModelEvaluation:
    """Measure ``test``; calibrate on ``calib``; compare with ``other``; look at ``ood`` sets.

    ``intervals`` is the number of bootstrap resamples, by default 1,000 or as many as take some twenty seconds a set.
    """
    if method not in FITS:
        raise InputError(f"there is no calibration method {method!r}", remedy=f"give one of {', '.join(FITS)}")
    overlap = 0.0
    ood = [_same_classes(shifted, test) for shifted in ood]
    if calib is not None:
        calib = _same_classes(calib, test)
        overlap = shared_rows(test, calib)
        if overlap > 0.5:
            raise InputError(
                f"{overlap:.0%} of the rows of {test.name!r} are in {calib.name!r} too, and would be tested on what they fit",
                remedy="calibrate on other rows: split them with Predictions.split",
            )
    if intervals is None:
        largest = max(p.logits.size for p in (test, *ood))
        intervals = int(np.clip(RESAMPLED_ENTRIES // largest, 100, 1000))
    sets = (1 + len(ood)) * (1 if calib is None else 2) + (other is not None)
    steps = _Steps(on_progress, sets)

    def report(predictions: Predictions) -> SetEvaluation:
        return evaluate_set(predictions, bins=bins, closed=closed, intervals=intervals, seed=seed, on_progress=steps.part())

    calibrator = None if calib is None else FITS[method](calib)
    before = [report(p) for p in (test, *ood)]
    scored = [test, *ood] if calibrator is None else [calibrator(p) for p in (test, *ood)]
    after = [None] * len(before) if calibrator is None else [report(p) for p in scored]
    chosen_on = test if calib is None or calibrator is None else cross_fitted(calib, _again(calibrator), seed=seed)
    limit = threshold(chosen_on, accuracy=accuracy, confidence=confidence)
    checks = tuple(_check(limit, p) for p in (scored if calib is not None else scored[1:]))
    comparison = None
    if other is not None:
        comparison = compare(test, other, intervals=intervals, bins=bins, closed=closed, seed=seed, on_progress=steps.part())
    return ModelEvaluation(
        test=before[0],
        calibrated=after[0],
        calibrator=calibrator,
        calibrated_on=None if calib is None else calib.name,
        threshold=limit,
        threshold_on=chosen_on.name,
        checks=checks,
        ood=tuple(zip(before[1:], after[1:], strict=True)),
        comparison=comparison,
        resamples=intervals,
        overlap=overlap,
    )


def evaluate_set(
    predictions: Predictions,
    *,
    bins: int = 15,
    closed: Closed = "right",
    intervals: int | None = 1000,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> SetEvaluation:
    """All that is measured on one set."""
    figures = evaluate(predictions, intervals=intervals, bins=bins, closed=closed, seed=seed, on_progress=on_progress)
    diagram = reliability(predictions, bins=bins, closed=closed)
    curve = risk_coverage(predictions)
    right = np.rint(diagram.count * np.nan_to_num(diagram.accuracy)).astype(np.int64)
    return SetEvaluation(
        predictions.name,
        figures,
        diagram,
        right,
        diagram.count - right,
        curve,
        area_under(curve),
        excess_area(curve),
        () if predictions.confidence_only else tuple(_class_rows(predictions, bins, closed)),
    )


# ---- parts -------------------------------------------------------------------------------------------------------------


class _Steps:
    """Progress of several equal parts as one."""

    def __init__(self, on_progress: OnProgress | None, parts: int):
        self.on_progress, self.parts, self.begun = on_progress, parts, 0

    def part(self) -> Callable[[float], None] | None:
        if self.on_progress is None:
            return None
        start, whole = self.begun, self.on_progress
        self.begun += 1
        return lambda share: whole((start + share) / self.parts)


def _again(calibrator: Calibrator) -> Callable[[Predictions], Calibrator]:
    """The same fit on other rows; penalties that were searched for are not searched for again."""
    if isinstance(calibrator, Dirichlet):
        return partial(fit_dirichlet, penalty=calibrator.penalty, bias_penalty=calibrator.bias_penalty)
    return FITS[calibrator.kind]


def _same_classes(predictions: Predictions, test: Predictions) -> Predictions:
    if predictions.confidence_only != test.confidence_only:
        raise InputError(
            f"{predictions.name!r} and {test.name!r} differ in form", remedy="give class probabilities, or confidences, in both"
        )
    return predictions if test.confidence_only else predictions.reorder_classes(test.classes)


def shared_rows(test: Predictions, other: Predictions) -> float:
    """Share of the rows of ``test`` that stand in ``other`` too, with the same probabilities and label.

    Log-probabilities are compared to three decimals, so that the same predictions in another precision or unit are found.
    Where predictions repeat within a set (rounded or certain ones do), equal rows prove nothing and the answer is 0.
    """

    def keys(predictions: Predictions) -> NDArray[Any]:
        with np.errstate(divide="ignore"):
            log_probs = np.maximum(np.log(predictions.probs), -999.0).round(3) + 0.0  # no -0
        table = np.column_stack([log_probs, predictions.labels])
        return np.ascontiguousarray(table).view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()

    ours, theirs = keys(test), keys(other)
    if any(len(np.unique(rows)) < TELLING * len(rows) for rows in (ours, theirs)):
        return 0.0
    return len(np.intersect1d(ours, theirs)) / len(test)


def _class_rows(predictions: Predictions, bins: int, closed: Closed) -> Iterable[ClassRow]:
    rows = Rows.of(predictions)
    n = len(predictions)
    count = len(predictions.classes)
    labelled = np.bincount(predictions.labels, minlength=count)
    predicted = np.bincount(predictions.predicted, minlength=count)
    right = np.bincount(predictions.labels[predictions.correct], minlength=count)
    mean = predictions.probs.mean(axis=0)
    for k, (name, question) in enumerate(zip(predictions.classes, rows.by_class(), strict=True)):
        yield ClassRow(
            name,
            int(labelled[k]),
            int(predicted[k]),
            float(right[k] / labelled[k]) if labelled[k] else math.nan,
            float(right[k] / predicted[k]) if predicted[k] else math.nan,
            float(mean[k]),
            float(labelled[k] / n),
            float(np.abs(question.gaps(question.width_cuts(bins, closed))).sum() / n),
        )


def _check(limit: Threshold, predictions: Predictions) -> ThresholdCheck:
    accepted = np.zeros(len(predictions), bool) if limit.confidence is None else predictions.confidence >= limit.confidence
    right = float(predictions.correct[accepted].mean()) if accepted.any() else math.nan
    return ThresholdCheck(predictions.name, right, float(accepted.mean()))
