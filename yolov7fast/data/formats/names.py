"""File names that do not collide and hold no odd characters."""

import os
from collections import Counter
from collections.abc import Sequence


def safe_name(name: str) -> str:
    """A file name without separators and control characters; other letters stay."""
    cleaned = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "_" for c in os.path.basename(name))
    cleaned = cleaned.encode(errors="replace").decode().strip()
    return cleaned if cleaned.strip(".") else "unnamed"


def unique_names(names: Sequence[str]) -> list[str]:
    """Safe names of which no two share a stem, upper and lower case being one: a label file belongs to one image.

    The first of equal names keeps it; a later one gets a number behind its stem.
    """
    safe = [safe_name(name) for name in names]
    taken = Counter(_stem(name) for name in safe)
    used: set[str] = set()
    result = []
    for name in safe:
        stem, suffix = os.path.splitext(name)
        candidate, number = name, 1
        while _stem(candidate) in used or (number > 1 and _stem(candidate) in taken):
            number += 1
            candidate = f"{stem}_{number}{suffix}"
        used.add(_stem(candidate))
        result.append(candidate)
    return result


def _stem(name: str) -> str:
    return os.path.splitext(name)[0].casefold()
