"""Tables of a study as CSV: a line for each cell, with all digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from distilcal.io.tables import write_csv

CSV_COLUMNS = (
    "table", "row", "column", "method", "task", "set", "metric", "mean", "std", "low", "high", "seeds", "examples",
    "paper_mean", "paper_std", "against", "difference", "diff_low", "diff_high", "p", "better", "chosen", "failed",
    "missing", "significant",
)  # fmt: skip


def table_csv(table: Mapping[str, Any]) -> bytes:
    """Return a table as CSV with a line for each cell, in all digits and not as percentages.

    Parameters
    ----------
    table : dict
        A table of ``results.json``.

    Returns
    -------
    bytes
        UTF-8 with the header ``CSV_COLUMNS``; empty cells of the table have no line.
    """
    lines: list[Sequence[Any]] = []
    for row, cells in zip(table["rows"], table["cells"], strict=True):
        for column, cell in zip(table["columns"], cells, strict=True):
            if cell is None:
                continue
            paper, d = cell["paper"] or {}, cell["difference"] or {}
            known = {
                **cell,
                "table": table["name"],
                "row": row,
                "column": column,
                "paper_mean": paper.get("mean"),
                "paper_std": paper.get("std"),
                "against": d.get("against"),
                "difference": d.get("value"),
                "diff_low": d.get("low"),
                "diff_high": d.get("high"),
                "p": d.get("p"),
                "better": _format_bool(d.get("better")),
                "significant": _format_bool(d.get("significant")),
            }
            lines.append(["" if v is None else v for v in (known[name] for name in CSV_COLUMNS)])
    columns = zip(*lines, strict=True) if lines else [()] * len(CSV_COLUMNS)
    file = BytesIO()
    write_csv(file, dict(zip(CSV_COLUMNS, columns, strict=True)))
    return file.getvalue()


def _format_bool(value: bool | None) -> str | None:
    if value is None:
        return None
    return "true" if value else "false"
