"""The charts of pages: all points in the picture, round ticks, colours that stand out."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distilcal.report.charts.marks import COLOURS
from distilcal.report.charts.plot import WIDTH
from distilcal.report.charts.scales import axis_of
from distilcal.report.charts.study import CHARTS, draw

pytest.importorskip("jinja2")

from study_results import POINTS, example_results, figure


@pytest.fixture
def results():
    return example_results()


@pytest.fixture
def folder(results, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return tmp_path


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


def test_bars_stand_in_named_groups_side_by_side():
    points = [[0, 0.2, 0.1, 0.3], [1, None], [2, 0.1]]
    root = ElementTree.fromstring(draw(figure("bars", points, groups=["SNLI", "QQP", "SWAG"]), "k"))
    assert {"SNLI", "QQP", "SWAG"} <= {t.text for t in root.iter("text")}
    bars = [rect for rect in root.iter("rect") if rect.find("title") is not None]
    places = [tuple(float(bar.get(side)) for side in ("x", "y", "width", "height")) for bar in bars]
    assert [bar.find("title").text for bar in bars][:2] == ["ERM, SNLI: ECE 0.2 [0.1, 0.3]", "ERM, SWAG: ECE 0.1"]
    first, _, second, _ = places  # of two series in the same group
    assert first[0] + first[2] == pytest.approx(second[0], abs=0.02)
    assert len({round(y + height, 1) for _, y, _, height in places}) == 1, "all bars begin at 0"
    assert places[0][3] == pytest.approx(2 * places[1][3], rel=0.01)


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
