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
``end_epoch`` brings them together, so that every process has the whole table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from distilcal.dynamics.table import Dynamics
from distilcal.errors import InputError
from distilcal.predictions import find_rows

PENDING_ROWS = 8192  # rows that wait to be added up: one large sum costs less than many small ones


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
        self.ids, self.labels = np.asarray(ids).astype(str), np.asarray(labels, dtype=np.int64)
        self.classes, self.width = tuple(str(c) for c in classes), width
        self.own_rows, self.once = own_rows, once
        count = len(self.ids)
        if self.labels.shape != (count,):
            raise InputError(f"there are {count} ids and {len(self.labels)} labels")
        if len(np.unique(self.ids)) < count:
            raise InputError("two examples have the same id", remedy="give each an id of its own")
        if count and (self.labels.min() < 0 or self.labels.max() >= len(self.classes)):
            raise InputError(f"labels must be from 0 to {len(self.classes) - 1}, the number of classes less one")
        kinds: dict[str, tuple[tuple[int, ...], Any]] = {
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
            kinds["feature_saliency"] = ((count, width), np.float32)
        self.arrays = {name: _zeros(folder, name, shape, kind) for name, (shape, kind) in kinds.items()}
        self._pending: list[tuple[Any, ...]] = []
        self._pending_rows = 0
        self._order: NDArray[np.int64] | None = None

    def rows(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Return the positions of examples by id; an unknown id is an error that names it."""
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
            Saliency of features, if ``width`` was given.
        """
        given = tuple(v.detach() if hasattr(v, "detach") else v for v in (rows, logits, saliency))
        self._pending.append(given)
        self._pending_rows += len(given[0])
        # In a group of processes all rows wait for the end of the epoch, when they are brought together.
        if self._pending_rows >= PENDING_ROWS and not self._together:
            self._add_pending()

    def end_epoch(self) -> None:
        """End an epoch; under torch.distributed the rows of all processes are gathered, a repeated example once."""
        self._add_pending()
        self.arrays["seen"][...] = 0

    @property
    def _together(self) -> bool:
        return self.own_rows and _processes() > 1

    def _add_pending(self) -> None:
        together = self._together
        if not self._pending and not together:
            return
        found: tuple[NDArray[Any] | None, ...] = (None, None, None)
        if self._pending:
            columns = zip(*self._pending, strict=True)
            found = tuple(None if c[0] is None else np.concatenate([_array(v) for v in c]) for c in columns)
        self._pending, self._pending_rows = [], 0
        if together:
            found = _from_all(found)
        rows, logits, saliency = found
        if rows is None or logits is None:
            return
        rows = rows.astype(np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self.ids)):
            raise InputError(f"there is no example {int(rows.max())}", remedy=f"rows are from 0 to {len(self.ids) - 1}")
        if logits.shape != (len(rows), len(self.classes)):
            raise InputError(f"logits of shape {logits.shape} for {len(rows)} examples of {len(self.classes)} classes")
        first, turn = _turns(rows)
        if together or self.once:
            keep = first[self.arrays["seen"][rows[first]] == 0]
            rows, logits, saliency = rows[keep], logits[keep], None if saliency is None else saliency[keep]
            turn = np.zeros(len(rows), dtype=np.int64)
            self.arrays["seen"][rows] = 1
        for number in range(int(turn.max(initial=0)) + 1):  # an example that comes twice is added twice, in order
            part = np.flatnonzero(turn == number) if turn.any() else slice(None)
            self._add(rows[part], logits[part], None if saliency is None else saliency[part])

    def _add(self, rows: NDArray[np.int64], logits: NDArray[Any], saliency: NDArray[Any] | None) -> None:
        a = self.arrays
        z = logits.astype(a["logits"].dtype, copy=False)
        every = np.arange(len(rows))
        labels = self.labels[rows]
        own = z[every, labels]
        largest = z.max(axis=1)
        p = np.exp(own - largest) / np.exp(z - largest[:, None]).sum(axis=1)
        others = z.copy()
        others[every, labels] = -np.inf
        margin = own - others.max(axis=1)
        right = z.argmax(axis=1) == labels
        count = a["epochs"][rows] + 1
        before = a["mean"][rows]
        after = before + (p - before) / count
        a["epochs"][rows] = count
        a["mean"][rows] = after
        a["squares"][rows] += (p - before) * (p - after)
        a["margin"][rows] += (margin - a["margin"][rows]) / count
        a["right"][rows] += right
        a["forgotten"][rows] += (a["was_right"][rows] == 1) & ~right
        a["was_right"][rows] = right
        a["logits"][rows] = z
        if self.width:
            if saliency is None or saliency.shape[1] != self.width:
                raise InputError(f"a saliency of {self.width} numbers was to be recorded with the logits")
            a["feature_saliency"][rows] = saliency

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all arrays, to be saved and passed to `restore`; under torch.distributed all processes call it together."""
        self._add_pending()
        return dict(self.arrays)

    def restore(self, state: Mapping[str, ArrayLike]) -> None:
        """Restore a saved state, from which recording continues."""
        for name, array in self.arrays.items():
            given = np.asarray(state[name])
            if given.shape != array.shape:
                raise InputError(f"the saved {name} has shape {given.shape}, not {array.shape}", remedy="record from the start")
            array[...] = given

    def dynamics(self) -> Dynamics:
        """Return the table of what was recorded so far."""
        self._add_pending()
        a = self.arrays
        seen = np.maximum(a["epochs"], 1)
        unseen = a["epochs"] == 0
        return Dynamics(
            ids=self.ids,
            labels=self.labels,
            classes=self.classes,
            epochs=a["epochs"],
            confidence=np.where(unseen, np.nan, a["mean"]),
            variability=np.where(unseen, np.nan, np.sqrt(a["squares"] / seen.astype(a["mean"].dtype))),
            correctness=a["right"],
            forgotten=a["forgotten"],
            aum=np.where(unseen, np.nan, a["margin"]),
            logits=a["logits"],
            feature_saliency=a.get("feature_saliency"),
        )


def _zeros(folder: Path | None, name: str, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    if folder is None:
        return np.zeros(shape, dtype=kind)
    folder.mkdir(parents=True, exist_ok=True)
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=shape)  # starts as zeros


def _array(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.float() if value.is_floating_point() and value.element_size() < 4 else value
        value = value.cpu().numpy()
    return np.asarray(value)


def _turns(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each distinct row stands first, and how many times each came before."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    new = np.r_[True, ordered[1:] != ordered[:-1]] if len(rows) else np.zeros(0, dtype=bool)
    start = np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))
    turn = np.empty(len(rows), dtype=np.int64)
    turn[order] = np.arange(len(rows)) - start
    return np.sort(order[new]), turn


def _processes() -> int:
    """How many processes train together under torch.distributed; 0 without it."""
    torch = sys.modules.get("torch")
    together = torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_world_size()) if together and torch is not None else 0


def _from_all(found: tuple[NDArray[Any] | None, ...]) -> tuple[NDArray[Any] | None, ...]:
    torch = sys.modules["torch"]
    parts: list[Any] = [None] * _processes()
    torch.distributed.all_gather_object(parts, found)
    columns = [[p[i] for p in parts if p[i] is not None] for i in range(3)]
    return tuple(np.concatenate(c) if c else None for c in columns)
