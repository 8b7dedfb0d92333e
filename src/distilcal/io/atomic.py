"""Files that are whole or not there, and archives that are read without ever unpickling."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError


@contextmanager
def write_aside(path: Path) -> Iterator[BinaryIO]:
    """A file beside ``path`` that takes its name when all is written, and vanishes when something fails."""
    check_output(path)
    path = path.resolve()  # through a link, to what it points at
    try:
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=str(path), remedy="check the folder") from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o666 & ~_umask())  # mkstemp made it private
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def check_output(path: Path) -> None:
    """Refuse to write where no file can be, or where something else than a file would be replaced."""
    if path.exists() and not path.is_file():
        raise InputError("this is a folder or a device, not a file", source=str(path), remedy="give the name of a file")
    try:
        folder = path.resolve().parent
    except RuntimeError:
        raise InputError("this link leads in a circle", source=str(path), remedy="give the name of a file") from None
    if not folder.is_dir():
        raise InputError(f"the folder {str(folder)!r} does not exist", source=str(path), remedy="make it first")
    if not os.access(folder, os.W_OK):
        raise InputError("the folder cannot be written to", source=str(path), remedy="choose another")


@contextmanager
def open_npz(path: Path) -> Iterator[Mapping[str, NDArray[Any]]]:
    """The arrays of an .npz, read when asked for; damage and pickles are refused."""
    try:
        with open(path, "rb") as file:  # opened here: numpy leaves a damaged file open
            if not zipfile.is_zipfile(file):
                file.seek(0)
                if file.read(6) == b"\x93NUMPY":
                    raise InputError("this is a single array, not an .npz", source=str(path), remedy="save it with numpy.savez")
                raise zipfile.BadZipFile
            file.seek(0)
            yield np.load(file, allow_pickle=False)
    # NotImplementedError and RuntimeError are what zipfile says of flags and methods that a damaged byte made up.
    except (zipfile.BadZipFile, EOFError, KeyError, OSError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError("the file is damaged or cut off", source=str(path), remedy="write it again") from None
    except ValueError as error:
        if isinstance(error, InputError) or "pickle" not in str(error).lower():
            raise
        raise InputError(
            "it holds pickled objects, which are never loaded",
            source=str(path),
            remedy="save plain arrays of numbers and strings",
        ) from None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
