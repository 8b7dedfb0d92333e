"""The page of a study and what is printed of it: escaped, readable by machines, with the numbers of results.json."""

import csv
import io
import json
import math
import re
import subprocess
from html import unescape

import pytest
from rich.console import Console
from test_page import CHROMIUM, Outline, check_outline, in_browser

from distilcal.errors import InputError
from distilcal.report.studies import read_results, render_study, show_study, write_study
from distilcal.report.studies.cells import SIGNS
from distilcal.report.studies.page import verdict_class
from distilcal.report.studies.sentences import cell_lines, table_notes

pytest.importorskip("jinja2")

from study_results import CELLS, HARMFUL, cell, example_results, table


@pytest.fixture
def results():
    return example_results()


@pytest.fixture
def folder(results, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return tmp_path


def words_of(page):
    return " ".join(" ".join(Outline(page).words).split())


def lines_of(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))


def test_page_is_escaped_and_asks_for_nothing(folder):
    page = render_study(read_results(folder))
    outline = Outline(page)
    assert not outline.open
    check_outline(outline)
    assert sum(tag == "script" for tag, _ in outline.tags) == 1
    assert not [tag for tag, _ in outline.tags if tag in ("img", "iframe", "em")]
    assert not [a for _, attrs in outline.tags for a in attrs if a.startswith("on")]
    assert words_of(page).count(HARMFUL) >= 8
    titles = [attrs["title"] for tag, attrs in outline.tags if tag == "td" and "title" in attrs]
    assert any(HARMFUL in title for title in titles)
    assert "\x1b" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    outside = [a for a in re.findall(r'(?:src|href)="([^"]*)"', page) if not re.match(r"#|data:,|tables/|figures/", a)]
    assert not outside


def test_page_says_all_of_a_cell(folder):
    results = read_results(folder)
    page = render_study(results)
    titles = {attrs["title"] for tag, attrs in Outline(page).tags if tag == "td" and "title" in attrs}
    lines = list(cell_lines(results, CELLS["better"]))
    assert lines == [
        "ERM on MRPC, test: ece",
        "8.00 ± 1.23%, 95% interval 9.00% to 13.00%",
        "3 seeds, 1,725 examples",
        "paper: 10.00%",
        "against ERM: -3.00 [-4.00, -2.00], p < 0.001, better",
        "chosen: lr 0.001, epochs 4",
        "expected calibration error, 15 bins",
    ]
    assert "\n".join(lines) in titles
    assert any("failed: RuntimeError: not finite" in title for title in titles)
    assert any("may be chance" in title for title in titles)
    assert re.search(r'<td class="better" data-value="0.08"', page)
    assert re.search(r'<td class="worse" data-value="0.15"', page)
    assert re.search(r'<td class="differs" data-value="0.69"', page)
    assert "nan" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.S).lower()


def test_page_gives_verdicts_in_words(folder):
    page = render_study(read_results(folder))
    for verdict, sign in SIGNS.items():
        assert f'<article class="claim {verdict_class(verdict)}">' in page
        assert f"{sign} {verdict}" in words_of(page)
    said = "2 hold, 1 fail, 1 with no effect above δ, 1 undecided, 1 whose premises are not met"
    assert f"Of 6 claims of the paper, at this scale: {said}." in words_of(page)
    assert f"Controls: KD, {HARMFUL}. δ = 1.00%. Premise: ERM is overconfident." in words_of(page)
    assert "1 comparison of the same models is left out." in words_of(page)
    assert f"not so that {HARMFUL}" in words_of(page)
    assert "LS higher than ERM, fails (control)" in words_of(page)
    assert "pairs stand here" in words_of(page)
    assert "Jobs that failed: 1" in words_of(page)


def test_an_empty_study_has_a_page(folder, results):
    for key in ("tables", "claims", "figures", "theorems", "failures"):
        results[key] = []
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    assert [p.name for p in write_study(folder)] == ["results.md", "study.html"]
    check_outline(Outline((folder / "study.html").read_text(encoding="utf-8")))
    show_study(folder, Console(file=io.StringIO()))


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser(folder, tmp_path, width):
    write_study(folder)
    seen = in_browser(folder / "study.html", tmp_path, width=width, dark=width == 360)
    assert seen["title"].startswith("Does it hold?")
    assert seen["scroll"] <= seen["client"], f"wider than the window: {seen['wide']}"
    assert not seen["wide"]
    assert seen["small"] == 0


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
def test_columns_sort_and_cells_speak(folder, tmp_path):
    """The script of the page is let in by its hash; a second one, let in for the test, clicks."""
    write_study(folder)
    page = (folder / "study.html").read_text(encoding="utf-8")
    clicks = """
      const table = document.querySelector("table.sortable"), order = [];
      const rows = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
      const press = i => { table.tHead.rows[0].cells[i].querySelector("button").click(); order.push(rows()); };
      press(1); press(1); press(1); press(0);
      const cell = [...document.querySelectorAll("td.better")][0];
      cell.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
      const tip = document.querySelector(".tip"), out = document.createElement("pre");
      out.id = "out"; document.body.append(out);
      out.textContent = JSON.stringify({order, tip: tip.textContent, hidden: tip.hidden});
    """
    page = page.replace("script-src ", "script-src 'nonce-test' ").replace(
        "</body>", f'<script nonce="test">{{{clicks}}}</script></body>'
    )
    (tmp_path / "clicked.html").write_text(page, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "clicked.html").as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    seen = json.loads(unescape(re.search(r'<pre id="out">(.*?)</pre>', done.stdout, flags=re.S).group(1)))
    finite = {name: c["mean"] for name, c in CELLS.items() if c["mean"] is not None and math.isfinite(c["mean"])}
    up = sorted(finite, key=finite.__getitem__)
    assert seen["order"][0][: len(up)] == up
    assert seen["order"][1][: len(up)] == up[::-1]
    assert seen["order"][2] == list(CELLS)
    assert seen["order"][3] == sorted(CELLS)
    assert not seen["hidden"]
    assert "against ERM: -3.00" in seen["tip"]


@pytest.mark.parametrize("width", [50, 80, 150])
def test_terminal(folder, width):
    write_study(folder)
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show_study(folder, console, tables=True)
    text = console.file.getvalue()
    assert "\x1b" not in text
    flat = " ".join(text.split())
    assert "▼ 8.00" in text
    assert ("(20.00 ± 1.00)" in text) == (width > 50)
    assert all(f"{sign} {verdict} Claim {verdict}" in flat for verdict, sign in SIGNS.items())
    assert "What failed" in text
    assert "LS higher than ERM, fails (control): +0.0123 [-0.0100, +0.0300], p 0.200" in flat
    assert "LS higher than ERM, holds: +0.0123" not in flat.split("Claim holds")[1].split("Claim fails")[0]
    assert str(folder / "study.html") in text.replace("\n", "")


def test_a_wide_table_is_printed_in_parts(folder, results):
    columns = [f"column {i}" for i in range(15)]
    cells = [[cell(i / 100) for i in range(15)]]
    results["tables"] = [{**table({"ERM": cell()}), "columns": columns, "here": [""] * 15, "cells": cells}]
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    console = Console(file=io.StringIO(), width=80, highlight=False)
    show_study(folder, console, tables=True)
    text = console.file.getvalue()
    assert all(column in text for column in columns)
    assert all(f"{i}.00" in text for i in range(15))
    assert max(map(len, text.splitlines()[:20])) <= 80


def test_a_stand_in_is_told_once_for_a_table(results):
    first = results["tables"][0]
    first["row_here"] = ["a small network"] * len(first["rows"])
    notes = " ".join(table_notes(results, first))
    assert notes.count("a small network") == 1
    assert f"{', '.join(first['rows'])}: a small network" in notes
    assert "gap: pairs stand here" in notes
    assert render_study(results).count("a small network") == 1
    first["here"] = []
    notes = " ".join(table_notes(results, first))
    assert "All of it here: a small network." in notes
    assert ", ".join(first["rows"]) not in notes


def test_the_terminal_gets_a_summary_of_the_tables(folder):
    console = Console(file=io.StringIO(), width=100, highlight=False)
    show_study(folder, console)
    text = console.file.getvalue()
    first = read_results(folder)["tables"][0]
    cells = [cell for row in first["cells"] for cell in row if cell]
    filled = sum(cell["mean"] is not None for cell in cells)
    (line,) = [line for line in text.splitlines() if f" {first['name']}: " in line]
    count = str(filled) if filled == len(cells) else f"{filled} of {len(cells)}"
    assert [part.strip() for part in line.split("│")[2:5]] == [count, "1", "1"]
    assert "▼ 8.00" not in text
    assert f"The tables are in {folder / 'tables'}." in text.replace("\n", "")
    assert "What failed" in text


def test_results_of_the_first_format_are_shown(folder, results):
    """Claims of it had neither controls nor premises."""
    old = [{key: claim[key] for key in ("text", "verdict", "need", "parts")} for claim in results["claims"][:2]]
    for claim in old:
        claim["parts"] = [{k: v for k, v in part.items() if k not in ("control", "unmet")} for part in claim["parts"]]
    (folder / "results.json").write_text(json.dumps({**results, "format": 1, "claims": old}), encoding="utf-8")
    page = words_of(render_study(read_results(folder)))
    assert "Of 2 claims of the paper, at this scale: 1 hold, 1 fail, 0 undecided." in page
    assert "Control" not in page


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match="not the folder of a study"):
        show_study(tmp_path)
    (tmp_path / "results.json").write_text('{"format": 3}')
    with pytest.raises(InputError, match="of format 3, this version of distilcal reads up to 2"):
        write_study(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        write_study(tmp_path)
