"""A YAML file as it stands, or an error that names the file, and the line where the reader knows it.

What comes back is bounded, so that whoever uses it may walk through it, compare it or write it out: no value contains
itself, aliases do not multiply without end, integers fit 64 bits, keys are text or whole numbers.
"""

import logging
from pathlib import Path
from typing import Any

import yaml

from yolov7fast.core.bounded import Unbounded, check_plain, count_values
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.text import printable

log = logging.getLogger(__name__)
MOST_BYTES = 1 << 24  # of a file
MOST_VALUES = 1 << 20  # of a file, once its aliases are written out
MOST_MERGED = 10_000  # entries that merge keys give to one mapping


def read_yaml(path: str | Path, what: str = "", remedy: str = "") -> Any:
    """What the file holds. what: its kind, for messages; remedy: what to do if there is no such file."""
    name = f"{what} {printable(path, 300)}".strip()
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{name} cannot be read ({reason}){remedy and f'; {remedy}'}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{name} has more than {MOST_BYTES >> 20} MB, so it is no file of settings")
    return parse_yaml(content, name, str(path))


def parse_yaml(content: bytes | str, name: str, origin: str = "") -> Any:
    """What YAML text holds. name: how messages call it; origin: how warnings about a line call it."""
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
    except Exception as error:  # the parser's own errors, and what its constructors stumble over: KeyError, IndexError
        reason = str(error) if isinstance(error, yaml.YAMLError | ValueError) else f"{type(error).__name__} {error}"
        remedy = "; use spaces instead of tabs" if r"'\t' that cannot start" in reason else ""
        reason = printable(" ".join(reason.split()), 300)
        raise UserError(f"{name} is not valid YAML in UTF-8: {reason}{remedy}") from None


class _Loader(yaml.SafeLoader):
    """Warns of keys that are given twice, which YAML forbids and its readers let pass: the last one counts."""

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

    def construct_object(self, node, deep=False):
        """PyYAML's constructors fail in ways of their own at a tag that does not fit its value, such as `!!int ''`."""
        try:
            return super().construct_object(node, deep)
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(node.value)} is no {kind}", node.start_mark
            ) from error
