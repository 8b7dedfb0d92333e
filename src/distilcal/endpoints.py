"""Endpoints: the few numbers that decide whether a model is worth its trouble, named before anything is trained.

An endpoint is the mean of a metric over domains, for a model and for its control. ``compare_endpoints`` gives the difference
with an interval, for one run or for repetitions with several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    The variance of the mean difference over S runs is s²/S + C: s² is the variance between the runs, and C the covariance of
    two runs, which comes from the rows that they share. C is found by a bootstrap that draws the same rows for both models: it
    is the variance of the mean over runs where these have the same rows, else that of one run times the share of rows that two
    runs have in common, which it cannot exceed. The degrees of freedom of Student's t follow from both parts
    (Welch–Satterthwaite).
    With one run the interval is about new rows only.

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
    shared = _shared_rows([main for main, _ in runs])
    results = []
    for main, control in runs:
        results.append((_replicates(main, wanted, resamples), _replicates(control, wanted, resamples)))
    endpoints = []
    for name in metrics:
        values, samples = [], []
        for of_main, of_control in results:
            values.append([np.mean([value for value, _ in of_main[name]]), np.mean([value for value, _ in of_control[name]])])
            samples.append([a - b for (_, a), (_, b) in zip(of_main[name], of_control[name], strict=True)])
        endpoints.append(_endpoint(name, np.array(values), np.array(samples), shared, level))
    return endpoints


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


def _shared_rows(runs: Sequence[PredictionsBySplit]) -> FloatArray:
    """Of each split (K,), the share of its rows that two runs have in common: the mean over pairs of runs."""
    shares = []
    for split in runs[0]:
        names = [_row_names(run[split]) for run in runs]
        pairs = [np.isin(first, second).mean() for first, second in combinations(names, 2)]
        shares.append(float(np.mean(pairs)) if pairs else 1.0)
    return np.array(shares)


def _row_names(predictions: Predictions) -> NDArray[Any]:
    return np.arange(len(predictions)) if predictions.ids is None else predictions.ids


def _replicates(
    predictions: PredictionsBySplit, metrics: Mapping[str, Mapping[str, Any]], resamples: int
) -> dict[str, list[tuple[float, FloatArray]]]:
    """Value and replicates of each metric on every split; splits are resampled one independently of another."""
    by_split = [replicates(scores, metrics, resamples, seed=number) for number, scores in enumerate(predictions.values())]
    return {name: [results[name] for results in by_split] for name in metrics}


def _endpoint(name: str, values: FloatArray, samples: FloatArray, shared: FloatArray, level: float) -> Endpoint:
    """The endpoint from values (runs, 2), replicates of the difference (runs, splits, resamples) and shared rows (splits,)."""
    from scipy import stats

    differences = values[:, 0] - values[:, 1]
    runs, splits, resamples = samples.shape
    if (shared == 1).all():
        covariance = float(samples.mean(axis=(0, 1)).var(ddof=1))
    else:
        over_rows = samples.var(axis=2, ddof=1).mean(axis=0)  # of each split
        covariance = float((shared * over_rows).sum() / splits**2)
    tail = 1 - (1 - level) / 2
    if runs == 1:
        margin = float(stats.norm.ppf(tail)) * math.sqrt(covariance)
    else:
        between = float(differences.var(ddof=1)) / runs
        variance = between + covariance
        spread = between**2 / (runs - 1) + covariance**2 / (resamples - 1)
        freedom = variance**2 / spread if spread else math.inf
        margin = float(stats.t.ppf(tail, freedom)) * math.sqrt(variance)
    difference = float(differences.mean())
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
