"""What mkdocs does while it builds the site: the table of flags, and pages that lie at the root of the checkout.

`docs/flags.md` holds a line `<!-- flags: COMMAND -->` for each command; here it becomes tables of that command's flags,
made from the rows that the parser is made from. README.md and its kind stay where people look for them on a code host
and become pages of the site; links between the two places are turned round.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from yolov7fast.cli.flags import Flag, flags_of
from yolov7fast.cli.flags.row import GROUPS

ROOT = Path(__file__).resolve().parent.parent
FROM_ROOT = ("README.zh-TW.md", "VAST_SETUP.md", "VAST_SETUP.zh-TW.md", "CONTRIBUTING.md", "CHANGELOG.md", "CLAUDE.md")
FLAGS = re.compile(r"^<!-- flags: ([\w-]+)(?: (\w+))? -->$", re.M)


def on_files(files: Files, config: Any) -> Files:
    for name in FROM_ROOT:
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, name, content=text.replace("](README.md", "](index.md")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    markdown = re.sub(rf"\]\(\.\./({'|'.join(map(re.escape, FROM_ROOT))})", r"](\1", markdown)
    return FLAGS.sub(lambda found: tables(rows_of(found[1], found[2] or "yolo")), markdown)


def rows_of(command: str, family: str) -> list[Flag]:
    if command == "export":
        from yolov7fast.cli.flags.export import ROWS

        return list(ROWS)
    if command == "trials":
        from yolov7fast.search.options import parser

        return list(parser().flags.values())
    return list(flags_of(command, family).values())


def tables(rows: Iterable[Flag]) -> str:
    """A table for each group, in the order of --help."""
    groups: dict[str, list[Flag]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    order = [*(group for group in GROUPS if group in groups), *(group for group in groups if group not in GROUPS)]
    return "\n".join(f"### {group.capitalize() or 'Flags'}\n\n{table(groups[group])}\n" for group in order)


def table(rows: list[Flag]) -> str:
    lines = ["| flag | default | what it does |", "| --- | --- | --- |"]
    for row in rows:
        names = " ".join(f"`{name}`{{ .flag }}" for name in (row.name, *row.aliases))
        new = "" if row.upstream else " **new**{ .new title='not a flag of upstream' }"
        lines.append(f"| {names}{new} | {default_of(row)} | {escaped(row.help)}{limits_of(row)} |")
    return "\n".join(lines)


def default_of(row: Flag) -> str:
    if row.is_switch:
        return "off"
    if row.default in (None, "", [], {}):
        return ""
    value = " ".join(map(str, row.default)) if isinstance(row.default, (list, tuple)) else str(row.default)
    return f"`{escaped(value)}`"


def limits_of(row: Flag) -> str:
    if row.choices:
        return f"; one of {', '.join(f'`{choice}`' for choice in row.choices)}"
    ends = [f"{word} {end:g}" for word, end in (("at least", row.low), ("at most", row.high)) if end is not None]
    return f" ({', '.join(ends)})" if ends else ""


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
