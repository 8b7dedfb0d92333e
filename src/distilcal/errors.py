"""The errors that distilcal raises on purpose. Everything else that escapes is a fault of ours.

`InputError` is for values and files of the user, `MissingDependencyError` for an optional package that is not installed,
`TrainingError` for training that diverged, `StoreError` for a store that cannot be used, `TeacherError` for a teacher that was
asked and gave no answer. All of them say what is wrong, where, and what to do; the command line prints them as one line and
exits with code 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Which extra of distilcal installs an optional package, by the name under which it is imported.
EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "huggingface_hub": "train",
    "accelerate": "train",
    "safetensors": "train",
    "PIL": "train",
    "tomli_w": "train",
    "pydantic": "train",
    "pydantic_core": "train",
    "filelock": "train",
    "sklearn": "train",
    "jinja2": "report",
    "matplotlib": "figures",
    "pyarrow": "parquet",
    "datasets": "hub",
    "onnxruntime": "onnx",
    "tokenizers": "onnx",
    "onnx": "export",
    "onnxscript": "export",
    "fastapi": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "ray": "ray",
    "optuna": "optuna",
}


class DistilcalError(Exception):
    """Base class of the errors that distilcal raises on purpose.

    Parameters
    ----------
    problem : str
        What is wrong, with the user's own values.
    remedy : str
        What to do about it.
    source : str
        The file or setting that it is about.
    row : int, optional
        Index into the arrays, from 0.
    line : int, optional
        Line of a text file, from 1. It is shown in place of the row.

    Examples
    --------
    >>> print(InputError("the file is empty", source="test.csv", remedy="write the predictions again"))
    test.csv: the file is empty; write the predictions again
    """

    def __init__(self, problem: str, *, remedy: str = "", source: str = "", row: int | None = None, line: int | None = None):
        self.problem = problem
        self.remedy = remedy
        self.source = source
        self.row = row
        self.line = line
        super().__init__(problem)

    def __str__(self) -> str:
        place = [self.source] if self.source else []
        if self.line is not None:
            place.append(f"line {self.line}")
        elif self.row is not None:
            place.append(f"row {self.row} (counting from 0)")
        message = self.problem
        if place:
            message = f"{', '.join(place)}: {message}"
        if self.remedy:
            message = f"{message}; {self.remedy}"
        return message


class InputError(DistilcalError, ValueError):
    """A value, a file or a setting of the user is invalid."""


class NewerFormatError(InputError):
    """A file was written by a newer version of distilcal, in a format that this one does not know."""


class MissingDependencyError(DistilcalError, ImportError):
    """An optional package is not installed; the remedy is the command that installs it."""


@contextmanager
def optional_packages(purpose: str) -> Iterator[None]:
    """Turn the import of an optional package that is not installed into a MissingDependencyError while the context lasts.

    Parameters
    ----------
    purpose : str
        What needs it, for the message.

    Raises
    ------
    MissingDependencyError
        If a package of ``EXTRAS`` is not installed; any other missing module is a fault of ours and stays what it is.

    Examples
    --------
    >>> with optional_packages("training"):
    ...     raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    Traceback (most recent call last):
    distilcal.errors.MissingDependencyError: training needs torch; pip install 'distilcal[train]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingDependencyError(
            f"{purpose} needs {package}", remedy=f"pip install 'distilcal[{EXTRAS[package]}]'"
        ) from None


class TrainingError(DistilcalError, RuntimeError):
    """Training cannot continue: a loss or the network's outputs are not finite any more."""


class StoreError(DistilcalError, RuntimeError):
    """The store or the folder of a run cannot be used: it is locked, damaged or of another format."""


class TeacherError(DistilcalError, RuntimeError):
    """A teacher that was asked about examples failed, cannot be reached, or gave an answer that cannot be used."""


class TeacherTimeoutError(TeacherError):
    """A service that was asked as a teacher did not answer in time."""


def list_names(names: Sequence[object], limit: int = 8) -> str:
    """Return names in quotes for a message, the last ones counted instead of shown.

    Parameters
    ----------
    names : sequence
        Class names, columns or the like.
    limit : int
        How many to show.

    Returns
    -------
    str
        The names, separated by commas.

    Examples
    --------
    >>> list_names(["cat", "dog", "frog"], limit=2)
    "'cat', 'dog' and 1 more"
    """
    shown = ", ".join(repr(str(name)) for name in names[:limit])
    hidden = len(names) - limit
    return shown if hidden <= 0 else f"{shown} and {hidden} more"
