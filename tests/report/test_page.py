"""The report page: self-contained, escaped, readable by machines and in a browser, wide and narrow, light and dark."""

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from samples import make

from distilcal import Predictions
from distilcal.evaluation import evaluate_model
from distilcal.report.evaluations.page import MOST_CLASSES, render, write_page

pytest.importorskip("jinja2")

HARMFUL = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "joy & sadness", "x" * 80)


def named(seed, name, rows=700):
    p = make(rows, 4, seed=seed, scale=3)
    ids = [f"{seed}-{i}" for i in range(rows)]
    return Predictions.from_logits(p.logits, p.labels, ids=ids, classes=HARMFUL, name=name)


@pytest.fixture(scope="module")
def assessment():
    test = named(2, "<b>test</b>")
    other = Predictions.from_logits(test.logits / 2, test.labels, ids=test.ids, classes=HARMFUL, name="other<i>")
    return evaluate_model(test, named(1, "dev", 1500), other, [named(3, "away</main>")], intervals=30)


@pytest.fixture(scope="module")
def page(assessment):
    return render(assessment)


class Outline(HTMLParser):
    """Tags in order, open tags, ids and the text of the page."""

    VOID = frozenset({"meta", "link", "br", "img", "line", "circle", "polyline"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.ids, self.refs, self.words = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [v for k, v in attrs if k == "id"]
        self.refs += [v for k, v in attrs if k in ("aria-labelledby",) for v in v.split()]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.words.append(data)


def check_outline(outline):
    """Ids, headings, pictures and tables as a screen reader needs them."""
    assert len(outline.ids) == len(set(outline.ids))
    assert set(outline.refs) <= set(outline.ids)
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    for tag, attrs in outline.tags:
        if tag == "svg":
            assert attrs["role"] == "img"
            assert attrs["aria-labelledby"]
        if tag == "th":
            assert attrs["scope"] in ("row", "col")
        if attrs.get("class", "").startswith("scroll"):
            assert attrs["tabindex"] == "0"
            assert attrs["aria-label"]


def test_text_of_users_is_escaped(page):
    outline = Outline(page)
    assert not outline.open
    assert not [tag for tag, _ in outline.tags if tag in ("script", "img", "i", "iframe")]
    text = " ".join(outline.words)
    for harmful in (*HARMFUL, "<b>test</b>", "away</main>", "other<i>"):
        assert harmful in text
    assert not [a for _, attrs in outline.tags for a in attrs if a.startswith("on")]


def test_page_asks_for_nothing(page):
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,", "#main"]


def test_page_is_fit_for_screen_readers(page):
    outline = Outline(page)
    check_outline(outline)
    tags = outline.tags
    assert ("html", {"lang": "en"}) in tags
    assert sum(tag == "svg" for tag, _ in tags) == 5


def test_page_says_what_was_found(page, assessment):
    text = " ".join(" ".join(Outline(page).words).split())
    for said in (
        "Overconfident by",
        f"temperature {assessment.calibrator.value:.2f}",
        "Risk and coverage",
        "largest class-wise error first",
        "In and out of domain",
        "paired bootstrap",
        "Expected calibration error",
        "Here: top-label, 15 equal-width bins, (lo, hi], L1 norm.",
    ):
        assert said in text, said


def test_marks_stand_where_the_numbers_are():
    p = Predictions.from_probs([[0.8, 0.2]] * 10, [0] * 6 + [1] * 4)
    page = render(evaluate_model(p, intervals=20))
    x, y = re.search(r'<circle class="mark" cx="([\d.]+)" cy="([\d.]+)"', page).groups()
    assert float(x) == pytest.approx(54 + 296 * 0.8)
    assert float(y) == pytest.approx(12 + 240 * (1 - 0.6))
    assert "10 rows, 4 wrong" in page


@pytest.mark.parametrize("case", ["confidences", "many classes", "one row", "all right", "all wrong", "infinite nll"])
def test_odd_inputs_still_make_a_page(case):
    rng = np.random.default_rng(0)
    p = {
        "confidences": lambda: Predictions.from_confidences(rng.uniform(0.3, 1, 50), rng.random(50) < 0.7),
        "many classes": lambda: make(300, MOST_CLASSES + 50),
        "one row": lambda: make(1, 3),
        "all right": lambda: Predictions.from_logits(5 * np.eye(3), [0, 1, 2]),
        "all wrong": lambda: Predictions.from_logits(5 * np.eye(3), [1, 2, 0]),
        "infinite nll": lambda: Predictions.from_probs([[1.0, 0.0], [0.3, 0.7]], [1, 1]),
    }[case]()
    page = render(evaluate_model(p, intervals=20))
    Outline(page)
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    if case == "many classes":
        assert "50 more classes" in page
    if case == "infinite nll":
        assert "∞" in page


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def in_browser(page_path, tmp_path, *, width, dark):
    """What a browser makes of the page in a frame of the given width: asked by a script outside the page."""
    question = """
      const d = f.contentDocument, s = d.scrollingElement, style = f.contentWindow.getComputedStyle(d.body);
      const wide = [...d.querySelectorAll("body *")].filter(e => !e.closest(".scroll, svg, .skip")
        && e.getBoundingClientRect().right > s.clientWidth + 1).map(e => e.tagName + "." + e.className);
      const small = [...d.querySelectorAll("svg")].filter(e => e.getBoundingClientRect().width < 200).length;
      out.textContent = JSON.stringify({scroll: s.scrollWidth, client: s.clientWidth, background: style.backgroundColor,
        colour: style.color, marks: d.querySelectorAll("circle.mark").length, wide, small, title: d.title});
    """
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<!doctype html><body><pre id="out"></pre><iframe id="f" src="{page_path.as_uri()}" '
        f'style="width:{width}px;height:900px;border:0"></iframe><script>'
        'const f = document.getElementById("f"), out = document.getElementById("out");'
        f"f.onload = () => {{{question}}};</script>",
        encoding="utf-8",
    )
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", frame.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(unescape(re.search(r'<pre id="out">(.*?)</pre>', done.stdout, flags=re.S).group(1)))


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(assessment, tmp_path, width, dark):
    path = tmp_path / "report.html"
    write_page(assessment, path)
    seen = in_browser(path, tmp_path, width=width, dark=dark)
    assert seen["title"].startswith("<b>test</b>")
    assert seen["scroll"] <= seen["client"], f"wider than the window: {seen['wide']}"
    assert not seen["wide"]
    assert seen["marks"] > 10
    assert seen["small"] == 0
    background = sum(map(int, re.findall(r"\d+", seen["background"])[:3])) / 3
    assert background < 60 if dark else background > 200
