"""Charts: scales, ticks, points that were not measured, and text that stays text."""

import json
import math
from xml.etree import ElementTree

import pytest

from yolov7fast.reports.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Line


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(f"<svg>{chart.inner_svg()}</svg>")


def points(chart: Chart) -> list[tuple[float, float]]:
    text = drawn(chart).find("polyline").get("points")
    return [tuple(map(float, pair.split(","))) for pair in text.split()]


def test_the_ends_of_a_line_lie_at_the_ends_of_the_axes():
    chart = Chart("A", "epoch", [Line("x", [1, 2, 3], [0.0, 1.0, 0.5])], low=0.0)
    first, middle, last = points(chart)
    assert first == (LEFT, HEIGHT - BOTTOM) and last[0] == WIDTH - RIGHT
    assert middle[0] == pytest.approx((LEFT + WIDTH - RIGHT) / 2) and TOP < middle[1] < TOP + 20


def test_what_was_not_measured_is_left_out():
    chart = Chart("A", "epoch", [Line("x", [0, 1, 2, 3], [1.0, math.nan, None, 2.0]), Line("y", [0], [math.inf])])
    assert json.loads(chart.data)["lines"] == [{"x": [0, 3], "y": [1, 2]}]
    assert chart.legend == [("x", "c0", "2")]
    assert not Chart("A", "epoch", [Line("x", [0], [math.nan])])


def test_long_lines_are_thinned_out_but_keep_their_ends():
    line = json.loads(Chart("A", "epoch", [Line("x", range(5000), range(5000))]).data)["lines"][0]
    assert len(line["x"]) == 400 and line["x"][0] == 0 and line["x"][-1] == 4999


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [3.0, 3.0], [-1e-9, 1e-9], [1e12, 2e12]])
def test_lines_without_height_or_of_any_size_are_drawn(values):
    chart = Chart("A", "epoch", [Line("x", range(len(values)), values)])
    drawn(chart)
    left, right, low, high = chart.limits
    assert left < right and low < high


def test_names_in_files_are_text():
    hostile = "</text><script>alert(1)</script>\x1b"
    chart = Chart(hostile, hostile, [Line(hostile, [0, 1], [0, 1])])
    assert not [e for e in drawn(chart).iter() if e.tag.endswith("script")]
