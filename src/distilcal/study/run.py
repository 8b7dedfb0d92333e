"""Running a study, from its settings to its folder: expand, run, gather, write; and a forecast of what that takes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distilcal.config.loading import as_table
from distilcal.config.schema import DataSettings
from distilcal.errors import InputError, MissingDependencyError
from distilcal.io.atomic import write_json
from distilcal.io.locks import file_lock
from distilcal.study.analysis import StudyResults, all_tables, fill_table
from distilcal.study.claims import check_claims, spread_of_differences
from distilcal.study.executors import Executor
from distilcal.study.expand import Graph, Job, expand, job_recipe
from distilcal.study.figures import build_charts
from distilcal.study.inference import LEVEL
from distilcal.study.job import Measure
from distilcal.study.points import point_table
from distilcal.study.scheduler import OnProgress, Outcome, best_of, ignore_progress, run_graph
from distilcal.study.schema import Requirements, Study, required_measurements
from distilcal.study.selection import select
from distilcal.study.sizes import check_sizes, expected_sizes, sources_on_hub
from distilcal.study.theory import theorem

FORMAT = 2  # of results.json
STUDY_MARKS = ("results.json", "results.md", "study.html")  # a folder with one of these is that of a study


def run_study(
    study: Study,
    folder: Path,
    store: Path,
    executor: Executor,
    *,
    methods: Collection[str] = (),
    tasks: Collection[str] = (),
    keep_points: bool = False,
    any_size: bool = False,
    command: str = "",
    on_progress: OnProgress = ignore_progress,
) -> Outcome:
    """Train and measure everything a study needs, and write its results. What is in the store is not trained again.

    Parameters
    ----------
    study : Study
        The study at one scale.
    folder : Path
        Of the results: ``results.json``, tables, figures and a page.
    store : Path
        Folder of the store.
    executor : Executor
        Where jobs run.
    methods, tasks : collections of str
        Only these, and only what is about them is written; empty: all.
    keep_points : bool
        Keep the models of grid points that were not chosen. Their figures on dev stay known in any case.
    any_size : bool
        Run at the scales ``full`` and ``paper`` although data have other sizes than the paper's; headings then tell them.
    command : str
        The command line, for the record.
    on_progress : callable
        Called with a ``StudyProgress`` whenever a job has ended.

    Returns
    -------
    Outcome

    Raises
    ------
    InputError
        If nothing is left to run, a job is invalid, data have other sizes than the paper's, or a folder cannot be written.
    StoreError
        If another process writes to the folder.
    """
    from distilcal.pipeline.run import environment
    from distilcal.report.figures import require_matplotlib
    from distilcal.report.studies import write_study

    check_study_folders(folder, store)
    if study.figures:
        require_matplotlib()  # before anything is trained
    study = select(study, methods=methods, tasks=tasks)
    graph = expand(study)
    if not graph.cells:
        raise InputError("no table uses any of these methods on any of these tasks", remedy="leave out --only to see all")
    check_jobs(graph)
    study = check_sizes(study, any_size=any_size)
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / ".lock", busy=f"another study is working in {folder}"):
        facts: dict[str, Any] = {"environment": {**environment(), **executor.describe()}, "command": command}
        outcome = run_graph(graph, executor, store, measures_of(study, graph), keep_points=keep_points, on_progress=on_progress)
        facts["seconds"] = outcome.seconds
        facts["training"] = sum(epoch["seconds"] for result in outcome.results.values() for epoch in result["epochs"])
        results = gather_results(StudyResults(study, graph, outcome, store))
        write_json(folder / "results.json", {**results, **facts})
        write_study(folder)
    return outcome


def check_study_folders(folder: Path, store: Path) -> None:
    """Refuse a folder of results that holds something else than a study, or cannot be created. Needs no data.

    Parameters
    ----------
    folder : Path
        The folder of the results: new, empty, or that of an earlier study.
    store : Path
        Folder of the store.

    Raises
    ------
    InputError
        With the folder.
    """
    from distilcal.pipeline.preflight import check_folders

    check_folders(folder, store, kind="study", marks=STUDY_MARKS)


def check_jobs(graph: Graph) -> None:
    """Check the recipe of every job before any of them runs, including the points of grids, which no file spells out.

    Parameters
    ----------
    graph : Graph
        The jobs. Where a job needs a choice, the first of its jobs stands for it.

    Raises
    ------
    InputError
        If a recipe is invalid, with the label of the job.
    """
    first_points = {choice.id: choice.jobs[0] for choice in graph.choices.values()}
    for id_, job in graph.jobs.items():
        try:
            job_recipe(graph, id_, first_points)
        except InputError as error:
            error.problem = f"{job.label}: {error.problem}"
            raise


def measures_of(study: Study, graph: Graph) -> Callable[[str], Measure]:
    """Return a function from the id of a job or choice to what must be measured of its model, for all its methods.

    Parameters
    ----------
    study : Study
        The study at one scale.
    graph : Graph
        Its jobs.

    Returns
    -------
    callable
        ``measure(id_) -> Measure``, for the ids that fill cells of the graph.
    """
    metrics = {name: {"metric": metric.metric, **metric.settings} for name, metric in study.metrics.items()}
    grid = None
    if study.temperature_grid is not None:
        first, last, step = study.temperature_grid
        grid = (first, last, step)
    by_method = required_measurements(study)
    by_id: dict[str, Requirements] = {}
    clusters: dict[str, str] = {}
    for (method, task, _), id_ in graph.cells.items():
        by_id.setdefault(id_, Requirements()).add(by_method[method, task])
        clusters[id_] = study.tasks[task].cluster

    def measure(id_: str) -> Measure:
        required = by_id[id_]
        return Measure(tuple(required.sets), metrics, required.features, required.map, clusters[id_], grid)

    return measure


def gather_results(results: StudyResults) -> dict[str, Any]:
    """Gather tables, claims, figures, theorems and failures of a study, as ``results.json`` holds them.

    Parameters
    ----------
    results : StudyResults
        The figures of the study that was run.

    Returns
    -------
    dict
        Ready for JSON; the environment and the times are not in it.
    """
    study, outcome, graph = results.study, results.outcome, results.graph
    errors = {**outcome.failed, **outcome.unmeasured}
    return {
        "format": FORMAT,
        "name": study.name,
        "title": study.title,
        "scale": study.scale,
        "note": study.note,
        "seeds": list(study.seeds),
        "level": LEVEL,
        "tables": [fill_table(results, table) for table in all_tables(study)],
        **({"points_chosen": [point_table(results, table) for table in study.points]} if study.points else {}),
        "claims": check_claims(results),
        "spread": spread_of_differences(results),
        "figures": [chart for figure in study.figures for chart in build_charts(results, figure)],
        "theorems": [theorem(settings) for settings in study.theorems],
        "failures": [{"what": graph.label(id_), "error": error} for id_, error in errors.items()],
        "jobs": len(graph.jobs),
        "points": graph.points,
        "trained": outcome.trained,
    }


# ---- forecast ----------------------------------------------------------------------------------------------------------

# Examples a second that a core trains, and megabytes of a trained stage, by kind of model.
TYPICAL = {"frozen": (25_000.0, 1.0), "image": (250.0, 2.0), "vectors": (25_000.0, 0.1), "text": (25.0, 90.0)}
ENCODED = 80.0  # texts a second that a frozen encoder reads, once for all stages on it
ENCODED_MEGABYTES = 2.0
UNKNOWN_SIZE = 10_000  # examples of a data set that cannot be read and has no limit


@dataclass
class Forecast:
    """What is in the store, and what the rest of a study would take."""

    done: set[str] = field(default_factory=set)  # ids of jobs in the store
    unread: dict[str, str] = field(default_factory=dict)  # task whose data cannot be read → error
    seconds: float = 0.0
    megabytes: float = 0.0


def forecast(graph: Graph, store: Path, slots: int) -> Forecast:
    """Estimate what a graph would take, from typical speeds of a core. Trains nothing.

    Jobs that wait for a choice count as not done. A task whose data cannot be read is counted by its limit.

    Parameters
    ----------
    graph : Graph
        The jobs.
    store : Path
        Folder of the store.
    slots : int
        Jobs that run at a time.

    Returns
    -------
    Forecast
    """
    estimate = Forecast()
    results: dict[str, dict[str, Any]] = {}
    chosen: dict[str, str] = {}
    encoded: set[tuple[Any, ...]] = set()  # (task, encoder, layers, examples) whose features are computed once
    for id_ in graph.order():
        if id_ in graph.choices:
            choice = graph.choices[id_]
            if all(job in results for job in choice.jobs):
                chosen[id_] = best_of(choice, results)
            continue
        job = graph.jobs[id_]
        result = _stored(graph, job, chosen, store, estimate.unread)
        if result is not None:
            estimate.done.add(id_)
            results[id_] = result
            continue
        size = training_size(job.data, read=job.task not in estimate.unread)
        speed, megabytes = TYPICAL[_kind(graph, job)]
        if job.stage.terms:
            views = 1 + len({term.view for term in job.stage.terms} - {"plain"})
            estimate.seconds += size * job.stage.train.epochs * views / speed
        estimate.megabytes += megabytes  # losing points are removed, but it is not known when
        if job.stage.model.frozen:
            encoded.add((job.task, job.stage.model.name, job.stage.model.layers, size))
    estimate.seconds += sum(size * 2 / ENCODED for *_, size in encoded)
    estimate.seconds /= max(slots, 1)
    estimate.megabytes += ENCODED_MEGABYTES * len(encoded)
    return estimate


def training_size(data: DataSettings, *, read: bool) -> int:
    """Return the number of training examples: counted, or else as the catalogue states it.

    Parameters
    ----------
    data : DataSettings
        The data of a job.
    read : bool
        Whether the data can be read.

    Returns
    -------
    int
    """
    from distilcal.study.job import cached_splits

    if read:
        return len(cached_splits(data).train)
    _, stated = expected_sizes(data).get("train", ("", UNKNOWN_SIZE))
    return min(data.limit or stated, stated)


def _stored(graph: Graph, job: Job, chosen: dict[str, str], store: Path, unread: dict[str, str]) -> dict[str, Any] | None:
    """The result of a job that is in the store; tasks whose data cannot be read are added to ``unread``."""
    from distilcal.study.job import stored_result

    on_hub = sources_on_hub(job.data)
    if on_hub:
        unread[job.task] = f"{', '.join(on_hub)} would come from the hub, which a dry run does not read"
    waits_for_choice = any(id_ in graph.choices and id_ not in chosen for id_ in graph.all_needs(job.id))
    if job.task in unread or waits_for_choice:
        return None
    try:
        recipe, name = job_recipe(graph, job.id, chosen)
        return stored_result(as_table(recipe), name, store, keep=not job.candidate, by=graph.chosen_by(job.id))
    except (InputError, MissingDependencyError) as error:
        unread[job.task] = str(error)
        return None


def _kind(graph: Graph, job: Job) -> str:
    """The kind of a job's model: that of the stage it starts from, if it starts from one."""
    from distilcal.models.image import NETWORKS

    parent = job.needs.get("start_from", "")
    while parent:
        job = graph.jobs[graph.choices[parent].jobs[0] if parent in graph.choices else parent]
        parent = job.needs.get("start_from", "")
    model = job.stage.model
    if model.frozen:
        return "frozen"
    if model.name in NETWORKS:
        return "image"
    if model.name in ("linear", "mlp", ""):
        return "vectors"
    return "text"
