"""Checks of labels: every line that is wrong or odd, with what training would make of it."""

import os
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from yolov7fast.data.checks.findings import Findings
from yolov7fast.data.checks.objects import Objects
from yolov7fast.data.formats.samples import AnnotatedSet, Sample
from yolov7fast.data.formats.yolo import KIND as YOLO
from yolov7fast.data.formats.yolo import orphan_labels
from yolov7fast.data.labels import SLACK

NEARLY = 0.9  # IoU from which on two boxes are nearly the same
COVERS = 0.98  # of both sides, of a box that covers the image
ROUGH = 1e-6  # of the image, within which two boxes are the same
MOST_PAIRED = 2000  # boxes of an image up to which all pairs are compared
PAIRS = 1 << 17  # compared at once


def check_labels(annotated: AnnotatedSet, samples: Sequence[Sample], objects: Objects, found: Findings) -> None:
    """All checks that need no pixels."""
    yolo = annotated.kind == YOLO
    _check_files(annotated, samples, found)
    _check_boxes(samples, objects, len(annotated.names), yolo, found)
    _check_pairs(samples, objects, annotated, found)


def _check_files(annotated: AnnotatedSet, samples: Sequence[Sample], found: Findings) -> None:
    by_label = defaultdict(list)
    for i, sample in enumerate(samples):
        for fault in sample.faults:
            found.add(fault.kind, fault.file, fault.line, fault.text, i)
        if not sample.labelled:
            found.add("missing label", sample.image, text=f"looked for {sample.label_file}", image=i)
        elif not len(sample.classes) and not sample.faults:
            place = sample.label_file if annotated.kind == YOLO else sample.image
            found.add("empty label", place, image=i)
        by_label[sample.label_file].append(i)
    if annotated.kind != YOLO:  # other formats have one file for many images
        return
    for label in orphan_labels(annotated):
        found.add("label without image", label)
    for label, users in by_label.items():
        for i in users[1:]:
            if samples[i].image != samples[users[0]].image:  # else one image in two splits
                text = f"shared with {samples[users[0]].image}"
                found.add("shared label file", samples[i].image, text=f"{os.path.basename(label)} {text}", image=i)


def _check_boxes(samples: Sequence[Sample], objects: Objects, nc: int, yolo: bool, found: Findings) -> None:
    wh, low, high = objects.wh, objects.box[:, :2], objects.box[:, 2:]
    flat = (wh <= 0).any(1)
    centre = (low + high) / 2
    outside = ((high <= 0) | (low >= 1)).any(1) & ~flat
    # what a reader of YOLO files rejects: numbers beyond 0..1 (a polygon's points, a box's centre and size)
    beyond = yolo & ((centre < 0) | (centre > 1) | (wh > 1 + 1e-9)).any(1)
    over = ((low < -SLACK) | (high > 1 + SLACK)).any(1) & ~beyond & ~outside & ~flat
    covers = (np.minimum(high, 1) - np.maximum(low, 0) >= COVERS).all(1) & ~beyond
    checks = (
        ("class beyond nc", objects.cls >= nc, lambda k: f"class {objects.cls[k]}; the data set has {nc}"),
        ("box without area", flat & ~beyond, lambda k: _numbers(objects.box[k])),
        ("coordinates out of range", beyond, lambda k: _numbers(objects.box[k])),
        ("box outside the image", outside & ~beyond, lambda k: _numbers(objects.box[k])),
        ("box over the edge", over, lambda k: _numbers(objects.box[k])),
        ("box covers the image", covers, lambda k: ""),
    )
    for check, mask, text in checks:
        for k in np.flatnonzero(mask & ~objects.crowd).tolist():
            i = int(objects.image[k])
            found.add(check, samples[i].label_file, int(objects.line[k]), text(k), i)


def _numbers(box: np.ndarray) -> str:
    return "left {:.4g}, top {:.4g}, right {:.4g}, bottom {:.4g}".format(*box)


def _check_pairs(samples: Sequence[Sample], objects: Objects, annotated: AnnotatedSet, found: Findings) -> None:
    """Boxes of one image that are the same, or nearly."""
    done = set()
    for a, b in _close_pairs(objects).tolist():
        first, second = int(objects.cls[a]), int(objects.cls[b])
        same = bool((np.abs(objects.box[a] - objects.box[b]) <= ROUGH).all())
        if objects.crowd[a] or objects.crowd[b] or (same and first == second and b in done):
            continue
        check, text = _judge(same, first, second, annotated.names)
        if check == "duplicate box":
            done.add(b)
        i = int(objects.image[b])
        partner = f"{text} {annotated.line_word} {objects.line[a]}"
        found.add(check, samples[i].label_file, int(objects.line[b]), partner, i)


def _close_pairs(objects: Objects) -> np.ndarray:
    """(p, 2) rows a < b of objects of one image whose boxes overlap by more than NEARLY, in order."""
    rows = np.arange(len(objects.image))
    last = np.cumsum(objects.counts)[objects.image] - 1  # (m,) last object of each one's image
    after = np.where(objects.counts[objects.image] <= MOST_PAIRED, last - rows, 0)  # partners of each object
    ends = np.cumsum(after)
    areas = np.maximum(objects.wh, 0).prod(1)
    found = [np.zeros((0, 2), np.int64)]
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + PAIRS, "right")), start + 1)
        a = np.repeat(rows[start:stop], after[start:stop])
        b = a + 1 + before + np.arange(len(a)) - np.repeat(ends[start:stop] - after[start:stop], after[start:stop])
        first, second = objects.box[a], objects.box[b]
        sides = np.minimum(first[:, 2:], second[:, 2:]) - np.maximum(first[:, :2], second[:, :2])
        inside = np.maximum(sides[:, 0], 0) * np.maximum(sides[:, 1], 0)
        close = inside > NEARLY * (areas[a] + areas[b] - inside)
        found.append(np.stack((a[close], b[close]), 1))
        start = stop
    return np.concatenate(found)


def _judge(same: bool, a: int, b: int, names: Sequence[str]) -> tuple[str, str]:
    if a != b:
        first, second = (names[c] if c < len(names) else f"class {c}" for c in (a, b))
        return "nearly the same box, two classes", f"{second} here, {first} in"
    return ("duplicate box", "same as") if same else ("nearly the same box", "nearly the same as")
