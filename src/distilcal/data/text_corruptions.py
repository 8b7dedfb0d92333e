"""Text corruptions: careless typing, words left out, letters in the wrong case.

To add one, write ``f(text, severity, rng)`` on one text and enter it in ``TEXT_CORRUPTIONS`` at the end; the tests cover it
from there. Draw the same numbers at every severity, so that it is one change that grows, and empty no text.
``corruptions.py`` passes a data set through them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

TextCorruption = Callable[[str, int, np.random.Generator], str]


def typos(text: str, severity: int, rng: np.random.Generator) -> str:
    """A share of the letters is swapped with the next, left out, or followed or replaced by one beside it on the keyboard."""
    share = (0.02, 0.04, 0.07, 0.11, 0.16)[severity - 1]
    hit, kind, key = rng.random((3, len(text)))
    letters = list(text)
    for i in np.flatnonzero(hit < share):
        letter = letters[i]
        if not letter.isalpha():
            continue
        near = NEIGHBOURS.get(letter.lower(), "")
        how = kind[i] if near else kind[i] / 2  # of other alphabets we have no keyboard
        if how < 0.25 and i + 1 < len(letters) and letters[i + 1].isalpha():
            letters[i : i + 2] = letters[i + 1], letter
        elif how < 0.5:
            letters[i] = ""
        else:
            other = near[int(key[i] * len(near))]
            other = other.upper() if letter.isupper() else other
            letters[i] = letter + other if how < 0.75 else other
    made = "".join(letters)
    return made if made.strip() else text


def word_drop(text: str, severity: int, rng: np.random.Generator) -> str:
    """A share of the words is left out, never all."""
    words = re.findall(r"\S+\s*", text)
    if len(words) < 2:
        return text
    drawn = rng.random(len(words))
    kept = (drawn >= (0.05, 0.1, 0.2, 0.3, 0.5)[severity - 1]) | (drawn == drawn.max())
    return text if kept.all() else "".join(w for w, k in zip(words, kept, strict=True) if k).strip()


def casing(text: str, severity: int, rng: np.random.Generator) -> str:
    """A share of the letters is upper case where it was lower, and lower where it was upper; at severity 5 all is upper."""
    if severity == 5:
        return text.upper()
    flipped = rng.random(len(text)) < (0.05, 0.15, 0.3, 0.5)[severity - 1]
    return "".join(c.swapcase() if f else c for c, f in zip(text, flipped, strict=True))


def _neighbours(rows: Sequence[str]) -> dict[str, str]:
    """The keys that touch each key, where every row stands half a key to the right of the one above."""
    at = {key: (2 * r, 2 * i + r) for r, row in enumerate(rows) for i, key in enumerate(row)}
    return {a: "".join(b for b, (u, v) in at.items() if a != b and abs(u - y) <= 2 and abs(v - x) <= 2 - (u != y))
            for a, (y, x) in at.items()}  # fmt: skip


NEIGHBOURS = _neighbours(("qwertyuiop", "asdfghjkl", "zxcvbnm"))
TEXT_CORRUPTIONS: dict[str, TextCorruption] = {"typos": typos, "word_drop": word_drop, "casing": casing}
