"""The text of a YOLO label file, read line by line: what is an object becomes one, what is not becomes a fault.

`data.labels` reads the same files for training, where one bad line costs the whole image, as upstream does it. Here
nothing is lost: the doctor names the lines, and conversions keep the good ones. Files of boxes without a fault, which
nearly all are, are converted to numbers together: for ten thousand files of five lines that is most of the time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from yolov7fast.data.formats.samples import Fault
from yolov7fast.data.labels import LAST_CLASS, POLYGON_TOKENS, many_objects_fault

BOX_TOKENS = 5


class LabelText(NamedTuple):
    """The m objects of a label file, in fractions of the image."""

    classes: np.ndarray  # int64 (m,)
    boxes: np.ndarray  # float64 (m, 4) left, top, right, bottom
    rings: list[list[np.ndarray]]  # of each object; empty if all are boxes
    lines: np.ndarray  # int64 (m,), 1-based
    faults: list[Fault]


def parse_label_texts(texts: Sequence[str], files: Sequence[str]) -> list[LabelText]:
    """Objects and faults of label files' texts; `files` name them in the faults. The arrays may not be written to."""
    rows = [[line.split() for line in text.splitlines()] for text in texts]
    many = {i: fault for i, own in enumerate(rows) if (fault := many_objects_fault(len(own)))}
    boxes = [i for i, own in enumerate(rows) if own and i not in many and all(len(row) == BOX_TOKENS for row in own)]
    found = _plain_files(rows, boxes)
    for i, fault in many.items():
        found[i] = _line_by_line([], files[i])._replace(faults=[Fault("too many objects", files[i], 0, fault)])
    return [found[i] if i in found else _line_by_line(own, file) for i, (own, file) in enumerate(zip(rows, files))]


def _plain_files(rows: list[list[list[str]]], which: list[int]) -> dict[int, LabelText]:
    """The files among `which`, all of rows of 5 words, whose rows are finite numbers with whole classes in range."""
    if not which:
        return {}
    try:
        numbers = [float(word) for i in which for row in rows[i] for word in row]
    except ValueError:  # in one of them
        each = [_plain_files(rows, [i]) for i in which] if len(which) > 1 else []
        return {i: parsed for found in each for i, parsed in found.items()}
    values = np.array(numbers).reshape(-1, BOX_TOKENS)
    first = values[:, 0]
    good = np.isfinite(values).all(1) & (first >= 0) & (first <= LAST_CLASS)
    good[good] = first[good] % 1 == 0
    counts = np.array([len(rows[i]) for i in which])
    ends = np.cumsum(counts)
    whole = np.logical_and.reduceat(good, ends - counts)
    with np.errstate(invalid="ignore", over="ignore"):  # infinities of files that are not taken
        boxes = _corners(values)
    classes, lines = np.where(good, first, 0).astype(np.int64), np.arange(1, counts.max() + 1)
    for shared in (classes, boxes, lines):
        shared.setflags(write=False)
    found = {}
    for i, is_whole, end, n in zip(which, whole.tolist(), ends.tolist(), counts.tolist()):
        if is_whole:
            found[i] = LabelText(classes[end - n : end], boxes[end - n : end], [], lines[:n], [])
    return found


def _corners(values: np.ndarray) -> np.ndarray:
    """(m, 5) class, cx, cy, w, h -> (m, 4) left, top, right, bottom."""
    half = values[:, 3:5] / 2
    return np.concatenate((values[:, 1:3] - half, values[:, 1:3] + half), 1)


def _line_by_line(rows: list[list[str]], file: str) -> LabelText:
    last = max((i for i, row in enumerate(rows) if row), default=-1)
    first = next((i for i, row in enumerate(rows) if row), 0)
    polygons = any(len(row) > POLYGON_TOKENS for row in rows)
    classes, boxes, rings, lines, faults = [], [], [], [], []
    for i, row in enumerate(rows[: last + 1]):
        if i < first:
            continue  # blank lines before the first object are nobody's fault
        number, fault = _numbers(row, polygons)
        if fault:
            faults.append(Fault(fault[0], file, i + 1, fault[1]))
        if number is None:
            continue
        ring = number[1:].reshape(-1, 2) if len(number) > BOX_TOKENS else None
        box = _corners(number[None])[0] if ring is None else np.concatenate((ring.min(0), ring.max(0)))
        classes.append(int(number[0]))
        boxes.append(box)
        rings.append([] if ring is None else [ring])
        lines.append(i + 1)
    return LabelText(
        np.array(classes, np.int64),
        np.array(boxes, np.float64).reshape(-1, 4),
        rings if any(rings) else [],
        np.array(lines, np.int64),
        faults,
    )


def _numbers(row: list[str], polygons: bool) -> tuple[np.ndarray | None, tuple[str, str] | None]:
    """(the numbers of a line that is an object, else None; its fault, if it has one: kind and text)."""
    if not row:
        return None, ("wrong columns", "blank line between objects")
    numbers = []
    for token in row:
        try:
            numbers.append(float(token))
        except ValueError:
            return None, ("not a number", repr(token[:40]))
    values = np.array(numbers)
    if not np.isfinite(values).all():
        return None, ("not finite", " ".join(row)[:80])
    if len(row) < BOX_TOKENS or len(row) % 2 == 0:
        wanted = "a polygon needs x and y for every point" if polygons else "a box needs 5: class cx cy w h"
        return None, ("wrong columns", f"{len(row)} numbers; {wanted}")
    if values[0] < 0 or values[0] > LAST_CLASS:
        return None, ("bad class", f"class {values[0]:g} is {'negative' if values[0] < 0 else 'beyond all bounds'}")
    fault = None
    if len(row) > BOX_TOKENS and not polygons:
        fault = ("wrong columns", f"{len(row)} numbers; a polygon needs at least 4 points")
    elif len(row) == BOX_TOKENS and polygons:
        fault = ("box among polygons", "the line is read as two points, because other lines are polygons")
    elif values[0] % 1:
        fault = ("fractional class", f"class {values[0]:g} is cut to {int(values[0])}")
    return values, fault
