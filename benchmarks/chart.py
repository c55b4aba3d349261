"""The chart of an iteration: recorded stage times of upstream, and measured losses, as an SVG of plain shapes."""

from collections.abc import Iterable
from typing import NamedTuple

WIDTH, LEFT, RIGHT, BAR, GAP = 820, 190, 70, 26, 12
COLOURS = {"forward": "#4c78a8", "loss": "#e45756", "backward": "#72b7b2", "other": "#bab0ac"}
LOSS = "ComputeLossOTA, forward + backward"


class Row(NamedTuple):
    label: str
    parts: dict[str, float]  # milliseconds
    note: str = ""


class Panel(NamedTuple):
    title: str
    rows: list[Row]


def recorded_panel(recorded: dict) -> Panel:
    """Stages of upstream's iteration; `other` is what they leave of the total: waiting for data, the optimizer."""
    rows = []
    for name, stages in recorded["iteration_ms"].items():
        parts = {stage: stages[stage] for stage in ("forward", "loss", "backward")}
        rows.append(Row(f"upstream, {name} loss", parts | {"other": stages["total"] - sum(parts.values())}))
    return Panel("Recorded by a user: upstream on an RTX 5090, yolov7-tiny, 320 px, batch 64 (ms)", rows)


def measured_panel(reference: dict) -> Panel | None:
    """Both losses, in turn on one CPU core. Not the whole step: there the network decides."""
    found = next((row for row in reference["rows"] if row["what"] == LOSS and "error" not in row), None)
    if found is None:
        return None
    theirs, ours = found["upstream"] * 1e3, found["overlay"] * 1e3
    rows = [Row("upstream, OTA loss", {"loss": theirs}), Row("here, OTA loss", {"loss": ours}, f"{theirs / ours:.1f}x")]
    return Panel("Measured: the loss with its backward pass on one CPU core, 320 px, batch 64 (ms)", rows)


def iteration(recorded: dict, reference: dict | None) -> str:
    """The SVG. recorded: results/recorded.json; reference: results/reference.json, if it was measured."""
    panels = [recorded_panel(recorded), *([measured_panel(reference)] if reference else [])]
    return "\n".join(svg(panel for panel in panels if panel)) + "\n"


def svg(panels: Iterable[Panel]) -> list[str]:
    body, y = [], 14
    for panel in panels:
        body.append(text(10, y + 12, panel.title, weight="600"))
        y += 26
        longest = max(sum(row.parts.values()) for row in panel.rows)
        scale = (WIDTH - LEFT - RIGHT) / longest
        for row in panel.rows:
            body += bar(row, y, scale)
            y += BAR + GAP
        y += 8
    for number, name in enumerate(COLOURS):
        x = LEFT + number * 110
        body.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[name]}"/>')
        body.append(text(x + 18, y + 11, name))
    y += 26
    style = "font-family='system-ui,sans-serif' font-size='13'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {y}' width='{WIDTH}' height='{y}' {style}>"
    return [head, f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>', *body, "</svg>"]


def bar(row: Row, y: int, scale: float) -> list[str]:
    shapes, x = [text(LEFT - 8, y + 18, row.label, anchor="end")], float(LEFT)
    for name, value in row.parts.items():
        width = value * scale
        shapes.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[name]}"/>')
        if width > 40:
            shapes.append(text(x + width / 2, y + 18, f"{value:.0f}", anchor="middle", fill="#ffffff"))
        x += width
    total = f"{sum(row.parts.values()):.0f}" + (f" ({row.note})" if row.note else "")
    return [*shapes, text(x + 6, y + 18, total)]


def text(x: float, y: float, words: str, anchor: str = "start", fill: str = "#222222", weight: str = "400") -> str:
    place = f'x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}"'
    return f"<text {place}>{words}</text>"
