"""A cache of a network's outputs, looked up by the content of the example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.io.folders import digest, is_intact, sealed_folder
from distilcal.io.locks import file_lock, remove_stale_lock
from distilcal.io.parts import SUFFIX, remove_if_stale

ComputeRows = Callable[[NDArray[np.int64]], Mapping[str, NDArray[Any]]]


class RowCache:
    """Arrays of rows (logits, features) of one network, looked up by the content of the example they were computed from.

    Rows of shuffled, filtered or grown data are found again; only the others are computed.

    Parameters
    ----------
    folder : Path
        Where caches are stored.
    owner : str
        A hash of the network and of how its inputs are prepared. Rows of another network are never used.

    Examples
    --------
    >>> import tempfile
    >>> cache = RowCache(Path(tempfile.mkdtemp()), "network")
    >>> logits = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> cache.fetch(np.array(["b", "a"]), ("logits",), lambda rows: {"logits": logits[rows]})["logits"].tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    >>> cache.fetch(np.array(["a"]), ("logits",), lambda rows: {})["logits"].tolist()
    [[3.0, 4.0]]
    """

    def __init__(self, folder: Path, owner: str):
        self.folder = folder / owner
        self.owner = owner

    def fetch(self, keys: NDArray[np.str_], names: tuple[str, ...], compute: ComputeRows) -> dict[str, NDArray[Any]]:
        """Return the named arrays for these examples, and store the rows that had to be computed.

        Parameters
        ----------
        keys : ndarray of str, shape (N,)
            Content hashes of the examples; equal keys share a row.
        names : tuple of str
            The arrays to return, e.g. ``("logits", "features")``.
        compute : callable
            ``compute(rows)`` returns the arrays by name for these indices into ``keys``. It is called for missing rows
            only, while other processes that need rows of this network wait.

        Returns
        -------
        dict of str to ndarray
            Each array has one row per key.
        """
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        known = np.zeros(len(distinct), dtype=bool)
        values: dict[str, NDArray[Any]] = {}
        self._look_up(distinct, names, known, values)
        lock = self.folder / ".lock"
        if known.all():
            remove_stale_lock(lock)  # of a process that was killed after it had stored these rows
        else:
            with file_lock(lock, on_wait=lambda: None):
                self._look_up(distinct, names, known, values)  # another process may just have computed them
                if not known.all():
                    missing = np.flatnonzero(~known)
                    computed = {name: np.asarray(array) for name, array in compute(first[missing]).items()}
                    self._store(distinct[missing], computed)
                    _fill(values, {name: computed[name] for name in names}, ~known)
        return {name: values[name][inverse] for name in names}

    def _look_up(
        self, distinct: NDArray[np.str_], names: tuple[str, ...], known: NDArray[np.bool_], values: dict[str, NDArray[Any]]
    ) -> None:
        """Fill the rows that are stored into ``values`` and mark them in ``known``."""
        for shard in self._shards(names):
            stored = np.load(shard / "keys.npy", mmap_mode="r").astype(str)
            position = np.searchsorted(stored, distinct).clip(max=len(stored) - 1)
            hit = (stored[position] == distinct) & ~known
            if hit.any():
                arrays = {name: np.load(shard / f"{name}.npy", mmap_mode="r")[position[hit]] for name in names}
                _fill(values, arrays, hit)
                known |= hit

    def _shards(self, names: tuple[str, ...]) -> list[Path]:
        """Return the intact folders of this cache that hold all the named arrays."""
        if not self.folder.is_dir():
            return []
        shards = []
        for folder in sorted(self.folder.iterdir()):
            if not folder.is_dir() or folder.name.startswith("."):
                continue
            if is_intact(folder, owner=self.owner) and all((folder / f"{name}.npy").exists() for name in names):
                shards.append(folder)
        return shards

    def _store(self, keys: NDArray[np.str_], arrays: Mapping[str, NDArray[Any]]) -> None:
        name = digest([keys.tolist(), sorted(arrays)])
        for part in self.folder.glob(f".*{SUFFIX}"):  # of killed processes, which may have been about other rows
            remove_if_stale(part)
        with sealed_folder(self.folder / name, owner=self.owner) as folder:
            np.save(folder / "keys.npy", keys.astype("S"))  # sorted, as np.unique returned them
            for key, array in arrays.items():
                np.save(folder / f"{key}.npy", array)


def _fill(values: dict[str, NDArray[Any]], arrays: Mapping[str, NDArray[Any]], rows: NDArray[np.bool_]) -> None:
    for name, array in arrays.items():
        if name not in values:
            values[name] = np.empty((len(rows), *array.shape[1:]), dtype=array.dtype)
        values[name][rows] = array
