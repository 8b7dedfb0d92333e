"""Files and folders under way: written under a temporary name, ``.NAME.TOKEN.part``, and renamed when they are complete.

Who writes one holds a lock on it, which the operating system frees when the process ends. So what a killed process has left
behind is told from what another process is writing now, and the next one that writes the same name removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distilcal.io.locks import is_open_at, try_lock

SUFFIX = ".part"
PART_NAME = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.part", re.DOTALL)  # also the letters of tempfile, which earlier versions used


@contextmanager
def part_file(path: Path) -> Iterator[tuple[int, Path]]:
    """Create a temporary file beside ``path``, held by this process while the block runs.

    Parameters
    ----------
    path : Path
        The file that it is to become. Temporary files of it that killed processes have left are removed.

    Yields
    ------
    handle : int
        The open file, which the caller closes.
    part : Path
        Its name. It is removed at the end of the block unless it was renamed.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    remove_stale_parts(path)
    part, held = _new_name(path), None
    try:
        while True:
            handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            held = os.dup(handle)  # keeps the lock when the caller has closed the file, before it is renamed
            if _hold(held, part):
                break
            os.close(handle)
            os.close(held)
            part, held = _new_name(path), None
        yield handle, part
    finally:
        _remove(part)
        if held is not None:
            os.close(held)


@contextmanager
def part_folder(folder: Path) -> Iterator[Path]:
    """Create a temporary folder beside ``folder``, held by this process while the block runs.

    Parameters
    ----------
    folder : Path
        The folder that it is to become. Temporary folders of it that killed processes have left are removed.

    Yields
    ------
    Path
        The temporary folder. It is removed at the end of the block unless it was renamed.

    Raises
    ------
    OSError
        If it cannot be created.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "result"
    >>> with part_folder(target) as part:
    ...     _ = (part / "a.txt").write_text("a")
    ...     _ = part.rename(target)
    >>> [path.name for path in target.parent.iterdir()]
    ['result']
    """
    remove_stale_parts(folder)
    part, held = _new_name(folder), None
    try:
        while True:
            os.mkdir(part, 0o700)
            held = _open(part)
            if held is None or _hold(held, part):
                break
            os.close(held)
            part, held = _new_name(folder), None
        give_usual_mode(part)
        yield part
    finally:
        _remove(part)
        if held is not None:
            os.close(held)


def remove_stale_parts(path: Path) -> None:
    """Remove the temporary files and folders of a name that killed processes have left.

    Parameters
    ----------
    path : Path
        The complete file or folder, which may not exist.
    """
    prefix = f".{path.name}."
    with suppress(OSError), os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(prefix) and entry.name.endswith(SUFFIX)]
        for name in names:
            if is_part_of(name, path.name):
                remove_if_stale(path.parent / name)


def is_part_of(name: str, of: str) -> bool:
    """Return whether this is the name of a temporary file or folder of another one.

    Parameters
    ----------
    name : str
        The name that may be temporary.
    of : str
        The name of the complete file or folder.

    Examples
    --------
    >>> is_part_of(".metrics.json.ab12cd_9.part", "metrics.json")
    True
    """
    match = PART_NAME.fullmatch(name)
    return match is not None and match[1] == of


def is_stale(part: Path) -> bool:
    """Return whether no process holds a temporary file or folder any more.

    Parameters
    ----------
    part : Path
        The temporary file or folder.

    Returns
    -------
    bool
        False where the system cannot tell, and if it does not exist.
    """
    handle = _open(part)
    if handle is None:
        return False
    try:
        return try_lock(handle) and is_open_at(handle, part)
    except OSError:
        return False
    finally:
        os.close(handle)


def remove_if_stale(part: Path) -> bool:
    """Remove a temporary file or folder that no process holds any more, and return whether it was removed.

    Parameters
    ----------
    part : Path
        The temporary file or folder.

    Returns
    -------
    bool
    """
    handle = _open(part)
    if handle is None:
        return False
    try:
        if not try_lock(handle) or not is_open_at(handle, part):
            return False
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()
    except OSError:
        return False
    finally:
        os.close(handle)  # held until here: who has just created it and waits to hold it sees that it is gone
    return True


def remove_folder(folder: Path) -> None:
    """Remove a folder so that no process ever sees a part of it, even if this one is killed.

    Parameters
    ----------
    folder : Path
        The folder. If it does not exist, only what a process that was killed while it removed this folder has left is removed.
    """
    if not folder.exists():
        remove_stale_parts(folder)
        return
    with suppress(FileNotFoundError), part_folder(folder) as part:  # another process may be faster
        os.replace(folder, part / folder.name)


def give_usual_mode(path: Path) -> None:
    """Give a file, or a folder and all in it, the permissions that the user's umask leaves to new ones.

    What tempfile and safetensors create is private.

    Parameters
    ----------
    path : Path
        The file or folder.
    """
    umask = os.umask(0)
    os.umask(umask)
    for each in (path, *path.rglob("*")):
        os.chmod(each, (0o777 if each.is_dir() else 0o666) & ~umask)


def _new_name(path: Path) -> Path:
    """A temporary name, known before anything has it: a signal that comes while it is created leaves nothing behind."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{SUFFIX}")


def _remove(part: Path) -> None:
    """Remove a temporary file or folder, if it was not renamed, and all of it, even if a signal comes meanwhile."""
    try:
        _remove_once(part)
    except KeyboardInterrupt:  # while a command ends, no further signal interrupts it
        _remove_once(part)
        raise


def _remove_once(part: Path) -> None:
    with suppress(OSError):
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def _open(part: Path) -> int | None:
    """A file or folder opened for locking; None if it is gone, or on a system that cannot open folders."""
    try:
        return os.open(part, os.O_RDONLY)
    except OSError:
        return None


def _hold(handle: int, part: Path) -> bool:
    """Lock what this process has just created; False if another one took it for stale and is removing it."""
    try:
        return try_lock(handle) and is_open_at(handle, part)
    except OSError:
        return True  # a file system without locks: nobody takes it for stale there
