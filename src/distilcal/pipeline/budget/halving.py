"""Successive halving within a time: many candidates trained a little, the best third of them longer, one of them to the end.

Each rung trains its candidates anew with a whole schedule, for a number of steps that the time of the rung allows. The last
rung has half of the time: the finalist is trained, and its control, the same network without a teacher. Time is measured in
seconds that the search has used so far, over all processes that have worked on it, so that deadlines outlast an interruption.

Nothing here knows models or data: training and the clock are functions that the caller passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

ETA = 3  # the best 1/ETA of a rung go on
LAST_SHARE = 0.5  # of the time, for the last rung
FEWEST_STEPS = 100  # of a candidate in the first rung: fewer tell nothing
FEWEST_LAST_STEPS = 150  # of the finalist, and at least one epoch
MOST_EPOCHS, MOST_STEPS = 10, 1000  # training ends after so many epochs, or on small data after so many steps
OVERRUN = 1.5  # times its share that a rung may take before it is cut short
TIE = 0.002  # NLL: candidates within it are equal, and the smaller one wins


@dataclass(frozen=True)
class Workload:
    """What it costs to train a candidate.

    Attributes
    ----------
    steps_per_epoch : int
        Optimiser steps of one pass over its training data.
    seconds_per_step : float
        Time of a step, with its share of the evaluation on dev.
    overhead : float
        Seconds once for each training: loading, saving, predicting dev.
    """

    steps_per_epoch: int
    seconds_per_step: float
    overhead: float

    @property
    def most_steps(self) -> int:
        """Steps after which more training is not tried."""
        return max(MOST_EPOCHS * self.steps_per_epoch, MOST_STEPS)

    def amount(self, steps: int, *, whole: bool = False) -> Amount:
        """Return how long to train for about so many steps: whole epochs, or one epoch over a share of the data.

        Parameters
        ----------
        steps : int
            Steps to approach from below, to within a tenth of an epoch.
        whole : bool, default False
            Whether at least one epoch over all data is required.
        """
        steps = min(steps, self.most_steps)
        epochs = math.floor(steps / self.steps_per_epoch + 0.1)
        if epochs >= 1 or whole:
            return Amount(max(1, epochs))
        return Amount(1, steps / self.steps_per_epoch)

    def steps(self, amount: Amount) -> int:
        """Return the steps of an amount of training."""
        return max(1, round(amount.epochs * amount.share * self.steps_per_epoch))

    def seconds(self, amount: Amount) -> float:
        """Return the time that an amount of training takes."""
        return self.overhead + self.seconds_per_step * self.steps(amount)


@dataclass(frozen=True)
class Amount:
    """How long a candidate is trained: epochs over a share of the training data."""

    epochs: int
    share: float = 1.0


@dataclass(frozen=True)
class Trial:
    """A candidate that was trained, and what it is worth on dev.

    Attributes
    ----------
    name : str
        The candidate.
    key : str
        Name of the trained stage in the store.
    epochs : int
        Passes over the data.
    share : float
        Share of the training data.
    seconds : float
        Time that it took.
    dev : dict of str to float
        ``calibrated_nll`` by which candidates are chosen, and other figures.
    parameters : int
        Size of the network.
    own : bool
        Whether the search trained it; False if it was in the store.
    """

    name: str
    key: str
    epochs: int
    share: float
    seconds: float
    dev: dict[str, float]
    parameters: int
    own: bool = True

    @property
    def nll(self) -> float:
        """NLL on dev after a temperature."""
        return self.dev["calibrated_nll"]


def rung_sizes(count: int) -> list[int]:
    """Return how many candidates each rung has.

    Examples
    --------
    >>> rung_sizes(9), rung_sizes(4), rung_sizes(1)
    ([9, 3, 1], [4, 2, 1], [1])
    """
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append(math.ceil(sizes[-1] / ETA))
    return sizes


def rung_share(rung: int, rungs: int) -> float:
    """Return the share of the time that is left which a rung may take, counted from 0.

    Examples
    --------
    >>> rung_share(0, 3), rung_share(1, 3), rung_share(2, 3)
    (0.25, 0.3333333333333333, 1.0)
    """
    if rung == rungs - 1:
        return 1.0
    weight = (1 - LAST_SHARE) / (rungs - 1)
    return weight / (LAST_SHARE + weight * (rungs - 1 - rung))


def affordable_steps(seconds: float, workloads: Sequence[Workload], *, whole: bool = False) -> int:
    """Return the largest number of steps for which all of these can be trained in a time; 0 if there is none.

    Parameters
    ----------
    seconds : float
        The time for all of them together.
    workloads : sequence of Workload
        What is to be trained.
    whole : bool, default False
        Whether each sees all data at least once.

    Examples
    --------
    >>> affordable_steps(60, [Workload(10, 0.5, 5.0), Workload(10, 0.1, 5.0)])
    88
    """

    def total(steps: int) -> float:
        return sum(workload.seconds(workload.amount(steps, whole=whole)) for workload in workloads)

    low, high = 0, max(workload.most_steps for workload in workloads)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if total(middle) <= seconds else (low, middle - 1)
    return low


def fitting_count(workloads: Sequence[Workload], controls: Sequence[Workload | None], seconds: float) -> int:
    """Return how many candidates can be tried in a time, of a list whose first ones are the most promising.

    Parameters
    ----------
    workloads : sequence of Workload
        The candidates, in their order.
    controls : sequence of Workload or None
        The control of each; None where there is none.
    seconds : float
        The time for the whole search.

    Returns
    -------
    int
        0 if there is not even time to train the first one.
    """
    for count in range(len(workloads), 0, -1):
        rungs = len(rung_sizes(count))
        first = affordable_steps(seconds * rung_share(0, rungs), workloads[:count])
        last_seconds = seconds if rungs == 1 else seconds * LAST_SHARE
        costs = [_last_seconds(*pair) for pair in zip(workloads[:count], controls[:count], strict=True)]
        fewest = min(FEWEST_STEPS, *(workload.most_steps for workload in workloads[:count]))
        if max(costs) <= last_seconds and (rungs == 1 or first >= fewest):
            return count
    return 0


def shortest_seconds(workload: Workload, control: Workload | None) -> float:
    """Return the least time in which a candidate and its control can be trained usefully."""
    return _last_seconds(workload, control)


def _last_seconds(workload: Workload, control: Workload | None) -> float:
    trained = [workload] if control is None else [workload, control]
    return sum(each.seconds(each.amount(FEWEST_LAST_STEPS, whole=True)) for each in trained)


def rank(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials from best to worst by NLL on dev; of those within `TIE` of the best, the smallest first."""
    ranked: list[Trial] = []
    left = list(trials)
    while left:
        best = min(trial.nll for trial in left)
        tied = [trial for trial in left if trial.nll <= best + TIE]
        first = min(tied, key=lambda trial: trial.parameters)
        ranked.append(first)
        left.remove(first)
    return ranked


# ---- the search --------------------------------------------------------------------------------------------------------


@dataclass
class Halving:
    """A search under way.

    Attributes
    ----------
    names : sequence of str
        Candidates, the most promising first.
    rungs : list of dict
        What was found in each rung, as it is kept on disk; a search that goes on has the earlier ones here.
    workload : callable
        Returns what it costs to train a candidate, as far as is known.
    control : callable
        Returns the name of a candidate's control, or None.
    train : callable
        Trains a candidate for an amount, until a deadline or None, and returns its `Trial`; None if it was cut short.
    used : callable
        Returns the seconds that the search has used so far.
    save : callable
        Keeps ``rungs`` on disk.
    start : callable
        Called with the number of a rung, the number of all, its candidates and its steps before it is run.
    slack : float
        Seconds by which the last rung may miss the end of the search before what it trains is given up.
    """

    names: Sequence[str]
    rungs: list[dict[str, Any]]
    workload: Callable[[str], Workload]
    control: Callable[[str], str | None]
    train: Callable[[str, Amount, float | None], Trial | None]
    used: Callable[[], float]
    save: Callable[[], None]
    start: Callable[[int, int, Sequence[str], int], None]
    slack: float = 0.0

    def run(self, end: float) -> tuple[Trial, Trial | None]:
        """Run all rungs; return the finalist as it is to be used, and its control if there was time for it.

        Parameters
        ----------
        end : float
            Seconds used at which the search has to end.
        """
        sizes = rung_sizes(len(self.names))
        names = list(self.names)
        for rung in range(len(sizes) - 1):
            trials = self._run_rung(rung, len(sizes), names, end)
            names = self._survivors(names, trials, sizes[rung + 1])
        return self._run_last(len(sizes), names[0], end)

    def _run_rung(self, rung: int, rungs: int, names: Sequence[str], end: float) -> list[Trial]:
        state = self._state(rung, rungs, names, end)
        for name in names:
            if name in state["trials"] or (state["trials"] and self.used() >= state["deadline"]):
                continue
            amount = self.workload(name).amount(state["steps"])
            trial = self.train(name, amount, state["deadline"])
            state["trials"][name] = None if trial is None else asdict(trial)
            self.save()
        return finished_trials(state)

    def _run_last(self, rungs: int, finalist: str, end: float) -> tuple[Trial, Trial | None]:
        control = self.control(finalist)
        names = [finalist] if control is None else [finalist, control]
        state = self._state(rungs - 1, rungs, names, end)
        earlier = [trial for past in self.rungs[:-1] for trial in finished_trials(past)]
        earlier = [trial for trial in earlier if trial.name == finalist and trial.share == 1]
        for name in names:
            if name in state["trials"]:
                continue
            steps = state["steps"] if name == finalist else self._control_steps(state, name, end)
            amount = self.workload(name).amount(steps, whole=True)
            must_finish = name == finalist and not earlier
            trial = self.train(name, amount, None if must_finish else state["deadline"])
            state["trials"][name] = None if trial is None else asdict(trial)
            self.save()
        trained = finished_trials(state)
        finalists = [*(trial for trial in trained if trial.name == finalist), *reversed(earlier)]
        return rank(finalists)[0], next((trial for trial in trained if trial.name == control), None)

    def _control_steps(self, state: dict[str, Any], name: str, end: float) -> int:
        """The steps of the control: those of the finalist, or fewer if that took longer than expected."""
        if "control_steps" not in state:
            affordable = affordable_steps(end - self.used(), [self.workload(name)], whole=True)
            state["control_steps"] = min(state["steps"], max(affordable, FEWEST_LAST_STEPS))
            self.save()
        steps: int = state["control_steps"]
        return steps

    def _state(self, rung: int, rungs: int, names: Sequence[str], end: float) -> dict[str, Any]:
        """What is known of a rung; how long it trains is decided once, when it begins."""
        if rung < len(self.rungs):
            self.start(rung, rungs, names, self.rungs[rung]["steps"])
            return self.rungs[rung]
        is_last = rung == rungs - 1
        seconds = (end - self.used()) * rung_share(rung, rungs)
        steps = affordable_steps(seconds, [self.workload(name) for name in names], whole=is_last)
        fewest = FEWEST_LAST_STEPS if is_last else FEWEST_STEPS
        state: dict[str, Any] = {
            "steps": max(steps, fewest),
            "deadline": end + self.slack if is_last else self.used() + max(seconds, 0.0) * OVERRUN,
            "candidates": list(names),
            "trials": {},
        }
        self.rungs.append(state)
        self.save()
        self.start(rung, rungs, names, state["steps"])
        return state

    def _survivors(self, names: Sequence[str], trials: Sequence[Trial], count: int) -> list[str]:
        """The best of a rung; where too few were finished, the most promising of the others."""
        ranked = [trial.name for trial in rank(trials)]
        return [*ranked, *(name for name in names if name not in ranked)][:count]


def finished_trials(rung: Mapping[str, Any]) -> list[Trial]:
    """Return the trials of a rung, as it is kept on disk, that were not cut short."""
    return [Trial(**trial) for trial in rung["trials"].values() if trial is not None]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return which points no other one beats in both values, lower being better.

    Parameters
    ----------
    points : sequence of (float, float)
        Cost and error of each.

    Returns
    -------
    list of bool

    Examples
    --------
    >>> pareto_front([(1.0, 0.5), (2.0, 0.4), (3.0, 0.45)])
    [True, True, False]
    """
    front = []
    for cost, error in points:
        beaten = any(c <= cost and e <= error and (c < cost or e < error) for c, e in points)
        front.append(not beaten)
    return front
