"""Types of flags whose values are more than a number or a word.

Each takes the text of a command line or the value in a run file.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.files.settings_files import parse_yaml


class BadValue(argparse.ArgumentTypeError, ValueError):
    """Why a value does not fit. argparse shows the reason as it is; run files put their name before it."""


AUTO = "auto"


def count_or_auto(value: str | float) -> int | str:
    """A whole number, or `auto`: it is chosen for this machine."""
    if value == AUTO:
        return AUTO
    try:
        number = float(value)
        if isinstance(value, bool) or not number.is_integer():
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise BadValue(f"must be int, not {shown(value)}") from None
    return int(number)


count_or_auto.__name__ = "int"  # its name in messages


def mapping(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """A mapping of a run file as it is, or YAML in one line from the command line: '{num_queries: 50}'."""
    try:
        found = parse_yaml(value, "it") if isinstance(value, str) else value
    except UserError as error:
        raise BadValue(f"not YAML: {one_line(error, 200)}") from None
    if not isinstance(found, Mapping | None):
        raise BadValue(f"{shown(value)} is not a mapping such as '{{num_queries: 50}}'")
    return dict(found or {})


def file_or_mapping(value: str | Mapping[str, Any]) -> str | dict[str, Any]:
    """The name of a file, or in a run file its content."""
    if isinstance(value, list):
        raise BadValue(f"must name a file or be a mapping, not {shown(value)}")
    return dict(value) if isinstance(value, Mapping) else str(value)


def schedule_text(value: str | list[list[int]]) -> str:
    """'1:320,20:480' as it is; [[1, 320], [20, 480]] of a run file as such a text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(step, list) for step in value):
        raise BadValue("must be a list of [epoch, size] or [epoch, size, batch]")
    return ",".join(":".join(str(part) for part in step) for step in value)
