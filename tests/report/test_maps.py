"""The data map: points where the numbers are, tables that give them back, text that stays text, mistakes in one line."""

import base64
import csv
import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from test_page import CHROMIUM, Outline, check_outline, in_browser

from distilcal.cli.main import main
from distilcal.dynamics import Recorder, aum_halves, load_dynamics, regions
from distilcal.dynamics.data_map import Examples, build_map
from distilcal.report.charts.marks import MARKS, MOST_POINTS
from distilcal.report.figures import map_figure, save_figure
from distilcal.report.formatting import one_line
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

HARMFUL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)> & more',
    "[red]not markup[/red] {{ 7 * 7 }}",
    "two\nlines\r\nand\rthree",
    "=1+1",
)
CLASSES = ("<b>bad</b>", "good & well")
COLUMNS = [
    "id",
    "label",
    "predicted",
    "confidence",
    "variability",
    "correctness",
    "epochs",
    "forgetting",
    "threshold_closeness",
    "aum",
    "easy",
    "ambiguous",
    "hard",
    "aum_half",
    "mislabelled",
]


def dynamics(n=60, classes=3, epochs=8, seed=0, names=None, ids=None):
    """Logits that favour the label, from a generator."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    names = names or [f"c{k}" for k in range(classes)]
    recorder = Recorder([f"r{i:03d}" for i in range(n)] if ids is None else ids, labels, names, dtype=np.float64)
    ease = rng.normal(1.0, 1.5, n)
    for _ in range(epochs):
        logits = rng.normal(size=(n, classes))
        logits[np.arange(n), labels] += ease
        recorder.record(np.arange(n), logits)
        recorder.end_epoch()
    return recorder.dynamics()


def texts_for(d):
    return np.array([HARMFUL[i] if i < len(HARMFUL) else f"text of {id_}" for i, id_ in enumerate(d.ids)], dtype=object)


@pytest.fixture
def run_folder(tmp_path):
    """A run with one recorded stage, its data in another order than its dynamics."""
    d = dynamics(names=CLASSES, classes=2)
    folder = tmp_path / "run"
    rows = np.random.default_rng(1).permutation(len(d))
    for name, prefix in (("train", ""), ("dev", "dev-"), ("test", "test-")):
        with open(tmp_path / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\r\n")
            writer.writerow(["id", "text", "label"])
            writer.writerows((prefix + d.ids[i], prefix + texts_for(d)[i], CLASSES[d.labels[i]]) for i in rows)
    d.save(folder / "student" / "dynamics")
    (folder / "student" / "history.json").write_text("[]")
    (folder / "recipe.toml").write_text(
        f'[data]\ntrain = "{tmp_path}/train.csv"\ndev = "{tmp_path}/dev.csv"\ntest = "{tmp_path}/test.csv"\n'
        'ood = ["gone.csv"]\n[stages.student.model]\nname = "linear"\n[[stages.student.terms]]\nloss = "cross_entropy"\n'
    )
    return folder


def run(*arguments):
    return CliRunner().invoke(main, ["map", *map(str, arguments)])


def table_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ---- the command and its table -----------------------------------------------------------------------------------------


def test_the_table_has_every_statistic_and_the_example(run_folder):
    done = run(run_folder, "--fraction", 0.25)
    assert done.exit_code == 0, done.output
    d = load_dynamics(run_folder / "student" / "dynamics")
    rows = table_of(run_folder / "student" / "map.csv")
    assert list(rows[0]) == [*COLUMNS, "text"]
    assert [r["id"] for r in rows] == d.ids[np.lexsort((d.ids, d.aum))].tolist()
    place = {id_: i for i, id_ in enumerate(d.ids.tolist())}
    inside, high = regions(d, 0.25), aum_halves(d)
    for row in rows:
        i = place[row["id"]]
        assert row["label"] == CLASSES[d.labels[i]]
        assert row["predicted"] == CLASSES[int(d.logits[i].argmax())]
        for name in ("confidence", "variability", "threshold_closeness", "aum"):
            assert float(row[name]) == pytest.approx(getattr(d, name)[i], rel=1e-5, abs=1e-9)
        for name in ("correctness", "epochs", "forgetting"):
            assert int(row[name]) == getattr(d, name)[i]
        for name, members in inside.items():
            assert row[name] == str(int(i in members))
        assert row["aum_half"] == ("high" if high[i] else "low")
        assert row["mislabelled"] == str(int(d.aum[i] < 0))
        assert row["text"] == texts_for(d)[i].replace("\r\n", "\n").replace("\r", "\n")
    assert sum(r["hard"] == "1" for r in rows) == 15


def test_parquet_holds_the_same_in_full(run_folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run(run_folder, "-o", tmp_path / "map.parquet").exit_code == 0
    assert not (run_folder / "student" / "map.csv").exists()
    d = load_dynamics(run_folder / "student" / "dynamics")
    found = parquet.read_table(tmp_path / "map.parquet").to_pydict()
    assert list(found) == [*COLUMNS, "text"]
    order = np.lexsort((d.ids, d.aum))
    np.testing.assert_array_equal(found["aum"], d.aum[order])
    assert found["mislabelled"] == (d.aum[order] < 0).tolist()
    assert found["text"] == texts_for(d)[order].tolist()


def test_run_stage_and_saved_folder_give_the_same_map(run_folder, tmp_path, monkeypatch):
    stage = run_folder / "student"
    assert run(run_folder).exit_code == 0
    expected = (stage / "map.csv").read_bytes()
    for given, where in ((stage, run_folder), (stage / "dynamics", stage), (".", stage), (".", stage / "dynamics")):
        for made in ("map.csv", "map.html"):
            (stage / made).unlink()
        monkeypatch.chdir(where)
        done = run(given)
        assert done.exit_code == 0, done.output
        assert (stage / "map.csv").read_bytes() == expected
        assert (stage / "map.html").exists()
    dynamics().save(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")  # never into a sealed folder
    done = run(".")
    assert done.exit_code == 0, done.output
    assert list(table_of(tmp_path / "mine-map.csv")[0]) == COLUMNS
    assert "not shown: no recipe beside it" in done.output
    load_dynamics(tmp_path / "mine")


def test_a_stage_is_named_where_there_are_two(run_folder):
    dynamics(n=7).save(run_folder / "teacher" / "dynamics")
    done = run(run_folder)
    assert done.exit_code == 2
    assert "2 stages were recorded; give --stage student or teacher" in done.output
    done = run(run_folder, "--stage", "teacher")
    assert "run/teacher: 7 examples of 3 classes, 8 epochs" in done.output
    assert len(table_of(run_folder / "teacher" / "map.csv")) == 7


def test_what_is_printed(run_folder):
    text = " ".join(run(run_folder, "--svg", run_folder / "map.svg").output.split())
    d = load_dynamics(run_folder / "student" / "dynamics")
    m = build_map(d, "x")
    below = int((d.aum < 0).sum())
    for said in (
        "run/student: 60 examples of 2 classes, 8 epochs",
        f"│ all │ 60 │ {np.median(d.confidence):.3f} │ {np.median(d.variability):.3f} │ {np.median(d.aum):.3f} │",
        f"│ {m.right.mean():.1%} │ {below} │",
        f"│ hard │ 19 │ {np.median(d.confidence[m.regions['hard']]):.3f} │",
        f"most doubtful labels, 8 of {below}",
        f"{below} examples ({below / 60:.1%}) lost to another class on average",
        "Read the examples with AUM below 0",
        "map.html: open it in a browser.",
        "map.csv: 60 examples, the most doubtful label first.",
        "map.svg: the map as a figure.",
    ):
        assert said in text, said
    assert one_line(texts_for(d)[d.aum.argmin()], 100) in text


def test_text_of_users_is_no_markup_and_steers_no_terminal():
    d = dynamics(n=9, classes=2, names=("[bold]a", "b\x1b[31m"))
    d = replace(d, aum=np.linspace(-9, -1, 9))
    m = build_map(d, "n", examples=Examples({"text": np.array(["[red]x[/red] \x1b]0;owned\x07 \u202eabc"] * 9, dtype=object)}))
    console = Console(file=io.StringIO(), width=150, force_terminal=False)
    show_map(m, console)
    said = console.file.getvalue()
    assert "[red]x[/red] \ufffd]0;owned\ufffd \ufffdabc" in said
    assert "[bold]a" in said
    assert "\x1b" not in said
    assert one_line("a\n b\tc", 5) == "a b c"
    assert one_line("abcdefgh", 5) == "abcd…"


def test_no_torch_is_imported(run_folder):
    code = (
        f"import sys; sys.argv = ['distilcal', 'map', {str(run_folder)!r}]\n"
        "from distilcal.cli.main import main\n"
        "try: main()\nfinally: print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("False False")


# ---- data that is not there any more -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["moved", "no recipe", "broken recipe", "other ids", "other label"])
def test_without_the_data_the_map_goes_on_and_says_so(run_folder, tmp_path, case):
    train = tmp_path / "train.csv"
    lines = train.read_text(encoding="utf-8").splitlines()
    if case == "moved":
        train.rename(tmp_path / "elsewhere.csv")
    elif case == "no recipe":
        (run_folder / "recipe.toml").unlink()
    elif case == "broken recipe":
        (run_folder / "recipe.toml").write_text("[data\n")
    elif case == "other ids":
        train.write_text("\n".join([lines[0], *("x" + line if line.startswith("r0") else line for line in lines[1:])]) + "\n")
    else:
        d = load_dynamics(run_folder / "student" / "dynamics")
        old, new = CLASSES[d.labels[10]], CLASSES[1 - d.labels[10]]
        changed = [line.replace(old, new) if line.startswith("r010,") else line for line in lines]
        train.write_text("\n".join(changed) + "\n")
    done = run(run_folder)
    assert done.exit_code == 0, done.output
    said = next(line for line in done.output.splitlines() if "not shown" in line)
    reason = {
        "moved": "train.csv: there is no such file or folder",
        "no recipe": "no recipe beside it says where they are",
        "broken recipe": "not readable as TOML",
        "other ids": "60 of 60 ids are gone or labelled otherwise",
        "other label": "1 of 60 ids are gone or labelled otherwise",
    }[case]
    assert reason in said
    assert list(table_of(run_folder / "student" / "map.csv")[0]) == COLUMNS
    assert reason in (run_folder / "student" / "map.html").read_text(encoding="utf-8")


def test_examples_that_were_never_recorded_are_left_out(tmp_path):
    recorder = Recorder(["a", "b", "c", "d"], [0, 1, 0, 1], ["x", "y"])
    recorder.record([0, 1, 3], np.array([[2.0, 0.0], [0.0, 1.0], [np.nan, 1.0]]))
    m = build_map(recorder.dynamics(), "m", examples=Examples({"text": np.array(["A", "B", "C", "D"], dtype=object)}))
    assert m.left_out == 2
    write_map_table(m, tmp_path / "map.csv")
    assert [(r["id"], r["text"]) for r in table_of(tmp_path / "map.csv")] == [("b", "B"), ("a", "A")]
    assert "2 examples more were never recorded" in render_map(m)


# ---- mistakes ----------------------------------------------------------------------------------------------------------

MISTAKES = {
    "no folder": (["nowhere"], "nowhere: there is no such folder"),
    "a file": (["run/recipe.toml"], "this is a file"),
    "not recorded": (["empty"], "no training dynamics were recorded here; train a stage with record = true"),
    "other stage": (["run", "--stage", "teacher"], "no stage 'teacher' was recorded; there is student"),
    "stage of a stage": (["run/student", "--stage", "student"], "--stage is for the folder of a run"),
    "suffix": (["run", "-o", "map.xlsx"], "'map.xlsx' is neither .csv nor .parquet"),
    "twice": (["run", "-o", "a.csv", "--html", "a.csv"], "is another output too"),
    "where to": (["run", "--svg", "no/where.svg"], "does not exist"),
    "a folder as output": (["run", "--html", "empty"], "this is a folder or a device"),
    "fraction": (["run", "--fraction", "0"], "0.0 is not in the range"),
    "damaged": (["damaged"], "this map is damaged"),
    "nothing recorded": (["unseen"], "no example was recorded"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_exit_2_and_no_file(run_folder, name, monkeypatch):
    folder = run_folder.parent
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    dynamics(n=5).save(folder / "damaged")
    (folder / "damaged" / "aum.npy").write_bytes(b"x")
    Recorder(["a"], [0], ["x", "y"]).dynamics().save(folder / "unseen")
    before = sorted(folder.rglob("*"))
    arguments, message = MISTAKES[name]
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not done.stdout
    assert sorted(folder.rglob("*")) == before


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


@pytest.mark.parametrize("kind", ["pairs", "choices", "images"])
def test_every_kind_of_example_is_found_again(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    n, rng = 24, np.random.default_rng(0)
    labels = np.arange(n) % 2
    if kind == "images":
        pixels = rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)
        np.savez("train.npz", images=pixels, labels=labels, ids=[f"i{k}" for k in range(n)], classes=["0", "1"])
        data = 'train = "train.npz"\ndev = "train.npz"\ntest = "train.npz"'
    else:
        lines = ["id,premise,hypothesis,label"] + [f"i{k},premise {k},other {k},{labels[k]}" for k in range(n)]
        Path("train.csv").write_text("\n".join(lines) + "\n")
        data = 'train = "train.csv"\ndev = "train.csv"\ntest = "train.csv"'
        data += '\ntext = "id"\nchoices = ["premise", "hypothesis"]' if kind == "choices" else ""
    recorder = Recorder([f"i{k}" for k in range(n)], labels, ["0", "1"])
    recorder.record(np.arange(n), rng.normal(size=(n, 2)))
    recorder.dynamics().save("run/s/dynamics")
    Path("run/recipe.toml").write_text(f'[data]\n{data}\n[stages.s.model]\nname = "linear"\n')
    done = run("run")
    assert done.exit_code == 0, done.output
    assert "not shown" not in done.output
    rows = table_of("run/s/map.csv")
    extra = {"pairs": ["text", "pair"], "choices": ["text", "choice_0", "choice_1"], "images": []}[kind]
    assert list(rows[0]) == COLUMNS + extra
    for row in rows:
        k = row["id"][1:]
        expected = {"pairs": [f"premise {k}", f"other {k}"], "choices": [f"i{k}", f"premise {k}", f"other {k}"], "images": []}
        assert [row[title] for title in extra] == expected[kind]
    page = Path("run/s/map.html").read_text(encoding="utf-8")
    if kind == "images":
        assert len(re.findall("<img ", page)) == 20 + 7
    else:
        assert "premise 3 ⏐ other 3" in page


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
