"""The state of a training run on disk: safetensors files with checksums, written to a temporary name and renamed, no pickle.

Two generations are kept, ``last.safetensors`` and ``previous.safetensors``. Each holds all that training resumes from: the
state after an epoch, and of the best epoch so far the weights and the logits on dev. A damaged one is not used, and neither is
one of another run.
"""

from __future__ import annotations

import hashlib
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
from distilcal.errors import StoreError
from distilcal.io.atomic import check_format, parse_json, system_errors
from distilcal.io.folders import DamagedWarning
from distilcal.io.parts import give_usual_mode

LAST, PREVIOUS = "last.safetensors", "previous.safetensors"
FORMAT = 2  # of these files; 1 had no checksums
NETWORK = "network/"  # before the names of the weights after the last epoch
BEST = "best/"  # before the names of the best epoch's weights, where that is not the last one
DEV_LOGITS = "dev_logits"  # of the best epoch


@dataclass
class Checkpoint:
    """The state after the last epoch and the weights of the best one: in a folder, or in memory without one.

    Parameters
    ----------
    folder : Path or None
        Where the files are; None saves nothing, and nothing can be resumed.
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
        self.best_dev_logits: Tensor | None = None

    def resume(
        self, optimizer: torch.optim.Optimizer, losses: Sequence[nn.Module], recorder: Recorder | None = None
    ) -> list[dict[str, Any]]:
        """Restore the state after the last saved epoch and return the history up to it; empty if there is none.

        If the last state is damaged, training resumes from the one before, with a DamagedWarning.
        """
        if self.folder is None:
            return []
        for name in (LAST, PREVIOUS):
            saved = self._load(self.folder / name)
            if saved is not None:
                tensors, facts = saved
                restore_training_state(tensors, self.network, optimizer, losses, recorder)
                best = _with_prefix(tensors, BEST) or _with_prefix(tensors, NETWORK)
                self.best_weights = {name: value.clone() for name, value in best.items()}  # not a map of the file
                self.best_dev_logits = tensors[DEV_LOGITS].clone() if DEV_LOGITS in tensors else None
                history: list[dict[str, Any]] = facts["history"]
                return history
        return []

    def _load(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """A saved state, or None. An unusable one is removed, so that it does not take the place of the one before."""
        try:
            return load_tensors(path, self.key)
        except StoreError as error:
            before = path.with_name(PREVIOUS)
            if path != before and before.exists():
                then = "training resumes from the checkpoint before it"
            else:
                then = "training starts from the beginning"
            warnings.warn(f"{path}: {error.problem}: {then}", DamagedWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None

    def save(
        self,
        history: list[dict[str, Any]],
        optimizer: torch.optim.Optimizer,
        losses: Sequence[nn.Module],
        recorder: Recorder | None = None,
        *,
        dev_logits: Tensor | None,
        is_best: bool,
        write: bool = True,
    ) -> None:
        """Keep the weights after an epoch and its logits on dev if it is the best one, and save the state.

        ``dev_logits`` is None if they were computed in reduced precision, in which the network is not used afterwards.
        With ``write=False`` no file is written: of several processes all keep the best weights, and one writes.
        """
        if is_best:
            weights = self.network.state_dict()
            self.best_weights = {name: value.detach().cpu().clone() for name, value in weights.items()}
            self.best_dev_logits = dev_logits
        if self.folder is None or not write:
            return
        state = training_state(self.network, optimizer, losses, recorder)
        if not is_best:
            state |= {f"{BEST}{name}": value for name, value in self.best_weights.items()}
        if self.best_dev_logits is not None:
            state[DEV_LOGITS] = self.best_dev_logits
        self.folder.mkdir(parents=True, exist_ok=True)  # not before: a training that fails in its first epoch leaves nothing
        last = self.folder / LAST
        new = save_aside(last, state, {"key": self.key, "history": history})
        if last.exists():
            os.replace(last, self.folder / PREVIOUS)
        os.replace(new, last)

    def load_best(self) -> None:
        """Give the network the weights of the best epoch."""
        self.network.load_state_dict(self.best_weights)


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
    os.replace(save_aside(path, tensors, facts), path)


def save_aside(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
    """Save tensors and JSON facts, with their checksum, in a temporary file beside ``path``, and return its name.

    Parameters
    ----------
    path : Path
        The file that the temporary one is to replace.
    tensors : mapping of str to Tensor
        The tensors by name.
    facts : mapping of str to object
        Values that JSON can hold.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    tensors = _without_shared_memory(tensors)
    text = json.dumps({"format": FORMAT, **facts})
    try:
        with system_errors(path):
            save_file(tensors, temporary, {"facts": text, "digest": _digest(tensors, text)})
        give_usual_mode(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def load_tensors(path: Path, key: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Load what `save_tensors` wrote for this key, and verify its checksum.

    Parameters
    ----------
    path : Path
        The file.
    key : str, optional
        The hash that the file's facts must have as ``key``; by default any.

    Returns
    -------
    tuple of dict and dict, or None
        The tensors by name and the facts; None if the file does not exist.

    Raises
    ------
    StoreError
        If the file is damaged, of an earlier version or of another run.
    NewerFormatError
        If it is of a newer version.
    OSError
        If it is there and cannot be read, as that of another user.
    """
    try:
        path.open("rb").close()  # safetensors does not tell a file that cannot be read from a damaged one
    except FileNotFoundError:
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, *_DAMAGE):
        raise _unusable(path, "damaged") from None
    text = metadata.get("facts", "")
    try:
        facts = parse_json(text)
    except ValueError:
        raise _unusable(path, "damaged") from None
    if isinstance(facts, dict) and "digest" not in metadata and "format" not in facts:
        raise _unusable(path, "of an earlier version")
    if metadata.get("digest") != _digest(tensors, text):
        raise _unusable(path, "damaged")
    check_format(facts.get("format"), FORMAT, str(path))
    if key is not None and facts.get("key") != key:
        raise _unusable(path, "of another run")
    return tensors, facts


# What safetensors and torch raise beside their own errors for a header that a damaged byte has changed.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError)


def _unusable(path: Path, what: str) -> StoreError:
    return StoreError(f"this checkpoint is {what}", source=str(path), remedy="remove it")


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """A hash of the facts and of names, types, shapes and content of all tensors."""
    result = hashlib.blake2b(text.encode(), digest_size=16)
    for name, value in sorted(tensors.items()):
        result.update(f"\0{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        result.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return result.hexdigest()


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
    state |= {f"{NETWORK}{name}": value for name, value in network.state_dict().items()}
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
    network.load_state_dict(_with_prefix(state, NETWORK))
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
