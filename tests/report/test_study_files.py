"""Tables of a study as CSV, Markdown and LaTeX: whole, escaped, and with the numbers of results.json."""

import csv
import io
import json
import math
import re
from html import unescape

import pytest
from test_page import Outline

from distilcal.report.figures import FORMATS
from distilcal.report.studies import write_study

pytest.importorskip("jinja2")

from study_results import CELLS, HARMFUL, POINTS, example_results


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
        "```\ndistilcal study informed-mixup --scale small\n```",
        "wall time: 20 min 34 s",
        "numpy 2.0",
        "✗ **fails**: Claim fails (all of 2)",
        "| LS higher than ERM, fails (control) | +0.0123 \\[-0.0100, +0.0300\\] | 0.200 | fails |",
        "![A line](figures/line.svg)",
        "[csv](tables/table2.csv)",
        "Theorem 1, τ²",
        "| 0.5 | 1.5e-07 |",
        "MRPC · small-ls: ",
    ):
        assert said in text, said
