"""Checks of image files, from the facts that reading each once gives, and of labels, on flat arrays of all objects."""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from yolov7fast.data.checks.check_findings import Findings
from yolov7fast.data.formats.annotated_set import AnnotatedSet, Sample
from yolov7fast.data.formats.yolo_format import KIND as YOLO
from yolov7fast.data.formats.yolo_format import orphan_labels
from yolov7fast.data.image_facts import (
    MISSING,
    TOO_LARGE,
    TRUNCATED,
    UNREADABLE,
    exact_groups,
    groups_of,
    loaded_sizes,
    near_pairs,
)
from yolov7fast.data.image_io import IMG_FORMATS
from yolov7fast.data.labels import MIN_SIDE, SLACK

NEARLY = 0.9  # IoU from which on two boxes are nearly the same
COVERS = 0.98  # of both sides, of a box that covers the image
ROUGH = 1e-6  # of the image, within which two boxes are the same
MOST_PAIRED = 2000  # boxes of an image up to which all pairs are compared

TINY_SIDE = 32  # pixels: the largest stride
HUGE_PIXELS = 25_000_000
SUFFIXES = {"jpeg": ("jpg", "jpeg", "mpo"), "tiff": ("tif", "tiff", "dng"), "mpo": ("jpg", "jpeg", "mpo")}
ROTATED = {2: "mirrored", 3: "turned by 180 degrees", 4: "mirrored upside down", 5: "mirrored and turned"}
ROTATED |= {6: "turned by 90 degrees", 7: "mirrored and turned", 8: "turned by 270 degrees"}
FEW_BITS = 14  # values of a 16-bit image that need no more bits leave the upper quarter of the range unused


# --- images -----------------------------------------------------------------------------------------------------------


def check_images(samples: Sequence[Sample], facts: np.ndarray, found: Findings) -> None:
    """facts: FACTS (n,) of the samples' images, in order."""
    for state, check in ((MISSING, "missing image"), (UNREADABLE, "unreadable image"), (TRUNCATED, "truncated image")):
        for i in np.flatnonzero(facts["state"] == state).tolist():
            found.add(check, samples[i].image, text=facts["error"][i].decode(errors="replace"), image=i)
    sides, sizes = np.stack((facts["width"], facts["height"]), 1).astype(np.int64), loaded_sizes(facts)
    huge = (sides.prod(1) > HUGE_PIXELS) | (facts["state"] == TOO_LARGE)
    for i, (sample, fact) in enumerate(zip(samples, facts)):
        path, (width, height) = sample.image, sides[i].tolist()
        if huge[i]:
            found.add("huge image", path, text=f"{width} x {height} pixels", image=i)
        if fact["bits"] and fact["bits"] <= FEW_BITS:
            text = f"16 bits a value, of which {fact['bits']} are used: training divides by 257"
            found.add("dark 16-bit image", path, text=text, image=i)
        if not width:  # not read
            continue
        if min(width, height) < TINY_SIDE:
            check = "image under 10 pixels" if min(width, height) < MIN_SIDE else "tiny image"
            found.add(check, path, text=f"{width} x {height} pixels", image=i)
        if fact["orientation"] > 1:
            found.add("rotated by EXIF", path, text=ROTATED[int(fact["orientation"])], image=i)
        if fact["grey"] and fact["state"] != UNREADABLE:
            found.add("grey image", path, image=i)
        form = fact["format"].item().decode()
        if form not in IMG_FORMATS:
            found.add("unsupported image format", path, text=f"a {form.upper()} file", image=i)
        elif path.rpartition(".")[2].lower() not in SUFFIXES.get(form, (form,)):
            found.add("suffix differs from content", path, text=f"a {form.upper()} file", image=i)
        if sample.differs_in_aspect(sizes[i]):  # another scale is harmless
            (w, h), real = sample.frame, sizes[i]
            text = f"the annotation says {w:g} x {h:g}, the file has {real[0]} x {real[1]}"
            found.add("size differs from annotation", path, text=text, image=i)


def check_duplicates(
    samples: Sequence[Sample], split: np.ndarray, names: list[str], facts: np.ndarray, found: Findings
):
    """Equal files and near duplicates, in one or two splits; split: (n,) position of each image's split in `names`."""
    same = np.zeros((0, 2), np.int64)
    for group in exact_groups(facts["digest"]):
        by_split = defaultdict(list)
        for i in group:
            by_split[split[i]].append(i)
        first = group[0]
        for members in by_split.values():
            for i in members[1:]:
                text = f"same as {samples[members[0]].image}"
                found.add("same image twice", samples[i].image, text=text, image=i, other=members[0])
        for number, members in by_split.items():
            if number != split[first]:
                text = f"in {names[split[first]]} too, as {samples[first].image}"
                i = members[0]
                found.add("image in two splits", samples[i].image, text=text, image=i, other=first)
        same = np.concatenate((same, [(first, i) for i in group[1:]]))
    equal = groups_of(len(samples), same)
    pairs = near_pairs(facts)
    pairs = pairs[equal[pairs[:, 0]] != equal[pairs[:, 1]]]
    for i, j in pairs.tolist():
        if split[i] != split[j]:
            text = f"looks like {samples[i].image} in {names[split[i]]}"
            found.add("near duplicates in two splits", samples[j].image, text=text, image=j, other=i)
        else:
            found.add("near duplicates", samples[j].image, text=f"looks like {samples[i].image}", image=j, other=i)


# --- labels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Objects:
    """m objects of n images. Boxes are fractions of the image: left, top, right, bottom."""

    image: np.ndarray  # (m,) position among the images
    cls: np.ndarray  # (m,)
    box: np.ndarray  # (m, 4)
    line: np.ndarray  # (m,)
    crowd: np.ndarray  # (m,) bool
    counts: np.ndarray  # (n,) objects of each image
    split: np.ndarray  # (n,) number of the image's split

    @property
    def wh(self) -> np.ndarray:
        """(m, 2) widths and heights."""
        return self.box[:, 2:] - self.box[:, :2]


def collect(annotated: AnnotatedSet) -> tuple[list[Sample], Objects]:
    """(all samples, their objects), split by split."""
    samples = annotated.samples
    counts = np.array([len(s.classes) for s in samples], np.int64)
    parts = [Sample("", "", (1, 1), ""), *(s for s in samples if len(s.classes))]  # without objects: right shapes
    return samples, Objects(
        image=np.repeat(np.arange(len(samples)), counts),
        cls=np.concatenate([s.classes for s in parts]),
        box=np.concatenate([s.fractions for s in parts]),
        line=np.concatenate([s.lines for s in parts]),
        crowd=np.concatenate([s.crowd for s in parts]),
        counts=counts,
        split=np.repeat(np.arange(len(annotated.splits)), [len(s) for s in annotated.splits.values()]),
    )


def check_labels(annotated: AnnotatedSet, samples: Sequence[Sample], objects: Objects, found: Findings) -> None:
    """All checks of label files and boxes; no image is read."""
    _check_files(annotated, samples, found)
    _check_boxes(samples, objects, annotated, found)
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


def _check_boxes(samples: Sequence[Sample], objects: Objects, annotated: AnnotatedSet, found: Findings) -> None:
    nc, yolo = len(annotated.names), annotated.kind == YOLO
    wh, low, high = objects.wh, objects.box[:, :2], objects.box[:, 2:]
    flat = (wh <= 0).any(1)
    centre = (low + high) / 2
    outside = ((high <= 0) | (low >= 1)).any(1) & ~flat
    # readers of YOLO files reject numbers outside 0..1 (a polygon's points, a box's centre and size)
    beyond = yolo & ((centre < 0) | (centre > 1) | (wh > 1 + 1e-9)).any(1)
    over = ((low < -SLACK) | (high > 1 + SLACK)).any(1) & ~beyond & ~outside & ~flat
    covers = (np.minimum(high, 1) - np.maximum(low, 0) >= COVERS).all(1) & ~beyond
    checks = (
        ("class beyond nc", objects.cls >= nc),
        ("box without area", flat & ~beyond),
        ("coordinates out of range", beyond),
        ("box outside the image", outside & ~beyond),
        ("box over the edge", over),
        ("box covers the image", covers),
    )
    for check, mask in checks:
        for k in np.flatnonzero(mask & ~objects.crowd).tolist():
            i = int(objects.image[k])
            text = "left {:.4g}, top {:.4g}, right {:.4g}, bottom {:.4g}".format(*objects.box[k])
            if check == "class beyond nc":
                text = f"class {objects.cls[k]}; the data set has {nc}"
            elif check == "box covers the image":
                text = ""
            found.add(check, samples[i].label_file, int(objects.line[k]), text, i)


def _check_pairs(samples: Sequence[Sample], objects: Objects, annotated: AnnotatedSet, found: Findings) -> None:
    """Boxes of one image that are equal, or nearly equal."""
    names, done = annotated.names, set()
    for a, b in _close_pairs(objects).tolist():
        classes = objects.cls[[a, b]].tolist()
        same = classes[0] == classes[1] and bool((np.abs(objects.box[a] - objects.box[b]) <= ROUGH).all())
        if objects.crowd[a] or objects.crowd[b] or (same and b in done):
            continue
        if same:
            done.add(b)
            check, text = "duplicate box", "same as"
        elif classes[0] == classes[1]:
            check, text = "nearly the same box", "nearly the same as"
        else:
            first, second = (names[c] if c < len(names) else f"class {c}" for c in classes)
            check, text = "nearly the same box, two classes", f"{second} here, {first} in"
        i = int(objects.image[b])
        text = f"{text} {annotated.line_word} {objects.line[a]}"
        found.add(check, samples[i].label_file, int(objects.line[b]), text, i)


def _close_pairs(objects: Objects) -> np.ndarray:
    """(p, 2) rows a < b of objects of one image whose boxes have an IoU above NEARLY, in order."""
    found = [np.zeros((0, 2), np.int64)]
    ends = np.cumsum(objects.counts)
    for k in np.flatnonzero((objects.counts > 1) & (objects.counts <= MOST_PAIRED)).tolist():
        start = int(ends[k] - objects.counts[k])
        box = objects.box[start : ends[k]]
        sides = np.minimum(box[:, None, 2:], box[None, :, 2:]) - np.maximum(box[:, None, :2], box[None, :, :2])
        inside = np.maximum(sides, 0).prod(2)
        area = np.maximum(box[:, 2:] - box[:, :2], 0).prod(1)
        close = inside > NEARLY * (area[:, None] + area - inside)
        found.append(start + np.argwhere(np.triu(close, 1)))
    return np.concatenate(found)
