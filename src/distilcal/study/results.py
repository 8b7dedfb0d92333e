"""What a study found: cells with mean, spread and interval, tables beside the paper's, claims checked, figures to draw.

Reads what jobs left in the store; NumPy only. Intervals and differences come from one bootstrap over seeds and examples:
every model of a task was resampled with the same rows, and seeds are drawn the same for all, so differences are paired.
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
from distilcal.disk import open_npz
from distilcal.metrics import binomial_interval, definition, holm, paired_interval, reliability
from distilcal.metrics.definitions import HIGHER_IS_BETTER, NO_DIRECTION, parameters
from distilcal.metrics.evaluation import UPPER_LIMIT
from distilcal.predictions import Predictions
from distilcal.store import read_json
from distilcal.study.graph import Graph
from distilcal.study.schedule import Outcome
from distilcal.study.settings import (
    ClaimSettings,
    FigureSettings,
    MetricSettings,
    PlaceSettings,
    Study,
    TableSettings,
    claim_pairs,
    claim_places,
    place_of,
    split_of,
)
from distilcal.study.theory import theorem

LEVEL = 0.95
DOTS = 3000  # of a map; more than that are one blot
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """A figure of one method in one place: a value and bootstrap replicates for each seed."""

    seeds: tuple[int, ...]
    values: Floats  # (seeds,)
    draws: Floats  # (seeds, replicates)
    examples: int

    def of(self, seeds: Sequence[int]) -> Sample:
        rows = [self.seeds.index(seed) for seed in seeds]
        return Sample(tuple(seeds), self.values[rows], self.draws[rows], self.examples)


class Findings:
    """The samples of a study, read from the store when they are asked for."""

    def __init__(self, study: Study, graph: Graph, outcome: Outcome, store: Path):
        self.study, self.graph, self.outcome, self.store = study, graph, outcome, store

    def job(self, method: str, task: str, seed: int) -> Mapping[str, Any] | None:
        """What the job behind a method returned; None if it was not asked for or failed."""
        id_ = self.graph.cells.get((method, task, seed))
        if id_ is None or id_ in self.outcome.failed:
            return None
        return self.outcome.results.get(self.outcome.job_of(id_))

    def failure(self, method: str, task: str) -> str:
        ids = [self.graph.cells.get((method, task, seed)) for seed in self.study.seeds]
        failed = {**self.outcome.unmeasured, **self.outcome.failed}
        return next((failed[id_] for id_ in ids if id_ in failed), "")

    def folder(self, method: str, task: str, seed: int) -> Path | None:
        id_ = self.graph.cells.get((method, task, seed))
        key = self.outcome.measured.get(id_ or "")
        return None if key is None else self.store / "measured" / key

    def scaled(self, place: PlaceSettings) -> bool:
        """Whether a model is looked at after temperature scaling: if its row or its column says so."""
        own = self.study.methods[place.method].scaled
        return own if place.scaled is None else place.scaled or own

    def sample(self, place: PlaceSettings) -> Sample | None:
        state = "scaled" if self.scaled(place) else "given"
        split = split_of(self.study, place)
        seeds, values, draws, examples = [], [], [], 0
        for seed in self.study.seeds:
            folder = self.folder(place.method, place.task, seed)
            if folder is None:
                continue
            figures, drawn = _measured(folder)
            value = figures["sets"][split][state][place.metric]
            seeds.append(seed)
            values.append(math.nan if value is None else value)
            draws.append(drawn[f"{split}/{state}/{place.metric}"])
            examples = figures["sets"][split]["n"]
        return Sample(tuple(seeds), np.array(values), np.array(draws, dtype=np.float64), examples) if seeds else None

    def predictions(self, place: PlaceSettings) -> list[Predictions]:
        """A model's predictions with each seed, after temperature scaling where the place says so."""
        folders = [self.folder(place.method, place.task, seed) for seed in self.study.seeds]
        made = []
        for folder in filter(None, folders):
            said = Predictions.load(folder / f"{split_of(self.study, place)}.npz")
            if self.scaled(place):
                said = said.with_log_probs(log_softmax(said.logits.astype(np.float64) / _measured(folder)[0]["temperature"]))
            made.append(said)
        return made

    def chosen(self, method: str, task: str) -> str:
        """The points of the grid that stand for a method, in words."""
        words = []
        for seed in self.study.seeds:
            id_ = self.graph.cells.get((method, task, seed))
            if id_ is None or id_ not in self.outcome.chosen:
                continue
            job = self.outcome.chosen[id_]
            epochs = self.outcome.results[job]["best"] + 1
            words.append(f"{self.graph.jobs[job].label.split(' · ')[-1]}, epochs {epochs}")
        return "; ".join(dict.fromkeys(words))


@lru_cache(maxsize=4096)
def _measured(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with open_npz(folder / "replicates.npz") as drawn:
        return read_json(folder / "figures.json"), {name: drawn[name] for name in drawn}


# ---- figures -----------------------------------------------------------------------------------------------------------


def _replicated(draws: Floats) -> Floats:
    """Means over seeds drawn with replacement, one for each replicate; the same seeds for whoever has as many."""
    seeds, count = draws.shape
    picked = np.random.default_rng([0, seeds]).integers(0, seeds, (seeds, count))
    return np.asarray(draws[picked, np.arange(count)].mean(axis=0))


def _widened(values: Floats, draws: Floats) -> tuple[Floats, float, float]:
    """Centred replicates of the mean over seeds and examples, its standard error and the degrees of freedom behind it.

    A bootstrap of a few seeds is too narrow: by √((S - 1)/S), and because its tails are not those of a mean of few. So the
    replicates are widened to the standard error of rows and seeds together, and to the tails of Student's t with Welch and
    Satterthwaite's degrees of freedom (rows count as many). With one seed nothing is known of the spread between seeds.
    """
    seeds = len(values)
    drawn = _replicated(draws)
    centred = drawn - drawn.mean()
    rows = float(draws.mean(axis=0).var())
    if seeds == 1:
        return centred, math.sqrt(rows), math.inf
    between = float(values.var(ddof=1)) / seeds
    error = math.sqrt(rows + between)
    freedom = (rows + between) ** 2 / (between**2 / (seeds - 1)) if between > 0 else math.inf
    spread = float(centred.std())
    if spread == 0:
        return centred, error, freedom
    tail = (1 + LEVEL) / 2
    factor = stats.t.ppf(tail, freedom) / stats.norm.ppf(tail) if math.isfinite(freedom) else 1.0
    return centred * (error / spread * factor), error, freedom


def interval(sample: Sample, limit: float = math.inf) -> tuple[float, float, float]:
    """Mean over seeds, and its bootstrap interval over seeds and examples, between 0 and the metric's limit."""
    mean = float(sample.values.mean())
    if not math.isfinite(mean) or not np.isfinite(sample.draws).all():
        return mean, math.nan, math.nan
    low, high = np.quantile(_widened(sample.values, sample.draws)[0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) + mean
    return mean, max(0.0, min(float(low), mean)), min(max(float(high), mean), limit)


def difference(first: Sample, second: Sample) -> tuple[float, float, float, float] | None:
    """``first - second`` with interval and p-value, over the seeds they share; None if they share none."""
    shared = [seed for seed in first.seeds if seed in second.seeds]
    if not shared or first.examples != second.examples:
        return None
    a, b = first.of(shared), second.of(shared)
    apart = a.values - b.values
    value = float(apart.mean())
    if not np.isfinite(apart).all() or not np.isfinite(a.draws - b.draws).all():
        return None
    if len(shared) == 1:
        return paired_interval(value, (a.draws - b.draws)[0], a.examples, LEVEL)
    centred, error, freedom = _widened(apart, a.draws - b.draws)
    low, high = np.quantile(centred, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) + value
    p = 2 * stats.t.sf(abs(value) / error, min(freedom, 1e9)) if error > 0 else float(value == 0)
    return value, float(low), float(high), float(p)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _cell(findings: Findings, place: PlaceSettings, paper: Any) -> dict[str, Any]:
    metric = findings.study.metrics[place.metric]
    sample = findings.sample(place)
    failure = findings.failure(place.method, place.task)
    made: dict[str, Any] = {
        "mean": None,
        "std": None,
        "low": None,
        "high": None,
        "seeds": 0,
        "examples": 0,
        "paper": _paper(paper, metric),
        "difference": None,
        "definition": definition(metric.metric, parameters(metric.metric, metric.settings)),
        "metric": place.metric,
        "method": place.method,
        "task": place.task,
        "set": place.set or "test",
        "percent": metric.percent,
        "digits": metric.digits,
        "chosen": findings.chosen(place.method, place.task),
        "failed": failure,
        "missing": "not run" if sample is None and not failure else "",
    }
    if sample is None:
        return made
    mean, low, high = interval(sample, UPPER_LIMIT.get(metric.metric, 1.0))
    spread = float(sample.values.std(ddof=1)) if len(sample.seeds) > 1 else None
    made |= {"mean": _finite(mean), "std": _finite(spread), "low": _finite(low), "high": _finite(high)}
    return {**made, "seeds": len(sample.seeds), "examples": sample.examples}


def _paper(said: Any, metric: MetricSettings) -> dict[str, float | None] | None:
    """The paper's figure in natural units."""
    mean, std = (said[0], said[1]) if isinstance(said, (list, tuple)) else (said, None)
    if mean is None or not math.isfinite(mean):
        return None
    unit = 100 if metric.percent else 1
    return {"mean": mean / unit, "std": None if std is None else std / unit}


def filled_table(findings: Findings, table: TableSettings) -> dict[str, Any]:
    """A table with every cell, and for rows that are compared the difference; Holm's correction covers the table."""
    study = findings.study
    cells: list[list[dict[str, Any]]] = []
    compared: list[tuple[dict[str, Any], float]] = []
    for i, row in enumerate(table.rows):
        cells.append([])
        for j, column in enumerate(table.columns):
            place = place_of(table.common, row, column)
            cell = _cell(findings, place, table.paper[i][j] if table.paper else math.nan)
            cells[-1].append(cell)
            other = place_of(place, PlaceSettings(method=place.against)) if place.against else None
            first, second = findings.sample(place), findings.sample(other) if other is not None else None
            found = difference(first, second) if first is not None and second is not None else None
            if found is not None and all(map(math.isfinite, found)):
                value, low, high, p = found
                cell["difference"] = {"against": place.against, "value": value, "low": low, "high": high, "p": p}
                compared.append((cell, p))
    for (cell, _), p in zip(compared, holm([p for _, p in compared]), strict=True):
        kind = study.metrics[cell["metric"]].metric
        direction = 0 if kind in NO_DIRECTION else 1 if kind in HIGHER_IS_BETTER else -1
        sure = p < 1 - LEVEL
        better = cell["difference"]["value"] * direction > 0 if sure and direction else None
        cell["difference"] |= {"p": p, "significant": sure, "better": better}
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "columns": [_heading(table, column) for column in table.columns],
        "rows": [_heading(table, row) for row in table.rows],
        "here": [_stands_here(study, table, column) for column in table.columns],
        "row_here": [_stands_here(study, table, row) for row in table.rows],
        "cells": cells,
    }


def _heading(table: TableSettings, place: PlaceSettings) -> str:
    return place.name or place.method or place.set or place.task or place.metric


def _stands_here(study: Study, table: TableSettings, place: PlaceSettings) -> str:
    """What stands in for a row's or column's data at this scale."""
    place = place_of(table.common, place)
    if not place.task:
        return ""
    here = study.tasks[place.task].here
    return here.get(place.set or "test", here.get(place.name, ""))


# ---- claims ------------------------------------------------------------------------------------------------------------


def checked_claim(findings: Findings, claim: ClaimSettings) -> dict[str, Any]:
    """A claim with a verdict on each comparison, Holm's correction over all of them, and one on the whole."""
    study = findings.study
    up = claim.direction == "higher" if claim.pairs else bool(claim.higher)
    metric = study.metrics[claim.metric]
    parts: list[dict[str, Any]] = []
    for first, second in claim_pairs(claim):
        for place in claim_places(study, claim):
            a, b = (
                findings.sample(place_of(place, PlaceSettings(method=method, metric=claim.metric)))
                for method in (first, second)
            )
            found = difference(a, b) if a is not None and b is not None else None
            where = place.task if not place.set else f"{place.task}, {place.set}"
            value, low, high, p = found if found is not None else (math.nan, math.nan, math.nan, 1.0)
            parts.append(
                {
                    "what": f"{first} {'above' if up else 'below'} {second}, {where}",
                    "value": _finite(value),
                    "low": _finite(low),
                    "high": _finite(high),
                    "p": p,
                    "percent": metric.percent,
                    "digits": metric.digits,
                }
            )
    for part, p in zip(parts, holm([part["p"] for part in parts]), strict=True):
        agrees = part["value"] is not None and (part["value"] > 0) == up
        part |= {"p": p, "verdict": "undecided" if p >= 1 - LEVEL else "holds" if agrees else "fails"}
    return {"text": claim.text, **verdict([part["verdict"] for part in parts], claim.at_least), "parts": parts}


def verdict(parts: Sequence[str], at_least: int = 0) -> dict[str, str]:
    """Holds if enough of the comparisons hold, fails if so many fail that they cannot, undecided otherwise."""
    need = at_least or len(parts)
    holds, fails = parts.count("holds"), parts.count("fails")
    word = "holds" if holds >= need else "fails" if fails > len(parts) - need else "undecided"
    return {"verdict": word, "need": f"all of {len(parts)}" if need == len(parts) else f"{need} of {len(parts)}"}


# ---- pictures ----------------------------------------------------------------------------------------------------------


def drawn(findings: Findings, figure: FigureSettings) -> list[dict[str, Any]]:
    """The series of a figure; a projection or map of several methods is several figures."""
    base = {"name": figure.name, "title": figure.title, "note": figure.note, "kind": figure.kind, "diagonal": False}
    study = findings.study
    if figure.kind == "scatter":
        diagonal = {study.metrics[m].metric for m in (figure.x, figure.y)} == {"accuracy", "confidence"}
        named = {"x": _axis(findings, figure.x), "y": _axis(findings, figure.y)}
        return [{**base, **named, "diagonal": diagonal, "series": _scatter(findings, figure)}]
    if figure.kind == "line":
        return [{**base, "x": figure.x, "y": _axis(findings, figure.y), "series": _line(findings, figure)}]
    if figure.kind == "training":
        series = [s for place in figure.places for s in _training(findings, figure, place)]
        return [{**base, "kind": "line", "x": "epoch", "y": f"{figure.y} on dev", "series": series}]
    if figure.kind == "reliability":
        made = []
        for place in figure.places:
            where = _place_words(place)
            series = [s for method in figure.methods if (s := _reliability(findings, method, place)) is not None]
            named = {"name": f"{figure.name}-{_file_name(where)}", "title": f"{figure.title}: {where}"}
            made.append({**base, **named, "x": "confidence", "y": "accuracy", "diagonal": True, "series": series})
        return made if len(made) > 1 else [{**made[0], "name": figure.name}] if made else []
    read = _projection if figure.kind == "projection" else _map
    made = []
    for method in figure.methods:
        for place in figure.places:
            series = read(findings, figure, method, place)
            words = f"{method}, {_place_words(place)}" if len(figure.places) > 1 else method
            named = {"name": f"{figure.name}-{_file_name(words)}", "title": f"{figure.title}: {words}"}
            axes = ("", "") if figure.kind == "projection" else ("variability", "confidence")
            note = figure.note or (f"at most {DOTS:,} examples are drawn" if figure.kind == "map" else "")
            made.append({**base, **named, "note": note, "x": axes[0], "y": axes[1], "series": series})
    return made


def _place_words(place: PlaceSettings) -> str:
    return place.name or place.set or place.task


def _file_name(words: str) -> str:
    kept = "".join(c if c.isalnum() else "-" for c in words.lower())
    return "-".join(filter(None, kept.split("-")))


def _shown(findings: Findings, metric: str) -> float:
    return 100.0 if findings.study.metrics[metric].percent else 1.0


def _axis(findings: Findings, metric: str) -> str:
    return f"{metric} (%)" if findings.study.metrics[metric].percent else metric


def _scatter(findings: Findings, figure: FigureSettings) -> list[dict[str, Any]]:
    series = []
    for method in figure.methods:
        points, labels = [], []
        for place in figure.places:
            pair = [findings.sample(place_of(place, PlaceSettings(method=method, metric=m))) for m in (figure.x, figure.y)]
            if all(sample is not None for sample in pair):
                both = [interval(s)[0] * _shown(findings, m) for s, m in zip(pair, (figure.x, figure.y), strict=True) if s]
                if all(map(math.isfinite, both)):
                    points.append(both)
                    labels.append(_place_words(place))
        series.append({"name": method, "points": points, "labels": labels})
    return series


def _line(findings: Findings, figure: FigureSettings) -> list[dict[str, Any]]:
    series = []
    for place in figure.places:
        points = []
        for method, x in zip(figure.methods, figure.values, strict=True):
            sample = findings.sample(place_of(place, PlaceSettings(method=method, metric=figure.y)))
            if sample is not None:
                y = [value * _shown(findings, figure.y) for value in interval(sample)]
                if all(map(math.isfinite, y)):
                    points.append([x, *y])
        series.append({"name": _place_words(place), "points": points})
    return series


def _training(findings: Findings, figure: FigureSettings, place: PlaceSettings) -> list[dict[str, Any]]:
    series = []
    for method in figure.methods:
        jobs = [findings.job(method, place.task, seed) for seed in findings.study.seeds]
        courses = [[epoch["dev"][figure.y] for epoch in job["epochs"]] for job in jobs if job is not None]
        length = min(map(len, courses), default=0)
        mean = np.mean([course[:length] for course in courses], axis=0) if length else np.zeros(0)
        series.append({"name": method, "points": [[i + 1, float(y)] for i, y in enumerate(mean)]})
    return series


def _reliability(findings: Findings, method: str, place: PlaceSettings) -> dict[str, Any] | None:
    """The bins of all seeds' predictions together; their intervals are those of one seed's rows, which all seeds share."""
    said = findings.predictions(place_of(place, PlaceSettings(method=method)))
    if not said:
        return None
    probs, labels = (np.concatenate([getattr(p, name) for p in said]) for name in ("probs", "labels"))
    found = reliability(Predictions.from_probs(probs, labels, classes=said[0].classes), bins=10)
    there = found.count > 0
    rows = np.maximum(found.count / len(said), 1e-9)
    low, high = binomial_interval(np.nan_to_num(found.accuracy) * rows, rows)
    columns = [found.confidence, found.accuracy, low, high, found.count]
    return {"name": method, "points": [list(map(float, row)) for row in np.stack(columns, axis=1)[there]]}


def _projection(findings: Findings, figure: FigureSettings, method: str, place: PlaceSettings) -> list[dict[str, Any]]:
    """Features of three classes on the plane through their means."""
    folder = findings.folder(method, place.task, findings.study.seeds[0])
    if folder is None or not (folder / "features.npz").exists():
        return []
    with open_npz(folder / "features.npz") as found:
        features, names = found["features"].astype(np.float64), found["classes"].astype(str)
    features = features.reshape(len(features), -1)
    centres = np.stack([features[names == name].mean(axis=0) for name in figure.classes])
    plane, _ = np.linalg.qr((centres[1:] - centres[0]).T)  # (D, 2)
    flat = (features - centres.mean(axis=0)) @ plane
    return [{"name": name, "points": flat[names == name].round(5).tolist()} for name in figure.classes]


def _map(findings: Findings, figure: FigureSettings, method: str, place: PlaceSettings) -> list[dict[str, Any]]:
    folder = findings.folder(method, place.task, findings.study.seeds[0])
    if folder is None or not (folder / "map.npz").exists():
        return []
    with open_npz(folder / "map.npz") as found:
        columns = [found[name] for name in ("variability", "confidence", "correctness")]
        share = columns[2] / max(float(found["epochs"]), 1.0)
    rows = np.random.default_rng(0).permutation(len(share))[:DOTS]
    return [{"name": method, "points": np.stack([columns[0], columns[1], share], axis=1)[rows].round(4).tolist()}]


def results(findings: Findings, **facts: Any) -> dict[str, Any]:
    """All of it, as the report reads it."""
    study, outcome, graph = findings.study, findings.outcome, findings.graph
    labels = {**{i: j.label for i, j in graph.jobs.items()}, **{i: c.label for i, c in graph.choices.items()}}
    return {
        "format": 1,
        "name": study.name,
        "title": study.title,
        "scale": study.scale,
        "note": study.note,
        "seeds": list(study.seeds),
        "level": LEVEL,
        "tables": [filled_table(findings, table) for table in study.tables],
        "claims": [checked_claim(findings, claim) for claim in study.claims],
        "figures": [made for figure in study.figures for made in drawn(findings, figure)],
        "theorems": [theorem(said) for said in study.theorems],
        "failures": [{"what": labels[id_], "error": why} for id_, why in {**outcome.failed, **outcome.unmeasured}.items()],
        "jobs": len(graph.jobs),
        "points": graph.points,
        "trained": outcome.trained,
        **facts,
    }
