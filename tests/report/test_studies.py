"""Results of a study as tables, figures, a page and words: whole, escaped, and with the numbers of results.json."""

import csv
import io
import json
import math
import re
import subprocess
from copy import deepcopy
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from test_page import CHROMIUM, Outline, check_outline, in_browser

from distilcal.errors import InputError
from distilcal.report.charts.marks import COLOURS
from distilcal.report.charts.plot import WIDTH
from distilcal.report.charts.scales import axis_of
from distilcal.report.charts.study import CHARTS, draw
from distilcal.report.figures import FORMATS
from distilcal.report.studies import read_results, render_study, show_study, write_study
from distilcal.report.studies.cells import SIGNS
from distilcal.report.studies.sentences import cell_lines

pytest.importorskip("jinja2")

HARMFUL = "<script>alert(1)</script> & a_b 50% x|y $z$ {q} \\n #1 ~ ^ *s* `c` [l](http://x)"


def cell(mean=0.1123456789012345, **changed):
    made = {
        "mean": mean, "std": 0.0123, "low": 0.09, "high": 0.13, "seeds": 3, "examples": 1725, "percent": True, "digits": 2,
        "paper": {"mean": 0.1, "std": None}, "difference": None, "definition": "expected calibration error, 15 bins",
        "metric": "ece", "method": "ERM", "task": "MRPC", "set": "test", "chosen": "lr 0.001, epochs 4", "failed": "",
        "missing": "",
    }  # fmt: skip
    return {**made, **changed}


def difference(value, better, significant=True):
    return {"against": "ERM", "value": value, "low": value - 0.01, "high": value + 0.01, "p": 0.0001, "better": better,
            "significant": significant}  # fmt: skip


GONE = {"std": None, "low": None, "high": None}
CELLS = {
    "plain": cell(),
    "better": cell(0.08, difference=difference(-0.03, True)),
    "worse": cell(0.15, difference=difference(0.04, False), paper={"mean": 0.2, "std": 0.01}),
    "no side": cell(0.69, difference=difference(0.5, None), percent=False, digits=4, metric="entropy", paper=None),
    "chance": cell(0.11, difference=difference(-0.001, None, significant=False), std=None, seeds=1),
    "failed": cell(None, **GONE, failed="RuntimeError: not finite", paper=None),
    "some failed": cell(0.12, failed="seed 2: not finite"),
    "missing": cell(None, **GONE, missing="not run"),
    "undefined": cell(math.nan, std=math.nan, low=math.nan, high=math.nan, paper={"mean": math.nan, "std": None}),
    "infinite": cell(math.inf, std=None, percent=False),
    "harmful": cell(0.01, method=HARMFUL, task=HARMFUL, definition=HARMFUL, chosen=HARMFUL, set=HARMFUL, metric=HARMFUL),
}


def table(cells, name="table2", **changed):
    """A table of one row for each cell beside an empty one."""
    made = {
        "name": name, "title": "Calibration (%)", "note": "", "columns": ["MRPC", "gap"], "here": ["", "pairs stand here"],
        "row_here": [""] * len(cells), "rows": list(cells), "cells": [[c, None] for c in cells.values()],
    }  # fmt: skip
    return {**made, **changed}


def figure(kind, points, **changed):
    series = [{"name": name, "points": points} for name in ("ERM", HARMFUL)]
    return {"name": kind, "title": f"A {kind}", "note": "", "kind": kind, "x": "epoch", "y": "ECE", "series": series,
            "diagonal": kind == "scatter", **changed}  # fmt: skip


POINTS = {
    "line": [[1, 0.2, 0.1, 0.3], [2, None, None, None], [3, 0.15, 0.1, 0.2], [4, 0.1]],
    "scatter": [[0.8, 0.2], [0.9, 0.1, 0.05, 0.2]],
    "reliability": [[0.55, 0.5, 0.4, 0.6, 20], [0.95, 0.9, 0.85, 0.95, 400]],
    "projection": [[-1.5, 2.0], [3.0, 0.25]],
    "map": [[0.1, 0.9, 1.0], [0.4, 0.5, 0.6], [0.2, 0.1, 0.0]],
}


def part(verdict, value=0.0123):
    return {"what": f"LS higher than ERM, {verdict}", "value": value, "low": -0.01, "high": 0.03, "p": 0.2, "verdict": verdict,
            "percent": False, "digits": 4}  # fmt: skip


@pytest.fixture
def results():
    figures = [figure(kind, points) for kind, points in POINTS.items()]
    figures[1]["series"][0]["labels"] = ["MRPC", HARMFUL]
    second = table({HARMFUL: cell()}, HARMFUL, title=HARMFUL, note=HARMFUL, here=["", HARMFUL])
    claims = [{"text": f"Claim {v}", "verdict": v, "need": "all of 2", "parts": [part(v), part("holds", None)]} for v in SIGNS]
    theorem = {"name": "theorem1", "title": "Theorem 1, τ²", "columns": ["α", "gap"], "text": "What it shows."}
    return deepcopy({
        "format": 1, "name": "p000", "title": "Does it hold?", "scale": "small", "note": "tiny models", "seeds": [0, 1, 2],
        "level": 0.95,
        "tables": [table(CELLS), second],
        "claims": [*claims, {"text": HARMFUL, "verdict": "holds", "need": "", "parts": []}],
        "figures": [*figures, figure("line", [], name="../../empty"), figure("line", POINTS["line"], name="LINE")],
        "failures": [{"what": "MRPC · small-ls", "error": f"{HARMFUL}\nsecond line\x1b[31m"}],
        "theorems": [{**theorem, "rows": [[0.5, 1.5e-7], [1, HARMFUL]]}],
        "environment": {"python": "3.11", "packages": {"numpy": "2.0", HARMFUL: "1"}},
        "command": "distilcal study p000 --scale small", "seconds": 1234.5, "trained": 1068, "jobs": 1424, "points": 14560,
    })  # fmt: skip


@pytest.fixture
def folder(results, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return tmp_path


def words_of(page):
    return " ".join(" ".join(Outline(page).words).split())


def lines_of(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))


# ---- files -------------------------------------------------------------------------------------------------------------


def test_every_file_is_written_and_none_elsewhere(folder):
    written = write_study(folder)
    found = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name != "results.json")
    assert sorted(p.relative_to(folder).as_posix() for p in written) == found
    second = re.sub(r"[^A-Za-z0-9._-]+", "-", HARMFUL).strip(".-")
    names = [f"tables/{name}.{kind}" for name in ("table2", second) for kind in ("csv", "md", "tex")]
    names += [f"figures/{name}{suffix}" for name in (*POINTS, "empty", "LINE-2") for suffix in FORMATS]
    assert found == sorted([*names, "results.md", "study.html"])
    assert write_study(folder) == written  # over what is there


def test_nothing_says_where_it_was_made(folder):
    for path in write_study(folder):
        content = path.read_bytes()
        assert str(folder).encode() not in content
        text = content.decode("utf-8", "replace")
        assert not re.search(r'(?:src|href)="/', text)
        assert "](/" not in text


def test_csv_has_the_numbers(folder, results):
    write_study(folder)
    lines = {line["row"]: line for line in lines_of(folder / "tables" / "table2.csv")}
    assert list(lines) == list(CELLS)  # and no line for the empty ones
    for name, known in CELLS.items():
        line = lines[name]
        for key in ("mean", "std", "low", "high"):
            there = known[key] is not None and not math.isnan(known[key])
            assert line[key] == (repr(known[key]) if there else ""), (name, key)
        assert (line["seeds"], line["examples"]) == (str(known["seeds"]), "1725")
        d = known["difference"] or {}
        assert line["difference"] == str(d.get("value", ""))
        assert line["better"] == {None: "", True: "true", False: "false"}[d.get("better")]
        assert line["failed"] == known["failed"]
        assert line["missing"] == known["missing"]
    assert (lines["worse"]["paper_mean"], lines["worse"]["paper_std"], lines["worse"]["column"]) == ("0.2", "0.01", "MRPC")
    assert (lines["no side"]["against"], lines["no side"]["significant"], lines["no side"]["diff_low"]) == (
        "ERM",
        "true",
        "0.49",
    )
    assert lines["harmful"]["method"] == HARMFUL
    assert float(lines["plain"]["mean"]) == CELLS["plain"]["mean"]


def test_cells_as_in_the_paper(folder):
    write_study(folder)
    rows = re.findall(r"^\| (.*) \|$", (folder / "tables" / "table2.md").read_text(encoding="utf-8"), flags=re.M)
    shown = dict(row.split(" | ")[:2] for row in rows[2:])
    assert shown == {
        "plain": "11.23 ± 1.23 (10.00)",
        "better": "**8.00 ± 1.23** ▼ (10.00)",
        "worse": "15.00 ± 1.23 ▲ (20.00 ± 1.00)",
        "no side": "0.6900 ± 0.0123 ▲",
        "chance": "11.00 (10.00)",
        "failed": "failed",
        "some failed": "12.00 ± 1.23† (10.00)",
        "missing": "not run (10.00)",
        "undefined": "–",
        "infinite": "∞ (0.10)",
        "harmful": "1.00 ± 1.23 (10.00)",
    }
    tex = (folder / "tables" / "table2.tex").read_text(encoding="utf-8")
    assert "better & \\textbf{8.00 $\\pm$ 1.23} $\\downarrow$ \\textcolor{gray}{(10.00)} & -- \\\\" in tex
    assert "over up to 3 seeds. In grey: the paper's figure." in tex
    assert (
        "significantly higher, lower than ERM (95\\% level, Holm's correction over the table); bold: better. \\dag{}: some"
        in tex
    )
    assert "gap: pairs stand here." in tex


def test_markdown_is_escaped(folder):
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    for path in write_study(folder):
        if path.suffix == ".md":
            html = markdown.render(path.read_text(encoding="utf-8"))
            assert not re.search(r'<script|<em>|href="http', html)
            assert "x|y" not in re.sub(re.escape(HARMFUL), "", unescape(re.sub(r"<[^>]*>", "", html)))  # all of it or nothing
    page = markdown.render((folder / "results.md").read_text(encoding="utf-8"))
    assert unescape(re.sub(r"<[^>]*>", "", page)).count(HARMFUL) >= 8


def test_latex_is_escaped(folder):
    for path in write_study(folder):
        if path.suffix != ".tex":
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = lines[lines.index("\\toprule") + 1 : lines.index("\\bottomrule")]
        text = "\n".join([next(line for line in lines if line.startswith("\\caption")), *rows])
        assert all(len(re.findall(r"(?<!\\)&", row)) == 2 for row in rows if row != "\\midrule")
        bare = re.sub(r"\$[^$\\]*\\?[a-z]*\$|\\[&%$#_{}]", "", text.replace("\\$", ""))
        assert not re.search(r"[%$#_~^<>|*]|(?<!\{)\[", bare.replace("{*}", "")), bare
        assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    assert (
        "\\textless{}script\\textgreater{}alert(1)\\textless{}/script\\textgreater{} \\& a\\_b 50\\% x\\textbar{}y \\$z\\$"
        in text
    )


def test_results_on_one_page_of_markdown(folder):
    write_study(folder)
    text = (folder / "results.md").read_text(encoding="utf-8")
    for said in (
        "# Does it hold?",
        "small: tiny models",
        "```\ndistilcal study p000 --scale small\n```",
        "wall time: 20 min 34 s",
        "numpy 2.0",
        "✗ **fails**: Claim fails (all of 2)",
        "| LS higher than ERM, fails | +0.0123 \\[-0.0100, +0.0300\\] | 0.200 | fails |",
        "![A line](figures/line.svg)",
        "[csv](tables/table2.csv)",
        "Theorem 1, τ²",
        "| 0.5 | 1.5e-07 |",
        "MRPC · small-ls: ",
    ):
        assert said in text, said


# ---- page --------------------------------------------------------------------------------------------------------------


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
        assert f'<article class="claim {verdict}">' in page
        assert f"{sign} {verdict}" in words_of(page)
    assert "Of 4 claims of the paper, at this scale: 2 hold, 1 fail, 1 undecided." in words_of(page)
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seen = json.loads(unescape(re.search(r'<pre id="out">(.*?)</pre>', done.stdout, flags=re.S).group(1)))
    finite = {name: c["mean"] for name, c in CELLS.items() if c["mean"] is not None and math.isfinite(c["mean"])}
    up = sorted(finite, key=finite.__getitem__)
    assert seen["order"][0][: len(up)] == up
    assert seen["order"][1][: len(up)] == up[::-1]
    assert seen["order"][2] == list(CELLS)
    assert seen["order"][3] == sorted(CELLS)
    assert not seen["hidden"]
    assert "against ERM: -3.00" in seen["tip"]


# ---- charts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CHARTS)
def test_pictures_are_xml_with_all_their_points(kind):
    root = ElementTree.fromstring(draw(figure(kind, POINTS[kind]), kind))
    assert root.tag == "svg"
    said = [t.text for t in root.iter("text")]
    assert root.find("title").text == f"A {kind}"
    assert all(axis in said for axis in ("epoch", "ECE"))
    assert not list(root.iter("script"))
    if kind in ("line", "scatter", "reliability"):
        drawn = [p for p in POINTS[kind] if None not in p]
        marks = [t.text for t in root.iter("title")][1:]
        assert len(marks) == 2 * len(drawn)
        assert marks[0].startswith(f"ERM{', 20 rows' if kind == 'reliability' else ''}: epoch {drawn[0][0]:.4g}, ECE")
    if kind == "projection":
        assert not [t for t in said if re.fullmatch(r"[\d.-]+", t)]
    if kind == "line":  # broken at the gap: one line of two points for each series
        assert [len(e.get("points").split()) for e in root.iter("polyline")] == [2, 2]


def test_many_points_stay_small_and_are_thinned():
    rng = np.random.default_rng(0)
    points = rng.random((20_000, 3)).tolist()
    for kind in ("map", "projection", "scatter"):
        some = [p[:2] for p in points] if kind != "map" else points
        text = draw(figure(kind, some, series=[{"name": "ERM", "points": some}]), "k")
        assert len(text) < 400_000
        ElementTree.fromstring(text)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["line", "scatter", "projection"]),
    series=st.lists(
        st.tuples(
            st.text(max_size=40),
            st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6) | st.none()), max_size=12),
        ),
        max_size=12,
    ),
)
def test_whatever_the_points_they_lie_in_the_picture(kind, series):
    made = figure(kind, [], series=[{"name": name, "points": [list(p) for p in points]} for name, points in series])
    root = ElementTree.fromstring(draw(made, "k"))
    left, top, width, height = map(float, root.get("viewBox").split())
    assert width == WIDTH
    for element in root.iter():
        place = re.match(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
        if place:
            assert left <= float(place[1]) <= left + width
            assert top <= float(place[2]) <= top + height


def test_more_series_than_colours_still_differ():
    names = [f"method number {i}" for i in range(20)]
    series = [{"name": name, "points": [[0, i], [1, i]]} for i, name in enumerate(names)]
    root = ElementTree.fromstring(draw(figure("line", [], series=series), "k"))
    looks = {
        (g.get("color"), g.find("path").get("d"), g.find("line").get("stroke-dasharray"))
        for g in root.iter("g")
        if g.find("line") is not None
    }
    assert len(looks) == len(names)
    assert set(names) <= {t.text for t in root.iter("text")}


def contrast(one, other):
    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_in_light_and_dark():
    assert all(contrast(light, "#ffffff") >= 3 and contrast(dark, "#1c2024") >= 3 for light, dark in COLOURS)


@pytest.mark.parametrize(
    ("values", "how", "labels"),
    [
        (range(1, 11), {"whole": True}, ["2", "4", "6", "8", "10"]),
        ([1, 2], {"whole": True}, ["1", "2"]),
        ([0.02, 0.1], {"zero": True}, ["0.00", "0.05", "0.10"]),
        ([0.5], {}, ["0.46", "0.48", "0.50", "0.52", "0.54"]),
        ([1, 4, 16, 64], {"log": True}, ["1", "4", "16", "64"]),
        ([], {}, ["0.0", "0.5", "1.0"]),
        ([-3, 3], {}, ["-2", "0", "2"]),
        ([1.09855, 1.09868], {}, ["1.09855", "1.09860", "1.09865"]),
        ([0.52, 0.71], {"percent": True}, ["55%", "60%", "65%", "70%"]),
    ],
)
def test_ticks_are_round(values, how, labels):
    axis = axis_of(values, **how)
    assert axis.labels == labels
    assert all(0 <= axis.share(v) <= 1 for v in [*values, *axis.ticks])


def test_what_goes_up_by_factors_stands_on_a_log_axis():
    def titles(values):
        text = draw(figure("line", [], x="τ", series=[{"name": "", "points": [[v, 1] for v in values]}]), "k")
        return [t.text for t in ElementTree.fromstring(text).iter("text")]

    assert "τ, log scale" in titles([1, 2, 4, 8, 16, 32, 64])
    assert "τ, log scale" in titles([1e-4, 3e-4, 1e-3, 3e-3])
    for plain in (range(1, 30), [0, 1, 10, 100], [0.1, 0.5, 0.9, 1.0]):
        assert "τ" in titles(plain)


# ---- terminal ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [50, 80, 150])
def test_terminal(folder, width):
    write_study(folder)
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show_study(folder, console)
    text = console.file.getvalue()
    assert "\x1b" not in text
    flat = " ".join(text.split())
    assert "▼ 8.00" in text
    assert ("(20.00 ± 1.00)" in text) == (width > 50)
    assert all(f"{sign} {verdict} Claim {verdict}" in flat for verdict, sign in SIGNS.items())
    assert "What failed" in text
    assert "LS higher than ERM, fails: +0.0123 [-0.0100, +0.0300], p 0.200" in flat
    assert "LS higher than ERM, holds: +0.0123" not in flat.split("Claim holds")[1].split("Claim fails")[0]
    assert str(folder / "study.html") in text.replace("\n", "")


def test_a_wide_table_is_printed_in_parts(folder, results):
    columns = [f"column {i}" for i in range(15)]
    cells = [[cell(i / 100) for i in range(15)]]
    results["tables"] = [{**table({"ERM": cell()}), "columns": columns, "here": [""] * 15, "cells": cells}]
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    console = Console(file=io.StringIO(), width=80, highlight=False)
    show_study(folder, console)
    text = console.file.getvalue()
    assert all(column in text for column in columns)
    assert all(f"{i}.00" in text for i in range(15))
    assert max(map(len, text.splitlines()[:20])) <= 80


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match="not the folder of a study"):
        show_study(tmp_path)
    (tmp_path / "results.json").write_text('{"format": 2}')
    with pytest.raises(InputError, match="not results of format 1"):
        write_study(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        write_study(tmp_path)
