"""Train, dev, test and other domains, read as the settings say, with what they share by content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from distilcal.config.schema import DataSettings
from distilcal.data.catalogue import load_benchmark
from distilcal.data.corruptions import corrupted, corruption_from
from distilcal.data.dataset import Choices, Dataset, Images, Role, overlap
from distilcal.data.sources import read_dataset
from distilcal.data.table_source import Columns
from distilcal.errors import InputError

BENCHMARK = "benchmark:"


@dataclass(frozen=True)
class Overlap:
    """Examples of one split that stand in another too."""

    first: str
    second: str
    rows: int  # of the second
    share: float


@dataclass(frozen=True)
class Splits:
    """What is trained on, what is chosen on, and what is only looked at in the end."""

    train: Dataset
    dev: Dataset
    test: Dataset
    ood: tuple[Dataset, ...] = ()

    def __iter__(self) -> Iterator[Dataset]:
        return iter((self.train, self.dev, self.test, *self.ood))

    def overlaps(self) -> list[Overlap]:
        """Every later split against train, and test against dev; only what is shared."""
        pairs = [(self.train, other) for other in (self.dev, self.test, *self.ood)] + [(self.dev, self.test)]
        found = [(a.name, b.name, overlap(a, b), len(b)) for a, b in pairs]
        return [Overlap(a, b, len(rows), len(rows) / count) for a, b, rows, count in found if len(rows)]


def read_splits(settings: DataSettings) -> Splits:
    """The splits that the settings describe; dev and test are held out of train where none are given.

    Corruptions are of the test as it is in the end, so that their figures stand beside those of the same examples.
    """
    corruptions = [corruption_from(said) for said in settings.corrupt]
    columns = Columns(settings.text, settings.pair, settings.choices, settings.label, settings.id, settings.group)
    size = settings.size or None
    classes = settings.classes or None

    def read(source: str, role: Role, classes: tuple[str, ...] | None) -> Dataset:
        if source.startswith(BENCHMARK):
            name = source.removeprefix(BENCHMARK)
            parts = load_benchmark(name)
            made = next(parts[part] for part in _preferred(role) if part in parts)
            made = made if classes is None else made.with_classes(classes)
            return made.with_role(role, name)
        # Numbers count in an order that only the user knows, unless the classes are numbers themselves.
        return read_dataset(source, columns=columns, classes=classes, role=role, size=size, by_index=bool(settings.classes))

    parts = load_benchmark(settings.train.removeprefix(BENCHMARK)) if settings.train.startswith(BENCHMARK) else {}
    if parts and "train" not in parts:
        raise InputError(f"{settings.train!r} has no training split", remedy=f"use its {', '.join(parts)} as test or ood")
    train = parts["train"] if parts else read(settings.train, "train", classes)
    train = train if classes is None else train.with_classes(classes)
    classes = train.classes
    held: dict[str, Dataset] = {}
    whole: int | None = None  # both fractions are of what train was before any of it was held out
    given = (("test", settings.test, settings.test_fraction), ("dev", settings.dev, settings.dev_fraction))
    for role, source, fraction in given:
        if source:
            held[role] = read(source, cast(Role, role), classes)
        elif role in parts:
            held[role] = parts[role].with_classes(classes)
        else:
            whole = len(train) if whole is None else whole
            held[role], train = train.split(fraction * whole / len(train), seed=settings.seed)
    train = train.sample(settings.limit, seed=settings.seed) if settings.limit else train
    later = [held["dev"], held["test"], *(read(source, "ood", classes) for source in settings.ood)]
    if settings.limit_test:
        later = [data.sample(settings.limit_test, seed=settings.seed) for data in later]
    reserved = [name if severity is None else f"{name}-{severity}" for name, severity in corruptions]
    if settings.size:  # benchmarks come as they are; other sources are read at this size
        train, *later = (_scaled(data, settings.size) for data in (train, *later))
    named = _distinct([data.name for data in later[2:]], ("train", "dev", "test", *reserved))
    roles: list[tuple[Dataset, Role, str]] = [(later[0], "dev", "dev"), (later[1], "test", "test")]
    roles += [(data, "ood", name) for data, name in zip(later[2:], named, strict=True)]
    made = [data.with_role(role, name) for data, role, name in roles]
    _check_kinds(train, made)
    made += [corrupted(made[1], name, severity, seed=settings.seed) for name, severity in corruptions]
    return Splits(replace(train, role="train", name="train"), made[0], made[1], tuple(made[2:]))


def _preferred(role: Role) -> tuple[str, ...]:
    return ("train",) if role == "train" else ("dev", "test", "train") if role == "dev" else ("test", "dev", "train")


def _distinct(names: list[str], taken: Sequence[str]) -> list[str]:
    """Names that are no two alike and none of those that are taken."""
    made: list[str] = []
    for name in names:
        new, number = name, 2
        while new in made or new in taken:
            new, number = f"{name}-{number}", number + 1
        made.append(new)
    return made


def _scaled(data: Dataset, side: int) -> Dataset:
    return replace(data, inputs=data.inputs.scaled(side)) if isinstance(data.inputs, Images) else data


def _check_kinds(train: Dataset, others: list[Dataset]) -> None:
    for data in others:
        if type(data.inputs) is not type(train.inputs):
            ours, theirs = (type(d.inputs).__name__.lower() for d in (train, data))
            raise InputError(f"train holds {ours}, {data.name!r} {theirs}", remedy="give the same kind of data everywhere")
        if isinstance(train.inputs, Choices) and isinstance(data.inputs, Choices):
            counts = train.inputs.endings.shape[1], data.inputs.endings.shape[1]
            if counts[0] != counts[1]:
                raise InputError(f"train has {counts[0]} choices, {data.name!r} {counts[1]}", remedy="give as many everywhere")
