"""Carrying out a graph: what is ready goes to the executor, choices are made as soon as they can be, failures stay local."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distilcal.config.loading import as_table
from distilcal.errors import InputError, StoreError
from distilcal.io.locks import file_lock
from distilcal.study.executors import Executor
from distilcal.study.expand import Choice, Graph, job_recipe

POLL = 0.5  # seconds to wait for a job before looking again


@dataclass
class Outcome:
    """What came of a graph."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # job → what it returned
    chosen: dict[str, str] = field(default_factory=dict)  # choice → job
    measured: dict[str, str] = field(default_factory=dict)  # job or choice → its folder of figures in the store
    failed: dict[str, str] = field(default_factory=dict)  # job or choice → why
    unmeasured: dict[str, str] = field(default_factory=dict)  # job or choice that is trained, but not measured → why
    trained: int = 0
    seconds: float = 0.0

    def job_of(self, id_: str) -> str:
        return self.chosen.get(id_, id_)


@dataclass(frozen=True)
class News:
    """How far the graph is: what a progress bar shows."""

    done: int
    total: int
    failed: int
    running: tuple[str, ...]
    label: str  # of what just ended
    result: Mapping[str, Any] | None
    error: str


def carry_out_graph(
    graph: Graph,
    executor: Executor,
    store: Path,
    measure: Callable[[str], Any],
    *,
    keep_points: bool = False,
    tell: Callable[[News], None] = lambda news: None,
) -> Outcome:
    """Train every job, make every choice, measure what fills cells. ``measure`` says for a job or choice what is wanted of it.

    What fails is marked, with all that needs it; the rest goes on. As soon as a choice is made, the models of points that were
    trained for it and lost are removed from the store, unless ``keep_points``; how their training went stays known.
    """
    begun = time.perf_counter()
    outcome = Outcome()
    run = _Run(graph, executor, store, measure, tell, outcome, keep_points)
    try:
        run.go()
    finally:
        outcome.seconds = time.perf_counter() - begun
    return outcome


class _Run:
    def __init__(
        self,
        graph: Graph,
        executor: Executor,
        store: Path,
        measure: Callable[[str], Any],
        tell: Callable[[News], None],
        outcome: Outcome,
        keep_points: bool,
    ):
        self.graph, self.executor, self.store, self.measure = graph, executor, store, measure
        self.tell, self.outcome, self.keep_points = tell, outcome, keep_points
        self.wanted = graph.measured
        self.waiting: dict[str, int] = {}  # job or choice → how many it still waits for
        self.after: dict[str, list[str]] = {}
        self.ready: deque[str] = deque()
        self.running: dict[str, str] = {}
        self.total = len(graph.jobs) + sum(1 for id_ in graph.choices if id_ in self.wanted)
        self.done = 0
        for id_ in graph.order():
            needed = set(graph.needs(id_))
            self.waiting[id_] = len(needed)
            for other in needed:
                self.after.setdefault(other, []).append(id_)
            if not needed:
                self.ready.append(id_)

    def go(self) -> None:
        while self.ready or self.running:
            while self.ready and len(self.running) < self.executor.slots:
                self._start(self.ready.popleft())
            for name, result in self.executor.finished(POLL):
                self._ended(name, result)

    def _start(self, id_: str) -> None:
        """Hand a job to the executor; of a choice, the model that was chosen, to be measured."""
        if id_ in self.graph.choices:
            self._choose(id_)
            return
        job = self.graph.jobs[id_]
        self._submit(id_, id_, keep=not job.candidate, measure=self.measure(id_) if id_ in self.wanted else None)

    def _submit(self, name: str, job: str, *, keep: bool, measure: Any) -> None:
        try:
            recipe, stage = job_recipe(self.graph, job, self.outcome.chosen)
        except InputError as error:
            self._fail(name, str(error))
            return
        self.running[name] = self.graph.jobs[job].label
        store = str(self.store.resolve())  # a worker may stand in another folder
        arguments = {"table": as_table(recipe), "name": stage, "store": store, "measure": measure, "keep": keep}
        self.executor.submit(name, arguments)

    def _choose(self, id_: str) -> None:
        choice = self.graph.choices[id_]
        there = [job for job in choice.jobs if job in self.outcome.results]
        if not there:
            self._fail(id_, f"no point of the grid could be trained: {self.outcome.failed.get(choice.jobs[0], '')}")
            return

        best = best_of(replace(choice, jobs=tuple(there)), self.outcome.results)
        self.outcome.chosen[id_] = best
        self.graph.jobs[best] = replace(self.graph.jobs[best], candidate=False)
        if not self.keep_points:
            remove_losers(self.graph, self.outcome, self.store, choice)
        if id_ in self.wanted:
            self._submit(id_, best, keep=True, measure=self.measure(id_))
        else:
            self._free(id_)

    def _ended(self, name: str, result: dict[str, Any] | BaseException) -> None:
        label = self.running.pop(name)
        if isinstance(result, BaseException):
            if not isinstance(result, Exception):
                raise result
            result = {"error": str(result) if isinstance(result, InputError) else f"{type(result).__name__}: {result}"}
        if "error" in result:
            self._fail(name, result["error"])
            return
        self.outcome.trained += bool(result["trained"])
        self.outcome.results[self.outcome.job_of(name)] = result
        if "measured" in result:
            self.outcome.measured[name] = result["measured"]
        self.done += 1
        why = result.get("not_measured", "")
        if why:
            self.outcome.unmeasured[name] = why
        self._free(name)
        self.tell(self._news(label, result, why))

    def _free(self, id_: str) -> None:
        """Let go on what waited for this one."""
        for other in self.after.get(id_, ()):
            if other in self.outcome.failed:
                continue
            self.waiting[other] -= 1
            if self.waiting[other] == 0:
                self.ready.append(other)

    def _fail(self, id_: str, why: str) -> None:
        self.outcome.failed[id_] = why
        self.done += id_ in self.graph.jobs or id_ in self.wanted
        label = self.graph.jobs[id_].label if id_ in self.graph.jobs else self.graph.choices[id_].label
        self.tell(self._news(label, None, why))
        for other in self.after.get(id_, ()):
            if other in self.graph.choices:  # a choice is made among those that are left
                self.waiting[other] -= 1
                if self.waiting[other] == 0:
                    self.ready.append(other)
            elif other not in self.outcome.failed:
                self._fail(other, f"needs {label}, which failed")

    def _news(self, label: str, result: Mapping[str, Any] | None, error: str) -> News:
        return News(self.done, self.total, len(self.outcome.failed), tuple(self.running.values()), label, result, error)


def best_of(choice: Choice, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The job with the best figure on dev; the first of equals."""

    def figure(job: str) -> float:
        return float(results[job]["epochs"][results[job]["best"]]["dev"][choice.by])

    return max(choice.jobs, key=figure) if choice.by == "accuracy" else min(choice.jobs, key=figure)


def remove_losers(graph: Graph, outcome: Outcome, store: Path, choice: Choice) -> int:
    """Delete the models of points that lost, if they were trained for a grid; the bytes that are free."""
    freed = 0
    kept = {result["key"] for job, result in outcome.results.items() if not graph.jobs[job].candidate}
    open_choices = [c for c in graph.choices.values() if c.id not in outcome.chosen and c.id not in outcome.failed]
    waiting = {job for other in open_choices for job in other.jobs}  # points of another grid too
    for job in choice.jobs:
        result = outcome.results.get(job)
        if result is None or not graph.jobs[job].candidate or job in waiting or not result.get("own"):
            continue
        folder = store / "stages" / result["key"]
        if result["key"] in kept or not folder.exists():
            continue
        try:
            with file_lock(store / "locks" / result["key"], busy="in use"):
                freed += sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
                shutil.rmtree(folder)
        except StoreError:
            continue  # somebody trains it
    return freed
