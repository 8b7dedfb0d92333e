"""Figures that jobs left in the store, as samples over seeds and bootstrap replicates: their means, intervals, differences.

Intervals and differences come from one bootstrap over seeds and examples: every model of a task was resampled with the same
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
from distilcal.metrics import paired_interval
from distilcal.predictions import Predictions
from distilcal.study.expand import Graph
from distilcal.study.scheduler import Outcome
from distilcal.study.schema import PlaceSettings, Study, split_of

LEVEL = 0.95
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
