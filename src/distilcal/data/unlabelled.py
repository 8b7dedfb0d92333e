"""Unlabelled examples beside labelled ones: rows of the training data whose label is -1, after all labelled rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import CONTENT_ID_LENGTH, Choices, Dataset, Images, Vectors
from distilcal.data.joining import concatenate_groups, concatenate_inputs
from distilcal.errors import InputError


def labelled_part(data: Dataset) -> Dataset:
    """Return the labelled examples of data.

    Parameters
    ----------
    data : Dataset
        Data of which at least one example is labelled.

    Returns
    -------
    Dataset
        The labelled rows in their order; the same object if all rows are.

    Raises
    ------
    InputError
        If no example is labelled.

    Examples
    --------
    >>> from distilcal.data.dataset import Vectors
    >>> data = Dataset(Vectors(np.eye(3, dtype=np.float32)), [-1, 0, 1], ("no", "yes"))
    >>> labelled_part(data).labels.tolist()
    [0, 1]
    """
    return data if data.is_labelled.all() else data.select(data.is_labelled)


def labelled_first(data: Dataset) -> Dataset:
    """Return data with the labelled examples first and the unlabelled ones after them.

    Losses with a memory and the recorder of dynamics count the labelled rows only, so these have to be the first ones.

    Parameters
    ----------
    data : Dataset
        Data with or without labels.

    Returns
    -------
    Dataset
        The same rows; labelled and unlabelled ones each keep their order.

    Examples
    --------
    >>> from distilcal.data.dataset import Vectors
    >>> data = Dataset(Vectors(np.eye(3, dtype=np.float32)), [-1, 0, 1], ("no", "yes"))
    >>> labelled_first(data).labels.tolist()
    [0, 1, -1]
    """
    if has_labelled_first(data):
        return data
    return data.select(np.argsort(~data.is_labelled, kind="stable"))


def has_labelled_first(data: Dataset) -> bool:
    """Return whether no unlabelled example is before a labelled one.

    Parameters
    ----------
    data : Dataset
        Data with or without labels.

    Returns
    -------
    bool

    Examples
    --------
    >>> from distilcal.data.dataset import Vectors
    >>> inputs = Vectors(np.eye(3, dtype=np.float32))
    >>> has_labelled_first(Dataset(inputs, [-1, 0, 1], ("no", "yes")))
    False
    """
    return bool(data.is_labelled[: int(data.is_labelled.sum())].all())


def add_unlabelled(train: Dataset, unlabelled: Sequence[Dataset]) -> Dataset:
    """Return training data with unlabelled examples after the labelled ones.

    Parameters
    ----------
    train : Dataset
        Training data; those of its rows that are unlabelled already come after its labelled ones.
    unlabelled : sequence of Dataset
        Further examples of the same kind; whatever labels they have are left out. An example with the id and the content of
        one in ``train`` is that one, and comes once.

    Returns
    -------
    Dataset
        All examples under the name and role of ``train``. An id that was made from the content of an example and exists
        already is numbered.

    Raises
    ------
    InputError
        If the kinds of data differ, or an id stands for two different examples.

    Examples
    --------
    >>> from distilcal.data.dataset import texts
    >>> train = Dataset(texts(["good", "bad"]), [1, 0], ("neg", "pos"), name="train")
    >>> both = add_unlabelled(train, [Dataset(texts(["fine", "good"]))])
    >>> both.labels.tolist(), both.is_labelled.tolist()
    ([1, 0, -1, -1], [True, True, False, False])
    """
    train = labelled_first(train)
    if not unlabelled:
        return train
    for data in unlabelled:
        check_same_kind(train, data)
    parts = (train, *(_without_examples_of(train, data) for data in unlabelled))
    added = sum(len(data) for data in parts[1:])
    labels = np.full(len(train), -1) if train.labels is None else train.labels
    label_probs = None
    if train.label_probs is not None:
        label_probs = np.concatenate([train.label_probs, np.zeros((added, len(train.classes)))])
    return replace(
        train,
        inputs=concatenate_inputs([data.inputs for data in parts]),
        labels=np.concatenate([labels, np.full(added, -1)]),
        ids=_unique_ids(parts),
        label_probs=label_probs,
        groups=concatenate_groups(parts),
    )


def check_same_kind(train: Dataset, other: Dataset) -> None:
    """Refuse data whose examples are of another kind or size than the training data.

    Parameters
    ----------
    train, other : Dataset
        The training data, and the data that are used with them.

    Raises
    ------
    InputError
        If one holds texts and the other images, for example, pairs where train holds single texts, another number of choices,
        vectors of another width, or images of another size.
    """
    if type(other.inputs) is not type(train.inputs):
        raise InputError(
            f"train holds {train.input_kind}, {other.name!r} {other.input_kind}",
            remedy="give the same kind of data everywhere",
        )
    # The other way round is allowed: another domain may have one text where train has two, as NewsEmpathy beside EPITOME.
    if other.holds_pairs and not train.holds_pairs:
        raise InputError(
            f"train holds single texts, {other.name!r} pairs of texts",
            remedy="give the same everywhere, with pair = ... in [data]",
        )
    if isinstance(train.inputs, Choices) and isinstance(other.inputs, Choices):
        expected, count = train.inputs.endings.shape[1], other.inputs.endings.shape[1]
        if count != expected:
            raise InputError(f"train has {expected} choices, {other.name!r} {count}", remedy="give as many everywhere")
    if isinstance(train.inputs, Vectors) and isinstance(other.inputs, Vectors):
        expected, count = train.inputs.values.shape[1], other.inputs.values.shape[1]
        if count != expected:
            raise InputError(
                f"train has {expected} numbers per example, {other.name!r} {count}",
                remedy="give the same features in the same order everywhere",
            )
    if isinstance(train.inputs, Images) and isinstance(other.inputs, Images):
        expected_size, size = train.inputs.example(0), other.inputs.example(0)
        if size != expected_size:
            raise InputError(
                f"images of train have {expected_size}, those of {other.name!r} {size}",
                remedy="scale them all to one size: size = ... in [data], data.size=... among the changes",
            )


def _without_examples_of(train: Dataset, data: Dataset) -> Dataset:
    """The data without the examples that are in train under the same id, unless that was made from their content."""
    same_content = np.isin(_ids_with_contents(data), _ids_with_contents(train))
    own_id = np.strings.partition(data.ids, "-")[0] != data.content_keys.astype(f"U{CONTENT_ID_LENGTH}")
    is_repeated = same_content & own_id
    return data.select(~is_repeated) if is_repeated.any() else data


def _ids_with_contents(data: Dataset) -> NDArray[np.str_]:
    return np.strings.add(np.strings.add(data.ids, "\n"), data.content_keys)


def _unique_ids(parts: Sequence[Dataset]) -> NDArray[np.str_]:
    """The ids of all parts; one that comes again is numbered if it was made from content, else refused."""
    ids: NDArray[Any] = np.concatenate([data.ids for data in parts]).astype(object)
    _, first = np.unique(ids.astype(str), return_index=True)
    repeated = np.setdiff1d(np.arange(len(ids)), first)
    if not len(repeated):
        return ids.astype(str)
    contents = np.concatenate([data.content_keys for data in parts])
    names = np.repeat([data.name for data in parts], [len(data) for data in parts])
    taken = set(ids.tolist())
    last_number: dict[str, int] = {}
    for row in repeated.tolist():
        base = contents[row][:CONTENT_ID_LENGTH]
        if ids[row].partition("-")[0] != base:
            raise InputError(
                f"the id {ids[row]!r} of an unlabelled example is the id of another example of the training data",
                source=str(names[row]),
                remedy="give every example of both an id of its own, or none to have them made from content",
            )
        number = last_number.get(base, 1) + 1
        while f"{base}-{number}" in taken:
            number += 1
        last_number[base] = number
        ids[row] = f"{base}-{number}"
    return ids.astype(str)
