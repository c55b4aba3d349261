"""The doctor's report as text: one table, as wide as the terminal."""

import shutil
import textwrap

from yolov7fast.core.text import printable
from yolov7fast.data.checks.examine import Report
from yolov7fast.data.checks.findings import Finding, Place
from yolov7fast.data.checks.set_checks import Figures

SHOWN_PLACES = 3
NARROWEST = 72


def as_text(report: Report, width: int | None = None) -> str:
    """All findings with their first places and remedies, then the figures."""
    width = max(width or shutil.get_terminal_size((110, 24)).columns, NARROWEST)
    head = f"{printable(report.path)}: {report.kind} ({printable(report.evidence)}): {report.summary}"
    lines = [
        *_wrapped(head, width),
        *(line for note in report.notes for line in _wrapped(printable(note), width, "  ")),
    ]
    lines.append("")
    if report.findings:
        lines.append(f"{'severity':<9}{'count':>15}  finding")
    for finding in report.findings:
        lines += _finding(finding, report.line_word, width)
    if not report.findings:
        lines.append("nothing odd was found")
    lines += ["", *_figures(report.figures, width)]
    return "\n".join(lines)


def _finding(finding: Finding, line_word: str, width: int) -> list[str]:
    lines = [f"{finding.severity:<9}{finding.counted:>15}  {finding.check}"]
    indent = " " * 26
    for place in finding.places[:SHOWN_PLACES]:
        lines += _wrapped(place_text(place, line_word), width, indent)
    if finding.count > SHOWN_PLACES:
        lines.append(f"{indent}... and {finding.count - min(SHOWN_PLACES, len(finding.places)):,} more")
    return lines + _wrapped(f"-> {finding.remedy}", width, indent)


def place_text(place: Place, line_word: str) -> str:
    """'labels/a.txt:3: class 9; ...': file, line (or annotation) and what is there."""
    where = printable(place.file, 400)
    if place.line:
        where += f":{place.line}" if line_word == "line" else f", {line_word} {place.line}"
    return f"{where}: {printable(place.text, 400)}" if place.text else where


def _figures(figures: Figures, width: int) -> list[str]:
    lines = []
    for entry in figures.splits:
        counted = f"{entry['labelled']:>9,} labelled {entry['objects']:>10,} objects"
        lines.append(f"{entry['name']:<6} {entry['images']:>9,} images {counted}")
    lines.append("")
    total = max(sum(sum(c["by_split"].values()) for c in figures.classes), 1)
    ordered = sorted(figures.classes, key=lambda c: -sum(c["by_split"].values()))
    for entry in ordered[:12]:
        n = sum(entry["by_split"].values())
        bar = "#" * round(30 * n / total)
        lines.append(f"{printable(entry['name'], 24):<24} {n:>10,} objects {n / total:>6.1%}  {bar}")
    if len(ordered) > 12:
        lines.append(f"... and {len(ordered) - 12} more classes")
    lines.append("")
    sizes = ", ".join(f"{_range(b)} px {b['count']:,}" for b in figures.sizes)
    lines += _wrapped(f"box sizes at {figures.img_size}: {sizes or 'no boxes'}", width)
    if figures.anchors_given:
        lines += _wrapped(f"boxes that an anchor reaches: {figures.reached:.2%}", width)
    if figures.anchors_found:
        text = f"anchors for this set reach {figures.reached_then:.2%}: {figures.anchors_found}"
        lines += _wrapped(text, width)
    densest = f"densest mosaic of 4 images {figures.mosaic4:,}, of 9 images {figures.mosaic9:,} objects"
    lines += _wrapped(f"objects an image: at most {figures.most_objects:,}; {densest}", width)
    return lines


def _range(entry: dict) -> str:
    return f"{entry['from']}-{entry['to']}" if entry["to"] else f"over {entry['from']}"


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
