"""A cell of a table as text: its mean, the paper's figure, the difference to another method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distilcal.report.formatting import format_p_value

SIGNS = {"holds": "✓", "fails": "✗", "undecided": "?"}


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
    """Return a mean with its standard deviation, where there is one."""
    spread = f" ± {format_value(scale, std)}" if std is not None else ""
    return f"{format_value(scale, mean)}{spread}{'%' if unit and scale['percent'] else ''}"


def cell_text(cell: Mapping[str, Any] | None, std: bool = True) -> str:
    """Return the content of a cell: its mean, or why there is none."""
    if cell is None:
        return "–"
    if cell["mean"] is not None:
        return format_with_std(cell, cell["mean"], cell["std"] if std else None) + ("†" if cell["failed"] else "")
    return "failed" if cell["failed"] else cell["missing"] or "–"


def paper_text(cell: Mapping[str, Any] | None, *, unit: bool = False) -> str:
    """Return the paper's figure for a cell, or nothing."""
    if cell is None or not cell["paper"] or cell["paper"]["mean"] is None:
        return ""
    return format_with_std(cell, cell["paper"]["mean"], cell["paper"]["std"], unit=unit)


def arrow(cell: Mapping[str, Any] | None) -> str:
    """Return an arrow up or down, if the difference is significant."""
    d = cell["difference"] if cell else None
    if not d or not d["significant"] or not d["value"]:
        return ""
    return "▲" if d["value"] > 0 else "▼"


def comparison_state(cell: Mapping[str, Any] | None) -> str:
    """Return how a cell compares with the other method: better, worse, differs (no side is better), or nothing."""
    if cell is None or not arrow(cell):
        return ""
    better: bool | None = cell["difference"]["better"]
    if better is None:
        return "differs"
    return "better" if better else "worse"


def format_difference(scale: Mapping[str, Any], difference: Mapping[str, Any]) -> str:
    """Return a difference with its interval and p-value, where it has them."""
    text = format_value(scale, difference["value"], signed=True)
    if difference["low"] is not None:
        low = format_value(scale, difference["low"], signed=True)
        high = format_value(scale, difference["high"], signed=True)
        text += f" [{low}, {high}]"
    if difference["p"] is not None:
        text += f", p {format_p_value(difference['p'])}"
    return text


def format_plain(value: Any) -> str:
    """Return a value of a theorem's table: a number in a few digits, or its text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def sort_value(value: Any) -> str:
    """Return the number by which a page sorts a cell; empty where there is none."""
    return f"{value!r}" if isinstance(value, int | float) and math.isfinite(value) else ""
