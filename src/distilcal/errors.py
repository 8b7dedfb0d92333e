"""The one error a user can cause and mend.

Raise ``InputError`` for anything wrong with a user's values or files: it says what is wrong, where, and what to do. The
command line prints it as one line and exits with code 2; everything else that escapes is a fault of ours.
"""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: what is wrong, where it stands, what mends it."""

    def __init__(self, problem: str, *, remedy: str = "", source: str = "", row: int | None = None, line: int | None = None):
        self.problem = problem
        self.remedy = remedy
        self.source = source
        self.row = row  # index into the arrays, from 0
        self.line = line  # line of a text file, from 1
        super().__init__(problem)

    def __str__(self) -> str:
        where = [self.source] if self.source else []
        if self.line is not None:
            where.append(f"line {self.line}")
        elif self.row is not None:
            where.append(f"row {self.row} (counting from 0)")
        place = ", ".join(where)
        text = f"{place}: {self.problem}" if place else self.problem
        return f"{text}; {self.remedy}" if self.remedy else text
