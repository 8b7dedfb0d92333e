"""Sealed folders: results on disk that are complete or absent, with a manifest of checksums.

A sealed folder is filled under a temporary name, receives its manifest last and is then renamed. A folder that does not match
its manifest is never used: it is deleted with a warning, and its content is computed again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distilcal.io.atomic import write_json

FORMAT = 1  # increase it when the content stored under a key would come out different
MANIFEST = "manifest.json"


class DamagedWarning(UserWarning):
    """Something on disk does not match its checksums and is computed again."""


def digest(value: Any) -> str:
    """Return a short hash of a value, the same for any order of a dict's keys.

    Parameters
    ----------
    value : object
        Anything JSON can represent; other objects enter as ``str(object)``.

    Returns
    -------
    str
        20 hexadecimal digits.

    Examples
    --------
    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps([FORMAT, value], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def file_digest(path: Path) -> str:
    """Return a hash of a file's bytes.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    str
        32 hexadecimal digits.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@contextmanager
def sealed_folder(folder: Path, **facts: Any) -> Iterator[Path]:
    """Create a folder that appears under its name only when the block has filled it.

    Parameters
    ----------
    folder : Path
        The name of the finished folder. If another process has created it in the meantime, theirs is kept.
    **facts
        Values that are written into the manifest; ``is_intact`` compares them.

    Yields
    ------
    Path
        A temporary folder beside ``folder`` to write files into.

    Examples
    --------
    >>> folder = Path(tempfile.mkdtemp()) / "result"
    >>> with sealed_folder(folder, key="k1") as temporary:
    ...     _ = (temporary / "accuracy.txt").write_text("0.9")
    >>> is_intact(folder, key="k1")
    True
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    try:
        yield temporary
        write_json(temporary / MANIFEST, {"format": FORMAT, **facts, "files": _file_digests(temporary)})
        os.chmod(temporary, 0o755)  # mkdtemp creates private folders
        try:
            os.replace(temporary, folder)
        except OSError as error:
            if not _is_already_there(folder, error):
                raise
            shutil.rmtree(temporary)  # another process was faster; equal names mean equal content
        _sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def is_intact(folder: Path, **facts: Any) -> bool:
    """Return whether a sealed folder exists and matches its checksums and these facts.

    A folder that does not match is deleted, with a ``DamagedWarning``.

    Parameters
    ----------
    folder : Path
        A folder written by ``sealed_folder``.
    **facts
        Values that its manifest must hold.

    Returns
    -------
    bool
        Whether the folder can be used.
    """
    if not folder.exists():
        return False
    if _matches_manifest(folder, {"format": FORMAT, **facts}):
        return True
    warnings.warn(f"{folder} is damaged or of another kind: it is computed again", DamagedWarning, stacklevel=2)
    shutil.rmtree(folder)
    return False


def _matches_manifest(folder: Path, facts: dict[str, Any]) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if any(manifest.get(key) != value for key, value in facts.items()):
            return False
        return all(file_digest(folder / name) == value for name, value in manifest["files"].items())
    except (OSError, ValueError, KeyError, AttributeError):  # the manifest or a file is missing or unreadable
        return False


def _file_digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}


def _is_already_there(folder: Path, error: OSError) -> bool:
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return True
    return os.name == "nt" and folder.is_dir()  # Windows reports an existing folder as a lack of permission


def _sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut; Windows can neither open a folder nor needs this."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
