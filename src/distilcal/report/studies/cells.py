"""A cell of a table as text: its mean, the paper's figure, the difference to another method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distilcal.report.formatting import format_p_value

SIGNS = {"holds": "✓", "fails": "✗", "no effect above δ": "=", "undecided": "?", "premise not met": "–"}


def format_value(scale: Mapping[str, Any], value: float | None, *, signed: bool = False, unit: bool = False) -> str:
    """Return a number as its cell or part of a claim shows it.

    Parameters
    ----------
    scale : dict
        A cell or a part of a claim: ``percent`` (whether its numbers are shown times 100) and ``digits`` after the point.
    value : float or None
        The number; None is a dash.
    signed : bool
        Whether positive numbers have a plus.
    unit : bool
        Whether percentages have their sign.
    """
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    number = value * 100 if scale["percent"] else value
    text = f"{number:+z.{scale['digits']}f}" if signed else f"{number:z.{scale['digits']}f}"
    return f"{text}%" if unit and scale["percent"] else text


def format_with_std(scale: Mapping[str, Any], mean: float | None, std: float | None, *, unit: bool = False) -> str:
    """Return a mean with its standard deviation, where it has one.

    Parameters
    ----------
    scale : dict
        A cell or a part of a claim, as in ``format_value``.
    mean : float or None
        The mean; None is a dash.
    std : float or None
        The standard deviation; None leaves it out.
    unit : bool
        Whether percentages have their sign.

    Returns
    -------
    str
        The numbers as text.

    Examples
    --------
    >>> format_with_std({"percent": True, "digits": 1}, 0.912, 0.004, unit=True)
    '91.2 ± 0.4%'
    """
    spread = f" ± {format_value(scale, std)}" if std is not None else ""
    return f"{format_value(scale, mean)}{spread}{'%' if unit and scale['percent'] else ''}"


def cell_text(cell: Mapping[str, Any] | None, std: bool = True) -> str:
    """Return the content of a cell: its mean, or why there is none.

    Parameters
    ----------
    cell : dict or None
        A cell of a table in ``results.json``; None is a dash.
    std : bool
        Whether the standard deviation follows the mean.

    Returns
    -------
    str
        The mean, with † if some of its runs failed; else "failed", the reason why it is missing, or a dash.

    Examples
    --------
    >>> cell_text({"percent": True, "digits": 1, "mean": 0.912, "std": None, "failed": "", "missing": ""})
    '91.2'
    """
    if cell is None:
        return "–"
    if cell["mean"] is not None:
        return format_with_std(cell, cell["mean"], cell["std"] if std else None) + ("†" if cell["failed"] else "")
    return "failed" if cell["failed"] else cell["missing"] or "–"


def paper_text(cell: Mapping[str, Any] | None, *, unit: bool = False) -> str:
    """Return the paper's figure for a cell, or an empty string.

    Parameters
    ----------
    cell : dict or None
        A cell of a table in ``results.json``.
    unit : bool
        Whether percentages have their sign.

    Returns
    -------
    str
        The paper's mean with its standard deviation, where the paper has them.

    Examples
    --------
    >>> paper_text({"percent": True, "digits": 1, "paper": {"mean": 0.9, "std": None}}, unit=True)
    '90.0%'
    """
    if cell is None or not cell["paper"] or cell["paper"]["mean"] is None:
        return ""
    return format_with_std(cell, cell["paper"]["mean"], cell["paper"]["std"], unit=unit)


def arrow(cell: Mapping[str, Any] | None) -> str:
    """Return an arrow up or down if the difference of a cell to the other method is significant.

    Parameters
    ----------
    cell : dict or None
        A cell of a table in ``results.json``.

    Returns
    -------
    str
        ▲ if the cell is higher, ▼ if it is lower, else an empty string.

    Examples
    --------
    >>> arrow({"difference": {"value": -0.2, "significant": True}})
    '▼'
    """
    d = cell["difference"] if cell else None
    if not d or not d["significant"] or not d["value"]:
        return ""
    return "▲" if d["value"] > 0 else "▼"


def comparison_state(cell: Mapping[str, Any] | None) -> str:
    """Return how a cell compares with the other method.

    Parameters
    ----------
    cell : dict or None
        A cell of a table in ``results.json``.

    Returns
    -------
    str
        "better", "worse", "differs" (significant, but neither side is better), or an empty string.

    Examples
    --------
    >>> comparison_state({"difference": {"value": -0.2, "significant": True, "better": True}})
    'better'
    """
    if cell is None or not arrow(cell):
        return ""
    better: bool | None = cell["difference"]["better"]
    if better is None:
        return "differs"
    return "better" if better else "worse"


def format_difference(scale: Mapping[str, Any], difference: Mapping[str, Any]) -> str:
    """Return a difference with its interval and p-value, where it has them.

    Parameters
    ----------
    scale : dict
        A cell or a part of a claim, as in ``format_value``.
    difference : dict
        ``value``, ``low``, ``high`` and ``p``, the last three None where missing.

    Returns
    -------
    str
        The difference as text; its numbers have signs.

    Examples
    --------
    >>> format_difference({"percent": False, "digits": 2}, {"value": 0.5, "low": 0.25, "high": 0.75, "p": 0.01})
    '+0.50 [+0.25, +0.75], p 0.010'
    """
    text = format_value(scale, difference["value"], signed=True)
    if difference["low"] is not None:
        low = format_value(scale, difference["low"], signed=True)
        high = format_value(scale, difference["high"], signed=True)
        text += f" [{low}, {high}]"
    if difference["p"] is not None:
        text += f", p {format_p_value(difference['p'])}"
    return text


def format_plain(value: Any) -> str:
    """Return a value of a theorem's table: a number in a few digits, or its text.

    Parameters
    ----------
    value : Any
        The value; None is a dash.

    Returns
    -------
    str
        Integers with thousands separators, floats with four significant digits, anything else as ``str`` gives it.

    Examples
    --------
    >>> format_plain(12345), format_plain(0.123456), format_plain(None)
    ('12,345', '0.1235', '–')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def sort_value(value: Any) -> str:
    """Return the number by which a page sorts a cell, or an empty string where there is none.

    Parameters
    ----------
    value : Any
        The value of the cell.

    Returns
    -------
    str
        A finite number with all its digits, else an empty string.

    Examples
    --------
    >>> sort_value(0.1), sort_value(None)
    ('0.1', '')
    """
    return f"{value!r}" if isinstance(value, int | float) and math.isfinite(value) else ""
