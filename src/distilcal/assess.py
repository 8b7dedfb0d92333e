"""One question, one answer: can this classifier's confidence be trusted, how sure are we, and what would fix it?

``assess`` measures, calibrates and finds a threshold; ``distilcal.report`` says what it found in words, tables, JSON or a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from distilcal.calibrate import FITS, Calibrator, Dirichlet, cross_fitted, fit_dirichlet
from distilcal.errors import InputError
from distilcal.metrics import Comparison, Evaluation, Reliability, compare, evaluate, reliability
from distilcal.metrics.evaluation import Progress
from distilcal.metrics.rows import Closed, Rows
from distilcal.predictions import IntArray, Predictions
from distilcal.selective import RiskCoverage, Threshold, aurc, excess_aurc, risk_coverage, threshold

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
class SetReport:
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
class Check:
    """What a threshold does on a set it was not chosen on."""

    name: str
    accuracy: float  # nan where nothing is accepted
    coverage: float


@dataclass(frozen=True)
class Assessment:
    """The whole answer."""

    test: SetReport
    calibrated: SetReport | None
    calibrator: Calibrator | None
    calibrated_on: str | None
    threshold: Threshold
    threshold_on: str
    checks: tuple[Check, ...]
    ood: tuple[tuple[SetReport, SetReport | None], ...]  # before and after calibration
    comparison: Comparison | None
    resamples: int


def assess(
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
    progress: Progress | None = None,
) -> Assessment:
    """Measure ``test``; calibrate on ``calib``; compare with ``other``; look at ``ood`` sets.

    ``intervals`` is the number of bootstrap resamples, by default 1,000 or as many as take some twenty seconds a set.
    """
    if method not in FITS:
        raise InputError(f"there is no calibration method {method!r}", remedy=f"give one of {', '.join(FITS)}")
    ood = [_same_classes(shifted, test) for shifted in ood]
    if calib is not None:
        calib = _same_classes(calib, test)
        _check_disjoint(calib, test)
    if intervals is None:
        largest = max(p.logits.size for p in (test, *ood))
        intervals = int(np.clip(RESAMPLED_ENTRIES // largest, 100, 1000))
    sets = (1 + len(ood)) * (1 if calib is None else 2) + (other is not None)
    steps = _Steps(progress, sets)

    def report(predictions: Predictions) -> SetReport:
        return describe(predictions, bins=bins, closed=closed, intervals=intervals, seed=seed, progress=steps.part())

    calibrator = None if calib is None else FITS[method](calib)
    before = [report(p) for p in (test, *ood)]
    scored = [test, *ood] if calibrator is None else [calibrator(p) for p in (test, *ood)]
    after = [None] * len(before) if calibrator is None else [report(p) for p in scored]
    chosen_on = test if calib is None or calibrator is None else cross_fitted(calib, _again(calibrator), seed=seed)
    limit = threshold(chosen_on, accuracy=accuracy, confidence=confidence)
    checks = tuple(_check(limit, p) for p in (scored if calib is not None else scored[1:]))
    comparison = None
    if other is not None:
        comparison = compare(test, other, intervals=intervals, bins=bins, closed=closed, seed=seed, progress=steps.part())
    return Assessment(
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
    )


def describe(
    predictions: Predictions,
    *,
    bins: int = 15,
    closed: Closed = "right",
    intervals: int | None = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> SetReport:
    """All that is measured on one set."""
    figures = evaluate(predictions, intervals=intervals, bins=bins, closed=closed, seed=seed, progress=progress)
    edges = np.arange(1, bins) / bins
    cell = np.searchsorted(edges, predictions.confidence, side="left" if closed == "right" else "right")
    return SetReport(
        predictions.name,
        figures,
        reliability(predictions, bins=bins, closed=closed),
        np.bincount(cell[predictions.correct], minlength=bins),
        np.bincount(cell[~predictions.correct], minlength=bins),
        risk_coverage(predictions),
        aurc(predictions),
        excess_aurc(predictions),
        () if predictions.confidence_only else tuple(_class_rows(predictions, bins, closed)),
    )


# ---- parts -------------------------------------------------------------------------------------------------------------


class _Steps:
    """Progress of several equal parts as one."""

    def __init__(self, progress: Progress | None, parts: int):
        self.progress, self.parts, self.begun = progress, parts, 0

    def part(self) -> Callable[[float], None] | None:
        if self.progress is None:
            return None
        start, whole = self.begun, self.progress
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


def _check_disjoint(calib: Predictions, test: Predictions) -> None:
    if len(calib) == len(test) and np.array_equal(calib.logits, test.logits) and np.array_equal(calib.labels, test.labels):
        raise InputError(
            f"{calib.name!r} and {test.name!r} hold the same predictions",
            remedy="calibrate on rows that are not tested: split them with Predictions.split",
        )


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


def _check(limit: Threshold, predictions: Predictions) -> Check:
    accepted = np.zeros(len(predictions), bool) if limit.confidence is None else predictions.confidence >= limit.confidence
    right = float(predictions.correct[accepted].mean()) if accepted.any() else math.nan
    return Check(predictions.name, right, float(accepted.mean()))
