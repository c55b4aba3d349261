"""A report as data, and its two written forms: Markdown, and one HTML page that needs nothing but itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from yolov7fast.reports.charts import Bars, Chart
from yolov7fast.reports.html_page import render

Plot = Chart | Bars


@dataclass(frozen=True)
class Cell:
    """A table cell; the winner of its row is set in bold."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    header: list[str]
    rows: Sequence[Sequence[Cell | str]]


@dataclass(frozen=True)
class Text:
    """A paragraph; **bold** and `code` as in Markdown."""

    text: str


@dataclass(frozen=True)
class Bullets:
    items: list[str]


@dataclass
class Section:
    title: str
    blocks: list[Table | Text | Bullets | list[Plot]] = field(default_factory=list)


@dataclass
class Report:
    title: str
    sections: list[Section]


# --- Markdown ---------------------------------------------------------------------------------------------------------


def to_markdown(report: Report, plot_folder: str) -> str:
    """Plots are linked as `plot_folder`/name.svg."""
    parts = [f"# {report.title}"]
    for section in report.sections:
        parts.append(f"## {section.title}")
        parts += [_markdown_block(block, plot_folder) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _markdown_block(block, plot_folder: str) -> str:
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Bullets):
        return "\n".join(f"- {item}" for item in block.items)
    if isinstance(block, Table):
        rows = [[_markdown_cell(cell) for cell in row] for row in block.rows]
        lines = [[_escape_pipe(h) for h in block.header], ["---"] * len(block.header), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join(f"![{plot.title}]({plot_folder}/{plot.name}.svg)" for plot in block)


def _markdown_cell(cell: Cell | str) -> str:
    text = _escape_pipe(cell.text if isinstance(cell, Cell) else cell)
    return f"**{text}**" if isinstance(cell, Cell) and cell.best else text


def _escape_pipe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# --- HTML -------------------------------------------------------------------------------------------------------------


def to_html(report: Report) -> str:
    """One page: style, script and charts inside, nothing fetched."""
    return render("report.html", title=report.title, sections=report.sections, kind_of=_kind)


def _kind(block: Any) -> str:
    """What the template calls a block, a plot or a cell."""
    return type(block).__name__.lower()
