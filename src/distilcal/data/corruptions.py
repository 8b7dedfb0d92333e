"""Corruptions: a test set as it looks after noise, blur, weather, compression or careless typing, in five severities.

``corrupted(data, "frost", 3)`` makes such a set. What is done to images and to texts, and how to add to it, stands in
``image_corruptions.py`` and ``text_corruptions.py``; here a data set passes through it.

Every example has a random stream of its own, made from the seed, the corruption's name and the example's content. So a
change depends neither on the other examples nor on how they are taken in parts, and it is one change that grows with the
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
    """The same examples and labels under a corruption, for tests; without a severity under all five, one after the other.

    Ids tell what was done: ``{id}@{name}:{severity}``. Of five severities the groups are those of the data, or else the
    examples, so that the versions of one stay together.

    >>> from distilcal.data import texts
    >>> reviews = Dataset(texts(["a fine film", "too long"]), ["good", "bad"], ("bad", "good"), np.array(["r1", "r2"]))
    >>> shouted = corrupted(reviews, "casing", 5)
    >>> shouted, shouted.inputs.text.tolist(), shouted.ids.tolist()
    (Dataset('casing-5', 2 texts, 2 classes), ['A FINE FILM', 'TOO LONG'], ['r1@casing:5', 'r2@casing:5'])
    """
    _check(name, severity)
    levels = SEVERITIES if severity is None else (severity,)
    streams = [_stream(f"{seed} {name} {key}") for key in data.content_keys]

    def stacked(values: Any) -> Any:
        return None if values is None else np.concatenate([values] * len(levels))

    groups = data.ids if data.groups is None and severity is None else data.groups
    return replace(
        data,
        inputs=_changed(data, name, levels, streams),
        labels=stacked(data.labels),
        ids=np.concatenate([np.char.add(data.ids, f"@{name}:{level}") for level in levels]),
        label_probs=stacked(data.label_probs),
        groups=stacked(groups),
        name=name if severity is None else f"{name}-{severity}",  # a file is named after it
        role="ood",
    )


def parse_corruption(text: str) -> tuple[str, int | None]:
    """Name and severity of ``"frost:3"``; ``"frost"`` means all five.

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


def _changed(data: Dataset, name: str, levels: Sequence[int], streams: Sequence[int]) -> Inputs:
    """What a model reads, under each of the severities in turn."""
    inputs = data.inputs
    if isinstance(inputs, Images) and name in IMAGE_CORRUPTIONS:
        return Images(_changed_pixels(inputs.pixels, IMAGE_CORRUPTIONS[name], levels, streams))
    if isinstance(inputs, Texts) and name in TEXT_CORRUPTIONS:
        parts = inputs.text[:, None] if inputs.pair is None else np.stack([inputs.text, inputs.pair], axis=1)
        made = _changed_texts(parts, TEXT_CORRUPTIONS[name], levels, streams)
        return Texts(made[:, 0], None if inputs.pair is None else made[:, 1])
    if isinstance(inputs, Choices) and name in TEXT_CORRUPTIONS:
        made = _changed_texts(np.c_[inputs.prompt, inputs.endings], TEXT_CORRUPTIONS[name], levels, streams)
        return Choices(made[:, 0], made[:, 1:])
    held = type(inputs).__name__.lower()
    fitting = [*IMAGE_CORRUPTIONS] if isinstance(inputs, Images) else [*TEXT_CORRUPTIONS]
    raise InputError(
        f"the corruption {name!r} is for {'images' if name in IMAGE_CORRUPTIONS else 'texts'}, and {data.name!r} holds {held}",
        remedy="leave it out" if isinstance(inputs, Vectors) else f"for {held} there are {', '.join(fitting)}",
    )


def _changed_pixels(
    pixels: NDArray[np.uint8], change: ImageCorruption, levels: Sequence[int], streams: Sequence[int]
) -> NDArray[np.uint8]:
    made = np.empty((len(levels), *pixels.shape), dtype=np.uint8)
    step = max(1, CHUNK // (pixels.shape[1] * pixels.shape[2]))
    for start in range(0, len(pixels), step):
        part = slice(start, start + step)
        x = pixels[part].astype(np.float32) / 255
        for k, level in enumerate(levels):
            made[k, part] = as_bytes(change(x, level, Draws(streams[part])))
    return made.reshape(-1, *pixels.shape[1:])


def _changed_texts(columns: StrArray, change: TextCorruption, levels: Sequence[int], streams: Sequence[int]) -> StrArray:
    """Columns of texts (N, C), stacked to (severities × N, C); the columns of an example share its stream."""
    made = np.empty((len(levels), *columns.shape), dtype=object)
    for k, level in enumerate(levels):
        for row, stream in enumerate(streams):
            rng = np.random.default_rng(stream)
            made[k, row] = [change(text, level, rng) for text in columns[row]]
    return made.reshape(-1, columns.shape[1])


def _stream(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "big")
