"""Splits: the train, dev and test data of a recipe and its other domains, and which examples they share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from distilcal.config.schema import DataSettings
from distilcal.data.catalogue import DataSource, load_benchmark
from distilcal.data.corruptions import corrupted, parse_corruption
from distilcal.data.dataset import Dataset, Images, Role, overlap
from distilcal.data.image_source import resize_images
from distilcal.data.joining import concatenate
from distilcal.data.near_duplicates import match_sketches, sketch
from distilcal.data.sources import read_dataset, read_unlabelled
from distilcal.data.table_source import Columns
from distilcal.data.unlabelled import add_unlabelled, check_same_kind, labelled_part
from distilcal.errors import InputError

BENCHMARK_PREFIX = "benchmark:"
SHOWN_PAIRS = 3  # examples of near-duplicates
# Which split of a benchmark serves as dev or test set of another training set, in this order.
SUBSTITUTES: dict[Role, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("dev", "test", "train"),
    "test": ("test", "dev", "train"),
    "ood": ("test", "dev", "train"),
}


@dataclass(frozen=True)
class Overlap:
    """Examples of one split that another one holds too.

    Attributes
    ----------
    first, second : str
        Names of the splits.
    rows : int
        How many examples of the second are in the first.
    share : float
        The same as a fraction of the second.
    """

    first: str
    second: str
    rows: int
    share: float


@dataclass(frozen=True)
class NearOverlap(Overlap):
    """Examples of one split that nearly repeat one of another, such as a text with other punctuation or one word changed.

    Attributes
    ----------
    examples : tuple of (str, str)
        Ids of the first few: the example of the first split, and that of the second.
    """

    examples: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Splits:
    """The data of a recipe.

    Attributes
    ----------
    train : Dataset
        What models are trained on: the labelled examples, then the unlabelled ones, whose label is -1.
    dev : Dataset
        What epochs, settings and calibrators are chosen on.
    test : Dataset
        What is only evaluated at the end.
    ood : tuple of Dataset
        Other domains and corruptions, also only evaluated.
    labelled : Dataset
        The labelled examples of train, which stages train on that cannot use others. By default those rows of ``train``; given
        where they were read before unlabelled ones were added, so that such a stage has the same key with and without these.
        Where nothing is labelled, all of train.

    Examples
    --------
    >>> import numpy as np
    >>> from distilcal.data import texts
    >>> train, dev, test = (
    ...     Dataset(texts(words), np.array([0, 1]), ("a", "b"), name=name)
    ...     for name, words in (("train", ["x", "y"]), ("dev", ["u", "v"]), ("test", ["Y", "w"]))
    ... )
    >>> Splits(train, dev, test).overlaps()
    [Overlap(first='train', second='test', rows=1, share=0.5)]
    """

    train: Dataset
    dev: Dataset
    test: Dataset
    ood: tuple[Dataset, ...] = ()
    labelled: Dataset = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.labelled is None:
            labelled = labelled_part(self.train) if self.train.is_labelled.any() else self.train
            object.__setattr__(self, "labelled", labelled)

    def __iter__(self) -> Iterator[Dataset]:
        return iter((self.train, self.dev, self.test, *self.ood))

    def overlaps(self) -> list[Overlap]:
        """Return what every other split shares with train, and test with dev, by content.

        Unlabelled examples of train are named apart: what they share is known to training without its labels.
        """
        overlaps = []
        for first, second in self._compared():
            rows = len(overlap(first, second))
            if rows:
                overlaps.append(Overlap(first.name, second.name, rows, rows / len(second)))
        return overlaps

    def near_overlaps(self) -> list[NearOverlap]:
        """Return the same for examples that nearly repeat one of another split and are not among `overlaps`."""
        pairs = self._compared()
        sketches = {data.name: sketch(data) for pair in pairs for data in pair}
        overlaps = []
        for first, second in pairs:
            rows, matches = match_sketches(sketches[first.name], sketches[second.name])
            if len(rows):
                ids = zip(first.ids[matches[:SHOWN_PAIRS]].tolist(), second.ids[rows[:SHOWN_PAIRS]].tolist(), strict=True)
                overlaps.append(NearOverlap(first.name, second.name, len(rows), len(rows) / len(second), tuple(ids)))
        return overlaps

    def _compared(self) -> list[tuple[Dataset, Dataset]]:
        """The pairs of splits that should share nothing: parts of train with every other split, and dev with test."""
        others = (self.dev, self.test, *self.ood)
        pairs = [(part, other) for part in self._parts_of_train() for other in others]
        return [*pairs, (self.dev, self.test)]

    def _parts_of_train(self) -> list[Dataset]:
        """The labelled examples of train, and the unlabelled ones under a name of their own, as far as there are any."""
        is_labelled = self.train.is_labelled
        if is_labelled.all():
            return [self.train]
        unlabelled = replace(self.train.select(~is_labelled), name=f"{self.train.name} (unlabelled)")
        return [self.labelled, unlabelled] if is_labelled.any() else [unlabelled]


def read_splits(settings: DataSettings, loaded: Mapping[str, Dataset] = MappingProxyType({})) -> Splits:
    """Read the splits that settings describe.

    Dev and test data that the settings do not name are those of the benchmark, or else held out of train. Corruptions are
    made of the final test set, so that their results are about the same examples. Examples of train without a label and those
    of ``unlabelled`` are the last rows of train, with label -1.

    Parameters
    ----------
    settings : DataSettings
        The ``[data]`` section of a recipe.
    loaded : mapping of str to Dataset
        Sources that are in memory and need not be read, by the names that the settings give them.

    Returns
    -------
    Splits
        The splits, each with its role, named train, dev, test, and after their sources.

    Raises
    ------
    InputError
        If a source is invalid, or the sources do not hold the same kind of data and classes.
    """
    corruptions = [parse_corruption(text) for text in settings.corrupt]
    train, dev, test = _read_train_dev_test(settings, loaded)
    ood = [_read_source(source, settings, "ood", train.classes, loaded) for source in settings.ood]
    unlabelled = [_read_unlabelled(source, settings, loaded) for source in settings.unlabelled or ()]
    if settings.limit:
        train = _limit_labelled(train, settings.limit, seed=settings.seed)
    if settings.limit_test:
        dev = dev.sample(settings.limit_test, seed=settings.seed)
        test = test.sample(settings.limit_test, seed=settings.seed)
        ood = [data.sample(settings.limit_test, seed=settings.seed) for data in ood]
    if settings.size:  # images of benchmarks have their own size; other sources may too
        train, dev, test, *ood = (_resize(data, settings.size) for data in (train, dev, test, *ood))
        unlabelled = [_resize(data, settings.size) for data in unlabelled]
    train = train.with_role("train", "train")
    labelled = labelled_part(train) if train.is_labelled.any() else train
    train = add_unlabelled(train, unlabelled)
    if settings.limit_unlabelled is not None:
        train = _limit_unlabelled(train, settings.limit_unlabelled, seed=settings.seed)
    reserved = ["train", "dev", "test"]
    reserved += [name if severity is None else f"{name}-{severity}" for name, severity in corruptions]
    names = _unique_names([data.name for data in ood], reserved)
    dev = dev.with_role("dev", "dev")
    test = test.with_role("test", "test")
    ood = [data.with_role("ood", name) for data, name in zip(ood, names, strict=True)]
    for data in (dev, test, *ood):
        check_same_kind(train, data)
    ood += [corrupted(test, name, severity, seed=settings.seed) for name, severity in corruptions]
    return Splits(train, dev, test, tuple(ood), labelled)


def _read_train_dev_test(settings: DataSettings, loaded: Mapping[str, Dataset]) -> tuple[Dataset, Dataset, Dataset]:
    benchmark: dict[str, Dataset] = {}
    if settings.train.startswith(BENCHMARK_PREFIX) and "@" not in settings.train:
        benchmark = load_benchmark(settings.train.removeprefix(BENCHMARK_PREFIX), source=settings.source or "auto")
        if "train" not in benchmark:
            raise InputError(
                f"{settings.train!r} has no training split", remedy=f"use its {', '.join(benchmark)} as test or ood"
            )
        train = benchmark["train"]
    else:
        train = _read_source(settings.train, settings, "train", settings.classes or None, loaded)
    if settings.classes:
        train = train.with_classes(settings.classes)
    size_before_split = int(train.is_labelled.sum())  # both fractions are of this size
    test, train = _read_or_hold_out(
        train, settings, "test", settings.test, benchmark, loaded, rows=settings.test_fraction * size_before_split
    )
    dev, train = _read_or_hold_out(
        train, settings, "dev", settings.dev, benchmark, loaded, rows=settings.dev_fraction * size_before_split
    )
    return train, dev, test


def _read_or_hold_out(
    train: Dataset,
    settings: DataSettings,
    role: Role,
    source: str,
    benchmark: Mapping[str, Dataset],
    loaded: Mapping[str, Dataset],
    rows: float,
) -> tuple[Dataset, Dataset]:
    """Return the dev or test data, and what is left of train."""
    if source:
        return _read_source(source, settings, role, train.classes, loaded), train
    if role in benchmark:
        return benchmark[role].with_classes(train.classes), train
    labelled = int(train.is_labelled.sum())
    if not labelled:
        raise InputError(
            f"{role} cannot be held out of {settings.train!r}, which has no labels", remedy=f"give labelled data as {role}"
        )
    return train.split(rows / labelled, seed=settings.seed)


def _limit_labelled(train: Dataset, limit: int, *, seed: int) -> Dataset:
    """At most this many labelled examples, each class in its share; unlabelled ones after them."""
    if not train.is_labelled.any():
        return train
    labelled = labelled_part(train).sample(limit, seed=seed)
    unlabelled = [] if train.is_labelled.all() else [train.select(~train.is_labelled)]
    return add_unlabelled(labelled, unlabelled)


def _limit_unlabelled(train: Dataset, limit: int, *, seed: int) -> Dataset:
    """All labelled examples and at most this many of the unlabelled ones, in their order."""
    unlabelled = np.flatnonzero(~train.is_labelled)
    if len(unlabelled) <= limit:
        return train
    drawn = np.random.default_rng(seed).choice(unlabelled, limit, replace=False)
    return train.select(np.sort(np.append(np.flatnonzero(train.is_labelled), drawn)))


def _read_source(
    source: str, settings: DataSettings, role: Role, classes: Sequence[str] | None, loaded: Mapping[str, Dataset]
) -> Dataset:
    if source in loaded:
        data = loaded[source].with_role(role)
        if role != "train" and not data.is_labelled.all():
            row = int((~data.is_labelled).argmax())
            raise InputError("this example has no label", source=source, row=row, remedy="label it, or leave it out")
        return data if classes is None else data.with_classes(classes)
    if source.startswith(BENCHMARK_PREFIX):
        return read_benchmark(source.removeprefix(BENCHMARK_PREFIX), role, classes, settings.source or "auto")
    # The order in which labels are numbered is known only if the user listed the classes.
    return read_dataset(
        source,
        columns=_columns(settings),
        classes=classes,
        partly=role == "train",
        role=role,
        size=settings.size or None,
        by_index=bool(settings.classes),
    )


def _read_unlabelled(source: str, settings: DataSettings, loaded: Mapping[str, Dataset]) -> Dataset:
    if source in loaded:
        return loaded[source]
    if source.startswith(BENCHMARK_PREFIX):
        return read_benchmark(source.removeprefix(BENCHMARK_PREFIX), "train", None, settings.source or "auto")
    return read_unlabelled(source, columns=_columns(settings), size=settings.size or None)


def _columns(settings: DataSettings) -> Columns:
    return Columns(
        text=settings.text,
        pair=settings.pair,
        choices=settings.choices,
        label=settings.label,
        id=settings.id,
        group=settings.group,
    )


def read_benchmark(name: str, role: Role, classes: Sequence[str] | None, source: DataSource = "auto") -> Dataset:
    """Return the split of a benchmark that serves as training, dev, test or out-of-domain data.

    Parameters
    ----------
    name : str
        The benchmark, or ``NAME@SPLIT`` for one of its splits, ``NAME@dev+test`` for several.
    role : {"train", "dev", "test", "ood"}
        What the data are for.
    classes : sequence of str, optional
        The classes in order; by default the benchmark's own.
    source : {"auto", "folder", "hub"}
        Where the benchmark is read from.

    Returns
    -------
    Dataset
        Named after the benchmark; by default the split that serves best for the role.

    Raises
    ------
    InputError
        If the benchmark has no such split.
    """
    name, _, requested = name.partition("@")
    splits = load_benchmark(name, source=source)
    if requested:
        data = _join_splits(name, splits, requested.split("+"))
    else:
        data = next(splits[split] for split in SUBSTITUTES[role] if split in splits)
    if classes is not None:
        data = data.with_classes(classes)
    return data.with_role(role, name)


def _join_splits(name: str, splits: Mapping[str, Dataset], requested: Sequence[str]) -> Dataset:
    """The splits of a benchmark that are named, as one."""
    for split in requested:
        if split not in splits:
            raise InputError(f"{name} has no split {split!r}", remedy=f"it has {', '.join(splits)}")
    return concatenate([splits[split] for split in requested])


def _unique_names(names: Sequence[str], reserved: Collection[str]) -> list[str]:
    """Number names that are equal to another one or reserved."""
    unique: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in unique or candidate in reserved:
            candidate, number = f"{name}-{number}", number + 1
        unique.append(candidate)
    return unique


def _resize(data: Dataset, side: int) -> Dataset:
    if not isinstance(data.inputs, Images):
        return data
    return replace(data, inputs=resize_images(data.inputs, side))
