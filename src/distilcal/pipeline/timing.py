"""How long models take per example, measured in turns: what else the machine does meanwhile slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from distilcal.data import Dataset

ROUNDS = 5
MAX_EXAMPLES = 128
MIN_EXAMPLES = 8
WARM_UP_EXAMPLES = 8
SECONDS_PER_ROUND = 0.3  # of one model; a slow one is measured on fewer examples


@dataclass(frozen=True)
class Timing:
    """Milliseconds per example over several rounds.

    Attributes
    ----------
    median : float
        The median over the rounds.
    low, high : float
        The fastest and the slowest round.
    """

    median: float
    low: float
    high: float


def time_in_turns(
    models: Mapping[str, Callable[[Dataset], object]], data: Dataset, *, rounds: int = ROUNDS
) -> dict[str, Timing]:
    """Measure the time per example of several models, one pass of each in turn, round by round.

    Each model runs once beforehand, on a few examples: what is loaded or compiled at first does not count, and how long it
    takes decides how many examples it is measured on.

    Parameters
    ----------
    models : mapping of str to callable
        Runs a model on examples, from their raw input.
    data : Dataset
        Examples; at most 128, spread evenly over all of them, are used.
    rounds : int, default 5
        How often each model runs.

    Returns
    -------
    dict of str to Timing
        For every model.

    Examples
    --------
    >>> from distilcal.data import texts
    >>> timings = time_in_turns({"upper": lambda data: [text.upper() for text in data.inputs.text]}, Dataset(texts(["a", "b"])))
    >>> 0 < timings["upper"].low <= timings["upper"].median <= timings["upper"].high
    True
    """
    examples = {}
    for name, model in models.items():
        few = _spread(data, WARM_UP_EXAMPLES)
        model(few)
        seconds_per_example = _seconds(model, few) / len(few)
        count = int(np.clip(SECONDS_PER_ROUND / seconds_per_example, MIN_EXAMPLES, MAX_EXAMPLES))
        examples[name] = _spread(data, count)
    milliseconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            milliseconds[name].append(1000 * _seconds(model, examples[name]) / len(examples[name]))
    return {name: Timing(float(np.median(taken)), min(taken), max(taken)) for name, taken in milliseconds.items()}


def _spread(data: Dataset, count: int) -> Dataset:
    """At most this many examples, spread evenly over the data."""
    if count >= len(data):
        return data
    return data.select(np.linspace(0, len(data) - 1, count).astype(np.int64))


def _seconds(model: Callable[[Dataset], object], data: Dataset) -> float:
    start = time.perf_counter()
    model(data)
    return time.perf_counter() - start
