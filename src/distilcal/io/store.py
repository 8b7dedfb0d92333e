"""What is already known: outputs of networks by content, finished stages by the hash of all that determines them.

A folder in the store is whole or not there: it is written aside, sealed with a manifest of checksums, and renamed. What does
not match its manifest is not used: it is removed with a warning and made again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError
from distilcal.io.atomic import write_aside

FORMAT = 1  # raise it when what is stored under a key would come out different
MANIFEST = "manifest.json"


class DamagedWarning(UserWarning):
    """Something in the store does not match its checksums and is made again."""


def digest(value: Any) -> str:
    """A short hash of anything JSON can say; the order of keys does not matter."""
    text = json.dumps([FORMAT, value], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """A JSON file that is whole or not there."""
    with write_aside(path) as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> Any:
    """What a JSON file says; damage is an error that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError("this file is missing or damaged", source=str(path), remedy="run again: it is made anew") from None


# ---- sealed folders ----------------------------------------------------------------------------------------------------


@contextmanager
def sealed(folder: Path, **facts: Any) -> Iterator[Path]:
    """A folder to fill, beside ``folder``, that takes its name when all is written and its checksums are taken."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    try:
        yield aside
        files = {str(f.relative_to(aside)): file_digest(f) for f in sorted(aside.rglob("*")) if f.is_file()}
        write_json(aside / MANIFEST, {"format": FORMAT, **facts, "files": files})
        os.chmod(aside, 0o755)  # mkdtemp made it private
        try:
            os.replace(aside, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(aside)  # another process was faster; what is under one name is the same
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def intact(folder: Path, **facts: Any) -> bool:
    """Whether a sealed folder is there, whole, and of the given facts; a damaged or foreign one is removed with a warning."""
    if not folder.exists():
        return False
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        same = all(manifest.get(key) == value for key, value in {"format": FORMAT, **facts}.items())
        whole = same and all(file_digest(folder / name) == value for name, value in manifest["files"].items())
    except (OSError, ValueError, KeyError, AttributeError):
        whole = False
    if not whole:
        warnings.warn(f"{folder} is damaged or of another kind: it is made again", DamagedWarning, stacklevel=2)
        shutil.rmtree(folder)
    return whole


def file_digest(path: Path) -> str:
    """A hash of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@contextmanager
def locked(path: Path, *, wait: Callable[[], None] | None = None, busy: str = "") -> Iterator[None]:
    """Hold a lock file that the system frees when the process ends, however it ends.

    If another process holds it: call ``wait`` once and wait for it, or without ``wait`` refuse with the words of ``busy``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if wait is None:
                raise InputError(busy, remedy="wait until it ends, or give another folder") from None
            wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- rows by content ---------------------------------------------------------------------------------------------------


class RowCache:
    """Arrays of rows (logits, features) of one network, found by the content of the example they were made from.

    Shuffled, filtered or grown data find the rows that are there; only the others are computed. ``owner`` is a hash of the
    network and of how it is fed: another network's rows are never used.
    """

    def __init__(self, folder: Path, owner: str):
        self.folder, self.owner = folder / owner, owner

    def fetch(
        self, keys: NDArray[np.str_], names: tuple[str, ...], make: Callable[[NDArray[np.int64]], Mapping[str, NDArray[Any]]]
    ) -> dict[str, NDArray[Any]]:
        """The named arrays for the given content keys; ``make(rows)`` computes those not known yet, which are then kept."""
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        found = np.zeros(len(distinct), dtype=bool)
        values: dict[str, NDArray[Any]] = {}
        self._look_up(distinct, names, found, values)
        if not found.all():
            with locked(self.folder / ".lock", wait=lambda: None):  # another process may be computing the same rows
                self._look_up(distinct, names, found, values)
                if not found.all():
                    missing = np.flatnonzero(~found)
                    made = {n: np.asarray(v) for n, v in make(first[missing]).items()}
                    self._keep(distinct[missing], made)
                    self._fill(values, {n: made[n] for n in names}, ~found)
        return {n: values[n][inverse] for n in names}

    def _look_up(
        self, distinct: NDArray[np.str_], names: tuple[str, ...], found: NDArray[np.bool_], values: dict[str, NDArray[Any]]
    ) -> None:
        """Fill in the rows that are known, and mark them found."""
        for shard in self._shards(names):
            known = np.load(shard / "keys.npy", mmap_mode="r").astype(str)
            place = np.searchsorted(known, distinct).clip(max=len(known) - 1)
            hit = (known[place] == distinct) & ~found
            if hit.any():
                self._fill(values, {n: np.load(shard / f"{n}.npy", mmap_mode="r")[place[hit]] for n in names}, hit)
                found |= hit

    def _shards(self, names: tuple[str, ...]) -> list[Path]:
        if not self.folder.is_dir():
            return []
        shards = [f for f in sorted(self.folder.iterdir()) if f.is_dir() and not f.name.startswith(".")]
        return [s for s in shards if intact(s, owner=self.owner) and all((s / f"{n}.npy").exists() for n in names)]

    def _keep(self, keys: NDArray[np.str_], made: Mapping[str, NDArray[Any]]) -> None:
        name = digest([keys.tolist(), sorted(made)])
        with sealed(self.folder / name, owner=self.owner) as folder:
            np.save(folder / "keys.npy", keys.astype("S"))  # sorted, since np.unique made them
            for key, value in made.items():
                np.save(folder / f"{key}.npy", value)

    @staticmethod
    def _fill(values: dict[str, NDArray[Any]], part: Mapping[str, NDArray[Any]], rows: NDArray[np.bool_]) -> None:
        for name, array in part.items():
            if name not in values:
                values[name] = np.empty((len(rows), *array.shape[1:]), dtype=array.dtype)
            values[name][rows] = array
