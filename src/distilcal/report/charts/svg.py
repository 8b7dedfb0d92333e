"""Elements of SVG as text, and how wide text is. All text and attributes are escaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from distilcal.report.formatting import one_line


def element(name: str, *inside: str, **attributes: Any) -> str:
    """Return an element; ``stroke_width`` stands for stroke-width, ``class_`` for class, and what is None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(f"{value:.6g}" if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(inside)}</{name}>" if inside else f"<{name}{written}/>"


def text_element(text: str, x: float | None, y: float | None, **attributes: Any) -> str:
    return element("text", escaped(text), x=x, y=y, **attributes) if text else ""


def escaped(text: str) -> str:
    return escape(one_line(text, 500).replace("\ufffe", "").replace("\uffff", ""))


def polyline_points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def text_width(text: str, size: float = 11.0) -> float:
    """Return about how wide text is, rather too wide than too narrow."""
    return size * sum(
        0.34 if c in "iljtf.,:;|'!()[] " else 1.05 if unicodedata.east_asian_width(c) in "WF" else 0.9 if c in "mwMW@%" else
        0.7 if c.isupper() else 0.58 for c in text
    )  # fmt: skip


def truncate(text: str, room: float, size: float = 11.0) -> str:
    """Return text that fits into a width, the rest as an ellipsis."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def boxes_overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
