"""Following a run in TensorBoard, Weights & Biases or MLflow, through Accelerate's trackers.

`track_run` logs the recipe, every epoch of every stage, and at the end the metrics of every split. What has been logged is kept
in ``track/`` in the folder of the run: a run that is started again goes on with the same curves, and logs nothing
twice. A tracker that fails is a warning; the run goes on.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distilcal.config.loading import as_table, to_toml
from distilcal.config.schema import Recipe
from distilcal.errors import InputError, MissingDependencyError
from distilcal.io.atomic import read_json, read_object, write_json
from distilcal.pipeline.logs import main_process_logger

TRACKERS = ("tensorboard", "wandb", "mlflow")
FOLDER = "track"  # in the folder of a run
PROJECT = "distilcal"  # of Weights & Biases, and the experiment of MLflow

OnEpoch = Callable[[str, dict[str, Any]], None]  # name of a stage, entry of its history

logger = main_process_logger(__name__)


def check_tracker(name: str) -> None:
    """Raise an error if a tracker is unknown or its package is not installed.

    Parameters
    ----------
    name : {"tensorboard", "wandb", "mlflow"}
        The tracker.

    Raises
    ------
    InputError
        If there is no such tracker.
    MissingDependencyError
        If its package is missing.

    Examples
    --------
    >>> check_tracker("tensorbord")
    Traceback (most recent call last):
    distilcal.errors.InputError: there is no tracker 'tensorbord'; did you mean tensorboard
    """
    if name not in TRACKERS:
        near = get_close_matches(name, TRACKERS, n=1)
        remedy = f"did you mean {near[0]}" if near else f"give one of {', '.join(TRACKERS)}"
        raise InputError(f"there is no tracker {name!r}", remedy=remedy)
    missing = [package for package in _packages(name) if find_spec(package) is None]
    if missing:
        raise MissingDependencyError(f"tracking with {name} needs the package {missing[0]}", remedy=f"pip install {name}")


@contextmanager
def track_run(name: str, recipe: Recipe, folder: Path) -> Iterator[OnEpoch | None]:
    """Follow a run: pass the callback that this gives as ``on_epoch`` to ``run_recipe``.

    When the block ends without an error, the epochs of stages that came from the store and the metrics of every split are
    logged from the results in the folder.

    Parameters
    ----------
    name : {"tensorboard", "wandb", "mlflow", ""}
        The tracker; empty: none. Files go to ``track/`` in the folder of the run; nothing is sent anywhere unless the tracker's
        own variables ask for it (``WANDB_MODE=online``, ``MLFLOW_TRACKING_URI``).
    recipe : Recipe
        What is run; its settings are logged.
    folder : Path
        The folder of the run.

    Yields
    ------
    callable or None
        Called with the name of a stage and an entry of its history after every epoch.

    Raises
    ------
    InputError
        If there is no such tracker.
    MissingDependencyError
        If its package is missing.

    Examples
    --------
    >>> with track_run("tensorboard", recipe, folder) as on_epoch:  # doctest: +SKIP
    ...     run_recipe(recipe, folder, store, on_epoch=on_epoch)
    """
    if not name:
        yield None
        return
    check_tracker(name)
    tracker = RunTracker(name, recipe, folder)
    try:
        yield tracker.on_epoch
        if os.environ.get("RANK", "0") == "0":
            tracker.log_results()
    finally:
        tracker.finish()


class RunTracker:
    """Logs a run to a tracker, which starts with the first values; `track_run` uses one.

    Parameters
    ----------
    name : {"tensorboard", "wandb", "mlflow"}
        The tracker.
    recipe : Recipe
        What is run.
    folder : Path
        The folder of the run.
    """

    def __init__(self, name: str, recipe: Recipe, folder: Path):
        self.name = name
        self.recipe = recipe
        self.folder = folder
        self._key = hashlib.blake2b(to_toml(recipe).encode(), digest_size=4).hexdigest()
        self._state_path = folder / FOLDER / f"{name}-{self._key}.json"
        self._state: dict[str, Any] = {"id": None, "epochs": {}, "results": False}
        if self._state_path.exists():
            self._state = read_object(self._state_path, tuple(self._state))
        self._tracker: Any = None
        self._failed = False
        self._own_mlflow_store = False

    def on_epoch(self, stage: str, entry: Mapping[str, Any]) -> None:
        """Log losses, learning rate and dev metrics after an epoch, unless an earlier call did.

        Parameters
        ----------
        stage : str
            Name of the stage.
        entry : mapping
            The entry of its history: epoch, losses, lr, dev, seconds.
        """
        epoch = entry["epoch"] + 1
        if epoch <= self._state["epochs"].get(stage, 0):
            return
        losses = {f"{stage}/loss/{name}": value for name, value in entry["losses"].items()}
        dev = {f"{stage}/dev/{name}": value for name, value in entry["dev"].items()}
        values = {**losses, **dev, f"{stage}/lr": entry["lr"], f"{stage}/seconds": entry["seconds"]}
        if self._log(stage, values, epoch):
            self._state["epochs"][stage] = epoch
            write_json(self._state_path, self._state)

    def log_results(self) -> None:
        """Log what the folder of the finished run holds and was not logged yet: epochs, and the metrics of every split."""
        if self._state["results"]:
            return
        stages = read_json(self.folder / "metrics.json")["stages"]
        for stage, facts in stages.items():
            history = read_json(self.folder / stage / "history.json")
            for entry in history:
                self.on_epoch(stage, entry)
            values = {
                f"{stage}/{split}/{state}/{name}": metric["value"]
                for split, states in facts["sets"].items()
                for state in ("given", "calibrated")
                for name, metric in (states[state] or {}).items()
                if metric["value"] is not None
            }
            self._log(stage, values, len(history))
        self._state["results"] = not self._failed
        write_json(self._state_path, self._state)

    def finish(self) -> None:
        """Close the tracker."""
        if self._tracker is not None:
            with self._going_on():
                self._tracker.finish()
        self._tracker = None
        if self._own_mlflow_store:
            import_module("mlflow").set_tracking_uri(None)

    def _log(self, stage: str, values: Mapping[str, float], epoch: int) -> bool:
        """Log values after an epoch of a stage; return whether that worked."""
        if self._failed:
            return False
        with self._going_on():
            if self._tracker is None:
                self._start()
            if self.name == "wandb":  # its steps may not start again with every stage
                self._tracker.log({**values, f"{stage}/epoch": epoch})
            else:
                self._tracker.log(values, step=epoch)
        return not self._failed

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Make an error of the tracker a warning: a server that is away must not end the training."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the trackers' own
                yield
        except Exception as error:  # whatever a tracker and its server may raise
            self._failed = True
            logger.warning("tracking with %s stopped: %s", self.name, " ".join(str(error).split())[:300])

    def _start(self) -> None:
        """Start the tracker, the same run as before if there was one, and log the settings if there was none."""
        (self.folder / FOLDER).mkdir(parents=True, exist_ok=True)
        is_new = not self._state_path.exists()
        start = {"tensorboard": self._start_tensorboard, "wandb": self._start_wandb, "mlflow": self._start_mlflow}[self.name]
        self._tracker = start()
        if is_new:
            self._tracker.store_init_configuration(flat_settings(self.recipe))
            write_json(self._state_path, self._state)

    def _start_tensorboard(self) -> Any:
        from accelerate.tracking import TensorBoardTracker

        tracker = TensorBoardTracker(self._key, logging_dir=self.folder / FOLDER / "tensorboard")
        tracker.start()
        return tracker

    def _start_wandb(self) -> Any:
        from accelerate.tracking import WandBTracker

        self._state["id"] = self._state["id"] or secrets.token_hex(8)
        tracker = WandBTracker(
            PROJECT,
            name=self.recipe.name,
            id=self._state["id"],
            resume="allow",
            dir=str(self.folder / FOLDER),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )
        tracker.start()
        for stage in self.recipe.stages:
            tracker.tracker.define_metric(f"{stage}/*", step_metric=f"{stage}/epoch")
        return tracker

    def _start_mlflow(self) -> Any:
        from accelerate.tracking import MLflowTracker

        mlflow = import_module("mlflow")
        local = self.folder.resolve() / FOLDER
        artifacts = None
        self._own_mlflow_store = not mlflow.is_tracking_uri_set()
        if self._own_mlflow_store:
            mlflow.set_tracking_uri(f"sqlite:///{local / 'mlflow.db'}")
            artifacts = str(local / "mlflow")
        tracker = MLflowTracker(PROJECT, logging_dir=artifacts, run_id=self._state["id"], run_name=self.recipe.name)
        tracker.start()
        self._state["id"] = tracker.tracker.info.run_id
        return tracker


def flat_settings(recipe: Recipe) -> dict[str, bool | int | float | str]:
    """Return the settings of a recipe by their paths, as trackers want them.

    Parameters
    ----------
    recipe : Recipe
        The recipe.

    Returns
    -------
    dict
        For example ``stages.student.train.lr``; lists are text.
    """
    flat: dict[str, bool | int | float | str] = {}

    def collect(path: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                collect(f"{path}.{key}" if path else key, inner)
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                collect(f"{path}.{number}", item)
        elif isinstance(value, bool | int | float | str):
            flat[path] = value
        else:
            flat[path] = ", ".join(map(str, value))

    collect("", as_table(recipe))
    return flat


def _packages(name: str) -> tuple[str, ...]:
    """The packages that a tracker needs; without a server of its own MLflow keeps its runs in SQLite."""
    if name == "mlflow" and "MLFLOW_TRACKING_URI" not in os.environ:
        return ("mlflow", "sqlalchemy")
    return (name,)
