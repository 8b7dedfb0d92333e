"""Durations as people write them: ``30m``, ``1h30m``, ``90s``."""

from __future__ import annotations

import re

from distilcal.errors import InputError

UNITS = {"h": 3600, "m": 60, "s": 1}
PATTERN = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
LONGEST = 10**9  # seconds; more is a mistake
REMEDY = "write it as 30m, 1h30m or 90s"


def parse_duration(value: str | float) -> float:
    """Return a duration in seconds.

    Parameters
    ----------
    value : str or float
        Text with units, such as ``"30m"``, ``"1h30m"`` or ``"90s"``; or a number of seconds.

    Returns
    -------
    float
        Seconds, more than 0.

    Raises
    ------
    InputError
        If the text is not a duration, has no unit, or the duration is not positive.

    Examples
    --------
    >>> parse_duration("1h30m"), parse_duration("90s"), parse_duration(45)
    (5400.0, 90.0, 45.0)
    """
    if isinstance(value, str):
        seconds = _parse_text(value.strip().lower())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        raise InputError(f"a {type(value).__name__} is not a duration", source="budget", remedy=REMEDY)
    if not 0 < seconds <= LONGEST:  # nor NaN
        raise InputError(f"the budget {value!r:.40} is not a time in which to do something", source="budget", remedy=REMEDY)
    return float(seconds)


def _parse_text(text: str) -> float:
    match = PATTERN.fullmatch(text)
    if match is not None and text:
        parts = zip(match.groups(), UNITS.values(), strict=True)
        return sum(float(number) * seconds for number, seconds in parts if number is not None)
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a duration", source="budget", remedy=REMEDY) from None
    if number == 0:
        return 0.0
    raise InputError(f"the budget {text!r} has no unit", source="budget", remedy=REMEDY)


def format_duration(seconds: float) -> str:
    """Return a duration in words, to the second.

    Parameters
    ----------
    seconds : float
        The duration; a negative one is shown as 0 s.

    Returns
    -------
    str

    Examples
    --------
    >>> format_duration(45), format_duration(330), format_duration(5400), format_duration(3600)
    ('45 s', '5 min 30 s', '1 h 30 min', '1 h')
    """
    rounded = max(0, round(seconds))
    hours, rest = divmod(rounded, 3600)
    minutes, left = divmod(rest, 60)
    parts = [f"{hours} h"] if hours else []
    if minutes:
        parts.append(f"{minutes} min")
    if (left and not hours) or not parts:
        parts.append(f"{left} s")
    return " ".join(parts)
