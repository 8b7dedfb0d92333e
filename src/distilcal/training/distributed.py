"""Several processes that train one network: the accelerator, and how parts of a batch become the whole batch again.

A step's batch is divided between the processes; the student's outputs are then gathered, in order, on each of them, so every
loss sees the whole batch: 2 × 16 trains the weights of 1 × 32, whatever the loss. Only batch norms and dropout see the part.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distilcal.errors import InputError
from distilcal.views import VIEW_FIELDS, View

WITH_GRADIENT = {"logits", "features"}  # the fields of a view through which a loss reaches the network


def build_accelerator(precision: str, *, head_unused: bool = False) -> Any:
    """Build the accelerator of this process: the only place that does.

    Parameters
    ----------
    precision : str
        ``"auto"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``; auto is bfloat16 on a GPU that has it, else float32.
    head_unused : bool, default False
        Whether no loss reads the logits, so that the head gets no gradient.

    Returns
    -------
    accelerate.Accelerator

    Raises
    ------
    InputError
        If fewer processes train together than were started (on CPUs they can silently train apart), or if the precision needs
        a GPU.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=False)  # another fit in this process may use another precision
    data_parallel = DistributedDataParallelKwargs(find_unused_parameters=head_unused)
    accelerator = Accelerator(mixed_precision=_mixed_precision(precision), kwargs_handlers=[data_parallel])
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != launched:
        raise InputError(
            f"{launched} processes were started but {accelerator.num_processes} train together",
            remedy="start them with accelerate launch or torchrun; without a GPU set ACCELERATE_USE_CPU=true",
        )
    if launched > 1:
        atexit.unregister(close_connections)  # once, however many networks this process trains
        atexit.register(close_connections)
    return accelerator


def close_connections() -> None:
    """Close the connections to the other processes while Python is whole.

    Threads of gloo that still run when the interpreter is taken down abort the process now and then, after all its work:
    https://github.com/pytorch/pytorch/pull/179291.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _mixed_precision(precision: str) -> str:
    """Accelerate's name of a precision."""
    if precision == "auto":
        return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "no"
    if precision == "float16" and not torch.cuda.is_available():
        raise InputError("float16 needs a GPU", remedy="leave precision at auto")
    return {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[precision]


def own_part(rows: NDArray[np.int64], process: int, processes: int) -> NDArray[np.int64]:
    """Return the rows of a batch that one process works on.

    All parts have the same size: a short last one repeats the last row, which `gather_view` drops again.

    Parameters
    ----------
    rows : ndarray of int, shape (N,)
        The rows of the whole batch.
    process : int
        Number of the process, from 0.
    processes : int
        Number of all processes.

    Returns
    -------
    ndarray of int, shape (⌈N / processes⌉,)
        The rows of this process.

    Examples
    --------
    >>> own_part(np.array([3, 1, 4, 1, 5]), 1, 2).tolist()
    [1, 5, 5]
    """
    size = -(-len(rows) // processes)
    return rows[np.minimum(np.arange(process * size, (process + 1) * size), len(rows) - 1)]


def gather_view(view: View, count: int, accelerator: Any) -> View:
    """Return the view of the whole batch, the same on each process.

    Parameters
    ----------
    view : View
        The view of this process's part.
    count : int
        Number of rows of the whole batch; repeated rows beyond it are dropped.
    accelerator : Accelerator
        What connects the processes.

    Returns
    -------
    View
        The view of ``count`` rows, through whose outputs gradients flow back.
    """
    columns: dict[str, Any] = dict.fromkeys((*VIEW_FIELDS, "keep"))
    for name in columns:
        value = getattr(view, name)
        if value is None:
            continue
        if name == "keep":  # collectives have no booleans
            columns[name] = accelerator.gather(value.to(torch.uint8))[:count].bool()
        elif name in WITH_GRADIENT:
            columns[name] = _gather_with_gradient(value, accelerator)[:count]
        else:
            columns[name] = accelerator.gather(value.contiguous())[:count]
    return View(**columns)


def _gather_with_gradient(value: Tensor, accelerator: Any) -> Tensor:
    gathered: Tensor = _Gather.apply(value, accelerator)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """Rows of all processes in order.

    Each process computes the loss of the whole batch, and data parallelism then averages gradients over processes: so each
    gradient is multiplied by their number.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, accelerator: Any) -> Tensor:
        ctx.process, ctx.processes, ctx.rows = accelerator.process_index, accelerator.num_processes, len(value)
        gathered: Tensor = accelerator.gather(value.contiguous())
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        start = ctx.process * ctx.rows
        return gradient[start : start + ctx.rows] * ctx.processes, None


def gather_rows(values: NDArray[Any], rows: NDArray[np.int64], count: int, accelerator: Any) -> NDArray[Any]:
    """Gather rows that the processes computed apart into one array; a row that two computed is used once.

    Parameters
    ----------
    values : array, shape (n, ...)
        What this process computed.
    rows : array of int, shape (n,)
        Where its rows stand in the whole.
    count : int
        Rows of the whole.
    accelerator : accelerate.Accelerator

    Returns
    -------
    array, shape (count, ...)
    """
    if accelerator.num_processes == 1:
        return values
    from accelerate.utils import gather_object

    gathered = np.empty((count, *values.shape[1:]), dtype=values.dtype)
    for part_rows, part in gather_object([(rows, values)]):
        gathered[part_rows] = part
    return gathered


def share_buffers(network: nn.Module, accelerator: Any) -> None:
    """Give all processes the buffers of the main one, whose network is saved: batch norms have seen another part on each.

    Parameters
    ----------
    network : Module
        The network, changed in place.
    accelerator : accelerate.Accelerator
    """
    if accelerator.num_processes == 1:
        return
    from accelerate.utils import broadcast

    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.copy_(broadcast(buffer.clone()))


class ProcessGroup:
    """The processes of a run outside the training loop, in Accelerate's words; works without a launcher too.

    Attributes
    ----------
    is_main_process : bool
        Whether this process writes; the others wait for it and read.

    Examples
    --------
    >>> processes = ProcessGroup()
    >>> processes.is_main_process
    True
    """

    def __init__(self) -> None:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        self.accelerator = build_accelerator("float32") if processes > 1 else None
        self.is_main_process = self.accelerator is None or bool(self.accelerator.is_main_process)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the main process do the work and save it in the store; the others then load it from there."""
        if self.accelerator is None:
            yield
        else:
            with self.accelerator.main_process_first():
                yield

    def wait_for_everyone(self) -> None:
        """Wait until all processes have come to this line."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()
