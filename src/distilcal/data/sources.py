"""Where examples come from: tables, folders of images, arrays in ``.npz``, Hugging Face ``datasets``.

``read_dataset`` reads them all. Arrays in memory need no reader: ``Dataset(texts([...]), labels, classes=...)``. To add a
source, write a function that returns a Dataset and a case in ``read_dataset``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Dataset, Images, Inputs, Role, Vectors
from distilcal.data.image_source import read_image_folder
from distilcal.data.table_source import Columns, dataset_from_table, distinct_classes
from distilcal.errors import InputError, MissingDependencyError
from distilcal.io.atomic import NpzArrays, open_npz
from distilcal.io.tables import SUFFIXES, Table, read_table, table_kind

HUB_PREFIX = "hub:"
SAVED_DATASET_FILES = ("dataset_info.json", "dataset_dict.json", "state.json")


def read_dataset(
    source: str | Path,
    *,
    columns: Columns | None = None,
    classes: Sequence[str] | None = None,
    labelled: bool = True,
    name: str | None = None,
    role: Role | None = None,
    size: int | None = None,
    by_index: bool = True,
) -> Dataset:
    """Read examples from a file, a folder or the Hugging Face hub.

    Parameters
    ----------
    source : str or Path
        A table (.csv, .tsv, .jsonl, .parquet), an .npz with ``images`` or ``vectors``, a folder of pictures by class, a
        folder written by ``datasets.save_to_disk``, or ``hub:NAME[/CONFIG]@SPLIT``.
    columns : Columns, optional
        Which columns of a table hold what. By default they are found by their usual names.
    classes : sequence of str, optional
        Names and order of the classes; other labels are refused. By default the labels in the data.
    labelled : bool
        Whether data without labels are an error.
    name : str, optional
        Name of the data set. By default the source's own name without suffixes.
    role : {"train", "dev", "test", "ood"}, optional
        What the data may be used for.
    size : int, optional
        Width and height to which pictures of a folder are scaled.
    by_index : bool
        Whether labels of a table may be indices where the classes have other names. False refuses them: the order in
        which they count is not known.

    Returns
    -------
    Dataset
        The examples.

    Raises
    ------
    InputError
        If the source is missing, damaged or invalid.
    MissingDependencyError
        If the source needs a package that is not installed (pyarrow, datasets, Pillow).

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "reviews.csv"
    >>> _ = path.write_text("text,label\\ngood,pos\\nbad,neg\\n")
    >>> read_dataset(path)
    Dataset('reviews', 2 texts, 2 classes)
    """
    columns = columns or Columns()
    path = Path(source)
    if str(source).startswith(HUB_PREFIX):
        data = _read_hub(str(source).removeprefix(HUB_PREFIX), columns, classes, labelled)
    elif not path.exists():
        raise InputError("there is no such file or folder", source=str(path), remedy="check the path")
    elif path.is_dir() and any((path / file).exists() for file in SAVED_DATASET_FILES):
        data = _read_saved_dataset(path, columns, classes, labelled)
    elif path.is_dir():
        data = read_image_folder(path, classes, size)
    elif path.suffix.lower() == ".npz":
        data = _read_npz(path, classes, labelled)
    elif table_kind(path) in SUFFIXES:
        data = dataset_from_table(read_table(path), columns, classes, labelled=labelled, by_index=by_index)
    else:
        raise InputError(
            f"cannot read {path.suffix or 'a file without suffix'!r}",
            source=str(path),
            remedy=f"give one of {', '.join(SUFFIXES)}, .npz, or a folder",
        )
    if name is None:
        name = path.name.split(".")[0]
    return replace(data, name=name, role=role)


# ---- .npz --------------------------------------------------------------------------------------------------------------


def _read_npz(path: Path, classes: Sequence[str] | None, labelled: bool) -> Dataset:
    with open_npz(path) as arrays:
        inputs = _npz_inputs(arrays, path)
        labels, label_probs = arrays.get("labels"), arrays.get("label_probs")
        ids, groups, stored_classes = arrays.get("ids"), arrays.get("groups"), arrays.get("classes")
    if labelled and labels is None and label_probs is None:
        raise InputError("it has no labels", source=str(path), remedy="add an array 'labels'")
    names = tuple(classes or ())
    if stored_classes is not None:
        names = tuple(stored_classes.astype(str).tolist())
    elif not names and labels is not None:
        if labels.shape[1:] in ((), (1,)):
            labels = labels.ravel().astype(str)
        names = tuple(distinct_classes([str(label) for label in labels.tolist()]))
    ids = np.array([], dtype=str) if ids is None else ids
    data = Dataset(inputs, labels, names, ids, label_probs, groups, name=str(path))
    return data if classes is None else data.with_classes(classes)


def _npz_inputs(arrays: NpzArrays, path: Path) -> Inputs:
    if "images" in arrays:
        pixels = arrays["images"]
        if pixels.ndim == 3:  # grey: three times, for red, green and blue
            pixels = np.repeat(pixels[..., None], 3, axis=3)
        return Images(pixels)
    if "vectors" in arrays:
        values = arrays["vectors"]
        if values.dtype.kind not in "fiub":
            raise InputError(f"vectors of type {values.dtype}", source=str(path), remedy="give numbers")
        return Vectors(values.astype(np.float32))
    raise InputError(
        f"it holds {', '.join(sorted(arrays)) or 'nothing'}",
        source=str(path),
        remedy="it needs 'images' or 'vectors', and 'labels' (optional: ids, classes, label_probs, groups)",
    )


# ---- Hugging Face datasets ---------------------------------------------------------------------------------------------


def _read_saved_dataset(path: Path, columns: Columns, classes: Sequence[str] | None, labelled: bool) -> Dataset:
    datasets = _import_datasets()
    try:
        saved = datasets.load_from_disk(str(path))
    except _loading_errors(datasets) as error:
        raise InputError(
            f"cannot be read as a saved data set: {_first_line(error)[:160]}", source=str(path), remedy="save it again"
        ) from None
    if isinstance(saved, dict):
        raise InputError(f"it holds the splits {', '.join(saved)}", source=str(path), remedy=f"give one: {path}/SPLIT")
    return from_hugging_face(saved, str(path), columns, classes, labelled)


def _read_hub(name: str, columns: Columns, classes: Sequence[str] | None, labelled: bool) -> Dataset:
    """Read ``NAME@SPLIT``, ``OWNER/NAME@SPLIT`` or ``OWNER/NAME/CONFIG@SPLIT``."""
    repository, _, split = name.partition("@")
    if not split:
        raise InputError(f"{HUB_PREFIX}{name} names no split", remedy=f"write {HUB_PREFIX}{name}@train")
    parts = repository.split("/")
    identifier, config = "/".join(parts[:2]), "/".join(parts[2:]) or None
    datasets = _import_datasets()
    try:
        loaded = datasets.load_dataset(identifier, config, split=split)
    except _loading_errors(datasets) as error:
        raise InputError(
            f"cannot be loaded: {_first_line(error)[:200]}",
            source=f"{HUB_PREFIX}{name}",
            remedy="check the name and the network, or save it to a folder with save_to_disk and give that",
        ) from None
    return from_hugging_face(loaded, f"{HUB_PREFIX}{name}", columns, classes, labelled)


def from_hugging_face(loaded: Any, source: str, columns: Columns, classes: Sequence[str] | None, labelled: bool) -> Dataset:
    """Return the examples of a ``datasets.Dataset``, whose features tell images and the names of classes.

    Parameters
    ----------
    loaded : datasets.Dataset
        The rows.
    source : str
        Where they come from, for messages.
    columns : Columns
        Which columns hold what.
    classes : sequence of str, optional
        Names and order of the classes; by default those of the label's feature, or the labels in the data.
    labelled : bool
        Whether data without labels are an error.

    Returns
    -------
    Dataset
    """
    label_names = getattr(loaded.features.get(columns.label), "names", None)
    for column, feature in loaded.features.items():
        if type(feature).__name__ == "Image":
            names = tuple(label_names or classes or ())
            data = Dataset(Images(_stack_pictures(loaded[column])), np.array(loaded[columns.label]), names, name=source)
            return data if classes is None else data.with_classes(classes)
    values = {column: list(loaded[column]) for column in loaded.column_names}
    if label_names and columns.label in values:
        values[columns.label] = [_label_name(label, label_names) for label in values[columns.label]]
    return dataset_from_table(Table(source, values), columns, classes or label_names, labelled=labelled)


def _stack_pictures(pictures: Any) -> NDArray[np.uint8]:
    return np.stack([np.asarray(picture.convert("RGB")) for picture in pictures])


def _label_name(label: Any, names: Sequence[str]) -> Any:
    """Return the name of a class index; -1, which stands for no label, and names stay as they are."""
    return names[label] if isinstance(label, int) and label >= 0 else label


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingDependencyError("this source needs the package datasets", remedy="pip install 'distilcal[hub]'") from None
    datasets.disable_progress_bars()
    return datasets


def _loading_errors(datasets: Any) -> tuple[type[Exception], ...]:
    """Return what ``datasets`` raises for names, networks and files that it cannot use."""
    errors = [OSError, ValueError, RuntimeError, KeyError, TypeError, datasets.exceptions.DatasetsError]
    httpx = sys.modules.get("httpx")  # the hub's client, whose errors are no OSError
    if httpx is not None:
        errors.append(httpx.HTTPError)
    return tuple(errors)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
