"""The digest of an exported file: its last bytes are an entry of metadata that holds a hash of all bytes before it.

A message of Protocol Buffers may be continued by further fields, so that the file stays an ordinary ONNX model.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path

from distilcal.errors import InputError

KEY = b"distilcal_digest"
HEX_DIGITS = 32
# Field 14 of a ModelProto, metadata_props: an entry of 52 bytes whose field 1 is the key and whose field 2 the hash.
PREFIX = bytes([14 << 3 | 2, 52, 1 << 3 | 2, len(KEY)]) + KEY + bytes([2 << 3 | 2, HEX_DIGITS])
LENGTH = len(PREFIX) + HEX_DIGITS


def append_digest(content: bytes) -> bytes:
    """Return the bytes of an ONNX model with their digest at the end.

    Parameters
    ----------
    content : bytes
        The serialised model.

    Returns
    -------
    bytes

    Examples
    --------
    >>> append_digest(b"")[-HEX_DIGITS:]
    b'cae66941d9efbd404e4d88758ea67670'
    """
    return content + PREFIX + _hexdigest(content)


def check_digest(path: Path) -> bool:
    """Compare a file with the digest at its end.

    Parameters
    ----------
    path : Path
        The .onnx file.

    Returns
    -------
    bool
        Whether there is a digest.

    Raises
    ------
    InputError
        If it is not that of the file.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < LENGTH:
            return False
        file.seek(size - LENGTH)
        entry = file.read(LENGTH)
        if not entry.startswith(PREFIX):
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content)[: size - LENGTH] as body:
            found = _hexdigest(body)
    if entry != PREFIX + found:
        raise changed_file(path)
    return True


def changed_file(path: Path) -> InputError:
    """Return the error for a file that is not as it was exported."""
    return InputError(
        "the file is damaged: it is not as it was exported", source=str(path), remedy="copy it again, or export it again"
    )


def _hexdigest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=HEX_DIGITS // 2).hexdigest().encode()
