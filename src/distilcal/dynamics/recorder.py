"""The recorder: running statistics of every example, usable in anybody's loop.

    recorder = Recorder(ids, labels, classes)
    for epoch in range(epochs):
        for rows, inputs, targets in batches:          # rows: positions in ids
            logits = model(inputs)                     # train mode, before the step
            recorder.record(rows, logits)
            ...
        recorder.end_epoch()
    dynamics = recorder.dynamics()

It keeps a few numbers and the last logits of each example. Under torch.distributed each process records its own rows and
``end_epoch`` gathers them, so that every process has the whole table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from distilcal.dynamics.table import Dynamics
from distilcal.errors import InputError
from distilcal.predictions import find_rows

PENDING_ROWS = 8192  # rows that are added to the statistics at once: one large update is faster than many small ones


@dataclass(frozen=True, eq=False)
class _Observations:
    """The model's logits on some examples, arrays or tensors."""

    rows: Any  # (n,) positions in ids
    logits: Any  # (n, K)
    saliency: Any  # (n, width), or None

    def select(self, index: NDArray[np.int64]) -> _Observations:
        saliency = None if self.saliency is None else self.saliency[index]
        return _Observations(self.rows[index], self.logits[index], saliency)


class Recorder:
    """Records statistics of every training example while a model trains, in any loop.

    Parameters
    ----------
    ids : array of str, shape (N,)
        Ids of the training examples, each once.
    labels : array of int, shape (N,)
        Class indices.
    classes : sequence of str
        Class names.
    width : int, default 0
        Width of the saliency of features, where it is recorded too.
    dtype : dtype, default float32
        Precision of the statistics.
    folder : Path, optional
        Keeps the statistics in memory-mapped files there, for sets too large for memory.
    own_rows : bool, default True
        Whether under torch.distributed each process records its own rows, which are then gathered; False: each records
        all rows.
    once : bool, default False
        Whether an example counts once an epoch, however often it comes; where rows are gathered that is always so, since
        samplers repeat some.

    Examples
    --------
    >>> recorder = Recorder(["a", "b"], [0, 1], ["no", "yes"])
    >>> recorder.record([0, 1], np.array([[2.0, 0.0], [1.0, 0.0]]))
    >>> recorder.end_epoch()
    >>> recorder.dynamics().correctness.tolist()
    [1, 0]
    """

    def __init__(
        self,
        ids: ArrayLike,
        labels: ArrayLike,
        classes: Sequence[str],
        *,
        width: int = 0,
        dtype: DTypeLike = np.float32,
        folder: Path | None = None,
        own_rows: bool = True,
        once: bool = False,
    ):
        self.ids = np.asarray(ids).astype(str)
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes = tuple(str(c) for c in classes)
        self.width = width
        self.own_rows = own_rows
        self.once = once
        count = len(self.ids)
        if self.labels.shape != (count,):
            raise InputError(f"there are {count} ids and {self.labels.size} labels", remedy="pass one class index per id")
        if len(np.unique(self.ids)) < count:
            raise InputError("two examples have the same id", remedy="give each an id of its own")
        if count and (self.labels.min() < 0 or self.labels.max() >= len(self.classes)):
            raise InputError(f"labels must be from 0 to {len(self.classes) - 1}, the number of classes less one")
        columns: dict[str, tuple[tuple[int, ...], Any]] = {  # shape and dtype
            "epochs": ((count,), np.int32),
            "mean": ((count,), dtype),
            "squares": ((count,), dtype),  # Σ (p − mean)², kept as Welford does: no cancellation
            "margin": ((count,), dtype),
            "right": ((count,), np.int32),
            "forgotten": ((count,), np.int32),
            "was_right": ((count,), np.uint8),
            "seen": ((count,), np.uint8),  # in this epoch
            "logits": ((count, len(self.classes)), dtype),
        }
        if width:
            columns["feature_saliency"] = ((count, width), np.float32)
        self.arrays = {name: _zeros(folder, name, shape, kind) for name, (shape, kind) in columns.items()}
        self._pending: list[_Observations] = []
        self._pending_rows = 0
        self._order: NDArray[np.int64] | None = None  # of the ids, sorted when they are first looked up

    def rows(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Return the positions of examples by id.

        Parameters
        ----------
        ids : array of str, shape (n,)
            Ids of training examples, in any order.

        Returns
        -------
        array of int, shape (n,)

        Raises
        ------
        InputError
            If an id is unknown; the message names the first.
        """
        requested = np.asarray(ids).astype(str)
        if self._order is None:
            self._order = np.argsort(self.ids, kind="stable")
        rows, missing = find_rows(self.ids, requested, order=self._order)
        if len(missing):
            raise InputError(f"there is no example with id {str(missing[0])!r}", remedy="record training data")
        return rows

    def record(self, rows: Any, logits: Any, saliency: Any = None) -> None:
        """Record the model's logits on some examples.

        Parameters
        ----------
        rows : array or Tensor of int, shape (n,)
            Positions of the examples in ``ids``.
        logits : array or Tensor, shape (n, K)
            The model's logits in train mode, before the step; tensors may be on any device.
        saliency : array or Tensor, shape (n, width), optional
            Saliency of features; required if the recorder has a ``width``.
        """
        self._pending.append(_Observations(_detached(rows), _detached(logits), _detached(saliency)))
        self._pending_rows += len(rows)
        # In a group of processes all rows wait for the end of the epoch, when they are gathered.
        if self._pending_rows >= PENDING_ROWS and not self._gathers_rows:
            self._add_pending()

    def end_epoch(self) -> None:
        """End an epoch; under torch.distributed the rows of all processes are gathered, a repeated example once."""
        self._add_pending()
        self.arrays["seen"][...] = 0

    @property
    def _gathers_rows(self) -> bool:
        return self.own_rows and _process_count() > 1

    def _add_pending(self) -> None:
        """Add the pending observations to the statistics, after those of all processes were gathered."""
        observations = _concatenate([_to_numpy(pending) for pending in self._pending])
        self._pending, self._pending_rows = [], 0
        if self._gathers_rows:
            observations = _gather(observations)
        if observations is None:
            return
        self._check(observations)
        rows = observations.rows
        repeat = _count_earlier(rows)
        if self._gathers_rows or self.once:
            is_new = (repeat == 0) & (self.arrays["seen"][rows] == 0)
            observations = observations.select(np.flatnonzero(is_new))
            self.arrays["seen"][observations.rows] = 1
            self._add(observations)
        elif repeat.any():
            for number in range(int(repeat.max()) + 1):  # an example that comes twice is added twice, in order
                self._add(observations.select(np.flatnonzero(repeat == number)))
        else:
            self._add(observations)

    def _check(self, observations: _Observations) -> None:
        rows, logits, saliency = observations.rows, observations.logits, observations.saliency
        unknown = rows[(rows < 0) | (rows >= len(self.ids))]
        if len(unknown):
            raise InputError(f"there is no example {int(unknown[0])}", remedy=f"rows are from 0 to {len(self.ids) - 1}")
        if logits.shape != (len(rows), len(self.classes)):
            raise InputError(f"logits of shape {logits.shape} for {len(rows)} examples of {len(self.classes)} classes")
        if self.width and (saliency is None or saliency.shape != (len(rows), self.width)):
            shape = "none" if saliency is None else f"shape {saliency.shape}"
            raise InputError(
                f"expected a saliency of {self.width} numbers per example, got {shape}",
                remedy="pass saliency= to record, or build the Recorder without width",
            )

    def _add(self, observations: _Observations) -> None:
        """Update the running statistics of examples, each of which comes at most once."""
        arrays, rows = self.arrays, observations.rows
        logits = observations.logits.astype(arrays["logits"].dtype, copy=False)
        every_row = np.arange(len(rows))
        labels = self.labels[rows]
        label_logits = logits[every_row, labels]
        largest = logits.max(axis=1)
        probability = np.exp(label_logits - largest) / np.exp(logits - largest[:, None]).sum(axis=1)
        other_logits = logits.copy()
        other_logits[every_row, labels] = -np.inf
        margin = label_logits - other_logits.max(axis=1)
        right = logits.argmax(axis=1) == labels

        count = arrays["epochs"][rows] + 1
        old_mean = arrays["mean"][rows]
        new_mean = old_mean + (probability - old_mean) / count
        arrays["epochs"][rows] = count
        arrays["mean"][rows] = new_mean
        arrays["squares"][rows] += (probability - old_mean) * (probability - new_mean)
        arrays["margin"][rows] += (margin - arrays["margin"][rows]) / count
        arrays["right"][rows] += right
        arrays["forgotten"][rows] += (arrays["was_right"][rows] == 1) & ~right
        arrays["was_right"][rows] = right
        arrays["logits"][rows] = logits
        if self.width:
            arrays["feature_saliency"][rows] = observations.saliency

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all arrays, to be saved and passed to `restore`; under torch.distributed all processes call it together."""
        self._add_pending()
        return dict(self.arrays)

    def restore(self, state: Mapping[str, ArrayLike]) -> None:
        """Restore a saved state, from which recording continues."""
        for name, array in self.arrays.items():
            saved = np.asarray(state[name])
            if saved.shape != array.shape:
                raise InputError(f"the saved {name} has shape {saved.shape}, not {array.shape}", remedy="record from the start")
            array[...] = saved

    def dynamics(self) -> Dynamics:
        """Return the table of what was recorded so far."""
        self._add_pending()
        arrays = self.arrays
        epochs = arrays["epochs"]
        unseen = epochs == 0
        variance = arrays["squares"] / np.maximum(epochs, 1).astype(arrays["mean"].dtype)
        return Dynamics(
            ids=self.ids,
            labels=self.labels,
            classes=self.classes,
            epochs=epochs,
            confidence=np.where(unseen, np.nan, arrays["mean"]),
            variability=np.where(unseen, np.nan, np.sqrt(variance)),
            correctness=arrays["right"],
            forgotten=arrays["forgotten"],
            aum=np.where(unseen, np.nan, arrays["margin"]),
            logits=arrays["logits"],
            feature_saliency=arrays.get("feature_saliency"),
        )


def _zeros(folder: Path | None, name: str, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    if folder is None:
        return np.zeros(shape, dtype=kind)
    folder.mkdir(parents=True, exist_ok=True)
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=shape)  # starts as zeros


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def _to_numpy(observations: _Observations) -> _Observations:
    """Copy tensors to the CPU; done late, since each copy waits for the GPU."""
    saliency = observations.saliency
    return _Observations(
        rows=_array(observations.rows).astype(np.int64, copy=False),
        logits=_array(observations.logits),
        saliency=None if saliency is None else _array(saliency),
    )


def _array(value: Any) -> NDArray[Any]:
    if not hasattr(value, "detach"):
        return np.asarray(value)
    if value.is_floating_point() and value.element_size() < 4:  # NumPy has no bfloat16
        value = value.float()
    return np.asarray(value.cpu().numpy())


def _concatenate(parts: Sequence[_Observations]) -> _Observations | None:
    if not parts:
        return None
    saliency = [part.saliency for part in parts if part.saliency is not None]
    return _Observations(
        rows=np.concatenate([part.rows for part in parts]),
        logits=np.concatenate([part.logits for part in parts]),
        saliency=np.concatenate(saliency) if saliency else None,
    )


def _count_earlier(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each entry how many equal ones are before it."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    positions = np.arange(len(rows))
    is_first = np.r_[True, ordered[1:] != ordered[:-1]]
    start = np.maximum.accumulate(np.where(is_first, positions, 0))
    earlier = np.empty(len(rows), dtype=np.int64)
    earlier[order] = positions - start
    return earlier


def _process_count() -> int:
    """Return how many processes train together under torch.distributed; 1 without it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return int(torch.distributed.get_world_size())


def _gather(observations: _Observations | None) -> _Observations | None:
    """Return the observations of all processes, in the order of their ranks."""
    torch = sys.modules["torch"]
    parts: list[Any] = [None] * _process_count()
    torch.distributed.all_gather_object(parts, observations)
    return _concatenate([part for part in parts if part is not None])
