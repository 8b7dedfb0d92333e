"""Text corruptions: careless typing, words left out, letters in the wrong case.

To add one, write ``f(text, severity, rng)`` on one text and add it to ``TEXT_CORRUPTIONS`` at the end; the tests cover it
from there. Draw the same numbers at every severity, so that the corruption only grows, and never return an empty text.
``corruptions.py`` applies them to a data set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

TextCorruption = Callable[[str, int, np.random.Generator], str]


def typos(text: str, severity: int, rng: np.random.Generator) -> str:
    """Mistype a share of the letters.

    Each is swapped with the next letter, left out, or followed or replaced by a letter beside it on the keyboard.

    Parameters
    ----------
    text : str
        The text; letters that are not on an English keyboard are only swapped or left out.
    severity : int
        1 to 5: 2 % to 16 % of the letters.
    rng : np.random.Generator
        The generator of this text.

    Returns
    -------
    str
        The corrupted text; the same text if nothing but space would be left.

    Examples
    --------
    >>> typos("", 5, np.random.default_rng(0))
    ''
    """
    share = (0.02, 0.04, 0.07, 0.11, 0.16)[severity - 1]
    chance, kind_of_typo, key = rng.random((3, len(text)))
    letters = list(text)
    for i in np.flatnonzero(chance < share):
        letter = letters[i]
        if not letter.isalpha():
            continue
        neighbours = NEIGHBOURS.get(letter.lower(), "")
        kind = kind_of_typo[i]
        if not neighbours:
            kind /= 2  # no keyboard for other alphabets: swap or leave out only
        if kind < 0.25 and i + 1 < len(letters) and letters[i + 1].isalpha():
            letters[i : i + 2] = letters[i + 1], letter
        elif kind < 0.5:
            letters[i] = ""
        else:
            neighbour = neighbours[int(key[i] * len(neighbours))]
            if letter.isupper():
                neighbour = neighbour.upper()
            letters[i] = letter + neighbour if kind < 0.75 else neighbour
    corrupted = "".join(letters)
    return corrupted if corrupted.strip() else text


def word_drop(text: str, severity: int, rng: np.random.Generator) -> str:
    """Leave out a share of the words, never all.

    Parameters
    ----------
    text : str
        The text.
    severity : int
        1 to 5: 5 % to 50 % of the words.
    rng : np.random.Generator
        The generator of this text.

    Returns
    -------
    str

    Examples
    --------
    >>> word_drop("alone", 5, np.random.default_rng(0))
    'alone'
    """
    words = re.findall(r"\S+\s*", text)
    if len(words) < 2:
        return text
    drawn = rng.random(len(words))
    share = (0.05, 0.1, 0.2, 0.3, 0.5)[severity - 1]
    is_kept = (drawn >= share) | (drawn == drawn.max())
    if is_kept.all():
        return text
    return "".join(word for word, keep in zip(words, is_kept, strict=True) if keep).strip()


def casing(text: str, severity: int, rng: np.random.Generator) -> str:
    """Change a share of the letters from lower to upper case and back.

    Parameters
    ----------
    text : str
        The text.
    severity : int
        1 to 4: 5 % to 50 % of the letters; 5: the whole text in upper case.
    rng : np.random.Generator
        The generator of this text.

    Returns
    -------
    str

    Examples
    --------
    >>> casing("Good", 5, np.random.default_rng(0))
    'GOOD'
    """
    if severity == 5:
        return text.upper()
    is_swapped = rng.random(len(text)) < (0.05, 0.15, 0.3, 0.5)[severity - 1]
    return "".join(letter.swapcase() if swap else letter for letter, swap in zip(text, is_swapped, strict=True))


def _neighbours(rows: Sequence[str]) -> dict[str, str]:
    """Return the keys that touch each key; every row of keys is half a key to the right of the one above."""
    neighbours = {key: "" for row in rows for key in row}
    positions = [(key, r, 2 * i + r) for r, row in enumerate(rows) for i, key in enumerate(row)]  # columns in half keys
    for key, row, column in positions:
        for other, other_row, other_column in positions:
            is_beside = other_row == row and abs(other_column - column) == 2
            is_above_or_below = abs(other_row - row) == 1 and abs(other_column - column) == 1
            if is_beside or is_above_or_below:
                neighbours[key] += other
    return neighbours


NEIGHBOURS = _neighbours(("qwertyuiop", "asdfghjkl", "zxcvbnm"))
TEXT_CORRUPTIONS: dict[str, TextCorruption] = {"typos": typos, "word_drop": word_drop, "casing": casing}
