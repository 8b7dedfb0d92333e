"""The page of a data map: points where the numbers are, tables that give them back, text that stays text."""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from rich.console import Console
from test_page import CHROMIUM, Outline, check_outline, in_browser

from distilcal.dynamics.data_map import Examples, build_map
from distilcal.report.charts.marks import MARKS, MOST_POINTS
from distilcal.report.figures import map_figure, save_figure
from distilcal.report.map_page import (
    LABEL,
    MAP,
    _aum_chart,
    _histograms,
    _levels,
    _picture,
    render_map,
    write_map_page,
)
from distilcal.report.maps import show_map, write_map_table

pytest.importorskip("jinja2")

from recorded import CLASSES, HARMFUL, dynamics, texts_for

# ---- the picture -------------------------------------------------------------------------------------------------------

POINT = re.compile(r'<path class="point (solid|open) k(\d)" d="M([\d.]+) ([\d.]+)m[^"]*"[^>]*><title>([^<]*)</title>')


def test_points_stand_where_the_numbers_are():
    d = dynamics(n=23)
    found = {}
    for _, level, x, y, title in POINT.findall(render_map(build_map(d, "m"))):
        found[title.split(":")[0]] = (int(level), float(x), float(y), title)
    assert set(found) == set(d.ids)
    width = 0.4 if d.variability.max() > 0.3 else 0.3
    assert 0.2 < d.variability.max() <= width
    for i, id_ in enumerate(d.ids.tolist()):
        level, x, y, title = found[id_]
        assert x == pytest.approx(58 + 528 * (0.02 + 0.96 * d.variability[i] / width), abs=0.01)
        assert y == pytest.approx(50 + 440 * (1 - 0.02 - 0.96 * d.confidence[i]), abs=0.01)
        share = d.correctness[i] / 8
        assert (level == 0) == (share == 0)
        assert (level == 6) == (share == 1)
        assert f"right in {d.correctness[i]} of 8" in title


def test_levels_of_correctness():
    few = build_map(dynamics(n=200, epochs=3), "m")
    names, level, rounded = _levels(few)
    assert [name for name, _ in names] == ["0", "0.33", "0.67", "1"]
    assert not rounded
    np.testing.assert_array_equal(level, np.array([used for _, used in names])[few.dynamics.correctness])
    many = build_map(dynamics(n=2000, epochs=20), "m")
    names, level, rounded = _levels(many)
    assert [name for name, _ in names] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert rounded
    told = np.select([level == used for _, used in names], [float(name) for name, _ in names])
    between = (many.right > 0) & (many.right < 1)
    assert (np.abs(told - many.right)[between & (many.right >= 0.1) & (many.right <= 0.9)] <= 0.1 + 1e-9).all()
    assert ((told == 0) == (many.right == 0)).all()
    assert ((told == 1) == (many.right == 1)).all()
    assert len({mark.shape for mark in MARKS}) == len({mark.light for mark in MARKS}) == len({mark.dark for mark in MARKS}) == 7


def test_large_sets_are_sampled_and_the_caption_says_so():
    m = build_map(dynamics(n=MOST_POINTS + 500), "m")
    page = render_map(m)
    assert page == render_map(m)
    assert len(POINT.findall(page)) == MOST_POINTS
    assert "4,000 of 4,500 examples, drawn at random (seed 0); the histograms count all" in page
    assert "All 60 examples." in render_map(build_map(dynamics(), "m"))


def test_histograms_count_every_example():
    d = dynamics(n=700)
    m = build_map(d, "m")
    for h in _histograms(m):
        counts = [int(re.search(r": ([\d,]+) example", b["title"]).group(1).replace(",", "")) for b in h["bars"]]
        assert sum(counts) == 700
        assert max(counts) == h["most"]
        tallest = max(h["bars"], key=lambda b: b["height"])
        assert tallest["height"] == pytest.approx(96)
    aum = _aum_chart(m)
    below = [int(re.search(r": ([\d,]+) example", b["title"]).group(1)) for b in aum["bars"] if b["below"]]
    assert sum(below) == (d.aum < 0).sum()
    low, high = (float(re.search(r"AUM (\S+) to (\S+):", aum["bars"][i]["title"]).group(k)) for i, k in ((0, 1), (-1, 2)))
    assert aum["median"] == pytest.approx(58 + 528 * (np.median(d.aum) - low) / (high - low), abs=1)
    assert aum["zero"] == pytest.approx(58 + 528 * -low / (high - low), abs=1)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fraction", [0.05, 0.33, 1.0])
def test_names_of_regions_lie_in_the_frame_and_not_on_each_other(seed, fraction):
    labels = _picture(build_map(dynamics(n=150, seed=seed, epochs=2 + seed), "m", fraction=fraction), titles=False)["labels"]
    assert [label["title"] for label in labels] == ["easy-to-learn", "ambiguous", "hard-to-learn"]
    width, height = LABEL
    for label in labels:
        assert MAP.left + width / 2 < label["x"] < MAP.x(1) - width / 2
        assert MAP.top + height / 2 < label["y"] < MAP.y(0)
    for a, b in combinations(labels, 2):
        assert abs(a["x"] - b["x"]) > width or abs(a["y"] - b["y"]) > height


def test_lines_divide_the_regions():
    d = dynamics(n=90)
    m = build_map(d, "m", fraction=0.3)
    vertical, easy, hard = _picture(m, titles=False)["bounds"]
    found = _picture(m, titles=False)["points"]
    assert sum(p["x"] >= vertical["x1"] for p in found) == 27
    assert sum(p["y"] <= easy["y1"] for p in found) == 27
    assert sum(p["y"] >= hard["y1"] for p in found) == 27
    apart = _picture(build_map(d, "m", fraction=0.3, disjoint=True), titles=False)["bounds"]
    assert apart[1]["x2"] == vertical["x1"]


# ---- the page ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def harmful():
    d = dynamics(names=CLASSES, classes=2)
    d = replace(d, aum=np.where(np.arange(60) < 5, -20.0 + np.arange(60), d.aum))
    return build_map(d, "run<i>/student", examples=Examples({"text": texts_for(d)}))


def test_text_of_users_is_escaped(harmful):
    outline = Outline(render_map(harmful))
    assert not outline.open
    assert not [tag for tag, _ in outline.tags if tag in ("script", "img", "i", "iframe")]
    text = " ".join(outline.words)
    for shown in (*HARMFUL[:3], "two lines and three", "=1+1", *CLASSES, "run<i>/student"):
        assert shown in text
    assert not [a for _, attrs in outline.tags for a in attrs if a.startswith("on")]


def test_page_asks_for_nothing_and_is_fit_for_screen_readers(harmful):
    page = render_map(harmful)
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    check_outline(Outline(page))


def rows_of(page, label):
    table = re.search(rf'aria-label="{label}".*?<tbody>(.*?)</tbody>', page, flags=re.S).group(1)
    cells = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, flags=re.S) for row in re.findall(r"<tr>(.*?)</tr>", table, flags=re.S)
    ]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in cells]


def test_tables_of_the_page_say_what_the_dynamics_say():
    d = dynamics(n=80)
    m = build_map(d, "m", examples=Examples({"text": np.array([f"text {i}" for i in d.ids], dtype=object)}))
    page = render_map(m)
    doubtful = rows_of(page, "Most doubtful labels")
    assert len(doubtful) == 20
    for i, row in zip(np.lexsort((d.ids, d.aum)), doubtful, strict=False):
        assert row == [
            f"text {d.ids[i]}{d.ids[i]}", f"c{d.labels[i]}", f"c{d.logits[i].argmax()}", f"{d.confidence[i]:.3f}",
            f"{d.variability[i]:.3f}", f"{d.correctness[i]} of 8", f"{d.aum[i]:.2f}",
        ]  # fmt: skip
    assert [row[0] for row in rows_of(page, "Most ambiguous")] == [f"text {i}{i}" for i in d.ids[m.regions["ambiguous"][:20]]]
    made = {row[0]: row[1:] for row in rows_of(page, "Regions")}
    assert made["hard"][0] == "26"
    assert made["easy"][4] == f"{(d.correctness / d.epochs)[m.regions['easy']].mean():.1%}"
    by_class = rows_of(page, "Regions by class")
    assert sorted(row[0] for row in by_class) == ["c0", "c1", "c2"]
    for row in by_class:
        k = int(row[0][1])
        assert row[1] == str((d.labels == k).sum())
        assert row[5] == f"{(d.labels[m.regions['hard']] == k).mean():.1%}"
        assert row[7] == str(((d.labels == k) & (d.aum < 0)).sum())


def test_pictures_are_shown_small(tmp_path):
    image = pytest.importorskip("PIL.Image")
    d = dynamics(n=50)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 9, 7, 3), dtype=np.uint8)
    page = render_map(build_map(d, "m", examples=Examples(picture=lambda row: pixels[row])))
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="(r\d+)">', page)
    assert len(found) == 20 + 16
    for data, id_ in found:
        shown = np.asarray(image.open(io.BytesIO(base64.b64decode(data))))
        np.testing.assert_array_equal(shown, pixels[int(id_[1:])])
    large = Examples(picture=lambda row: np.zeros((300, 400, 3), dtype=np.uint8))
    data = re.search(r'base64,([^"]+)"', render_map(build_map(d, "m", examples=large))).group(1)
    assert image.open(io.BytesIO(base64.b64decode(data))).size == (96, 72)


@pytest.mark.parametrize("case", ["one example", "one epoch", "all alike", "many classes", "every second epoch", "all wrong"])
def test_odd_maps_still_make_everything(tmp_path, case):
    d = {
        "one example": lambda: dynamics(n=1),
        "one epoch": lambda: dynamics(epochs=1),
        "all alike": lambda: replace(dynamics(), aum=np.zeros(60), confidence=np.full(60, 0.5), variability=np.zeros(60)),
        "many classes": lambda: dynamics(n=700, classes=260),
        "every second epoch": lambda: replace(dynamics(), epochs=(8 + np.arange(60) % 3).astype(np.int32)),
        "all wrong": lambda: replace(dynamics(), aum=np.full(60, -2.0), correctness=np.zeros(60, dtype=np.int32)),
    }[case]()
    m = build_map(d, "m")
    write_map_page(m, tmp_path / "map.html")
    save_figure(map_figure(m), tmp_path / "map.svg")
    write_map_table(m, tmp_path / "map.csv")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    Outline(page)
    ElementTree.parse(tmp_path / "map.svg")
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    console = Console(file=io.StringIO(), width=100)
    show_map(m, console)
    said = " ".join(console.file.getvalue().split())
    assert {
        "one example": "1 example of 3 classes",
        "one epoch": "Record more epochs: 1 says little",
        "all alike": "No label lost to another class on average",
        "many classes": "of 260 classes",
        "every second epoch": "8 to 10 epochs",
        "all wrong": "Train longer, or a stronger model",
    }[case] in said
    if case == "many classes":
        assert "60 more classes are in the table file" in page


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser(harmful, tmp_path, width):
    path = tmp_path / "map.html"
    write_map_page(harmful, path)
    seen = in_browser(path, tmp_path, width=width, dark=width == 360)
    assert seen["title"] == "run<i>/student: a map of its training data"
    assert seen["scroll"] <= seen["client"], f"wider than the window: {seen['wide']}"
    assert not seen["wide"]
    assert seen["small"] == 0
    background = sum(map(int, re.findall(r"\d+", seen["background"])[:3])) / 3
    assert background < 60 if width == 360 else background > 200
