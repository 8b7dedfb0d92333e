"""From a study to jobs: what is trained, on what it depends, where a choice is made, which cell each job fills.

Nothing here reads data or imports torch: a job is known by its settings. What is trained under a name in the store also
depends on the data's content and is found out by who carries the job out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distilcal.config.schema import DataSettings, Recipe, StageSettings, dependencies, is_folder
from distilcal.errors import InputError
from distilcal.study.schema import GridSettings, Study, changed_stage, near, points, task_recipe, wanted

COUNTS_EPOCHS = ("pskd",)  # losses whose course depends on how many epochs there are in all
BINDS_EPOCHS = ("train.schedule", "train.warmup", "train.patience", "train.choose")  # axes that may let epochs matter
ROLES = ("teacher", "start_from", "map")
Point = tuple[tuple[str, Any], ...]  # (path in the stage, value) pairs


@dataclass(frozen=True)
class Job:
    """One stage to be trained, on one task with one seed."""

    id: str
    name: str  # of the stage
    label: str
    task: str
    seed: int
    data: DataSettings
    stage: StageSettings
    needs: dict[str, str]  # role → job or choice
    candidate: bool = False  # only a point of a grid: its model is not kept unless it is chosen


@dataclass(frozen=True)
class Choice:
    """The best of several jobs on dev."""

    id: str
    label: str
    task: str
    seed: int
    jobs: tuple[str, ...]
    by: str


@dataclass(frozen=True)
class Graph:
    """Jobs and choices, each after what it needs, and which of them stands for each method, task and seed."""

    jobs: dict[str, Job] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    cells: dict[tuple[str, str, int], str] = field(default_factory=dict)  # (method, task, seed) → job or choice
    points: int = 0  # of all grids, those included that one run covers together with others

    def order(self) -> list[str]:
        """Jobs and choices in an order in which they can be carried out."""
        done: dict[str, None] = {}
        for id_ in (*self.jobs, *self.choices):
            self._visit(id_, done)
        return list(done)

    def _visit(self, id_: str, done: dict[str, None]) -> None:
        if id_ in done:
            return
        for needed in self.needs(id_):
            self._visit(needed, done)
        done[id_] = None

    def needs(self, id_: str) -> tuple[str, ...]:
        """What must be done before."""
        return self.choices[id_].jobs if id_ in self.choices else tuple(self.jobs[id_].needs.values())

    @property
    def measured(self) -> set[str]:
        """Jobs and choices that fill cells."""
        return set(self.cells.values())


def expand(study: Study, *, methods: Collection[str] = (), tasks: Collection[str] = ()) -> Graph:
    """All jobs of a study, or of some of its methods and tasks."""
    for asked, known, kind in ((methods, study.methods, "method"), (tasks, study.tasks, "task")):
        for name in asked:
            if name not in known:
                raise InputError(f"there is no {kind} {name!r} in {study.name}", remedy=f"did you mean {near(name, known)}?")
    made = _Expansion(study.grids.values(), study.changes, several_seeds=len(study.seeds) > 1)
    looked_at = wanted(study)
    for task in study.tasks:
        if tasks and task not in tasks:
            continue
        recipe = task_recipe(study, task)
        for seed in study.seeds:
            for method in methods or study.methods:
                if (method, task) in looked_at:
                    made.graph.cells[method, task, seed] = made.stands_for(recipe, study.methods[method].stage, task, seed)
    return replace(made.graph, points=made.points)


class _Expansion:
    def __init__(
        self, grids: Iterable[GridSettings] = (), changes: Mapping[str, Any] | None = None, *, several_seeds: bool = False
    ):
        self.graph, self.points, self.several_seeds = Graph(), 0, several_seeds
        self.changes = changes or {}  # stage → what a variant changes in it
        self.known: dict[tuple[str, str, int], str] = {}  # (task, stage, seed) → job or choice
        self.grids = {stage: grid for grid in grids for stage in grid.stages}

    def stands_for(self, recipe: Recipe, stage: str, task: str, seed: int) -> str:
        """The job or choice that a stage's name stands for; it and all it needs are put into the graph."""
        if (task, stage, seed) in self.known:
            return self.known[task, stage, seed]
        settings = changed_stage(recipe.stages[stage], self.changes.get(stage, ()))
        needs = {role: self.stands_for(recipe, name, task, seed) for role, name in _roles(settings)}
        label = f"{task} · {stage} · seed {seed}" if self.several_seeds else f"{task} · {stage}"
        job = Job("", stage, label, task, seed, recipe.data, settings, needs)
        grid = self.grids.get(stage)
        made = self._put(job) if grid is None or not settings.terms else self._choice(job, grid)
        self.known[task, stage, seed] = made
        return made

    def _put(self, job: Job) -> str:
        """Put a job into the graph under the id that all that determines it gives."""
        # Names of other stages stand in ``needs`` by what they are; how a model is calibrated later changes nothing in it.
        stage = job.stage
        map_folder = stage.map if is_folder(stage.map) else ""
        model = stage.model.model_copy(update={"start_from": ""})
        trained = stage.model_copy(update={"teacher": "", "map": map_folder, "model": model, "calibrate": "none"})
        id_ = _digest(job.data, job.seed, trained, sorted(job.needs.items()))
        old = self.graph.jobs.get(id_)
        if old is None or (old.candidate and not job.candidate):
            self.graph.jobs[id_] = replace(old or job, id=id_, candidate=job.candidate)
        return id_

    def _choice(self, job: Job, grid: GridSettings) -> str:
        axes, whole = together(grid, job.stage)
        self.points += len(points(grid.axes))
        return self.choice(replace(job, stage=whole), drawn_points(points(axes), grid.sample), grid.choose)

    def choice(self, job: Job, chosen_from: Iterable[Point], by: str) -> str:
        """A candidate for each point, and the choice between them."""
        jobs = []
        for point in chosen_from:
            label = f"{job.label} · {point_words(point)}"
            jobs.append(self._put(replace(job, label=label, stage=changed_stage(job.stage, point), candidate=True)))
        id_ = _digest("choice", by, jobs)
        self.graph.choices[id_] = Choice(id_, job.label, job.task, job.seed, tuple(jobs), by)
        return id_


def drawn_points(all_: list[Point], count: int, seed: int = 0) -> list[Point]:
    """So many of the points, drawn at random but in their order; all of them for 0."""
    if not count or count >= len(all_):
        return all_
    return [all_[i] for i in sorted(np.random.default_rng(seed).choice(len(all_), count, replace=False))]


def expand_points(recipe: Recipe, stage: str, chosen_from: Sequence[Point], by: str) -> Graph:
    """A stage of a recipe at every given point, all it needs, and the choice between them."""
    made = _Expansion()
    settings = recipe.stages[stage]
    needs = {role: made.stands_for(recipe, name, stage, recipe.seed) for role, name in _roles(settings)}
    made.choice(Job("", stage, stage, stage, recipe.seed, recipe.data, settings, needs), chosen_from, by)
    return replace(made.graph, points=len(chosen_from))


def together(grid: GridSettings, stage: StageSettings) -> tuple[list[dict[str, Any]], StageSettings]:
    """The axes that need runs of their own, and the stage that covers the others.

    A grid over epochs is one run that is looked at after each of them, if nothing in it depends on how many there are.
    """
    free = (
        stage.train.schedule in ("none", "steps")
        and not stage.train.warmup
        and not stage.train.patience
        and stage.train.choose == "last"
        and not stage.record  # a map is of all epochs
        and not any(term.loss in COUNTS_EPOCHS for term in stage.terms)
        and not any(path in BINDS_EPOCHS or path.endswith(".loss") for axis in grid.axes for path in axis)
    )
    axes = []
    for axis in grid.axes:
        if free and set(axis) == {"train.epochs"}:
            epochs = sorted(axis["train.epochs"])
            among = () if epochs == list(range(1, epochs[-1] + 1)) else tuple(epochs)
            stage = stage.replace(train=stage.train.replace(epochs=epochs[-1], choose=grid.choose, choose_among=among))
        else:
            axes.append(axis)
    return axes, stage


def job_recipe(graph: Graph, id_: str, chosen: dict[str, str]) -> tuple[Recipe, str]:
    """The recipe of a job with all it depends on, and the name of its own stage in it. ``chosen`` says choice → job."""
    stages: dict[str, StageSettings] = {}

    def add(job_id: str) -> str:
        job = graph.jobs[chosen.get(job_id, job_id)]
        if job.name not in stages:  # what a stage depends on is never of its own name
            names = {role: add(needed) for role, needed in job.needs.items()}
            stage = job.stage
            changes: dict[str, Any] = {"teacher": names.get("teacher", "")}
            if "map" in names:
                changes["map"] = names["map"]
            if "start_from" in names:
                changes["model"] = stage.model.model_copy(update={"start_from": names["start_from"]})
            stages[job.name] = stage.model_copy(update=changes)
        return job.name

    name = add(id_)
    job = graph.jobs[chosen.get(id_, id_)]
    return Recipe(name="study", seed=job.seed, data=job.data, stages=stages), name


def _roles(stage: StageSettings) -> Iterable[tuple[str, str]]:
    named = dict(zip(ROLES, (stage.teacher, stage.model.start_from, "" if is_folder(stage.map) else stage.map), strict=True))
    assert set(filter(None, named.values())) == set(dependencies(stage))
    return [(role, name) for role, name in named.items() if name]


def point_words(point: Point) -> str:
    """A point in words: the last part of each path, or all of it where two would read alike."""
    names = [path.split(".")[-1] for path, _ in point]
    shown = [name if names.count(name) == 1 else path for name, (path, _) in zip(names, point, strict=True)]
    return ", ".join(f"{name} {value}" for name, (_, value) in zip(shown, point, strict=True))


def _digest(*parts: Any) -> str:
    return "s" + hashlib.blake2b(repr(parts).encode(), digest_size=9).hexdigest()
