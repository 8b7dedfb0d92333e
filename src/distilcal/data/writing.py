"""Writing a Dataset to a file that `read_dataset` reads back as the same data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.data.dataset import Choices, Dataset, Images, Texts, Vectors
from distilcal.data.table_source import SOFT_LABEL_PREFIX, Columns
from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write
from distilcal.io.tables import is_blank

TEXT, PAIR, CHOICES, ID, GROUP = "text", "text_pair", "choices", "id", "group"  # columns that have no other name


def file_suffix(data: Dataset) -> str:
    """Return the suffix of the file that `write_dataset` writes: .jsonl for texts, .npz for images and vectors.

    Parameters
    ----------
    data : Dataset
        The examples.

    Returns
    -------
    str
    """
    return ".npz" if isinstance(data.inputs, Images | Vectors) else ".jsonl"


def file_columns(data: Dataset, columns: Columns) -> Columns:
    """Return the columns that `write_dataset` writes: the named ones, and the usual names of what else the data have.

    Parameters
    ----------
    data : Dataset
        The examples.
    columns : Columns
        Names, empty where there are none.

    Returns
    -------
    Columns
    """
    columns = replace(columns, text=columns.text or TEXT, id=columns.id or ID)
    if isinstance(data.inputs, Texts) and data.inputs.pair is not None:
        columns = replace(columns, pair=columns.pair or PAIR)
    if isinstance(data.inputs, Choices):
        columns = replace(columns, choices=columns.choices or (CHOICES,))
    if data.groups is not None:
        columns = replace(columns, group=columns.group or GROUP)
    return columns


def write_dataset(data: Dataset, path: Path, columns: Columns | None = None) -> None:
    """Write examples to a file atomically; `read_dataset` reads the same data back.

    Parameters
    ----------
    data : Dataset
        The examples, with or without labels.
    path : Path
        The file, with the suffix that `file_suffix` returns.
    columns : Columns, optional
        Names of the columns of a .jsonl.

    Raises
    ------
    InputError
        If a text is blank: it would be read as a missing value.

    Examples
    --------
    >>> import tempfile
    >>> from distilcal.data import texts
    >>> path = Path(tempfile.mkdtemp()) / "train.jsonl"
    >>> write_dataset(Dataset(texts(["a fine film", "dull"]), ["pos", "neg"], ("neg", "pos")), path)
    >>> print(path.read_text().splitlines()[1])
    {"id": "3a10cdf2a46b4e61", "text": "dull", "label": "neg"}
    """
    with atomic_write(path) as file:
        if file_suffix(data) == ".npz":
            np.savez(file, **_arrays(data))
            return
        for record in _records(data, file_columns(data, columns or Columns())):
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def _arrays(data: Dataset) -> dict[str, Any]:
    is_image = isinstance(data.inputs, Images)
    arrays: dict[str, Any] = {"images": data.inputs.pixels} if is_image else {"vectors": data.inputs.values}  # type: ignore[union-attr]
    arrays |= {"ids": data.ids, "labels": data.labels, "label_probs": data.label_probs, "groups": data.groups}
    if data.classes:
        arrays["classes"] = np.array(data.classes)
    return {name: values for name, values in arrays.items() if values is not None}


def _records(data: Dataset, columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield the examples as rows of a .jsonl."""
    values: dict[str, Sequence[Any]] = {columns.id: data.ids.tolist()}
    if isinstance(data.inputs, Choices):
        values[columns.text] = data.inputs.prompt.tolist()
        if len(columns.choices) == 1:
            values[columns.choices[0]] = data.inputs.endings.tolist()
        else:
            values |= dict(zip(columns.choices, data.inputs.endings.T.tolist(), strict=True))
    elif isinstance(data.inputs, Texts):
        values[columns.text] = data.inputs.text.tolist()
        if data.inputs.pair is not None:
            values[columns.pair] = data.inputs.pair.tolist()
    if data.labels is not None:
        names = (*data.classes, None)  # the index -1 stands for no label
        values[columns.label] = [names[label] for label in data.labels.tolist()]
    if data.label_probs is not None:
        label_probs = data.label_probs.astype(object)
        label_probs[~data.is_labelled] = None
        values |= {f"{SOFT_LABEL_PREFIX}{name}": label_probs[:, k].tolist() for k, name in enumerate(data.classes)}
    if columns.group:
        values[columns.group] = (data.ids if data.groups is None else data.groups).tolist()
    for name in (columns.text, columns.pair, columns.group):
        for number, text in enumerate(values.get(name, ())):
            if is_blank(text):
                raise InputError(
                    f"the {name!r} {text!r} is blank", source=data.name, row=number, remedy="fill it or drop the example"
                )
    for row in zip(*values.values(), strict=True):
        yield dict(zip(values, row, strict=True))
