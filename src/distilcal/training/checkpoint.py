"""The state of a training run on disk: safetensors files, written to a temporary name and renamed, no pickle.

A file contains the key of the run it belongs to; another run's file, or a damaged one, is not used.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from distilcal.dynamics import Recorder
from distilcal.errors import InputError
from distilcal.io.folders import DamagedWarning

LAST, BEST = "last.safetensors", "best.safetensors"


@dataclass
class Checkpoint:
    """The state after the last epoch and the weights of the best one: in a folder, or in memory without one.

    Parameters
    ----------
    folder : Path or None
        Where the files are; None keeps the best weights in memory, and nothing can be resumed.
    key : str
        Hash of the run; files with another key are ignored with a warning.
    network : nn.Module
        The network whose weights are saved and restored.
    """

    folder: Path | None
    key: str
    network: nn.Module

    def __post_init__(self) -> None:
        self.best_weights: dict[str, Tensor] = {}
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def resume(
        self, optimizer: torch.optim.Optimizer, losses: Sequence[nn.Module], recorder: Recorder | None = None
    ) -> list[dict[str, Any]]:
        """Restore the state after the last saved epoch and return the history up to it; empty if there is none."""
        if self.folder is None:
            return []
        last = load_tensors(self.folder / LAST, self.key)
        best = load_tensors(self.folder / BEST, self.key)
        if last is None or best is None:
            return []
        tensors, facts = last
        restore_training_state(tensors, self.network, optimizer, losses, recorder)
        history: list[dict[str, Any]] = facts["history"]
        return history

    def save(
        self,
        history: list[dict[str, Any]],
        optimizer: torch.optim.Optimizer,
        losses: Sequence[nn.Module],
        recorder: Recorder | None = None,
        *,
        is_best: bool,
    ) -> None:
        """Save the state after an epoch, and the weights as the best ones if they are."""
        if self.folder is None:
            if is_best:
                weights = self.network.state_dict()
                self.best_weights = {name: value.detach().cpu().clone() for name, value in weights.items()}
            return
        # The best weights first: if the process ends between the two files, this epoch is trained again.
        if is_best:
            save_tensors(self.folder / BEST, self.network.state_dict(), {"key": self.key, "epoch": len(history) - 1})
        state = training_state(self.network, optimizer, losses, recorder)
        save_tensors(self.folder / LAST, state, {"key": self.key, "history": history})

    def load_best(self, epoch: int) -> None:
        """Give the network the weights of the best epoch."""
        if self.folder is None:
            self.network.load_state_dict(self.best_weights)
            return
        saved = load_tensors(self.folder / BEST, self.key)
        if saved is None or saved[1]["epoch"] != epoch:
            raise InputError("the weights of the best epoch are missing", source=str(self.folder), remedy="run again")
        self.network.load_state_dict(saved[0])


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Save tensors and JSON facts in one file, which is complete or does not exist.

    Parameters
    ----------
    path : Path
        The file to write or replace.
    tensors : mapping of str to Tensor
        The tensors by name.
    facts : mapping of str to object
        Values that JSON can hold; `load_tensors` needs ``key`` among them.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        save_file(_without_shared_memory(tensors), temporary, {"facts": json.dumps(facts)})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except SafetensorError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(None, f"{path.name} could not be written ({error})") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load_tensors(path: Path, key: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Load what `save_tensors` wrote for this key.

    A damaged file or another run's causes a DamagedWarning.

    Parameters
    ----------
    path : Path
        The file.
    key : str
        The hash that the file's facts must have as ``key``.

    Returns
    -------
    tuple of dict and dict, or None
        The tensors by name and the facts; None if the file does not exist, is damaged or belongs to another run.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            if facts["key"] != key:
                raise ValueError("of another run")
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        warnings.warn(f"{path} is damaged or of another run: training starts from the beginning", DamagedWarning, stacklevel=2)
        return None


def training_state(
    network: nn.Module, optimizer: torch.optim.Optimizer, losses: Sequence[nn.Module], recorder: Recorder | None
) -> dict[str, Tensor]:
    """Return all tensors from which training resumes, by name.

    Parameters
    ----------
    network : Module
        The network in training.
    optimizer : Optimizer
        Its optimiser.
    losses : sequence of Module
        The losses that are modules.
    recorder : Recorder or None
        The recorder of training dynamics, if there is one.

    Returns
    -------
    dict of str to Tensor
        Names start with ``dynamics/``, ``network/``, ``loss/`` or ``optimizer/``.
    """
    state: dict[str, Tensor] = {}
    if recorder is not None:
        state |= {f"dynamics/{name}": torch.from_numpy(value) for name, value in recorder.state().items()}
    state |= {f"network/{name}": value for name, value in network.state_dict().items()}
    for i, loss in enumerate(losses):
        state |= {f"loss/{i}/{name}": value for name, value in loss.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if value is not None:
                state[f"optimizer/{index}/{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return state


def restore_training_state(
    state: Mapping[str, Tensor],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: Sequence[nn.Module],
    recorder: Recorder | None,
) -> None:
    """Restore network, optimiser, losses and recorder from what `training_state` returned.

    Parameters
    ----------
    state : mapping of str to Tensor
        The tensors by name.
    network : Module
        The network, changed in place, as are the others.
    optimizer : Optimizer
        Its optimiser, with the same parameters as the saved one.
    losses : sequence of Module
        The losses that are modules, in the same order.
    recorder : Recorder or None
        The recorder of training dynamics, if there is one.
    """
    if recorder is not None:
        recorder.restore({name: value.numpy() for name, value in _with_prefix(state, "dynamics/").items()})
    network.load_state_dict(_with_prefix(state, "network/"))
    for i, loss in enumerate(losses):
        loss.load_state_dict(_with_prefix(state, f"loss/{i}/"))
    by_parameter: dict[int, dict[str, Tensor]] = {}
    for name, value in _with_prefix(state, "optimizer/").items():
        index, _, key = name.partition("/")
        by_parameter.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": by_parameter, "param_groups": groups})


def _with_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _without_shared_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in memory of their own each, as the format requires; only those that share memory are copied."""
    storages: set[int] = set()
    apart = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        storage = value.untyped_storage()
        shared = storage.data_ptr() in storages or storage.nbytes() != value.nbytes
        storages.add(storage.data_ptr())
        apart[name] = value.clone() if shared else value
    return apart
