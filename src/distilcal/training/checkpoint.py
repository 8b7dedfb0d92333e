"""Where a run is, on disk: one safetensors file per state, written aside and renamed, no pickle.

A file carries the key of the run it belongs to; another run's file, or a damaged one, is not used.
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


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Tensors and facts in one file that is whole or not there."""
    aside = path.with_name(f".{path.name}.part")
    try:
        save_file(_apart(tensors), aside, {"facts": json.dumps(facts)})
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except SafetensorError as error:
        aside.unlink(missing_ok=True)
        raise OSError(None, f"{path.name} could not be written ({error})") from None
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def load_tensors(path: Path, key: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What ``save_tensors`` wrote for this key, or None."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            if facts["key"] != key:
                raise ValueError("of another run")
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        warnings.warn(f"{path} is damaged or of another run: training starts anew", DamagedWarning, stacklevel=2)
        return None


def training_state(
    network: nn.Module, optimizer: torch.optim.Optimizer, losses: Sequence[nn.Module], recorder: Recorder | None
) -> dict[str, Tensor]:
    """All tensors that training goes on from, by name."""
    state = {f"dynamics/{name}": torch.from_numpy(value) for name, value in recorder.state().items()} if recorder else {}
    state |= {f"network/{name}": value for name, value in network.state_dict().items()}
    for i, loss in enumerate(losses):
        state |= {f"loss/{i}/{name}": value for name, value in loss.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        state |= {f"optimizer/{index}/{name}": _tensor(value) for name, value in values.items() if value is not None}
    return state


def restore(
    state: Mapping[str, Tensor],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: Sequence[nn.Module],
    recorder: Recorder | None,
) -> None:
    """Put network, optimiser, losses and recorder back to where ``training_state`` found them."""
    if recorder is not None:
        recorder.restore({name: value.numpy() for name, value in _under(state, "dynamics/").items()})
    network.load_state_dict(_under(state, "network/"))
    for i, loss in enumerate(losses):
        loss.load_state_dict(_under(state, f"loss/{i}/"))
    kept: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(state, "optimizer/").items():
        index, _, key = name.partition("/")
        kept.setdefault(int(index), {})[key] = value
    whole = optimizer.state_dict()
    optimizer.load_state_dict({"state": kept, "param_groups": whole["param_groups"]})


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in memory of their own each, as the format wants it; only those that share are copied."""
    taken: set[int] = set()
    made = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        made[name] = value.clone() if place in taken or value.untyped_storage().nbytes() != value.nbytes else value
        taken.add(place)
    return made


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value)


@dataclass
class States:
    """The state after the last epoch and the weights of the best one: on disk, or in memory without a folder."""

    folder: Path | None
    key: str
    network: nn.Module

    def __post_init__(self) -> None:
        self.best: dict[str, Tensor] = {}
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def resume(
        self, optimizer: torch.optim.Optimizer, losses: Sequence[nn.Module], recorder: Recorder | None = None
    ) -> list[dict[str, Any]]:
        """Go back to the last saved epoch; the history up to it."""
        if self.folder is None:
            return []
        last, best = (load_tensors(self.folder / name, self.key) for name in (LAST, BEST))
        if last is None or best is None:
            return []
        restore(last[0], self.network, optimizer, losses, recorder)
        history: list[dict[str, Any]] = last[1]["history"]
        return history

    def save(
        self,
        history: list[dict[str, Any]],
        optimizer: torch.optim.Optimizer,
        losses: Sequence[nn.Module],
        recorder: Recorder | None = None,
        *,
        best: bool,
    ) -> None:
        if self.folder is None:
            self.best = {k: v.detach().cpu().clone() for k, v in self.network.state_dict().items()} if best else self.best
            return
        # The best weights first: if the process ends between the two files, this epoch is done again.
        if best:
            save_tensors(self.folder / BEST, self.network.state_dict(), {"key": self.key, "epoch": len(history) - 1})
        state = training_state(self.network, optimizer, losses, recorder)
        save_tensors(self.folder / LAST, state, {"key": self.key, "history": history})

    def take_best(self, epoch: int) -> None:
        """Give the network the weights of the best epoch."""
        found = (self.best, {"epoch": epoch}) if self.folder is None else load_tensors(self.folder / BEST, self.key)
        if found is None or found[1]["epoch"] != epoch:
            raise InputError("the weights of the best epoch are gone", source=str(self.folder), remedy="run again")
        self.network.load_state_dict(found[0])
