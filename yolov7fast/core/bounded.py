"""Nested values from files, held to a size that whoever uses them can walk through, compare or write out.

Files can repeat a value by reference (YAML's aliases, a pickle's memo): 30 lists, each holding the one before it twice,
take a few hundred bytes and have 2^30 leaves. Nor may a value contain itself.
"""

from collections.abc import Callable
from typing import Any

from yolov7fast.core.errors import shown

MOST_CLASSES = 100_000  # of a data set or a network
LARGEST_INTEGER = 1 << 63


class Unbounded(ValueError):
    """Why a nested value cannot be used, as the end of a sentence that begins with its place."""


def count_values(
    value: Any, most: int, check: Callable[[Any], None] | None = None, counts: dict[int, int | None] | None = None
) -> int:
    """How many values it has with what is repeated written out each time; `Unbounded` if more than `most`.

    check: called once with every value and key. counts: of containers counted before, by id; None while under way.
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


def is_whole(value: Any, low: int, high: int) -> bool:
    """Whether it is a whole number within limits. `true` is none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: Any, low: float, high: float) -> bool:
    """Whether it is a number within limits, and so finite. `true` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def check_plain(value: Any) -> None:
    """Refuse what programs stumble over: integers beyond 64 bits, keys that are neither text nor whole numbers."""
    if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
        raise Unbounded(f"holds {shown(value)}, which is out of range: integers have at most 18 digits")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise Unbounded(f"has the key {shown(key)}, neither text nor a whole number; put it in quotes")
