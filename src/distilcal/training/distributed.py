"""Several processes that train one network: who does what, and how a batch becomes whole again.

A step's batch is cut between the processes; what the student says is then gathered, in order, on each of them, so every loss
sees the whole batch: 2 × 16 trains the weights of 1 × 32, whatever the loss. Only batch norms and dropout work on the part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distilcal.errors import InputError
from distilcal.views import SEEN, View

GATHERED = {"logits", "features"}  # with gradient


def build_accelerator(precision: str, *, head_unused: bool = False) -> Any:
    """The only Accelerator; its number of processes must be the launcher's. ``head_unused``: no loss looks at the logits."""
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=False)  # another fit in this process may want another precision
    together = DistributedDataParallelKwargs(find_unused_parameters=head_unused)
    accelerator = Accelerator(mixed_precision=_mixed(precision), kwargs_handlers=[together])
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != launched:
        raise InputError(
            f"{launched} processes were started but {accelerator.num_processes} train together",
            remedy="start them with accelerate launch or torchrun; without a GPU set ACCELERATE_USE_CPU=true",
        )
    return accelerator


def _mixed(precision: str) -> str:
    """What Accelerate calls a precision; "auto" is bfloat16 on a GPU that has it, and float32 elsewhere."""
    if precision == "auto":
        return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "no"
    if precision == "float16" and not torch.cuda.is_available():
        raise InputError("float16 needs a GPU", remedy="leave precision at auto")
    return {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[precision]


def own_part(rows: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """This process's rows of a batch; a short last part repeats its last row, which ``whole`` drops again."""
    size = -(-len(rows) // world)
    return rows[np.minimum(np.arange(rank * size, (rank + 1) * size), len(rows) - 1)]


def whole(view: View, count: int, accelerator: Any) -> View:
    """The view of the whole batch of ``count`` rows, the same on each process."""
    made = {}
    for name in (*SEEN, "keep"):
        value = getattr(view, name)
        if name == "keep" and value is not None:
            value = accelerator.gather(value.to(torch.uint8))[:count].bool()
        elif value is not None:
            value = _gather(value, accelerator) if name in GATHERED else accelerator.gather(value.contiguous())
            value = value[:count]
        made[name] = value
    return View(**made)


def _gather(value: Tensor, accelerator: Any) -> Tensor:
    gathered: Tensor = _Gather.apply(value, accelerator)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """Rows of all processes in order. Each process has the whole loss, so its part of the gradient counts once for each."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, accelerator: Any) -> Tensor:
        ctx.rank, ctx.world, ctx.rows = accelerator.process_index, accelerator.num_processes, len(value)
        gathered: Tensor = accelerator.gather(value.contiguous())
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        start = ctx.rank * ctx.rows
        return gradient[start : start + ctx.rows] * ctx.world, None


def gathered_rows(values: NDArray[Any], rows: NDArray[np.int64], count: int, accelerator: Any) -> NDArray[Any]:
    """Rows that the processes computed apart, by their place; a row that two computed is taken once."""
    if accelerator.num_processes == 1:
        return values
    from accelerate.utils import gather_object

    whole_array = np.empty((count, *values.shape[1:]), dtype=values.dtype)
    for place, part in gather_object([(rows, values)]):
        whole_array[place] = part
    return whole_array


class ProcessGroup:
    """The processes of a run outside the loop: the first one writes, the others wait for it and read."""

    def __init__(self) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.accelerator = build_accelerator("float32") if self.world > 1 else None
        self.is_main_process = self.accelerator is None or bool(self.accelerator.is_main_process)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """The first process does the work and leaves it in the store; the others then find it there."""
        if self.accelerator is None:
            yield
        else:
            with self.accelerator.main_process_first():
                yield

    def wait_for_everyone(self) -> None:
        """Go on when all are here."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()
