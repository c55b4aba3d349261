"""Line charts as SVG for a page, whose script shows their values.

Coordinates refer to a box of WIDTH x HEIGHT, which a page scales to its column. Colours are the classes c0 to c7 of
the style sheet, which has a light and a dark value for each; a line beyond the eighth is dashed.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import NamedTuple

from yolov7fast.core.text import printable

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 10, 40  # margins around the plot
MAX_POINTS = 400  # points of a line: more are not visible at this width
MAX_LINES = 24
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a66f00", "#2f8fc9", "#8c564b", "#6b6b6b")


class Line(NamedTuple):
    """Values of y over ascending x; None and values that are not finite: not measured."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """Lines over one axis; limits of y that are None are computed from the values."""

    title: str
    xlabel: str
    lines: Sequence[Line]
    low: float | None = None
    high: float | None = None
    ends: bool = True  # whether the legend shows last values

    @cached_property
    def drawn(self) -> list[Line]:
        return [line for line in map(_measured, self.lines) if line.x][:MAX_LINES]

    def __bool__(self) -> bool:
        return bool(self.drawn)

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """(name, classes of its colour, last value) of each line."""
        return [(line.name, style_of(i), short(line.y[-1]) if self.ends else "") for i, line in enumerate(self.drawn)]

    @property
    def limits(self) -> tuple[float, float, float, float]:
        """Least and greatest x, least and greatest y."""
        xs, ys = [x for line in self.drawn for x in line.x], [y for line in self.drawn for y in line.y]
        low = min(ys) if self.low is None else self.low
        high = max(max(ys) if self.high is None else self.high, low)
        margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
        left, right = min(xs), max(xs)
        if left == right:
            left, right = left - 0.5, right + 0.5
        return left, right, low if self.low is not None else low - margin, high + margin

    @property
    def data(self) -> str:
        """Limits and the points of each line as JSON, for the script of a page."""
        lines = [{axis: [float(f"{v:.5g}") for v in getattr(line, axis)] for axis in "xy"} for line in self.drawn]
        box = (LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
        return json.dumps({"box": box, "limits": self.limits, "lines": lines}, separators=(",", ":"))

    def inner_svg(self) -> str:
        """Axes and lines, without the element around them."""
        left, right, low, high = self.limits
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

        def across(x: float) -> float:
            return LEFT + (x - left) / (right - left) * width

        def down(y: float) -> float:
            return TOP + (high - y) / (high - low) * height

        parts = []
        for value in ticks(low, high, 5):
            y = f"{down(value):.1f}"
            parts.append(f'<line class="frame" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{down(value) + 4.5:.1f}" text-anchor="end">{short(value)}</text>')
        for value in ticks(left, right, 7, whole=self.xlabel == "epoch"):
            place = f'x="{across(value):.1f}" y="{HEIGHT - BOTTOM + 18}"'
            parts.append(f'<text {place} text-anchor="middle">{short(value)}</text>')
        middle = LEFT + width / 2
        parts.append(
            f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(printable(self.xlabel, 60))}</text>'
        )
        for i, line in enumerate(self.drawn):
            points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in zip(line.x, line.y))
            if len(line.x) > 1:
                parts.append(f'<polyline class="line {style_of(i)}" points="{points}"/>')
            if len(line.x) <= 12:
                dots = (f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3"/>' for x, y in zip(line.x, line.y))
                parts.append(f'<g class="{style_of(i)}">{"".join(dots)}</g>')
        return "".join(parts)


def style_of(index: int) -> str:
    """Classes of the line with this number."""
    return f"c{index % len(COLOURS)}" + (f" dash{index // len(COLOURS)}" if index >= len(COLOURS) else "")


def ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """About `count` round values from low to high."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= count)
    step = max(round(step), 1) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number for an axis or a legend: four significant digits."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    if 1e-4 <= abs(value) < 1e6:
        text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
    return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e")


def _measured(line: Line) -> Line:
    """The measured points, evenly reduced if there are too many; the first and the last are kept."""
    points = [(float(x), float(y)) for x, y in zip(line.x, line.y) if y is not None and math.isfinite(y)]
    if len(points) > MAX_POINTS:
        stride = (len(points) - 1) / (MAX_POINTS - 1)
        points = [points[round(i * stride)] for i in range(MAX_POINTS)]
    return Line(line.name, [x for x, _ in points], [y for _, y in points])
