"""Whether a run is resumed on the data it was begun with: checkpoints hold a fingerprint of images, labels and classes.

A fingerprint is made of what the data sets hold, not of paths and times: a data set that was moved or copied is the
same one. Pixels are not part of it.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.text import counted, printable

DIGEST_BYTES = 8  # of an image's labels
NAMED = 2  # files of a kind of change that a message names
REMEDY = "restore it, or add --allow-changed-data"
Fingerprint = dict[str, Any]  # what `fingerprint` makes: plain values, as a checkpoint holds them


class LabelledImages(Protocol):
    """labels: float32 (m, 5) of each image; segments: outlines of each image, perhaps none."""

    img_files: Sequence[str]
    labels: Sequence[np.ndarray]
    segments: Sequence[Sequence[np.ndarray]]


class Split(NamedTuple):
    """The images of a split, by their path below the folder that all share, each with a digest of its labels."""

    names: list[str]
    digests: list[bytes]


def fingerprint(sets: Mapping[str, LabelledImages], names: Sequence[str]) -> Fingerprint:
    """sets: the data sets of a run by their splits; names: of the classes."""
    splits = {}
    for split, dataset in sets.items():
        digests = b"".join(map(_digest, dataset.labels, dataset.segments))
        files = "\0".join(_below_shared_folder(dataset.img_files))
        splits[split] = {"files": files, "digests": torch.frombuffer(bytearray(digests), dtype=torch.uint8)}
    return {"classes": "\0".join(names), "splits": splits}


def changes(stored: Fingerprint, present: Fingerprint) -> str:
    """How the present data differs from that of a checkpoint, with counts and first files; nothing where it does not.

    A split that only one of them has is not compared: other processes than the first have no validation set.
    """
    found = []
    before, now = (value["classes"].split("\0") for value in (stored, present))
    if before != now:
        found.append(f"classes were {shown(before)} and are {shown(now)}")
    for name, split in present["splits"].items():
        if name in stored["splits"]:
            found += [f"{name}: {text}" for text in _changes_of(_split(stored["splits"][name]), _split(split))]
    return "; ".join(found)


def check_unchanged(stored: Any, present: Fingerprint, file: str) -> str:
    """The same for the entry of a checkpoint, which may hold anything. file: the checkpoint."""
    if stored is None:  # written before there were fingerprints
        return ""
    try:
        return changes(stored, present)
    except (TypeError, KeyError, ValueError, AttributeError, RuntimeError):
        raise UserError(f"{file}: its entry about the data set is damaged; resume from another checkpoint") from None


def _digest(labels: np.ndarray, outlines: Sequence[np.ndarray]) -> bytes:
    hasher = hashlib.blake2b(np.ascontiguousarray(labels).tobytes(), digest_size=DIGEST_BYTES)
    for outline in outlines:
        hasher.update(b"outline" + np.ascontiguousarray(outline).tobytes())
    return hasher.digest()


def _below_shared_folder(files: Sequence[str]) -> list[str]:
    """Their paths without the folders that all of them have in common."""
    if not files:
        return []
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files])
    return [os.path.abspath(path)[len(folder) :].lstrip(os.sep) for path in files]


def _split(stored: Mapping[str, Any]) -> Split:
    names = stored["files"].split("\0") if stored["files"] else []
    content = stored["digests"].numpy().tobytes()
    digests = [content[i : i + DIGEST_BYTES] for i in range(0, len(content), DIGEST_BYTES)]
    if len(digests) != len(names):
        raise ValueError("not the digests of these files")
    return Split(names, digests)


def _changes_of(before: Split, now: Split) -> list[str]:
    old, new = dict(zip(before.names, before.digests)), dict(zip(now.names, now.digests))
    kinds = {
        "with other labels": [name for name in now.names if name in old and old[name] != new[name]],
        "new": [name for name in now.names if name not in old],
        "gone": [name for name in before.names if name not in new],
    }
    return [_told(kind, files) for kind, files in kinds.items() if files]


def _told(kind: str, files: Sequence[str]) -> str:
    first = ", ".join(printable(name, 30) for name in files[:NAMED])
    return f"{counted(len(files), 'image')} {kind} ({first}{', ...' if len(files) > NAMED else ''})"
