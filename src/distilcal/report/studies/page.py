"""Results of a study as one self-contained page."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from distilcal import __version__
from distilcal.report.charts.marks import COLOURS, MARKS
from distilcal.report.charts.study import draw
from distilcal.report.formatting import format_p_value
from distilcal.report.html import render_template
from distilcal.report.studies.cells import (
    SIGNS,
    arrow,
    cell_text,
    comparison_state,
    format_plain,
    format_value,
    paper_text,
    sort_value,
)
from distilcal.report.studies.results import named_files
from distilcal.report.studies.sentences import (
    cell_lines,
    chart_notes,
    claim_notes,
    definitions,
    facts,
    format_duration,
    part_name,
    reading,
    table_notes,
    with_stand_ins,
)


def render_study(results: Mapping[str, Any]) -> str:
    """Return the results of a study as a self-contained HTML page.

    Parameters
    ----------
    results : dict
        The results, as ``read_results`` returns them.

    Returns
    -------
    str
        The HTML, with all text escaped.
    """
    verdicts = Counter(claim["verdict"] for claim in results["claims"])
    script = render_template("study.js.jinja")
    return render_template(
        "study.html.jinja",
        r=results,
        reading=list(reading(results)),
        facts=facts(results),
        cards=[
            *([(f"{verdicts['holds']} of {len(results['claims'])}", "claims hold")] if results["claims"] else []),
            (f"{len(results['seeds'])}", "seed" if len(results["seeds"]) == 1 else "seeds"),
            (f"{results['jobs']:,}", "jobs"),
            (f"{results['trained']:,}", "of them trained now"),
            (format_duration(results["seconds"], short=True), "wall time"),
        ],
        tables=[
            {
                "file": name,
                "title": table["title"] or table["name"],
                "notes": " ".join(table_notes(results, table, paper="in grey")),
                "columns": with_stand_ins(table["columns"], table["here"]),
                "rows": [
                    {"name": row, "cells": [_page_cell(results, cell) for cell in cells]}
                    for row, cells in zip(table["rows"], table["cells"], strict=True)
                ],
            }
            for name, table in named_files(results["tables"])
        ],
        claims=[
            {
                **claim,
                "style": verdict_class(claim["verdict"]),
                "notes": " ".join(claim_notes(claim)),
                "parts": [
                    {
                        **part,
                        "style": verdict_class(part["verdict"]),
                        "what": part_name(part),
                        "unmet": "; ".join(part["unmet"]),
                        "difference": format_value(part, part["value"], signed=True),
                        "interval": " to ".join(format_value(part, part[end], signed=True) for end in ("low", "high")),
                        "chance": format_p_value(part["p"]),
                    }
                    for part in claim["parts"]
                ],
            }
            for claim in results["claims"]
        ],
        figures=[
            {
                "file": name,
                "title": figure["title"] or figure["name"],
                "notes": chart_notes(results, figure),
                "svg": draw(figure, f"figure-{i}"),
            }
            for i, (name, figure) in enumerate(named_files(results["figures"]))
        ],
        points=list(map(_plain_table, results.get("points_chosen", ()))),
        theorems=list(map(_plain_table, results["theorems"])),
        definitions=definitions(results),
        signs=SIGNS,
        colours=COLOURS,
        marks=MARKS,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
    )


def verdict_class(verdict: str) -> str:
    """Return a verdict as the name of a CSS class.

    Parameters
    ----------
    verdict : str
        One of the five.

    Returns
    -------
    str

    Examples
    --------
    >>> verdict_class("no effect above δ"), verdict_class("holds")
    ('no-effect', 'holds')
    """
    return "-".join(verdict.split()[:2])


def _page_cell(results: Mapping[str, Any], cell: Mapping[str, Any] | None) -> dict[str, Any]:
    lacking = cell is None or cell["mean"] is None
    return {
        "text": cell_text(cell),
        "arrow": arrow(cell),
        "state": "lacking" if lacking else comparison_state(cell),
        "paper": paper_text(cell),
        "value": "" if cell is None else sort_value(cell["mean"]),
        "title": "" if cell is None else "\n".join(cell_lines(results, cell)),
    }


def _plain_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of plain values, with the text of each and the number by which it is sorted."""
    rows = [[{"text": format_plain(value), "value": sort_value(value)} for value in row] for row in table["rows"]]
    return {**table, "rows": rows}
