"""The best settings of one stage of a recipe: every point of a grid, some at random, or as Optuna proposes them.

The choice is made on dev. Test is read once, when the recipe is run with the chosen point. Teachers' outputs are in the store
and shared by all points; an axis of epochs costs one run where nothing in it depends on their number.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from distilcal.config.loading import to_toml
from distilcal.config.schema import Recipe, StageSettings
from distilcal.data.splits import read_splits
from distilcal.errors import InputError, MissingDependencyError
from distilcal.io.atomic import atomic_write, write_json
from distilcal.io.tables import write_csv
from distilcal.pipeline.preflight import check_recipe, check_teachers
from distilcal.runs import main_stage
from distilcal.study.executors import Executor
from distilcal.study.expand import Graph, Point, collapse_epochs, expand_points, sample_points
from distilcal.study.scheduler import OnProgress, Outcome, ignore_progress, run_graph
from distilcal.study.schema import GridSettings, changed_stage, check_axes, grid_points
from distilcal.study.templates import check_known

MOST_CHECKED = 200  # points that are checked before the first is trained
ROUND = 4  # points that Optuna proposes at a time, whatever the number of processes: the same on every machine
SHOWN = ("accuracy", "nll", "calibrated_nll", "ece", "brier", "entropy")  # figures of dev in points.csv


@dataclass(frozen=True)
class Sweep:
    """A search over the settings of one stage of a recipe.

    Raises
    ------
    InputError
        If the stage is not trained, or a path or value of the grid is invalid.
    """

    recipe: Recipe
    stage: str
    axes: tuple[dict[str, Any], ...]  # each: path in the stage → values; paths of one axis move together
    choose: Literal["calibrated_nll", "nll", "accuracy"] = "calibrated_nll"  # by which figure on dev
    sampler: Literal["grid", "random", "optuna"] = "grid"
    count: int = 0  # of points, for random and Optuna
    seed: int = 0  # of the draw

    def __post_init__(self) -> None:
        settings = self.recipe.stages[self.stage]
        if not settings.terms:
            raise InputError(f"stages.{self.stage} is not trained", remedy="sweep a stage with terms")
        check_axes(self.axes, "--grid")
        paths = [path for axis in self.axes for path in axis]
        for path in paths:
            if paths.count(path) > 1:
                raise InputError(f"duplicate --grid {path}", remedy="give all its values at once")
        for point in grid_points(self.axes):  # an unknown path or an invalid value raises here
            stage = changed_stage(settings, point)
            self.recipe.replace(stages={**self.recipe.stages, self.stage: stage})

    def collapsed(self) -> tuple[list[dict[str, Any]], StageSettings]:
        """Return the axes that need runs of their own, and the stage that covers an axis of epochs."""
        grid = GridSettings(stages=(self.stage,), axes=self.axes, choose=self.choose)
        return collapse_epochs(grid, self.recipe.stages[self.stage])

    @property
    def is_collapsed(self) -> bool:
        """Whether an axis of epochs is covered by one run."""
        return len(self.collapsed()[0]) < len(self.axes)

    def runs(self) -> list[Point]:
        """Return the points that need runs of their own."""
        return grid_points(self.collapsed()[0])


def check_sweep(sweep: Sweep) -> None:
    """Read the data of a sweep and refuse a point that could not be trained on them. Trains nothing.

    Parameters
    ----------
    sweep : Sweep
        What is searched.

    Raises
    ------
    InputError
        For the first point that fails a check, as `distilcal.pipeline.preflight.check_recipe` raises it.
    """
    recipe = sweep.recipe
    check_teachers(recipe)
    splits = read_splits(recipe.data)
    for point in grid_points(sweep.axes)[:MOST_CHECKED]:
        stage = changed_stage(recipe.stages[sweep.stage], point)
        check_recipe(recipe.replace(stages={**recipe.stages, sweep.stage: stage}), splits)


def parse_axes(texts: Sequence[str], recipe: Recipe, stage: str = "") -> tuple[str, tuple[dict[str, Any], ...]]:
    """Parse ``--grid`` options: ``key=a,b,c``, or ``key=a,b;other=c,d`` for keys that move together.

    Parameters
    ----------
    texts : sequence of str
        The options. A key is a path in the recipe (``stages.student.train.lr``) or in the stage (``train.lr``).
    recipe : Recipe
        Whose stage is searched.
    stage : str
        The stage, if no key names it; empty: the recipe's student.

    Returns
    -------
    stage : str
    axes : tuple of dict
        Path in the stage → values, one table for each option.

    Raises
    ------
    InputError
        If an option cannot be parsed, or the keys name several stages or an unknown one.
    """
    stages = {stage} if stage else set()
    axes: list[dict[str, Any]] = []
    for text in texts:
        axis: dict[str, Any] = {}
        for part in text.split(";"):
            path, equals, values = part.partition("=")
            if not equals or not values.strip():
                raise InputError(f"--grid {text!r} is not key=a,b,c", remedy="write it as stages.student.train.lr=1e-5,3e-5")
            keys = path.strip().split(".")
            if keys[0] == "stages" and len(keys) > 2:
                stages.add(keys[1])
                keys = keys[2:]
            axis[".".join(keys)] = _parse_values(values, text)
        if len({len(values) for values in axis.values()}) > 1:
            raise InputError(f"--grid {text!r}: keys that move together need as many values each")
        axes.append(axis)
    if len(stages) > 1:
        names = " and ".join(sorted(stages))
        raise InputError(f"--grid names {names}", remedy="sweep one stage at a time, teachers first")
    name = stages.pop() if stages else main_stage({n: {"teacher": s.teacher} for n, s in recipe.stages.items()})
    check_known(name, recipe.stages, "there is no stage")
    return name, tuple(axes)


def _parse_values(text: str, option: str) -> list[Any]:
    """The values of a key, as TOML reads them; words need no quotes."""
    try:
        values: list[Any] = tomllib.loads(f"v = [{text}]")["v"]
    except (ValueError, RecursionError):  # ValueError: not TOML, or a number with too many digits
        values = [part.strip() for part in text.split(",")]
    if not values:
        raise InputError(f"--grid {option!r} has no values")
    return values


def run_sweep(
    sweep: Sweep, folder: Path, store: Path, executor: Executor, *, on_progress: OnProgress = ignore_progress
) -> dict[str, Any]:
    """Train the points, choose the best on dev, and write ``points.csv``, ``best.toml`` and ``sweep.json``.

    Parameters
    ----------
    sweep : Sweep
        What is searched.
    folder : Path
        Of the results.
    store : Path
        Folder of the store.
    executor : Executor
        Where jobs run.
    on_progress : callable
        Called with a ``StudyProgress`` whenever a job has ended.

    Returns
    -------
    dict
        What ``sweep.json`` holds, and ``recipe``: the recipe with the chosen point.

    Raises
    ------
    InputError
        If no point could be trained.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _, covering = sweep.collapsed()
    recipe = sweep.recipe.replace(stages={**sweep.recipe.stages, sweep.stage: covering})
    candidates = sweep.runs()
    if sweep.sampler == "optuna":
        candidates = _optuna_points(sweep, recipe, candidates, executor, store, on_progress)
    elif sweep.sampler == "random":
        candidates = sample_points(candidates, sweep.count, sweep.seed)
    graph = expand_points(recipe, sweep.stage, candidates, sweep.choose)
    outcome = run_graph(graph, executor, store, _measure_nothing, on_progress=on_progress)
    (choice,) = graph.choices.values()
    if choice.id not in outcome.chosen:
        raise InputError("no point could be trained", remedy=next(iter(outcome.failed.values()), ""))
    best = outcome.chosen[choice.id]
    with atomic_write(folder / "points.csv") as file:
        names, *rows = _points_table(sweep, graph, outcome, candidates)
        write_csv(file, dict(zip(names, zip(*rows, strict=True), strict=True)))
    best_recipe = recipe.replace(stages={**recipe.stages, sweep.stage: graph.jobs[best].stage})
    with atomic_write(folder / "best.toml") as file:
        file.write(to_toml(best_recipe).encode())
    result = outcome.results[best]
    facts = {
        "stage": sweep.stage,
        "chosen": dict(candidates[choice.jobs.index(best)]),
        "epochs": result["best"] + 1,
        "by": sweep.choose,
        "dev": result["epochs"][result["best"]]["dev"],
        "points": len(grid_points(sweep.axes)),
        "runs": len(candidates),
        "failed": {graph.jobs[id_].label: error for id_, error in outcome.failed.items() if id_ in graph.jobs},
        "seconds": outcome.seconds,
    }
    write_json(folder / "sweep.json", facts)
    return {**facts, "recipe": best_recipe}


def _measure_nothing(id_: str) -> None:
    """A sweep needs the history of its runs only: test is not read."""


def _optuna_points(
    sweep: Sweep, recipe: Recipe, all_points: list[Point], executor: Executor, store: Path, on_progress: OnProgress
) -> list[Point]:
    """The points that Optuna's sampler proposes, a few at a time; it learns from the figures of each round."""
    try:
        import optuna
    except ImportError:
        raise MissingDependencyError("optuna is not installed", remedy="pip install 'distilcal[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    axes, _ = sweep.collapsed()
    lengths = [len(next(iter(axis.values()))) for axis in axes]
    direction: Literal["maximize", "minimize"] = "maximize" if sweep.choose == "accuracy" else "minimize"
    search = optuna.create_study(direction=direction, sampler=optuna.samplers.TPESampler(seed=sweep.seed))
    count = min(sweep.count or len(all_points), len(all_points))
    proposed: list[Point] = []
    trial_count = 0
    while len(proposed) < count and trial_count < 20 * count:  # a sampler that repeats known points must end too
        trials = [search.ask() for _ in range(min(ROUND, count - len(proposed)))]
        trial_count += len(trials)
        candidates = [_trial_point(trial, axes, lengths) for trial in trials]
        graph = expand_points(recipe, sweep.stage, candidates, sweep.choose)
        outcome = run_graph(graph, executor, store, _measure_nothing, on_progress=on_progress)
        (choice,) = graph.choices.values()
        for trial, job in zip(trials, choice.jobs, strict=True):
            if job in outcome.results:
                result = outcome.results[job]
                search.tell(trial, result["epochs"][result["best"]]["dev"][sweep.choose])
            else:
                search.tell(trial, state=optuna.trial.TrialState.FAIL)
        for point in candidates:
            if point not in proposed:
                proposed.append(point)
    return proposed


def _trial_point(trial: Any, axes: Sequence[dict[str, Any]], lengths: Sequence[int]) -> Point:
    """The point of a trial: Optuna suggests a position on every axis."""
    pairs: list[tuple[str, Any]] = []
    for number, (axis, length) in enumerate(zip(axes, lengths, strict=True)):
        position = trial.suggest_categorical(str(number), list(range(length)))
        pairs += [(path, values[position]) for path, values in axis.items()]
    return tuple(pairs)


def _points_table(sweep: Sweep, graph: Graph, outcome: Outcome, candidates: Sequence[Point]) -> list[list[Any]]:
    """Rows of points.csv, the header first: every point with its figures on dev, once for each number of epochs it covers."""
    (choice,) = graph.choices.values()
    best = outcome.chosen[choice.id]
    paths = list(dict.fromkeys(path for point in candidates for path, _ in point))
    rows: list[list[Any]] = [[*paths, "epochs", *(f"dev_{name}" for name in SHOWN), "chosen", "seconds", "error"]]
    for job, point in zip(choice.jobs, candidates, strict=True):
        values = dict(point)
        columns = [values[path] for path in paths]
        if job not in outcome.results:
            no_figures = [""] * len(SHOWN)
            rows.append([*columns, "", *no_figures, "", "", outcome.failed.get(job, "")])
            continue
        result = outcome.results[job]
        for number in _shown_epochs(sweep, graph.jobs[job].stage, result):
            epoch = result["epochs"][number]
            is_chosen = job == best and number == result["best"]
            figures = [epoch["dev"].get(name, "") for name in SHOWN]
            chosen = "yes" if is_chosen else ""
            rows.append([*columns, number + 1, *figures, chosen, round(epoch["seconds"], 3), ""])
    return rows


def _shown_epochs(sweep: Sweep, stage: StageSettings, result: dict[str, Any]) -> list[int]:
    """The epochs of a run that are points of the grid, counted from 0; without an axis of epochs, the kept one."""
    if not sweep.is_collapsed:
        return [result["best"]]
    choose_among = stage.train.choose_among
    return [number for number in range(len(result["epochs"])) if not choose_among or number + 1 in choose_among]
