"""Locks between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from distilcal.errors import MissingDependencyError, StoreError


@contextmanager
def file_lock(path: Path, *, on_wait: Callable[[], None] | None = None, busy: str = "") -> Iterator[None]:
    """Hold a lock file that the operating system frees when the process ends, however it ends.

    Parameters
    ----------
    path : Path
        The lock file; it and its folder are created if needed, and stay.
    on_wait : callable, optional
        Called once if another process holds the lock, before waiting for it. Without it a held lock is an error.
    busy : str
        The message of that error.

    Raises
    ------
    StoreError
        If another process holds the lock and ``on_wait`` is missing.
    MissingDependencyError
        If the ``filelock`` package is not installed.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / ".lock"
    >>> with file_lock(path):
    ...     with file_lock(path, busy="another run is using this folder"):
    ...         pass
    Traceback (most recent call last):
    distilcal.errors.StoreError: another run is using this folder; wait until it ends, or give another folder
    """
    try:
        import filelock
    except ImportError:
        raise MissingDependencyError("locks need filelock", remedy="pip install 'distilcal[train]'") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        if on_wait is None:
            raise StoreError(busy, remedy="wait until it ends, or give another folder") from None
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
