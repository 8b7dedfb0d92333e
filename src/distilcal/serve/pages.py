"""The files of the service's pages; they are part of the package and read once."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template


def read_page(name: str) -> str:
    """Return a file of ``serve/templates``.

    Parameters
    ----------
    name : str
        Its file name.

    Returns
    -------
    str

    Examples
    --------
    >>> read_page("index.html").startswith("<!doctype html>")
    True
    """
    return files("distilcal.serve").joinpath("templates", name).read_text(encoding="utf-8")


def render_page(name: str, **values: str) -> str:
    """Return a page with its ``$values`` filled in as text, escaped.

    Parameters
    ----------
    name : str
        Its file name.
    **values : str
        Texts by the names that the page uses.

    Returns
    -------
    str
    """
    return Template(read_page(name)).substitute({key: escape(value) for key, value in values.items()})
