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
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distilcal.errors import InputError, NewerFormatError, list_names
from distilcal.io.atomic import naming, read_object, write_json
from distilcal.io.parts import give_usual_mode, part_folder, remove_folder, remove_stale_parts

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
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "result"
    >>> with sealed_folder(folder, key="k1") as temporary:
    ...     _ = (temporary / "accuracy.txt").write_text("0.9")
    >>> is_intact(folder, key="k1")
    True
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with naming(folder), part_folder(folder) as temporary:
        yield temporary
        give_usual_mode(temporary)
        write_manifest(temporary, **facts)
        try:
            os.replace(temporary, folder)
        except OSError as error:
            if not _is_already_there(folder, error):
                raise  # otherwise another process was faster; equal names mean equal content
        _sync_folder(folder.parent)


def write_manifest(folder: Path, files: Iterable[Path] | None = None, **facts: Any) -> None:
    """Write the checksums of the files of a folder into it, so that `verify_folder` can verify them later.

    Parameters
    ----------
    folder : Path
        The folder, whose content is complete.
    files : iterable of Path, optional
        Which files in it; by default all.
    **facts
        Values to write beside the checksums.
    """
    listed = sorted(folder.rglob("*") if files is None else files)
    digests = {path.relative_to(folder).as_posix(): file_digest(path) for path in listed if path.is_file()}
    write_json(folder / MANIFEST, {"format": FORMAT, **facts, "files": digests})


def link_folder(source: Path, target: Path) -> None:
    """Put a folder of a sealed folder under another name, with a manifest of its own.

    Files are linked where the disk allows it, and copied elsewhere. A folder that was there is replaced.

    Parameters
    ----------
    source : Path
        A folder in a sealed folder, for instance ``model`` of a stage.
    target : Path
        The new folder.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    manifest = read_manifest(source.parent)
    prefix = f"{source.name}/"
    own = {name.removeprefix(prefix): value for name, value in manifest["files"].items() if name.startswith(prefix)}
    with part_folder(target) as temporary:
        for path in sorted(source.rglob("*")):  # not shutil.copytree, which makes a list of a full disk
            copy = temporary / path.relative_to(source)
            copy.mkdir() if path.is_dir() else _link_or_copy(path, copy)
        if not (source / MANIFEST).exists():
            write_json(temporary / MANIFEST, {"format": FORMAT, "files": own})
        remove_folder(target)
        os.replace(temporary, target)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's manifest.

    Parameters
    ----------
    folder : Path
        A folder written by `sealed_folder`, or one with `write_manifest`.

    Returns
    -------
    dict
        ``files``, the checksums by name, and further facts.

    Raises
    ------
    InputError
        If the manifest is missing, damaged, or of a newer version of distilcal.
    """
    manifest = read_object(folder / MANIFEST, newest=FORMAT)
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
        raise InputError("this manifest has no checksums", source=str(folder / MANIFEST), remedy="write the folder again")
    return manifest


def damaged_files(folder: Path, names: Collection[str] | None = None) -> list[str]:
    """Return the names of the files of a folder that are missing or do not match its manifest; empty if it is intact.

    Parameters
    ----------
    folder : Path
        A folder with a manifest.
    names : collection of str, optional
        Which files to look at, of those in the manifest; by default all.

    Returns
    -------
    list of str
        Names relative to the folder.

    Raises
    ------
    InputError
        If the manifest is missing, damaged, or of a newer version of distilcal.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "accuracy.txt").write_text("0.9")
    >>> write_manifest(folder)
    >>> damaged_files(folder)
    []
    >>> _ = (folder / "accuracy.txt").write_text("0.8")
    >>> damaged_files(folder)
    ['accuracy.txt']
    """
    files = read_manifest(folder)["files"].items()
    return [name for name, value in files if (names is None or name in names) and not _matches(folder / name, value)]


def verify_folder(folder: Path, remedy: str = "write it again", names: Collection[str] | None = None) -> None:
    """Raise an InputError if a folder does not match its manifest: what is loaded for use is verified first.

    Parameters
    ----------
    folder : Path
        A folder with a manifest: a sealed folder of the store, a run, or ``model`` and ``dynamics`` of a run's stage.
    remedy : str
        What to do about a damaged one.
    names : collection of str, optional
        Which files to look at, of those in the manifest; by default all.

    Raises
    ------
    InputError
        If the manifest or a file is missing or damaged, or the folder was written by a newer version of distilcal.
    """
    damaged = damaged_files(folder, names)
    if damaged:
        raise InputError(f"{list_names(damaged, 3)} missing or damaged (wrong checksum)", source=str(folder), remedy=remedy)


def is_intact(folder: Path, **facts: Any) -> bool:
    """Return whether a sealed folder exists and matches its checksums and these facts.

    A folder that does not match is deleted, with a ``DamagedWarning``, and so is what killed processes left of it.

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

    Raises
    ------
    InputError
        If a newer version of distilcal wrote the folder, which then stays as it is.
    OSError
        If a file is there and cannot be read, as one of another user: that is no damage, and the folder stays as it is.
    """
    remove_stale_parts(folder)
    if not folder.exists():
        return False
    if _matches_manifest(folder, {"format": FORMAT, **facts}):
        return True
    warnings.warn(f"{folder} is damaged or of another kind: it is computed again", DamagedWarning, stacklevel=2)
    remove_folder(folder)
    return False


def _matches_manifest(folder: Path, facts: dict[str, Any]) -> bool:
    try:
        manifest = read_manifest(folder)
    except NewerFormatError:
        raise
    except InputError:
        return False
    if any(manifest.get(key) != value for key, value in facts.items()):
        return False
    return all(_matches(folder / name, value) for name, value in manifest["files"].items())


def _matches(path: Path, expected: str) -> bool:
    try:
        return path.is_file() and file_digest(path) == expected  # a pipe would never end
    except (FileNotFoundError, NotADirectoryError):
        return False


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


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
