"""Corruptions: a test set after noise, blur, weather, compression or careless typing, in five severities.

``corrupted(data, "frost", 3)`` returns such a set. The corruptions themselves, and how to add one, are in
``image_corruptions.py`` and ``text_corruptions.py``; this module applies them to data sets.

Every example has a random stream of its own, made from the seed, the corruption's name and the example's content. So a
change depends neither on the other examples nor on how they are batched, and it is one change that grows with the
severity: the typos of severity 1 are among those of severity 5.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Choices, Dataset, Images, Inputs, StrArray, Texts, Vectors
from distilcal.data.image_corruptions import IMAGE_CORRUPTIONS, Draws, ImageCorruption, as_bytes
from distilcal.data.text_corruptions import TEXT_CORRUPTIONS, TextCorruption
from distilcal.errors import InputError

SEVERITIES = (1, 2, 3, 4, 5)
CHUNK = 1 << 18  # pixels that are changed at once: 256 images of 32 × 32, in a few float copies
CORRUPTIONS: dict[str, ImageCorruption | TextCorruption] = {**IMAGE_CORRUPTIONS, **TEXT_CORRUPTIONS}


def corrupted(data: Dataset, name: str, severity: int | None = None, *, seed: int = 0) -> Dataset:
    """Return the same examples and labels under a corruption, to test on.

    Parameters
    ----------
    data : Dataset
        Images, texts or choices.
    name : str
        A name in ``CORRUPTIONS``.
    severity : int, optional
        From 1 to 5. By default all five, one after the other; groups are then those of the data, or else the examples, so
        that the versions of one example stay together.
    seed : int
        Seed of the changes.

    Returns
    -------
    Dataset
        The changed examples with role "ood". Ids tell what was done: ``{id}@{name}:{severity}``.

    Raises
    ------
    InputError
        If the name or severity is unknown, or the corruption is for another kind of data.

    Examples
    --------
    >>> from distilcal.data import texts
    >>> reviews = Dataset(texts(["a fine film", "too long"]), ["good", "bad"], ("bad", "good"), np.array(["r1", "r2"]))
    >>> shouted = corrupted(reviews, "casing", 5)
    >>> shouted, shouted.inputs.text.tolist(), shouted.ids.tolist()
    (Dataset('casing-5', 2 texts, 2 classes), ['A FINE FILM', 'TOO LONG'], ['r1@casing:5', 'r2@casing:5'])
    """
    _check(name, severity)
    levels = SEVERITIES if severity is None else (severity,)
    streams = [_stream(f"{seed} {name} {key}") for key in data.content_keys]

    def repeat(values: Any) -> Any:
        return None if values is None else np.concatenate([values] * len(levels))

    groups = data.ids if data.groups is None and severity is None else data.groups
    return replace(
        data,
        inputs=_corrupt_inputs(data, name, levels, streams),
        labels=repeat(data.labels),
        ids=np.concatenate([np.char.add(data.ids, f"@{name}:{level}") for level in levels]),
        label_probs=repeat(data.label_probs),
        groups=repeat(groups),
        name=name if severity is None else f"{name}-{severity}",  # a file is named after it
        role="ood",
    )


def parse_corruption(text: str) -> tuple[str, int | None]:
    """Return the name and severity of a corruption that is written as ``"frost:3"``; None stands for all five.

    Parameters
    ----------
    text : str
        ``NAME:SEVERITY``, or ``NAME`` for all severities.

    Returns
    -------
    tuple of str and int or None
        Name and severity.

    Raises
    ------
    InputError
        If there is no such corruption or severity.

    Examples
    --------
    >>> parse_corruption("frost:3"), parse_corruption("frost")
    (('frost', 3), ('frost', None))
    """
    name, colon, level = text.partition(":")
    severity = int(level) if re.fullmatch("[0-9]", level) else None
    _check(name, severity)
    if colon and severity is None:
        raise InputError(f"corruption {text!r} has no severity after the colon", remedy=f"write {name}:3, or {name} for all")
    return name, severity


# ---- over a data set ---------------------------------------------------------------------------------------------------


def _check(name: str, severity: int | None) -> None:
    if name not in CORRUPTIONS:
        near = get_close_matches(name, CORRUPTIONS, n=3, cutoff=0.5)
        raise InputError(
            f"there is no corruption {name!r}",
            remedy=f"did you mean {' or '.join(near)}?" if near else f"they are {', '.join(CORRUPTIONS)}",
        )
    if severity is not None and severity not in SEVERITIES:
        raise InputError(
            f"severity {severity} of {name!r} is not one of 1 to 5", remedy="give one of them, or none for all five"
        )


def _corrupt_inputs(data: Dataset, name: str, levels: Sequence[int], streams: Sequence[int]) -> Inputs:
    """Return the inputs under each of the severities in turn."""
    inputs = data.inputs
    if isinstance(inputs, Images) and name in IMAGE_CORRUPTIONS:
        return Images(_corrupt_pixels(inputs.pixels, IMAGE_CORRUPTIONS[name], levels, streams))
    if isinstance(inputs, Texts) and name in TEXT_CORRUPTIONS:
        if inputs.pair is None:
            return Texts(_corrupt_texts(inputs.text[:, None], TEXT_CORRUPTIONS[name], levels, streams)[:, 0])
        both = np.stack([inputs.text, inputs.pair], axis=1)
        changed = _corrupt_texts(both, TEXT_CORRUPTIONS[name], levels, streams)
        return Texts(changed[:, 0], changed[:, 1])
    if isinstance(inputs, Choices) and name in TEXT_CORRUPTIONS:
        changed = _corrupt_texts(np.c_[inputs.prompt, inputs.endings], TEXT_CORRUPTIONS[name], levels, streams)
        return Choices(changed[:, 0], changed[:, 1:])
    raise _wrong_kind(data, name)


def _wrong_kind(data: Dataset, name: str) -> InputError:
    if isinstance(data.inputs, Vectors):
        remedy = "leave it out"
    else:
        fitting = IMAGE_CORRUPTIONS if isinstance(data.inputs, Images) else TEXT_CORRUPTIONS
        remedy = f"for {data.input_kind} there are {', '.join(fitting)}"
    meant_for = "images" if name in IMAGE_CORRUPTIONS else "texts"
    return InputError(f"the corruption {name!r} is for {meant_for}, and {data.name!r} holds {data.input_kind}", remedy=remedy)


def _corrupt_pixels(
    pixels: NDArray[np.uint8], change: ImageCorruption, levels: Sequence[int], streams: Sequence[int]
) -> NDArray[np.uint8]:
    changed = np.empty((len(levels), *pixels.shape), dtype=np.uint8)
    step = max(1, CHUNK // (pixels.shape[1] * pixels.shape[2]))
    for start in range(0, len(pixels), step):
        part = slice(start, start + step)
        x = pixels[part].astype(np.float32) / 255
        for k, level in enumerate(levels):
            changed[k, part] = as_bytes(change(x, level, Draws(streams[part])))
    return changed.reshape(-1, *pixels.shape[1:])


def _corrupt_texts(columns: StrArray, change: TextCorruption, levels: Sequence[int], streams: Sequence[int]) -> StrArray:
    """Return changed columns of texts, (N, C) to (severities × N, C); the columns of an example share its stream."""
    changed = np.empty((len(levels), *columns.shape), dtype=object)
    for k, level in enumerate(levels):
        for row, stream in enumerate(streams):
            rng = np.random.default_rng(stream)
            changed[k, row] = [change(text, level, rng) for text in columns[row]]
    return changed.reshape(-1, columns.shape[1])


def _stream(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "big")
