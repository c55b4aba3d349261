"""YAML and JSON files of settings, with errors that name the file and, if known, the line; and checks of their values.

The values are bounded, so that callers can traverse, compare or write them: no value contains itself, references
(YAML's aliases, a pickle's memo) do not multiply without limit, integers fit 64 bits, keys are text or whole numbers.
Large annotation files have their own reader in `data.formats`.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.text import printable

log = logging.getLogger(__name__)
MOST_BYTES = 1 << 24  # of a file
MOST_VALUES = 1 << 20  # of a file, with each alias counted as a copy
MOST_MERGED = 10_000  # entries that merge keys add to one mapping
MOST_CLASSES = 100_000  # of a data set or a network
LARGEST_INTEGER = 1 << 63


class Unbounded(ValueError):
    """Why a nested value cannot be used: the end of a sentence that begins with the name of its file."""


def read_yaml(path: str | Path, what: str = "", remedy: str = "") -> Any:
    """The content of a YAML file. what: its kind, for messages; remedy: what to do if the file cannot be read."""
    name = f"{what} {printable(path, 300)}".strip()
    return parse_yaml(_read_bytes(path, name, remedy and f"; {remedy}"), name, str(path))


def read_json(path: str | Path, remedy: str = "") -> Any:
    """The content of a JSON file. remedy: what to do if it cannot be read."""
    name, end = printable(path, 300), remedy and f"; {remedy}"
    content = _read_bytes(path, name, end)
    try:
        value = json.loads(content.decode("utf-8-sig"))
        count_values(value, MOST_VALUES, check_plain)
        return value
    except Unbounded as error:
        raise UserError(f"{name} {error}{end}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{name}, line {error.lineno}: not valid JSON: {one_line(error, 100)}{end}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not valid JSON in UTF-8: {one_line(error, 100)}{end}") from None


def _read_bytes(path: str | Path, name: str, end: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise UserError(f"{name} cannot be read ({getattr(error, 'strerror', None) or error}){end}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{name} has more than {MOST_BYTES >> 20} MB, so it is not a settings file{end}")
    return content


def parse_yaml(content: bytes | str, name: str, origin: str = "") -> Any:
    """The content of YAML text. name: its name in error messages; origin: its name in warnings about a line."""
    try:
        loader = _Loader(content.decode() if isinstance(content, bytes) else content)
        loader.name = origin or name
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
        count_values(value, MOST_VALUES, check_plain)
        return value
    except Unbounded as error:
        raise UserError(f"{name} {error}") from None
    except Exception as error:  # the parser's errors, and those of its constructors, such as KeyError and IndexError
        reason = (
            str(error)
            if isinstance(error, yaml.YAMLError | ValueError)
            else "a value does not fit its tag, or recursion is too deep"
        )
        remedy = "; use spaces instead of tabs" if r"'\t' that cannot start" in reason else ""
        reason = printable(" ".join(reason.split()), 300)
        raise UserError(f"{name} is not valid YAML in UTF-8: {reason}{remedy}") from None


class _Loader(yaml.SafeLoader):
    """Warns of duplicate keys, which YAML forbids and PyYAML accepts: the last one counts."""

    def construct_mapping(self, node, deep=False):
        given = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and given.setdefault(key.value, key) is not key:
                where = f"{printable(self.name, 300)}, line {key.start_mark.line + 1}"
                log.warning("%s: `%s` a second time; this one counts", where, printable(key.value, 80))
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node):
        """Merge keys (<<) copy entries: a chain of them could double their number with every line."""
        super().flatten_mapping(node)
        if len(node.value) > MOST_MERGED:
            raise Unbounded(
                f"has merge keys that give more than {MOST_MERGED:,} entries (line {node.start_mark.line + 1})"
            )


def count_values(
    value: Any, most: int, check: Callable[[Any], None] | None = None, counts: dict[int, int | None] | None = None
) -> int:
    """The number of values in a nested value, with each reference counted as a copy; `Unbounded` if above `most`.

    check: called once with every value and key. counts: of containers by id, None while one is being counted.
    """
    counts = {} if counts is None else counts
    if check is not None:
        check(value)
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return 1
    if id(value) in counts:
        known = counts[id(value)]
        if known is None:
            raise Unbounded("holds a value that contains itself")
        return known
    counts[id(value)] = None
    if isinstance(value, dict) and check is not None:
        for key in value:
            check(key)
    total = 1
    for item in value.values() if isinstance(value, dict) else value:
        total += count_values(item, most, check, counts)
        if total > most:
            raise Unbounded(f"has more than {most:,} values once what it repeats is written out")
    counts[id(value)] = total
    return total


def check_plain(value: Any) -> None:
    """Raise `Unbounded` for integers beyond 64 bits and keys that are neither text nor whole numbers."""
    if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
        raise Unbounded(f"holds {shown(value)}, which is out of range: integers have at most 18 digits")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise Unbounded(f"has the key {shown(key)}, neither text nor a whole number; put it in quotes")


def is_number(value: Any, low: float, high: float) -> bool:
    """Whether it is a number within limits, and so finite. Booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def is_whole(value: Any, low: int, high: int) -> bool:
    """Whether it is a whole number within limits. Booleans are not numbers."""
    return isinstance(value, int) and is_number(value, low, high)
