"""The search for a student within a time: the teacher first, then rungs of candidates on dev, then one run with the choice.

Test and other domains are not looked at before the choice: the run that follows evaluates the chosen student, its teacher and
its control, like any other run. Its folder holds ``budget.json`` besides, with all that was tried, and ``frontier.html``.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from distilcal.calibrate import fit_temperature
from distilcal.config.loading import as_table
from distilcal.config.schema import Recipe, StageSettings, dependencies, ordered_stages
from distilcal.data import Dataset
from distilcal.data.splits import Splits
from distilcal.errors import InputError, StoreError, TrainingError
from distilcal.io.folders import digest
from distilcal.io.locks import file_lock, is_in_use
from distilcal.io.parts import remove_folder
from distilcal.metrics import METRICS
from distilcal.pipeline.budget.candidates import Candidate, Situation, build_candidates, control_of
from distilcal.pipeline.budget.duration import format_duration
from distilcal.pipeline.budget.halving import (
    Amount,
    Halving,
    Trial,
    Workload,
    finished_trials,
    fitting_count,
    pareto_front,
    rank,
    rung_sizes,
    shortest_seconds,
)
from distilcal.pipeline.budget.ledger import FILE, Ledger
from distilcal.pipeline.budget.timing import Speed, closing_seconds, expected_workload, measure_speed, network_key
from distilcal.pipeline.encoders import NO_CONFIGS, Configs
from distilcal.pipeline.keys import stage_key
from distilcal.pipeline.logs import main_process_logger
from distilcal.pipeline.preflight import LOCK, check_folders, check_recipe
from distilcal.pipeline.results import SEARCH
from distilcal.pipeline.run import Plan, plan, remove_empty_folders, run_recipe
from distilcal.pipeline.stage import Stage
from distilcal.pipeline.timing import time_in_turns
from distilcal.pipeline.tracking import check_tracker, track_run
from distilcal.pipeline.train import run_stage
from distilcal.predictions import Predictions
from distilcal.report.frontier import FRONTS, write_frontier
from distilcal.selective import counted
from distilcal.training import TrainingProgress, compute_outputs
from distilcal.training.distributed import ProcessGroup

STUDENT, ALONE = "student", "alone"  # stages of the recipe that the search decides about
TIMED_BATCH = 32  # as runs are timed
PLANNED = 0.97  # of the budget is planned with
SLACK = 0.06  # of the budget, by which the last rung may miss its end

SEARCH_LOCK = "budget"  # in the locks of the store: searches remove the models that they did not choose

TRAINING_LOGGERS = ("distilcal.pipeline.train", "distilcal.pipeline.teacher")

OnStageProgress = Callable[[str, TrainingProgress], None]
logger = main_process_logger(__name__)


class OutOfTime(Exception):
    """Raised inside a training to cut it short."""


@dataclass(frozen=True)
class BudgetPlan:
    """What a search would try.

    Attributes
    ----------
    plan : Plan
        The data, and the run without a search.
    candidates : list of Candidate
        The students that would be tried, as many as the time allows, in this order.
    budget : float
        Seconds.
    """

    plan: Plan
    candidates: list[Candidate]
    budget: float

    def __str__(self) -> str:
        """Return the plan and the candidates in lines."""
        lines = [str(self.plan), f"within {format_duration(self.budget)}, the best on dev of those for which there is time:"]
        lines += [f"  {candidate.name}: {candidate.description}" for candidate in self.candidates]
        return "\n".join(lines)


def plan_within(
    recipe: Recipe,
    budget: float,
    store: Path,
    *,
    layers: int = 0,
    loaded: Mapping[str, Dataset] = MappingProxyType({}),
    configs: Configs = NO_CONFIGS,
    prepare: Callable[[Splits], None] | None = None,
) -> BudgetPlan:
    """Read the data, check every stage, and list the candidates. Trains nothing.

    Parameters
    ----------
    recipe : Recipe
        The recipe of ``distill``, with a stage ``student`` that has a teacher.
    budget : float
        Seconds.
    store : Path
        Where trained stages are.
    layers : int, default 0
        Layers of the teacher's encoder, if the search may choose how many the student keeps.
    loaded, configs, prepare
        As for `distilcal.pipeline.plan`.

    Returns
    -------
    BudgetPlan

    Raises
    ------
    InputError
        If the recipe could not be run to its end, or if several processes were started.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("a budget is for one process", remedy="start it without a launcher, or leave out the budget")
    planned = plan(recipe, store, loaded=loaded, configs=configs, prepare=prepare)
    by_name = {stage.name: stage for stage in planned.stages}
    student = by_name[STUDENT].settings
    teacher = by_name[student.teacher]
    train = planned.splits.train
    labelled = int(train.is_labelled.sum())
    situation = Situation(
        inputs=train.input_kind,
        labelled=labelled,
        unlabelled=len(train) - labelled,
        layers=layers,
        graded=not (teacher.settings.predictions and teacher.external_predictions.one_hot),
    )
    candidates = [
        candidate
        for number, candidate in enumerate(build_candidates(student, situation))
        if number == 0 or _can_be_trained(candidate, recipe, planned.splits)
    ]
    return BudgetPlan(planned, candidates, budget)


def _can_be_trained(candidate: Candidate, recipe: Recipe, splits: Splits) -> bool:
    """Whether a variant passes the checks; the recipe's own student has passed them."""
    try:
        check_recipe(recipe.replace(stages={**recipe.stages, STUDENT: candidate.stage}), splits)
    except InputError:
        return False
    return True


def distill_within(
    recipe: Recipe,
    budget: float,
    folder: Path,
    store: Path,
    *,
    layers: int = 0,
    started: float | None = None,
    loaded: Mapping[str, Dataset] = MappingProxyType({}),
    configs: Configs = NO_CONFIGS,
    prepare: Callable[[Splits], None] | None = None,
    on_checked: Callable[[], None] | None = None,
    on_refused: Callable[[], None] | None = None,
    on_progress: OnStageProgress | None = None,
    track: str = "",
) -> Path:
    """Choose a student on dev within a time, and run the recipe with it.

    A search that was killed goes on: the time that it had used counts, and what it had trained is not trained again.

    Parameters
    ----------
    recipe : Recipe
        The recipe of ``distill``, with a stage ``student`` that has a teacher and, for the control, ``alone``.
    budget : float
        Seconds for all of it, the teacher's training and the evaluation included.
    folder : Path
        The folder of the run.
    store : Path
        Where trained stages and cached outputs are kept.
    layers : int, default 0
        Layers of the teacher's encoder, if the search may choose how many the student keeps.
    started : float, optional
        Reading of ``time.monotonic`` when the work began; by default now.
    loaded, configs, prepare, on_checked, on_refused, on_progress
        As for `distilcal.pipeline.run_recipe`.
    track : str
        Name of a tracker, which follows the run with the chosen student.

    Returns
    -------
    Path
        The folder of the run.

    Raises
    ------
    InputError
        If the recipe cannot be run, or the time is too short for it; before anything is trained.
    StoreError
        If another run works in the folder, or another search with the store.
    """
    if track:
        check_tracker(track)
    check_folders(folder, store)
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / LOCK, busy=f"another run is working in {folder}"), ExitStack() as locks:
        try:
            planned = plan_within(recipe, budget, store, layers=layers, loaded=loaded, configs=configs, prepare=prepare)
            search = _Search.open(planned, recipe, folder, store, started, on_progress)
            search.check_time()
            busy = f"another search within a budget works with the store {store}, and would remove models that this one needs"
            locks.enter_context(file_lock(store / "locks" / SEARCH_LOCK, busy=busy))
        except BaseException:
            if on_refused is not None:
                on_refused()
            remove_empty_folders(folder, created)
            raise
        if on_checked is not None:
            on_checked()
        with search.ledger.ticking():
            chosen = search.run()
    ledger = search.ledger

    def add_results(new: Path) -> None:
        ledger.finish(new / FILE)
        write_frontier(ledger.facts, new)

    with ledger.ticking(), track_run(track, chosen, folder) as on_epoch:
        ledger.begin("evaluating")
        run_recipe(chosen, folder, store, loaded=loaded, on_progress=on_progress, on_epoch=on_epoch, on_results=add_results)
    ledger.log("finished")
    return folder


# ---- the search --------------------------------------------------------------------------------------------------------


@dataclass
class _Search:
    """A search: its candidates, controls among them, and what is known of time and networks."""

    planned: BudgetPlan
    recipe: Recipe
    store: Path
    ledger: Ledger
    candidates: dict[str, Candidate]
    on_progress: OnStageProgress | None = None
    speeds: dict[str, Speed] = field(default_factory=dict)
    rung: str = ""

    @classmethod
    def open(
        cls,
        planned: BudgetPlan,
        recipe: Recipe,
        folder: Path,
        store: Path,
        started: float | None,
        on_progress: OnStageProgress | None,
    ) -> _Search:
        """Begin a search, or go on with one that the folder holds."""
        candidates = {candidate.name: candidate for candidate in planned.candidates}
        if ALONE in recipe.stages:
            for candidate in planned.candidates:
                name = f"{candidate.name}-{ALONE}"
                control = control_of(candidate.stage, recipe.stages[ALONE])
                candidates[name] = Candidate(name, f"the network of {candidate.name} without its teacher", control)
        keys = {stage.name: stage.key for stage in planned.plan.stages}
        key = digest([planned.budget, as_table(recipe.stages), keys, {n: as_table(c.stage) for n, c in candidates.items()}])
        ledger = Ledger(folder / SEARCH, key, planned.budget, started=started, finished=folder / FILE)
        return cls(planned, recipe, store, ledger, candidates, on_progress)

    @property
    def splits(self) -> Splits:
        return self.planned.plan.splits

    @property
    def facts(self) -> dict[str, Any]:
        return self.ledger.facts

    @property
    def prerequisites(self) -> dict[str, Stage]:
        """The stages that the student depends on, in the order in which they are trained."""
        needed: set[str] = set()
        waiting = dependencies(self.recipe.stages[STUDENT])
        while waiting:
            name = waiting.pop()
            needed.add(name)
            waiting += dependencies(self.recipe.stages[name])
        stages = {stage.name: stage for stage in self.planned.plan.stages}
        return {name: stages[name] for name in ordered_stages(self.recipe) if name in needed}

    # ---- time

    def check_time(self) -> None:
        """Measure every network, and refuse a budget that cannot be kept. A search that goes on was checked before."""
        needed_models = [stage.settings for stage in self.prerequisites.values() if not stage.settings.predictions]
        measured = self.facts.setdefault("speeds", {})
        with tempfile.TemporaryDirectory() as temporary:  # a call that is refused leaves nothing in the store
            for settings in [*needed_models, *(candidate.stage for candidate in self.planned.candidates)]:
                key = network_key(settings.model)
                if key not in measured:
                    logger.info("measuring the speed of a network: %s", settings.model.name or settings.model.start_from)
                    measured[key] = asdict(measure_speed(settings, self.recipe, self.splits, Path(temporary)))
        # The first network is loaded with the packages that it needs, which happens once.
        overhead = min(values["overhead"] for values in measured.values())
        self.speeds = {key: Speed(**{**values, "overhead": overhead}) for key, values in measured.items()}
        if self.ledger.resumed:
            return
        parts = {
            "so far": self.ledger.used(),
            "its teacher": self.teacher_seconds(),
            "the student": shortest_seconds(self.workload(self.first), self.control_workload(self.first)),
            "evaluation": self.closing_seconds,
        }
        needed = sum(parts.values()) / PLANNED
        if needed > self.ledger.budget:
            spent = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in parts.items())
            raise InputError(
                f"a budget of {format_duration(self.ledger.budget)} is too short: "
                f"about {format_duration(needed)} are needed at least ({spent})",
                remedy=f"give at least {math.ceil(needed / 60)}m, fewer examples, or a smaller teacher",
            )

    @property
    def first(self) -> str:
        return self.planned.candidates[0].name

    @property
    def closing_seconds(self) -> float:
        """The time to keep for the evaluation of the teacher, the control and the student."""
        own_seconds = self.ledger.used() - self.ledger.resumed
        slowdown = max(1.0, own_seconds / max(time.process_time(), 1.0))  # processes of others take their part
        return closing_seconds(3, self.speeds, self.splits, slowdown=slowdown)

    def teacher_seconds(self) -> float:
        """The time to train what the student depends on, as far as that is not in the store, and to predict with it."""
        seconds = 0.0
        for stage in self.prerequisites.values():
            if stage.settings.predictions:
                continue
            speed = self.speeds[network_key(stage.settings.model)]
            if stage.settings.terms and not stage.done:
                workload = expected_workload(stage.settings, self.splits, speed)
                seconds += workload.seconds(Amount(stage.settings.train.epochs))
            seconds += speed.predicting(len(self.splits.train))
        return seconds

    def workload(self, name: str) -> Workload:
        """What it costs to train a candidate, by the last training of its network or else by its first steps."""
        stage = self.candidates[name].stage
        key = network_key(stage.model)
        expected = expected_workload(stage, self.splits, self.speeds[key])
        pace = self.facts.get("pace", {}).get(key)
        return expected if pace is None else Workload(expected.steps_per_epoch, *pace)

    def control(self, name: str) -> str | None:
        control = f"{name}-{ALONE}"
        return control if control in self.candidates else None

    def control_workload(self, name: str) -> Workload | None:
        control = self.control(name)
        return None if control is None else self.workload(control)

    # ---- running

    def run(self) -> Recipe:
        """Train the teacher, search, and return the recipe with the chosen student."""
        if "chosen" in self.facts:
            self.remove_losers()  # the interruption may have come before all were removed
            return self.chosen_recipe()
        self.ledger.save()
        if self.ledger.resumed:
            self.ledger.log("going on with a search that was interrupted")
        self.run_prerequisites()
        end = PLANNED * self.ledger.budget - self.closing_seconds
        if "tried" not in self.facts:
            self.facts["tried"] = self.names_to_try(end - self.ledger.used())
            self.ledger.save()
        names = self.facts["tried"]
        self.ledger.log("%s in %s", counted(len(names), "candidate"), counted(len(rung_sizes(len(names))), "rung"))
        halving = Halving(
            names=names,
            rungs=self.facts["rungs"],
            workload=self.workload,
            control=self.control,
            train=self.train,
            used=self.ledger.used,
            save=self.ledger.save,
            start=self.start_rung,
            slack=SLACK * self.ledger.budget,
        )
        finalist, control = halving.run(end)
        self.choose(finalist, control)
        self.remove_losers()
        return self.chosen_recipe()

    def names_to_try(self, seconds: float) -> list[str]:
        names = [candidate.name for candidate in self.planned.candidates]
        count = fitting_count([self.workload(n) for n in names], [self.control_workload(n) for n in names], seconds)
        if count == 0:
            logger.warning("the teacher took longer than expected: the budget will probably be exceeded")
        return names[: max(count, 1)]

    def start_rung(self, rung: int, rungs: int, names: Sequence[str], steps: int) -> None:
        self.rung = f"rung {rung + 1} of {rungs}"
        self.ledger.log("%s: %s, about %s each", self.rung, ", ".join(names), counted(steps, "step"))

    def run_prerequisites(self) -> None:
        """Train what the student depends on, and let its teacher label the training data."""
        stages = self.prerequisites
        processes = ProcessGroup()
        for name, stage in stages.items():
            self.ledger.begin(f"training {name}")
            on_progress = None if self.on_progress is None else partial(self.on_progress, name)
            run_stage(stage, self.recipe, self.splits, stages, processes, on_progress=on_progress)
        teacher = stages[self.recipe.stages[STUDENT].teacher]
        if not teacher.settings.predictions and self.splits.train.input_kind != "images":
            self.ledger.begin(f"predicting the training data with {teacher.name}")
            teacher.outputs(self.splits.train)
        if "teacher" not in self.facts and teacher.knows(self.splits.dev).all():
            self.facts["teacher"] = {"name": teacher.name, "dev": dev_figures(teacher.predictions(self.splits.dev))}
            if not teacher.settings.predictions:
                self.facts["teacher"]["parameters"] = teacher.classifier.parameters

    def train(self, name: str, amount: Amount, deadline: float | None) -> Trial | None:
        """Train a candidate, unless it is in the store, and measure it on dev; None if the deadline cut it short."""
        stage, splits, recipe = self.stage_of(name, amount)
        was_done = stage.done
        start = self.ledger.used()
        self.ledger.begin(f"{self.rung}, {name}")

        def check(progress: TrainingProgress) -> None:
            if self.on_progress is not None:
                self.on_progress(name, progress)
            if deadline is not None and self.ledger.used() > deadline:
                raise OutOfTime

        try:
            with _warnings_only():
                run_stage(stage, recipe, splits, {**self.prerequisites, name: stage}, ProcessGroup(), on_progress=check)
        except OutOfTime:
            self._remove("work", stage.key)
            self.ledger.log("%s: cut short, its time is over", name)
            return None
        except TrainingError as error:
            if deadline is None:  # nothing else is left to choose
                raise
            self.ledger.log("%s: given up, %s", name, error)
            return None
        dev = dev_figures(stage.predictions(self.splits.dev))
        seconds = self.ledger.used() - start
        trial = Trial(
            name=name,
            key=stage.key,
            epochs=amount.epochs,
            share=amount.share,
            seconds=seconds,
            dev=dev,
            parameters=stage.classifier.parameters,
            own=not was_done,
        )
        if not was_done:
            self.update_pace(stage, amount, seconds)
        nll, accuracy = dev["calibrated_nll"], dev["accuracy"]
        self.ledger.log("%s: dev NLL %.3f after a temperature, accuracy %.3f", name, nll, accuracy)
        return trial

    def stage_of(self, name: str, amount: Amount) -> tuple[Stage, Splits, Recipe]:
        """The stage of a candidate that is trained for an amount, the data that it sees, and a recipe that has it."""
        settings = self.settings_of(name, amount.epochs)
        splits = self.splits
        if amount.share < 1:
            rows = math.ceil(amount.share * len(splits.train))
            train = splits.train.sample(rows, seed=self.recipe.seed)
            splits = Splits(train, splits.dev, splits.test, splits.ood)
        stages = self.prerequisites
        recipe = self.recipe.replace(stages={**{n: s.settings for n, s in stages.items()}, name: settings})
        key = stage_key(name, recipe, splits, {n: s.key for n, s in stages.items()})
        folder = self.store / "stages" / key
        return Stage(name, key, settings, folder, self.store, splits.train.classes), splits, recipe

    def settings_of(self, name: str, epochs: int) -> StageSettings:
        stage = self.candidates[name].stage
        return stage.replace(train=stage.train.replace(epochs=epochs, choose_among=()))

    def update_pace(self, stage: Stage, amount: Amount, seconds: float) -> None:
        """Remember what a step of this network took, and the rest of its training."""
        history = stage.history()
        trained = sum(epoch["seconds"] for epoch in history)
        workload = self.workload(stage.name)
        steps = workload.steps(Amount(len(history), amount.share))
        pace = self.facts.setdefault("pace", {})
        pace[network_key(stage.settings.model)] = [trained / steps, max(0.0, seconds - trained)]

    # ---- the choice

    def choose(self, finalist: Trial, control: Trial | None) -> None:
        """Choose between the finalist and its control, and keep the choice with its reasons."""
        chosen = rank([finalist] if control is None else [finalist, control])[0]
        self.facts["chosen"] = chosen.name
        self.facts["student"] = asdict(finalist)
        self.facts["control"] = None if control is None else asdict(control)
        self.facts["points"] = self.points(chosen)
        self.facts["reasons"] = self.reasons(chosen, finalist, control)
        self.facts["state"] = "chosen"
        self.ledger.save()
        for sentence in self.facts["reasons"]:
            logger.info("%s", sentence)

    def reasons(self, chosen: Trial, finalist: Trial, control: Trial | None) -> list[str]:
        """Why it was chosen, in sentences."""
        trials = {trial.name for rung in self.facts["rungs"] for trial in finished_trials(rung)}
        description = self.candidates[chosen.name].description
        sentences = [
            f"Chosen on dev: {chosen.name} ({description}), {counted(chosen.epochs, 'epoch')}, "
            f"NLL {chosen.nll:.3f} after a temperature, accuracy {chosen.dev['accuracy']:.3f}; "
            f"{counted(len(trials), 'model')} compared in {format_duration(self.ledger.used())}."
        ]
        if control is None:
            without = "it was not asked for" if ALONE not in self.recipe.stages else "there was no time for it"
            return [*sentences, f"Not compared with the same network without a teacher: {without}."]
        difference, error = self.difference(finalist, control)
        gap = (
            f"NLL {finalist.nll:.3f} with its teacher, {control.nll:.3f} without ({counted(control.epochs, 'epoch')}); "
            f"difference {difference:+.3f} ± {error:.3f}, one standard error, {counted(len(self.splits.dev), 'row')} of dev"
        )
        gap += "" if abs(difference) > 2 * error else ", which may be chance"
        if chosen is control:
            return [*sentences, f"Distillation did not help here: {gap}. The student of this run is trained on labels alone."]
        return [*sentences, f"The same network without a teacher: {gap}."]

    def difference(self, finalist: Trial, control: Trial) -> tuple[float, float]:
        """Mean and standard error of the difference in NLL on dev, after each one's temperature, paired by example."""
        losses = []
        for trial in (finalist, control):
            stage, _, _ = self.stage_of(trial.name, Amount(trial.epochs, trial.share))
            predictions = stage.predictions(self.splits.dev)
            probs = fit_temperature(predictions)(predictions).probs
            losses.append(-np.log(np.maximum(probs[np.arange(len(probs)), predictions.labels], 1e-12)))
        differences = losses[0] - losses[1]
        return float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(len(differences)))

    def points(self, chosen: Trial) -> list[dict[str, Any]]:
        """Every model on dev as it was trained last: what the picture of the frontier shows."""
        latest = {trial.name: trial for rung in self.facts["rungs"] for trial in finished_trials(rung)}
        latest[chosen.name] = chosen
        milliseconds = self.milliseconds(list(latest.values()))
        points = [
            {
                **asdict(trial),
                "description": self.candidates[name].description,
                "milliseconds": milliseconds[self.network_of(name)],
                "chosen": name == chosen.name,
            }
            for name, trial in latest.items()
        ]
        teacher = self.facts.get("teacher", {})
        if "parameters" in teacher:
            about = {"description": "the teacher", "milliseconds": milliseconds["teacher"], "epochs": None, "share": 1.0}
            points.append({**teacher, **about, "chosen": False})
        for cost, figure in FRONTS:
            sign = -1 if figure == "accuracy" else 1
            front = pareto_front([(point[cost], sign * point["dev"][figure]) for point in points])
            for point, is_on_front in zip(points, front, strict=True):
                point.setdefault("fronts", {})[f"{cost}/{figure}"] = is_on_front
        return points

    def network_of(self, name: str) -> str:
        return network_key(self.candidates[name].stage.model)

    def milliseconds(self, trials: Sequence[Trial]) -> dict[str, float]:
        """The time per example of each network and of the teacher, measured in turns."""
        stages = {self.network_of(t.name): self.stage_of(t.name, Amount(t.epochs, t.share))[0] for t in trials}
        teacher = self.prerequisites[self.recipe.stages[STUDENT].teacher]
        if not teacher.settings.predictions:
            stages["teacher"] = teacher
        runs = {name: partial(compute_outputs, stage.classifier, batch=TIMED_BATCH) for name, stage in stages.items()}
        return {name: timing.median for name, timing in time_in_turns(runs, self.splits.dev).items()}

    def chosen_recipe(self) -> Recipe:
        """The recipe with the chosen student, and its control; a student that is trained alone is its own control."""
        student, control = self.facts["student"], self.facts["control"]
        stages = dict(self.recipe.stages)
        stages.pop(ALONE, None)
        if control is not None and self.facts["chosen"] == control["name"]:
            stages[STUDENT] = self.settings_of(control["name"], control["epochs"])
            return self.recipe.replace(stages=stages)
        stages[STUDENT] = self.settings_of(student["name"], student["epochs"])
        if control is not None:
            alone = {ALONE: self.settings_of(control["name"], control["epochs"])}
            stages = {**{n: s for n, s in stages.items() if n != STUDENT}, **alone, STUDENT: stages[STUDENT]}
        return self.recipe.replace(stages=stages)

    def remove_losers(self) -> None:
        """Remove the models from the store that were trained for the search and not chosen."""
        kept = {trial["key"] for trial in (self.facts["student"], self.facts["control"]) if trial is not None}
        for rung in self.facts["rungs"]:
            for trial in finished_trials(rung):
                if trial.key in kept or not trial.own:
                    continue
                self._remove("stages", trial.key)

    def _remove(self, kind: str, key: str) -> None:
        """Remove a folder of the store, unless another process trains the stage or uses it."""
        with suppress(StoreError), file_lock(self.store / "locks" / key, busy="in use"):
            if not is_in_use(self.store / kind / key):
                remove_folder(self.store / kind / key)


@contextmanager
def _warnings_only() -> Iterator[None]:
    """Drop the lines about a training that is one of many; the search logs one for each."""
    loggers = [logging.getLogger(name) for name in TRAINING_LOGGERS]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


def dev_figures(predictions: Predictions) -> dict[str, float]:
    """Return the figures on dev by which students are compared, as trained and after a temperature.

    Parameters
    ----------
    predictions : Predictions
        On dev.

    Returns
    -------
    dict of str to float
        ``accuracy``, ``nll``, ``ece``, ``calibrated_nll``, ``calibrated_ece`` and ``temperature``.
    """
    temperature = fit_temperature(predictions)
    calibrated = temperature(predictions)
    figures = {name: METRICS[name](predictions.probs, predictions.labels) for name in ("accuracy", "nll", "ece")}
    figures |= {f"calibrated_{name}": METRICS[name](calibrated.probs, calibrated.labels) for name in ("nll", "ece")}
    return {**{name: float(value) for name, value in figures.items()}, "temperature": temperature.value}
