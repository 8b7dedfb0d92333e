"""The console that reports are printed on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

PIPED_WIDTH = 150  # piped output has no width of its own: wide enough for the definitions
PROSE_WIDTH = 110  # prose is hard to read in longer lines


class ReportConsole(Console):
    """A console that leaves a broken pipe to the command line, which then ends quietly."""

    def on_broken_pipe(self) -> None:
        """Raise the error instead of exiting here."""
        raise BrokenPipeError


def build_console(file: TextIO | None = None) -> Console:
    """Return a console on standard output, of a fixed width where that is not a terminal.

    Parameters
    ----------
    file : text file, optional
        Where to print in place of standard output, in its width.

    Returns
    -------
    rich.console.Console
    """
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    if file is None:
        return ReportConsole(highlight=False, width=width)
    return ReportConsole(highlight=False, width=width, file=file, force_jupyter=False)  # a notebook would show it at once


def prose_width(console: Console) -> int:
    """Return the width in which paragraphs are printed.

    Parameters
    ----------
    console : rich.console.Console
        The console.

    Returns
    -------
    int
        Its width in columns, at most ``PROSE_WIDTH``.

    Examples
    --------
    >>> prose_width(Console(width=80)), prose_width(Console(width=200))
    (80, 110)
    """
    return min(console.width, PROSE_WIDTH)


def print_list(console: Console, items: Iterable[str]) -> None:
    """Print sentences as an indented list, without reading markup in them.

    Parameters
    ----------
    console : rich.console.Console
        The console to print on.
    items : iterable of str
        The sentences, one for each entry.
    """
    for item in items:
        console.print(Padding(Text(f"– {item}"), (0, 0, 0, 2), expand=False), width=prose_width(console))
