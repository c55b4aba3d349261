"""A corrected copy of the labels: what has one right answer is corrected, everything else is left and listed.

The copy is a YOLO data set of its own: labels, links to the images, data.yaml, and changes.txt with every change. The
files that were checked stay as they are.
"""

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder
from yolov7fast.core.text import printable
from yolov7fast.data.checks.examine import Examined
from yolov7fast.data.checks.findings import ERROR, WARNING, Place
from yolov7fast.data.checks.label_checks import ROUGH
from yolov7fast.data.checks.terminal import place_text
from yolov7fast.data.formats.files import link
from yolov7fast.data.formats.names import unique_names
from yolov7fast.data.formats.outline import corners, extent, join_rings, with_four_points
from yolov7fast.data.formats.samples import Sample
from yolov7fast.data.formats.yolo import KIND as YOLO
from yolov7fast.data.image_facts import GOOD, TRUNCATED, loaded_sizes
from yolov7fast.data.image_io import IMG_FORMATS
from yolov7fast.data.labels import MIN_SIDE

CORRECTED = {
    *("missing image", "unreadable image", "image under 10 pixels", "unsupported image format", "unreadable label"),
    *("wrong columns", "not a number", "not finite", "bad class", "fractional class", "box among polygons"),
    *("class beyond nc", "coordinates out of range", "box outside the image", "box over the edge", "box without area"),
    *("duplicate box", "shared label file", "missing label", "suffix differs from content", "label without image"),
}


class Change(NamedTuple):
    """One change of the copy against the original."""

    file: str
    line: int
    what: str
    before: str = ""
    after: str = ""

    def as_text(self, line_word: str) -> str:
        """'labels/a.txt:3: what: before -> after'; line_word: what `line` counts."""
        values = f": {self.before} -> {self.after}" if self.after else f": {self.before}" if self.before else ""
        place = place_text(Place(self.file, self.line, self.what), line_word)
        return f"{place}{printable(values, 300)}"


def write_fixed(examined: Examined, folder: Path) -> tuple[Path, Counter]:
    """Write the corrected copy into `folder`, which must be new or empty; (its changes.txt, how often each change)."""
    annotated, facts = examined.annotated, examined.facts
    if annotated is None or facts is None:
        raise ValueError("a remembered report holds no samples")
    folder = Path(os.path.abspath(folder))
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"--fix {folder} is not empty: name a new folder; labels are never corrected in place")
    changes: list[Change] = []
    with atomic_folder(folder) as build:
        start = 0
        for split, samples in annotated.splits.items():
            own = facts[start : start + len(samples)]
            start += len(samples)
            _write_split(build, split, samples, own, len(annotated.names), annotated.kind == YOLO, changes)
        values = {"path": ".", **{s: f"images/{s}" for s in annotated.splits}}
        values |= {"nc": len(annotated.names), "names": annotated.names}
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        (build / "data.yaml").write_text(text, encoding="utf-8")
        (build / "changes.txt").write_text(_listed(changes, examined), encoding="utf-8")
    return folder / "changes.txt", Counter(change.what for change in changes)


def _write_split(
    build: Path, split: str, samples: list[Sample], facts: np.ndarray, nc: int, yolo: bool, changes: list[Change]
) -> None:
    for kind in ("images", "labels"):
        (build / kind / split).mkdir(parents=True)
    names = unique_names([os.path.basename(sample.image) for sample in samples])
    for sample, name, fact, size in zip(samples, names, facts, loaded_sizes(facts)):
        if not usable(fact):
            changes.append(Change(sample.image, 0, "image left out: it cannot be read or is too small"))
            continue
        if fault := sample.unusable:
            changes.append(Change(fault.file, fault.line, f"image left out: {fault.kind}", fault.text))
            continue
        link(sample.image, build / "images" / split / name)
        if name != os.path.basename(sample.image):
            changes.append(Change(sample.image, 0, "image renamed", after=name, before=os.path.basename(sample.image)))
        if not sample.labelled:
            changes.append(Change(sample.label_file, 0, "empty label file added"))
        original = _original_lines(sample) if yolo else {}
        lines, made = correct(sample, nc, original, size)
        changes += made
        (build / "labels" / split / f"{os.path.splitext(name)[0]}.txt").write_text("".join(f"{x}\n" for x in lines))


def usable(fact: np.ndarray) -> bool:
    """Whether training can read an image."""
    good = fact["state"] in (GOOD, TRUNCATED) and fact["format"].item().decode() in IMG_FORMATS
    return bool(good and min(fact["width"], fact["height"]) >= MIN_SIDE)


def _original_lines(sample: Sample) -> dict[int, str]:
    """The text of each line of a label file, so that good lines stay as they are."""
    try:
        with open(sample.label_file, encoding="utf-8") as file:
            return {i: " ".join(line.split()) for i, line in enumerate(file.read().splitlines(), 1)}
    except (OSError, UnicodeDecodeError):
        return {}


def correct(sample: Sample, nc: int, original: dict[int, str], size: np.ndarray) -> tuple[list[str], list[Change]]:
    """(lines of the corrected label file, what was changed). original: text of YOLO lines; size: (2,) of the image."""
    changes = [Change(f.file, f.line, f"line removed: {f.kind}", f.text) for f in sample.faults if _removes(f, sample)]
    frame = np.array(sample.frame)
    outlines = sample.outlines
    polygons = any(outlines)
    least = 0.5 / size  # half a pixel: what is left of a box that hardly touches the image
    kept: list[np.ndarray] = []
    lines: list[str] = []
    for k, (cls, box, rings) in enumerate(zip(sample.classes.tolist(), sample.boxes, outlines)):
        line, before = int(sample.lines[k]), original.get(int(sample.lines[k]), f"{cls} {box.round(2).tolist()}")
        path = with_four_points(join_rings(rings)) if rings else corners(box)
        inside = np.clip(path / frame, 0, 1)
        whole = extent(inside)
        row = np.array((cls, *whole))
        reason = ""
        if sample.crowd[k]:
            reason = "crowd region left out"
        elif cls >= nc:
            reason = "object removed: class beyond nc"
        elif (box[2:] <= box[:2]).any():
            reason = "object removed: box without area"
        elif (whole[2:] - whole[:2] < least).any() and (whole[2:] - whole[:2] < (box[2:] - box[:2]) / frame).any():
            reason = "object removed: box outside the image"
        elif any((np.abs(row - other) <= ROUGH).all() for other in kept):
            reason = "object removed: duplicate box"
        if reason:
            changes.append(Change(sample.label_file, line, reason, before))
            continue
        kept.append(row)
        cut = np.abs(inside * frame - path).max() > 1e-6 * frame.max()
        text = _line(cls, inside, whole, polygons)
        if cut:
            changes.append(Change(sample.label_file, line, "box cut at the edge of the image", before, text))
        elif fault := next((f.kind for f in sample.faults if f.line == line), ""):
            changes.append(Change(sample.label_file, line, f"line rewritten: {fault}", before, text))
        elif line in original:
            text = original[line]
        lines.append(text)
    return lines, changes


def _removes(fault, sample: Sample) -> bool:
    """Whether a faulty line has no object that is kept."""
    return fault.line == 0 or fault.line not in sample.lines


def _line(cls: int, inside: np.ndarray, whole: np.ndarray, polygon: bool) -> str:
    left, top, right, bottom = whole
    values = inside.ravel() if polygon else ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
    return f"{cls} " + " ".join(f"{v:.8g}" for v in values)


def _listed(changes: list[Change], examined: Examined) -> str:
    """The report beside the copy: every change, then what nobody but the user can decide."""
    report = examined.report
    rest = [f for f in report.findings if f.check not in CORRECTED and f.severity in (ERROR, WARNING)]
    lines = [
        f"# {len(changes)} changes against {printable(report.path)}",
        *(change.as_text(report.line_word) for change in changes),
        "",
    ]
    lines += ["# not corrected, because only you can decide:"] if rest else []
    for finding in rest:
        lines.append(f"# {finding.counted}: {finding.check}. {finding.remedy}")
        lines += [f"#   {place_text(place, report.line_word)}" for place in finding.places]
        if finding.count > len(finding.places):
            lines.append(f"#   ... and {finding.count - len(finding.places):,} more")
    return "\n".join(lines).rstrip() + "\n"
