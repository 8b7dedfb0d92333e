"""Datasets: examples with ids, what a model reads of them, and their labels. They know no model.

An example's input is one of four kinds: ``Texts`` (one text or a pair), ``Choices`` (a prompt and its endings), ``Images``
(pixels) or ``Vectors`` (numbers). To add a kind, write a class with the same methods and one in
``models/inputs.py``.
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
from distilcal.predictions import FloatArray, IntArray, check_class_names, labels_from_text, text_array

Role = Literal["train", "dev", "test", "ood"]
StrArray = NDArray[Any]  # object arrays of str: fixed-width ones would take the longest text's room for each
SEPARATOR = b"\x1f"  # between the texts of one example
LABEL_SUM_TOLERANCE = 1e-3
CONTENT_ID_LENGTH = 16  # characters of the hash that is an example's id where it has none


@dataclass(frozen=True, eq=False)
class Texts:
    """One text per example, or a pair of texts; ``texts`` builds it from any sequences.

    Attributes
    ----------
    text : ndarray of str objects, shape (N,)
        The text, or the first of a pair.
    pair : ndarray of str objects, shape (N,), optional
        The second text.
    """

    text: StrArray
    pair: StrArray | None = None

    def __len__(self) -> int:
        return len(self.text)

    def take(self, rows: NDArray[Any]) -> Texts:
        """Return the examples with these indices."""
        return Texts(self.text[rows], None if self.pair is None else self.pair[rows])

    def contents(self, *, loosely: bool = False) -> Iterable[bytes]:
        """Return what identifies each example, as bytes; ``loosely`` ignores case and spacing."""
        encode = _encode_loosely if loosely else _encode
        if self.pair is None:
            return (encode(text) for text in self.text)
        return (encode(text) + SEPARATOR + encode(pair) for text, pair in zip(self.text, self.pair, strict=True))

    def example(self, row: int) -> str:
        """Return an example in a line of text."""
        return str(self.text[row]) if self.pair is None else f"{self.text[row]} ⏐ {self.pair[row]}"


@dataclass(frozen=True, eq=False)
class Choices:
    """A prompt and its possible endings, one of which is right; ``choices`` builds it from any sequences.

    The classes are the positions of the endings.

    Attributes
    ----------
    prompt : ndarray of str objects, shape (N,)
        The text to continue.
    endings : ndarray of str objects, shape (N, C)
        The endings of each prompt.
    """

    prompt: StrArray
    endings: StrArray

    def __len__(self) -> int:
        return len(self.prompt)

    def take(self, rows: NDArray[Any]) -> Choices:
        """Return the examples with these indices."""
        return Choices(self.prompt[rows], self.endings[rows])

    def contents(self, *, loosely: bool = False) -> Iterable[bytes]:
        """Return what identifies each example, as bytes; ``loosely`` ignores case and spacing."""
        encode = _encode_loosely if loosely else _encode
        for prompt, endings in zip(self.prompt, self.endings, strict=True):
            yield SEPARATOR.join(encode(text) for text in (prompt, *endings))

    def example(self, row: int) -> str:
        """Return an example in a line of text."""
        return f"{self.prompt[row]} ⏐ {' / '.join(self.endings[row])}"


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels of images that all have one size.

    Attributes
    ----------
    pixels : ndarray of uint8, shape (N, H, W, 3)
        Red, green and blue from 0 to 255.
    """

    pixels: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[3] != 3 or 0 in self.pixels.shape[1:]:
            raise InputError(
                f"images of type {self.pixels.dtype} and shape {self.pixels.shape}", remedy="give uint8 of shape (N, H, W, 3)"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, rows: NDArray[Any]) -> Images:
        """Return the examples with these indices."""
        return Images(self.pixels[rows])

    def contents(self, *, loosely: bool = False) -> Iterable[bytes]:
        """Return the bytes of each image; ``loosely`` has no meaning here."""
        return (image.tobytes() for image in self.pixels)

    def example(self, row: int) -> str:
        """Return the size of an image in words."""
        height, width = self.pixels.shape[1:3]
        return f"{width} × {height} pixels"


@dataclass(frozen=True, eq=False)
class Vectors:
    """Numbers: features that were computed elsewhere, or a table.

    Attributes
    ----------
    values : ndarray of float, shape (N, D)
        Finite numbers.
    """

    values: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.dtype.kind != "f" or not self.values.shape[1]:
            raise InputError(
                f"vectors of type {self.values.dtype} and shape {self.values.shape}", remedy="give floats of shape (N, D)"
            )
        bad = ~np.isfinite(self.values).all(axis=1)
        if bad.any():
            raise InputError("a value is not finite", row=int(bad.argmax()), remedy="fill or drop the row")

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[Any]) -> Vectors:
        """Return the examples with these indices."""
        return Vectors(self.values[rows])

    def contents(self, *, loosely: bool = False) -> Iterable[bytes]:
        """Return the bytes of each vector in float32; ``loosely`` has no meaning here."""
        return (row.tobytes() for row in np.ascontiguousarray(self.values, dtype=np.float32))

    def example(self, row: int) -> str:
        """Return the size of a vector in words."""
        return f"{self.values.shape[1]} numbers"


Inputs = Texts | Choices | Images | Vectors


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples with stable ids.

    Parameters
    ----------
    inputs : Texts, Choices, Images or Vectors
        What a model reads.
    labels : array of int or str, shape (N,), optional
        Class indices, or names of ``classes``; -1 for an unlabelled example. By default the most probable class of
        ``label_probs``. None: all examples are unlabelled.
    classes : sequence of str
        The classes in order.
    ids : array of str, shape (N,), optional
        Unique ids. By default they are made from content, so that the same example has the same id in any data; repeated
        ones are numbered.
    label_probs : array, shape (N, K), optional
        Distributions over the classes, such as the votes of raters; zeros for an unlabelled example.
    groups : array of str, shape (N,), optional
        What a split must not divide: a writer, a document.
    name : str
        Name of the data, for messages and files.
    role : {"train", "dev", "test", "ood"}, optional
        What the data may be used for: nothing is fitted on test or ood.

    Raises
    ------
    InputError
        If the parts do not fit together.

    Examples
    --------
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
        if not len(self.inputs):
            raise InputError("there are no examples", source=self.name, remedy="give at least one")
        classes = tuple(str(c) for c in self.classes)
        self._check_classes(classes)
        self._check_lengths()
        labels = None if self.labels is None else _label_indices(self.labels, classes, self.name)
        label_probs = None
        if self.label_probs is not None:
            is_labelled = np.ones(len(self), dtype=bool) if labels is None else labels >= 0
            label_probs = _check_distributions(self.label_probs, is_labelled, len(classes), self.name)
            labels = label_probs.argmax(axis=1) if labels is None else labels
        ids = self._texts(self.ids, "id")
        if not len(ids):
            ids = number_repeated(np.array([key[:CONTENT_ID_LENGTH] for key in _hashes(self.inputs.contents())]))
        _check_unique(ids, len(self), self.name)
        validated: dict[str, Any] = {
            "labels": labels,
            "classes": classes,
            "ids": ids,
            "label_probs": label_probs,
            "groups": None if self.groups is None else self._texts(self.groups, "group"),
        }
        for key, value in validated.items():
            object.__setattr__(self, key, value)

    def _texts(self, values: ArrayLike, what: str) -> NDArray[np.str_]:
        """Ids or groups as strings that a file can hold; a blank id would be read as a missing value."""
        try:
            array = text_array(values, what)
        except InputError as error:
            error.source = self.name
            raise
        is_blank = np.char.strip(array) == ""
        if what == "id" and is_blank.any():
            row = int(is_blank.argmax())
            raise InputError(f"id {str(array[row])!r} is blank", source=self.name, row=row, remedy="name it")
        return array

    def _check_classes(self, classes: tuple[str, ...]) -> None:
        check_class_names(classes)
        if len(set(classes)) != len(classes):
            repeated = next(name for name in classes if classes.count(name) > 1)
            raise InputError(f"duplicate class {repeated!r} of {self.name!r}", remedy="give every class a name of its own")
        if (self.labels is not None or self.label_probs is not None) and len(classes) < 2:
            raise InputError(
                f"{self.name!r} has {len(classes)} class{'' if len(classes) == 1 else 'es'}",
                remedy="a classifier needs at least two; check the label column",
            )

    def _check_lengths(self) -> None:
        for what, values, dimensions in (
            ("labels", self.labels, 1),
            ("label_probs", self.label_probs, 2),
            ("groups", self.groups, 1),
        ):
            if values is not None and (len(values) != len(self) or np.ndim(values) != dimensions):
                raise InputError(
                    f"{what} of shape {np.shape(values)} for {len(self)} examples",
                    source=self.name,
                    remedy="give one per example",
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        unlabelled = int((~self.is_labelled).sum())
        partly = f", {unlabelled:,} unlabelled" if 0 < unlabelled < len(self) else ""
        return f"Dataset({self.name!r}, {len(self):,} {self.input_kind}, {len(self.classes)} classes{partly})"

    @property
    def input_kind(self) -> str:
        """What the examples are: texts, choices, images or vectors."""
        return type(self.inputs).__name__.lower()

    @property
    def holds_pairs(self) -> bool:
        """Whether the examples are pairs of texts."""
        return isinstance(self.inputs, Texts) and self.inputs.pair is not None

    @cached_property
    def is_labelled(self) -> NDArray[np.bool_]:
        """Whether each example has a label (N,)."""
        return np.zeros(len(self), dtype=bool) if self.labels is None else self.labels >= 0

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
            if part is None:
                digest.update(b"none")
            else:
                digest.update(str(part.shape).encode() + np.ascontiguousarray(part).tobytes())
        digest.update(type(self.inputs).__name__.encode())
        return digest.hexdigest()

    def select(self, rows: ArrayLike) -> Dataset:
        """Return the data with these rows only.

        Parameters
        ----------
        rows : array of int or bool
            Indices, or a mask.

        Returns
        -------
        Dataset
            The rows in this order.
        """
        indices = np.asarray(rows)
        if indices.dtype == bool:
            indices = np.flatnonzero(indices)
        if not indices.size:
            raise InputError(f"no examples of {self.name!r} are selected", remedy="select at least one")
        return replace(
            self,
            inputs=self.inputs.take(indices),
            labels=None if self.labels is None else self.labels[indices],
            ids=self.ids[indices],
            label_probs=None if self.label_probs is None else self.label_probs[indices],
            groups=None if self.groups is None else self.groups[indices],
        )

    def sample(self, count: int, *, seed: int) -> Dataset:
        """Return at most this many examples, each class and the unlabelled ones in their shares, in the original order."""
        if count >= len(self):
            return self
        return self.select(self._draw(count / len(self), np.arange(len(self)).astype(str), seed=seed))

    def split(self, fraction: float, *, seed: int, grouped: bool = True) -> tuple[Dataset, Dataset]:
        """Divide the data at random in two parts.

        Each class is divided in proportion as far as groups allow. Where only some examples are labelled, the first part is
        drawn from these. The unlabelled ones are in the second part, except those of a group in the first: they are in neither.

        Parameters
        ----------
        fraction : float
            Size of the first part, about this share of the labelled examples, or of all where none is labelled.
        seed : int
            Seed of the division.
        grouped : bool
            Whether members of one group stay together; without groups, examples that read the same do.

        Returns
        -------
        tuple of Dataset
            The two parts, in the original order.

        Examples
        --------
        >>> data = Dataset(texts([f"text {i}" for i in range(10)]), [0, 1] * 5, ("a", "b"))
        >>> data.split(0.2, seed=0)
        (Dataset('data', 2 texts, 2 classes), Dataset('data', 8 texts, 2 classes))
        """
        if not 0 < fraction < 1:
            raise InputError(f"fraction {fraction} is not between 0 and 1")
        if not grouped:
            keys = np.arange(len(self)).astype(str)
        elif self.groups is not None:
            keys = self.groups
        else:
            keys = self.loose_keys
        rows = np.flatnonzero(self.is_labelled)
        if len(rows) in (0, len(self)):
            in_first_part = self._draw(fraction, keys, seed=seed)
            return self.select(in_first_part), self.select(~in_first_part)
        drawn = self.select(rows)._draw(fraction, keys[rows], seed=seed)
        in_first_part = np.zeros(len(self), dtype=bool)
        in_first_part[rows[drawn]] = True
        in_second_part = ~in_first_part & ~(~self.is_labelled & np.isin(keys, keys[in_first_part]))
        return self.select(in_first_part), self.select(in_second_part)

    def _draw(self, fraction: float, keys: NDArray[np.str_], *, seed: int) -> NDArray[np.bool_]:
        """Whether each example is drawn (N,): about this share of each class; examples with equal keys stay together."""
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        if len(first) < 2:
            if self.groups is not None:
                raise InputError(f"{self.name!r} has one group, which cannot be split", remedy="give more groups, or none")
            raise InputError(
                f"all {len(self):,} examples of {self.name!r} that are left read the same, which are never split",
                remedy="give more examples, or files of their own for dev and test",
            )
        size = np.bincount(group)
        rng = np.random.default_rng(seed)
        label = np.zeros(len(first), dtype=np.int64) if self.labels is None else self.labels[first]
        order = np.lexsort((rng.random(len(first)), label))
        # Systematic sampling along groups sorted by class, each group with the same chance whatever its size.
        steps = np.floor(fraction * np.arange(len(first) + 1) + rng.random())
        chosen = np.zeros(len(first), dtype=bool)
        chosen[order[np.diff(steps) > 0]] = True
        if size.max() > 1:
            chosen = _approach_count(chosen, size, fraction * len(self), rng)
        if not chosen.any() or chosen.all():
            chosen[order[0]] = not chosen[order[0]]
        drawn: NDArray[np.bool_] = chosen[group]
        return drawn

    def with_role(self, role: Role, name: str | None = None) -> Dataset:
        """Return the same data for another use, and under another name if one is given."""
        return replace(self, role=role, name=self.name if name is None else name)

    def with_classes(self, classes: Sequence[str]) -> Dataset:
        """Return the same data with the classes in another order.

        Parameters
        ----------
        classes : sequence of str
            The classes of the data in any order, matched by name; there may be more of them.

        Returns
        -------
        Dataset
            The data with labels and label distributions in this order.

        Raises
        ------
        InputError
            If a class of the data is not among them.
        """
        classes = tuple(str(c) for c in classes)
        if classes == self.classes:
            return self
        for name in self.classes:
            if name not in classes:
                raise InputError(
                    f"{self.name!r} has the class {name!r}, which is not among {list_names(classes)}",
                    remedy="use the same class names everywhere",
                )
        columns = np.array([classes.index(name) for name in self.classes], dtype=np.int64)
        labels = None
        if self.labels is not None:
            labels = np.append(columns, -1)[self.labels]  # -1, unlabelled, is the index of the last
        label_probs = None
        if self.label_probs is not None:
            label_probs = np.zeros((len(self), len(classes)))
            label_probs[:, columns] = self.label_probs
        return replace(self, labels=labels, classes=classes, label_probs=label_probs)


def texts(text: Sequence[str] | StrArray, pair: Sequence[str] | StrArray | None = None) -> Texts:
    """Return texts, or pairs of texts, from sequences of strings.

    Parameters
    ----------
    text : sequence of str
        One text per example.
    pair : sequence of str, optional
        The second text of each example.

    Returns
    -------
    Texts
        The inputs of a Dataset.

    Examples
    --------
    >>> texts(["It rains."], ["It is wet."]).example(0)
    'It rains. ⏐ It is wet.'
    """
    return Texts(_objects(text), None if pair is None else _objects(pair))


def choices(prompt: Sequence[str] | StrArray, endings: Sequence[Sequence[str]] | StrArray) -> Choices:
    """Return prompts with their endings from sequences of strings.

    Parameters
    ----------
    prompt : sequence of str
        One prompt per example.
    endings : sequence of sequences of str
        The endings of each prompt; all prompts have equally many, at least two.

    Returns
    -------
    Choices
        The inputs of a Dataset.

    Examples
    --------
    >>> choices(["The cat"], [["sleeps.", "divides."]]).endings.shape
    (1, 2)
    """
    rows = [list(row) for row in endings]
    counts = {len(row) for row in rows}
    if len(counts) != 1 or counts <= {0, 1}:
        raise InputError(f"examples have {sorted(counts)} choices", remedy="give every example the same number, at least two")
    table = np.empty((len(rows), counts.pop()), dtype=object)
    table[:] = rows
    return Choices(_objects(prompt), table)


def overlap(a: Dataset, b: Dataset) -> IntArray:
    """Return the rows of ``b`` whose content is in ``a`` too, ignoring case and spacing of text.

    Parameters
    ----------
    a, b : Dataset
        Data with the same kind of inputs.

    Returns
    -------
    ndarray of int
        Indices into ``b``.

    Examples
    --------
    >>> overlap(Dataset(texts(["One", "two"])), Dataset(texts(["three", "one"]))).tolist()
    [1]
    """
    return np.flatnonzero(np.isin(b.loose_keys, a.loose_keys))


def number_repeated(keys: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return unique ids: the second and later of equal keys are numbered in order.

    Parameters
    ----------
    keys : ndarray of str, shape (N,)
        The keys, some of which may be equal.

    Returns
    -------
    ndarray of str, shape (N,)
        The first of equal keys as it is, the later ones with ``-2``, ``-3`` and so on.

    Examples
    --------
    >>> number_repeated(np.array(["a", "b", "a"])).tolist()
    ['a', 'b', 'a-2']
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    start = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    if len(start) == len(keys):
        return keys
    occurrence = np.empty(len(keys), dtype=np.int64)
    occurrence[order] = np.arange(len(keys)) - np.repeat(start, np.diff(np.r_[start, len(keys)]))
    return np.array([key if n == 0 else f"{key}-{n + 1}" for key, n in zip(keys, occurrence, strict=True)])


# ---- parts -------------------------------------------------------------------------------------------------------------


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _encode_loosely(text: str) -> bytes:
    return _encode(" ".join(text.casefold().split()))


def _hashes(contents: Iterable[bytes]) -> list[str]:
    return [hashlib.blake2b(content, digest_size=16).hexdigest() for content in contents]


def _objects(values: Sequence[str] | StrArray) -> StrArray:
    column = np.empty(len(values), dtype=object)
    # Half of a surrogate pair is no character, and no tokeniser accepts it.
    column[:] = [str(value).encode("utf-8", "replace").decode() for value in values]
    return column


def _check_unique(ids: NDArray[Any], n: int, name: str) -> None:
    if ids.shape != (n,):
        raise InputError(f"{ids.size} ids for {n} examples", source=name, remedy="give one per example")
    distinct, first = np.unique(ids, return_index=True)
    if len(distinct) < n:
        row = int(np.setdiff1d(np.arange(n), first)[0])
        raise InputError(
            f"duplicate id {str(ids[row])!r:.80}",
            source=name,
            row=row,
            remedy="give unique ids, or none to have them made from content",
        )


def _label_indices(labels: ArrayLike, classes: tuple[str, ...], name: str) -> IntArray:
    values = np.asarray(labels)
    if values.dtype.kind in "USO":
        try:
            return labels_from_text(values.astype(str), classes)
        except InputError as error:
            error.source = error.source or name
            raise
    if values.dtype.kind not in "iu":
        raise InputError(f"labels of type {values.dtype}", source=name, remedy="give class names or indices")
    bad = (values < -1) | (values >= len(classes))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"label {values[row]} is not between 0 and {len(classes) - 1}, nor -1 for none", source=name, row=row)
    return values.astype(np.int64, copy=False)


def _check_distributions(values: ArrayLike, is_labelled: NDArray[np.bool_], classes: int, name: str) -> FloatArray:
    """Return distributions over the classes, divided by their sums; zeros for unlabelled examples."""
    try:
        probs = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("label_probs are no numbers", source=name, remedy="give shares that sum to 1") from None
    if probs.ndim != 2 or probs.shape[1] != classes:
        raise InputError(f"label_probs of shape {probs.shape} for {classes} classes", source=name)
    total = probs.sum(axis=1)
    bad = is_labelled & ~((probs >= 0).all(axis=1) & (np.abs(total - 1) <= LABEL_SUM_TOLERANCE))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"label probabilities {probs[row].tolist()} are no distribution",
            source=name,
            row=row,
            remedy="give shares that sum to 1",
        )
    normalised: FloatArray = np.zeros_like(probs)
    normalised[is_labelled] = probs[is_labelled] / total[is_labelled, None]
    return normalised


def _approach_count(
    chosen: NDArray[np.bool_], size: NDArray[np.int64], target: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Add or drop groups at random while that brings the number of examples nearer to the target: large ones overshoot."""
    count = float(size[chosen].sum())
    for group in rng.permutation(len(size)):
        change = -size[group] if chosen[group] else size[group]
        if abs(count + change - target) < abs(count - target):
            chosen[group] = not chosen[group]
            count += change
    return chosen
