"""Write the tables of docs/flags.md from the table of flags: `python -m yolov7fast.cli.flags`.

The page marks what is generated: `<!-- flags: COMMAND [FAMILY] -->` to `<!-- /flags -->`.
"""

import re
from collections.abc import Iterable

from yolov7fast.cli.flags import Flag, flags_of
from yolov7fast.cli.flags.export import ROWS as EXPORT
from yolov7fast.cli.flags.row import GROUPS
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.files.paths import ROOT

PAGE = ROOT / "docs" / "flags.md"
MARKED = re.compile(r"^(<!-- flags: ([\w-]+)(?: (\w+))? -->\n).*?^(<!-- /flags -->)$", re.M | re.S)


def filled(text: str) -> str:
    """The page with its tables as they are now."""
    return MARKED.sub(lambda m: f"{m[1]}\n{tables(rows_of(m[2], m[3] or 'yolo'))}\n{m[4]}", text)


def rows_of(command: str, family: str) -> list[Flag]:
    if command == "export":
        return list(EXPORT)
    if command == "trials":
        from yolov7fast.search.trial_options import FLAGS

        return FLAGS
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
        names = " ".join(f"`{name}`" for name in (row.name, *row.aliases))
        new = "" if row.upstream else " **new**"
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


if __name__ == "__main__":
    write_atomically(PAGE, filled(PAGE.read_text(encoding="utf-8")))
