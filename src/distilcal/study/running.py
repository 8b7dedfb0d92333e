"""A study from its settings to its folder: expand, carry out, gather, write."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from distilcal.errors import InputError
from distilcal.store import locked, write_json
from distilcal.study.executors import Executor
from distilcal.study.graph import Graph, expand, job_recipe
from distilcal.study.results import Findings, results
from distilcal.study.schedule import News, Outcome, carry_out_graph, remove_losers
from distilcal.study.settings import Study, Wanted, wanted
from distilcal.study.work import Measure


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
    from distilcal.report.studies import write_study
    from distilcal.run.runs import environment

    graph = expand(study, methods=methods, tasks=tasks)
    if not graph.cells:
        raise InputError("no table asks for any of these methods on any of these tasks", remedy="leave out --only to see all")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", busy=f"another study is working in {folder}"):
        outcome = carry_out_graph(graph, executor, store, measures(study, graph), tell=tell)
        if not keep_points:
            remove_losers(graph, outcome, store)
        found = Findings(study, graph, outcome, store)
        facts = {
            "environment": environment(),
            "command": command,
            "seconds": outcome.seconds,
            "work": sum(result["seconds"] for result in outcome.results.values()),
        }
        write_json(folder / "results.json", results(found, **facts))
        write_study(folder)
    return outcome


def measures(study: Study, graph: Graph) -> Callable[[str], Measure]:
    """What is to be measured of each job or choice: all that any method it stands for is asked."""
    metrics = {name: {"metric": said.metric, **said.settings} for name, said in study.metrics.items()}
    asked: dict[str, Wanted] = {}
    everything = wanted(study)
    for (method, task, _), id_ in graph.cells.items():
        found, own = asked.setdefault(id_, Wanted()), everything[method, task]
        found.sets |= own.sets
        found.features = found.features or own.features
        found.map = found.map or own.map
    return lambda id_: Measure(tuple(asked[id_].sets), metrics, asked[id_].features, asked[id_].map)


def command_line(words: list[str]) -> str:
    """A command as it was given, to be given again."""
    return shlex.join(words)


# ---- beforehand --------------------------------------------------------------------------------------------------------

# Examples a second that a core trains, and megabytes a trained stage takes, where the store knows no stage like it.
ROUGHLY = {"frozen": (25_000.0, 1.0), "image": (250.0, 2.0), "vectors": (25_000.0, 0.1), "text": (25.0, 90.0)}
ENCODED = 80.0  # texts a second that a frozen encoder reads, once for all stages on it


def forecast(study: Study, graph: Graph, store: Path, slots: int) -> dict[str, Any]:
    """What is in the store, and what the rest would take: seconds and megabytes, as far as can be told without training.

    Jobs that wait for a choice count as not done. A task whose data cannot be read is counted by its limit.
    """
    import torch  # noqa: F401 - what follows needs it; a missing one is said by its name

    from distilcal.recipe import as_table
    from distilcal.study.work import is_done, splits_of

    done: set[str] = set()
    unread: dict[str, str] = {}
    seconds = disk = 0.0
    encoded: set[tuple[Any, ...]] = set()
    begun = time.perf_counter()
    for id_, job in graph.jobs.items():
        open_choice = any(needed in graph.choices for needed in _all_needs(graph, id_))
        if job.task not in unread and not open_choice:
            try:
                recipe, name = job_recipe(graph, id_, {})
                if is_done(as_table(recipe), name, store, keep=not job.candidate):
                    done.add(id_)
                    continue
            except InputError as error:
                unread[job.task] = str(error)
        size = job.data.limit or 10_000
        if job.task not in unread:
            size = len(splits_of(job.data).train)
        kind = _kind(job.stage.model.name, job.stage.model.frozen)
        rate, megabytes = ROUGHLY[kind]
        views = 1 + len({term.view for term in job.stage.terms} - {"plain"})
        seconds += bool(job.stage.terms) * size * job.stage.train.epochs * views / rate
        disk += megabytes * (not job.candidate)
        if job.stage.model.frozen:
            encoded.add((job.task, job.stage.model.name, job.stage.model.layers, size))
    seconds += sum(size * 2 / ENCODED for *_, size in encoded)
    return {
        "done": done,
        "unread": unread,
        "seconds": seconds / max(slots, 1),
        "megabytes": disk + 2.0 * len(encoded),
        "looked": time.perf_counter() - begun,
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


def _kind(name: str, frozen: bool) -> str:
    from distilcal.models.cifar import NETWORKS

    if frozen:
        return "frozen"
    return "image" if name in NETWORKS else "vectors" if name == "linear" else "text"
