"""Carrying out one job, in whatever process it lands: train what is not in the store, measure what is asked for.

What a job leaves is in the store: the stage, and its predictions with figures and bootstrap replicates. What it returns is
small, and the same whoever carries it out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.config.loading import parse_recipe
from distilcal.config.schema import DataSettings, Recipe, ordered_stages
from distilcal.data import Dataset
from distilcal.data.splits import Splits, read_splits
from distilcal.errors import InputError
from distilcal.evaluation import SplitsBootstrap, bootstrap_splits
from distilcal.io.atomic import read_json, write_json
from distilcal.io.folders import digest, is_intact, sealed_folder
from distilcal.pipeline.preflight import check_stages
from distilcal.pipeline.stage import MAP, Stage, run_stage, stage_key
from distilcal.training.distributed import ProcessGroup

RESAMPLES = 500
SHOWN = 200  # examples of a class in a projection of features


@dataclass(frozen=True)
class Measure:
    """What is measured of a model: on which splits, by which metrics, and whether features and the data map are kept."""

    sets: tuple[str, ...]
    metrics: dict[str, dict[str, Any]]  # name → {"metric": …, its parameters}
    features: tuple[str, ...] = ()  # classes whose examples' features are kept
    map: bool = False


def work(
    table: Mapping[str, Any], name: str, store: str, *, measure: Measure | None = None, keep: bool = True
) -> dict[str, Any]:
    """Train a stage of a recipe, unless it is in the store, and measure it; what happened, and where the figures are.

    Without ``keep`` it is enough to know how training went: a point of a grid whose model may have been removed.
    """
    begun = time.perf_counter()
    recipe = parse_recipe(table)
    folder = Path(store)
    splits = splits_of(recipe.data)
    stages = _stages(recipe, splits, folder)
    stage = stages[name]
    if measure is not None:
        check_sets(measure, splits)
    record = folder / "points" / f"{stage.key}.json"
    if not keep and (known := _known_point(record)) is not None:
        return {**known, "trained": False, "seconds": time.perf_counter() - begun}
    done = stage.done
    processes = ProcessGroup()
    check_stages(recipe, splits)
    for other in stages.values():
        run_stage(other, recipe, splits, stages, processes)
    history = stage.history()
    told: dict[str, Any] = {"key": stage.key, "epochs": history, "best": _best(stage)}
    if not keep:
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, {**told, "own": not done})  # what others trained is not ours to remove
        told["own"] = not done
    if measure is not None:
        try:
            told["measured"] = _measured(stage, splits, measure, folder)
        except Exception as error:  # the stage is trained, and others may learn from it
            told["not_measured"] = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return {**told, "trained": not done, "seconds": time.perf_counter() - begun}


def _known_point(record: Path) -> dict[str, Any] | None:
    """How a point of a grid went, if it was trained before; a damaged record is none."""
    try:
        found = read_json(record)
        found["epochs"][found["best"]]["dev"]["accuracy"], found["key"]
    except (InputError, KeyError, IndexError, TypeError):
        return None
    return dict(found)


def known(table: Mapping[str, Any], name: str, store: Path, *, keep: bool) -> dict[str, Any] | None:
    """How a job's stage went, if it is in the store; reads the data, trains nothing."""
    recipe = parse_recipe(table)
    stage = _stages(recipe, splits_of(recipe.data), store)[name]
    if stage.done:
        return {"epochs": stage.history(), "best": _best(stage)}
    return None if keep else _known_point(store / "points" / f"{stage.key}.json")


def check_sets(measure: Measure, splits: Splits) -> None:
    """Refuse before training what could not be measured after it."""
    there = [data.name for data in splits]
    missing = [name for name in measure.sets if name not in there]
    if missing:
        raise InputError(f"there is no set {missing[0]!r} to measure on", remedy=f"the sets are {', '.join(there)}")
    unknown = [name for name in measure.features if name not in splits.test.classes]
    if unknown:
        raise InputError(f"there is no class {unknown[0]!r} to show", remedy=f"they are {', '.join(splits.test.classes)}")


def _stages(recipe: Recipe, splits: Splits, store: Path) -> dict[str, Stage]:
    keys: dict[str, str] = {}
    stages = {}
    for name in ordered_stages(recipe):
        keys[name] = stage_key(name, recipe, splits, keys)
        stages[name] = Stage(name, keys[name], recipe.stages[name], store / "stages" / keys[name], store)
    return stages


def _best(stage: Stage) -> int:
    path = stage.folder / "history.json"
    return int(read_json(path).get("best_epoch", 0)) if path.exists() else 0


@lru_cache(maxsize=4)
def splits_of(data: DataSettings) -> Splits:
    """The splits, read once by each process; a study's jobs come task by task."""
    return read_splits(data)


def _measured(stage: Stage, splits: Splits, measure: Measure, store: Path) -> str:
    """Evaluate a stage, unless the store holds its evaluation; return the key of the folder with predictions and metrics."""
    by_name = {data.name: data for data in splits}
    sets = {name: by_name[name] for name in dict.fromkeys(("dev", *measure.sets))}
    fingerprints = {name: data.fingerprint for name, data in sets.items()}
    key = digest([stage.key, fingerprints, measure.metrics, measure.features, measure.map, RESAMPLES])
    folder = store / "measured" / key
    if is_intact(folder, key=key):
        return key
    predictions = {name: stage.predictions(data) for name, data in sets.items()}
    bootstrap = bootstrap_splits(predictions, measure.sets, measure.metrics, resamples=RESAMPLES)
    with sealed_folder(folder, key=key) as aside:
        for name, split_predictions in predictions.items():
            split_predictions.save(aside / f"{name}.npz")
        np.savez_compressed(aside / "replicates.npz", **_replicates(bootstrap))
        if measure.features:
            _save_features(stage, splits.test, measure.features, aside / "features.npz")
        if measure.map and (stage.folder / MAP).exists():
            _save_map(stage.folder / MAP, aside / "map.npz")
        sizes = {name: len(predictions[name]) for name in measure.sets}
        write_json(aside / "figures.json", _figures(bootstrap, sizes))
    return key


def _figures(bootstrap: SplitsBootstrap, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The values of all metrics as the content of ``figures.json``; JSON has no infinity, so an infinite value is null."""
    figures: dict[str, Any] = {"temperature": bootstrap.temperature, "sets": {}}
    for split, states in bootstrap.values.items():
        figures["sets"][split] = {"n": sizes[split]}
        for state, values in states.items():
            figures["sets"][split][state] = {name: value if np.isfinite(value) else None for name, value in values.items()}
    return figures


def _replicates(bootstrap: SplitsBootstrap) -> dict[str, Any]:
    """The bootstrap replicates as the arrays of ``replicates.npz``, named ``split/state/metric``."""
    return {
        f"{split}/{state}/{name}": samples.astype(np.float32)
        for split, states in bootstrap.samples.items()
        for state, metrics in states.items()
        for name, samples in metrics.items()
    }


def _save_features(stage: Stage, data: Dataset, classes: tuple[str, ...], path: Path) -> None:
    """Features of the first examples of a few classes."""
    assert data.labels is not None
    rows = np.concatenate([np.flatnonzero(data.labels == data.classes.index(name))[:SHOWN] for name in classes])
    features = stage.outputs(data.select(rows), ("features", "logits"))["features"]
    names = np.array([data.classes[i] for i in data.labels[rows]])
    np.savez_compressed(path, features=features.astype(np.float32), classes=names)


def _save_map(folder: Path, path: Path) -> None:
    from distilcal.dynamics import load_dynamics

    found = load_dynamics(folder)
    columns = {name: getattr(found, name) for name in ("confidence", "variability", "correctness")}
    np.savez_compressed(path, epochs=found.epochs.max(), **columns)
