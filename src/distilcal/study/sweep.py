"""The best settings of one stage of a recipe: every point of a grid, some at random, or as Optuna proposes them.

The choice is on dev. Test is read once, when the recipe is carried out with the chosen point. Teachers' outputs are in the
store and shared by all points; an axis of epochs is one run where nothing in it depends on how many there are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from distilcal.config.loading import to_toml
from distilcal.config.schema import Recipe, StageSettings
from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write, write_json
from distilcal.runs import main_stage
from distilcal.study.executors import Executor
from distilcal.study.expand import Graph, Point, drawn_points, expand_points, together
from distilcal.study.scheduler import News, Outcome, carry_out_graph
from distilcal.study.schema import GridSettings, changed_stage, check_axes, near, points

ROUND = 4  # points that Optuna proposes at a time, however many run side by side: the same on every machine
SHOWN = ("accuracy", "nll", "ece", "brier", "entropy")
Tell = Callable[[News], None]


@dataclass(frozen=True)
class Sweep:
    """What is searched: a stage of a recipe, the axes of its grid, how points are taken and which figure of dev decides."""

    recipe: Recipe
    stage: str
    axes: tuple[dict[str, Any], ...]
    choose: Literal["accuracy", "nll"] = "accuracy"
    sampler: Literal["grid", "random", "optuna"] = "grid"
    count: int = 0  # of points, for random and Optuna
    seed: int = 0  # of the draw

    def __post_init__(self) -> None:
        own = self.recipe.stages[self.stage]
        if not own.terms:
            raise InputError(f"stages.{self.stage} is not trained", remedy="sweep a stage with terms")
        check_axes(self.axes, "--grid")
        paths = [path for axis in self.axes for path in axis]
        twice = [path for path in paths if paths.count(path) > 1]
        if twice:
            raise InputError(f"--grid names {twice[0]} twice", remedy="give all its values at once")
        for point in points(self.axes):  # an unknown path, or a value that cannot be, is refused here
            stage = changed_stage(own, point)
            self.recipe.replace(stages={**self.recipe.stages, self.stage: stage})

    @property
    def grid(self) -> GridSettings:
        return GridSettings(stages=(self.stage,), axes=self.axes, choose=self.choose)

    @property
    def one_run(self) -> bool:
        """Whether an axis of epochs is covered by one run."""
        return len(together(self.grid, self.recipe.stages[self.stage])[0]) < len(self.axes)

    @property
    def runs(self) -> tuple[list[Point], StageSettings]:
        """The points that are runs of their own, and the stage that covers what one run can cover."""
        axes, stage = together(self.grid, self.recipe.stages[self.stage])
        return points(axes), stage


def axes_from(texts: Sequence[str], recipe: Recipe, stage: str = "") -> tuple[str, tuple[dict[str, Any], ...]]:
    """The stage and the axes of ``--grid`` options: ``key=a,b,c``, or ``key=a,b;other=c,d`` for keys that move together.

    A key is a path in the recipe (``stages.student.train.lr``), or in the stage (``train.lr``).
    """
    found = {stage} if stage else set()
    axes: list[dict[str, Any]] = []
    for text in texts:
        axis: dict[str, Any] = {}
        for part in text.split(";"):
            path, equals, values = part.partition("=")
            keys = path.strip().split(".")
            if not equals or not values.strip():
                raise InputError(f"--grid {text!r} is not key=a,b,c", remedy="write it as stages.student.train.lr=1e-5,3e-5")
            if keys[0] == "stages" and len(keys) > 2:
                found.add(keys[1])
                keys = keys[2:]
            axis[".".join(keys)] = _values(values, text)
        if len({len(values) for values in axis.values()}) > 1:
            raise InputError(f"--grid {text!r}: keys that move together need as many values each")
        axes.append(axis)
    if len(found) > 1:
        raise InputError(f"--grid names {' and '.join(sorted(found))}", remedy="sweep one stage at a time, teachers first")
    own = found.pop() if found else main_stage({n: {"teacher": s.teacher} for n, s in recipe.stages.items()})
    if own not in recipe.stages:
        raise InputError(f"there is no stage {own!r}", remedy=f"did you mean {near(own, recipe.stages)}?")
    return own, tuple(axes)


def _values(text: str, whole: str) -> list[Any]:
    import tomllib

    try:
        values: list[Any] = tomllib.loads(f"v = [{text}]")["v"]
    except tomllib.TOMLDecodeError:
        values = [part.strip() for part in text.split(",")]
    if not values:
        raise InputError(f"--grid {whole!r} has no values")
    return values


def run_sweep(sweep: Sweep, folder: Path, store: Path, executor: Executor, *, tell: Tell = lambda news: None) -> dict[str, Any]:
    """Train the points, choose on dev, and leave every point (``points.csv``) and the chosen recipe (``best.toml``)."""
    folder.mkdir(parents=True, exist_ok=True)
    all_, stage = sweep.runs
    recipe = sweep.recipe.replace(stages={**sweep.recipe.stages, sweep.stage: stage})
    if sweep.sampler == "optuna":
        taken = _proposed(sweep, recipe, all_, executor, store, tell)
    else:
        taken = drawn_points(all_, sweep.count if sweep.sampler == "random" else 0, sweep.seed)
    graph = expand_points(recipe, sweep.stage, taken, sweep.choose)
    outcome = carry_out_graph(graph, executor, store, lambda id_: None, tell=tell)
    choice = next(iter(graph.choices.values()))
    if choice.id not in outcome.chosen:
        raise InputError("no point could be trained", remedy=next(iter(outcome.failed.values()), ""))
    best = outcome.chosen[choice.id]
    with atomic_write(folder / "points.csv") as file:
        file.write(_table(sweep, graph, outcome, taken, best).encode())
    won = recipe.replace(stages={**recipe.stages, sweep.stage: graph.jobs[best].stage})
    with atomic_write(folder / "best.toml") as file:
        file.write(to_toml(won).encode())
    result = outcome.results[best]
    kept = result["epochs"][result["best"]]
    facts = {
        "stage": sweep.stage,
        "chosen": {path: value for job, point in zip(choice.jobs, taken, strict=True) if job == best for path, value in point},
        "epochs": result["best"] + 1,
        "by": sweep.choose,
        "dev": kept["dev"],
        "points": len(points(sweep.axes)),
        "runs": len(taken),
        "failed": {graph.jobs[id_].label: why for id_, why in outcome.failed.items() if id_ in graph.jobs},
        "seconds": outcome.seconds,
    }
    write_json(folder / "sweep.json", facts)
    return {**facts, "recipe": won}


def _proposed(sweep: Sweep, recipe: Recipe, all_: list[Point], executor: Executor, store: Path, tell: Tell) -> list[Point]:
    """Points as Optuna's sampler proposes them, as many at a time as can run side by side."""
    try:
        import optuna
    except ImportError:
        raise InputError("optuna is not installed", remedy="pip install 'distilcal[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    axes, _ = together(sweep.grid, sweep.recipe.stages[sweep.stage])
    sampler = optuna.samplers.TPESampler(seed=sweep.seed)
    search = optuna.create_study(direction="maximize" if sweep.choose == "accuracy" else "minimize", sampler=sampler)
    lengths = [len(next(iter(axis.values()))) for axis in axes]
    taken: list[Point] = []
    wanted = min(sweep.count or len(all_), len(all_))
    asked = 0
    while len(taken) < wanted and asked < 20 * wanted:  # a sampler that keeps to known points ends too
        trials = [search.ask() for _ in range(min(ROUND, wanted - len(taken)))]
        asked += len(trials)
        places = [[t.suggest_categorical(str(i), list(range(n))) for i, n in enumerate(lengths)] for t in trials]
        round_ = [
            tuple((path, values[i]) for axis, i in zip(axes, place, strict=True) for path, values in axis.items())
            for place in places
        ]
        graph = expand_points(recipe, sweep.stage, round_, sweep.choose)
        outcome = carry_out_graph(graph, executor, store, lambda id_: None, tell=tell)
        jobs = next(iter(graph.choices.values())).jobs
        for trial, job in zip(trials, jobs, strict=True):
            if job in outcome.results:
                result = outcome.results[job]
                search.tell(trial, result["epochs"][result["best"]]["dev"][sweep.choose])
            else:
                search.tell(trial, state=optuna.trial.TrialState.FAIL)
        taken += [point for i, point in enumerate(round_) if point not in taken and point not in round_[:i]]
    return taken


def _table(sweep: Sweep, graph: Graph, outcome: Outcome, taken: Sequence[Point], best: str) -> str:
    """Every point with its figures on dev; where one run covers several numbers of epochs, a line for each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(dict.fromkeys(path for point in taken for path, _ in point))
    writer.writerow([*names, "epochs", *(f"dev_{name}" for name in SHOWN), "chosen", "seconds", "error"])
    choice, one_run = next(iter(graph.choices.values())), sweep.one_run
    for job, point in zip(choice.jobs, taken, strict=True):
        said = dict(point)
        if job not in outcome.results:
            writer.writerow([*(said[n] for n in names), "", *([""] * len(SHOWN)), "", "", outcome.failed.get(job, "")])
            continue
        result, among = outcome.results[job], graph.jobs[job].stage.train.choose_among
        for number, epoch in enumerate(result["epochs"]):
            if (not among or number + 1 in among) if one_run else number == result["best"]:
                chosen = job == best and number == result["best"]
                row = [*(said[n] for n in names), number + 1, *(epoch["dev"][name] for name in SHOWN)]
                writer.writerow([*row, "yes" if chosen else "", round(epoch["seconds"], 3), ""])
    return text.getvalue()
