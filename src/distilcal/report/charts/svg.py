"""Elements of SVG as text, and how wide text is. All text and attributes are escaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from distilcal.report.formatting import one_line


def element(name: str, *inside: str, **attributes: Any) -> str:
    """Return an SVG element as text.

    Parameters
    ----------
    name : str
        Name of the element.
    *inside : str
        Content, inserted as it is: escape text with ``escaped`` first.
    **attributes : Any
        Attributes, escaped here. ``stroke_width`` is written as stroke-width and ``class_`` as class; None is left out, and
        floats have six significant digits.

    Returns
    -------
    str
        The element, self-closing if it has no content.

    Examples
    --------
    >>> element("line", x1=0.5, stroke_width=2, class_="ideal", id=None)
    '<line x1="0.5" stroke-width="2" class="ideal"/>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(f"{value:.6g}" if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(inside)}</{name}>" if inside else f"<{name}{written}/>"


def text_element(text: str, x: float | None, y: float | None, **attributes: Any) -> str:
    """Return an SVG ``text`` element with its text escaped.

    Parameters
    ----------
    text : str
        The text; without any there is no element.
    x, y : float or None
        Position of the text, in SVG units; None leaves the attribute out.
    **attributes : Any
        Further attributes, as in ``element``.

    Returns
    -------
    str
        The element, or an empty string.

    Examples
    --------
    >>> text_element("a < b", 1.0, 2.0, fill="red")
    '<text x="1" y="2" fill="red">a &lt; b</text>'
    """
    return element("text", escaped(text), x=x, y=y, **attributes) if text else ""


def escaped(text: str) -> str:
    """Return text as one escaped line that is safe inside an SVG element.

    Parameters
    ----------
    text : str
        Any text; it is cut at 500 characters, and characters that XML forbids are replaced or left out.

    Returns
    -------
    str
        The escaped text.

    Examples
    --------
    >>> escaped("a < b\\n& c")
    'a &lt; b &amp; c'
    """
    return escape(one_line(text, 500).replace("\ufffe", "").replace("\uffff", ""))


def polyline_points(places: Iterable[tuple[float, float]]) -> str:
    """Return places as the ``points`` attribute of a polyline or polygon.

    Parameters
    ----------
    places : iterable of (float, float)
        x and y of each place, in SVG units.

    Returns
    -------
    str
        Pairs separated by spaces, with six significant digits.

    Examples
    --------
    >>> polyline_points([(0.0, 1.5), (2.0, 3.0)])
    '0,1.5 2,3'
    """
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def text_width(text: str, size: float = 11.0) -> float:
    """Return an estimate of how wide text is, rather too wide than too narrow.

    Parameters
    ----------
    text : str
        One line of text.
    size : float
        Font size, in SVG units.

    Returns
    -------
    float
        The width, in SVG units.

    Examples
    --------
    >>> round(text_width("ab"), 2)
    12.76
    """
    return size * sum(
        0.34 if c in "iljtf.,:;|'!()[] " else 1.05 if unicodedata.east_asian_width(c) in "WF" else 0.9 if c in "mwMW@%" else
        0.7 if c.isupper() else 0.58 for c in text
    )  # fmt: skip


def truncate(text: str, room: float, size: float = 11.0) -> str:
    """Return text that fits into a width, with an ellipsis for what is cut off.

    Parameters
    ----------
    text : str
        One line of text.
    room : float
        The width, in SVG units.
    size : float
        Font size, in SVG units.

    Returns
    -------
    str
        The text, its beginning with an ellipsis, or the ellipsis alone where nothing fits.

    Examples
    --------
    >>> truncate("a long title", 40.0)
    'a long…'
    """
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def boxes_overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two boxes overlap; boxes that only touch do not.

    Parameters
    ----------
    a, b : sequence of float
        Left, top, right and bottom of a box, in SVG units.

    Returns
    -------
    bool
        Whether they share an area.

    Examples
    --------
    >>> boxes_overlap((0, 0, 2, 2), (1, 1, 3, 3)), boxes_overlap((0, 0, 2, 2), (2, 0, 3, 2))
    (True, False)
    """
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
