"""A report as data, and its two written forms: Markdown, and one HTML page that needs nothing but itself."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field


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


@dataclass(frozen=True)
class Plot:
    name: str  # of its file
    title: str
    svg: str


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

STYLE = """
:root { color-scheme: light; --ink: #1d2433; --soft: #5b6478; --line: #dfe3ea; --mark: #e7f1fb; --link: #1f6fb2; }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Noto Sans", "Noto Sans CJK TC", sans-serif;
  color: var(--ink); background: #f6f7f9; overflow-wrap: break-word; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 64px; background: #fff; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 12px; }
h2 { font-size: 1.25rem; margin: 40px 0 10px; padding-top: 10px; border-top: 1px solid var(--line); }
nav { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 0.9rem; }
a { color: var(--link); }
.table { overflow-x: auto; margin: 12px 0; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; }
th { background: #f1f3f6; font-weight: 600; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
th:first-child { background: #f1f3f6; }
td.best { font-weight: 700; background: var(--mark); }
code { font-size: 0.9em; background: #f1f3f6; padding: 1px 4px; border-radius: 4px; }
li { margin: 6px 0; }
.plots { display: grid; gap: 16px; margin: 14px 0; }
.plots { grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); }
figure { margin: 0; }
figcaption { font-weight: 600; font-size: 0.95rem; margin-bottom: 2px; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif !important; }
@media (max-width: 600px) {
  main { padding: 16px 12px 48px; } h1 { font-size: 1.4rem; }
  th, td { padding: 5px 6px; white-space: normal; } table { font-size: 0.82rem; }
}
@media print { body { background: #fff; } .table { overflow: visible; } h2, figure, tr { break-inside: avoid; } }
"""


def to_html(report: Report) -> str:
    """One page: style and plots inside, no script, nothing fetched."""
    links = "".join(f'<a href="#s{i}">{_inline(s.title)}</a>' for i, s in enumerate(report.sections))
    body = []
    for i, section in enumerate(report.sections):
        blocks = "\n".join(_html_block(block) for block in section.blocks)
        body.append(f'<section id="s{i}"><h2>{_inline(section.title)}</h2>\n{blocks}\n</section>')
    title = html.escape(report.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f"<nav>{links}</nav>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _html_block(block) -> str:
    if isinstance(block, Text):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Bullets):
        return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Table):
        head = "".join(f"<th>{_breakable(html.escape(h))}</th>" for h in block.header)
        rows = "".join("<tr>" + "".join(_html_cell(cell) for cell in row) + "</tr>" for row in block.rows)
        return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    plots = [f"<figure><figcaption>{_inline(plot.title)}</figcaption>{plot.svg}</figure>" for plot in block]
    return '<div class="plots">' + "\n".join(plots) + "</div>"


def _html_cell(cell: Cell | str) -> str:
    if isinstance(cell, Cell) and cell.best:
        return f'<td class="best">{_inline(cell.text)}</td>'
    return f"<td>{_inline(cell.text if isinstance(cell, Cell) else cell)}</td>"


def _breakable(name: str) -> str:
    """A run's name that may be broken after its separators, so that a table fits a phone."""
    return re.sub(r"([_/.-])", r"\1<wbr>", name)


def _inline(text: str) -> str:
    """Escaped text with **bold** and `code`."""
    text = html.escape(text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
