"""The console that reports are printed on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from distilcal.report.formatting import printable

PIPED_WIDTH = 150  # piped output has no width of its own: wide enough for the definitions
NARROWEST = 72  # in less, tables would cut their numbers off; a terminal that is narrower wraps the lines
PROSE_WIDTH = 110  # prose is hard to read in longer lines


class ReportConsole(Console):
    """A console that prints no control characters of the user's data, and goes on when nobody reads them any more."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of what is printed; characters that could steer a terminal are replaced in all of them."""
        if isinstance(renderable, Text):  # before it is laid out: a replaced character has another width
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain)
        elif isinstance(renderable, str):
            renderable = printable(renderable)
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> None:
        """Go on instead of exiting here."""
        discard_output()


def discard_output() -> None:
    """Print nothing from now on: whoever read standard output has had enough, which stops no work and changes no exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # Python would complain once more when it closes the pipe
    os.close(nowhere)


def build_console(file: TextIO | None = None) -> Console:
    """Return a console on standard output; where that is not a terminal, as wide as ``COLUMNS`` says or of a fixed width.

    Parameters
    ----------
    file : text file, optional
        Where to print in place of standard output, in its width.

    Returns
    -------
    rich.console.Console
    """
    width = max(shutil.get_terminal_size((PIPED_WIDTH, 0)).columns, NARROWEST)  # rich would print nothing where COLUMNS is 0
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


def full_width(console: Console, table: RenderableType) -> int:
    """Return the width of a table of which nothing is cut off.

    Parameters
    ----------
    console : rich.console.Console
        The console that it would be printed on.
    table : rich.table.Table or anything else that rich prints
        The table.

    Returns
    -------
    int
        Columns.

    Examples
    --------
    >>> full_width(Console(width=5), Text("a long line"))
    11
    """
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


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
