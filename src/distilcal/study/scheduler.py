"""Running a graph of jobs: what is ready goes to the executor, choices are made as soon as possible, failures stay local."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from distilcal.config.loading import as_table
from distilcal.errors import InputError, StoreError
from distilcal.io.locks import file_lock, is_in_use
from distilcal.io.parts import remove_folder
from distilcal.study.executors import Executor, error_text
from distilcal.study.expand import Choice, Graph, job_recipe

logger = logging.getLogger(__name__)

POLL = 0.5  # seconds to wait for a job before looking again


@dataclass
class Outcome:
    """What running a graph has produced so far. Ids are those of jobs, or of choices where that is said."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # job → what it returned
    chosen: dict[str, str] = field(default_factory=dict)  # choice → job
    measured: dict[str, str] = field(default_factory=dict)  # job or choice → key of its measurements in the store
    failed: dict[str, str] = field(default_factory=dict)  # job or choice → error
    unmeasured: dict[str, str] = field(default_factory=dict)  # job or choice that was trained, but not measured → error
    trained: int = 0  # jobs that were not in the store
    seconds: float = 0.0

    def job_of(self, id_: str) -> str:
        """Return the job that was chosen for a choice; a job stands for itself."""
        return self.chosen.get(id_, id_)


@dataclass(frozen=True)
class StudyProgress:
    """How far a graph is: what a progress bar shows after a job has ended."""

    done: int
    total: int
    failed: int
    running: tuple[str, ...]  # labels
    label: str  # of the job that just ended
    result: Mapping[str, Any] | None  # what it returned; None if it failed
    error: str


OnProgress = Callable[[StudyProgress], None]


def ignore_progress(progress: StudyProgress) -> None:
    """Do nothing: the default of ``on_progress``.

    Parameters
    ----------
    progress : StudyProgress
        It is not used.
    """


def run_graph(
    graph: Graph,
    executor: Executor,
    store: Path,
    measure: Callable[[str], Any],
    *,
    keep_points: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> Outcome:
    """Run every job, make every choice and measure what fills cells.

    Whatever fails is marked, together with everything that needs it; the rest continues. As soon as a choice is made, the
    models that were trained for it and lost are removed from the store; the figures of their training stay known.

    Parameters
    ----------
    graph : Graph
        The jobs. Chosen candidates are marked as such in it.
    executor : Executor
        Where jobs run.
    store : Path
        Folder of the store.
    measure : callable
        Id of a job or choice → the ``Measure`` of its model, or None.
    keep_points : bool
        Keep the models of points that were not chosen.
    on_progress : callable
        Called with a ``StudyProgress`` whenever a job has ended.

    Returns
    -------
    Outcome
    """
    start_time = time.perf_counter()
    graph_run = _GraphRun(graph, executor, store, measure, keep_points=keep_points, on_progress=on_progress)
    try:
        graph_run.run()
    finally:
        graph_run.outcome.seconds = time.perf_counter() - start_time
    return graph_run.outcome


class _GraphRun:
    """The state of a graph that is being run."""

    def __init__(
        self,
        graph: Graph,
        executor: Executor,
        store: Path,
        measure: Callable[[str], Any],
        *,
        keep_points: bool,
        on_progress: OnProgress,
    ):
        self.graph = graph
        self.executor = executor
        self.store = store
        self.measure = measure
        self.keep_points = keep_points
        self.on_progress = on_progress
        self.outcome = Outcome()
        self.measured = graph.measured
        self.total = len(graph.jobs) + sum(id_ in self.measured for id_ in graph.choices)
        self.done = 0
        self.running: dict[str, str] = {}  # id → label
        self.ready: deque[str] = deque()
        self.sorter = TopologicalSorter({id_: graph.needs(id_) for id_ in graph.order()})
        self.sorter.prepare()

    def run(self) -> None:
        self.ready.extend(self.sorter.get_ready())
        while self.ready or self.running:
            while self.ready and len(self.running) < self.executor.slots:
                self._start(self.ready.popleft())
            for id_, result in self.executor.finished(POLL):
                self._finish(id_, result)

    def _start(self, id_: str) -> None:
        """Submit a job, or make a choice and submit the chosen model to be measured."""
        if id_ in self.graph.choices:
            self._choose(self.graph.choices[id_])
            return
        for needed in self.graph.needs(id_):
            if needed in self.outcome.failed:
                self._fail(id_, f"needs {self.graph.label(needed)}, which failed")
                return
        measure = self.measure(id_) if id_ in self.measured else None
        self._submit(id_, id_, keep=not self.graph.jobs[id_].candidate, measure=measure)

    def _submit(self, id_: str, job: str, *, keep: bool, measure: Any) -> None:
        try:
            recipe, stage = job_recipe(self.graph, job, self.outcome.chosen)
        except InputError as error:
            self._fail(id_, str(error))
            return
        self.running[id_] = self.graph.jobs[job].label
        store = str(self.store.resolve())  # a worker may have another working directory
        by = self.graph.chosen_by(job)
        arguments = {"table": as_table(recipe), "name": stage, "store": store, "measure": measure, "keep": keep, "by": by}
        self.executor.submit(id_, arguments)

    def _choose(self, choice: Choice) -> None:
        trained = tuple(job for job in choice.jobs if job in self.outcome.results)
        if not trained:
            reason = self.outcome.failed.get(choice.jobs[0], "")
            self._fail(choice.id, f"no point of the grid could be trained: {reason}")
            return
        best = best_of(replace(choice, jobs=trained), self.outcome.results)
        self.outcome.chosen[choice.id] = best
        self.graph.jobs[best] = replace(self.graph.jobs[best], candidate=False)
        logger.debug("%s: chosen is %s", choice.label, self.graph.jobs[best].label)
        if not self.keep_points:
            remove_losers(self.graph, self.outcome, self.store, choice)
        if choice.id in self.measured:
            self._submit(choice.id, best, keep=True, measure=self.measure(choice.id))
        else:
            self._release(choice.id)

    def _finish(self, id_: str, result: dict[str, Any] | BaseException) -> None:
        """Record what a job returned or raised."""
        label = self.running.pop(id_)
        if isinstance(result, BaseException):
            if not isinstance(result, Exception):
                raise result  # such as KeyboardInterrupt
            result = {"error": error_text(result)}
        if "error" in result:
            self._fail(id_, result["error"])
            return
        self.outcome.trained += bool(result["trained"])
        self.outcome.results[self.outcome.job_of(id_)] = result
        if "measured" in result:
            self.outcome.measured[id_] = result["measured"]
        error = result.get("not_measured", "")
        if error:
            self.outcome.unmeasured[id_] = error
        self.done += 1
        self._release(id_)
        self._report(label, result, error)

    def _fail(self, id_: str, error: str) -> None:
        """Mark a job or choice as failed; what needs it fails when its turn comes."""
        self.outcome.failed[id_] = error
        self.done += id_ in self.graph.jobs or id_ in self.measured
        self._release(id_)
        self._report(self.graph.label(id_), None, error)

    def _release(self, id_: str) -> None:
        """Let start what waited for this job or choice only."""
        self.sorter.done(id_)
        self.ready.extend(self.sorter.get_ready())

    def _report(self, label: str, result: Mapping[str, Any] | None, error: str) -> None:
        running = tuple(self.running.values())
        self.on_progress(
            StudyProgress(self.done, self.total, len(self.outcome.failed), running, label=label, result=result, error=error)
        )


def best_of(choice: Choice, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the job with the best figure on dev; the first of equals.

    Parameters
    ----------
    choice : Choice
        The jobs to choose from, and the metric: the highest accuracy or the lowest value of any other.
    results : mapping of str to mapping
        Id of the job → what it returned; its kept epoch is compared.

    Returns
    -------
    str
        Id of the job.
    """

    def dev_figure(job: str) -> float:
        result = results[job]
        return float(result["epochs"][result["best"]]["dev"][choice.by])

    if choice.by == "accuracy":
        return max(choice.jobs, key=dev_figure)
    return min(choice.jobs, key=dev_figure)


def remove_losers(graph: Graph, outcome: Outcome, store: Path, choice: Choice) -> int:
    """Remove the models that were trained for a choice and lost; return the number of bytes that are freed.

    Models that another choice still waits for, that somebody else trained, or that are in use stay.

    Parameters
    ----------
    graph : Graph
        The jobs and choices.
    outcome : Outcome
        What running them has produced so far, this choice included.
    store : Path
        Folder of the store.
    choice : Choice
        The choice that was made.

    Returns
    -------
    int
    """
    kept_keys = {result["key"] for job, result in outcome.results.items() if not graph.jobs[job].candidate}
    open_choices = [c for c in graph.choices.values() if c.id not in outcome.chosen and c.id not in outcome.failed]
    waited_for = {job for other in open_choices for job in other.jobs}
    freed = 0
    for job in choice.jobs:
        result = outcome.results.get(job)
        if result is None or not result.get("own"):
            continue
        if not graph.jobs[job].candidate or job in waited_for or result["key"] in kept_keys:
            continue
        folder = store / "stages" / result["key"]
        if not folder.exists():
            continue
        try:
            with file_lock(store / "locks" / result["key"], busy="in use"):
                if is_in_use(folder):
                    continue
                freed += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                remove_folder(folder)
        except StoreError:
            continue  # another process trains it
    return freed
