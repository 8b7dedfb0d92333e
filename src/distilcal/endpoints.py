"""Endpoints: the few numbers that decide whether a model is worth its trouble, named before anything is trained.

An endpoint is the mean of a metric over domains, for a model and for its control. ``compare_endpoints`` gives the difference
with an interval, for one run or for repetitions with several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distilcal.calibrate import fit_temperature
from distilcal.errors import InputError
from distilcal.metrics import replicates
from distilcal.metrics.definitions import HIGHER_IS_BETTER
from distilcal.predictions import FloatArray, Predictions

PredictionsBySplit = Mapping[str, Predictions]
RESAMPLES = 1000


@dataclass(frozen=True)
class Endpoint:
    """A metric of a model and of its control, each a mean over domains and runs.

    Attributes
    ----------
    metric : str
        Name of the metric.
    main, control : float
        The means.
    difference : float
        ``main - control``.
    low, high : float
        Interval of the difference: for new rows of the same domains and, with several runs, for new seeds.
    better : bool or None
        Whether the model is better than its control; None if the interval contains 0.
    """

    metric: str
    main: float
    control: float
    difference: float
    low: float
    high: float
    better: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return the values under the keys of ``metrics.json``."""
        return {
            "metric": self.metric,
            "main": self.main,
            "control": self.control,
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "better": self.better,
        }


def scale_by_dev(predictions: PredictionsBySplit) -> dict[str, Predictions]:
    """Divide the logits of every split by the temperature that fits ``dev``.

    Parameters
    ----------
    predictions : mapping of str to Predictions
        Predictions of one model by the name of the split, with ``"dev"``.

    Returns
    -------
    dict of str to Predictions
        The other splits.
    """
    temperature = fit_temperature(predictions["dev"])
    return {split: temperature(scores) for split, scores in predictions.items() if split != "dev"}


def compare_endpoints(
    runs: Sequence[tuple[PredictionsBySplit, PredictionsBySplit]],
    metrics: Sequence[str] = ("accuracy", "nll", "ece"),
    *,
    resamples: int = RESAMPLES,
    level: float = 0.95,
) -> list[Endpoint]:
    """Compare a model with its control: means over domains of each metric, over one run or several.

    The variance of the mean difference has two parts: that over rows, by a bootstrap that draws the same rows for both models
    and all runs, and that over runs divided by their number. Where the runs have other rows, which may still overlap, the part
    of the rows is that of a single run: it cannot be larger. With S runs the interval uses Student's t with S - 1 degrees of
    freedom; with one run it is about new rows only.

    Parameters
    ----------
    runs : sequence of (mapping, mapping)
        For each run the predictions of the model and those of its control, by the name of the split: the same splits of the
        same sizes in every run, with the same rows for both models.
    metrics : sequence of str
        Names in ``METRICS``.
    resamples : int, default 1000
        Number of bootstrap resamples.
    level : float, default 0.95
        Level of the intervals.

    Returns
    -------
    list of Endpoint
        One for each metric.

    Raises
    ------
    InputError
        If there is no run, or splits or their sizes differ.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 200)
    >>> good = Predictions.from_logits(2 * np.eye(3)[labels] + rng.normal(size=(200, 3)), labels)
    >>> poor = Predictions.from_logits(rng.normal(size=(200, 3)), labels)
    >>> [accuracy] = compare_endpoints([({"test": good}, {"test": poor})], ["accuracy"])
    >>> accuracy.better
    True
    """
    _check_runs(runs)
    wanted = {name: {"metric": name} for name in metrics}
    values: dict[str, list[tuple[float, float]]] = {name: [] for name in metrics}
    samples: dict[str, list[FloatArray]] = {name: [] for name in metrics}
    for main, control in runs:
        of_main = _mean_over_splits(main, wanted, resamples)
        of_control = _mean_over_splits(control, wanted, resamples)
        for name in metrics:
            values[name].append((of_main[name][0], of_control[name][0]))
            samples[name].append(of_main[name][1] - of_control[name][1])
    same_rows = all(_have_same_rows(runs[0][0], main) for main, _ in runs)
    return [_endpoint(name, np.array(values[name]), np.array(samples[name]), level, same_rows=same_rows) for name in metrics]


def _check_runs(runs: Sequence[tuple[PredictionsBySplit, PredictionsBySplit]]) -> None:
    if not runs:
        raise InputError("there is no run to compare", remedy="give at least one")
    sizes = {split: len(scores) for split, scores in runs[0][0].items()}
    for models in runs:
        for predictions in models:
            if {split: len(scores) for split, scores in predictions.items()} != sizes:
                raise InputError(
                    "models are compared on different splits or rows", remedy="evaluate all of them on the same data"
                )


def _have_same_rows(first: PredictionsBySplit, second: PredictionsBySplit) -> bool:
    for split, scores in first.items():
        ids, other_ids = scores.ids, second[split].ids
        if ids is None or other_ids is None:
            same = np.array_equal(scores.labels, second[split].labels)
        else:
            same = np.array_equal(ids, other_ids)
        if not same:
            return False
    return True


def _mean_over_splits(
    predictions: PredictionsBySplit, metrics: Mapping[str, Mapping[str, Any]], resamples: int
) -> dict[str, tuple[float, FloatArray]]:
    """Value and replicates of each metric, as means over the splits, which are resampled one independently of another."""
    by_split = [replicates(scores, metrics, resamples, seed=number) for number, scores in enumerate(predictions.values())]
    means = {}
    for name in metrics:
        value = float(np.mean([results[name][0] for results in by_split]))
        means[name] = (value, np.mean([results[name][1] for results in by_split], axis=0))
    return means


def _endpoint(name: str, values: FloatArray, samples: FloatArray, level: float, *, same_rows: bool) -> Endpoint:
    """The endpoint from the values (runs, 2) and the replicates of the difference (runs, resamples)."""
    from scipy import stats

    differences = values[:, 0] - values[:, 1]
    runs = len(differences)
    # The mean of variables varies at most as much as they do on average, whatever they have in common.
    variance = float(samples.mean(axis=0).var(ddof=1)) if same_rows else float(samples.var(axis=1, ddof=1).mean())
    tail = 1 - (1 - level) / 2
    quantile = float(stats.norm.ppf(tail))
    if runs > 1:
        variance += float(differences.var(ddof=1)) / runs
        quantile = float(stats.t.ppf(tail, runs - 1))
    difference = float(differences.mean())
    margin = quantile * math.sqrt(variance)
    low, high = difference - margin, difference + margin
    better = None
    if low > 0 or high < 0:
        better = (difference > 0) == (name in HIGHER_IS_BETTER)
    return Endpoint(
        metric=name,
        main=float(values[:, 0].mean()),
        control=float(values[:, 1].mean()),
        difference=difference,
        low=low,
        high=high,
        better=better,
    )
