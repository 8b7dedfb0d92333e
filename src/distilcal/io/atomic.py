"""Files that are complete or absent, JSON, and ``.npz`` archives that are read without unpickling."""

from __future__ import annotations

import errno
import json
import lzma
import os
import re
import stat
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError, NewerFormatError
from distilcal.io.parts import give_usual_mode, part_file

LONGEST_NAME = 240  # bytes: the 255 of file systems, without what `part_file` adds
NPY_MAGIC = b"\x93NUMPY"  # the first bytes of a single array saved with numpy.save


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` when the block ends, and is deleted when the block fails.

    A reader of ``path`` sees the old content or all of the new content, never a part of it.

    Parameters
    ----------
    path : Path
        The file to write. A symbolic link is followed.

    Yields
    ------
    BinaryIO
        The open temporary file, in the folder of ``path``.

    Raises
    ------
    InputError
        If no file can be written there.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"complete")
    >>> path.read_text()
    'complete'
    """
    check_output(path)
    path = path.resolve()
    with naming(path), ExitStack() as stack:
        try:
            handle, temporary = stack.enter_context(part_file(path))
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", source=str(path), remedy="check the folder") from None
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        give_usual_mode(temporary)
        os.replace(temporary, path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file or folder in the errors of the system that name none, such as those of a full disk.

    Parameters
    ----------
    path : Path
        What is written.

    Examples
    --------
    >>> with naming(Path("labels.csv")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'labels.csv'
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:  # without a number, the text would be lost
            error.filename = str(path)
        raise


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Turn what safetensors and tokenizers raise when the system refuses to write into the OSError that it is.

    Both are written in Rust and have errors of their own, which name the system's in brackets.

    Parameters
    ----------
    path : Path
        What is written, for the message.

    Raises
    ------
    OSError
        If the disk is full, for instance.

    Examples
    --------
    >>> with system_errors(Path("model")):
    ...     raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'model'
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def check_output(path: Path) -> None:
    """Raise an InputError if ``path`` cannot be written as a file.

    Parameters
    ----------
    path : Path
        The file that is to be written later.

    Raises
    ------
    InputError
        If ``path`` is a folder or a device, its name is too long, or its folder does not exist or is not writable.
    """
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise InputError("its name is too long", source=str(path), remedy=f"choose one of at most {LONGEST_NAME} bytes")
    if path.exists() and not path.is_file():
        raise InputError("this is a folder or a device, not a file", source=str(path), remedy="give the name of a file")
    try:
        folder = path.resolve().parent
    except RuntimeError:
        raise InputError("this link leads in a circle", source=str(path), remedy="give the name of a file") from None
    if not folder.is_dir():
        raise InputError(f"the folder {str(folder)!r} does not exist", source=str(path), remedy="create it first")
    if not os.access(folder, os.W_OK):
        raise InputError("the folder is not writable", source=str(path), remedy="choose another")


def check_input(path: Path, remedy: str = "check the path") -> None:
    """Raise an InputError unless ``path`` is a file; a pipe or a device could block, or never end.

    Parameters
    ----------
    path : Path
        The file that is to be read.
    remedy : str
        What to do if it does not exist.

    Raises
    ------
    InputError
        If it does not exist, cannot be reached, or is a folder, a pipe or a device.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("there is no such file", source=str(path), remedy=remedy) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path), remedy=remedy) from None
    except ValueError:
        raise InputError("its name holds a NUL character", source=str(path), remedy=remedy) from None
    if stat.S_ISDIR(mode):
        raise InputError("this is a folder", source=str(path), remedy="give a file")
    if not stat.S_ISREG(mode):
        raise InputError("this is a pipe or a device, not a file", source=str(path), remedy="write it to a file first")


def refuse_same_file(inputs: Iterable[str | Path | None], outputs: Iterable[str | Path | None]) -> None:
    """Raise an InputError if an output is one of the inputs, or another output, under whatever name.

    Files are compared as the system knows them: a relative path, a symbolic link and a hard link are the file they lead to.

    Parameters
    ----------
    inputs : iterable of str, Path or None
        What a command reads, files or folders. None stands for an option that was not given, and what does not exist, such as
        ``hub:NAME``, is compared by its path alone.
    outputs : iterable of str, Path or None
        What it will write.

    Raises
    ------
    InputError
        If a file would replace an input or another output.

    Examples
    --------
    >>> refuse_same_file(["reviews.csv", None], ["labels.csv"])
    >>> refuse_same_file(["reviews.csv"], ["./reviews.csv"])
    Traceback (most recent call last):
    distilcal.errors.InputError: reviews.csv: this output is the input 'reviews.csv'; give the output a name of its own
    """
    earlier = [("the input", Path(path)) for path in inputs if path is not None]
    for output in (Path(path) for path in outputs if path is not None):
        for role, other in earlier:
            if _is_same_file(output, other):
                raise InputError(
                    f"this output is {role} {str(other)!r}", source=str(output), remedy="give the output a name of its own"
                )
        earlier.append(("also the output", output))


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:  # one of them does not exist yet, or cannot be reached
        return os.path.realpath(first) == os.path.realpath(second)


def write_json(path: Path, value: Any) -> None:
    """Write a value to a JSON file atomically.

    Parameters
    ----------
    path : Path
        The file to write.
    value : object
        Anything JSON can represent; NaN and infinity are refused with a ValueError.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    content = text.encode("utf-8", "backslashreplace")  # bytes of a file's name that are no text, as \udcff, which is JSON
    with atomic_write(path) as file:
        file.write(content + b"\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Parameters
    ----------
    path : Path
        The file to read.

    Returns
    -------
    object
        The decoded value.

    Raises
    ------
    InputError
        If the file is missing, is not JSON or has a key twice; the message names it.
    OSError
        If the file is there and cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "settings.json"
    >>> write_json(path, {"seed": 3})
    >>> read_json(path)
    {'seed': 3}
    """
    remedy = "run the command that writes it again"
    if path.exists():
        check_input(path, remedy)
    try:
        return parse_json(path.read_text(encoding="utf-8"), source=str(path))
    except InputError:
        raise
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        raise InputError("this file is missing or damaged", source=str(path), remedy=remedy) from None


def parse_json(text: str | bytes, *, source: str = "", line: int | None = None) -> Any:
    """Return the value of a JSON text in which no object has a key twice: which of the two is meant, nobody knows.

    Parameters
    ----------
    text : str or bytes
        The text.
    source : str
        The file, for the message.
    line : int, optional
        Its line, for the message.

    Returns
    -------
    object

    Raises
    ------
    InputError
        If a key is repeated.
    ValueError, RecursionError
        If it is not JSON, or nested too deeply.

    Examples
    --------
    >>> parse_json('{"seed": 3, "seed": 4}')
    Traceback (most recent call last):
    distilcal.errors.InputError: the key 'seed' comes twice; keep one of them
    """

    def to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            repeated = next(name for name, count in counts.items() if count > 1)
            raise InputError(f"the key {repeated!r:.60} comes twice", source=source, line=line, remedy="keep one of them")
        return made

    return json.loads(text, object_pairs_hook=to_dict)


def read_object(path: Path, keys: Sequence[str] = (), *, newest: int | None = None) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object.

    Parameters
    ----------
    path : Path
        The file to read.
    keys : sequence of str
        What the object must have.
    newest : int, optional
        The newest format that is known; the file's own is its ``format``, and 1 where it has none.

    Returns
    -------
    dict
        The decoded object.

    Raises
    ------
    InputError
        If the file is missing, is not JSON, is something else than an object, lacks one of the keys or has no valid format.
    NewerFormatError
        If it is of a newer format.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.json"
    >>> write_json(path, {"format": 2})
    >>> read_object(path, newest=1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    distilcal.errors.NewerFormatError: ...metrics.json: it is of format 2, this version of distilcal reads up to 1; ...
    """
    content = read_json(path)
    with expected_shape(path):
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__} in place of an object")
        if newest is not None:
            check_format(content.get("format", 1), newest, str(path))
        missing = [key for key in keys if key not in content]
        if missing:
            raise KeyError(missing[0])
    return content


def check_format(found: Any, newest: int, source: str) -> None:
    """Raise an error if something was written in a format that is not known.

    Parameters
    ----------
    found : object
        The format as it was read.
    newest : int
        The newest format that is known; they count from 1.
    source : str
        The file, for the message.

    Raises
    ------
    NewerFormatError
        If it is of a newer format.
    InputError
        If it is no number of a format at all.
    """
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise InputError("it does not say which format it is of", source=source, remedy="write it again")
    if found > newest:
        raise NewerFormatError(
            f"it is of format {found}, this version of distilcal reads up to {newest}",
            source=source,
            remedy="install a newer distilcal, or write it again with this one",
        )


@contextmanager
def expected_shape(path: Path, remedy: str = "run the command that writes it again") -> Iterator[None]:
    """Turn what a block raises that reads values out of a stored file, and finds other ones than we write, into an InputError.

    Parameters
    ----------
    path : Path
        The file, for the message.
    remedy : str
        What to do about it.

    Raises
    ------
    InputError
        If a key or an entry is missing, or a value is of another type.

    Examples
    --------
    >>> with expected_shape(Path("metrics.json")):  # doctest: +ELLIPSIS
    ...     {"name": "demo"}["stages"]
    Traceback (most recent call last):
    distilcal.errors.InputError: metrics.json: this is not what distilcal writes: 'stages' is missing; run ...
    """
    try:
        yield
    except InputError:
        raise
    except (KeyError, IndexError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
        raise InputError(f"this is not what distilcal writes: {reason}", source=str(path), remedy=remedy) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"this is not what distilcal writes: {error}", source=str(path), remedy=remedy) from None


class NpzArrays:
    """The arrays of an open ``.npz`` archive by name, each read on access.

    Parameters
    ----------
    archive : numpy.lib.npyio.NpzFile
        The open archive.
    path : Path
        Its file, for messages.
    """

    def __init__(self, archive: Mapping[str, NDArray[Any]], path: Path):
        self._archive = archive
        self._path = path

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._archive:
            held = ", ".join(sorted(self._archive)) or "no arrays"
            raise InputError(
                f"there is no array {name!r}; it has {held}", source=str(self._path), remedy="write the file again"
            )
        with _npz_errors(self._path):
            return self._archive[name]

    def get(self, name: str) -> NDArray[Any] | None:
        """Return an array, or None if the archive does not have it."""
        return self[name] if name in self._archive else None

    def __contains__(self, name: object) -> bool:
        return name in self._archive

    def __iter__(self) -> Iterator[str]:
        return iter(self._archive)

    def __len__(self) -> int:
        return len(self._archive)


@contextmanager
def open_npz(path: Path) -> Iterator[NpzArrays]:
    """Open an ``.npz`` archive whose arrays are read on access.

    Parameters
    ----------
    path : Path
        The archive.

    Yields
    ------
    NpzArrays
        The arrays by name.

    Raises
    ------
    InputError
        If the file is damaged or is a single array; on access, also if an array is absent or holds pickled objects.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "arrays.npz"
    >>> np.savez(path, labels=[0, 1])
    >>> with open_npz(path) as arrays:
    ...     arrays["labels"].tolist()
    [0, 1]
    """
    check_input(path)
    with open(path, "rb") as file:  # opened here: numpy leaves a damaged file open
        with _npz_errors(path):
            _check_npz(file, path)
            archive = np.load(file, allow_pickle=False)
        yield NpzArrays(archive, path)


# What zipfile and numpy raise for bytes that are no archive of arrays. zipfile answers flags and methods that a damaged byte
# invented with NotImplementedError and RuntimeError, numpy a damaged header with almost anything of Python's parser.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    EOFError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


@contextmanager
def _npz_errors(path: Path) -> Iterator[None]:
    """Turn what zipfile and numpy raise for a damaged archive into an InputError."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # the disk's fault; EINVAL comes of an offset that cannot be
            raise
        raise _damaged(path) from None
    except _DAMAGE as error:
        if "pickle" not in str(error).lower():
            raise _damaged(path) from None
        raise InputError(
            "it holds pickled objects, which are never loaded",
            source=str(path),
            remedy="save plain arrays of numbers and strings",
        ) from None


def _damaged(path: Path) -> InputError:
    return InputError("the file is damaged or cut off", source=str(path), remedy="write it again")


def _check_npz(file: BinaryIO, path: Path) -> None:
    if not zipfile.is_zipfile(file):
        file.seek(0)
        if file.read(len(NPY_MAGIC)) == NPY_MAGIC:
            raise InputError("this is a single array, not an .npz", source=str(path), remedy="save it with numpy.savez")
        raise zipfile.BadZipFile
    file.seek(0)
