"""How good, how sure, and compared with what: figures with intervals and null values, paired comparisons, reliability."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError
from distilcal.metrics.class_wise import SHARED_VARIANTS, class_means
from distilcal.metrics.definitions import (
    CALIBRATION_ERRORS,
    HIGHER_IS_BETTER,
    HUMAN_METRICS,
    METRICS,
    NO_DIRECTION,
    TOP_LABEL,
    definition,
    parameters,
)
from distilcal.metrics.rows import Closed, Rows, width_edges
from distilcal.predictions import FloatArray, IntArray, Predictions, join

NULL_DRAWS = 200  # label sets behind a null value; its mean needs far fewer than an interval's ends
CHUNK_BYTES = 1 << 27  # memory for the resamples worked on at a time
UPPER_LIMIT = {"nll": np.inf, "entropy": np.inf, "human_cross_entropy": np.inf, "brier": 2.0}

PlainMetric = Callable[..., float]
MetricChoice = Sequence[str] | Mapping[str, Mapping[str, Any] | PlainMetric] | None
OnProgress = Callable[[float], None]  # called with the share of the work that is done


@dataclass(frozen=True)
class MetricValue:
    """One number with what is needed to read it."""

    name: str
    value: float
    low: float | None = None  # interval of the sampling spread about the value
    high: float | None = None
    null: float | None = None  # mean for a perfectly calibrated model with these confidences and this many rows
    null_high: float | None = None  # 95 % of such models score below it
    definition: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def beyond_chance(self) -> bool | None:
        """Whether a calibration error is larger than 95 % of perfectly calibrated models would show."""
        return None if self.null_high is None else self.value > self.null_high


@dataclass(frozen=True)
class Evaluation:
    """Figures of one set of predictions, by name: ``evaluation["ece"].value``. Printed, it is a table."""

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
        return {name: figure.value for name, figure in self.metrics.items()}

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.rows:,} rows, {self.classes} classes"]
        for f in self.metrics.values():
            span = "" if f.low is None or f.high is None else f"[{f.low:.4f}, {f.high:.4f}]"
            null = "" if f.null is None else f"null {f.null:.4f}"
            lines.append(f"  {f.name:<13}{f.value:8.4f}  {span:<18}{null:<13}{f.definition}".rstrip())
        return "\n".join(lines)


@dataclass(frozen=True)
class Difference:
    """How a metric changes from a to b on the same rows."""

    name: str
    a: float
    b: float
    difference: float  # b - a
    low: float
    high: float
    p_value: float
    p_holm: float  # corrected for all metrics compared together
    better: str | None  # "a", "b", or None where the difference may be chance or has no direction
    definition: str = ""


@dataclass(frozen=True)
class Comparison:
    """Paired differences of two sets of predictions, by metric."""

    a: str
    b: str
    rows: int
    differences: Mapping[str, Difference]
    replicates: int
    level: float = 0.95

    def __getitem__(self, name: str) -> Difference:
        return self.differences[name]


@dataclass(frozen=True)
class Reliability:
    """The bins behind a reliability diagram, each field (bins,); nan where a bin is empty."""

    lower: FloatArray  # edges of the bin
    upper: FloatArray
    count: IntArray
    confidence: FloatArray  # mean in the bin
    accuracy: FloatArray
    low: FloatArray  # exact binomial interval of the accuracy
    high: FloatArray
    closed: Closed
    level: float

    @property
    def correct(self) -> IntArray:
        """Number of rows of each bin that are predicted correctly."""
        return np.rint(self.count * np.nan_to_num(self.accuracy)).astype(np.int64)

    @property
    def wrong(self) -> IntArray:
        """Number of rows of each bin that are predicted wrongly."""
        return self.count - self.correct


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
    """Every metric with its bootstrap interval, null value and definition.

    ``metrics`` are names, or a mapping from a name to its parameters or to a function ``f(probs, labels)`` of your own.
    ``intervals`` is the number of bootstrap resamples, or None for the values alone. An interval shows the sampling spread
    about the value: the bootstrap's own bias (errors grow when rows repeat) is taken out by centring, and the interval of a
    calibration error reaches down to 0 where the value is within chance.

    >>> rng = np.random.default_rng(1)
    >>> sure = rng.uniform(0.5, 1.0, 500)
    >>> right = rng.random(500) < sure
    >>> figure = evaluate(Predictions.from_confidences(sure, right), ["ece"])["ece"]
    >>> figure.low < figure.value < figure.high, figure.beyond_chance
    (True, False)
    """
    chosen = _choose(predictions, metrics, bins, closed)
    rows = Rows.of(predictions)
    values = {name: float(value) for name, value in _score(rows, chosen).items()}
    spans: dict[str, tuple[float, float]] = {}
    nulls: dict[str, FloatArray] = {}
    if intervals is not None:
        _check_resampling(intervals, level)
        tested = {name: how for name, how in chosen.items() if name in CALIBRATION_ERRORS and how[2] != OWN}
        work = intervals + (NULL_DRAWS if tested else 0)

        def report(done: int) -> None:
            if on_progress is not None:
                on_progress(done / work)

        replicates: dict[str, list[FloatArray]] = {name: [] for name in chosen}
        done = 0
        for weights in _bootstrap_weights(rows, intervals, seed):
            for name, scores in _score(rows.resampled(weights), chosen).items():
                replicates[name].append(scores)
            report(done := done + len(weights))
        spans = {
            name: _interval("" if chosen[name][2] == OWN else name, values[name], np.concatenate(r), level)
            for name, r in replicates.items()
        }
        draws_of: dict[str, list[FloatArray]] = {name: [] for name in tested}
        for draws in _calibrated_labels(rows, NULL_DRAWS, seed) if tested else ():
            for name, scores in _score(rows.relabelled(draws), tested).items():
                draws_of[name].append(scores)
            report(done := done + len(draws))
        nulls = {name: np.concatenate(r) for name, r in draws_of.items()}
    figures = {}
    for name, (_, params, text) in chosen.items():
        low, high = spans.get(name, (None, None))
        null = nulls.get(name)
        if null is not None and values[name] <= np.quantile(null, 0.95):
            low = 0.0  # a perfectly calibrated model shows as much, so nothing excludes 0
        figures[name] = MetricValue(
            name,
            values[name],
            low,
            high,
            None if null is None else float(null.mean()),
            None if null is None else float(np.quantile(null, 0.95)),
            text,
            params,
        )
    return Evaluation(predictions.name, len(predictions), len(predictions.classes), figures, intervals, level)


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
    """What changes from ``a`` to ``b`` on the rows they share, with paired bootstrap intervals and p-values.

    Both are resampled with the same rows, so what is hard for both cancels. A p-value is the share of resamples in which
    the difference strays from its own value by as much as that value is from 0 (where none does, the normal tail of their
    spread); Holm's correction covers all metrics.
    """
    a, b = join(a, b)
    if a.confidence_only != b.confidence_only:
        raise InputError("one set has class probabilities, the other confidences only", remedy="give both in the same form")
    if a.name == b.name:
        b = b.rename(f"{b.name} (2)")
    chosen = _choose(a, metrics, bins, closed, votes=a.label_probs is not None and b.label_probs is not None)
    _check_resampling(intervals, level)
    rows_a, rows_b = Rows.of(a), Rows.of(b)
    score_a, score_b = _score(rows_a, chosen), _score(rows_b, chosen)
    values = {name: (float(score_a[name]), float(score_b[name])) for name in chosen}
    replicates: dict[str, list[FloatArray]] = {name: [] for name in chosen}
    done = 0
    for weights in _bootstrap_weights(rows_a, intervals, seed):
        first, second = _score(rows_a.resampled(weights), chosen), _score(rows_b.resampled(weights), chosen)
        for name in chosen:
            with np.errstate(invalid="ignore"):  # inf - inf: no difference can be told
                replicates[name].append(second[name] - first[name])
        done += len(weights)
        if on_progress is not None:
            on_progress(done / intervals)
    raw = {}
    for name, parts in replicates.items():
        with np.errstate(invalid="ignore"):
            raw[name] = paired_interval(values[name][1] - values[name][0], np.concatenate(parts), len(a), level)
    corrected = dict(zip(raw, holm([p for _, _, _, p in raw.values()]), strict=True))
    differences = {}
    for name, (difference, low, high, p_value) in raw.items():
        unknown = name in NO_DIRECTION or chosen[name][2] == OWN
        direction = 0 if unknown else 1 if name in HIGHER_IS_BETTER else -1
        sure = corrected[name] < 1 - level
        better = ("b" if difference * direction > 0 else "a") if sure and direction else None
        value_a, value_b = values[name]
        text = chosen[name][2]
        differences[name] = Difference(name, value_a, value_b, difference, low, high, p_value, corrected[name], better, text)
    return Comparison(a.name, b.name, len(a), differences, intervals, level)


def replicates(
    predictions: Predictions, metrics: Mapping[str, Mapping[str, Any]], count: int, *, seed: int = 0
) -> dict[str, tuple[float, FloatArray]]:
    """Value and bootstrap replicates (count,) of each metric, for comparisons that are made later.

    ``metrics`` says name → ``{"metric": …}`` with its parameters. Sets of the same size are resampled with the same rows, so
    differences of replicates are paired.
    """
    rows = Rows.of(predictions)
    chosen: dict[str, tuple[OnRows, dict[str, Any], str]] = {}
    for name, said in metrics.items():
        kind = str(said["metric"])
        made = _choose(predictions, {kind: {k: v for k, v in said.items() if k != "metric"}}, 15, "right")
        chosen[name] = made[kind]
    values = {name: float(call(rows)) for name, (call, _, _) in chosen.items()}
    drawn: dict[str, list[FloatArray]] = {name: [] for name in chosen}
    for weights in _bootstrap_weights(rows, count, seed):
        resampled = rows.resampled(weights)
        for name, (call, _, _) in chosen.items():
            drawn[name].append(call(resampled))
    return {name: (values[name], np.concatenate(parts)) for name, parts in drawn.items()}


def reliability(predictions: Predictions, *, bins: int = 15, closed: Closed = "right", level: float = 0.95) -> Reliability:
    """Mean confidence and accuracy per equal-width bin of the top-label confidence, with exact binomial intervals.

    >>> r = reliability(Predictions.from_probs([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), bins=2)
    >>> r.count.tolist(), r.accuracy.round(3).tolist()
    ([0, 3], [nan, 0.667])
    """
    cells = Rows.of(predictions).top.width_bins(bins, closed)
    with np.errstate(invalid="ignore"):
        mean, rate = cells.score / cells.count, cells.hits / cells.count
    low, high = binomial_interval(cells.hits, cells.count, level)
    edges = width_edges(bins)
    return Reliability(edges[:-1], edges[1:], cells.count.astype(np.int64), mean, rate, low, high, closed, level)


def binomial_interval(hits: FloatArray, count: FloatArray, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Exact (Clopper–Pearson) interval of a rate; nan where nothing was counted."""
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), count - hits + 1, tail), 0.0)
        high = np.where(hits < count, betaincinv(hits + 1, np.maximum(count - hits, 1), 1 - tail), 1.0)
    return np.where(count > 0, low, np.nan), np.where(count > 0, high, np.nan)


# ---- parts -------------------------------------------------------------------------------------------------------------

OWN = "your own function"  # stands for a definition that we cannot give, and a direction and range that we do not know
OnRows = Callable[[Rows], FloatArray]
Chosen = Mapping[str, tuple[OnRows, Mapping[str, Any], str]]  # what to call, its parameters, their definition in words


def _score(rows: Rows, chosen: Chosen) -> dict[str, FloatArray]:
    """Every chosen metric on the same rows; the class-wise ones share one visit to each class."""
    sound = {name: p for name, (_, p, _) in chosen.items() if p.get("variant") == SHARED_VARIANTS.get(name, "")}
    shared = class_means(rows, sound) if sound else {}
    return {name: shared[name] if name in shared else call(rows) for name, (call, _, _) in chosen.items()}


def _choose(
    predictions: Predictions, metrics: MetricChoice, bins: int, closed: Closed, votes: bool | None = None
) -> dict[str, tuple[OnRows, dict[str, Any], str]]:
    known = {**METRICS, **HUMAN_METRICS}
    has_votes = predictions.label_probs is not None if votes is None else votes
    if metrics is None:
        names = [*METRICS, *(HUMAN_METRICS if has_votes else ())]
        metrics = [name for name in names if name in TOP_LABEL or not predictions.confidence_only]
    asked = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    chosen: dict[str, tuple[OnRows, dict[str, Any], str]] = {}
    for name, how in asked.items():
        if callable(how):
            own = getattr(how, "on_rows", None) or partial(_on_copies, how)
            chosen[name] = (own, {}, OWN)
            continue
        if name not in known:
            near = get_close_matches(name, known, n=3)
            raise InputError(f"there is no metric {name!r}", remedy="did you mean " + ", ".join(near or list(known)) + "?")
        if name not in TOP_LABEL and predictions.confidence_only:
            raise InputError(f"{name} needs class probabilities", remedy="these predictions hold confidences only")
        given = {"bins": bins, "closed": closed}
        params = parameters(name, {**{k: v for k, v in given.items() if k in parameters(name, {})}, **how})
        chosen[name] = (partial(known[name].on_rows, **params), params, definition(name, params))
    return chosen


def _on_copies(plain: PlainMetric, rows: Rows) -> FloatArray:
    return rows.each(plain)


def _check_resampling(intervals: int, level: float) -> None:
    if intervals < 2:
        raise InputError(f"{intervals} bootstrap resamples give no interval", remedy="give at least 100, or None")
    if not 0 < level < 1:
        raise InputError(f"level {level} is not between 0 and 1")


def _chunks(rows: Rows, replicates: int) -> Iterator[int]:
    """Sizes of the chunks in which replicates are worked on, for bounded memory."""
    size = max(1, min(replicates, CHUNK_BYTES // (40 * len(rows.probs))))
    for start in range(0, replicates, size):
        yield min(size, replicates - start)


def _bootstrap_weights(rows: Rows, replicates: int, seed: int) -> Iterator[NDArray[Any]]:
    """How often each row is drawn in each resample, (chunk, N)."""
    n = len(rows.probs)
    rng = np.random.default_rng([seed, 0])
    for size in _chunks(rows, replicates):
        weights = np.empty((size, n), np.uint16)
        for row in weights:
            row[:] = np.bincount(rng.integers(0, n, n), minlength=n)
        yield weights


def _calibrated_labels(rows: Rows, replicates: int, seed: int) -> Iterator[NDArray[Any]]:
    """Labels drawn from the predicted probabilities, (chunk, N): what a perfectly calibrated model would meet."""
    n, k = rows.probs.shape
    rng = np.random.default_rng([seed, 1])
    running = np.cumsum(rows.probs, axis=1)
    running /= running[:, -1:]
    columns = np.ascontiguousarray(running.T)
    for size in _chunks(rows, replicates):
        u = rng.random((size, n))
        draws = np.zeros((size, n), np.int16 if k < 2**15 else np.int32)
        for below in columns[:-1]:  # over classes; u = 0 with p_0 = 0 has probability 2⁻⁵³
            draws += u >= below
        yield draws


def _interval(name: str, value: float, replicates: FloatArray, level: float) -> tuple[float, float]:
    """Percentiles of the replicates, moved so that their mean is the value, within the metric's range."""
    if not np.isfinite(value) or not np.isfinite(replicates).all():
        return (value if np.isfinite(value) else np.inf), np.inf
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2]) - replicates.mean() + value
    if name not in METRICS and name not in HUMAN_METRICS:
        return float(low), float(high)
    # A skewed distribution can lie to one side of its mean; the reported value always belongs to its interval.
    return float(max(min(low, value), 0.0)), float(min(max(high, value), UPPER_LIMIT.get(name, 1.0)))


def paired_interval(difference: float, replicates: FloatArray, rows: int, level: float) -> tuple[float, float, float, float]:
    """Difference, interval and two-sided p-value of a paired bootstrap."""
    if not np.isfinite(difference) or not np.isfinite(replicates).all():
        return difference, -np.inf, np.inf, 1.0
    centred = replicates - replicates.mean()
    low, high = np.quantile(centred, [(1 - level) / 2, (1 + level) / 2]) + difference
    # A hair's tolerance: equal predictions differ by 0 in every resample and must give p = 1.
    extreme = int((np.abs(centred) >= abs(difference) - 1e-12).sum())
    p_value = (1 + extreme) / (1 + len(replicates))
    if not extreme:
        # Below what so many resamples can resolve, the normal tail tells how far below; but so few rows, as if by the toss
        # of a coin each, cannot tell more than that.
        spread = float(centred.std())
        tail = math.erfc(abs(difference) / spread / math.sqrt(2)) if spread > 1e-12 else 0.0
        p_value = max(min(p_value, tail), 2.0 ** (1 - rows))
    return difference, float(low), float(high), p_value


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction."""
    p = np.asarray(p_values)
    order = np.argsort(p)
    stepped = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return [float(v) for v in corrected]
