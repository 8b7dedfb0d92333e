"""Where examples come from: tables, folders of images, arrays in .npz, Hugging Face ``datasets``; one function reads them all.

Arrays in memory need no reader: ``Dataset(texts([...]), labels, classes=...)``. To add a source, write a function that returns
a Dataset and a line in ``read_dataset``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Dataset, Images, Inputs, Role, Vectors, choices, listed, texts
from distilcal.errors import InputError
from distilcal.io.atomic import open_npz
from distilcal.io.tables import SUFFIXES, Table, kind_of, read_table
from distilcal.predictions import labels_from_text

VOTES = "label_prob_"  # soft labels: one column per class
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
HUB = "hub:"
WHOLE = re.compile(r"-?[0-9]{1,18}")
# Column names tried in this order where the user names none.
PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text", "text_pair"),
)
SINGLES = ("text", "sentence")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what. Empty: found by the usual names, see docs/data.md."""

    text: str = ""
    pair: str = ""
    choices: tuple[str, ...] = ()  # columns of endings, or one column that holds lists
    label: str = "label"
    id: str = ""  # empty: a column "id" if there is one, else made from content
    group: str = ""


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
    """Examples from a table, an .npz, a folder of images, a saved ``datasets`` folder, or ``hub:NAME[/CONFIG]@SPLIT``.

    ``classes`` fixes names and order (labels outside them are refused); without it they are found in the data. With
    ``labelled=False`` a source without labels is read too. ``size`` is the side to which pictures are scaled.
    ``by_index=False`` refuses numbers where classes have names: in which order they count is not known.
    """
    columns = columns or Columns()
    path = Path(source)
    if str(source).startswith(HUB):
        made = _from_hub(str(source).removeprefix(HUB), columns, classes, labelled)
    elif not path.exists():
        raise InputError("there is no such file or folder", source=str(path), remedy="check the path")
    elif path.is_dir():
        if any((path / mark).exists() for mark in ("dataset_info.json", "dataset_dict.json", "state.json")):
            made = _from_saved(path, columns, classes, labelled)
        else:
            made = _from_pictures(path, classes, size)
    elif path.suffix.lower() == ".npz":
        made = _from_npz(path, classes, labelled)
    elif kind_of(path) in SUFFIXES:
        made = from_table(read_table(path), columns, classes, labelled, by_index)
    else:
        raise InputError(
            f"cannot read {path.suffix or 'a file without suffix'!r}",
            source=str(path),
            remedy=f"give one of {', '.join(SUFFIXES)}, .npz, or a folder",
        )
    stem = path.name.split(".")[0] if name is None else name
    return replace(made, name=stem, role=role)


def from_table(
    table: Table, columns: Columns, classes: Sequence[str] | None = None, labelled: bool = True, by_index: bool = True
) -> Dataset:
    """The examples of a table."""
    found = _with_usual_names(table, columns)
    inputs: Inputs
    if found.choices:
        inputs = choices(table.filled(found.text), _endings(table, found.choices))
    else:
        inputs = texts(table.filled(found.text), table.filled(found.pair) if found.pair else None)
    votes = [c for c in table.columns if c.startswith(VOTES)]
    probs = None
    if votes:
        probs = _numbers(table, votes)
        given = [v.removeprefix(VOTES) for v in votes]
        if classes is None:
            classes = given
        elif sorted(given) != sorted(classes):
            raise InputError(f"the soft labels are for {listed(given)}, not {listed(list(classes))}", source=table.source,
                             remedy="name the columns label_prob_<class> for every class")  # fmt: skip
        probs = probs[:, [given.index(str(c)) for c in classes]]
    labels = None
    if found.label in table.columns:
        values = table.filled(found.label)
        if classes is None:
            classes = [str(i) for i in range(inputs.endings.shape[1])] if found.choices else _distinct(values)  # type: ignore[union-attr]
        if not by_index and not set(values) & set(classes) and all(WHOLE.fullmatch(v) for v in set(values)):
            raise InputError(
                f"labels are numbers ({values[0]}, …) where the classes are {listed(list(classes))}",
                source=table.source,
                remedy="write names, or say in which order they are numbered: classes = [...] in [data]",
            )
        try:
            labels = labels_from_text(np.array(values), tuple(classes))
        except InputError as error:
            place = {} if error.row is None else table.where(error.row)
            raise InputError(error.problem, source=table.source, remedy=error.remedy, **place) from None
    elif probs is None and labelled:
        table.column(found.label, "name the column of labels, as label = ... in [data] or --label")
    ids = np.array(table.filled(found.id)) if found.id else np.array([], dtype=str)
    groups = np.array(table.filled(found.group)) if found.group else None
    try:
        return Dataset(inputs, labels, tuple(classes or ()), ids, probs, groups, name=table.source)
    except InputError as error:
        if error.row is not None and table.lines:
            error.line = table.lines[error.row]
        error.source = table.source
        raise


def sheet(path: Path, *, side: int, across: int = 100) -> Images:
    """Images from one lossless picture that holds them in rows of ``across``."""
    whole = np.asarray(pillow().open(path).convert("RGB"))
    if whole.shape[0] % side or whole.shape[1] != side * across:
        raise InputError(
            f"a sheet of {whole.shape[1]} × {whole.shape[0]} pixels is no grid of {across} × {side}", source=str(path)
        )
    return Images(whole.reshape(-1, side, across, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3))


# ---- tables ------------------------------------------------------------------------------------------------------------


def _with_usual_names(table: Table, columns: Columns) -> Columns:
    have = set(table.columns)
    for name in (columns.text, columns.pair, columns.id, columns.group, *columns.choices):
        if name:
            table.column(name)
    if not columns.text:
        pair = next((p for p in PAIRS if set(p) <= have), None)
        if pair is not None and not columns.pair and not columns.choices:
            columns = replace(columns, text=pair[0], pair=pair[1])
        else:
            single = next((s for s in SINGLES if s in have), None)
            if single is None:
                table.column("text", "name the column of texts, as text = ... in [data] or --text")
            columns = replace(columns, text=single or "")
    return replace(columns, id=columns.id or ("id" if "id" in have else ""))


def _endings(table: Table, names: Sequence[str]) -> list[list[str]]:
    if len(names) > 1:
        return [list(row) for row in zip(*(table.filled(n) for n in names), strict=True)]
    rows = []
    for i, value in enumerate(table.column(names[0])):
        if not isinstance(value, list) or len(value) < 2:
            raise InputError(f"column {names[0]!r} holds no list of choices", source=table.source,
                             remedy="give a list, or one column per choice", **table.where(i))  # fmt: skip
        rows.append([str(v) for v in value])
    return rows


def _numbers(table: Table, names: Sequence[str]) -> NDArray[np.float64]:
    rows: list[list[float]] = []
    for i, row in enumerate(zip(*(table.column(n) for n in names), strict=True)):
        try:
            rows.append([float(v) for v in row])
        except (TypeError, ValueError):
            raise InputError(
                f"{row} are not all numbers", source=table.source, remedy="mend the row", **table.where(i)
            ) from None
    return np.array(rows)


def _distinct(values: Sequence[str]) -> list[str]:
    """The classes in the data: in numerical order where all are whole numbers, else in alphabetical order."""
    names = sorted(set(values))
    return sorted(names, key=int) if all(WHOLE.fullmatch(n) for n in names) else names


# ---- other sources -----------------------------------------------------------------------------------------------------


def _from_npz(path: Path, classes: Sequence[str] | None, labelled: bool) -> Dataset:
    with open_npz(path) as arrays:
        have = set(arrays)
        given = {k: arrays[k] for k in ("labels", "ids", "classes", "label_probs", "groups") if k in have}
        if "images" in have:
            pixels = arrays["images"]
            inputs: Inputs = Images(np.repeat(pixels[..., None], 3, axis=3) if pixels.ndim == 3 else pixels)
        elif "vectors" in have:
            values = arrays["vectors"]
            if values.dtype.kind not in "fiub":
                raise InputError(f"vectors of type {values.dtype}", source=str(path), remedy="give numbers")
            inputs = Vectors(values.astype(np.float32))
        else:
            raise InputError(
                f"it holds {', '.join(sorted(have)) or 'nothing'}",
                source=str(path),
                remedy="it needs 'images' or 'vectors', and 'labels' (optional: ids, classes, label_probs, groups)",
            )
    if labelled and "labels" not in given and "label_probs" not in given:
        raise InputError("it has no labels", source=str(path), remedy="add an array 'labels'")
    names = tuple(given["classes"].astype(str).tolist()) if "classes" in given else tuple(classes or ())
    if not names and "labels" in given:
        given["labels"] = given["labels"].ravel().astype(str) if given["labels"].shape[1:] in ((), (1,)) else given["labels"]
        names = tuple(_distinct([str(v) for v in given["labels"].tolist()]))
    made = Dataset(inputs, given.get("labels"), names, given.get("ids", np.array([], dtype=str)), given.get("label_probs"),
                   given.get("groups"), name=str(path))  # fmt: skip
    return made if classes is None else made.with_classes(classes)


def _from_pictures(path: Path, classes: Sequence[str] | None, size: int | None) -> Dataset:
    folders = sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))
    files = [(f.name, file) for f in folders for file in sorted(f.rglob("*")) if file.suffix.lower() in PICTURES]
    if not files:
        raise InputError("no folder of pictures per class is in it", source=str(path), remedy="lay it out as CLASS/PICTURE.png")
    image = pillow()
    pixels: NDArray[np.uint8] | None = None
    for i, (_, file) in enumerate(files):
        try:
            with image.open(file) as opened:
                picture = opened.convert("RGB")
        except (OSError, ValueError, image.DecompressionBombError):
            raise InputError("this picture cannot be read", source=str(file), remedy="mend or remove it") from None
        if size is not None and picture.size != (size, size):
            picture = picture.resize((size, size))
        values = np.asarray(picture)
        if pixels is None:
            pixels = np.empty((len(files), *values.shape), dtype=np.uint8)
        if values.shape != pixels.shape[1:]:
            raise InputError(
                f"this picture has {values.shape[1]} × {values.shape[0]} pixels, others {pixels.shape[2]} × {pixels.shape[1]}",
                source=str(file),
                remedy="scale them all to one size: size = ... in [data] or --size",
            )
        pixels[i] = values
    assert pixels is not None
    names = tuple(f.name for f in folders) if classes is None else tuple(classes)
    ids = np.array([str(file.relative_to(path)) for _, file in files])
    return Dataset(Images(pixels), np.array([label for label, _ in files]), names, ids, name=str(path))


def _from_saved(path: Path, columns: Columns, classes: Sequence[str] | None, labelled: bool) -> Dataset:
    try:
        saved = _datasets().load_from_disk(str(path))
    except InputError:
        raise
    except Exception as error:  # of many kinds
        what = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise InputError(f"cannot be read as a saved data set: {what}", source=str(path), remedy="save it again") from None
    if hasattr(saved, "keys"):
        raise InputError(f"it holds the splits {', '.join(saved.keys())}", source=str(path), remedy=f"give one: {path}/SPLIT")
    return _from_hugging_face(saved, str(path), columns, classes, labelled)


def _from_hub(name: str, columns: Columns, classes: Sequence[str] | None, labelled: bool) -> Dataset:
    repository, _, split = name.partition("@")
    parts = repository.split("/")
    identifier, config = ("/".join(parts[:2]), "/".join(parts[2:]) or None) if len(parts) > 1 else (repository, None)
    if not split:
        raise InputError(f"{HUB}{name} names no split", remedy=f"write {HUB}{name}@train")
    try:
        loaded = _datasets().load_dataset(identifier, config, split=split)
    except Exception as error:  # the hub's errors are of many kinds
        raise InputError(
            f"cannot be loaded: {str(error).splitlines()[0][:200]}",
            source=f"{HUB}{name}",
            remedy="check the name and the network, or save it to a folder with save_to_disk and give that",
        ) from None
    return _from_hugging_face(loaded, f"{HUB}{name}", columns, classes, labelled)


def _from_hugging_face(loaded: Any, source: str, columns: Columns, classes: Sequence[str] | None, labelled: bool) -> Dataset:
    features = loaded.features
    feature = features.get(columns.label)
    names = getattr(feature, "names", None)
    picture = next((c for c, f in features.items() if type(f).__name__ == "Image"), None)
    if picture is not None:
        pixels = np.stack([np.asarray(row.convert("RGB")) for row in loaded[picture]])
        made = Dataset(Images(pixels), np.array(loaded[columns.label]), tuple(names or classes or ()), name=source)
        return made if classes is None else made.with_classes(classes)
    values = {c: list(loaded[c]) for c in loaded.column_names}
    if names and columns.label in values:
        values[columns.label] = [names[v] if isinstance(v, int) and v >= 0 else v for v in values[columns.label]]
    return from_table(Table(source, values, []), columns, classes or names, labelled)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError("this source needs the package datasets", remedy="pip install 'distilcal[hub]'") from None
    datasets.disable_progress_bars()
    return datasets


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise InputError("pictures need Pillow", remedy="pip install 'distilcal[train]'") from None
    return Image
