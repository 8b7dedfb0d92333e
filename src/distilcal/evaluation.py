"""The one place that measures Predictions for ``distilcal eval``, for runs and for studies.

- ``evaluate_model`` answers ``distilcal eval``: metrics with intervals, calibration, a threshold, shifted sets, a comparison.
- ``evaluate_splits`` is what a run stores about one of its models: every split before and after calibration.
- ``calibrate_splits`` calibrates every split of a model, for what is chosen on dev and checked elsewhere.
- ``compare_models`` compares a model with others on the same rows.
- ``class_scores`` and ``macro_f1`` are precision, recall and F1 of every class.
- ``bootstrap_splits`` keeps bootstrap replicates, from which a study compares models later.

``distilcal.report`` shows the results and computes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.calibrate import FITS, Calibrator, Dirichlet, cross_fitted, fit_dirichlet, fit_temperature
from distilcal.errors import InputError
from distilcal.metrics import (
    Closed,
    Comparison,
    Evaluation,
    OnProgress,
    Reliability,
    compare,
    evaluate,
    reliability,
    replicates,
)
from distilcal.metrics.rows import Rows
from distilcal.predictions import FloatArray, IntArray, Predictions
from distilcal.selective import RiskCoverage, Threshold, area_under, aurc, excess_area, risk_coverage, threshold

EXACT_DECIMALS = 9  # of log-probabilities that are compared: equal rows come from the same input
SINGLE_DECIMALS = 5  # the same, where one of two sets was saved in single precision
SAME_ID_TOLERANCE = 1e-3  # of log-probabilities of rows that have the same id
RESAMPLED_ENTRIES = 1_000_000_000  # rows × classes × resamples that take about twenty seconds
RUN_METRICS = ("accuracy", "confidence", "nll", "brier", "ece", "ada_ece", "sce", "oe", "entropy")
COMPARED_METRICS = ("accuracy", "nll", "brier", "ece")
RUN_RESAMPLES = 1000


@dataclass(frozen=True)
class ClassEvaluation:
    """How well one class is predicted.

    Attributes
    ----------
    name : str
        Name of the class.
    rows, predicted : int
        Rows with this label, and rows with this prediction.
    recall : float
        Share of the rows of this class that are predicted correctly; nan if it has no row.
    precision : float
        Share of the predictions of this class that are correct; nan if it is never predicted.
    mean_probability : float
        Mean predicted probability of the class over all rows.
    frequency : float
        Share of all rows with this label.
    error : float
        The class-wise calibration error of this class, whose mean over classes is ``sce``.
    """

    name: str
    rows: int
    predicted: int
    recall: float
    precision: float
    mean_probability: float
    frequency: float
    error: float


@dataclass(frozen=True)
class ClassScores:
    """How often one class is predicted, and how often rightly.

    Attributes
    ----------
    name : str
        Name of the class.
    rows, predicted : int
        Rows with this label, and rows with this prediction.
    precision : float
        Share of the predictions of this class that are correct; nan if it is never predicted.
    recall : float
        Share of the rows of this class that are predicted correctly; nan if it has no row.
    f1 : float
        Harmonic mean of both, 2 · correct / (rows + predicted); nan if it has no row and is never predicted.
    """

    name: str
    rows: int
    predicted: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class SetEvaluation:
    """Everything that is measured on one set of predictions.

    Attributes
    ----------
    name : str
        Name of the predictions.
    evaluation : Evaluation
        Every metric with its interval.
    reliability : Reliability
        The bins of the reliability diagram.
    curve : RiskCoverage
        Risk at every coverage.
    aurc, excess_aurc : float
        Area under that curve, and the part of it that a perfect ranking would avoid.
    classes : tuple of ClassEvaluation
        One entry for each class; empty for predictions that hold confidences only.
    """

    name: str
    evaluation: Evaluation
    reliability: Reliability
    curve: RiskCoverage
    aurc: float
    excess_aurc: float
    classes: tuple[ClassEvaluation, ...]

    def value(self, name: str) -> float:
        """Return the value of a metric."""
        return self.evaluation[name].value


@dataclass(frozen=True)
class ThresholdCheck:
    """What a threshold does on a set that it was not chosen on.

    Attributes
    ----------
    name : str
        Name of the predictions.
    accuracy : float
        Share of the accepted rows that are predicted correctly; nan if none is accepted.
    coverage : float
        Share of the rows that are accepted.
    """

    name: str
    accuracy: float
    coverage: float


@dataclass(frozen=True)
class ModelEvaluation:
    """The result of ``evaluate_model``.

    Attributes
    ----------
    test : SetEvaluation
        The test set with the scores as given.
    calibrated : SetEvaluation or None
        The test set after calibration; None without a calibration set.
    calibrator : Calibrator or None
        The fitted calibrator.
    calibrated_on : str or None
        Name of the calibration set.
    threshold : Threshold
        The confidence from which predictions are accepted.
    threshold_on : str
        Name of the set on which it was chosen.
    checks : tuple of ThresholdCheck
        The threshold on the test set (if it was chosen on the calibration set) and on every shifted set.
    ood : tuple of (SetEvaluation, SetEvaluation or None)
        Every shifted set before and after calibration.
    comparison : Comparison or None
        The test predictions against those of the other model.
    resamples : int
        Number of bootstrap resamples behind every interval.
    overlap : SharedRows or None
        The test rows that the calibration set holds too, recognised by their content; None without one.
    """

    test: SetEvaluation
    calibrated: SetEvaluation | None
    calibrator: Calibrator | None
    calibrated_on: str | None
    threshold: Threshold
    threshold_on: str
    checks: tuple[ThresholdCheck, ...]
    ood: tuple[tuple[SetEvaluation, SetEvaluation | None], ...]
    comparison: Comparison | None
    resamples: int
    overlap: SharedRows | None = None


@dataclass(frozen=True)
class ScoreEvaluation:
    """What a run stores about one set of scores: metrics with intervals, AURC, and the reliability diagram."""

    evaluation: Evaluation
    aurc: float
    reliability: Reliability


@dataclass(frozen=True)
class SplitEvaluation:
    """One split of a run: scores as given, scores after calibration, and what the threshold does there.

    ``calibrated`` is None where nothing was calibrated, ``check`` where no threshold was chosen.
    """

    given: ScoreEvaluation
    calibrated: ScoreEvaluation | None
    check: ThresholdCheck | None


@dataclass(frozen=True)
class SplitsEvaluation:
    """The result of ``evaluate_splits``: the calibrator, the threshold, and every split by name."""

    calibrator: Calibrator | None
    threshold: Threshold | None
    splits: Mapping[str, SplitEvaluation]


@dataclass(frozen=True)
class SplitsBootstrap:
    """The result of ``bootstrap_splits``.

    Attributes
    ----------
    temperature : float
        The temperature fitted on dev.
    values : dict
        Split → state (``"given"`` or ``"scaled"``) → metric → value.
    samples : dict
        The same keys → bootstrap replicates (resamples,).
    """

    temperature: float
    values: Mapping[str, Mapping[str, Mapping[str, float]]]
    samples: Mapping[str, Mapping[str, Mapping[str, FloatArray]]]


# ---- distilcal eval ----------------------------------------------------------------------------------------------------


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
    """Evaluate a model from its predictions: how far its confidence can be trusted, and what would fix it.

    Parameters
    ----------
    test : Predictions
        The predictions to evaluate.
    calib : Predictions, optional
        Predictions on a development set. The calibrator is fitted and the threshold is chosen on them.
    other : Predictions, optional
        Predictions of another model on rows of ``test``, to compare with.
    ood : sequence of Predictions
        Predictions on shifted data.
    method : str
        Calibration method, a key of ``distilcal.calibrate.FITS``.
    bins : int
        Number of bins of the binned calibration errors.
    closed : {"right", "left"}
        Whether bins are (lo, hi] or [lo, hi).
    intervals : int, optional
        Number of bootstrap resamples; by default 1,000, or as many as take about twenty seconds a set.
    accuracy : float
        The accuracy that accepted predictions should have.
    confidence : float
        The probability with which the threshold keeps that promise.
    seed : int
        Seed of the resampling.
    on_progress : callable, optional
        Called with the share of the work that is done.

    Returns
    -------
    ModelEvaluation

    Raises
    ------
    InputError
        If the method is unknown, if the sets differ in their classes, or if more than half of the test rows are in the
        calibration set.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(600, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)  # calibrated at temperature 1
    >>> overconfident = Predictions.from_logits(3 * logits, labels)
    >>> dev, test = overconfident.select(np.arange(300)).rename("dev"), overconfident.select(np.arange(300, 600)).rename("test")
    >>> result = evaluate_model(test, dev, intervals=100)
    >>> result.calibrated.value("ece") < result.test.value("ece")
    True
    """
    if method not in FITS:
        raise InputError(f"unknown calibration method {method!r}", remedy=f"choose one of {', '.join(FITS)}")
    ood = [_with_classes_of(test, shifted) for shifted in ood]
    sets = [test, *ood]
    overlap = None
    if calib is not None:
        calib = _with_classes_of(test, calib)
        overlap = check_overlap(test, calib)
    if intervals is None:
        largest = max(predictions.logits.size for predictions in sets)
        intervals = int(np.clip(RESAMPLED_ENTRIES // largest, 100, 1000))
    evaluations = len(sets) if calib is None else 2 * len(sets)
    steps = _ProgressParts(on_progress, evaluations + (other is not None))

    def evaluate_each(all_predictions: Sequence[Predictions]) -> list[SetEvaluation]:
        return [
            evaluate_set(p, bins=bins, closed=closed, intervals=intervals, seed=seed, on_progress=steps.next_part())
            for p in all_predictions
        ]

    before = evaluate_each(sets)
    calibrator = None
    after: Sequence[SetEvaluation | None] = [None] * len(sets)
    if calib is None:
        chosen_on = test
        limit = threshold(test, accuracy=accuracy, confidence=confidence)
        checked = ood
    else:
        calibrator = FITS[method](calib)
        checked = [calibrator(predictions) for predictions in sets]
        after = evaluate_each(checked)
        chosen_on = cross_fitted(calib, _refit(calibrator), seed=seed)
        limit = threshold(chosen_on, accuracy=accuracy, confidence=confidence)
    comparison = None
    if other is not None:
        comparison = compare(
            test, other, intervals=intervals, bins=bins, closed=closed, seed=seed, on_progress=steps.next_part()
        )
    return ModelEvaluation(
        test=before[0],
        calibrated=after[0],
        calibrator=calibrator,
        calibrated_on=None if calib is None else calib.name,
        threshold=limit,
        threshold_on=chosen_on.name,
        checks=tuple(check_threshold(limit, predictions) for predictions in checked),
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
    """Measure one set of predictions: metrics, reliability, risk at every coverage, and every class.

    Parameters
    ----------
    predictions : Predictions
        The predictions to measure.
    bins, closed, intervals, seed, on_progress
        As in ``distilcal.metrics.evaluate``.

    Returns
    -------
    SetEvaluation

    Examples
    --------
    >>> predictions = Predictions.from_probs([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    >>> result = evaluate_set(predictions, intervals=None)
    >>> round(result.value("ece"), 4), [c.rows for c in result.classes]
    (0.4, [1, 2])
    """
    evaluation = evaluate(predictions, intervals=intervals, bins=bins, closed=closed, seed=seed, on_progress=on_progress)
    curve = risk_coverage(predictions)
    classes = () if predictions.confidence_only else tuple(_evaluate_classes(predictions, bins, closed))
    return SetEvaluation(
        name=predictions.name,
        evaluation=evaluation,
        reliability=reliability(predictions, bins=bins, closed=closed),
        curve=curve,
        aurc=area_under(curve),
        excess_aurc=excess_area(curve),
        classes=classes,
    )


def class_scores(predictions: Predictions) -> list[ClassScores]:
    """Compute precision, recall and F1 of every class.

    Parameters
    ----------
    predictions : Predictions
        Predictions of labelled rows.

    Returns
    -------
    list of ClassScores
        In the order of the classes.

    Examples
    --------
    >>> predictions = Predictions.from_probs([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], classes=("no", "yes"))
    >>> [(c.name, c.precision, c.recall, round(c.f1, 3)) for c in class_scores(predictions)]
    [('no', 0.5, 1.0, 0.667), ('yes', 1.0, 0.5, 0.667)]
    """
    classes = len(predictions.classes)
    rows = np.bincount(predictions.labels, minlength=classes)
    predicted = np.bincount(predictions.predicted, minlength=classes)
    correct = np.bincount(predictions.labels[predictions.correct], minlength=classes)
    with np.errstate(invalid="ignore"):  # 0 / 0: a class that does not occur
        precision, recall, f1 = correct / predicted, correct / rows, 2 * correct / (rows + predicted)
    return [
        ClassScores(name, int(rows[k]), int(predicted[k]), float(precision[k]), float(recall[k]), float(f1[k]))
        for k, name in enumerate(predictions.classes)
    ]


def macro_f1(classes: Sequence[ClassScores]) -> float:
    """Compute the mean F1 over the classes that occur: among the labels, or among the predictions.

    Parameters
    ----------
    classes : sequence of ClassScores
        What ``class_scores`` returned.

    Returns
    -------
    float
        In [0, 1]; every class counts the same, however rare it is.

    Examples
    --------
    >>> predictions = Predictions.from_probs([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    >>> round(macro_f1(class_scores(predictions)), 3)
    0.667
    """
    return float(np.nanmean([scores.f1 for scores in classes]))


def check_threshold(limit: Threshold, predictions: Predictions) -> ThresholdCheck:
    """Apply a threshold to predictions that it was not chosen on.

    Parameters
    ----------
    limit : Threshold
        The threshold; one that promises nothing accepts no row.
    predictions : Predictions
        The predictions, calibrated as those on which the threshold was chosen.

    Returns
    -------
    ThresholdCheck

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.uniform(0.5, 1.0, 4000)
    >>> predictions = Predictions.from_confidences(confidence, rng.random(4000) < confidence)
    >>> limit = threshold(predictions.select(np.arange(2000)), accuracy=0.9)
    >>> check = check_threshold(limit, predictions.select(np.arange(2000, 4000)))
    >>> check.accuracy > 0.88
    True
    """
    if limit.confidence is None:
        return ThresholdCheck(predictions.name, accuracy=math.nan, coverage=0.0)
    accepted = predictions.confidence >= limit.confidence
    accuracy = float(predictions.correct[accepted].mean()) if accepted.any() else math.nan
    return ThresholdCheck(predictions.name, accuracy=accuracy, coverage=float(accepted.mean()))


@dataclass(frozen=True)
class SharedRows:
    """How many rows of one set are in another too.

    Attributes
    ----------
    rows : int
        Rows of the first set with the same probabilities and label as a row of the second; 0 if chance explains them.
    by_chance : float
        How many rows would be equal by chance alone, as the repetitions within the sets tell.
    total : int
        Rows of the first set.
    """

    rows: int
    by_chance: float
    total: int

    @property
    def share(self) -> float:
        """The share of the first set's rows that are in the second."""
        return self.rows / self.total


def shared_rows(test: Predictions, other: Predictions) -> SharedRows:
    """Count the rows of ``test`` that are in ``other`` too.

    Rows with the same id are compared with each other: the same number in two files need not be the same example. All rows are
    compared in full precision and, as one set may have been saved in single precision, to five decimals of their
    log-probabilities. Rows that were rounded, or of models that are certain, repeat within a set too: that tells how many equal
    rows are to be expected by chance, and only more than these count.

    Parameters
    ----------
    test, other : Predictions
        Two sets with the same classes in the same order.

    Returns
    -------
    SharedRows

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> predictions = Predictions.from_logits(rng.normal(size=(100, 3)), np.zeros(100, int))
    >>> shared_rows(predictions, predictions.select(np.arange(50)))
    SharedRows(rows=50, by_chance=0.0, total=100)
    """
    found = [_same_rows(test, other, EXACT_DECIMALS), _same_rows(test, other, SINGLE_DECIMALS, at_least=3)]
    if test.ids is not None and other.ids is not None:
        found.append(_same_ids(test, other))
    return max(found, key=lambda shared: shared.rows)


def check_overlap(test: Predictions, calib: Predictions) -> SharedRows:
    """Return how many test rows are in the calibration set; more than half is an error.

    Parameters
    ----------
    test, calib : Predictions
        Two sets with the same classes in the same order.

    Returns
    -------
    SharedRows

    Raises
    ------
    InputError
        If the test would be on the rows of the fit.
    """
    overlap = shared_rows(test, calib)
    if overlap.share > 0.5:
        raise InputError(
            f"{overlap.share:.0%} of the rows of {test.name!r} are in {calib.name!r} too (by chance "
            f"{overlap.by_chance / overlap.total:.0%} would be): the test would be on the rows of the fit",
            remedy="calibrate on other rows: split them with Predictions.split",
        )
    return overlap


# ---- runs and studies --------------------------------------------------------------------------------------------------


def evaluate_splits(
    predictions: Mapping[str, Predictions], *, method: str | None, accuracy: float, resamples: int = RUN_RESAMPLES
) -> SplitsEvaluation:
    """Evaluate one model on every split: calibrated on dev, with a threshold that is chosen on dev.

    Parameters
    ----------
    predictions : mapping of str to Predictions
        The model's predictions by the name of the split. Without ``"dev"`` nothing is calibrated or chosen.
    method : str or None
        Calibration method, a key of ``distilcal.calibrate.FITS``; None to leave the scores as they are.
    accuracy : float
        The accuracy that accepted predictions should have.
    resamples : int
        Number of bootstrap resamples behind every interval.

    Returns
    -------
    SplitsEvaluation

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(400, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> all_rows = Predictions.from_logits(2 * logits, labels)
    >>> dev, test = all_rows.select(np.arange(200)), all_rows.select(np.arange(200, 400))
    >>> result = evaluate_splits({"dev": dev, "test": test}, method="temperature", accuracy=0.5, resamples=50)
    >>> result.calibrator.kind, sorted(result.splits)
    ('temperature', ['dev', 'test'])
    """
    dev = predictions.get("dev")
    calibrator, limit = None, None
    if dev is not None and method is not None:
        calibrator = FITS[method](dev)
        limit = threshold(cross_fitted(dev, FITS[method], seed=0), accuracy=accuracy)
    elif dev is not None:
        limit = threshold(dev, accuracy=accuracy)
    splits = {}
    for name, given in predictions.items():
        scores = given if calibrator is None else calibrator(given)
        splits[name] = SplitEvaluation(
            given=_evaluate_scores(given, resamples),
            calibrated=None if calibrator is None else _evaluate_scores(scores, resamples),
            check=None if limit is None else check_threshold(limit, scores),
        )
    return SplitsEvaluation(calibrator, limit, splits)


def calibrate_splits(predictions: Mapping[str, Predictions], calibrator: Calibrator | None) -> dict[str, Predictions]:
    """Calibrate every split of a model, and dev fold by fold, so that none of its rows is calibrated by a fit to its label.

    Parameters
    ----------
    predictions : mapping of str to Predictions
        The model's predictions by the name of the split.
    calibrator : Calibrator or None
        What was fitted on dev; None leaves the scores as they are.

    Returns
    -------
    dict of str to Predictions

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> dev = Predictions.from_logits(5 * rng.normal(size=(50, 3)), rng.integers(0, 3, 50), name="dev")
    >>> calibrated = calibrate_splits({"dev": dev, "test": dev}, fit_temperature(dev))
    >>> bool(calibrated["dev"].row_nll.mean() > calibrated["test"].row_nll.mean())  # its own labels are not used
    True
    """
    if calibrator is None:
        return dict(predictions)
    calibrated = {name: calibrator(given) for name, given in predictions.items()}
    if "dev" in calibrated:
        calibrated["dev"] = cross_fitted(predictions["dev"], _refit(calibrator), seed=0)
    return calibrated


def compare_models(main: Predictions, others: Sequence[Predictions], *, resamples: int = RUN_RESAMPLES) -> list[Comparison]:
    """Compare one model with each of the others, on the rows that they share.

    Parameters
    ----------
    main : Predictions
        Predictions of the model that the others are compared with; ``b`` of every comparison.
    others : sequence of Predictions
        Predictions of the other models, ``a`` of their comparison. A model on other rows or other classes is left out.
    resamples : int
        Number of bootstrap resamples.

    Returns
    -------
    list of Comparison
        Named after the predictions.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 100)
    >>> good = Predictions.from_logits(np.eye(3)[labels] + rng.normal(size=(100, 3)) / 2, labels, name="student")
    >>> poor = Predictions.from_logits(rng.normal(size=(100, 3)), labels, name="teacher")
    >>> [comparison] = compare_models(good, [poor], resamples=200)
    >>> comparison["accuracy"].better
    'b'
    """
    comparisons = []
    for predictions in (main, *others):
        predictions.require_labels()
    for other in others:
        try:
            comparisons.append(compare(other, main, COMPARED_METRICS, intervals=resamples))
        except InputError:
            continue  # runs on other data have no rows in common
    return comparisons


def bootstrap_splits(
    predictions: Mapping[str, Predictions],
    splits: Sequence[str],
    metrics: Mapping[str, Mapping[str, Any]],
    *,
    resamples: int,
    clusters: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    grid: tuple[float, float, float] | None = None,
) -> SplitsBootstrap:
    """Compute metrics with bootstrap replicates on splits, as given and scaled by the temperature that fits dev.

    Splits of the same size are resampled with the same rows for every model, so that differences of replicates are paired.

    Parameters
    ----------
    predictions : mapping of str to Predictions
        Predictions by the name of the split, with ``"dev"``.
    splits : sequence of str
        The splits to measure.
    metrics : mapping
        Name → ``{"metric": name in METRICS, **parameters}``.
    resamples : int
        Number of replicates.
    clusters : mapping of str to array (N,)
        The source of each row, for the splits whose rows share sources.
    grid : (first, last, step), optional
        Temperatures among which the best on dev is taken; by default the optimum is computed exactly.

    Returns
    -------
    SplitsBootstrap

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> dev = Predictions.from_logits(rng.normal(size=(50, 3)), rng.integers(0, 3, 50), name="dev")
    >>> result = bootstrap_splits({"dev": dev}, ["dev"], {"ece": {"metric": "ece", "bins": 5}}, resamples=20)
    >>> result.samples["dev"]["scaled"]["ece"].shape
    (20,)
    """
    calibrator = fit_temperature(predictions["dev"], grid=grid)
    values: dict[str, dict[str, dict[str, float]]] = {}
    samples: dict[str, dict[str, dict[str, FloatArray]]] = {}
    for split in splits:
        values[split], samples[split] = {}, {}
        states = {"given": predictions[split], "scaled": calibrator(predictions[split])}
        for state, scores in states.items():
            results = replicates(scores, metrics, resamples, clusters=clusters.get(split))
            values[split][state] = {name: value for name, (value, _) in results.items()}
            samples[split][state] = {name: drawn for name, (_, drawn) in results.items()}
    return SplitsBootstrap(calibrator.value, values, samples)


# ---- helpers -----------------------------------------------------------------------------------------------------------


class _ProgressParts:
    """Reports the progress of several equal parts as the progress of the whole."""

    def __init__(self, on_progress: OnProgress | None, parts: int):
        self.on_progress = on_progress
        self.parts = parts
        self.started = 0

    def next_part(self) -> OnProgress | None:
        """Return the callback of the next part."""
        if self.on_progress is None:
            return None
        on_progress, finished = self.on_progress, self.started
        self.started += 1
        return lambda share: on_progress((finished + share) / self.parts)


def _evaluate_scores(predictions: Predictions, resamples: int) -> ScoreEvaluation:
    return ScoreEvaluation(
        evaluation=evaluate(predictions, RUN_METRICS, intervals=resamples),
        aurc=aurc(predictions),
        reliability=reliability(predictions),
    )


def _refit(calibrator: Calibrator) -> Callable[[Predictions], Calibrator]:
    """Return the function that repeats a fit on other rows; penalties that were searched for are kept."""
    if isinstance(calibrator, Dirichlet):
        return partial(fit_dirichlet, penalty=calibrator.penalty, bias_penalty=calibrator.bias_penalty)
    return FITS[calibrator.kind]


def _with_classes_of(test: Predictions, predictions: Predictions) -> Predictions:
    """Return predictions with the classes in the order of the test set."""
    if predictions.confidence_only != test.confidence_only:
        raise InputError(
            f"{predictions.name!r} and {test.name!r} differ in form",
            remedy="give class probabilities in both, or confidences in both",
        )
    return predictions if test.confidence_only else predictions.reorder_classes(test.classes)


def _same_rows(test: Predictions, other: Predictions, decimals: int, at_least: int = 1) -> SharedRows:
    """The rows of ``test`` with an equal one in ``other``, unless repetitions within the sets explain them."""
    keys, other_keys = _row_keys(test, decimals), _row_keys(other, decimals)
    rows = int(np.isin(keys, other_keys).sum())
    # A row meets an equal one among the others of its own set as often as among as many rows of another one.
    repeated, other_repeated = _share_repeated(keys), _share_repeated(other_keys)
    by_chance = len(test) * max(1 - (1 - repeated) ** (len(other) / max(len(test) - 1, 1)), other_repeated)
    variance = by_chance * max(1.0, len(test) / len(other))
    is_chance = rows < at_least or rows <= by_chance + 4 * math.sqrt(variance)
    return SharedRows(0 if is_chance else rows, by_chance, len(test))


def _same_ids(test: Predictions, other: Predictions) -> SharedRows:
    """The rows of ``test`` that are equal to the row of ``other`` with the same id, if most of those with a common id are."""
    assert test.ids is not None
    assert other.ids is not None
    ids, rows, other_rows = np.intersect1d(test.ids, other.ids, return_indices=True)
    if not len(ids):
        return SharedRows(0, 0.0, len(test))
    log_probs, other_log_probs = _log_probs(test)[rows], _log_probs(other)[other_rows]
    labels, other_labels = test.labels[rows], other.labels[other_rows]

    def count_equal(order: IntArray) -> int:
        near = np.abs(log_probs - other_log_probs[order]).max(axis=1) <= SAME_ID_TOLERANCE
        return int((near & (labels == other_labels[order])).sum())

    positions = np.arange(len(ids))
    by_chance = float(count_equal(np.roll(positions, 1))) if len(ids) > 1 else 0.0
    equal = count_equal(positions)
    is_same_example = equal - by_chance > (len(ids) - by_chance) / 2  # else ids count the rows of each file
    return SharedRows(equal if is_same_example else 0, by_chance, len(test))


def _share_repeated(keys: NDArray[Any]) -> float:
    """The share of rows that have an equal one in their own set."""
    _, counts = np.unique(keys, return_counts=True)
    return float(counts[counts > 1].sum() / len(keys))


def _log_probs(predictions: Predictions) -> FloatArray:
    with np.errstate(divide="ignore"):
        log_probs: FloatArray = np.maximum(np.log(predictions.probs), -999.0)
    return log_probs


def _row_keys(predictions: Predictions, decimals: int) -> NDArray[Any]:
    """Return one comparable value for the probabilities and label of each row."""
    table = np.column_stack([_log_probs(predictions).round(decimals) + 0.0, predictions.labels])  # no -0
    return np.ascontiguousarray(table).view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()


def _evaluate_classes(predictions: Predictions, bins: int, closed: Closed) -> Iterator[ClassEvaluation]:
    n = len(predictions)
    mean_probability = predictions.probs.mean(axis=0)
    questions = Rows.of(predictions).by_class()
    for k, (scores, question) in enumerate(zip(class_scores(predictions), questions, strict=True)):
        gaps = question.gaps(question.width_cuts(bins, closed))
        yield ClassEvaluation(
            name=scores.name,
            rows=scores.rows,
            predicted=scores.predicted,
            recall=scores.recall,
            precision=scores.precision,
            mean_probability=float(mean_probability[k]),
            frequency=scores.rows / n,
            error=float(np.abs(gaps).sum() / n),
        )
