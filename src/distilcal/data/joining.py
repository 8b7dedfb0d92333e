"""Several data sets as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Choices, Dataset, Images, Inputs, Texts, Vectors
from distilcal.errors import InputError


def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """Return the examples of several labelled data sets of the same kind and classes, such as the splits of a benchmark.

    Parameters
    ----------
    parts : sequence of Dataset
        At least one; no id comes twice.

    Returns
    -------
    Dataset
        Under the name and role of the first.

    Examples
    --------
    >>> from distilcal.data.dataset import texts
    >>> dev, test = (Dataset(texts([word]), [0], ("a", "b"), [word]) for word in ("x", "y"))
    >>> concatenate([dev, test]).ids.tolist()
    ['x', 'y']
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    has_votes = all(data.label_probs is not None for data in parts)
    return replace(
        first,
        inputs=concatenate_inputs([data.inputs for data in parts]),
        labels=np.concatenate([data.labels for data in parts if data.labels is not None]),
        ids=np.concatenate([data.ids for data in parts]),
        label_probs=np.concatenate([data.label_probs for data in parts if data.label_probs is not None]) if has_votes else None,
        groups=concatenate_groups(parts),
    )


def concatenate_inputs(parts: Sequence[Inputs]) -> Inputs:
    """Return the inputs of several data sets as one.

    Parameters
    ----------
    parts : sequence of Inputs
        At least one, all of one kind.

    Returns
    -------
    Inputs

    Raises
    ------
    InputError
        If some are pairs of texts and others single texts, or if sizes differ.
    """
    match parts[0]:
        case Texts():
            has_pairs = {part.pair is not None for part in parts if isinstance(part, Texts)}
            if len(has_pairs) > 1:
                raise InputError(
                    "either train or the unlabelled examples hold pairs of texts, the others single texts",
                    remedy="give the same everywhere, with pair = ... in [data]",
                )
            return Texts(
                _concatenate_arrays(parts, "text"), _concatenate_arrays(parts, "pair") if has_pairs == {True} else None
            )
        case Choices():
            return Choices(_concatenate_arrays(parts, "prompt"), _concatenate_arrays(parts, "endings"))
        case Images():
            return Images(_concatenate_arrays(parts, "pixels"))
        case Vectors():
            return Vectors(_concatenate_arrays(parts, "values"))


def _concatenate_arrays(parts: Sequence[Inputs], name: str) -> NDArray[Any]:
    arrays = [getattr(part, name) for part in parts]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        sizes = " and ".join(str(shape) for shape in sorted(shapes))
        raise InputError(
            f"train and unlabelled examples have different sizes, {sizes}",
            remedy="give the same size, for images with size = ...",
        )
    return np.concatenate(arrays)


def concatenate_groups(parts: Sequence[Dataset]) -> NDArray[np.str_] | None:
    """Return the groups of all parts if the first has groups; parts without any form one group of their own.

    Parameters
    ----------
    parts : sequence of Dataset
        At least one.

    Returns
    -------
    array of str or None
    """
    if parts[0].groups is None:
        return None
    groups = [np.full(len(data), "") if data.groups is None else data.groups for data in parts]
    return np.concatenate(groups)
