"""A validation split out of the training images: by a hash of their names, with duplicates on one side."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.data.near_duplicates import groups_of


class Split(NamedTuple):
    """Positions of the images of each side, and how many duplicates were kept together."""

    train: list[int]
    val: list[int]
    together: int  # images that have a duplicate


def name_hash(name: str) -> int:
    """A number that depends on a name alone, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest(), "big")


def split_by_hash(names: Sequence[str], fraction: float, pairs: np.ndarray) -> Split:
    """Images with the lowest hashes go to validation until it has `fraction` of all; pairs (p, 2) stay together.

    A group of duplicates counts by the name that sorts first, so that one more image moves hardly any other.
    """
    n = len(names)
    if n < 2:
        raise UserError(f"--val-fraction {fraction:g}: {n} image cannot be split; a data set needs at least 2")
    members: dict[int, list[int]] = defaultdict(list)
    for i, group in enumerate(groups_of(n, pairs).tolist()):
        members[group].append(i)
    ordered = sorted(members.values(), key=lambda group: name_hash(min(names[i] for i in group)))
    wanted = min(max(round(n * fraction), 1), n - 1)
    val: list[int] = []
    for group in ordered:
        if len(val) < wanted and len(val) + len(group) <= min(wanted * 1.5 + 1, n - 1):
            val += group
    if not val and len(ordered) > 1:  # all groups are large
        val = min(ordered, key=len)
    if not val:
        raise UserError(f"--val-fraction {fraction:g}: all {n} images are duplicates of each other: nothing to split")
    chosen = set(val)
    together = sum(len(group) for group in members.values() if len(group) > 1)
    return Split([i for i in range(n) if i not in chosen], sorted(chosen), together)
