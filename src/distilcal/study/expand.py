"""From a study to a graph of jobs: what is trained, what it depends on, where a choice is made, which cells it fills.

Nothing here reads data or imports torch: a job is identified by its settings. The key of its stage in the store also depends on
the content of the data, and is computed by the process that runs the job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distilcal.config.schema import DataSettings, Recipe, StageSettings, dependencies, is_folder
from distilcal.study.schema import GridSettings, Study, changed_stage, grid_points, required_measurements, task_recipe
from distilcal.study.templates import check_known

COUNTS_EPOCHS = ("pskd",)  # losses whose course depends on the total number of epochs
BINDS_EPOCHS = ("train.schedule", "train.warmup", "train.patience", "train.choose")  # axes that may make that number matter
Point = tuple[tuple[str, Any], ...]
"""A point of a grid: (path in the stage, value) pairs."""


@dataclass(frozen=True)
class Job:
    """One stage to be trained, on one task with one seed."""

    id: str
    name: str  # of the stage
    label: str  # for people: task, stage, seed and point of the grid
    task: str
    seed: int
    data: DataSettings
    stage: StageSettings
    needs: dict[str, str]  # role (teacher, start_from, map) → id of a job or choice
    candidate: bool = False  # a point of a grid: its model is removed unless it is chosen


@dataclass(frozen=True)
class Choice:
    """The best of several jobs on dev, the points of a grid."""

    id: str
    label: str
    task: str
    seed: int
    jobs: tuple[str, ...]  # ids
    by: str  # metric on dev: "calibrated_nll", "nll" or "accuracy"


@dataclass(frozen=True)
class Graph:
    """The jobs and choices of a study, and which of them fills the cells of each method, task and seed."""

    jobs: dict[str, Job] = field(default_factory=dict)  # by id
    choices: dict[str, Choice] = field(default_factory=dict)  # by id
    cells: dict[tuple[str, str, int], str] = field(default_factory=dict)  # (method, task, seed) → id of a job or choice
    points: int = 0  # of all grids, including those that one run covers together with others

    def needs(self, id_: str) -> tuple[str, ...]:
        """Return the ids of what must be finished before a job or choice."""
        if id_ in self.choices:
            return self.choices[id_].jobs
        return tuple(self.jobs[id_].needs.values())

    def all_needs(self, id_: str) -> set[str]:
        """Return the ids of everything that a job needs, directly or not, up to the next choices."""
        ancestors: set[str] = set()
        remaining = list(self.needs(id_))
        while remaining:
            needed = remaining.pop()
            if needed in ancestors:
                continue
            ancestors.add(needed)
            if needed in self.jobs:
                remaining += self.needs(needed)
        return ancestors

    def order(self) -> list[str]:
        """Return the ids of all jobs and choices, each right after what it needs: the order in which people read them."""
        visited: dict[str, None] = {}

        def visit(id_: str) -> None:
            if id_ in visited:
                return
            for needed in self.needs(id_):
                visit(needed)
            visited[id_] = None

        for id_ in (*self.jobs, *self.choices):
            visit(id_)
        return list(visited)

    def chosen_by(self, id_: str) -> str:
        """Return the metric on dev by which a point of a grid is chosen; empty for any other job."""
        return next((choice.by for choice in self.choices.values() if id_ in choice.jobs), "")

    def label(self, id_: str) -> str:
        """Return the label of a job or choice."""
        return self.jobs[id_].label if id_ in self.jobs else self.choices[id_].label

    @property
    def measured(self) -> set[str]:
        """The ids of jobs and choices that fill cells."""
        return set(self.cells.values())


def expand(study: Study, *, methods: Collection[str] = (), tasks: Collection[str] = ()) -> Graph:
    """Expand a study to the graph of its jobs. Equal stages are one job.

    Parameters
    ----------
    study : Study
        The study at one scale.
    methods, tasks : collections of str
        Only these; empty: all.

    Returns
    -------
    Graph

    Raises
    ------
    InputError
        If a method or task is not in the study.

    Examples
    --------
    >>> from distilcal.study.loading import load_study
    >>> graph = expand(load_study("kd-or-smoothing", "small"), methods=["BERT ERM"], tasks=["MRPC"])
    >>> len(graph.choices), len(graph.jobs), graph.points  # three seeds; one run covers ten numbers of epochs
    (3, 6, 60)
    """
    for method in methods:
        check_known(method, study.methods, f"{study.name} has no method")
    for task in tasks:
        check_known(task, study.tasks, f"{study.name} has no task")
    chosen = {} if study.search else study.chosen
    expansion = _Expansion(study.grids.values(), study.changes, chosen, several_seeds=len(study.seeds) > 1)
    cells = expansion.graph.cells
    required = required_measurements(study)
    for task in study.tasks:
        if tasks and task not in tasks:
            continue
        recipe = task_recipe(study, task)
        for seed in study.seeds:
            for method in methods or study.methods:
                if (method, task) in required:
                    cells[method, task, seed] = expansion.add_stage(recipe, study.methods[method].stage, task, seed)
    return replace(expansion.graph, points=expansion.points)


def expand_points(recipe: Recipe, stage: str, candidates: Sequence[Point], by: str) -> Graph:
    """Expand one stage of a recipe to a job at every given point, everything these need, and the choice between them.

    Parameters
    ----------
    recipe : Recipe
        The recipe of the stage.
    stage : str
        Name of the stage.
    candidates : sequence of Point
        The points, each as (path in the stage, value) pairs.
    by : {"calibrated_nll", "nll", "accuracy"}
        Metric on dev by which the best job is chosen.

    Returns
    -------
    Graph
        Without cells: the one choice is the result.

    Raises
    ------
    InputError
        If a path does not exist in the stage, or a value is invalid.
    """
    expansion = _Expansion()
    settings = recipe.stages[stage]
    needs = expansion.add_needs(recipe, settings, stage, recipe.seed)
    job = Job("", stage, stage, stage, recipe.seed, recipe.data, settings, needs)
    expansion.add_choice(job, candidates, by)
    return replace(expansion.graph, points=len(candidates))


class _Expansion:
    """A graph while it is built."""

    def __init__(
        self,
        grids: Iterable[GridSettings] = (),
        changes: Mapping[str, Any] | None = None,
        chosen: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
        *,
        several_seeds: bool = False,
    ):
        self.graph = Graph()
        self.points = 0
        self.several_seeds = several_seeds
        self.changes = changes or {}  # stage → what a variant changes in it
        self.chosen = chosen or {}  # task → stage → the point that stands for its grid
        self.known: dict[tuple[str, str, int], str] = {}  # (task, stage, seed) → id of a job or choice
        self.grids = {stage: grid for grid in grids for stage in grid.stages}

    def add_stage(self, recipe: Recipe, stage: str, task: str, seed: int) -> str:
        """Add a stage and everything it needs to the graph; return the id of its job, or of the choice if it has a grid."""
        if (task, stage, seed) in self.known:
            return self.known[task, stage, seed]
        point = self.chosen.get(task, {}).get(stage, {})
        settings = changed_stage(recipe.stages[stage], [*self.changes.get(stage, ()), *point.items()])
        needs = self.add_needs(recipe, settings, task, seed)
        label = f"{task} · {stage}"
        if self.several_seeds:
            label += f" · seed {seed}"
        job = Job("", stage, label, task, seed, recipe.data, settings, needs)
        grid = self.grids.get(stage)
        if grid is None or point or not settings.terms:
            id_ = self._add_job(job)
        else:
            axes, covering = collapse_epochs(grid, settings)
            self.points += len(grid_points(grid.axes))
            id_ = self.add_choice(replace(job, stage=covering), sample_points(grid_points(axes), grid.sample), grid.choose)
        self.known[task, stage, seed] = id_
        return id_

    def add_needs(self, recipe: Recipe, settings: StageSettings, task: str, seed: int) -> dict[str, str]:
        """Add the stages that these settings name; return role → id."""
        return {role: self.add_stage(recipe, name, task, seed) for role, name in _roles(settings).items()}

    def add_choice(self, job: Job, candidates: Iterable[Point], by: str) -> str:
        """Add a candidate for each point and the choice between them; return the choice's id."""
        ids = []
        for point in candidates:
            label = f"{job.label} · {describe_point(point)}"
            candidate = replace(job, label=label, stage=changed_stage(job.stage, point), candidate=True)
            ids.append(self._add_job(candidate))
        id_ = _digest("choice", by, ids)
        self.graph.choices[id_] = Choice(id_, job.label, job.task, job.seed, tuple(ids), by)
        return id_

    def _add_job(self, job: Job) -> str:
        """Add a job under an id that hashes everything that determines its training; equal jobs become one."""
        # Other stages are identified by ``needs``, not by their names; calibration afterwards does not change the model.
        map_folder = job.stage.map if is_folder(job.stage.map) else ""
        model = job.stage.model.model_copy(update={"start_from": ""})
        trained = job.stage.model_copy(update={"teacher": "", "map": map_folder, "model": model, "calibrate": "none"})
        id_ = _digest(job.data, job.seed, trained, sorted(job.needs.items()))
        existing = self.graph.jobs.get(id_)
        if existing is None:
            self.graph.jobs[id_] = replace(job, id=id_)
        elif existing.candidate and not job.candidate:
            self.graph.jobs[id_] = replace(existing, candidate=False)
        return id_


def _roles(stage: StageSettings) -> dict[str, str]:
    """Role → name of the stage that a stage depends on in that role."""
    map_stage = "" if is_folder(stage.map) else stage.map
    named = {"teacher": stage.teacher, "start_from": stage.model.start_from, "map": map_stage}
    roles = {role: name for role, name in named.items() if name}
    assert set(roles.values()) == set(dependencies(stage))
    return roles


def collapse_epochs(grid: GridSettings, stage: StageSettings) -> tuple[list[dict[str, Any]], StageSettings]:
    """Cover an axis of epochs by one run where nothing in the run depends on their number.

    Parameters
    ----------
    grid : GridSettings
        The grid of the stage.
    stage : StageSettings
        The stage before any point is applied.

    Returns
    -------
    axes : list of dict
        The axes that need runs of their own.
    stage : StageSettings
        The stage that covers the collapsed axis: it is evaluated after each of the epochs, and the best is kept.
    """
    independent = (
        stage.train.schedule in ("none", "steps")
        and not stage.train.warmup
        and not stage.train.patience
        and stage.train.choose == "last"
        and not stage.record  # a data map covers all epochs
        and not any(term.loss in COUNTS_EPOCHS for term in stage.terms)
        and not any(path in BINDS_EPOCHS or path.endswith(".loss") for axis in grid.axes for path in axis)
    )
    axes = []
    for axis in grid.axes:
        if not independent or set(axis) != {"train.epochs"}:
            axes.append(axis)
            continue
        epochs = sorted(axis["train.epochs"])
        is_every_epoch = epochs == list(range(1, epochs[-1] + 1))
        choose_among = () if is_every_epoch else tuple(epochs)
        train = stage.train.replace(epochs=epochs[-1], choose=grid.choose, choose_among=choose_among)
        stage = stage.replace(train=train)
    return axes, stage


def sample_points(candidates: list[Point], count: int, seed: int = 0) -> list[Point]:
    """Draw ``count`` of the points at random without replacement, and return them in their own order.

    Parameters
    ----------
    candidates : list of Point
        The points to draw from.
    count : int
        Number of points; 0, or a number that is not below that of the candidates, means all of them.
    seed : int
        Seed of the draw.

    Returns
    -------
    list of Point

    Examples
    --------
    >>> points = [(("train.lr", lr),) for lr in (0.1, 0.2, 0.3)]
    >>> len(sample_points(points, 2))
    2
    >>> sample_points(points, 0) == points
    True
    """
    if not count or count >= len(candidates):
        return candidates
    drawn = np.random.default_rng(seed).choice(len(candidates), count, replace=False)
    return [candidates[i] for i in sorted(drawn)]


def job_recipe(graph: Graph, id_: str, chosen: dict[str, str]) -> tuple[Recipe, str]:
    """Build the recipe of a job with everything it depends on.

    Parameters
    ----------
    graph : Graph
        The graph of the job.
    id_ : str
        Of the job, or of a choice that was made.
    chosen : dict
        The choices made so far: id of the choice → id of the job.

    Returns
    -------
    recipe : Recipe
    stage : str
        The name of the job's own stage in the recipe.
    """
    stages: dict[str, StageSettings] = {}

    def add(needed: str) -> str:
        job = graph.jobs[chosen.get(needed, needed)]
        if job.name in stages:  # a stage never depends on one of its own name
            return job.name
        names = {role: add(other) for role, other in job.needs.items()}
        changes: dict[str, Any] = {"teacher": names.get("teacher", "")}
        if "map" in names:
            changes["map"] = names["map"]
        if "start_from" in names:
            changes["model"] = job.stage.model.model_copy(update={"start_from": names["start_from"]})
        stages[job.name] = job.stage.model_copy(update=changes)
        return job.name

    name = add(id_)
    job = graph.jobs[chosen.get(id_, id_)]
    return Recipe(name="study", seed=job.seed, data=job.data, stages=stages), name


def describe_point(point: Point) -> str:
    """Describe a point by the last part of each path, or the whole path where two would read alike.

    Parameters
    ----------
    point : Point
        (path, value) pairs.

    Returns
    -------
    str

    Examples
    --------
    >>> describe_point((("train.lr", 0.01), ("terms.0.weight", 0.5)))
    'lr 0.01, weight 0.5'
    """
    short_names = [path.split(".")[-1] for path, _ in point]
    parts = []
    for name, (path, value) in zip(short_names, point, strict=True):
        is_unique = short_names.count(name) == 1
        parts.append(f"{name if is_unique else path} {value}")
    return ", ".join(parts)


def _digest(*parts: Any) -> str:
    return "s" + hashlib.blake2b(repr(parts).encode(), digest_size=9).hexdigest()
