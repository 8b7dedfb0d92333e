"""Figures for papers: every kind in every format, the same bytes twice, the right numbers, text as it is."""

import re
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from recorded import dynamics
from samples import make

from distilcal.calibrate import fit_temperature
from distilcal.cli.main import main
from distilcal.dynamics.data_map import build_map
from distilcal.errors import InputError, MissingDependencyError
from distilcal.evaluation import evaluate_set
from distilcal.metrics import reliability
from distilcal.report.figures import (
    FORMATS,
    HEXAGONS,
    STUDY_FIGURES,
    map_figure,
    reliability_figure,
    save_figure,
    study_figure,
)

pytest.importorskip("matplotlib")

MAGIC = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}
TITLES = ("ERM", "label_smoothing", "_$x$ & <b>")
POINTS = {
    "line": [[1, 0.2, 0.1, 0.3], [2, None, None, None], [3, 0.15, 0.1, 0.2], [4, 0.1]],
    "bars": [[0, 0.2, 0.1, 0.3], [1, None], [2, 0.1]],
    "scatter": [[0.8, 0.2], [0.9, 0.1, 0.05, 0.2], [0.7, 0.3, 0.2, 0.4, 0.6, 0.8]],
    "reliability": [[0.55, 0.5, 0.4, 0.6, 20], [0.95, 0.9, 0.85, 0.95, 400]],
    "projection": [[-1.5, 2.0], [3.0, 0.25]],
    "map": [[0.1, 0.9, 1.0], [0.4, 0.5, 0.6], [0.2, 0.1, 0.0]],
}


def chart(kind, points=None, **changed):
    series = [{"name": name, "points": POINTS[kind] if points is None else points} for name in TITLES]
    return {"name": kind, "title": f"A {kind}", "kind": kind, "x": "epoch", "y": "ECE", "series": series, **changed}


def overlapping(figure):
    """Pairs of texts that lie on each other, as they are drawn."""
    figure.draw_without_rendering()
    texts = [t for axes in figure.axes for t in axes.texts if t.get_visible()]
    boxes = [t.get_window_extent() for t in texts]
    return [(texts[i].get_text(), texts[j].get_text()) for i in range(len(texts)) for j in range(i)
            if boxes[i].overlaps(boxes[j])]  # fmt: skip


@pytest.mark.parametrize("kind", STUDY_FIGURES)
def test_every_kind_is_written_in_every_format_and_twice_the_same(kind, tmp_path):
    for suffix in FORMATS:
        files = [tmp_path / f"{number}{suffix}" for number in (1, 2)]
        for file in files:
            save_figure(study_figure(chart(kind)), file)
        first, second = (file.read_bytes() for file in files)
        assert first.startswith(MAGIC[suffix])
        assert first == second
        assert b"CreationDate" not in first
    ElementTree.parse(tmp_path / "1.svg")
    assert b"/FontType 42" in (tmp_path / "1.pdf").read_bytes() or b"/CIDFontType2" in (tmp_path / "1.pdf").read_bytes()


@pytest.mark.parametrize("kind", STUDY_FIGURES)
@pytest.mark.parametrize("points", [[], [[0.5, 0.5, 0.5]]])
def test_charts_without_or_with_one_point_are_drawn(kind, points, tmp_path):
    save_figure(study_figure(chart(kind, points)), tmp_path / "a.png")
    save_figure(study_figure(chart(kind, series=[])), tmp_path / "b.svg")


def test_lines_have_the_numbers_and_their_gaps():
    figure = study_figure(chart("line"))
    line = figure.axes[0].get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4])
    np.testing.assert_array_equal(line.get_ydata(), [0.2, np.nan, 0.15, 0.1])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [name.strip() for name in names] == list(TITLES)
    assert figure.axes[0].get_xlabel() == "epoch"
    single = chart("line", series=[{"name": "ERM", "points": POINTS["line"]}])
    assert not study_figure(single).legends
    powers = study_figure(chart("line", [[2**i, 1.0] for i in range(7)]))
    assert powers.axes[0].get_xscale() == "log"
    assert [t.get_text() for t in powers.axes[0].get_xticklabels()] == ["1", "2", "4", "8", "16", "32", "64"]


def test_names_of_points_hide_no_point_and_no_other_name():
    rng = np.random.default_rng(0)
    series = [
        {"name": name, "points": rng.random((12, 2)).tolist(), "labels": [f"task {i}" for i in range(12)]} for name in TITLES
    ]
    figure = study_figure(chart("scatter", series=series))
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert len(shown) > 12
    assert not overlapping(figure)


def test_reliability_has_the_bins_side_by_side(tmp_path):
    predictions = make(2000, 4, scale=3)
    calibrated = fit_temperature(predictions)(predictions)
    sets = {"as given": evaluate_set(predictions, intervals=20), "calibrated": evaluate_set(calibrated, intervals=20)}
    figure = reliability_figure(sets)
    diagrams = figure.axes[::2]
    assert [axes.get_title(loc="left") for axes in diagrams] == list(sets)
    for axes, item in zip(diagrams, sets.values(), strict=True):
        bins = item.reliability
        filled = bins.count > 0
        drawn = next(line for line in axes.get_lines() if line.get_marker() == "o")
        np.testing.assert_allclose(drawn.get_xdata(), bins.confidence[filled])
        np.testing.assert_allclose(drawn.get_ydata(), bins.accuracy[filled])
        assert f"ECE {item.value('ece'):.3f}" in axes.texts[0].get_text()
    bars = [bar.get_height() for bar in figure.axes[1].patches]
    assert sum(bars) == 2000
    assert not overlapping(figure)
    save_figure(reliability_figure(reliability(predictions)), tmp_path / "one.pdf")
    with pytest.raises(InputError, match="no reliability diagram"):
        reliability_figure({})


def test_a_data_map_has_all_examples_its_regions_and_their_names():
    d = dynamics(n=300)
    m = build_map(d, "run/$x_1$", fraction=0.3)
    figure = map_figure(m)
    axes = figure.axes[0]
    cloud = max(axes.collections, key=lambda c: len(c.get_offsets()))
    found = np.asarray(cloud.get_offsets())
    order = np.lexsort(found.T)
    expected = np.stack([d.variability, d.confidence], axis=1)
    np.testing.assert_allclose(found[order], expected[np.lexsort(expected.T)])
    assert sorted(t.get_text() for t in axes.texts) == ["ambiguous", "easy-to-learn", "hard-to-learn"]
    assert not overlapping(figure)
    assert axes.get_title(loc="left") == "run/$x_1$"
    inside = axes.get_window_extent()
    assert all(inside.containsx(t.get_window_extent().x0) and inside.containsx(t.get_window_extent().x1) for t in axes.texts)


def test_large_maps_are_hexagons_and_stay_small(tmp_path):
    d = dynamics(n=HEXAGONS + 1)
    save_figure(map_figure(build_map(d, "m")), tmp_path / "large.pdf")
    assert (tmp_path / "large.pdf").stat().st_size < 300_000
    middle = dynamics(n=5000)
    save_figure(map_figure(build_map(middle, "m")), tmp_path / "middle.svg")
    assert b"data:image/png;base64" in (tmp_path / "middle.svg").read_bytes()
    assert (tmp_path / "middle.svg").stat().st_size < 1_000_000
    alike = replace(dynamics(n=9), variability=np.zeros(9), confidence=np.full(9, 0.5))
    save_figure(map_figure(build_map(alike, "m", disjoint=True)), tmp_path / "alike.png")


def test_settings_of_the_user_change_nothing_and_are_left_alone(tmp_path):
    import matplotlib

    save_figure(study_figure(chart("line")), tmp_path / "a.svg")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "svg.fonttype": "none"}):
        save_figure(study_figure(chart("line")), tmp_path / "b.svg")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_pyplot_is_never_imported(tmp_path):
    code = (
        "import sys\nfrom distilcal.report.figures import study_figure, save_figure\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"save_figure(study_figure({chart('line')!r}), {str(tmp_path / 'a.png')!r})\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr


def test_other_formats_and_a_missing_package_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"neither in \.svg nor \.pdf nor \.png"):
        save_figure(study_figure(chart("line")), tmp_path / "a.jpg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=re.escape("pip install 'distilcal[figures]'")):
        study_figure(chart("line"))


def test_eval_writes_the_reliability_diagram(tmp_path):
    make(400, 3, seed=0).save(tmp_path / "test.npz")
    make(400, 3, seed=1).save(tmp_path / "dev.npz")
    for suffix in FORMATS:
        path = tmp_path / f"reliability{suffix}"
        arguments = ["eval", str(tmp_path / "test.npz"), "--calib", str(tmp_path / "dev.npz"), "--intervals", "20"]
        done = CliRunner().invoke(main, [*arguments, "--figure", str(path)])
        assert done.exit_code == 0, done.output
        assert path.read_bytes().startswith(MAGIC[suffix])
        assert "the reliability diagram" in done.output
    done = CliRunner().invoke(main, [*arguments, "--figure", str(tmp_path / "a.gif")])
    assert done.exit_code == 2
    assert "neither in .svg nor .pdf nor .png" in done.output
