"""Numbers of models in the charts of a run: none covers another one or a point, also where models coincide."""

from itertools import combinations

import numpy as np
import pytest

from distilcal.report.evaluations.page import CHART
from distilcal.report.runs.charts import DIGIT_WIDTH, LABEL_HEIGHT, POINT_RADIUS, place_line_numbers, place_numbers


def hidden(point, other):
    """Whether the number of one point covers that of another."""
    width = DIGIT_WIDTH * max(len(str(point["number"])), len(str(other["number"])))
    across, down = abs(point["label_x"] - other["label_x"]), abs(point["label_y"] - other["label_y"])
    return across < width - 0.01 and down < LABEL_HEIGHT - 0.01


def points_at(places):
    return [{"number": i, "x": CHART.x(x), "y": CHART.y(y)} for i, (x, y) in enumerate(places, start=1)]


@pytest.mark.parametrize(
    "places",
    [
        [(0.5, 0.5)],
        [(0.5, 0.5)] * 8,
        [(0.3 + 0.02 * i, 0.5) for i in range(6)],
        [(0.0, 0.0), (0.0, 0.0), (1.0, 1.0), (1.0, 1.0)],
        np.random.default_rng(0).uniform(0.2, 0.8, (6, 2)).tolist(),
    ],
)
def test_numbers_of_points_cover_nothing(places):
    points = points_at(places)
    place_numbers(points)
    assert not any(hidden(a, b) for a, b in combinations(points, 2))
    for label in points:
        assert CHART.x(0) <= label["label_x"] <= CHART.x(1) - DIGIT_WIDTH
        assert CHART.y(1) <= label["label_y"] - LABEL_HEIGHT <= label["label_y"] <= CHART.y(0)
        for point in points:
            left_or_right = not label["label_x"] - POINT_RADIUS < point["x"] < label["label_x"] + DIGIT_WIDTH + POINT_RADIUS
            above_or_below = not label["label_y"] - LABEL_HEIGHT - POINT_RADIUS < point["y"] < label["label_y"] + POINT_RADIUS
            assert left_or_right or above_or_below


def test_a_number_without_neighbours_is_at_the_upper_right():
    points = points_at([(0.5, 0.5)])
    place_numbers(points)
    assert (points[0]["label_x"], points[0]["label_y"]) == pytest.approx((CHART.x(0.5) + 7, CHART.y(0.5) - 5))


def test_a_number_without_any_room_is_still_drawn():
    points = points_at([(0.5, 0.5)] * 60)
    place_numbers(points)
    assert all("label_x" in point for point in points)


def test_numbers_of_lines_that_end_together_stand_below_each_other():
    ends = [100.0, 101.0, 100.5, 160.0]
    lines = [{"number": i, "dots": [{"x": 200.0, "y": y}]} for i, y in enumerate(ends, start=1)]
    place_line_numbers(lines)
    heights = sorted(line["label_y"] for line in lines)
    assert min(np.diff(heights)) >= LABEL_HEIGHT
    assert lines[0]["label_y"] == 104.0
    assert lines[3]["label_y"] == 164.0
