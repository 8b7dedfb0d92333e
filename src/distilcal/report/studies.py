"""The results of a study: tables beside the paper's, claims with their verdicts, figures; as files, a page, on the terminal.

Reads ``results.json`` in the study's folder and trains nothing. ``write_study`` writes the files and ``show_study`` prints.
What is said of a table stands in ``table_notes``, of all results in ``reading``; ``charts.py`` draws the figures.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distilcal import __version__
from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write, read_json
from distilcal.report.charts import BAND, COLOURS, draw
from distilcal.report.console import build_console, prose_width
from distilcal.report.formatting import csv_bytes, format_p_value, one_line
from distilcal.report.html import render_template
from distilcal.report.map_page import MARKS, MOST_POINTS
from distilcal.selective import counted, in_percent

RESULTS, PAGE = "results.json", "study.html"
FORMAT = 1
LONGEST = 2000  # characters of any text that comes from outside
SIGNS = {"holds": "✓", "fails": "✗", "undecided": "?"}
STYLES = {"holds": "green", "fails": "red", "undecided": "yellow", "better": "bold green", "worse": "red", "differs": ""}
CSV_COLUMNS = (
    "table", "row", "column", "method", "task", "set", "metric", "mean", "std", "low", "high", "seeds", "examples",
    "paper_mean", "paper_std", "against", "difference", "diff_low", "diff_high", "p", "better", "chosen", "failed",
    "missing", "significant",
)  # fmt: skip

# Sorts the rows of a table by the column whose title is clicked: up, down, as they were. What has no number comes last.
# And shows what a cell says of itself at the pointer, where a title would come late and leave soon.
SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], first = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const number = cell => parseFloat(cell.dataset.value);
  heads.forEach((head, i) => head.addEventListener("click", () => {
    const next = {none: "ascending", ascending: "descending", descending: "none"}[head.getAttribute("aria-sort") || "none"];
    heads.forEach(other => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", next);
    const way = next === "descending" ? -1 : 1, rows = [...first];
    if (next !== "none") rows.sort((r, s) => {
      const a = number(r.cells[i]), b = number(s.cells[i]), none = isNaN(a) - isNaN(b);
      return none || way * (isNaN(a) ? r.cells[i].textContent.localeCompare(s.cells[i].textContent) : a - b);
    });
    body.append(...rows);
  }));
}
const tip = document.createElement("div");
tip.className = "tip"; tip.hidden = true; document.body.append(tip);
for (const cell of document.querySelectorAll("td[title]")) { cell.dataset.tip = cell.title; cell.removeAttribute("title"); }
const show = event => {
  const cell = event.target.closest && event.target.closest("td[data-tip]");
  tip.hidden = !cell;
  if (!cell) return;
  tip.textContent = cell.dataset.tip;
  const at = cell.getBoundingClientRect(), wide = document.documentElement.clientWidth;
  tip.style.left = Math.max(8, Math.min(at.left, wide - tip.offsetWidth - 8)) + "px";
  const below = at.bottom + 6;
  tip.style.top = (below + tip.offsetHeight > innerHeight ? Math.max(8, at.top - tip.offsetHeight - 6) : below) + "px";
};
document.addEventListener("mouseover", show);
document.addEventListener("click", show);
document.addEventListener("focusin", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, true);
document.addEventListener("keydown", event => { if (event.key === "Escape") tip.hidden = true; });
"""


def read_results(folder: Path) -> dict[str, Any]:
    """What a study found: its text in single lines, and None for what is no number."""
    path = folder / RESULTS
    if not path.exists():
        raise InputError("this is not the folder of a study", source=str(folder), remedy="give one made by distilcal study")
    results = read_json(path)
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise InputError(
            f"these are not results of format {FORMAT}", source=str(path), remedy="run the study again: what is trained is kept"
        )
    made: dict[str, Any] = _clean(results)
    return made


def write_study(folder: Path) -> list[Path]:
    """Tables as CSV, Markdown and LaTeX, figures as SVG, all on one page of Markdown and one of HTML; the files written."""
    results = read_results(folder)
    texts: dict[str, bytes] = {}
    for name, table in _named(results["tables"]):
        texts[f"tables/{name}.csv"] = table_csv(table)
        texts[f"tables/{name}.md"] = (table_markdown(results, table) + "\n").encode()
        texts[f"tables/{name}.tex"] = table_latex(results, table, name).encode()
    for name, figure in _named(results["figures"]):
        texts[f"figures/{name}.svg"] = (draw(figure, name, alone=True) + "\n").encode()
    texts["results.md"] = results_markdown(results).encode()
    texts[PAGE] = render_study(results).encode()
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with atomic_write(folder / name) as file:
            file.write(text)
    return [folder / name for name in texts]


# ---- words -------------------------------------------------------------------------------------------------------------


def reading(results: Mapping[str, Any]) -> Iterator[str]:
    """What was found, in sentences."""
    claims = Counter(claim["verdict"] for claim in results["claims"])
    if claims:
        said = [f"{claims[v]} {words}" for v, words in (("holds", "hold"), ("fails", "fail"), ("undecided", "undecided"))]
        yield f"Of {counted(len(results['claims']), 'claim')} of the paper, at this scale: {', '.join(said)}."
        if len(results["seeds"]) == 1:
            yield "There is one seed: a verdict is about the models that were trained, and another seed may turn it."
    cells = [cell for table in results["tables"] for row in table["cells"] for cell in row if cell]
    there = sum(cell["mean"] is not None for cell in cells)
    lacking = Counter(
        "failed" if c["failed"] else "not run" for c in cells if c["mean"] is None and (c["failed"] or c["missing"])
    )
    if cells:
        yield (
            f"{there:,} of {counted(len(cells), 'cell')} of its tables have a figure"
            + "".join(f"; {count:,} {why}" for why, count in sorted(lacking.items()))
            + "."
        )
    compared = [c["difference"] for c in cells if c["difference"]]
    if compared:
        better, worse = (sum(d["better"] is way for d in compared) for way in (True, False))
        differ = sum(bool(d["significant"]) for d in compared) - better - worse
        yield (
            f"Of {counted(len(compared), 'comparison')} with another method, {better:,} are significantly better and {worse:,} "
            f"worse; {differ:,} differ in a figure that has no better side; the rest may be chance."
        )
    if results["failures"]:
        yield f"Jobs that failed: {len(results['failures']):,}; the cells that need them are marked in the tables."


def table_notes(
    results: Mapping[str, Any], table: Mapping[str, Any], *, paper: str = "in parentheses", stand_ins: bool = True
) -> Iterator[str]:
    """What a reader must know of a table: its note, how to read a cell, and what stands in for the paper's data."""
    if table["note"]:
        yield _sentence(table["note"])
    cells = [cell for row in table["cells"] for cell in row if cell]
    seeds = {cell["seeds"] for cell in cells if cell["mean"] is not None}
    if seeds and any(cell["std"] is not None for cell in cells):
        yield f"Mean ± standard deviation over {'up to ' if len(seeds) > 1 else ''}{counted(max(seeds), 'seed')}."
    elif seeds:
        yield "One seed."
    if any(_paper(cell) for cell in cells):
        yield f"{paper.capitalize()}: the paper's figure."
    marked = [cell["difference"] for cell in cells if _arrow(cell)]
    if marked:
        others = list(dict.fromkeys(cell["difference"]["against"] for cell in cells if cell["difference"]))
        than = others[0] if len(others) == 1 else f"the method it is compared with ({', '.join(others)})"
        yield (
            f"▲ ▼: significantly higher, lower than {than} ({in_percent(results['level'])} level, Holm's "
            "correction over the table)" + ("; bold: better." if any(d["better"] for d in marked) else ".")
        )
    if any(cell["failed"] and cell["mean"] is not None for cell in cells):
        yield "†: some of its runs failed."
    for name, here in (*_with_here(table["columns"], table["here"]), *_with_here(table["rows"], table["row_here"])):
        if here and stand_ins:
            yield _sentence(f"{name}: {here}")


def cell_lines(results: Mapping[str, Any], cell: Mapping[str, Any]) -> Iterator[str]:
    """All that is known of a cell, a line each."""
    where = f"{cell['task']}, {cell['set']}" if cell["set"] else cell["task"]
    yield f"{cell['method']} on {where}: {cell['metric']}"
    if cell["mean"] is not None:
        text = _with_std(cell, cell["mean"], cell["std"], unit=True)
        if cell["low"] is not None and cell["high"] is not None:
            low, high = _shown(cell, cell["low"], unit=True), _shown(cell, cell["high"], unit=True)
            text += f", {in_percent(results['level'])} interval {low} to {high}"
        yield text
        yield f"{counted(cell['seeds'] or 0, 'seed')}, {counted(cell['examples'] or 0, 'example')}"
    if _paper(cell):
        yield f"paper: {_paper(cell, unit=True)}"
    if cell["difference"]:
        d = cell["difference"]
        verdict = {"better": "better", "worse": "worse", "differs": "significant", "": "may be chance"}[_state(cell)]
        yield f"against {d['against']}: {_difference(cell, d)}, {verdict}"
    if cell["chosen"]:
        yield f"chosen: {cell['chosen']}"
    if cell["failed"]:
        yield f"failed: {cell['failed']}"
    if cell["missing"]:
        yield cell["missing"]
    if cell["definition"]:
        yield cell["definition"]


def _figure_notes(results: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    """A figure's note, and how to read its kind."""
    kind = figure["kind"]
    said = [_sentence(figure["note"])] if figure["note"] else []
    if kind != "map" and any(len(p) > 3 for s in figure["series"] for p in s["points"]):
        many = kind == "line" and all(len(s["points"]) >= BAND for s in figure["series"])
        said.append(f"{'Bands' if many else 'Bars'}: {in_percent(results['level'])} intervals.")
    if kind == "reliability":
        said.append("Below the dashed line: overconfident. Marks grow with the rows of their bin.")
    if kind == "projection":
        said.append("The axes have no meaning of their own; one unit is as long both ways.")
    if kind == "map":
        said.append("Marks: correctness to the nearest 0.2; 0 and 1 are exact. No example can lie beyond the thin line.")
    if max((len(s["points"]) for s in figure["series"]), default=0) > MOST_POINTS:
        said.append(f"Of more than {MOST_POINTS:,} points, as many are drawn, at random.")
    return " ".join(said)


def _facts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How the results were made: title and words."""
    seeds = results["seeds"]
    facts = [
        ("scale", f"{results['scale']}: {results['note']}" if results["note"] else results["scale"]),
        ("seeds", ", ".join(str(s) for s in seeds)),
        ("wall time", _duration(results["seconds"])),
        *([("training of all stages", _duration(results["training"]))] if "training" in results else []),
        ("work", f"{_work(results)}; {counted(results['points'], 'point')} of the grids"),
    ]
    for name, value in results["environment"].items():
        inner = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
        facts.append((str(name), inner))
    return facts


def _work(results: Mapping[str, Any]) -> str:
    return f"{counted(results['jobs'], 'job')}, {results['trained']:,} of them trained now, the others known before or failed"


# ---- a cell ------------------------------------------------------------------------------------------------------------


def _shown(how: Mapping[str, Any], value: float | None, *, signed: bool = False, unit: bool = False) -> str:
    """A number as a cell or a part of a claim wants it."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    number = value * 100 if how["percent"] else value
    text = f"{number:+z.{how['digits']}f}" if signed else f"{number:z.{how['digits']}f}"
    return f"{text}%" if unit and how["percent"] else text


def _with_std(how: Mapping[str, Any], mean: float | None, std: float | None, *, unit: bool = False) -> str:
    spread = f" ± {_shown(how, std)}" if std is not None else ""
    return f"{_shown(how, mean)}{spread}{'%' if unit and how['percent'] else ''}"


def _mean(cell: Mapping[str, Any] | None, std: bool = True) -> str:
    """What stands in the cell: its figure, or why there is none."""
    if cell is None:
        return "–"
    if cell["mean"] is not None:
        return _with_std(cell, cell["mean"], cell["std"] if std else None) + ("†" if cell["failed"] else "")
    return "failed" if cell["failed"] else cell["missing"] or "–"


def _paper(cell: Mapping[str, Any] | None, *, unit: bool = False) -> str:
    if cell is None or not cell["paper"] or cell["paper"]["mean"] is None:
        return ""
    return _with_std(cell, cell["paper"]["mean"], cell["paper"]["std"], unit=unit)


def _arrow(cell: Mapping[str, Any] | None) -> str:
    """Up or down, if the difference is significant."""
    d = cell["difference"] if cell else None
    if not d or not d["significant"] or not d["value"]:
        return ""
    return "▲" if d["value"] > 0 else "▼"


def _state(cell: Mapping[str, Any] | None) -> str:
    """Better or worse than what it is compared with, different where there is no better side, or nothing."""
    if cell is None or not _arrow(cell):
        return ""
    better: bool | None = cell["difference"]["better"]
    return "differs" if better is None else "better" if better else "worse"


def _difference(how: Mapping[str, Any], d: Mapping[str, Any]) -> str:
    span = f" [{_shown(how, d['low'], signed=True)}, {_shown(how, d['high'], signed=True)}]" if d["low"] is not None else ""
    chance = f", p {format_p_value(d['p'])}" if d["p"] is not None else ""
    return f"{_shown(how, d['value'], signed=True)}{span}{chance}"


# ---- CSV, Markdown, LaTeX ----------------------------------------------------------------------------------------------


def table_csv(table: Mapping[str, Any]) -> bytes:
    """A line for each cell, all digits, nothing times 100."""
    lines: list[Sequence[Any]] = [CSV_COLUMNS]
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
                "better": _word(d.get("better")),
                "significant": _word(d.get("significant")),
            }
            lines.append(["" if v is None else v for v in (known[name] for name in CSV_COLUMNS)])
    return csv_bytes(lines)


def table_markdown(results: Mapping[str, Any], table: Mapping[str, Any], heading: str = "#") -> str:
    """The table as the paper has it, its title above and its notes below."""
    head = ["", *map(_md, table["columns"])]
    lines = [_md_row(head), _md_row([":--", *["--:"] * len(table["columns"])])]
    for name, cells in zip(table["rows"], table["cells"], strict=True):
        lines.append(_md_row([_md(name), *map(_md_cell, cells)]))
    notes = _md(" ".join(table_notes(results, table)))
    return "\n".join([f"{heading} {_md(table['title'] or table['name'])}", "", *lines, "", notes]).rstrip()


def table_latex(results: Mapping[str, Any], table: Mapping[str, Any], label: str) -> str:
    """The table for a paper, with booktabs and xcolor."""
    caption = _tex(" ".join([_sentence(table["title"] or table["name"]), *table_notes(results, table, paper="in grey")]))
    columns = table["columns"]
    lines = [
        "% needs \\usepackage{booktabs,xcolor}",
        "\\begin{table}[t]",
        "\\centering",
        f"\\caption{{{caption}}}",
        f"\\label{{tab:{label}}}",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
        _tex_row(["", *map(_tex, columns)]),
        "\\midrule",
        *(_tex_row([_tex(name), *map(_tex_cell, cells)]) for name, cells in zip(table["rows"], table["cells"], strict=True)),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def results_markdown(results: Mapping[str, Any]) -> str:
    """Everything on one page of Markdown."""
    parts = [f"# {_md(results['title'] or results['name'])}"]
    parts.append("\n".join(f"- {_md(sentence)}" for sentence in reading(results)))
    parts.append(_md_code(results["command"]))
    parts.append("\n".join(f"- {_md(name)}: {_md(words)}" for name, words in _facts(results)))
    if results["claims"]:
        parts += ["## Claims", *map(_claim_markdown, results["claims"])]
    if results["tables"]:
        parts.append("## Tables")
    for name, table in _named(results["tables"]):
        files = ", ".join(f"[{kind}](tables/{name}.{kind})" for kind in ("csv", "md", "tex"))
        parts += [table_markdown(results, table, "###"), f"Files: {files}"]
    if results["figures"]:
        parts.append("## Figures")
    for name, figure in _named(results["figures"]):
        title = _md(figure["title"] or figure["name"])
        parts += [f"### {title}", f"![{title}](figures/{name}.svg)", _md(_figure_notes(results, figure))]
    if results["theorems"]:
        parts.append("## Theorems")
    for theorem in results["theorems"]:
        rows = [_md_row(_md(_plain(value)) for value in row) for row in theorem["rows"]]
        head = [_md_row(map(_md, theorem["columns"])), _md_row(["--"] * len(theorem["columns"]))]
        parts += [f"### {_md(theorem['title'] or theorem['name'])}", _md(theorem["text"]), "\n".join([*head, *rows])]
    if results["failures"]:
        parts.append("## What failed")
        parts.append("\n".join(f"- {_md(f['what'])}: {_md(f['error'])}" for f in results["failures"]))
    definitions = _definitions(results)
    if definitions:
        parts += ["## Definitions", "\n".join(f"- {_md(name)}: {_md(text)}" for name, text in definitions)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claim_markdown(claim: Mapping[str, Any]) -> str:
    said = f"{SIGNS[claim['verdict']]} **{claim['verdict']}**: {_md(claim['text'])}"
    said += f" ({_md(claim['need'])})" if claim["need"] else ""
    if not claim["parts"]:
        return said
    head = [_md_row(["comparison", "difference", "p", "verdict"]), _md_row([":--", "--:", "--:", ":--"])]
    rows = [
        _md_row([_md(p["what"]), _md(_difference(p, {**p, "p": None})), format_p_value(p["p"]), p["verdict"]])
        for p in claim["parts"]
    ]
    return "\n".join([said, "", *head, *rows])


def _md(words: str) -> str:
    """Text that Markdown shows as it is."""
    escaped = re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    no_list = re.sub(r"^(\d*)([-+.)])(?=\s)", r"\1\\\2", escaped)
    return re.sub(r"(?i)\b(https?|ftp)(?=://)|\bwww(?=\.)", lambda m: m[0][:-1] + f"&#{ord(m[0][-1])};", no_list)


def _md_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _md_cell(cell: Mapping[str, Any] | None) -> str:
    mean = _md(_mean(cell))
    parts = [
        f"**{mean}**" if _state(cell) == "better" else mean,
        _arrow(cell),
        f"({_md(_paper(cell))})" if _paper(cell) else "",
    ]
    return " ".join(part for part in parts if part)


def _md_code(command: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", command)), default=0))
    return f"{fence}\n{command}\n{fence}"


GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
TEX = {
    **dict(zip("αβγδεζηθικλμνξπρστυφχψω", (f"$\\{name}$" for name in GREEK.split()), strict=True)),
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{c: f"{{{c}}}" for c in "[]*"},  # after the end of a row they would be read as its arguments
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}",
    ">": "\\textgreater{}", "|": "\\textbar{}", "▲": "$\\uparrow$", "▼": "$\\downarrow$",
    "†": "\\dag{}", "±": "$\\pm$", "×": "$\\times$", "·": "$\\cdot$", "–": "--", "—": "---", "…": "\\ldots{}", "−": "$-$",
    "∞": "$\\infty$", "≤": "$\\leq$", "≥": "$\\geq$", "≈": "$\\approx$", "→": "$\\rightarrow$", "‖": "$\\|$", "²": "$^2$",
}  # fmt: skip


def _tex(words: str) -> str:
    """Text that LaTeX sets as it is, Greek letters too."""
    return "".join(TEX.get(c, c) for c in words)


def _tex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _tex_cell(cell: Mapping[str, Any] | None) -> str:
    mean = _tex(re.sub(r"^-(?=\d)", "−", _mean(cell)))
    paper = _tex(re.sub(r"^-(?=\d)", "−", _paper(cell)))
    parts = [
        f"\\textbf{{{mean}}}" if _state(cell) == "better" else mean,
        _tex(_arrow(cell)),
        f"\\textcolor{{gray}}{{({paper})}}" if paper else "",
    ]
    return " ".join(part for part in parts if part)


# ---- page --------------------------------------------------------------------------------------------------------------


def render_study(results: Mapping[str, Any]) -> str:
    """The page as text."""
    verdicts = Counter(claim["verdict"] for claim in results["claims"])
    return render_template(
        "study.html.jinja",
        r=results,
        reading=list(reading(results)),
        facts=_facts(results),
        cards=[
            *([(f"{verdicts['holds']} of {len(results['claims'])}", "claims hold")] if results["claims"] else []),
            (f"{len(results['seeds'])}", "seed" if len(results["seeds"]) == 1 else "seeds"),
            (f"{results['jobs']:,}", "jobs"),
            (f"{results['trained']:,}", "of them trained now"),
            (_duration(results["seconds"], short=True), "wall time"),
        ],
        tables=[
            {
                "file": name,
                "title": table["title"] or table["name"],
                "notes": " ".join(table_notes(results, table, paper="in grey", stand_ins=False)),
                "columns": _with_here(table["columns"], table["here"]),
                "rows": [
                    {"name": row, "here": here, "cells": [_html_cell(results, cell) for cell in cells]}
                    for (row, here), cells in zip(_with_here(table["rows"], table["row_here"]), table["cells"], strict=True)
                ],
            }
            for name, table in _named(results["tables"])
        ],
        claims=[
            {
                **claim,
                "parts": [
                    {
                        **part,
                        "difference": _shown(part, part["value"], signed=True),
                        "interval": " to ".join(_shown(part, part[end], signed=True) for end in ("low", "high")),
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
                "notes": _figure_notes(results, figure),
                "svg": draw(figure, f"figure-{i}"),
            }
            for i, (name, figure) in enumerate(_named(results["figures"]))
        ],
        theorems=[
            {**theorem, "rows": [[{"text": _plain(v), "value": _sortable(v)} for v in row] for row in theorem["rows"]]}
            for theorem in results["theorems"]
        ],
        definitions=_definitions(results),
        signs=SIGNS,
        colours=COLOURS,
        marks=MARKS,
        script=SCRIPT,
        script_hash=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(),
        version=__version__,
    )


def _html_cell(results: Mapping[str, Any], cell: Mapping[str, Any] | None) -> dict[str, Any]:
    lacking = cell is None or cell["mean"] is None
    return {
        "text": _mean(cell),
        "arrow": _arrow(cell),
        "state": "lacking" if lacking else _state(cell),
        "paper": _paper(cell),
        "value": "" if cell is None else _sortable(cell["mean"]),
        "title": "" if cell is None else "\n".join(cell_lines(results, cell)),
    }


def _with_here(names: Sequence[str], here: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(names, here or [""] * len(names), strict=True))


def _definitions(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    cells = [cell for table in results["tables"] for row in table["cells"] for cell in row if cell]
    return list(dict.fromkeys((cell["metric"], cell["definition"]) for cell in cells if cell["definition"]))


# ---- terminal ----------------------------------------------------------------------------------------------------------


def show_study(folder: Path, console: Console | None = None) -> None:
    """Print tables, claims, what failed and where the page is."""
    results = read_results(folder)
    if console is None:
        console = build_console()
    width = prose_width(console)
    said: dict[str, None] = {}  # how to read a table is said below the first of its kind
    for table in results["tables"]:
        for part in _fitting(console, table):
            console.print(part)
        notes = [note for note in table_notes(results, table) if note not in said]
        said |= dict.fromkeys(notes)
        if notes:
            console.print(Text(" ".join(notes), style="dim"), width=width)
        console.print()
    if results["claims"]:
        console.print(Text("Claims", style="bold"))
    for claim in results["claims"]:
        verdict = claim["verdict"]
        need = f" ({claim['need']})" if claim["need"] else ""
        line = Text.assemble((f"{SIGNS[verdict]} {verdict}", f"bold {STYLES[verdict]}"), f"  {claim['text']}{need}")
        console.print(Padding(line, (0, 0, 0, 2), expand=False), width=width)
        for part in claim["parts"] if verdict != "holds" else []:
            line = Text(f"{SIGNS[part['verdict']]} {part['what']}: {_difference(part, part)}", style="dim")
            console.print(Padding(line, (0, 0, 0, 6), expand=False), width=width)
    if results["failures"]:
        console.print(Text("\nWhat failed", style="bold red"))
    for failure in results["failures"]:
        line = Text(f"– {failure['what']}: {one_line(failure['error'], 300)}")
        console.print(Padding(line, (0, 0, 0, 2), expand=False), width=width)
    console.print()
    for sentence in reading(results):
        console.print(Text(sentence), width=width)
    work = f"{_work(results)}, in {_duration(results['seconds'])}"
    page = f"; the page is {folder / PAGE}" if (folder / PAGE).exists() else ""
    console.print(Text(f"{results['name']}, scale {results['scale']}: {work}{page}"), soft_wrap=True)


def _fitting(console: Console, table: Mapping[str, Any]) -> list[Table]:
    """The table with as much in its cells as the window holds; if even the means are too wide, in several parts."""
    for std, paper in ((True, True), (False, True), (False, False)):
        made = _terminal_table(table, range(len(table["columns"])), std, paper)
        if _widest(console, made) <= console.width:
            return [made]
    each = len(table["columns"])
    while each > 1 and any(_widest(console, part) > console.width for part in _parts(table, each)):
        each -= 1
    return _parts(table, each)


def _parts(table: Mapping[str, Any], each: int) -> list[Table]:
    count = len(table["columns"])
    return [_terminal_table(table, range(i, min(i + each, count)), False, False) for i in range(0, count, max(each, 1))]


def _widest(console: Console, table: Table) -> int:
    """How wide a table is that nothing squeezes."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def _terminal_table(table: Mapping[str, Any], columns: Sequence[int], std: bool, paper: bool) -> Table:
    made = Table(title=Text(table["title"] or table["name"]), title_justify="left")
    made.add_column("")
    for i in columns:
        made.add_column(Text(table["columns"][i]), justify="right", no_wrap=True)
    for name, cells in zip(table["rows"], table["cells"], strict=True):
        shown = []
        for cell in (cells[i] for i in columns):
            lacking = cell is None or cell["mean"] is None
            said = f"{_arrow(cell)} {_mean(cell, std)}" if _arrow(cell) else _mean(cell, std)
            text = Text(said, style="dim" if lacking else STYLES.get(_state(cell), ""))
            if paper and _paper(cell):
                text.append(f" ({_paper(cell) if std else _with_std(cell, cell['paper']['mean'], None)})", style="dim")
            shown.append(text)
        made.add_row(Text(name), *shown)
    return made


# ---- parts -------------------------------------------------------------------------------------------------------------


def _clean(value: Any) -> Any:
    """Text in single lines without signs that steer a terminal; NaN as None."""
    match value:
        case str():
            return one_line(value, LONGEST)
        case float() if math.isnan(value):
            return None
        case dict():
            return {one_line(str(key), LONGEST): _clean(inner) for key, inner in value.items()}
        case list():
            return [_clean(inner) for inner in value]
    return value


def _named(things: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Tables or figures, each with a name for its file that leads nowhere else and is its alone."""
    taken: set[str] = set()
    for thing in things:
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", thing["name"])[:80].strip(".-") or "unnamed"
        name = next(n for n in (safe, *(f"{safe}-{i}" for i in range(2, len(things) + 2))) if n.lower() not in taken)
        taken.add(name.lower())
        yield name, thing


def _plain(value: Any) -> str:
    """A number of a theorem in a few digits, or its words."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _sortable(value: Any) -> str:
    return f"{value!r}" if isinstance(value, int | float) and math.isfinite(value) else ""


def _word(value: bool | None) -> str | None:
    return None if value is None else "true" if value else "false"


def _sentence(words: str) -> str:
    return words if words.endswith((".", "?", "!", ":")) else f"{words}."


def _duration(seconds: float | None, *, short: bool = False) -> str:
    """Hours and minutes, minutes and seconds, or seconds; ``short``: the largest of them alone, with a digit."""
    if seconds is None:
        return "–"
    if short:
        return (
            f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
        )
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"
