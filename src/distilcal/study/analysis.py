"""What a study found: samples over seeds and bootstrap replicates, their intervals and differences, tables and claims.

Intervals and differences come from one bootstrap over seeds and examples: every model of a task is resampled with the same
rows, and seeds are drawn the same for all, so differences are paired. NumPy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from distilcal.calibrate.base import log_softmax
from distilcal.io.atomic import open_npz, read_json
from distilcal.metrics import definition, holm, is_significant, paired_interval
from distilcal.metrics.definitions import HIGHER_IS_BETTER, NO_DIRECTION, UPPER_LIMIT, parameters
from distilcal.predictions import Predictions
from distilcal.study.expand import Graph
from distilcal.study.scheduler import Outcome
from distilcal.study.schema import (
    ClaimSettings,
    MetricSettings,
    PlaceSettings,
    Study,
    TableSettings,
    claim_pairs,
    claim_places,
    merge_places,
    split_of,
)

LEVEL = 0.95  # of intervals; 1 - LEVEL is the level of significance
Floats = NDArray[np.float64]


# ---- samples -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A figure of one method in one place: a value and bootstrap replicates for each seed."""

    seeds: tuple[int, ...]
    values: Floats  # (seeds,)
    draws: Floats  # (seeds, replicates)
    examples: int  # of the set it is measured on

    def of(self, seeds: Sequence[int]) -> Sample:
        """Return the sample of these seeds only, in their order."""
        rows = [self.seeds.index(seed) for seed in seeds]
        return Sample(tuple(seeds), self.values[rows], self.draws[rows], self.examples)


class StudyResults:
    """The figures of a study that was run, read from the store when they are needed.

    Parameters
    ----------
    study : Study
        What was run.
    graph : Graph
        Its jobs.
    outcome : Outcome
        What running them returned.
    store : Path
        Where the measurements are.
    """

    def __init__(self, study: Study, graph: Graph, outcome: Outcome, store: Path):
        self.study = study
        self.graph = graph
        self.outcome = outcome
        self.store = store

    def job(self, method: str, task: str, seed: int) -> Mapping[str, Any] | None:
        """Return the result of the job behind a method; None if it was not run or failed."""
        id_ = self.graph.cells.get((method, task, seed))
        if id_ is None or id_ in self.outcome.failed:
            return None
        return self.outcome.results.get(self.outcome.job_of(id_))

    def failure(self, method: str, task: str) -> str:
        """Return the error of the first seed of a method that failed on a task; empty if none did."""
        errors = {**self.outcome.unmeasured, **self.outcome.failed}
        for seed in self.study.seeds:
            id_ = self.graph.cells.get((method, task, seed))
            if id_ in errors:
                return errors[id_]
        return ""

    def folder(self, method: str, task: str, seed: int) -> Path | None:
        """Return the folder with the measurements of a method's model; None if it was not measured."""
        id_ = self.graph.cells.get((method, task, seed))
        key = self.outcome.measured.get(id_ or "")
        return None if key is None else self.store / "measured" / key

    def is_scaled(self, place: PlaceSettings) -> bool:
        """Return whether a model is evaluated after temperature scaling: if its method or the place is scaled."""
        return bool(place.scaled) or self.study.methods[place.method].scaled

    def sample(self, place: PlaceSettings) -> Sample | None:
        """Return the figure of a place, which has method, task and metric; None if no seed was measured."""
        state = "scaled" if self.is_scaled(place) else "given"
        split = split_of(self.study, place)
        seeds: list[int] = []
        values: list[float] = []
        draws: list[Any] = []
        examples = 0
        for seed in self.study.seeds:
            folder = self.folder(place.method, place.task, seed)
            if folder is None:
                continue
            figures, replicates = _measurements(folder)
            value = figures["sets"][split][state][place.metric]
            seeds.append(seed)
            values.append(math.nan if value is None else value)
            draws.append(replicates[f"{split}/{state}/{place.metric}"])
            examples = figures["sets"][split]["n"]
        if not seeds:
            return None
        return Sample(tuple(seeds), np.array(values), np.array(draws, dtype=np.float64), examples)

    def predictions(self, place: PlaceSettings) -> list[Predictions]:
        """Return the predictions of a method with each seed, after temperature scaling where the place is scaled."""
        loaded = []
        for seed in self.study.seeds:
            folder = self.folder(place.method, place.task, seed)
            if folder is None:
                continue
            predictions = Predictions.load(folder / f"{split_of(self.study, place)}.npz")
            if self.is_scaled(place):
                temperature = _measurements(folder)[0]["temperature"]
                scaled_logits = predictions.logits.astype(np.float64) / temperature
                predictions = predictions.with_log_probs(log_softmax(scaled_logits))
            loaded.append(predictions)
        return loaded

    def chosen(self, method: str, task: str) -> str:
        """Describe the points of the grid that were chosen for a method; empty if it has no grid."""
        descriptions = []
        for seed in self.study.seeds:
            id_ = self.graph.cells.get((method, task, seed))
            if id_ is None or id_ not in self.outcome.chosen:
                continue
            job = self.outcome.chosen[id_]
            point = self.graph.jobs[job].label.split(" · ")[-1]
            epochs = self.outcome.results[job]["best"] + 1
            descriptions.append(f"{point}, epochs {epochs}")
        return "; ".join(dict.fromkeys(descriptions))


@lru_cache(maxsize=4096)
def _measurements(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures and the bootstrap replicates in a folder of measurements."""
    with open_npz(folder / "replicates.npz") as arrays:
        return read_json(folder / "figures.json"), {name: arrays[name] for name in arrays}


# ---- intervals and differences -----------------------------------------------------------------------------------------


def _bootstrap_means(draws: Floats) -> Floats:
    """Means over seeds drawn with replacement, one for each replicate; equal numbers of seeds draw the same ones."""
    seeds, count = draws.shape
    picked = np.random.default_rng([0, seeds]).integers(0, seeds, (seeds, count))
    return np.asarray(draws[picked, np.arange(count)].mean(axis=0))


def _widened_replicates(values: Floats, draws: Floats) -> tuple[Floats, float, float]:
    """Centred replicates of the mean over seeds and examples, its standard error and its degrees of freedom.

    A bootstrap of a few seeds is too narrow: by √((S - 1)/S), and because its tails are not those of a mean of few. So the
    replicates are widened to the standard error of rows and seeds together, and to the tails of Student's t with Welch and
    Satterthwaite's degrees of freedom (rows count as many). With one seed nothing is known of the spread between seeds.
    """
    seeds = len(values)
    means = _bootstrap_means(draws)
    centred = means - means.mean()
    variance_of_rows = float(draws.mean(axis=0).var())
    if seeds == 1:
        return centred, math.sqrt(variance_of_rows), math.inf
    variance_of_seeds = float(values.var(ddof=1)) / seeds
    variance = variance_of_rows + variance_of_seeds
    error = math.sqrt(variance)
    freedom = math.inf
    if variance_of_seeds > 0:
        freedom = variance**2 / (variance_of_seeds**2 / (seeds - 1))
    spread = float(centred.std())
    if spread == 0:
        return centred, error, freedom
    tail = (1 + LEVEL) / 2
    factor = 1.0
    if math.isfinite(freedom):
        factor = stats.t.ppf(tail, freedom) / stats.norm.ppf(tail)
    return centred * (error / spread * factor), error, freedom


def interval(sample: Sample, limit: float = math.inf) -> tuple[float, float, float]:
    """Return the mean over seeds and its bootstrap interval over seeds and examples.

    Parameters
    ----------
    sample : Sample
        A figure that is at least 0.
    limit : float
        The largest value of the metric.

    Returns
    -------
    mean, low, high : float
        The limits are nan if a value is not finite.

    Examples
    --------
    >>> draws = np.array([[0.1, 0.2, 0.3], [0.2, 0.3, 0.4]])
    >>> mean, low, high = interval(Sample((0, 1), np.array([0.2, 0.3]), draws, examples=50))
    >>> round(mean, 2), low <= mean <= high
    (0.25, True)
    """
    mean = float(sample.values.mean())
    if not math.isfinite(mean) or not np.isfinite(sample.draws).all():
        return mean, math.nan, math.nan
    low, high = np.quantile(_widened_replicates(sample.values, sample.draws)[0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) + mean
    return mean, max(0.0, min(float(low), mean)), min(max(float(high), mean), limit)


def difference(first: Sample, second: Sample) -> tuple[float, float, float, float] | None:
    """Return ``first - second`` with its interval and p-value, over the seeds that both have.

    Parameters
    ----------
    first, second : Sample
        Figures of one metric in one place, whose replicates resample the same examples.

    Returns
    -------
    tuple of float or None
        The difference, the limits of its interval and the p-value; None if they share no seed, are not measured on the same
        examples, or a value is not finite.
    """
    shared = [seed for seed in first.seeds if seed in second.seeds]
    if not shared or first.examples != second.examples:
        return None
    a, b = first.of(shared), second.of(shared)
    values = a.values - b.values
    draws = a.draws - b.draws
    if not np.isfinite(values).all() or not np.isfinite(draws).all():
        return None
    mean = float(values.mean())
    if len(shared) == 1:
        return paired_interval(mean, draws[0], a.examples, LEVEL)
    centred, error, freedom = _widened_replicates(values, draws)
    low, high = np.quantile(centred, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) + mean
    p = float(mean == 0)
    if error > 0:
        p = 2 * stats.t.sf(abs(mean) / error, min(freedom, 1e9))
    return mean, float(low), float(high), float(p)


def _finite_or_none(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


# ---- tables ------------------------------------------------------------------------------------------------------------


def fill_table(results: StudyResults, table: TableSettings) -> dict[str, Any]:
    """Fill a table: a cell for every row and column, and the difference where a row is compared with another method.

    The p-values of all differences of the table are corrected by Holm's method.

    Parameters
    ----------
    results : StudyResults
        The study that was run.
    table : TableSettings
        One of the study's tables.

    Returns
    -------
    dict
        The table as ``results.json`` holds it.
    """
    study = results.study
    cells: list[list[dict[str, Any]]] = []
    for i, row in enumerate(table.rows):
        cells.append([])
        for j, column in enumerate(table.columns):
            place = merge_places(table.common, row, column)
            paper_value = table.paper[i][j] if table.paper else math.nan
            cell = _fill_cell(results, place, paper_value)
            cell["difference"] = _compare(results, place)
            cells[-1].append(cell)
    _mark_significant(study, [cell for row in cells for cell in row if cell["difference"] is not None])
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "columns": [_heading(column) for column in table.columns],
        "rows": [_heading(row) for row in table.rows],
        "here": [_substitute(study, table, column) for column in table.columns],
        "row_here": [_substitute(study, table, row) for row in table.rows],
        "cells": cells,
    }


def _fill_cell(results: StudyResults, place: PlaceSettings, paper_value: Any) -> dict[str, Any]:
    metric = results.study.metrics[place.metric]
    sample = results.sample(place)
    failure = results.failure(place.method, place.task)
    cell: dict[str, Any] = {
        "mean": None,
        "std": None,
        "low": None,
        "high": None,
        "seeds": 0,
        "examples": 0,
        "paper": _paper_figure(paper_value, metric),
        "difference": None,
        "definition": definition(metric.metric, parameters(metric.metric, metric.settings)),
        "metric": place.metric,
        "method": place.method,
        "task": place.task,
        "set": place.set or "test",
        "percent": metric.percent,
        "digits": metric.digits,
        "chosen": results.chosen(place.method, place.task),
        "failed": failure,
        "missing": "not run" if sample is None and not failure else "",
    }
    if sample is None:
        return cell
    mean, low, high = interval(sample, UPPER_LIMIT.get(metric.metric, 1.0))
    cell["mean"] = _finite_or_none(mean)
    if len(sample.seeds) > 1:
        cell["std"] = _finite_or_none(float(sample.values.std(ddof=1)))
    cell["low"] = _finite_or_none(low)
    cell["high"] = _finite_or_none(high)
    cell["seeds"] = len(sample.seeds)
    cell["examples"] = sample.examples
    return cell


def _paper_figure(value: Any, metric: MetricSettings) -> dict[str, float | None] | None:
    """The paper's figure as a fraction where it is printed in per cent; None for nan."""
    mean, std = value if isinstance(value, (list, tuple)) else (value, None)
    if mean is None or not math.isfinite(mean):
        return None
    unit = 100 if metric.percent else 1
    return {"mean": mean / unit, "std": None if std is None else std / unit}


def _compare(results: StudyResults, place: PlaceSettings) -> dict[str, Any] | None:
    """The difference to the method that a place is compared with; None if there is none, or if it cannot be computed."""
    if not place.against:
        return None
    first = results.sample(place)
    second = results.sample(merge_places(place, PlaceSettings(method=place.against)))
    if first is None or second is None:
        return None
    compared = difference(first, second)
    if compared is None or not all(map(math.isfinite, compared)):
        return None
    value, low, high, p = compared
    return {"against": place.against, "value": value, "low": low, "high": high, "p": p}


def _mark_significant(study: Study, cells: Sequence[dict[str, Any]]) -> None:
    """Correct the p-values of these cells' differences by Holm's method, and add whether they are significant and better."""
    corrected = holm([cell["difference"]["p"] for cell in cells])
    for cell, p in zip(cells, corrected, strict=True):
        metric = study.metrics[cell["metric"]].metric
        significant = is_significant(cell["difference"]["low"], cell["difference"]["high"], p, LEVEL)
        better = None
        if significant and metric not in NO_DIRECTION:
            is_higher = cell["difference"]["value"] > 0
            is_lower = cell["difference"]["value"] < 0
            better = is_higher if metric in HIGHER_IS_BETTER else is_lower
        cell["difference"] |= {"p": p, "significant": significant, "better": better}


def _heading(place: PlaceSettings) -> str:
    return place.name or place.method or place.set or place.task or place.metric


def _substitute(study: Study, table: TableSettings, place: PlaceSettings) -> str:
    """What replaces the paper's data of a row or column at this scale."""
    place = merge_places(table.common, place)
    if not place.task:
        return ""
    substitutes = study.tasks[place.task].here
    return substitutes.get(place.set or "test", substitutes.get(place.name, ""))


# ---- claims ------------------------------------------------------------------------------------------------------------


def check_claim(results: StudyResults, claim: ClaimSettings) -> dict[str, Any]:
    """Check a claim of the paper: a verdict on each comparison, and one on the whole.

    The p-values of all comparisons of the claim are corrected by Holm's method.

    Parameters
    ----------
    results : StudyResults
        The study that was run.
    claim : ClaimSettings
        One of the study's claims.

    Returns
    -------
    dict
        The claim as ``results.json`` holds it.
    """
    expects_higher = claim.direction == "higher" if claim.pairs else bool(claim.higher)
    parts = []
    for first, second in claim_pairs(claim):
        for place in claim_places(results.study, claim):
            parts.append(_comparison(results, claim, place, first, second, expects_higher=expects_higher))
    for part, p in zip(parts, holm([part["p"] for part in parts]), strict=True):
        part["p"] = p
        if part["low"] is None or part["high"] is None or not is_significant(part["low"], part["high"], p, LEVEL):
            part["verdict"] = "undecided"
        elif (part["value"] > 0) == expects_higher:
            part["verdict"] = "holds"
        else:
            part["verdict"] = "fails"
    return {"text": claim.text, **verdict([part["verdict"] for part in parts], claim.at_least), "parts": parts}


def _comparison(
    results: StudyResults, claim: ClaimSettings, place: PlaceSettings, first: str, second: str, *, expects_higher: bool
) -> dict[str, Any]:
    """One comparison of a claim: two methods in one place."""
    metric = results.study.metrics[claim.metric]
    a = results.sample(merge_places(place, PlaceSettings(method=first, metric=claim.metric)))
    b = results.sample(merge_places(place, PlaceSettings(method=second, metric=claim.metric)))
    compared = None
    if a is not None and b is not None:
        compared = difference(a, b)
    value, low, high, p = compared if compared is not None else (math.nan, math.nan, math.nan, 1.0)
    where = f"{place.task}, {place.set}" if place.set else place.task
    return {
        "what": f"{first} {'above' if expects_higher else 'below'} {second}, {where}",
        "value": _finite_or_none(value),
        "low": _finite_or_none(low),
        "high": _finite_or_none(high),
        "p": p,
        "percent": metric.percent,
        "digits": metric.digits,
    }


def verdict(parts: Sequence[str], at_least: int = 0) -> dict[str, str]:
    """Combine the verdicts on the comparisons of a claim.

    A claim holds if enough of them hold, fails if so many fail that it cannot hold, and is undecided otherwise.

    Parameters
    ----------
    parts : sequence of str
        "holds", "fails" or "undecided" each.
    at_least : int
        How many must hold; 0: all.

    Examples
    --------
    >>> verdict(["holds", "holds", "undecided"], at_least=2)
    {'verdict': 'holds', 'need': '2 of 3'}
    """
    need = at_least or len(parts)
    if parts.count("holds") >= need:
        combined = "holds"
    elif parts.count("fails") > len(parts) - need:
        combined = "fails"
    else:
        combined = "undecided"
    return {"verdict": combined, "need": f"all of {len(parts)}" if need == len(parts) else f"{need} of {len(parts)}"}
