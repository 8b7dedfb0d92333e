"""A study from its settings to its folder: expand, carry out, gather, write."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from distilcal.config.loading import as_table
from distilcal.errors import InputError
from distilcal.io.atomic import write_json
from distilcal.io.locks import file_lock
from distilcal.study.analysis import Findings
from distilcal.study.executors import Executor
from distilcal.study.expand import Graph, Job, expand, job_recipe
from distilcal.study.job import Measure
from distilcal.study.results import results
from distilcal.study.scheduler import News, Outcome, best_of, carry_out_graph
from distilcal.study.schema import Study, Wanted, wanted


def run_study(
    study: Study,
    folder: Path,
    store: Path,
    executor: Executor,
    *,
    methods: Collection[str] = (),
    tasks: Collection[str] = (),
    keep_points: bool = False,
    command: str = "",
    tell: Callable[[News], None] = lambda news: None,
) -> Outcome:
    """Train and measure all a study asks for, and write its results into the folder. What is in the store is not done again.

    Without ``keep_points`` the models of grid points that were not chosen are removed; how they were on dev stays known.
    """
    from distilcal.pipeline.run import environment
    from distilcal.report.studies import write_study

    graph = expand(study, methods=methods, tasks=tasks)
    if not graph.cells:
        raise InputError("no table asks for any of these methods on any of these tasks", remedy="leave out --only to see all")
    check_jobs(graph)
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / ".lock", busy=f"another study is working in {folder}"):
        around = {**environment(), **executor.describe()}
        outcome = carry_out_graph(graph, executor, store, measures(study, graph), keep_points=keep_points, tell=tell)
        found = Findings(study, graph, outcome, store)
        facts = {
            "environment": around,
            "command": command,
            "seconds": outcome.seconds,
            "training": sum(epoch["seconds"] for result in outcome.results.values() for epoch in result["epochs"]),
        }
        write_json(folder / "results.json", results(found, **facts))
        write_study(folder)
    return outcome


def check_jobs(graph: Graph) -> None:
    """Refuse before anything runs what words alone can tell of every stage: also of points that no recipe names."""
    first = {choice.id: choice.jobs[0] for choice in graph.choices.values()}
    for id_, job in graph.jobs.items():
        try:
            job_recipe(graph, id_, first)
        except InputError as error:
            error.problem = f"{job.label}: {error.problem}"
            raise


def measures(study: Study, graph: Graph) -> Callable[[str], Measure]:
    """What is to be measured of each job or choice: all that any method it stands for is asked."""
    metrics = {name: {"metric": said.metric, **said.settings} for name, said in study.metrics.items()}
    asked: dict[str, Wanted] = {}
    everything = wanted(study)
    for (method, task, _), id_ in graph.cells.items():
        found, own = asked.setdefault(id_, Wanted()), everything[method, task]
        found.sets |= own.sets
        found.features = tuple(dict.fromkeys((*found.features, *own.features)))
        found.map = found.map or own.map
    return lambda id_: Measure(tuple(asked[id_].sets), metrics, asked[id_].features, asked[id_].map)


# ---- beforehand --------------------------------------------------------------------------------------------------------

# Examples a second that a core trains, and megabytes a trained stage takes, where the store knows no stage like it.
ROUGHLY = {"frozen": (25_000.0, 1.0), "image": (250.0, 2.0), "vectors": (25_000.0, 0.1), "text": (25.0, 90.0)}
ENCODED = 80.0  # texts a second that a frozen encoder reads, once for all stages on it


def forecast(graph: Graph, store: Path, slots: int) -> dict[str, Any]:
    """What is in the store, and what the rest would take: seconds and megabytes, as far as can be told without training.

    Jobs that wait for a choice count as not done. A task whose data cannot be read is counted by its limit.
    """
    from distilcal.study.job import known, splits_of

    done: set[str] = set()
    went: dict[str, dict[str, Any]] = {}
    chosen: dict[str, str] = {}
    unread: dict[str, str] = {}
    seconds = disk = 0.0
    encoded: set[tuple[Any, ...]] = set()
    for id_ in graph.order():
        if id_ in graph.choices:
            choice = graph.choices[id_]
            if all(point in went for point in choice.jobs):
                chosen[id_] = best_of(choice, went)
            continue
        job = graph.jobs[id_]
        open_choice = any(needed in graph.choices and needed not in chosen for needed in _all_needs(graph, id_))
        if job.task not in unread and not open_choice:
            try:
                recipe, name = job_recipe(graph, id_, chosen)
                found = known(as_table(recipe), name, store, keep=not job.candidate)
            except InputError as error:
                unread[job.task], found = str(error), None
            if found is not None:
                done.add(id_)
                went[id_] = found
                continue
        size = job.data.limit or 10_000
        if job.task not in unread:
            size = len(splits_of(job.data).train)
        kind = _kind(graph, job)
        rate, megabytes = ROUGHLY[kind]
        views = 1 + len({term.view for term in job.stage.terms} - {"plain"})
        seconds += bool(job.stage.terms) * size * job.stage.train.epochs * views / rate
        disk += megabytes  # points that lose are removed, but when is not known
        if job.stage.model.frozen:
            encoded.add((job.task, job.stage.model.name, job.stage.model.layers, size))
    seconds += sum(size * 2 / ENCODED for *_, size in encoded)
    return {
        "done": done,
        "unread": unread,
        "seconds": seconds / max(slots, 1),
        "megabytes": disk + 2.0 * len(encoded),
    }


def _all_needs(graph: Graph, id_: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph.needs(id_))
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            if other in graph.jobs:
                waiting += graph.needs(other)
    return found


def _kind(graph: Graph, job: Job) -> str:
    from distilcal.models.cifar import NETWORKS

    parent = job.needs.get("start_from", "")
    while parent:
        job = graph.jobs[graph.choices[parent].jobs[0] if parent in graph.choices else parent]
        parent = job.needs.get("start_from", "")
    model = job.stage.model
    if model.frozen:
        return "frozen"
    return "image" if model.name in NETWORKS else "vectors" if model.name in ("linear", "mlp", "") else "text"
