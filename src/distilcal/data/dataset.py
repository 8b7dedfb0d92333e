"""Datasets: examples with ids, what a model reads of them, and what is true. They know no model.

An example's input is one of four kinds: ``Texts`` (one text or a pair), ``Choices`` (a prompt and its endings), ``Images``
(pixels) or ``Vectors`` (numbers). To add a kind, write a class with the same three methods and a class in ``models/inputs.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilcal.errors import InputError, list_names
from distilcal.predictions import FloatArray, IntArray, labels_from_text

Role = Literal["train", "dev", "test", "ood"]
StrArray = NDArray[Any]  # object arrays of str: fixed-width ones would take the longest text's room for each


@dataclass(frozen=True, eq=False)
class Texts:
    """One text per example, or two."""

    text: StrArray  # (N,)
    pair: StrArray | None = None  # (N,)

    def __len__(self) -> int:
        return len(self.text)

    def take(self, rows: NDArray[Any]) -> Texts:
        return Texts(self.text[rows], None if self.pair is None else self.pair[rows])

    def contents(self, *, loosely: bool = False) -> Iterable[bytes]:
        """What identifies each example; ``loosely`` ignores case and spacing."""
        tidy = _tidy if loosely else _plain
        if self.pair is None:
            return (tidy(t) for t in self.text)
        return (tidy(a) + b"\x1f" + tidy(b) for a, b in zip(self.text, self.pair, strict=True))

    def example(self, row: int) -> str:
        return str(self.text[row]) if self.pair is None else f"{self.text[row]} ⏐ {self.pair[row]}"


@dataclass(frozen=True, eq=False)
class Choices:
    """A prompt and its possible endings, one of which is right; the classes are the positions."""

    prompt: StrArray  # (N,)
    endings: StrArray  # (N, C)

    def __len__(self) -> int:
        return len(self.prompt)

    def take(self, rows: NDArray[Any]) -> Choices:
        return Choices(self.prompt[rows], self.endings[rows])

    def contents(self, *, loosely: bool = False) -> Iterable[bytes]:
        tidy = _tidy if loosely else _plain
        return (b"\x1f".join(tidy(t) for t in (p, *e)) for p, e in zip(self.prompt, self.endings, strict=True))

    def example(self, row: int) -> str:
        return f"{self.prompt[row]} ⏐ {' / '.join(self.endings[row])}"


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels, all of one size."""

    pixels: NDArray[np.uint8]  # (N, H, W, 3)

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[3] != 3:
            raise InputError(
                f"images of type {self.pixels.dtype} and shape {self.pixels.shape}", remedy="give uint8 of shape (N, H, W, 3)"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, rows: NDArray[Any]) -> Images:
        return Images(self.pixels[rows])

    def contents(self, *, loosely: bool = False) -> Iterable[bytes]:
        return (image.tobytes() for image in self.pixels)

    def scaled(self, side: int) -> Images:
        """The same pictures as squares of so many pixels."""
        from PIL import Image

        if self.pixels.shape[1:3] == (side, side):
            return self
        return Images(np.stack([np.asarray(Image.fromarray(pixels).resize((side, side))) for pixels in self.pixels]))

    def example(self, row: int) -> str:
        height, width = self.pixels.shape[1:3]
        return f"{width} × {height} pixels"


@dataclass(frozen=True, eq=False)
class Vectors:
    """Numbers: features made elsewhere, or a table."""

    values: NDArray[np.float32]  # (N, D)

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.dtype.kind != "f":
            raise InputError(
                f"vectors of type {self.values.dtype} and shape {self.values.shape}", remedy="give floats of shape (N, D)"
            )
        bad = ~np.isfinite(self.values).all(axis=1)
        if bad.any():
            raise InputError("a value is not finite", row=int(bad.argmax()), remedy="fill or drop the row")

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[Any]) -> Vectors:
        return Vectors(self.values[rows])

    def contents(self, *, loosely: bool = False) -> Iterable[bytes]:
        return (row.tobytes() for row in np.ascontiguousarray(self.values, dtype=np.float32))

    def example(self, row: int) -> str:
        return f"{self.values.shape[1]} numbers"


Inputs = Texts | Choices | Images | Vectors


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples with stable ids. Labels are class indices, or names of ``classes``; without them data can only be predicted on.

    Ids that are not given are made from content, so the same example has the same id wherever it stands; a repeated one is
    numbered. ``label_probs`` (N, K) are distributions over the classes, such as the votes of raters. ``groups`` name what must
    not be split: a writer, a document. ``role`` says what the data may be used for: nothing is fitted on test or ood.

    >>> d = Dataset(texts(["good", "bad", "fine"]), ["pos", "neg", "pos"], classes=["neg", "pos"])
    >>> d
    Dataset('data', 3 texts, 2 classes)
    >>> d.labels.tolist(), str(d.ids[0])
    ([1, 0, 1], '8cb260423daf712f')
    """

    inputs: Inputs
    labels: IntArray | None = None  # (N,)
    classes: tuple[str, ...] = ()
    ids: NDArray[np.str_] = field(default_factory=lambda: np.array([], dtype=str))
    label_probs: FloatArray | None = None  # (N, K)
    groups: NDArray[np.str_] | None = None  # (N,)
    name: str = "data"
    role: Role | None = None

    def __post_init__(self) -> None:
        n = len(self.inputs)
        if n == 0:
            raise InputError("there are no examples", source=self.name, remedy="give at least one")
        classes = tuple(str(c) for c in self.classes)
        if len(set(classes)) != len(classes):
            raise InputError(f"a class name of {self.name!r} stands twice", remedy="give every class a name of its own")
        if (self.labels is not None or self.label_probs is not None) and len(classes) < 2:
            raise InputError(
                f"{self.name!r} has {len(classes)} class{'' if len(classes) == 1 else 'es'}",
                remedy="a classifier needs at least two; check the label column",
            )
        for what, values in (("labels", self.labels), ("label_probs", self.label_probs), ("groups", self.groups)):
            if values is not None and (len(values) != n or (what != "label_probs" and np.ndim(values) != 1)):
                raise InputError(
                    f"{what} of shape {np.shape(values)} for {n} examples", source=self.name, remedy="give one per example"
                )
        probs = None if self.label_probs is None else _distributions(self.label_probs, len(classes), self.name)
        labels = probs.argmax(axis=1) if self.labels is None and probs is not None else self.labels
        ids = np.asarray(self.ids)
        if not len(ids):
            ids = numbered(np.array([key[:16] for key in _hashes(self.inputs.contents())]))
        _refuse_repeated(ids, n, self.name)
        settled: dict[str, Any] = {
            "labels": None if labels is None else _indices(labels, classes, self.name),
            "classes": classes,
            "ids": ids.astype(str),
            "label_probs": probs,
            "groups": None if self.groups is None else np.asarray(self.groups).astype(str),
        }
        for key, value in settled.items():
            object.__setattr__(self, key, value)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        kind = type(self.inputs).__name__.lower()
        return f"Dataset({self.name!r}, {len(self):,} {kind}, {len(self.classes)} classes)"

    @cached_property
    def content_keys(self) -> NDArray[np.str_]:
        """A hash of what a model reads, per example (N,): equal inputs have equal keys."""
        return np.array(_hashes(self.inputs.contents()))

    @cached_property
    def loose_keys(self) -> NDArray[np.str_]:
        """The same, ignoring case and spacing of text (N,)."""
        return np.array(_hashes(self.inputs.contents(loosely=True)))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that training on this data depends on, the order of rows included."""
        digest = hashlib.blake2b(digest_size=16)
        parts: list[Any] = [self.content_keys, self.ids, np.array(self.classes, dtype=str), self.labels, self.label_probs]
        for part in parts:
            digest.update(b"none" if part is None else str(part.shape).encode() + np.ascontiguousarray(part).tobytes())
        digest.update(type(self.inputs).__name__.encode())
        return digest.hexdigest()

    def select(self, rows: ArrayLike) -> Dataset:
        """The given rows, by index or by mask."""
        wanted = np.asarray(rows)
        if wanted.dtype == bool:
            wanted = np.flatnonzero(wanted)
        if not wanted.size:
            raise InputError(f"no examples of {self.name!r} are selected", remedy="select at least one")

        def pick(values: Any) -> Any:
            return None if values is None else values[wanted]

        return replace(
            self,
            inputs=self.inputs.take(wanted),
            labels=pick(self.labels),
            ids=self.ids[wanted],
            label_probs=pick(self.label_probs),
            groups=pick(self.groups),
        )

    def sample(self, count: int, *, seed: int) -> Dataset:
        """At most ``count`` examples, each class in its share, in the original order."""
        return self if count >= len(self) else self.split(count / len(self), seed=seed, grouped=False)[0]

    def split(self, fraction: float, *, seed: int, grouped: bool = True) -> tuple[Dataset, Dataset]:
        """Two disjoint parts, the first with about ``fraction`` of the examples, in the original order.

        Members of one group stay together; without groups, examples that read the same do. Each class is divided in that
        proportion as far as groups allow.
        """
        if not 0 < fraction < 1:
            raise InputError(f"fraction {fraction} is not between 0 and 1")
        together = self.loose_keys if self.groups is None else self.groups
        keys = together if grouped else np.arange(len(self)).astype(str)
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        if len(first) < 2:
            raise InputError(f"{self.name!r} has one group, which cannot be split", remedy="give more groups, or none")
        size = np.bincount(group)
        rng = np.random.default_rng(seed)
        label = np.zeros(len(first), dtype=np.int64) if self.labels is None else self.labels[first]
        order = np.lexsort((rng.random(len(first)), label))
        # Systematic sampling along groups sorted by class, each group with the same chance whatever its size.
        steps = np.floor(fraction * np.arange(len(first) + 1) + rng.random())
        taken = np.zeros(len(first), dtype=bool)
        taken[order[np.diff(steps) > 0]] = True
        if size.max() > 1:
            taken = _nearest_count(taken, size, fraction * len(self), rng)
        if not taken.any() or taken.all():
            taken[order[0]] = not taken[order[0]]
        inside = taken[group]
        return self.select(inside), self.select(~inside)

    def with_role(self, role: Role, name: str | None = None) -> Dataset:
        """The same data for another use."""
        return replace(self, role=role, name=self.name if name is None else name)

    def with_classes(self, classes: Sequence[str]) -> Dataset:
        """The same data with the classes in the given order, matched by name; classes that are not there yet may be added."""
        wanted = tuple(str(c) for c in classes)
        if wanted == self.classes:
            return self
        unknown = [c for c in self.classes if c not in wanted]
        if unknown:
            raise InputError(
                f"{self.name!r} has the class {unknown[0]!r}, which is not among {list_names(wanted)}",
                remedy="use the same class names everywhere",
            )
        columns = np.array([wanted.index(c) for c in self.classes], dtype=np.int64)
        probs = None
        if self.label_probs is not None:
            probs = np.zeros((len(self), len(wanted)))
            probs[:, columns] = self.label_probs
        return replace(self, labels=None if self.labels is None else columns[self.labels], classes=wanted, label_probs=probs)


def texts(text: Sequence[str] | StrArray, pair: Sequence[str] | StrArray | None = None) -> Texts:
    """Texts from any sequences of strings."""
    return Texts(_objects(text), None if pair is None else _objects(pair))


def choices(prompt: Sequence[str] | StrArray, endings: Sequence[Sequence[str]] | StrArray) -> Choices:
    """Choices from prompts and equally many endings for each."""
    rows = [list(e) for e in endings]
    counts = {len(e) for e in rows}
    if len(counts) != 1 or counts <= {0, 1}:
        raise InputError(f"examples have {sorted(counts)} choices", remedy="give every example the same number, at least two")
    table = np.empty((len(rows), counts.pop()), dtype=object)
    table[:] = rows
    return Choices(_objects(prompt), table)


def overlap(a: Dataset, b: Dataset) -> IntArray:
    """Rows of ``b`` whose content stands in ``a`` too, ignoring case and spacing of text."""
    return np.flatnonzero(np.isin(b.loose_keys, a.loose_keys))


# ---- parts -------------------------------------------------------------------------------------------------------------


def _plain(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _tidy(text: str) -> bytes:
    return _plain(" ".join(text.casefold().split()))


def _hashes(contents: Iterable[bytes]) -> list[str]:
    return [hashlib.blake2b(content, digest_size=16).hexdigest() for content in contents]


def _objects(values: Sequence[str] | StrArray) -> StrArray:
    column = np.empty(len(values), dtype=object)
    # Half of a surrogate pair is no character, and no tokeniser takes it.
    column[:] = [str(v).encode("utf-8", "replace").decode() for v in values]
    return column


def numbered(keys: NDArray[np.str_]) -> NDArray[np.str_]:
    """Unique ids: the second and later of equal keys are numbered in order."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    start = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    if len(start) == len(keys):
        return keys
    place = np.empty(len(keys), dtype=np.int64)
    place[order] = np.arange(len(keys)) - np.repeat(start, np.diff(np.r_[start, len(keys)]))
    return np.array([key if p == 0 else f"{key}-{p + 1}" for key, p in zip(keys, place, strict=True)])


def _refuse_repeated(ids: NDArray[Any], n: int, name: str) -> None:
    if ids.shape != (n,):
        raise InputError(f"{ids.size} ids for {n} examples", source=name, remedy="give one per example")
    distinct, first = np.unique(ids, return_index=True)
    if len(distinct) < n:
        row = int(np.setdiff1d(np.arange(n), first)[0])
        raise InputError(
            f"id {str(ids[row])!r} stands twice", source=name, row=row, remedy="give unique ids, or none: they are then made"
        )


def _indices(labels: ArrayLike, classes: tuple[str, ...], name: str) -> IntArray:
    values = np.asarray(labels)
    if values.dtype.kind in "USO":
        try:
            return labels_from_text(values.astype(str), classes)
        except InputError as error:
            error.source = error.source or name
            raise
    if values.dtype.kind not in "iu":
        raise InputError(f"labels of type {values.dtype}", source=name, remedy="give class names or indices")
    bad = (values < 0) | (values >= len(classes))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"label {values[row]} is not between 0 and {len(classes) - 1}", source=name, row=row)
    return values.astype(np.int64, copy=False)


def _distributions(values: ArrayLike, classes: int, name: str) -> FloatArray:
    probs = np.asarray(values, dtype=np.float64)
    if probs.ndim != 2 or probs.shape[1] != classes:
        raise InputError(f"label_probs of shape {probs.shape} for {classes} classes", source=name)
    total = probs.sum(axis=1)
    bad = ~((probs >= 0).all(axis=1) & (np.abs(total - 1) <= 1e-3))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"label probabilities {probs[row].tolist()} are no distribution",
            source=name,
            row=row,
            remedy="give shares that sum to 1",
        )
    normalised: FloatArray = probs / total[:, None]
    return normalised


def _nearest_count(
    taken: NDArray[np.bool_], size: NDArray[np.int64], wanted: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Large groups overshoot: drop or add groups at random while that brings the count nearer to the wanted one."""
    count = float(size[taken].sum())
    for g in rng.permutation(len(size)):
        change = -size[g] if taken[g] else size[g]
        if abs(count + change - wanted) < abs(count - wanted):
            taken[g] = not taken[g]
            count += change
    return taken
