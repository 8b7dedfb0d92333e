"""One question, one answer: can this classifier's confidence be trusted, how sure are we, and what would fix it?

``assess`` measures, calibrates, finds a threshold and reads the result in plain words. The command line and the report page
show what it returns; ``to_json`` is its stable form, described in docs/eval-json.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

import numpy as np

from distilcal.calibrate import FITS, Calibrator, Temperature, cross_fitted
from distilcal.errors import InputError
from distilcal.metrics import CALIBRATION_ERRORS, Comparison, Evaluation, Reliability, compare, evaluate, reliability
from distilcal.metrics.evaluate import Progress
from distilcal.metrics.rows import Closed, Rows
from distilcal.predictions import FloatArray, IntArray, Predictions
from distilcal.selective import RiskCoverage, Threshold, aurc, excess_aurc, risk_coverage, threshold

SCHEMA = "distilcal.eval/1"
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
    resamples: int | None
    reading: tuple[str, ...]
    next_steps: tuple[str, ...]


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
    """Measure ``test``; calibrate on ``calib``; compare with ``other``; look at ``ood`` sets; read the result.

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
    chosen_on = test if calib is None else cross_fitted(calib, FITS[method], seed=seed)
    limit = threshold(chosen_on, accuracy=accuracy, confidence=confidence)
    checks = tuple(_check(limit, p) for p in (scored if calib is not None else scored[1:]))
    comparison = None
    if other is not None:
        comparison = compare(test, other, intervals=intervals, bins=bins, closed=closed, seed=seed, progress=steps.part())
    draft = Assessment(
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
        reading=(),
        next_steps=(),
    )
    return replace(draft, reading=tuple(_reading(draft)), next_steps=tuple(_next_steps(draft)))


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


def to_json(assessment: Assessment) -> dict[str, Any]:
    """The assessment as plain values for ``json.dumps``; keys are stable within ``SCHEMA``, non-finite numbers are None."""
    a = assessment
    content = {
        "schema": SCHEMA,
        "test": _set_json(a.test),
        "calibration": None
        if a.calibrator is None or a.calibrated is None
        else {
            "method": a.calibrator.kind,
            "temperature": a.calibrator.value if isinstance(a.calibrator, Temperature) else None,
            "on": a.calibrated_on,
            "fit": a.calibrator.fit,
            "test": _set_json(a.calibrated),
        },
        "threshold": {**asdict(a.threshold), "chosen_on": a.threshold_on, "checks": a.checks},
        "ood": [{"before": _set_json(x), "after": None if y is None else _set_json(y)} for x, y in a.ood],
        "comparison": None if a.comparison is None else _comparison_json(a.comparison),
        "resamples": a.resamples,
        "reading": a.reading,
        "next": a.next_steps,
    }
    plain: dict[str, Any] = _plain(content)
    return plain


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
    for k, (name, question) in enumerate(zip(predictions.classes, rows.classes, strict=True)):
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


def _reading(a: Assessment) -> Iterable[str]:
    """The result in plain words, a sentence for each question."""
    yield _calibration_sentence(a.test)
    if a.calibrated is not None and a.calibrator is not None:
        yield _repair_sentence(a.test, a.calibrated, a.calibrator)
    yield _threshold_sentence(a)
    for before, after in a.ood:
        yield _shift_sentence(a.calibrated or a.test, after or before, calibrated=after is not None)
    if a.comparison is not None:
        yield _comparison_sentence(a.comparison)


def _calibration_sentence(report: SetReport) -> str:
    claimed, kept = report.value("confidence"), report.value("accuracy")
    ece = report.evaluation["ece"]
    off = (claimed - kept) * 100
    facts = f"it claims {claimed:.1%} and gets {kept:.1%} right on {report.evaluation.rows:,} rows"
    if ece.beyond_chance is False:
        return (
            f"No miscalibration can be told from chance: {facts}; ECE {ece.value:.3f}, where chance alone gives {ece.null:.3f}."
        )
    if abs(off) >= 0.6 * ece.value * 100:
        kind = "Overconfident" if off > 0 else "Underconfident"
        return f"{kind} by {abs(off):.1f} points: {facts}; ECE {ece.value:.3f}{_against_chance(ece.null)}."
    return (
        f"Overconfident in places and underconfident in others, which nearly cancels on the whole: {facts}; "
        f"ECE {ece.value:.3f}{_against_chance(ece.null)}."
    )


def _against_chance(null: float | None) -> str:
    return "" if null is None else f", where chance alone gives {null:.3f}"


def _repair_sentence(before: SetReport, after: SetReport, calibrator: Calibrator) -> str:
    name = (
        f"Temperature {calibrator.value:.2f}"
        if isinstance(calibrator, Temperature)
        else f"{calibrator.kind.title()} calibration"
    )
    first, last = before.evaluation["ece"], after.evaluation["ece"]
    moved = f"ECE {first.value:.3f} → {last.value:.3f}"
    note = f" ({calibrator.fit.message})" if calibrator.fit.message and not calibrator.fit.converged else ""
    if last.value >= first.value:
        return f"{name} does not help here: {moved}{note}."
    if last.beyond_chance is False:
        return f"{name} fixes all of it that can be told from chance: {moved}{note}."
    floor = last.null or 0.0
    fixed = (first.value - last.value) / max(first.value - floor, 1e-12)
    return f"{name} fixes {'most' if fixed > 0.5 else 'some'} of it: {moved}{note}."


def _threshold_sentence(a: Assessment) -> str:
    limit = a.threshold
    if limit.confidence is None:
        return limit.message[0].upper() + limit.message[1:] + "."
    here = a.checks[0] if a.calibrated is not None else None
    if here is None:
        return (
            f"Accept above {limit.confidence:.3f} for {limit.wanted:.0%} accuracy: {limit.to_human:.0%} go to a human "
            f"(chosen on these same rows; {limit.accuracy:.1%} of the accepted are right)."
        )
    got = "nothing is accepted" if math.isnan(here.accuracy) else f"{here.accuracy:.1%} of the accepted are right"
    return (
        f"Accept above {limit.confidence:.3f} for {limit.wanted:.0%} accuracy (chosen on {a.threshold_on}): on {here.name} {got} "
        f"and {1 - here.coverage:.0%} go to a human."
    )


def _shift_sentence(home: SetReport, away: SetReport, *, calibrated: bool) -> str:
    fall = (home.value("accuracy") - away.value("accuracy")) * 100
    off = (away.value("confidence") - away.value("accuracy")) * 100
    what = "calibrated" if calibrated else "uncalibrated"
    level = f"accuracy {'falls' if fall >= 0 else 'rises'} by {abs(fall):.1f} points to {away.value('accuracy'):.1%}"
    if away.evaluation["ece"].beyond_chance is False:
        return f"On {away.name} {level} and the {what} confidence follows: ECE {away.value('ece'):.3f}, no more than chance."
    kind = "overconfident" if off > 0 else "underconfident"
    return (
        f"On {away.name} {level}, and the {what} confidence is {kind} by {abs(off):.1f} points there "
        f"(ECE {away.value('ece'):.3f} against {home.value('ece'):.3f} at home)."
    )


def _comparison_sentence(c: Comparison) -> str:
    def listed(side: str) -> str:
        return ", ".join(name for name, d in c.differences.items() if d.better == side)

    better_a, better_b = listed("a"), listed("b")
    if not better_a and not better_b:
        return f"On the {c.rows:,} rows they share, {c.a} and {c.b} cannot be told apart on any metric."
    parts = [f"{name} is better on {what}" for name, what in ((c.a, better_a), (c.b, better_b)) if what]
    return f"On the {c.rows:,} rows they share, {' and '.join(parts)}; other differences may be chance."


def _next_steps(a: Assessment) -> Iterable[str]:
    if a.calibrated is None:
        if a.test.evaluation["ece"].beyond_chance is not False:
            yield "Give predictions on a development split with --calib to fit a temperature and see what it mends."
        yield "Choose the threshold on a development split (--calib): chosen on the test rows it flatters itself."
    elif a.calibrator is not None:
        if isinstance(a.calibrator, Temperature):
            yield f"Divide the logits by {a.calibrator.value:.4g} before the softmax, or keep the fit with --save-calibrator."
        else:
            yield "Keep the fit with --save-calibrator and apply it with distilcal.calibrate.load_calibrator."
        if a.calibrated.evaluation["ece"].beyond_chance:
            methods = ", ".join(m for m in FITS if m != a.calibrator.kind)
            yield f"Some miscalibration is left: try --method with one of {methods}."
    if not a.ood:
        yield "Try it on data from elsewhere with --ood: calibration at home says little about calibration away."
    elif any((after or before).evaluation["ece"].beyond_chance for before, after in a.ood):
        yield "Do not use the threshold on the shifted data as it is: choose one on labelled rows from there."
    if a.test.evaluation.rows < 1000:
        yield f"Measure on more rows: with {a.test.evaluation.rows:,} the intervals are wide and chance alone gives a visible error."


def _set_json(report: SetReport) -> dict[str, Any]:
    e = report.evaluation
    return {
        "name": report.name,
        "rows": e.rows,
        "classes": e.classes,
        "level": e.level,
        "metrics": {
            name: {
                "value": f.value,
                "low": f.low,
                "high": f.high,
                "null": f.null,
                "null_high": f.null_high,
                "beyond_chance": f.beyond_chance if name in CALIBRATION_ERRORS else None,
                "definition": f.definition,
                "params": dict(f.params),
            }
            for name, f in e.figures.items()
        },
        "aurc": report.aurc,
        "excess_aurc": report.excess_aurc,
        "reliability": report.reliability,
        "histogram": {"right": report.right, "wrong": report.wrong},
        "per_class": report.classes,
    }


def _comparison_json(c: Comparison) -> dict[str, Any]:
    return {"a": c.a, "b": c.b, "rows": c.rows, "level": c.level, "differences": dict(c.differences)}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(item) for key, item in vars(value).items()}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
