"""Whether the data of a study are as many as the paper's.

The catalogue states the sizes of each benchmark. At the scales ``full`` and ``paper`` a study compares them with what it reads
before it trains anything, so that a sample that lies in a folder is not taken for the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from distilcal.config.schema import DataSettings
from distilcal.data.catalogue import benchmark_source, find_benchmark
from distilcal.data.sources import HUB_PREFIX
from distilcal.data.splits import BENCHMARK_PREFIX, SUBSTITUTES
from distilcal.errors import InputError
from distilcal.study.places import PlaceSettings
from distilcal.study.schema import Study, splits_of, task_recipe

PAPER_SCALES = ("full", "paper")  # at these a study has the paper's data
TOLERANCE = 0.02  # halves by group, and rows without a label, differ by less


@dataclass(frozen=True)
class SizeDifference:
    """A split whose size is not the paper's.

    Attributes
    ----------
    task : str
        The task of the study.
    split : str
        The split: train, dev, test or the name of another domain.
    benchmark : str
        The benchmark that it comes from.
    found, expected : int
        Examples that it has, and that the paper's has.
    """

    task: str
    split: str
    benchmark: str
    found: int
    expected: int

    def __str__(self) -> str:
        return f"{self.task}: {self.split} has {self.found:,} examples of {self.benchmark}, the paper {self.expected:,}"


def expected_sizes(data: DataSettings) -> dict[str, tuple[str, int]]:
    """Return the sizes that the catalogue states for the splits of some data. Reads nothing.

    Parameters
    ----------
    data : DataSettings
        The data of a task.

    Returns
    -------
    dict of str to (str, int)
        train, dev, test, or the position of another domain as ``ood 0`` → benchmark and number of examples.

    Examples
    --------
    >>> expected_sizes(DataSettings(train="benchmark:mrpc"))
    {'train': ('mrpc', 3668), 'dev': ('mrpc', 408), 'test': ('mrpc', 1725)}
    """
    whole = data.train if "@" not in data.train else ""
    sources = {"train": data.train, "dev": data.dev or whole, "test": data.test or whole}
    sources |= {f"ood {i}": source for i, source in enumerate(data.ood)}
    sizes = {}
    for split, source in sources.items():
        if not source.startswith(BENCHMARK_PREFIX):
            continue
        name, _, requested = source.removeprefix(BENCHMARK_PREFIX).partition("@")
        stated = find_benchmark(name).sizes
        parts = requested.split("+") if requested else _default_part(split, stated)
        if parts and all(part in stated for part in parts):
            sizes[split] = name, sum(stated[part] for part in parts)
    return sizes


def _default_part(split: str, stated: Collection[str]) -> list[str]:
    """The part of a benchmark that serves as a split where none is named."""
    role = "ood" if split.startswith("ood") else split
    return [part for part in SUBSTITUTES[role] if part in stated][:1]  # type: ignore[index]


def size_differences(study: Study) -> list[SizeDifference]:
    """Compare the sizes of a study's data with the paper's. Reads the data of every task.

    Parameters
    ----------
    study : Study
        The study at one scale.

    Returns
    -------
    list of SizeDifference
        Empty at scales that do not claim to have the paper's data.

    Raises
    ------
    InputError
        If data cannot be read.
    """
    from distilcal.study.job import cached_splits

    if study.scale not in PAPER_SCALES:
        return []
    differences = []
    for task in study.tasks:
        data = task_recipe(study, task).data
        expected = expected_sizes(data)
        if not expected:
            continue
        splits = cached_splits(data)
        found = {"train": splits.labelled, "dev": splits.dev, "test": splits.test}
        found |= {f"ood {i}": part for i, part in enumerate(splits.ood[: len(data.ood)])}
        for split, (benchmark, size) in expected.items():
            part = found[split]
            if abs(len(part) - size) > TOLERANCE * size:
                differences.append(SizeDifference(task, part.name, benchmark, len(part), size))
    return differences


def check_sizes(study: Study, *, any_size: bool = False) -> Study:
    """Refuse data of other sizes than the paper's, or mark them.

    Parameters
    ----------
    study : Study
        The study at one scale.
    any_size : bool
        Whether other sizes are accepted. The headings of tables then tell them.

    Returns
    -------
    Study
        The same study, or one whose tasks tell the sizes.

    Raises
    ------
    InputError
        If sizes differ and that is not accepted, with all differences.
    """
    differences = size_differences(study)
    if not differences:
        return study
    if not any_size:
        raise InputError(
            f"at scale {study.scale} the data must be the paper's: " + "; ".join(map(str, differences)),
            remedy='take the whole from the hub with data.source = "hub", or give --any-size, which marks the columns',
        )
    return _with_marks(study, differences)


def _with_marks(study: Study, differences: Sequence[SizeDifference]) -> Study:
    """The study with the sizes that differ told in the headings of the sets that they concern."""
    tasks = dict(study.tasks)
    for name, task in study.tasks.items():
        here = dict(task.here)
        for set_ in ("test", *task.sets):
            splits = splits_of(study, PlaceSettings(task=name, set=set_))
            told = [
                f"{difference.split} of {difference.found:,} examples, the paper's {difference.expected:,}"
                for difference in differences
                if difference.task == name and difference.split in ("train", "dev", *splits)
            ]
            if told:
                here[set_] = "; ".join(filter(None, (here.get(set_, ""), *told)))
        tasks[name] = task.replace(here=here)
    return study.replace(tasks=tasks)


def sources_on_hub(data: DataSettings) -> list[str]:
    """Return the sources of some data that would be read from the hub. Reads nothing.

    Parameters
    ----------
    data : DataSettings
        The data of a task.

    Returns
    -------
    list of str
        As the settings name them: ``benchmark:NAME`` or ``hub:NAME@SPLIT``.
    """
    on_hub = {}
    for source in (data.train, data.dev, data.test, *data.ood, *(data.unlabelled or ())):
        if source.startswith(HUB_PREFIX):
            on_hub[source] = True
        elif source.startswith(BENCHMARK_PREFIX):
            benchmark = find_benchmark(source.removeprefix(BENCHMARK_PREFIX).partition("@")[0])
            on_hub[source] = benchmark_source(benchmark, source=data.source or "auto") == "hub"
    return [source for source, is_on_hub in on_hub.items() if is_on_hub]
