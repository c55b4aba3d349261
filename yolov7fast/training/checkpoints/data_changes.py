"""Detects whether a run is resumed on other data: checkpoints contain a fingerprint of images, labels and classes.

A fingerprint depends on the content of the data sets, not on paths and times: a data set may be moved or copied. Pixels
are not part of it.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.text import counted, printable

DIGEST_BYTES = 8  # size of the digest of an image's labels
NAMED = 2  # number of files that a message names for each kind of change
REMEDY = "restore it, or add --allow-changed-data"
Fingerprint = dict[str, Any]  # the result of `fingerprint`: plain values, as stored in a checkpoint


def fingerprint(sets: Mapping[str, Any], names: Sequence[str]) -> Fingerprint:
    """The image paths relative to their common folder, each with a digest of its labels, by split.

    sets: data sets with `img_files`, `labels` (float32 (m, 5) of each image) and `segments`; names: of the classes.
    """
    splits = {}
    for split, dataset in sets.items():
        digests = b"".join(map(_digest, dataset.labels, dataset.segments))
        files = "\0".join(_below_shared_folder(dataset.img_files))
        splits[split] = {"files": files, "digests": torch.frombuffer(bytearray(digests), dtype=torch.uint8)}
    return {"classes": "\0".join(names), "splits": splits}


def changes(stored: Fingerprint, present: Fingerprint) -> str:
    """How the current data differs from that of a checkpoint, with counts and first files; empty if it does not.

    A split that only one of them has is not compared: only the first process has a validation set.
    """
    found = []
    before, now = (value["classes"].split("\0") for value in (stored, present))
    if before != now:
        found.append(f"classes were {shown(before)} and are {shown(now)}")
    for name, split in present["splits"].items():
        if name in stored["splits"]:
            old, new = _digests(stored["splits"][name]), _digests(split)
            kinds = {
                "with other labels": [file for file in new if file in old and old[file] != new[file]],
                "new": [file for file in new if file not in old],
                "gone": [file for file in old if file not in new],
            }
            for kind, files in kinds.items():
                first = ", ".join(printable(file, 30) for file in files[:NAMED])
                more = ", ..." if len(files) > NAMED else ""
                found += [f"{name}: {counted(len(files), 'image')} {kind} ({first}{more})"] if files else []
    return "; ".join(found)


def check_unchanged(stored: Any, present: Fingerprint, file: str) -> str:
    """As `changes`, for the entry of a checkpoint, which may hold any value. file: the checkpoint."""
    if stored is None:  # written before there were fingerprints
        return ""
    try:
        return changes(stored, present)
    except (TypeError, KeyError, ValueError, AttributeError, RuntimeError):
        raise UserError(f"{file}: its fingerprint of the data set is damaged; resume from another checkpoint") from None


def _digest(labels: np.ndarray, outlines: Sequence[np.ndarray]) -> bytes:
    hasher = hashlib.blake2b(np.ascontiguousarray(labels).tobytes(), digest_size=DIGEST_BYTES)
    for outline in outlines:
        hasher.update(b"outline" + np.ascontiguousarray(outline).tobytes())
    return hasher.digest()


def _below_shared_folder(files: Sequence[str]) -> list[str]:
    """Their paths relative to their common folder."""
    if not files:
        return []
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files])
    return [os.path.abspath(path)[len(folder) :].lstrip(os.sep) for path in files]


def _digests(stored: Mapping[str, Any]) -> dict[str, bytes]:
    """The digest of each file's labels."""
    names = stored["files"].split("\0") if stored["files"] else []
    content = stored["digests"].numpy().tobytes()
    digests = [content[i : i + DIGEST_BYTES] for i in range(0, len(content), DIGEST_BYTES)]
    return dict(zip(names, digests, strict=True))
