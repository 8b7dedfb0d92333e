"""Tables of a study as LaTeX, for a paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from distilcal.report.studies.cells import arrow, cell_text, comparison_state, paper_text
from distilcal.report.studies.sentences import as_sentence, table_notes

GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
LATEX_CHARACTERS = {
    **dict(zip("αβγδεζηθικλμνξπρστυφχψω", (f"$\\{name}$" for name in GREEK.split()), strict=True)),
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{c: f"{{{c}}}" for c in "[]*"},  # after the end of a row they would be read as its arguments
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}",
    ">": "\\textgreater{}", "|": "\\textbar{}", "▲": "$\\uparrow$", "▼": "$\\downarrow$",
    "†": "\\dag{}", "±": "$\\pm$", "×": "$\\times$", "·": "$\\cdot$", "–": "--", "—": "---", "…": "\\ldots{}", "−": "$-$",
    "∞": "$\\infty$", "≤": "$\\leq$", "≥": "$\\geq$", "≈": "$\\approx$", "→": "$\\rightarrow$", "‖": "$\\|$", "²": "$^2$",
}  # fmt: skip


def table_latex(results: Mapping[str, Any], table: Mapping[str, Any], label: str) -> str:
    """Return a table as LaTeX for a paper; it needs the packages booktabs and xcolor.

    Parameters
    ----------
    results : dict
        The results of the study, as ``read_results`` returns them.
    table : dict
        One of its tables.
    label : str
        Name for references, written after ``tab:`` without escaping.

    Returns
    -------
    str
        A ``table`` environment with title and notes as its caption.
    """
    caption = escape_latex(
        " ".join([as_sentence(table["title"] or table["name"]), *table_notes(results, table, paper="in grey")])
    )
    columns = table["columns"]
    lines = [
        "% needs \\usepackage{booktabs,xcolor}",
        "\\begin{table}[t]",
        "\\centering",
        f"\\caption{{{caption}}}",
        f"\\label{{tab:{label}}}",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
        _tex_row(["", *map(escape_latex, columns)]),
        "\\midrule",
        *(
            _tex_row([escape_latex(name), *map(_tex_cell, cells)])
            for name, cells in zip(table["rows"], table["cells"], strict=True)
        ),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Return text that LaTeX typesets literally, Greek letters included.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    str
        The text with each character of ``LATEX_CHARACTERS`` replaced.

    Examples
    --------
    >>> print(escape_latex("α & 5%"))
    $\\alpha$ \\& 5\\%
    """
    return "".join(LATEX_CHARACTERS.get(character, character) for character in text)


def _tex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _tex_cell(cell: Mapping[str, Any] | None) -> str:
    mean = escape_latex(re.sub(r"^-(?=\d)", "−", cell_text(cell)))
    paper = escape_latex(re.sub(r"^-(?=\d)", "−", paper_text(cell)))
    parts = [
        f"\\textbf{{{mean}}}" if comparison_state(cell) == "better" else mean,
        escape_latex(arrow(cell)),
        f"\\textcolor{{gray}}{{({paper})}}" if paper else "",
    ]
    return " ".join(part for part in parts if part)
