"""How long training, predicting and evaluating take here: a few steps of each network, measured before the search."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distilcal.config.loading import as_table
from distilcal.config.schema import ModelSettings, Recipe, StageSettings
from distilcal.data import Dataset
from distilcal.data.splits import Splits
from distilcal.io.folders import digest
from distilcal.models.classifier import build_classifier
from distilcal.pipeline.budget.halving import Workload
from distilcal.pipeline.rows import stage_data
from distilcal.training import fit
from distilcal.training.schedule import mixed_epoch_batches, resolve_settings
from distilcal.views import build_term

PROBE_BATCHES = 2
PROBE_PASSES = 3  # over them: the first one warms up, the best of the others counts
FORWARD_SHARE = 1 / 3  # of the time of a training step is its forward pass
EVALUATION_SECONDS = 0.5  # for a model on a split: bootstrap intervals, files, charts
EVALUATION_SECONDS_PER_ROW = 2e-4
CLOSING_SECONDS = 4.0  # once for a run: baseline, overlaps, report


@dataclass(frozen=True)
class Speed:
    """What a network costs on this machine.

    Attributes
    ----------
    seconds_per_row : float
        Of a training step, for each example.
    overhead : float
        Seconds to load it.
    parameters : int
        Its size.
    """

    seconds_per_row: float
    overhead: float
    parameters: int

    def predicting(self, rows: int) -> float:
        """Return the seconds to predict so many examples."""
        return FORWARD_SHARE * self.seconds_per_row * rows


def network_key(model: ModelSettings) -> str:
    """Return a name for a network, the same for candidates that differ in their training only."""
    return digest(as_table(model))


def measure_speed(stage: StageSettings, recipe: Recipe, splits: Splits, store: Path) -> Speed:
    """Train a network for a few steps and return what they cost. Nothing is kept of it.

    Parameters
    ----------
    stage : StageSettings
        Whose network, batch and number format are used.
    recipe : Recipe
        The recipe, for networks that start from another stage's.
    splits : Splits
        The data; a few examples of train and dev are used.
    store : Path
        Where tokenised texts are kept.

    Returns
    -------
    Speed
    """
    model = stage.model
    while model.start_from:
        model = recipe.stages[model.start_from].model
    start = time.perf_counter()
    classifier = build_classifier(model, splits.train, seed=recipe.seed)
    overhead = time.perf_counter() - start
    settings = resolve_settings(stage.train, len(splits.train))
    rows = PROBE_BATCHES * settings.batch
    train = splits.train.sample(rows, seed=recipe.seed)
    dev = splits.dev.sample(rows, seed=recipe.seed)
    settings = settings.replace(
        epochs=PROBE_PASSES, choose="last", choose_among=(), patience=0, milestones=(), schedule="linear"
    )
    # A loss that needs neither labels nor a teacher fits all rows; its cost is that of any other, next to the network's.
    result = fit(classifier, train, dev, [build_term("confidence_penalty", 1e-3)], settings, seed=recipe.seed, store=store)
    seconds = min(epoch["seconds"] for epoch in result.history[1:])
    return Speed(seconds / (len(train) + FORWARD_SHARE * len(dev)), overhead, classifier.parameters)


def steps_per_epoch(stage: StageSettings, data: Dataset) -> int:
    """Return the optimiser steps of one pass of a stage over its training data."""
    is_labelled = data.is_labelled
    if is_labelled.all() or not is_labelled.any():
        return math.ceil(len(data) / stage.train.batch)
    share = stage.train.labelled_share
    return len(mixed_epoch_batches(is_labelled, None, stage.train.batch, share=share, seed=0, epoch=0))


def expected_workload(stage: StageSettings, splits: Splits, speed: Speed) -> Workload:
    """Return what training a stage costs, judging by the speed of its network.

    Parameters
    ----------
    stage : StageSettings
        The stage.
    splits : Splits
        The data.
    speed : Speed
        That of its network.

    Returns
    -------
    Workload
    """
    steps = steps_per_epoch(stage, stage_data(stage, splits))
    seconds = speed.seconds_per_row * stage.train.batch + speed.predicting(len(splits.dev)) / steps
    return Workload(steps, seconds, 2 * speed.overhead + 1.0 + speed.predicting(len(splits.dev)))


def closing_seconds(models: int, speeds: Mapping[str, Speed], splits: Splits, *, slowdown: float = 1.0) -> float:
    """Return the time that the evaluation of the chosen student, its teacher and its control takes.

    Parameters
    ----------
    models : int
        How many models are evaluated.
    speeds : mapping of str to Speed
        Those of the networks; the slowest of them counts for each model.
    splits : Splits
        The data.
    slowdown : float, default 1.0
        How many times longer than on a quiet machine the evaluation takes; the speeds were measured as the machine is.

    Returns
    -------
    float
    """
    rows = len(splits.dev) + len(splits.test) + sum(len(data) for data in splits.ood)
    splits_count = 2 + len(splits.ood)
    slowest = max((speed.predicting(rows) + speed.overhead for speed in speeds.values()), default=0.0)
    evaluating = EVALUATION_SECONDS * splits_count + EVALUATION_SECONDS_PER_ROW * rows
    return slowdown * CLOSING_SECONDS + models * (slowest + slowdown * evaluating)
