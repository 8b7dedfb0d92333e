"""Running one job, in whatever process it lands: train what is not in the store, measure what is required.

A job leaves its results in the store: the stage, and its predictions with figures and bootstrap replicates. What it returns is
small, and the same in every executor.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.calibrate import fit_temperature
from distilcal.config.loading import parse_recipe
from distilcal.config.schema import DataSettings
from distilcal.data import Dataset
from distilcal.data.splits import Splits, read_splits
from distilcal.errors import DistilcalError, InputError
from distilcal.evaluation import SplitsBootstrap, bootstrap_splits
from distilcal.io.atomic import read_json, write_json
from distilcal.io.folders import digest, is_intact, sealed_folder
from distilcal.pipeline.preflight import check_recipe
from distilcal.pipeline.stage import MAP, Stage, plan_stages
from distilcal.pipeline.train import run_stage
from distilcal.predictions import Predictions
from distilcal.study.executors import error_text, log_fault
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
    cluster: str = "group"  # which rows are resampled together, as in the settings of a task
    grid: tuple[float, float, float] | None = None  # of temperatures: first, last, step; None: the exact optimum


def run_job(
    table: Mapping[str, Any], name: str, store: str, *, measure: Measure | None = None, keep: bool = True, by: str = ""
) -> dict[str, Any]:
    """Train a stage of a recipe, unless it is in the store, and measure it.

    Parameters
    ----------
    table : mapping
        The recipe as a plain table, with every stage that this one depends on.
    name : str
        Of the stage.
    store : str
        Folder of the store.
    measure : Measure, optional
        What to measure of the model.
    keep : bool
        False for a point of a grid: its training history is enough, the model may have been removed since.
    by : str
        For a point of a grid: the metric on dev by which it is chosen, which the kept epoch has to have.

    Returns
    -------
    dict
        ``key`` of the stage in the store; ``epochs``, its history; ``best``, the index of the kept epoch; ``trained``,
        whether it was trained now; ``seconds``; ``measured``, the key of the measurements, or ``not_measured``, the error;
        for a point ``own``, whether it was trained for a grid.
    """
    start_time = time.perf_counter()
    recipe = parse_recipe(table)
    store_dir = Path(store)
    splits = cached_splits(recipe.data)
    stages = plan_stages(recipe, splits, store_dir)
    stage = stages[name]
    if measure is not None:
        check_sets(measure, splits)
    point_file = store_dir / "points" / f"{stage.key}.json"
    if not keep:
        point = _stored_point(point_file, by)
        if point is not None:
            return {**point, "trained": False, "seconds": time.perf_counter() - start_time}
    was_stored = stage.done
    processes = ProcessGroup()
    check_recipe(recipe, splits)
    with ExitStack() as uses:
        for other in stages.values():
            run_stage(other, recipe, splits, stages, processes, uses=uses, keep_dev_logits=False)  # most are grid points
        result: dict[str, Any] = {"key": stage.key, "epochs": _history(stage, splits.dev, by), "best": _best_epoch(stage)}
        if not keep:
            result["own"] = not was_stored  # a model that was there before is not removed with the losers
            point_file.parent.mkdir(parents=True, exist_ok=True)
            write_json(point_file, result)
        if measure is not None:
            try:
                result["measured"] = _measured(stage, splits, measure, store_dir)
            except Exception as error:  # the stage is trained, and others can still learn from it
                log_fault(error, f"{name} was trained, but could not be measured")
                result["not_measured"] = error_text(error)
    return {**result, "trained": not was_stored, "seconds": time.perf_counter() - start_time}


def stored_result(table: Mapping[str, Any], name: str, store: Path, *, keep: bool, by: str = "") -> dict[str, Any] | None:
    """Return the history of a job's stage if it is in the store. Reads the data, trains nothing.

    Parameters
    ----------
    table : mapping
        The recipe as a plain table, with every stage that this one depends on.
    name : str
        Name of the stage.
    store : Path
        Folder of the store.
    keep : bool
        False for a point of a grid: its stored history is enough, even where its model was removed.
    by : str
        For a point of a grid: the metric on dev by which it is chosen.

    Returns
    -------
    dict or None
        ``epochs``, the history, and ``best``, the index of the kept epoch; for a point without its model also ``key`` and
        ``own``, as `run_job` returns them. None if the stage is not stored.
    """
    recipe = parse_recipe(table)
    splits = cached_splits(recipe.data)
    stage = plan_stages(recipe, splits, store)[name]
    if stage.done:
        return {"epochs": _history(stage, splits.dev, by), "best": _best_epoch(stage)}
    if keep:
        return None
    return _stored_point(store / "points" / f"{stage.key}.json", by)


def _stored_point(path: Path, by: str) -> dict[str, Any] | None:
    """The result of a point of a grid that was trained before; None if there is none, or if its file lacks something."""
    try:
        result = read_json(path)
        result["epochs"][result["best"]]["dev"][by or "accuracy"], result["key"]
    except (DistilcalError, KeyError, IndexError, TypeError):
        return None
    return dict(result)


def check_sets(measure: Measure, splits: Splits) -> None:
    """Refuse before training what could not be measured after it.

    Parameters
    ----------
    measure : Measure
        What shall be measured.
    splits : Splits
        The data of the job.

    Raises
    ------
    InputError
        If a set does not exist, or a class whose features shall be shown is not in the data.
    """
    sets = [data.name for data in splits]
    for name in measure.sets:
        if name not in sets:
            raise InputError(f"there is no set {name!r} to measure on", remedy=f"the sets are {', '.join(sets)}")
    classes = splits.test.classes
    for name in measure.features:
        if name not in classes:
            raise InputError(f"there is no class {name!r} to show", remedy=f"the classes are {', '.join(classes)}")


def _history(stage: Stage, dev: Dataset, by: str) -> list[dict[str, Any]]:
    """The history of a stage; the kept epoch of one that was trained before ``calibrated_nll`` was recorded is given it."""
    epochs = stage.history()
    if by == "calibrated_nll":
        metrics = epochs[_best_epoch(stage)]["dev"]
        if by not in metrics:
            metrics[by] = fit_temperature(stage.predictions(dev)).fit.nll_after
    return epochs


def _best_epoch(stage: Stage) -> int:
    """The index of the epoch that was kept; 0 for a model that was not trained."""
    path = stage.folder / "history.json"
    return int(read_json(path).get("best_epoch", 0)) if path.exists() else 0


@lru_cache(maxsize=4)
def cached_splits(data: DataSettings) -> Splits:
    """Read the splits, once in each process: the jobs of a study come task by task.

    Parameters
    ----------
    data : DataSettings
        The settings of the data; the splits of the last four are kept in memory.

    Returns
    -------
    Splits
    """
    return read_splits(data)


def _measured(stage: Stage, splits: Splits, measure: Measure, store: Path) -> str:
    """Evaluate a stage, unless the store holds its evaluation; return the key of the folder with predictions and metrics."""
    by_name = {data.name: data for data in (splits.labelled, splits.dev, splits.test, *splits.ood)}
    sets = {name: by_name[name] for name in dict.fromkeys(("dev", *measure.sets))}
    fingerprints = {name: data.fingerprint for name, data in sets.items()}
    sources = {name: row_sources(sets[name], measure.cluster) for name in measure.sets}
    clusters = {name: rows for name, rows in sources.items() if rows is not None}
    content = [stage.key, fingerprints, measure.metrics, measure.features, measure.map, RESAMPLES, measure.cluster]
    if measure.grid is not None:
        content.append(measure.grid)
    key = digest(content)
    folder = store / "measured" / key
    if is_intact(folder, key=key):
        return key
    predictions = {name: stage.predictions(data) for name, data in sets.items()}
    bootstrap = bootstrap_splits(
        predictions, measure.sets, measure.metrics, resamples=RESAMPLES, clusters=clusters, grid=measure.grid
    )
    with sealed_folder(folder, key=key) as aside:
        for name, split_predictions in predictions.items():
            split_predictions.save(aside / f"{name}.npz")
        np.savez_compressed(aside / "replicates.npz", **_replicates(bootstrap))
        if measure.features:
            _save_features(stage, splits.test, measure.features, aside / "features.npz")
        if measure.map and (stage.folder / MAP).exists():
            _save_map(stage.folder / MAP, aside / "map.npz")
        figures = _figures(bootstrap)
        for name in measure.sets:
            figures["sets"][name] |= _facts(predictions[name], clusters.get(name))
        write_json(aside / "figures.json", figures)
    return key


def row_sources(data: Dataset, cluster: str) -> NDArray[Any] | None:
    """Return the source of each row of a set, by which rows are resampled together; None if every row is its own.

    Parameters
    ----------
    data : Dataset
        The set.
    cluster : str
        ``"group"``: the groups of the data; ``"row"``: none; ``"id:SEPARATOR"``: what ids begin with, up to the separator.

    Returns
    -------
    array (N,) or None

    Examples
    --------
    >>> from distilcal.data import texts
    >>> data = Dataset(texts(["a", "b", "c"]), np.array([0, 1, 1]), ("x", "y"), ids=np.array(["7@fog:1", "7@fog:2", "8@fog:1"]))
    >>> row_sources(data, "id:@").tolist(), row_sources(data, "group")
    (['7', '7', '8'], None)
    """
    if cluster == "row":
        return None
    if cluster == "group":
        return data.groups
    return np.char.partition(data.ids, cluster.removeprefix("id:"))[:, 0]


def _facts(predictions: Predictions, clusters: NDArray[Any] | None) -> dict[str, Any]:
    """What is known of a set besides metrics: its rows, their sources, and the share of its most frequent class."""
    rows = len(predictions)
    return {
        "n": rows,
        "sources": rows if clusters is None else len(np.unique(clusters)),
        "chance": float(np.bincount(predictions.labels).max() / rows),
    }


def _figures(bootstrap: SplitsBootstrap) -> dict[str, Any]:
    """The values of all metrics as the content of ``figures.json``; JSON has no infinity, so an infinite value is null."""
    figures: dict[str, Any] = {"temperature": bootstrap.temperature, "sets": {}}
    for split, states in bootstrap.values.items():
        figures["sets"][split] = {}
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
    """Features of the first examples of a few classes, and what the last layer multiplies them by for each class."""
    assert data.labels is not None
    rows = np.concatenate([np.flatnonzero(data.labels == data.classes.index(name))[:SHOWN] for name in classes])
    features = stage.outputs(data.select(rows), ("features", "logits"))["features"]
    names = np.array([data.classes[i] for i in data.labels[rows]])
    weights = stage.classifier.network.output.weight.detach().float().cpu().numpy()  # (K, D)
    weight_classes = np.array(stage.classifier.classes)
    np.savez_compressed(
        path, features=features.astype(np.float32), classes=names, weights=weights, weight_classes=weight_classes
    )


def _save_map(folder: Path, path: Path) -> None:
    from distilcal.dynamics import load_dynamics

    dynamics = load_dynamics(folder)
    columns = {name: getattr(dynamics, name) for name in ("confidence", "variability", "correctness")}
    np.savez_compressed(path, epochs=dynamics.epochs.max(), **columns)
