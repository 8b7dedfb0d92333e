"""Numbers and text of others as they are shown: digits, percentages, p-values, single lines."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

# What could steer a terminal or make a line read differently from what it holds: control characters except line feed and tab,
# halves of characters, other separators of lines, and marks that turn the direction of writing.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028-\u202e\u2066-\u2069]")
REPLACEMENT = "\ufffd"


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a number with a fixed count of decimals, a dash for a missing one.

    Parameters
    ----------
    value : float or None
        The number; None and NaN are a dash, an infinite one is ∞ without its sign.
    digits : int
        Digits after the point.

    Returns
    -------
    str
        The number as text.

    Examples
    --------
    >>> format_number(0.12345), format_number(float("nan")), format_number(float("inf"))
    ('0.123', '–', '∞')
    """
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.{digits}f}"


def format_signed(value: float, digits: int = 3) -> str:
    """Return a number with its sign, in as many decimals as show on which side of 0 it lies.

    Parameters
    ----------
    value : float
        The number.
    digits : int
        Digits after the point, if they are not all zeros.

    Returns
    -------
    str

    Examples
    --------
    >>> format_signed(0.01234), format_signed(-0.00004), format_signed(0.0), format_signed(float("-inf"))
    ('+0.012', '-0.00004', '0.000', '-∞')
    """
    if math.isinf(value):
        return "+∞" if value > 0 else "-∞"
    if value == 0:
        return f"{0:.{digits}f}"
    text = f"{value:+.{digits}f}"
    return text if float(text) else f"{value:+.{-math.floor(math.log10(abs(value)))}f}"


def format_percent(value: float, digits: int = 1) -> str:
    """Return a share as a percentage, a dash for NaN.

    Parameters
    ----------
    value : float
        The share; 1 is 100%.
    digits : int
        Digits after the point of the percentage.

    Returns
    -------
    str
        The percentage with its sign.

    Examples
    --------
    >>> format_percent(0.125)
    '12.5%'
    """
    return "–" if math.isnan(value) else f"{value:.{digits}%}"


def format_p_value(value: float | None) -> str:
    """Return a p-value with three decimals, or ``< 0.001`` where these would be zeros.

    Parameters
    ----------
    value : float or None
        The p-value, from 0 to 1; None and NaN are a dash.

    Returns
    -------
    str
        The p-value as text.

    Examples
    --------
    >>> format_p_value(0.04), format_p_value(0.0001), format_p_value(None), format_p_value(float("nan"))
    ('0.040', '< 0.001', '–', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.3f}" if value >= 0.0005 else "< 0.001"


def one_line(text: str, most: int) -> str:
    """Return text as one line that cannot steer a terminal.

    Line breaks become spaces; control characters and characters that turn the direction of writing become U+FFFD.

    Parameters
    ----------
    text : str
        Any text.
    most : int
        Longest result, in characters; what is cut off is marked by an ellipsis.

    Examples
    --------
    >>> one_line("two\\n lines", 20), one_line("abcdefgh", 5)
    ('two lines', 'abcd…')
    """
    line = printable(" ".join(text[: 4 * most].split()))
    if len(line) <= most and len(text) <= 4 * most:
        return line
    return line[: most - 1].rstrip() + "…"


def printable(text: str) -> str:
    """Return text that cannot steer a terminal: what could is replaced by U+FFFD, character by character.

    Control characters (ANSI escapes, carriage returns), halves of characters and marks that turn the direction of writing are
    replaced; line feeds and tabs stay.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    str
        As long as the text.

    Examples
    --------
    >>> printable("a\\x1b[31mred\\r, b") == "a\ufffd[31mred\ufffd, b"
    True
    """
    return STEERING.sub(REPLACEMENT, text)


def join_listed(parts: Sequence[str]) -> str:
    """Return parts as an English list.

    Parameters
    ----------
    parts : sequence of str
        One part or more.

    Returns
    -------
    str
        The parts with commas and a last "and".

    Raises
    ------
    IndexError
        If there are no parts.

    Examples
    --------
    >>> join_listed(["a", "b", "c"])
    'a, b and c'
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
