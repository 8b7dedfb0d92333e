"""The data and models of a call of `distilcal.distill`, as the files and folders that a recipe names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from distilcal.data.convert import names_classes, split_data, to_dataset
from distilcal.data.dataset import Dataset
from distilcal.data.splits import BENCHMARK_PREFIX, read_benchmark
from distilcal.data.table_source import Columns, distinct_classes
from distilcal.data.writing import file_columns
from distilcal.errors import InputError, list_names
from distilcal.io.tables import SUFFIXES, table_kind
from distilcal.pipeline.distill import DistillSettings, refuse_labels_of_predictions
from distilcal.pipeline.in_memory import InMemory
from distilcal.predictions import Predictions

LONGEST_PATH = 255  # a longer text is an example


@dataclass(frozen=True)
class CallSources:
    """Data and models as the caller of ``distill`` passed them; see its parameters."""

    train: Any
    dev: Any
    test: Any
    unlabelled: Any
    ood: Any
    teacher: Any
    student: Any


def _is_path(source: Any) -> bool:
    return isinstance(source, str | Path)


def _is_missing(source: Any) -> bool:
    return source is None or (isinstance(source, str) and not source)


def add_sources(settings: DistillSettings, sources: CallSources, inputs: InMemory) -> DistillSettings:
    """Return the settings with a file or folder for each source; what is in memory is added to the inputs.

    Parameters
    ----------
    settings : DistillSettings
        Everything but data and models.
    sources : CallSources
        Paths, or Python objects.
    inputs : InMemory
        Receives the objects.

    Returns
    -------
    DistillSettings

    Raises
    ------
    InputError
        If data are missing, empty or invalid, with the argument and the row.
    """
    settings = _add_data(settings, sources, inputs)
    teacher, student = sources.teacher, sources.student
    source = str(teacher) if _is_path(teacher) else inputs.add_teacher(teacher)
    settings = settings.replace(teacher=source)
    if isinstance(teacher, Predictions):
        refuse_labels_of_predictions(settings)
    if student is None:
        return settings
    return settings.replace(student=str(student) if _is_path(student) else inputs.add_model("student", student))


def _add_data(settings: DistillSettings, sources: CallSources, inputs: InMemory) -> DistillSettings:
    given = {"train": sources.train, "dev": sources.dev, "test": sources.test}
    splits = split_data(sources.train)
    if splits is not None:
        if "train" not in splits:
            raise InputError(
                f"it has the splits {list_names(list(splits))}", source="train", remedy="give one with a split train"
            )
        given |= {split: part for split, part in splits.items() if split == "train" or _is_missing(given[split])}
    if _is_missing(given["train"]):
        raise InputError("there are no training data", remedy="give a file, a DataFrame, a list or a Dataset as train")
    columns = _columns(settings)
    classes: Sequence[str] | None = settings.classes or None
    ordered = bool(classes)  # whether labels of the other splits may be indices of the classes
    named: dict[str, str] = {}
    for split, source in given.items():
        if _is_missing(source) or _is_path(source):
            named[split] = "" if source is None else str(source)
            continue
        if classes is None and split != "train":
            classes = _classes_of(named["train"], columns)
        partly = split == "train"
        data = to_dataset(source, argument=split, columns=columns, classes=classes, partly=partly, by_index=ordered)
        named[split] = inputs.add_data(split, data)
        classes = data.classes
        if split == "train":
            ordered = ordered or names_classes(source, columns.label) or not _finds_classes(data)
            settings = settings.replace(classes=classes if ordered else ())
    ood: list[str] = []
    taken: list[str] = []
    for name, source in _domains(sources.ood, settings.label):
        if _is_path(source) and name in ("", _own_name(str(source))):
            ood.append(str(source))
            continue
        classes = classes or _classes_of(named["train"], columns)
        name = _unused(name, taken)
        taken.append(name)
        ood.append(inputs.add_data(f"ood/{name}", _read(source, f"ood {name}", columns, classes, ordered)))
    unlabelled = []
    for name, source in _unlabelled(sources.unlabelled):
        if not _is_path(source):
            source = inputs.add_data(name, to_dataset(source, argument="unlabelled", columns=columns, labelled=False))
        unlabelled.append(str(source))
    settings = settings.replace(**named, ood=tuple(ood), unlabelled=tuple(unlabelled))
    return _with_file_columns(settings, inputs)


def _columns(settings: DistillSettings) -> Columns:
    return Columns(settings.text, settings.pair, settings.choices, settings.label, settings.id_column, settings.group)


def _classes_of(source: str, columns: Columns) -> Sequence[str]:
    return _read(source, "train", columns, None).classes


def _finds_classes(data: Dataset) -> bool:
    """Whether the file of these data has the same classes in the same order when nobody lists them."""
    assert data.labels is not None
    found = [data.classes[index] for index in np.unique(data.labels[data.is_labelled])]
    return tuple(distinct_classes(found)) == data.classes


def _read(source: Any, argument: str, columns: Columns, classes: Sequence[str] | None, by_index: bool = True) -> Dataset:
    if isinstance(source, str) and source.startswith(BENCHMARK_PREFIX):
        role: Literal["train", "ood"] = "train" if argument == "train" else "ood"
        return read_benchmark(source.removeprefix(BENCHMARK_PREFIX), role, classes)
    partly = argument == "train"
    return to_dataset(source, argument=argument, columns=columns, classes=classes, partly=partly, by_index=by_index)


def _domains(ood: Any, label: str) -> Iterator[tuple[str, Any]]:
    """Yield the other domains by name; a path without a name keeps its own."""
    if _is_missing(ood) or (isinstance(ood, tuple | list) and not ood):
        return
    if isinstance(ood, Mapping) and label not in ood:
        for name, source in ood.items():
            yield re.sub(r"[^\w-]+", "-", str(name)).strip("-") or "ood", source
    elif _is_list_of_sources(ood):
        for number, source in enumerate(ood, start=1):
            yield ("" if _is_path(source) else f"ood-{number}"), source
    else:
        yield ("" if _is_path(ood) else "ood"), ood


def _unused(name: str, taken: Sequence[str]) -> str:
    """The name, with a number if another domain has it: two names may differ only in what a file cannot be called."""
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}-{number}", number + 1
    return candidate


def _unlabelled(unlabelled: Any) -> Iterator[tuple[str, Any]]:
    """Yield the sources of unlabelled examples with names for their files."""
    if _is_missing(unlabelled) or (isinstance(unlabelled, tuple | list) and not unlabelled):
        return
    is_list = _is_list_of_sources(unlabelled) and not any(isinstance(part, str) and not _is_source(part) for part in unlabelled)
    for number, source in enumerate(unlabelled if is_list else [unlabelled], start=1):
        yield ("unlabelled" if number == 1 else f"unlabelled-{number}"), source


def _is_list_of_sources(value: Any) -> bool:
    """Whether this is a list of data sets, not one data set that is a list of examples."""
    if not isinstance(value, tuple | list) or not value:
        return False
    return all(_is_path(part) or any(hasattr(part, name) for name in ("columns", "column_names", "inputs")) for part in value)


def _is_source(text: str) -> bool:
    """Whether a text in a list is the name of data, not an example: it has a prefix or a suffix of one, or exists."""
    if text.startswith(("hub:", "benchmark:")) or table_kind(Path(text)) in (*SUFFIXES, ".npz"):
        return True
    return len(text) < LONGEST_PATH and Path(text).exists()


def _own_name(source: str) -> str:
    """The name that data from a file or benchmark have in results."""
    return source.removeprefix("benchmark:") if source.startswith("benchmark:") else Path(source).name.split(".")[0]


def _with_file_columns(settings: DistillSettings, inputs: InMemory) -> DistillSettings:
    """Name the columns of files that are written and have no usual name that a recipe would find."""
    for data in inputs.datasets.values():
        columns = file_columns(data, _columns(settings))
        settings = settings.replace(choices=columns.choices, group=columns.group)
        if settings.text:
            settings = settings.replace(pair=columns.pair)
    inputs.columns = _columns(settings)
    return settings
