"""What tuning found: a table, and a run file for --config."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from yolov7fast.tuning.search import Row
from yolov7fast.tuning.waiting import Waiting


def setting_text(setting: Mapping[str, Any]) -> str:
    """As flags: `--workers 2`, `--channels-last`."""
    return " ".join(
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}") for name, value in setting.items()
    )


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'question':18}{'setting':28}{'speed':>8}  {'results':20}"]
    for row in rows:
        speed = f"{row.speedup:.2f}x" if row.speedup else "-"
        start = f", {row.cost:.0f} s to start" if row.cost >= 1 else ""
        note = "chosen" if row.chosen else row.note
        lines.append(f"{row.dimension:18}{setting_text(row.setting):28}{speed:>8}  {row.effect.value:20}{note}{start}")
    return "\n".join(lines)


def waiting_table(found: Waiting) -> str:
    lines = [f"{'threads that wait':36}{'ms an image':>12}"]
    return "\n".join(lines + [f"{name:36}{seconds * 1e3:12.2f}" for name, seconds in found.seconds.items()])


def run_file(chosen: Mapping[str, Any], about: str) -> str:
    """YAML for --config. about: what was measured, one line."""
    head = f"# Fastest flags of {platform.node() or 'this machine'}, by `yolov7fast tune`: {about}\n"
    body = yaml.safe_dump(dict(chosen), sort_keys=True) if chosen else "{}  # the defaults are the fastest\n"
    return head + body
