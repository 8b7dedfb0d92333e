"""Locks between processes, which the operating system frees when a process ends, however it ends."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from distilcal.errors import MissingDependencyError, StoreError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PROBE_SECONDS = 0.05  # longer than `is_locked` in another process holds a lock
HELD_BY_ANOTHER = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)


@contextmanager
def file_lock(path: Path, *, on_wait: Callable[[], None] | None = None, busy: str = "") -> Iterator[None]:
    """Hold a lock file while the block runs, and remove it afterwards.

    Parameters
    ----------
    path : Path
        The lock file; it and its folder are created if needed. The file of a process that was killed is taken over.
    on_wait : callable, optional
        Called once if another process holds the lock, before waiting for it. Without it a held lock is an error.
    busy : str
        The message of that error.

    Raises
    ------
    StoreError
        If another process holds the lock and ``on_wait`` is missing.
    MissingDependencyError
        If the system needs the ``filelock`` package, which is not installed.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / ".lock"
    >>> with file_lock(path):
    ...     with file_lock(path, busy="another run is using this folder"):
    ...         pass
    Traceback (most recent call last):
    distilcal.errors.StoreError: another run is using this folder; wait until it ends, or give another folder
    >>> path.exists()
    False
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        release = _acquire(path, wait=False)
        if release is None and on_wait is None:
            time.sleep(PROBE_SECONDS)
            release = _acquire(path, wait=False)
            if release is None:
                raise StoreError(busy, remedy="wait until it ends, or give another folder")
        if release is None and on_wait is not None:
            on_wait()
            release = _acquire(path, wait=True)
        assert release is not None
        try:
            yield
        finally:
            release()
    except KeyboardInterrupt:  # which may have come between creating the file and holding it, or before it was removed
        remove_stale_lock(path)
        raise


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Mark a folder as in use while the block runs, so that `is_in_use` finds it; several processes may.

    Parameters
    ----------
    folder : Path
        The folder, which exists. Nothing is written: the mark ends with the process, however that ends. On a system without
        such marks, nothing happens.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with in_use(folder), in_use(folder):
    ...     is_in_use(folder)
    True
    >>> is_in_use(folder)
    False
    """
    handle = _open_folder(folder)
    try:
        if handle is not None:
            with suppress(OSError):
                try_lock(handle, shared=True)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def is_in_use(folder: Path) -> bool:
    """Return whether somebody holds a folder with `in_use`; False where the system cannot tell.

    Parameters
    ----------
    folder : Path
        The folder, which need not exist.

    Returns
    -------
    bool
    """
    handle = _open_folder(folder)
    if handle is None:
        return False
    try:
        return not try_lock(handle)
    except OSError:
        return False
    finally:
        os.close(handle)


def _open_folder(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY)
    except OSError:  # it does not exist, or the system cannot open folders
        return None


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder until it is closed, unless somebody else has locked it.

    Parameters
    ----------
    handle : int
        Its file descriptor.
    shared : bool, default False
        Whether others may lock it in the same way.

    Returns
    -------
    bool
        Whether it is locked now; False if another process, or another descriptor of this one, holds it.

    Raises
    ------
    OSError
        If the system or the file system has no such locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "this system has no locks of open files")
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD_BY_ANOTHER:
            return False
        raise
    return True


def is_open_at(handle: int, path: Path) -> bool:
    """Return whether a path still leads to this open file or folder, which another process may have removed or renamed.

    Parameters
    ----------
    handle : int
        Its file descriptor.
    path : Path
        The path under which it was opened.

    Returns
    -------
    bool
    """
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock file; False if the file does not exist.

    Parameters
    ----------
    path : Path
        The lock file.

    Returns
    -------
    bool
        On a system that cannot tell, whether the file exists.
    """
    try:
        handle = os.open(path, os.O_RDONLY)  # the file of another user can be read only
    except FileNotFoundError:
        return False
    try:
        return not try_lock(handle, shared=True)  # which needs no more than reading, also on a network's disk
    except OSError:
        return True
    finally:
        os.close(handle)


def remove_stale_lock(path: Path) -> None:
    """Remove the lock file of a process that was killed; one that is held stays, and so does one that cannot be removed.

    Parameters
    ----------
    path : Path
        The lock file, which need not exist.
    """
    if not path.exists():
        return
    with suppress(OSError):
        release = _acquire(path, wait=False)
        if release is not None:
            release()


def _acquire(path: Path, *, wait: bool) -> Callable[[], None] | None:
    """Take a lock and return what releases it; None if another process holds it and it is not to be waited for."""
    if fcntl is None:
        return _acquire_with_filelock(path, wait=wait)
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # another process has removed the folder, which was empty but for the lock
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            if wait:
                fcntl.flock(handle, fcntl.LOCK_EX)
            elif not try_lock(handle):
                os.close(handle)
                return None
            if is_open_at(handle, path):
                return partial(_release, path, handle)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # whoever held the lock has removed its file: what we hold guards nothing any more


def _release(path: Path, handle: int) -> None:
    try:
        with suppress(OSError):
            path.unlink()  # while the lock is held, so that it is ours
    finally:
        os.close(handle)


def _acquire_with_filelock(path: Path, *, wait: bool) -> Callable[[], None] | None:
    try:
        import filelock
    except ImportError:
        raise MissingDependencyError("locks need filelock", remedy="pip install 'distilcal[train]'") from None
    lock = filelock.FileLock(path)
    try:
        lock.acquire(blocking=wait)
    except filelock.Timeout:
        return None
    return lock.release
