"""What the readers of benchmarks share: finding files, dividing at random, ids from content.

Whatever is divided at random is divided by ``divide`` with one fixed seed, and files in class order are shuffled with it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Choices, Dataset, Texts, choices, texts
from distilcal.data.table_source import Columns, dataset_from_table
from distilcal.errors import InputError
from distilcal.io.tables import Table, read_table

SplitsByName = dict[str, Dataset]
Group = Literal["", "text", "pair", "prompt"]  # which part of the input must not be divided
SEED = 20  # of every division and shuffle: part of what a benchmark is
SHARES = {
    "train+dev": (0.9, 0.1),
    "dev+test": (0.5, 0.5),
    "train+dev+test": (0.7, 0.1, 0.2),
}


def divide(
    whole: Dataset, names: str, shares: Sequence[float] = (), rows: Mapping[str, int] = MappingProxyType({})
) -> SplitsByName:
    """Divide data at random by a fixed seed.

    Parameters
    ----------
    whole : Dataset
        The data; groups stay together, without groups equal texts do.
    names : str
        Names of the parts, such as ``train+dev+test``; a single name stands for the whole.
    shares : sequence of float
        Share of each part. By default those of ``SHARES``.
    rows : mapping of str to int
        In place of shares: the number of rows of all parts but one, as near as whole groups allow.

    Returns
    -------
    dict of str to Dataset
        The parts by name.
    """
    *first, last = names.split("+")
    if first and rows:
        rest = len(whole) - sum(rows.values())
        shares = [rows.get(name, rest) / len(whole) for name in (*first, last)]
    parts: SplitsByName = {}
    left = 1.0
    for name, share in zip(first, shares or SHARES.get(names, ()), strict=False):
        parts[name], whole = _by_group(whole, share / left)
        left -= share
    return {**parts, last: whole}


def _by_group(data: Dataset, fraction: float) -> tuple[Dataset, Dataset]:
    """Divide in two parts that share no group, or without groups no text. Groups have equal chances, whatever their size."""
    keys = _hashes(data.inputs.contents(loosely=True)) if data.groups is None else data.groups
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    chosen, _ = data.select(first).split(fraction, seed=SEED, grouped=False)
    in_first_part = np.isin(data.ids[first], chosen.ids)[group]
    return data.select(in_first_part), data.select(~in_first_part)


def with_content_ids(data: Dataset, group: Group = "") -> Dataset:
    """Return the same data with ids made from content, and no blanks around texts.

    Some splits have such blanks and others not, and some tokenisers make a token of them.

    Parameters
    ----------
    data : Dataset
        The data; their ids are replaced.
    group : {"", "text", "pair", "prompt"}, default ""
        The part of the input of which each distinct value becomes a group; with "" the data have no groups.

    Returns
    -------
    Dataset
        The rows in the same order.
    """
    inputs = data.inputs
    match inputs:
        case Texts(text, pair):
            inputs = texts([t.strip() for t in text], None if pair is None else [t.strip() for t in pair])
        case Choices(prompt, endings):
            inputs = choices([t.strip() for t in prompt], [[t.strip() for t in row] for row in endings])
    groups = text_hashes(getattr(inputs, group)) if group else None
    return replace(data, inputs=inputs, ids=np.array([], dtype=str), groups=groups)


def shuffled(data: Dataset) -> Dataset:
    """Return the same rows in a random order that is fixed by ``SEED``.

    Parameters
    ----------
    data : Dataset
        The data.

    Returns
    -------
    Dataset
        The reordered rows, the same at every call.
    """
    return data.select(np.random.default_rng(SEED).permutation(len(data)))


def text_hashes(values: Iterable[str]) -> NDArray[np.str_]:
    """Return short hashes of texts that ignore case and spacing: an array of the texts would take the longest one's room.

    Parameters
    ----------
    values : iterable of str
        The texts.

    Returns
    -------
    ndarray of str, shape (N,)
        A hash of 16 hexadecimal digits per text.

    Examples
    --------
    >>> first, second, third = text_hashes(["Good  film", "good film", "bad film"])
    >>> first == second, first == third
    (True, False)
    """
    return _hashes(" ".join(v.casefold().split()).encode() for v in values)


def _hashes(contents: Iterable[bytes]) -> NDArray[np.str_]:
    return np.array([hashlib.blake2b(content, digest_size=8).hexdigest() for content in contents])


def find_file(folder: Path, pattern: str) -> Path:
    """Return the one file of a folder that matches a pattern.

    Parameters
    ----------
    folder : Path
        The folder to search.
    pattern : str
        A glob pattern such as ``train.tsv*``.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If no file matches, or several do.
    """
    matches = sorted(folder.glob(pattern))
    if len(matches) != 1:
        what = ", ".join(match.name for match in matches) or "none"
        raise InputError(
            f"one file {pattern} is needed, and there is {what}", source=str(folder), remedy="see docs/benchmarks.md"
        )
    return matches[0]


def find_table(folder: Path, pattern: str, header: Sequence[str] | None = None) -> Table:
    """Read the one table of a folder that matches a pattern.

    Parameters
    ----------
    folder : Path
        The folder to search.
    pattern : str
        A glob pattern such as ``train.tsv*``. Quotes in .tsv files are part of the text.
    header : sequence of str, optional
        The names of the columns, for files without a line of names.

    Returns
    -------
    Table
        The columns of the file.

    Raises
    ------
    InputError
        If no file matches, or several do, or if the file is not such a table.
    """
    path = find_file(folder, pattern)
    return read_table(path, quoted=".tsv" not in path.name, header=header)


def read_tables(
    folder: Path,
    files: Mapping[str, str],
    classes: Sequence[str],
    columns: Columns | None = None,
    *,
    group: Group = "",
    header: Sequence[str] | None = None,
    drop: str = "",
    shuffle: bool = False,
    rows: Mapping[str, int] = MappingProxyType({}),
) -> SplitsByName:
    """Read splits from one table each.

    Parameters
    ----------
    folder : Path
        The folder of the benchmark.
    files : mapping of str to str
        Pattern of the file for each split; that of ``dev+test`` is divided.
    classes : sequence of str
        The classes in order.
    columns : Columns, optional
        Which columns hold what. By default they are found by their usual names.
    group : {"", "text", "pair", "prompt"}
        Which part of the input must not be divided by a split.
    header : sequence of str, optional
        Column names of files without a header.
    drop : str
        Label of rows that are left out.
    shuffle : bool
        Whether the files are in class order and must be shuffled.
    rows : mapping of str to int
        Number of rows of the part that is held out of a file, such as ``{"dev": 5000}``. By default the usual shares.

    Returns
    -------
    dict of str to Dataset
        The splits by name.
    """
    columns = columns or Columns()
    splits: SplitsByName = {}
    for names, pattern in files.items():
        table = find_table(folder, pattern, header)
        if drop:
            labels = table.values(columns.label)
            table = table.select([row for row, label in enumerate(labels) if label != drop])
        data = with_content_ids(dataset_from_table(table, columns, classes), group)
        splits |= divide(shuffled(data) if shuffle else data, names, rows=rows)
    return splits


def read_json_file(path: Path) -> Any:
    """Return the content of a JSON file.

    Parameters
    ----------
    path : Path
        The file, which may be compressed as .gz.

    Returns
    -------
    object
        The parsed value.
    """
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
