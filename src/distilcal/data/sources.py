"""Where examples come from: tables, folders of images, arrays in ``.npz``, Hugging Face ``datasets``.

``read_dataset`` reads them all. Arrays in memory need no reader: ``Dataset(texts([...]), labels, classes=...)``. To add a
source, write a function that returns a Dataset and a case in ``read_dataset``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Dataset, Images, Inputs, Role, Vectors
from distilcal.data.image_source import as_rgb, read_image_folder, read_pictures
from distilcal.data.table_source import Columns, dataset_from_table, distinct_classes, label_columns, refuse_indices
from distilcal.errors import InputError, MissingDependencyError
from distilcal.io.atomic import NpzArrays, open_npz
from distilcal.io.tables import SUFFIXES, Table, read_table, table_kind
from distilcal.predictions import labels_from_text

HUB_PREFIX = "hub:"
# What is done about labels: all must be there, all or none, some may be missing, or none is read.
LabelRule = Literal["required", "optional", "partly", "ignored"]
SAVED_DATASET_FILES = ("dataset_info.json", "dataset_dict.json", "state.json")


def read_dataset(
    source: str | Path,
    *,
    columns: Columns | None = None,
    classes: Sequence[str] | None = None,
    labelled: bool = True,
    partly: bool = False,
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
    partly : bool
        Whether examples without a label (an empty cell, -1 in an .npz or a data set of the hub) are read as unlabelled ones,
        with label -1. By default they are an error.
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
    labels: LabelRule = "partly" if partly else "required"
    reading = _Reading(columns or Columns(), classes, labels if labelled else "optional", size, by_index)
    data = _read(source, reading)
    if not partly and data.labels is not None and not data.is_labelled.all():
        row = int((~data.is_labelled).argmax())
        raise InputError("this example has no label", source=str(source), row=row, remedy="label it, or leave it out")
    return replace(data, name=_source_name(source) if name is None else name, role=role)


def read_unlabelled(source: str | Path, *, columns: Columns | None = None, size: int | None = None) -> Dataset:
    """Read examples without their labels: whatever the source holds of them is not looked at.

    Parameters
    ----------
    source : str or Path
        As for `read_dataset`; the pictures of a folder need not be in folders of classes.
    columns : Columns, optional
        Which columns of a table hold what; a column of groups may be missing.
    size : int, optional
        Width and height to which pictures of a folder are scaled.

    Returns
    -------
    Dataset
        The examples, without labels and classes, named after the source.

    Raises
    ------
    InputError
        If the source is missing, damaged or invalid.
    MissingDependencyError
        If the source needs a package that is not installed (pyarrow, datasets, Pillow).

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "more.csv"
    >>> _ = path.write_text("text,label\\nfine,?\\nfair,\\n")
    >>> read_unlabelled(path)
    Dataset('more', 2 texts, 0 classes)
    """
    data = _read(source, _Reading(columns or Columns(), None, "ignored", size))
    return replace(data, name=_source_name(source))


@dataclass(frozen=True)
class _Reading:
    """How a source is read."""

    columns: Columns
    classes: Sequence[str] | None  # names and order of the classes, where they are known before
    labels: LabelRule
    size: int | None = None  # of pictures
    by_index: bool = True


def _read(source: str | Path, reading: _Reading) -> Dataset:
    path = Path(source)
    if str(source).startswith(HUB_PREFIX):
        return _read_hub(str(source).removeprefix(HUB_PREFIX), reading)
    if not str(source):
        raise InputError("the path of the data is empty", remedy="name a file, a folder, hub:NAME@SPLIT or benchmark:NAME")
    if not os.path.exists(path):  # also for names that are too long for the file system, where Path.exists raises
        raise InputError("there is no such file or folder", source=str(path), remedy="check the path")
    if path.is_dir() and any((path / file).exists() for file in SAVED_DATASET_FILES):
        return _read_saved_dataset(path, reading)
    if path.is_dir() and reading.labels == "ignored":
        return read_pictures(path, reading.size)
    if path.is_dir():
        return read_image_folder(path, reading.classes, reading.size)
    if path.suffix.lower() == ".npz":
        try:
            return _read_npz(path, reading)
        except InputError as error:
            error.source = str(path)
            raise
    if table_kind(path) in SUFFIXES:
        return _read_table(read_table(path), reading)
    raise InputError(
        f"cannot read {path.suffix or 'a file without suffix'!r}",
        source=str(path),
        remedy=f"give one of {', '.join(SUFFIXES)}, .npz, or a folder",
    )


def _source_name(source: str | Path) -> str:
    return Path(source).name.split(".")[0]


def _read_table(table: Table, reading: _Reading) -> Dataset:
    columns = reading.columns
    if reading.labels != "ignored":
        return dataset_from_table(
            table,
            columns,
            reading.classes,
            labelled=reading.labels != "optional",
            partly=reading.labels == "partly",
            by_index=reading.by_index,
        )
    labels = label_columns(table, columns)
    others = {name: values for name, values in table.columns.items() if name not in labels}
    group = columns.group if columns.group in others else ""
    return dataset_from_table(replace(table, columns=others), replace(columns, group=group), labelled=False)


# ---- .npz --------------------------------------------------------------------------------------------------------------


def _read_npz(path: Path, reading: _Reading) -> Dataset:
    classes = reading.classes
    with open_npz(path) as arrays:
        inputs = _npz_inputs(arrays, path)
        labels, label_probs = arrays.get("labels"), arrays.get("label_probs")
        ids, groups, stored_classes = arrays.get("ids"), arrays.get("groups"), arrays.get("classes")
    ids = np.array([], dtype=str) if ids is None else ids
    if reading.labels == "ignored":
        return Dataset(inputs, ids=ids, groups=groups, name=str(path))
    if reading.labels != "optional" and labels is None and label_probs is None:
        raise InputError("it has no labels", source=str(path), remedy="add an array 'labels'")
    stored = () if stored_classes is None else tuple(np.atleast_1d(stored_classes).astype(str).tolist())
    names = stored or tuple(classes or ())
    if labels is not None:
        labels, names = _array_labels(labels, stored, reading, str(path))
    data = Dataset(inputs, labels, names, ids, label_probs, groups, name=str(path))
    return data if classes is None else data.with_classes(classes)


def _array_labels(
    labels: NDArray[Any], own_classes: tuple[str, ...], reading: _Reading, source: str
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """The indices of labels, -1 where there is none (-1, NaN, None or an empty text), and the classes.

    A number is an index where the source lists its own classes. Else it is a name, as in a table: the classes of other data,
    such as 1, 2 and 3, say nothing about the order in which these labels count.
    """
    if labels.shape[1:] not in ((), (1,)):
        raise InputError(f"labels of shape {labels.shape}", source=source, remedy="give one per example")
    labels = labels.ravel()
    if own_classes and labels.dtype.kind in "iu":
        return labels, own_classes
    given = tuple(reading.classes or ())
    texts = _label_texts(labels)
    rows = np.flatnonzero(~np.isin(texts, ("",) if "-1" in (own_classes or given) else ("", "-1")))
    names = own_classes or given or tuple(distinct_classes(texts[rows].tolist()))
    if given and not own_classes and not reading.by_index:
        refuse_indices(texts[rows].tolist(), given, source)
    indices = np.full(len(texts), -1)
    try:
        indices[rows] = labels_from_text(texts[rows], names)
    except InputError as error:
        error.row = None if error.row is None else int(rows[error.row])
        raise
    return indices, names


def _label_texts(labels: NDArray[Any]) -> NDArray[np.str_]:
    """Labels as text: whole numbers without a point, which they get beside a missing one, and nothing for a missing one."""
    if labels.dtype.kind not in "fO":
        return labels.astype(str)
    texts = []
    for label in labels.tolist():
        if label is None or label != label:
            texts.append("")
        else:
            texts.append(str(int(label)) if isinstance(label, float) and label.is_integer() else str(label))
    return np.array(texts, dtype=str)


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
        with np.errstate(over="ignore"):  # what is too large for float32 is infinite then, and refused
            return Vectors(values.astype(np.float32))
    raise InputError(
        f"it holds {', '.join(sorted(arrays)) or 'nothing'}",
        source=str(path),
        remedy="it needs 'images' or 'vectors', and 'labels' (optional: ids, classes, label_probs, groups)",
    )


# ---- Hugging Face datasets ---------------------------------------------------------------------------------------------


def _read_saved_dataset(path: Path, reading: _Reading) -> Dataset:
    datasets = _import_datasets()
    try:
        saved = datasets.load_from_disk(str(path))
    except _loading_errors(datasets) as error:
        raise InputError(
            f"cannot be read as a saved data set: {_first_line(error)[:160]}", source=str(path), remedy="save it again"
        ) from None
    if isinstance(saved, dict):
        raise InputError(f"it holds the splits {', '.join(saved)}", source=str(path), remedy=f"give one: {path}/SPLIT")
    return _from_hugging_face(saved, str(path), reading)


def _read_hub(name: str, reading: _Reading) -> Dataset:
    return _from_hugging_face(load_from_hub(name), f"{HUB_PREFIX}{name}", reading)


def load_from_hub(name: str) -> Any:
    """Load one split of a data set of the Hugging Face hub. Code that comes with a data set is never run.

    Parameters
    ----------
    name : str
        ``NAME@SPLIT``, ``OWNER/NAME@SPLIT`` or ``OWNER/NAME/CONFIG@SPLIT``.

    Returns
    -------
    datasets.Dataset

    Raises
    ------
    InputError
        If no split is named, or it cannot be loaded.
    MissingDependencyError
        If ``datasets`` is not installed.
    """
    repository, _, split = name.partition("@")
    if not split:
        raise InputError(f"{HUB_PREFIX}{name} names no split", remedy=f"write {HUB_PREFIX}{name}@train")
    parts = repository.split("/")
    identifier, config = "/".join(parts[:2]), "/".join(parts[2:]) or None
    datasets = _import_datasets()
    try:
        return datasets.load_dataset(identifier, config, split=split)
    except _loading_errors(datasets) as error:
        raise InputError(
            f"cannot be loaded: {_first_line(error)[:200]}",
            source=f"{HUB_PREFIX}{name}",
            remedy="check the name and the network, or save it to a folder with save_to_disk and give that",
        ) from None


def from_hugging_face(
    loaded: Any, source: str, columns: Columns, classes: Sequence[str] | None, labelled: bool, *, partly: bool = False
) -> Dataset:
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
        Whether to read labels.
    partly : bool
        Whether examples with the label -1 or none are unlabelled ones. By default they are an error.

    Returns
    -------
    Dataset
    """
    labels: LabelRule = "partly" if partly else "required"
    return _from_hugging_face(loaded, source, _Reading(columns, classes, labels if labelled else "ignored"))


def _from_hugging_face(loaded: Any, source: str, reading: _Reading) -> Dataset:
    label, classes = reading.columns.label, reading.classes
    label_names = getattr(loaded.features.get(label), "names", None)
    for column, feature in loaded.features.items():
        if type(feature).__name__ == "Image":
            if reading.labels == "ignored":
                return Dataset(Images(_read_pictures(loaded, column, source, reading.size)), name=source)
            Table(source, dict.fromkeys(loaded.column_names, ())).require(label)
            labels, names = _array_labels(np.array(loaded[label][:]), tuple(label_names or ()), reading, source)
            data = Dataset(Images(_read_pictures(loaded, column, source, reading.size)), labels, names, name=source)
            return data if classes is None else data.with_classes(classes)
    values = {column: list(loaded[column]) for column in loaded.column_names}
    if label_names and label in values:
        unlabelled = None if reading.labels == "partly" else -1
        values[label] = [_label_name(value, label_names, unlabelled) for value in values[label]]
    # The hub's own order of classes tells what a number means.
    return _read_table(Table(source, values), replace(reading, classes=classes or label_names, by_index=True))


def _read_pictures(loaded: Any, column: str, source: str, size: int | None) -> NDArray[np.uint8]:
    """The pictures of a column, scaled to a size if there is one: all must have the same."""
    pixels: list[NDArray[np.uint8]] = []
    try:
        for picture in loaded[column]:
            if picture is None:
                raise InputError(f"column {column!r} has no picture", row=len(pixels), remedy="fill or drop the row")
            rgb = as_rgb(picture)
            pixels.append(np.asarray(rgb if size is None else rgb.resize((size, size))))
            if pixels[-1].shape != pixels[0].shape:
                (height, width), (first_height, first_width) = pixels[-1].shape[:2], pixels[0].shape[:2]
                raise InputError(
                    f"this picture has {width} × {height} pixels, the first {first_width} × {first_height}",
                    row=len(pixels) - 1,
                    remedy="scale them all to one size",
                )
    except InputError as error:
        error.source = source
        raise
    except (OSError, SyntaxError, ValueError):
        raise InputError("this picture cannot be read", source=source, row=len(pixels), remedy="fix or drop it") from None
    return np.stack(pixels)


def _label_name(label: Any, names: Sequence[str], unlabelled: Any) -> Any:
    """Return the name of a class index, ``unlabelled`` for -1, which stands for no label; names stay as they are."""
    if not isinstance(label, int):
        return label
    return names[label] if label >= 0 else unlabelled


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
