"""One benchmark: what it is, and how its splits are read from a folder or from the hub."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from distilcal.data.benchmark_parts import Group, divide, with_content_ids
from distilcal.data.dataset import Dataset, Role
from distilcal.data.sources import HUB_PREFIX, from_hugging_face, load_from_hub
from distilcal.data.table_source import Columns, dataset_from_table
from distilcal.errors import InputError
from distilcal.io.tables import Table

PAGE = "docs/benchmarks.md"
UNLABELLED = "-1"  # how hub copies mark rows without a label
LABEL_NAMES = "label_text"  # column of class names in copies by SetFit
# What readers raise for a file that is cut off, or is another one than its name says.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error)
Kind = Literal["text", "text pair", "multiple choice", "image"]


@dataclass(frozen=True)
class OnHub:
    """How the hub's copy of a benchmark is read.

    Attributes
    ----------
    splits : mapping of str to str
        The hub's split for each of ours; ``dev+test`` is divided, and ``OWNER/NAME@SPLIT`` is of another repository.
    names : tuple of str
        The hub's class names in the order of ours, where they may be other ones; empty: whatever names the hub has.
    columns : Columns
        Which columns hold what.
    group : {"", "text", "pair", "prompt"}
        Which part of the input must not be divided by a split.
    rows : mapping of str to int
        Number of examples of a part of a split that is divided, such as ``{"dev": 5000}``; by default the usual shares.
    convert : callable, optional
        ``convert(loaded)`` returns the columns of a split that is no plain table of texts and labels.
    own_ids : bool
        Whether the hub's ids are kept. By default ids are made from the content.
    """

    splits: Mapping[str, str]
    names: tuple[str, ...]
    columns: Columns = field(default_factory=Columns)
    group: Group = ""
    rows: Mapping[str, int] = field(default_factory=dict)
    convert: Callable[[Any], dict[str, list[Any]]] | None = None
    own_ids: bool = False

    def read_split(self, hub: str, split: str, classes: tuple[str, ...]) -> Dataset:
        """Return a split of the hub's copy with our classes, without rows that have no label."""
        source = split if "@" in split else f"{hub}@{split}"
        loaded = load_from_hub(source)
        columns = self.columns
        if LABEL_NAMES in loaded.features:  # beside indices whose feature does not name the classes
            columns = replace(columns, label=LABEL_NAMES)
        names = self._names_of(loaded, source, classes)
        known = (*names, UNLABELLED)
        if self.convert is None:
            data = from_hugging_face(loaded, f"{HUB_PREFIX}{source}", columns, known, labelled=True)
        else:
            data = dataset_from_table(Table(f"{HUB_PREFIX}{source}", self.convert(loaded)), columns, known)
        assert data.labels is not None
        data = replace(data.select(data.labels < len(names)), classes=classes if self.names else names)
        return data if self.own_ids else with_content_ids(data, self.group)

    def _names_of(self, loaded: Any, source: str, classes: tuple[str, ...]) -> tuple[str, ...]:
        """The class names in this copy: ours or those that were seen on the hub."""
        stated = tuple(getattr(loaded.features.get(self.columns.label), "names", None) or ())
        if self.names and stated not in ((), self.names, classes):
            raise InputError(
                f"its classes are {', '.join(stated)[:200]}, expected {', '.join(self.names)[:200]}",
                source=f"{HUB_PREFIX}{source}",
                remedy=f"the hub's copy has changed: put the files in a folder, see {PAGE}",
            )
        return stated or self.names


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of the catalogue.

    Attributes
    ----------
    name, task, kind : str
        Its name, what is to be classified, and what the examples are.
    classes : tuple of str
        The classes in order.
    hub : str
        Its name on the Hugging Face hub, as NAME or NAME/CONFIG; empty: none.
    folder : str
        Its folder under ``$DISTILCAL_DATA``.
    licence, paper : str
        Terms of use, and who published it.
    note : str
        What a user must know, and the rules that were applied.
    reader : callable
        ``reader(folder)`` returns the splits by name.
    ood : tuple of str
        Benchmarks that are usual out-of-domain partners.
    on_hub : OnHub, optional
        How the hub's copy is read, where it has one that needs no code of its own.
    sizes : mapping of str to int
        Number of examples by split in the papers that use it, or in the official data where these do not say.
    sensitive : bool
        Whether no example may be shown.
    """

    name: str
    task: str
    kind: Kind
    classes: tuple[str, ...]
    hub: str
    folder: str
    licence: str
    paper: str
    note: str
    reader: Callable[[Path], dict[str, Dataset]]
    ood: tuple[str, ...] = ()
    on_hub: OnHub | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    sensitive: bool = False

    def read(self, folder: Path) -> dict[str, Dataset]:
        """Return the splits that a folder holds, by name, each with its role."""
        try:
            return self._with_roles(self.reader(folder))
        except InputError:
            raise
        except DAMAGE as error:
            raise InputError(
                f"cannot be read as {self.name}: {type(error).__name__}: {error}",
                source=str(folder),
                remedy=f"compare it with {PAGE}, or get the files again",
            ) from error

    def read_hub(self) -> dict[str, Dataset]:
        """Return the splits of the hub's copy, by name, without rows that have no label."""
        if self.on_hub is None:
            raise InputError(f"{self.name} is not read from the hub", remedy=f"put its files in a folder, see {PAGE}")
        splits: dict[str, Dataset] = {}
        for ours, theirs in self.on_hub.splits.items():
            data = self.on_hub.read_split(self.hub, theirs, self.classes)
            splits |= divide(data, ours, rows=self.on_hub.rows)
        return self._with_roles(splits)

    def _with_roles(self, splits: Mapping[str, Dataset]) -> dict[str, Dataset]:
        roles: tuple[Role, ...] = ("train", "dev", "test")
        return {role: splits[role].with_role(role, f"{self.name}-{role}") for role in roles if role in splits}
