"""Metrics with bootstrap intervals and null values, and paired comparisons of two sets of predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from distilcal.arguments import checked
from distilcal.errors import InputError
from distilcal.metrics.class_wise import SHARED_VARIANTS, class_means
from distilcal.metrics.definitions import (
    ALL_METRICS,
    CALIBRATION_ERRORS,
    HIGHER_IS_BETTER,
    HUMAN_METRICS,
    METRICS,
    NO_DIRECTION,
    TOP_LABEL,
    UPPER_LIMIT,
    definition,
    parameters,
)
from distilcal.metrics.intervals import centred_interval, holm, is_significant, paired_interval
from distilcal.metrics.rows import Closed, Rows
from distilcal.predictions import FloatArray, Predictions, join

MOST_RESAMPLES = 100_000
NULL_DRAWS = 200  # label sets behind a null value; its mean needs far fewer than an interval's ends
CHUNK_BYTES = 1 << 27  # memory for the resamples that are processed at a time

ArrayMetric = Callable[..., float]  # f(probs, labels)
MetricChoice = Annotated[Sequence[str] | Mapping[str, Mapping[str, Any] | ArrayMetric] | None, "checked by _choose_metrics"]
OnProgress = Callable[[float], None]  # called with the share of the work that is done


@dataclass(frozen=True)
class MetricValue:
    """The value of a metric with what is needed to read it.

    Attributes
    ----------
    name : str
        Name of the metric.
    value : float
        Its value.
    low, high : float or None
        Interval of the sampling spread about the value; None if no intervals were computed.
    null : float or None
        Mean value of a perfectly calibrated model with these confidences and this many rows; None for metrics that are no
        calibration errors.
    null_high : float or None
        95 % of such models have a lower value.
    definition : str
        The definition in words: bins, closed side, norm.
    params : mapping
        The parameters, defaults included.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    null: float | None = None
    null_high: float | None = None
    definition: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def beyond_chance(self) -> bool | None:
        """Whether a calibration error is larger than in 95 % of perfectly calibrated models, and its interval excludes 0."""
        if self.null_high is None:
            return None
        return self.value > self.null_high and (self.low is None or self.low > 0)


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one set of predictions: ``evaluation["ece"].value``. Printed, it is a table.

    Attributes
    ----------
    name : str
        Name of the predictions.
    rows, classes : int
        Number of rows and of classes.
    metrics : mapping of str to MetricValue
        The metrics by name.
    replicates : int or None
        Number of bootstrap resamples.
    level : float
        Coverage of the intervals.
    """

    name: str
    rows: int
    classes: int
    metrics: Mapping[str, MetricValue]
    replicates: int | None
    level: float = 0.95

    def __getitem__(self, name: str) -> MetricValue:
        return self.metrics[name]

    @property
    def values(self) -> dict[str, float]:
        """The values alone, by name."""
        return {name: metric.value for name, metric in self.metrics.items()}

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.rows:,} rows, {self.classes} classes"]
        for metric in self.metrics.values():
            interval = "" if metric.low is None or metric.high is None else f"[{metric.low:.4f}, {metric.high:.4f}]"
            null = "" if metric.null is None else f"null {metric.null:.4f}"
            line = f"  {metric.name:<13}{metric.value:8.4f}  {interval:<18}{null:<13}{metric.definition}"
            lines.append(line.rstrip())
        return "\n".join(lines)


@dataclass(frozen=True)
class Difference:
    """How a metric differs between two sets of predictions on the same rows.

    Attributes
    ----------
    name : str
        Name of the metric.
    a, b : float
        Its values.
    difference : float
        ``b - a``.
    low, high : float
        Paired bootstrap interval of the difference.
    p_value, p_holm : float
        Two-sided p-value, and the same corrected for all metrics of the comparison.
    better : {"a", "b"} or None
        None where the difference may be chance (`is_significant`) or the metric has no direction.
    definition : str
        The definition in words.
    """

    name: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    p_holm: float
    better: str | None
    definition: str = ""


@dataclass(frozen=True)
class Comparison:
    """Paired differences of two sets of predictions: ``comparison["ece"].better``.

    Attributes
    ----------
    a, b : str
        Names of the predictions.
    rows : int
        Number of rows that they share.
    differences : mapping of str to Difference
        The differences by metric.
    replicates : int
        Number of bootstrap resamples.
    level : float
        Coverage of the intervals.
    """

    a: str
    b: str
    rows: int
    differences: Mapping[str, Difference]
    replicates: int
    level: float = 0.95

    def __getitem__(self, name: str) -> Difference:
        return self.differences[name]


@checked
def evaluate(
    predictions: Predictions,
    metrics: MetricChoice = None,
    intervals: int | None = 1000,
    *,
    bins: int = 15,
    closed: Closed = "right",
    level: float = 0.95,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Compute metrics with bootstrap intervals, null values and definitions.

    An interval shows the sampling spread about the value. The bootstrap's own bias (calibration errors grow if rows repeat)
    is removed by centring, and the interval of a calibration error reaches down to 0 where the value is within chance.

    Parameters
    ----------
    predictions : Predictions
        The predictions to evaluate.
    metrics : sequence of str or mapping, optional
        Names of metrics, or a mapping from a name to its parameters or to a function ``f(probs, labels)`` of your own. By
        default every metric that the predictions allow.
    intervals : int or None
        Number of bootstrap resamples; None computes the values alone.
    bins : int
        Number of bins, for every metric that has bins and no parameters of its own.
    closed : {"right", "left"}
        Whether equal-width bins are (lo, hi] or [lo, hi).
    level : float
        Coverage of the intervals.
    seed : int
        Seed of the resampling.
    on_progress : callable, optional
        Called with the share of the work that is done.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        If a metric or one of its parameters is unknown, or if it needs class probabilities and there are confidences only.

    See Also
    --------
    compare : Compare two sets of predictions on the same rows.
    reliability : The bins of a reliability diagram.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> confidence = rng.uniform(0.5, 1.0, 500)
    >>> correct = rng.random(500) < confidence
    >>> ece = evaluate(Predictions.from_confidences(confidence, correct), ["ece"])["ece"]
    >>> ece.low < ece.value < ece.high, ece.beyond_chance
    (True, False)
    """
    chosen = _choose_metrics(predictions, metrics, bins, closed)
    rows = Rows.of(predictions)
    values = {name: float(value) for name, value in _score(rows, chosen).items()}
    samples: dict[str, FloatArray] = {}
    null_samples: dict[str, FloatArray] = {}
    if intervals is not None:
        _check_resampling(intervals, level)
        errors = {name: metric for name, metric in chosen.items() if name in CALIBRATION_ERRORS and not metric.custom}
        progress = _ChunkProgress(on_progress, intervals + (NULL_DRAWS if errors else 0))
        weights = bootstrap_weights(rows, intervals, seed)
        samples = _concatenate(_score(rows.resampled(chunk), chosen) for chunk in progress.count(weights))
        if errors:
            labels = calibrated_labels(rows, NULL_DRAWS, seed)
            null_samples = _concatenate(_score(rows.relabelled(chunk), errors) for chunk in progress.count(labels))
    metric_values = {
        name: _metric_value(name, metric, values[name], samples.get(name), null_samples.get(name), level)
        for name, metric in chosen.items()
    }
    return Evaluation(predictions.name, len(predictions), len(predictions.classes), metric_values, intervals, level)


@checked
def compare(
    a: Predictions,
    b: Predictions,
    metrics: MetricChoice = None,
    intervals: int = 1000,
    *,
    bins: int = 15,
    closed: Closed = "right",
    level: float = 0.95,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Compare two sets of predictions on the rows that they share, with paired bootstrap intervals and p-values.

    Both are resampled with the same rows, so what is hard for both cancels. A p-value is the share of resamples in which the
    difference is as far from its own value as that value is from 0 (where none is, the normal tail of their spread); Holm's
    correction covers all metrics.

    Parameters
    ----------
    a, b : Predictions
        Two sets of predictions. Rows are matched by id, classes by name.
    metrics : sequence of str or mapping, optional
        As in ``evaluate``.
    intervals : int
        Number of bootstrap resamples.
    bins, closed, level, seed, on_progress
        As in ``evaluate``.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        If the predictions share no rows, differ in their classes, or if one holds confidences only.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 200)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(200, 3))
    >>> good = Predictions.from_logits(logits, labels, name="good")
    >>> poor = Predictions.from_logits(rng.normal(size=(200, 3)), labels, name="poor")
    >>> comparison = compare(poor, good, ["accuracy"], intervals=200)
    >>> comparison["accuracy"].better
    'b'
    """
    a, b = join(a, b)
    if a.name == b.name:
        b = b.rename(f"{b.name} (2)")
    chosen = _choose_metrics(a, metrics, bins, closed, votes=a.label_probs is not None and b.label_probs is not None)
    _check_resampling(intervals, level)
    rows_a, rows_b = Rows.of(a), Rows.of(b)

    def differences_on(weights: NDArray[Any]) -> dict[str, FloatArray]:
        scores_a = _score(rows_a.resampled(weights), chosen)
        scores_b = _score(rows_b.resampled(weights), chosen)
        with np.errstate(invalid="ignore"):  # inf - inf is undefined
            return {name: scores_b[name] - scores_a[name] for name in chosen}

    values_a, values_b = _score(rows_a, chosen), _score(rows_b, chosen)
    weights = bootstrap_weights(rows_a, intervals, seed)
    samples = _concatenate(differences_on(chunk) for chunk in _ChunkProgress(on_progress, intervals).count(weights))
    tests = {}
    for name in chosen:
        with np.errstate(invalid="ignore"):
            difference = float(values_b[name]) - float(values_a[name])
            tests[name] = paired_interval(difference, samples[name], len(a), level)
    corrected = dict(zip(tests, holm([p_value for _, _, _, p_value in tests.values()]), strict=True))
    differences = {}
    for name, (difference, low, high, p_value) in tests.items():
        significant = is_significant(low, high, corrected[name], level)
        differences[name] = Difference(
            name=name,
            a=float(values_a[name]),
            b=float(values_b[name]),
            difference=difference,
            low=low,
            high=high,
            p_value=p_value,
            p_holm=corrected[name],
            better=_better(name, chosen[name], difference) if significant else None,
            definition=chosen[name].definition,
        )
    return Comparison(a.name, b.name, len(a), differences, intervals, level)


@checked
def replicates(
    predictions: Predictions,
    metrics: Mapping[str, Mapping[str, Any]],
    count: int,
    *,
    seed: int = 0,
    clusters: NDArray[Any] | None = None,
) -> dict[str, tuple[float, FloatArray]]:
    """Compute metrics with their bootstrap replicates, for comparisons that are made later.

    Sets of the same size are resampled with the same rows, so differences of replicates are paired.

    Parameters
    ----------
    predictions : Predictions
        The predictions.
    metrics : mapping
        Any name → ``{"metric": name in METRICS, **parameters}``.
    count : int
        Number of replicates.
    seed : int
        Seed of the resampling.
    clusters : array (N,), optional
        The source of each row; rows of one source are drawn together. By default each row is a source of its own.

    Returns
    -------
    dict
        Name → value and replicates (count,).

    Examples
    --------
    >>> predictions = Predictions.from_probs([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    >>> value, samples = replicates(predictions, {"ece 5": {"metric": "ece", "bins": 5}}, count=10)["ece 5"]
    >>> round(value, 4), samples.shape
    (0.2, (10,))
    """
    if not 1 <= count <= MOST_RESAMPLES:
        raise InputError(f"{count:,} is not from 1 to {MOST_RESAMPLES:,}", source="count", remedy="give 1,000, for example")
    if clusters is not None and np.shape(clusters) != (len(predictions),):
        raise InputError(
            f"sources of shape {np.shape(clusters)} for {len(predictions)} rows", source="clusters", remedy="give one per row"
        )
    rows = Rows.of(predictions)
    chosen = {}
    for name, settings in metrics.items():
        metric = str(settings["metric"])
        params = {key: value for key, value in settings.items() if key != "metric"}
        chosen[name] = _choose_metrics(predictions, {metric: params}, 15, "right")[metric]
    values = {name: float(metric.on_rows(rows)) for name, metric in chosen.items()}

    def score_all(resampled: Rows) -> dict[str, FloatArray]:
        return {name: metric.on_rows(resampled) for name, metric in chosen.items()}

    samples = _concatenate(score_all(rows.resampled(chunk)) for chunk in bootstrap_weights(rows, count, seed, clusters))
    return {name: (values[name], samples[name]) for name in chosen}


def bootstrap_weights(rows: Rows, count: int, seed: int, clusters: NDArray[Any] | None = None) -> Iterator[NDArray[Any]]:
    """Draw bootstrap resamples, as how often each row is in each of them.

    Parameters
    ----------
    rows : Rows
        The rows to resample.
    count : int
        Number of resamples.
    seed : int
        Seed; the same number of rows and the same seed give the same resamples.
    clusters : array (N,), optional
        The source of each row. As many sources are drawn as there are, each with all its rows; the number of rows of a
        resample then varies.

    Yields
    ------
    array (chunk, N)
        A chunk of the resamples, small enough for bounded memory.
    """
    n = len(rows.probs)
    source = None
    if clusters is not None:
        names, source = np.unique(clusters, return_inverse=True)
        n = len(names)
    rng = np.random.default_rng([seed, 0])
    for size in _chunk_sizes(rows, count):
        weights = np.empty((size, n), np.uint16)
        for row in weights:
            row[:] = np.bincount(rng.integers(0, n, n), minlength=n)
        yield weights if source is None else weights[:, source]


def calibrated_labels(rows: Rows, count: int, seed: int) -> Iterator[NDArray[Any]]:
    """Draw labels from the predicted probabilities: those that a perfectly calibrated model would meet.

    Parameters
    ----------
    rows : Rows
        The rows.
    count : int
        Number of label sets.
    seed : int
        Seed of the draws.

    Yields
    ------
    array (chunk, N)
        A chunk of the label sets, small enough for bounded memory.
    """
    n, k = rows.probs.shape
    rng = np.random.default_rng([seed, 1])
    cumulative = np.cumsum(rows.probs, axis=1)
    cumulative /= cumulative[:, -1:]
    columns = np.ascontiguousarray(cumulative.T)
    for size in _chunk_sizes(rows, count):
        uniform = rng.random((size, n))
        labels = np.zeros((size, n), np.int16 if k < 2**15 else np.int32)
        for column in columns[:-1]:  # over classes; uniform = 0 with p_0 = 0 has probability 2⁻⁵³
            labels += uniform >= column
        yield labels


# ---- choosing metrics --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ChosenMetric:
    """A metric with its parameters, ready to be computed."""

    on_rows: Callable[[Rows], FloatArray]
    params: Mapping[str, Any]
    definition: str
    custom: bool = False  # a function of the user, whose direction and range are unknown


def _choose_metrics(
    predictions: Predictions, metrics: MetricChoice, bins: int, closed: Closed, votes: bool | None = None
) -> dict[str, _ChosenMetric]:
    if isinstance(metrics, str):  # its letters would be the names
        raise InputError(f"the text {metrics!r:.80} for metrics", remedy=f"put it in brackets: [{metrics!r:.80}]")
    if metrics is None:
        has_votes = predictions.label_probs is not None if votes is None else votes
        metrics = _default_metrics(predictions.confidence_only, has_votes)
    if not isinstance(metrics, Mapping):
        if not isinstance(metrics, Iterable):
            raise InputError(f"a {type(metrics).__name__} for metrics", remedy='give a list of names, such as ["ece"]')
        metrics = list(metrics)
        for name in metrics:
            if not isinstance(name, str):
                raise InputError(f"{name!r:.80} is no name of a metric", remedy='give names, or functions by name: {"mine": f}')
        metrics = {name: {} for name in metrics}
    chosen = {}
    for name, settings in metrics.items():
        if callable(settings):
            on_rows = getattr(settings, "on_rows", None) or partial(_on_copies, settings)
            chosen[name] = _ChosenMetric(on_rows, {}, "your own function", custom=True)
        else:
            if not isinstance(settings, Mapping):
                raise InputError(
                    f"metric {name!r} has {settings!r:.60} for parameters",
                    remedy='give a dict, such as {"bins": 10}, or a function',
                )
            _check_metric(name, predictions.confidence_only)
            chosen[name] = _known_metric(name, settings, {"bins": bins, "closed": closed})
    return chosen


def _default_metrics(confidence_only: bool, has_votes: bool) -> list[str]:
    names = [*METRICS, *HUMAN_METRICS] if has_votes else list(METRICS)
    return [name for name in names if name in TOP_LABEL] if confidence_only else names


def _check_metric(name: str, confidence_only: bool) -> None:
    parameters(name, {})  # which refuses an unknown name
    if name not in TOP_LABEL and confidence_only:
        raise InputError(f"{name} needs class probabilities", remedy="these predictions hold confidences only")


def _known_metric(name: str, settings: Mapping[str, Any], common: Mapping[str, Any]) -> _ChosenMetric:
    """Combine the parameters of a metric with those of all metrics, as far as it has them."""
    applicable = {key: value for key, value in common.items() if key in parameters(name, {})}
    params = parameters(name, {**applicable, **settings})
    return _ChosenMetric(partial(ALL_METRICS[name].on_rows, **params), params, definition(name, params))


def _on_copies(function: ArrayMetric, rows: Rows) -> FloatArray:
    return rows.each(function)


# ---- computing them ----------------------------------------------------------------------------------------------------


def _score(rows: Rows, chosen: Mapping[str, _ChosenMetric]) -> dict[str, FloatArray]:
    """Compute every chosen metric on the same rows; the class-wise ones share one pass over the classes."""
    class_wise = {
        name: metric.params
        for name, metric in chosen.items()
        if name in SHARED_VARIANTS and metric.params.get("variant") == SHARED_VARIANTS[name]
    }
    shared = class_means(rows, class_wise) if class_wise else {}
    return {name: shared[name] if name in shared else metric.on_rows(rows) for name, metric in chosen.items()}


def _concatenate(chunks: Iterator[dict[str, FloatArray]]) -> dict[str, FloatArray]:
    parts = list(chunks)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _metric_value(
    name: str,
    metric: _ChosenMetric,
    value: float,
    samples: FloatArray | None,
    null_samples: FloatArray | None,
    level: float,
) -> MetricValue:
    low, high, null, null_high = None, None, None, None
    if samples is not None:
        low, high = centred_interval(value, samples, level)
        if not metric.custom and np.isfinite(high):
            # A skewed distribution can lie to one side of its mean; the reported value always belongs to its interval.
            low = max(min(low, value), 0.0)
            high = min(max(high, value), UPPER_LIMIT.get(name, 1.0))
    if null_samples is not None:
        null, null_high = float(null_samples.mean()), float(np.quantile(null_samples, 0.95))
        if value <= null_high:
            low = 0.0  # a perfectly calibrated model shows as much, so nothing excludes 0
    return MetricValue(name, value, low, high, null, null_high, metric.definition, metric.params)


def _better(name: str, metric: _ChosenMetric, difference: float) -> str | None:
    """Return which of two sets has the better value."""
    if metric.custom or name in NO_DIRECTION:
        return None
    improvement = difference if name in HIGHER_IS_BETTER else -difference
    return "b" if improvement > 0 else "a"


class _ChunkProgress:
    """Reports the share of all resamples that are done."""

    def __init__(self, on_progress: OnProgress | None, total: int):
        self.on_progress = on_progress
        self.total = total
        self.done = 0

    def count(self, chunks: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Yield chunks; each is reported when the next one is asked for."""
        for chunk in chunks:
            yield chunk
            self.done += len(chunk)
            if self.on_progress is not None:
                self.on_progress(self.done / self.total)


def _check_resampling(intervals: int, level: float) -> None:
    if intervals < 2:
        raise InputError(f"{intervals} bootstrap resamples give no interval", remedy="give at least 100, or None")
    if intervals > MOST_RESAMPLES:
        raise InputError(
            f"{intervals:,} bootstrap resamples, expected at most {MOST_RESAMPLES:,}", remedy="1,000 are enough for most uses"
        )
    if not 0 < level < 1:
        raise InputError(f"level {level} is not between 0 and 1")


def _chunk_sizes(rows: Rows, count: int) -> Iterator[int]:
    """Yield the sizes of the chunks in which resamples are processed."""
    size = max(1, min(count, CHUNK_BYTES // (40 * len(rows.probs))))
    for start in range(0, count, size):
        yield min(size, count - start)
