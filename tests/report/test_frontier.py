"""The page and the picture of what a search within a budget tried."""

import pytest

from distilcal.report.frontier import FRONTS, draw_frontier, frontier_chart, render_frontier, write_frontier


def point(name, milliseconds, nll, *, front=True, epochs=3, share=1.0, chosen=False):
    return {
        "name": name,
        "description": f"what {name} is",
        "milliseconds": milliseconds,
        "parameters": int(1e6 * milliseconds),
        "epochs": epochs,
        "share": share,
        "chosen": chosen,
        "dev": {"calibrated_nll": nll, "accuracy": 1 - nll, "calibrated_ece": nll / 10},
        "fronts": {f"{cost}/{figure}": front for cost, figure in FRONTS},
    }


POINTS = [
    point("kd", 2.0, 0.40, chosen=True),
    point("<b>small</b>", 1.0, 0.45, share=0.25, epochs=1),
    point("slow", 2.0, 0.50, front=False),
    point("teacher", 4.0, 0.35, epochs=None),
]
TRIAL = {"dev": {"calibrated_nll": 0.4}, "seconds": 12.4}
FACTS = {
    "reasons": ["Chosen on dev: kd.", "It & its control."],
    "points": POINTS,
    "rungs": [{"steps": 1200, "trials": {"kd": TRIAL, "slow": None}}],
}


def test_models_are_grouped_and_the_frontier_goes_from_cheap_to_dear():
    chart = frontier_chart(POINTS, "parameters", "calibrated_nll")
    assert [series["name"] for series in chart["series"]] == ["chosen", "frontier", "others", "teacher"]
    assert chart["front"] == [[1.0, 0.45], [2.0, 0.40], [4.0, 0.35]]  # in millions
    assert chart["series"][2]["labels"] == ["slow"]


def test_the_chart_has_a_mark_for_each_model_and_a_line():
    svg = draw_frontier(frontier_chart(POINTS, "milliseconds", "accuracy"), "f")
    assert svg.count("milliseconds per example") >= len(POINTS)  # a tooltip each
    assert "<polyline" in svg
    assert "<polyline" not in draw_frontier(frontier_chart(POINTS[:1], "milliseconds", "accuracy"), "f")


def test_the_page_shows_everything_escaped_and_loads_nothing():
    page = render_frontier(FACTS)
    assert "<b>small</b>" not in page
    assert "&lt;b&gt;small&lt;/b&gt;" in page
    assert "It &amp; its control." in page
    assert "slow cut short" in page
    assert "kd 0.400" in page
    assert "1,200" in page
    assert page.count("<svg") == len(FRONTS)
    assert "http" not in page.replace("http-equiv", "")


def test_the_picture_is_written_where_matplotlib_is_installed(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    write_frontier(FACTS, tmp_path)
    assert (tmp_path / "frontier.svg").read_text().startswith("<?xml")
    assert (tmp_path / "frontier.html").exists()


def test_without_matplotlib_there_is_the_page(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    write_frontier(FACTS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["frontier.html"]
