"""What a study measured: values over seeds and bootstrap replicates, read from the store, their intervals, and tables.

Intervals and differences come from one bootstrap over examples: every model of a task is resampled with the same rows, so
differences are paired. How seeds and examples make an interval is in `distilcal.study.inference`. NumPy only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.calibrate.base import log_softmax
from distilcal.io.atomic import open_npz, read_json
from distilcal.metrics import definition, holm, is_significant
from distilcal.metrics.definitions import HIGHER_IS_BETTER, NO_DIRECTION, UPPER_LIMIT, parameters
from distilcal.predictions import Predictions
from distilcal.study.expand import Graph
from distilcal.study.inference import LEVEL, Sample, estimate_each, paired_difference
from distilcal.study.places import PlaceSettings, merge_places
from distilcal.study.scheduler import Outcome
from distilcal.study.schema import MetricSettings, Study, TableSettings, splits_of

NOT_CHANGED = ("accuracy",)  # metrics that temperature scaling cannot change
SCORES = ("accuracy", "ece", "nll", "brier", "aurc")  # columns of the tables of scores


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
        """Return whether a model is evaluated after temperature scaling: as the place says, or else as its method is."""
        return self.study.methods[place.method].scaled if place.scaled is None else place.scaled

    def sample(self, place: PlaceSettings) -> Sample | None:
        """Return the figure of a place, which has method, task and metric; None if no seed was measured."""
        state = "scaled" if self.is_scaled(place) else "given"
        splits = splits_of(self.study, place)
        seeds: list[int] = []
        values: list[float] = []
        draws: list[Any] = []
        models: list[str] = []
        examples = 0
        for seed in self.study.seeds:
            folder = self.folder(place.method, place.task, seed)
            if folder is None:
                continue
            figures, replicates = _measurements(folder)
            measured = [figures["sets"][split][state][place.metric] for split in splits]
            seeds.append(seed)
            values.append(float(np.mean([math.nan if value is None else value for value in measured])))
            # Splits of one size are resampled with the same rows, so the mean over versions of the same examples resamples
            # all versions of an example together.
            draws.append(np.mean([replicates[f"{split}/{state}/{place.metric}"] for split in splits], axis=0))
            models.append(" ".join(_logits_digest(folder / f"{split}.npz") for split in splits))
            examples = sum(figures["sets"][split]["n"] for split in splits)
        if not seeds:
            return None
        return Sample(tuple(seeds), np.array(values), np.array(draws, dtype=np.float64), examples, tuple(models))

    def chance(self, place: PlaceSettings) -> float:
        """Return the share of the most frequent class on the place's splits, their mean; nan if nothing was measured."""
        for seed in self.study.seeds:
            folder = self.folder(place.method, place.task, seed)
            if folder is not None:
                figures = _measurements(folder)[0]
                return float(np.mean([figures["sets"][split]["chance"] for split in splits_of(self.study, place)]))
        return math.nan

    def predictions(self, place: PlaceSettings) -> list[Predictions]:
        """Return the predictions of a method with each seed on each split, scaled by a temperature where the place is."""
        loaded = []
        for seed in self.study.seeds:
            folder = self.folder(place.method, place.task, seed)
            if folder is None:
                continue
            for split in splits_of(self.study, place):
                predictions = Predictions.load(folder / f"{split}.npz")
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


@lru_cache(maxsize=65536)
def _logits_digest(path: Path) -> str:
    """A hash of the logits in a file of predictions: two models can have equal figures, but hardly equal logits."""
    with open_npz(path) as arrays:
        return hashlib.sha256(arrays["logits"].tobytes()).hexdigest()[:32]


# ---- intervals ---------------------------------------------------------------------------------------------------------


def interval(sample: Sample, limit: float = math.inf) -> tuple[float, float, float]:
    """Return the mean over seeds and its interval over seeds and examples.

    Parameters
    ----------
    sample : Sample
        A figure that is at least 0.
    limit : float
        The largest value of the metric.

    Returns
    -------
    mean, low, high : float
        The limits are nan if a value is not finite. With one seed they are those of the bootstrap over examples.

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
    if len(sample.seeds) == 1:
        centred = sample.draws[0] - sample.draws[0].mean()
        low, high = np.quantile(centred, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) + mean
    else:
        low, high = estimate_each([sample])[0].interval()
    return mean, max(0.0, min(float(low), mean)), min(max(float(high), mean), limit)


def finite_or_none(value: float | None) -> float | None:
    """Return the value, or None for what JSON cannot hold.

    Parameters
    ----------
    value : float or None
        Any number.

    Returns
    -------
    float or None
    """
    return None if value is None or not math.isfinite(value) else float(value)


# ---- tables ------------------------------------------------------------------------------------------------------------


def all_tables(study: Study) -> list[TableSettings]:
    """Return the tables of a study with the rows and tables that are added to every study.

    Parameters
    ----------
    study : Study
        The study at one scale. Its ``temperature_rows`` and ``score_tables`` say what is added.

    Returns
    -------
    list of TableSettings
        Its tables, each with a row ``+ temperature`` below every row that temperature scaling can change, and for every task
        and set a table of scores.
    """
    tables = list(study.tables)
    if study.score_tables:
        tables += _score_tables(study)
    if study.temperature_rows:
        tables = [_with_temperature_rows(study, table) for table in tables]
    return tables


def _score_tables(study: Study) -> list[TableSettings]:
    """A table of scores for every task and set that the study's tables show, with all methods that they show there."""
    methods: dict[tuple[str, str], dict[str, None]] = {}
    for table in study.tables:
        for row in table.rows:
            for column in table.columns:
                place = merge_places(table.common, row, column)
                methods.setdefault((place.task, place.set or "test"), {})[place.method] = None
    tables = []
    for (task, set_), shown in methods.items():
        where = task if set_ in ("test", task) else f"{task}, {set_}"
        # A stage that is shown as trained gets a row with its temperature, too.
        as_trained = {study.methods[name].stage for name in shown if not study.methods[name].scaled}
        names = [name for name in shown if not study.methods[name].scaled or study.methods[name].stage not in as_trained]
        tables.append(
            TableSettings(
                name=f"scores {where}",
                title=f"Every score: {where}",
                common=PlaceSettings(task=task, set=set_),
                rows=tuple(PlaceSettings(method=name) for name in names),
                columns=tuple(PlaceSettings(name=_score_title(study, metric), metric=metric) for metric in SCORES),
            )
        )
    return tables


def _score_title(study: Study, metric: str) -> str:
    return f"{metric} (%)" if study.metrics[metric].percent else metric


def _with_temperature_rows(study: Study, table: TableSettings) -> TableSettings:
    """The table with a row ``+ temperature`` below every row that is not scaled, where that can change a value."""
    methods = [merge_places(table.common, row).method for row in table.rows]
    shown_scaled = {study.methods[method].stage for method in methods if method and study.methods[method].scaled}
    rows: list[PlaceSettings] = []
    paper: list[Any] = []
    for i, (row, method) in enumerate(zip(table.rows, methods, strict=True)):
        rows.append(row)
        paper.append(table.paper[i] if table.paper else [])
        if not method or study.methods[method].scaled or study.methods[method].stage in shown_scaled:
            continue
        places = [merge_places(table.common, row, column) for column in table.columns]
        if any(place.scaled is None and study.metrics[place.metric].metric not in NOT_CHANGED for place in places):
            rows.append(row.replace(name=f"{_heading(row)} + temperature", scaled=True))
            paper.append([math.nan] * len(table.columns))
    return table.replace(rows=tuple(rows), paper=tuple(paper) if table.paper else ())


def fill_table(results: StudyResults, table: TableSettings) -> dict[str, Any]:
    """Fill a table: a cell for every row and column, and the difference where a row is compared with another method.

    Variances over seeds are moderated over the differences of one metric. The p-values of all differences of the table are
    corrected by Holm's method.

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
    compared: dict[str, list[tuple[dict[str, Any], PlaceSettings, Sample]]] = {}  # by metric
    for i, row in enumerate(table.rows):
        cells.append([])
        for j, column in enumerate(table.columns):
            place = merge_places(table.common, row, column)
            paper_value = table.paper[i][j] if table.paper else math.nan
            cell = _fill_cell(results, place, paper_value)
            cells[-1].append(cell)
            difference = _difference(results, place)
            if difference is not None:
                compared.setdefault(place.metric, []).append((cell, place, difference))
    for of_metric in compared.values():
        estimates = estimate_each([difference for _, _, difference in of_metric])
        for (cell, place, _), estimate in zip(of_metric, estimates, strict=True):
            low, high = estimate.interval()
            cell["difference"] = {
                "against": place.against,
                "value": estimate.value,
                "low": low,
                "high": high,
                "p": estimate.p_value(),
            }
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
    cell["mean"] = finite_or_none(mean)
    if len(sample.seeds) > 1:
        cell["std"] = finite_or_none(float(sample.values.std(ddof=1)))
    cell["low"] = finite_or_none(low)
    cell["high"] = finite_or_none(high)
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


def _difference(results: StudyResults, place: PlaceSettings) -> Sample | None:
    """The difference to the method that a place is compared with; None if there is none, or if it cannot be computed."""
    if not place.against:
        return None
    first = results.sample(place)
    second = results.sample(merge_places(place, PlaceSettings(method=place.against)))
    if first is None or second is None:
        return None
    return paired_difference(first, second)


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
