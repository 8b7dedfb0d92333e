"""Near-duplicates between two sets of texts: the same but for case, punctuation, digits or a few words.

Texts are normalised and compared by the Jaccard similarity of their runs of five characters (shingles). Candidates are found by
MinHash with banding, so the cost is linear in the number of characters: each text is compared with at most one text per band.
In texts of fewer than four words a changed word changes the meaning ("not good"): they have to be equal once normalised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Choices, Dataset, Texts
from distilcal.predictions import IntArray

SIMILARITY = 0.8
SHINGLE = 5  # characters
MIN_WORDS = 4
MAX_CHARACTERS = 2_000  # of a text that are compared
BANDS, BAND_WIDTH = 8, 4  # finds 98 % of the pairs with a similarity of 0.8 and nearly all of those with 0.9
SLICE = 2_000_000  # characters that are hashed at once

NOT_A_WORD = re.compile(r"[\W_]+")
DIGIT = re.compile(r"\d")
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")  # a character of Chinese or Japanese is a word
_MULTIPLIERS = np.random.default_rng(0).integers(2**31, 2**32, BANDS * BAND_WIDTH, dtype=np.uint32) | np.uint32(1)
_BAND_MULTIPLIERS = np.random.default_rng(1).integers(2**62, 2**63, BAND_WIDTH, dtype=np.uint64) | np.uint64(1)


def normalise(text: str) -> str:
    """Return a text without case, punctuation and runs of white space; in texts of four words or more every digit is 0.

    A text without letters and digits, such as a face, stays as it is.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    str

    Examples
    --------
    >>> normalise("Order 66: shipped, on MONDAY!"), normalise("7 + 5")
    ('order 00 shipped on monday', '7 5')
    """
    plain = NOT_A_WORD.sub(" ", text.casefold()).strip() or text.strip()
    return DIGIT.sub("0", plain) if _is_long(plain) else plain


def near_duplicates(first: Dataset, second: Dataset) -> tuple[IntArray, IntArray]:
    """Find the examples of one set that have a near-duplicate in another.

    Examples that differ in case and white space only are exact duplicates, which `distilcal.data.overlap` finds: they are left
    out. Of two texts that belong together (pairs, a prompt and its choices) both have to be alike.

    Parameters
    ----------
    first, second : Dataset
        Two sets of texts, pairs of texts or choices; between other data there are none.

    Returns
    -------
    rows, matches : arrays of int, shape (M,)
        Rows of ``second``, in order and each at most once, and a row of ``first`` that each of them nearly repeats.

    Examples
    --------
    >>> from distilcal.data import texts
    >>> train = Dataset(texts(["bad", "The plot is thin, but the actors save it.", "Order 12 was late again!"]))
    >>> test = Dataset(texts(["order 75 was late again", "good", "the plot is thin but the actors save it"]))
    >>> rows, matches = near_duplicates(train, test)
    >>> rows.tolist(), matches.tolist()
    ([0, 2], [2, 1])
    """
    return match_sketches(sketch(first), sketch(second))


@dataclass(frozen=True)
class Sketch:
    """What is compared of a set of texts; `sketch` makes it, once for all comparisons of a set.

    Attributes
    ----------
    parts : list of list of str
        The normalised texts of each part of the examples: one part for texts, two for pairs and choices.
    exact : array of str, shape (N,)
        Keys of the examples that are equal for exact duplicates.
    """

    parts: list[list[str]]
    exact: NDArray[np.str_]

    @cached_property
    def joined(self) -> list[str]:
        """The parts of each example in one text."""
        return [" ".join(texts) for texts in zip(*self.parts, strict=True)]

    @cached_property
    def is_long(self) -> NDArray[np.bool_]:
        """Whether each example has enough words to be compared by its shingles (N,)."""
        return np.array([_is_long(text) for text in self.joined], dtype=bool)

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """The MinHash of every example, one key per band (N, bands)."""
        return _band_keys(self.joined)


def sketch(data: Dataset) -> Sketch | None:
    """Return what is compared of a set of examples; None if they are not texts.

    Parameters
    ----------
    data : Dataset
        Any examples.
    """
    if isinstance(data.inputs, Texts):
        columns: list[Any] = [data.inputs.text] if data.inputs.pair is None else [data.inputs.text, data.inputs.pair]
    elif isinstance(data.inputs, Choices):
        columns = [data.inputs.prompt, [" / ".join(endings) for endings in data.inputs.endings]]
    else:
        return None
    parts = [[normalise(str(text)[:MAX_CHARACTERS]) for text in column] for column in columns]
    return Sketch(parts, data.loose_keys)


def match_sketches(first: Sketch | None, second: Sketch | None) -> tuple[IntArray, IntArray]:
    """Find near-duplicates as `near_duplicates` does, between sets that were sketched before.

    Parameters
    ----------
    first, second : Sketch or None
        The two sets.

    Returns
    -------
    rows, matches : arrays of int, shape (M,)
    """
    if first is None or second is None or len(first.parts) != len(second.parts):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    rows, matches = _candidates(first, second)
    alike = ~np.isin(second.exact, first.exact)[rows]
    for first_part, second_part in zip(first.parts, second.parts, strict=True):
        alike[alike] = _are_alike([first_part[i] for i in matches[alike]], [second_part[i] for i in rows[alike]])
    rows, at = np.unique(rows[alike], return_index=True)
    return rows, matches[alike][at]


def _is_long(text: str) -> bool:
    return len(WORD.findall(text)) >= MIN_WORDS


def _candidates(first: Sketch, second: Sketch) -> tuple[IntArray, IntArray]:
    """Pairs of rows that may be alike: equal normalised texts, and for each band the first text with the same key."""
    found = [_look_up(np.array(first.joined, dtype=object), np.array(second.joined, dtype=object))]
    long_first, long_second = np.flatnonzero(first.is_long), np.flatnonzero(second.is_long)
    if len(long_first) and len(long_second):
        for band in range(BANDS):
            rows, matches = _look_up(first.keys[long_first, band], second.keys[long_second, band])
            found.append((long_second[rows], long_first[matches]))
    pairs = np.unique(np.concatenate([np.column_stack(pair) for pair in found]), axis=0)
    return pairs[:, 0], pairs[:, 1]


def _look_up(keys: NDArray[Any], requested: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """The positions of requested keys that exist, and the first position of each among the keys."""
    values, positions = np.unique(keys, return_index=True)
    at = np.searchsorted(values, requested).clip(max=len(values) - 1)
    rows = np.flatnonzero(values[at] == requested)
    return rows, positions[at[rows]]


def _are_alike(first: list[str], second: list[str]) -> NDArray[np.bool_]:
    """Whether texts are alike, pair by pair."""
    equal = np.array([a == b for a, b in zip(first, second, strict=True)], dtype=bool)
    compared = ~equal & np.array([_is_long(a) and _is_long(b) for a, b in zip(first, second, strict=True)], dtype=bool)
    pairs = np.flatnonzero(compared)
    if len(pairs):
        similarity = _jaccard([first[i] for i in pairs], [second[i] for i in pairs])
        equal[pairs[similarity >= SIMILARITY]] = True
    return equal


def _jaccard(first: list[str], second: list[str]) -> NDArray[np.float64]:
    """The share of shingles that two texts have in common, of those that one of them has; pair by pair."""
    in_first, in_second = _owned_shingles(first), _owned_shingles(second)
    counts = []
    for owned in (in_first, in_second, np.intersect1d(in_first, in_second, assume_unique=True)):
        counts.append(np.bincount((owned >> np.uint64(32)).astype(np.int64), minlength=len(first)))
    # Texts that are too short to have a shingle, such as four Chinese characters, have none in common.
    similarity: NDArray[np.float64] = counts[2] / np.maximum(counts[0] + counts[1] - counts[2], 1)
    return similarity


def _owned_shingles(texts: list[str]) -> NDArray[np.uint64]:
    """The distinct shingles of every text, with the number of the text in the upper half of the bits."""
    shingles, starts = _shingles(texts)
    owner = np.repeat(np.arange(len(texts), dtype=np.uint64), np.diff(np.append(starts, len(shingles))))
    return np.unique(owner << np.uint64(32) | shingles.astype(np.uint64))


def _band_keys(texts: list[str]) -> NDArray[np.uint64]:
    """The keys (N, bands) of texts; those of texts that are too short to have a shingle are 0."""
    keys = np.zeros((len(texts), BANDS), dtype=np.uint64)
    rows = np.flatnonzero([len(text) >= SHINGLE for text in texts])
    lengths = np.cumsum([len(texts[row]) for row in rows])
    for part in np.split(rows, np.searchsorted(lengths, np.arange(SLICE, lengths[-1] if len(rows) else 0, SLICE))):
        if len(part):
            keys[part] = _min_hash([texts[row] for row in part])
    return keys


def _min_hash(texts: list[str]) -> NDArray[np.uint64]:
    """The least value of every hash function over the shingles of each text, those of a band as one key (N, bands)."""
    shingles, starts = _shingles(texts)
    keys = np.zeros((len(texts), BANDS), dtype=np.uint64)
    for index, multiplier in enumerate(_MULTIPLIERS):
        least = np.minimum.reduceat(shingles * multiplier, starts).astype(np.uint64)
        band, position = divmod(index, BAND_WIDTH)
        keys[:, band] += (least + np.uint64(1)) * _BAND_MULTIPLIERS[position]
    return keys


def _shingles(texts: list[str]) -> tuple[NDArray[np.uint32], IntArray]:
    """Hashes of the runs of five characters of all texts in a row, and where those of each text start."""
    characters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    lengths = np.array([len(text) for text in texts])
    hashed = np.zeros(len(characters) - SHINGLE + 1, dtype=np.uint32)
    for offset in range(SHINGLE):
        hashed = hashed * np.uint32(0x01000193) + characters[offset : offset + len(hashed)]
    hashed = _mix(hashed)
    ends = np.cumsum(lengths)
    within_text = np.ones(len(characters), dtype=bool)  # not those that run on into the next text
    for offset in range(1, SHINGLE):
        within_text[ends - offset] = False
    starts = np.concatenate([[0], np.cumsum(lengths - SHINGLE + 1)[:-1]])
    return hashed[within_text[: len(hashed)]], starts


def _mix(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Spread values over all 32 bits (the finaliser of MurmurHash3)."""
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))
