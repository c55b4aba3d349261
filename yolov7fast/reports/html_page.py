"""Pages and reports: Jinja2 templates to single-file HTML, and a report as data with its Markdown and HTML forms.

A template extends `base.html` and fills its blocks `heading`, `summary`, `nav` and `content`; `macros.html` has
sortable tables, charts and tiles. All values are escaped, and control characters are written out. The only script is
part of this package.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import jinja2
import numpy as np
from markupsafe import Markup, escape

from yolov7fast.core.text import printable
from yolov7fast.reports.charts import COLOURS, Chart

FOLDER = Path(__file__).parent / "templates"
SCRIPTS = ("tables.js", "charts.js", "live.js")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["percent"] = lambda value, digits=1: f"{value:.{digits}%}"
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["inline"] = inline
    environment.filters["breakable"] = lambda text: Markup(re.sub(r"([_/.-])", r"\1<wbr>", str(escape(_visible(text)))))
    environment.filters["colour"] = lambda index: COLOURS[int(index) % len(COLOURS)]
    return environment


@cache
def _text(name: str) -> Markup:
    """The text of a file of this folder."""
    return Markup((FOLDER / name).read_text(encoding="utf-8"))


def _visible(value: Any) -> Any:
    """Control characters and undecodable bytes as escapes; markup of templates is kept."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value, len(value))


def inline(text: str) -> Markup:
    """Escaped text with **bold** and `code`."""
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_visible(text))))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))


def render(template: str, **values: Any) -> str:
    """The page of a template of this folder with these values."""
    style, script = _text("style.css"), Markup("\n").join(map(_text, SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template(template).render(style=style, script=script, script_hash=digest, **values)


def data_url(image: np.ndarray, kind: str = "jpeg") -> str:
    """An image (h, w, 3) as a data URL: jpeg, or png for exact pixels."""
    _, data = cv2.imencode(f".{kind}", image, [cv2.IMWRITE_JPEG_QUALITY, 72] if kind == "jpeg" else [])
    return f"data:image/{kind};base64,{base64.b64encode(data.tobytes()).decode()}"


def box_values(box: Sequence[float], height: float, cls: int, **texts: Any) -> dict[str, Any]:
    """The values of a box in a template; box: xyxy in pixels of an image of that height."""
    left, top, right, bottom = box
    return {
        "x": round(left, 1),
        "y": round(top, 1),
        "w": round(max(right - left, 0.5), 1),
        "h": round(max(bottom - top, 0.5), 1),
        "text_y": round(top - 4 if top > 16 else min(top + 14, height - 2), 1),
        "colour": COLOURS[cls % len(COLOURS)],
        **texts,
    }


@dataclass(frozen=True)
class Cell:
    """A table cell; the winner of its row is set in bold."""

    text: str
    best: bool = False


@dataclass
class ReportTable:
    header: list[str]
    rows: list[Any]  # of lists of cells or text


@dataclass
class Section:
    """Blocks: a paragraph (with **bold** and `code` as in Markdown), bullets, a table, or charts."""

    title: str
    blocks: list[str | list[str] | ReportTable | list[Chart]] = field(default_factory=list)


@dataclass
class ComparisonReport:
    title: str
    sections: list[Section]


def to_markdown(report: ComparisonReport) -> str:
    """The report without its charts."""
    return "\n\n".join([f"# {report.title}", *map(section_markdown, report.sections)]) + "\n"


def section_markdown(section: Section) -> str:
    return "\n\n".join([f"## {section.title}", *filter(None, map(_markdown_block, section.blocks))])


def _markdown_block(block) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, ReportTable):
        lines = [[*map(_markdown_cell, block.header)], ["---"] * len(block.header)]
        lines += [[*map(_markdown_cell, row)] for row in block.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join(f"- {item}" for item in block if isinstance(item, str))


def _markdown_cell(cell: Cell | str) -> str:
    text = (cell.text if isinstance(cell, Cell) else cell).replace("|", "\\|").replace("\n", " ")
    return f"**{text}**" if isinstance(cell, Cell) and cell.best else text


def to_html(report: ComparisonReport) -> str:
    """One page: style, script and charts inside, without external files."""
    return render("report.html", title=report.title, sections=report.sections)
