"""Whether a module is being imported: an exception in the C++ of torch's import would abort the process."""

from __future__ import annotations

from types import FrameType


def count_imports(frame: FrameType | None) -> int:
    """Return how many frames of Python's import system a frame was called from.

    Parameters
    ----------
    frame : frame, optional
        The frame, as a handler of signals receives it.

    Returns
    -------
    int
        0 if nothing is being imported.

    Examples
    --------
    >>> count_imports(None)
    0
    """
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith("<frozen importlib._bootstrap")
        frame = frame.f_back
    return count
