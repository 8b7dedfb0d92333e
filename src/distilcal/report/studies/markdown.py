"""Results of a study as Markdown: a table, or everything on one page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from distilcal.report.formatting import format_p_value
from distilcal.report.studies.cells import (
    SIGNS,
    arrow,
    cell_text,
    comparison_state,
    format_difference,
    format_plain,
    paper_text,
)
from distilcal.report.studies.results import named_files
from distilcal.report.studies.sentences import (
    chart_notes,
    claim_notes,
    definitions,
    facts,
    part_name,
    part_verdict,
    reading,
    table_notes,
)


def table_markdown(results: Mapping[str, Any], table: Mapping[str, Any], heading: str = "#") -> str:
    """Return a table as Markdown, with its title above and its notes below.

    Parameters
    ----------
    results : dict
        The results of the study, as ``read_results`` returns them.
    table : dict
        One of its tables.
    heading : str
        Hash signs of the title's level.

    Returns
    -------
    str
        The Markdown, without a line break at its end.
    """
    head = ["", *map(escape_markdown, table["columns"])]
    lines = [_md_row(head), _md_row([":--", *["--:"] * len(table["columns"])])]
    for name, cells in zip(table["rows"], table["cells"], strict=True):
        lines.append(_md_row([escape_markdown(name), *map(_md_cell, cells)]))
    notes = escape_markdown(" ".join(table_notes(results, table)))
    return "\n".join([f"{heading} {escape_markdown(table['title'] or table['name'])}", "", *lines, "", notes]).rstrip()


def results_markdown(results: Mapping[str, Any]) -> str:
    """Return all results of a study as one page of Markdown.

    Parameters
    ----------
    results : dict
        The results, as ``read_results`` returns them.

    Returns
    -------
    str
        The Markdown; links lead to files in ``tables`` and ``figures`` beside the page.
    """
    parts = [f"# {escape_markdown(results['title'] or results['name'])}"]
    parts.append("\n".join(f"- {escape_markdown(sentence)}" for sentence in reading(results)))
    parts.append(_md_code(results["command"]))
    parts.append("\n".join(f"- {escape_markdown(name)}: {escape_markdown(words)}" for name, words in facts(results)))
    if results["claims"]:
        parts += ["## Claims", *map(_claim_markdown, results["claims"])]
    if results["tables"]:
        parts.append("## Tables")
    for name, table in named_files(results["tables"]):
        files = ", ".join(f"[{kind}](tables/{name}.{kind})" for kind in ("csv", "md", "tex"))
        parts += [table_markdown(results, table, "###"), f"Files: {files}"]
    if results["figures"]:
        parts.append("## Figures")
    for name, figure in named_files(results["figures"]):
        title = escape_markdown(figure["title"] or figure["name"])
        parts += [f"### {title}", f"![{title}](figures/{name}.svg)", escape_markdown(chart_notes(results, figure))]
    for heading, tables in (("Chosen points", results.get("points_chosen")), ("Theorems", results["theorems"])):
        if tables:
            parts += [f"## {heading}", *map(_plain_table_markdown, tables)]
    if results["failures"]:
        lines = [f"- {escape_markdown(f['what'])}: {escape_markdown(f['error'])}" for f in results["failures"]]
        parts += ["## What failed", "\n".join(lines)]
    defined = definitions(results)
    if defined:
        lines = [f"- {escape_markdown(name)}: {escape_markdown(text)}" for name, text in defined]
        parts += ["## Definitions", "\n".join(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain_table_markdown(table: Mapping[str, Any]) -> str:
    """A theorem's table, or one of chosen points."""
    title = escape_markdown(table["title"] or table["name"])
    lines = [_md_row(map(escape_markdown, table["columns"])), _md_row(["--"] * len(table["columns"]))]
    for row in table["rows"]:
        lines.append(_md_row(escape_markdown(format_plain(value)) for value in row))
    return "\n\n".join([f"### {title}", escape_markdown(table["text"]), "\n".join(lines)])


def _claim_markdown(claim: Mapping[str, Any]) -> str:
    text = f"{SIGNS[claim['verdict']]} **{claim['verdict']}**: {escape_markdown(claim['text'])}"
    if claim["need"]:
        text += f" ({escape_markdown(claim['need'])})"
    notes = escape_markdown(" ".join(claim_notes(claim)))
    if notes:
        text += f". {notes}" if not text.endswith((".", ")")) else f" {notes}"
    if not claim["parts"]:
        return text
    lines = [_md_row(["comparison", "difference", "p", "verdict"]), _md_row([":--", "--:", "--:", ":--"])]
    for part in claim["parts"]:
        difference = escape_markdown(format_difference(part, {**part, "p": None}))
        name, verdict = escape_markdown(part_name(part)), escape_markdown(part_verdict(part))
        lines.append(_md_row([name, difference, format_p_value(part["p"]), verdict]))
    return "\n".join([text, "", *lines])


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows literally.

    Parameters
    ----------
    text : str
        One line of any text.

    Returns
    -------
    str
        The text with markup, HTML, list markers at its beginning and automatic links escaped.

    Examples
    --------
    >>> print(escape_markdown("a_b <c>"))
    a\\_b &lt;c&gt;
    """
    escaped = re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    no_list = re.sub(r"^(\d*)([-+.)])(?=\s)", r"\1\\\2", escaped)
    return re.sub(r"(?i)\b(https?|ftp)(?=://)|\bwww(?=\.)", lambda m: m[0][:-1] + f"&#{ord(m[0][-1])};", no_list)


def _md_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _md_cell(cell: Mapping[str, Any] | None) -> str:
    mean = escape_markdown(cell_text(cell))
    parts = [
        f"**{mean}**" if comparison_state(cell) == "better" else mean,
        arrow(cell),
        f"({escape_markdown(paper_text(cell))})" if paper_text(cell) else "",
    ]
    return " ".join(part for part in parts if part)


def _md_code(command: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", command)), default=0))
    return f"{fence}\n{command}\n{fence}"
