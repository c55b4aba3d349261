"""A corrected copy of the labels: faults with only one possible correction are corrected, the others are listed.

The copy is a YOLO data set: labels, links to the images, data.yaml, and changes.txt with every change. The files that
were checked are not changed.
"""

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder
from yolov7fast.core.text import printable
from yolov7fast.data.checks.check_findings import ERROR, WARNING, Place, place_text
from yolov7fast.data.checks.examine import Examined
from yolov7fast.data.formats.annotated_set import Sample
from yolov7fast.data.formats.dataset_files import link, unique_names
from yolov7fast.data.formats.write_dataset import label_rows, yolo_yaml
from yolov7fast.data.formats.yolo_format import KIND as YOLO
from yolov7fast.data.image_facts import GOOD, TRUNCATED, loaded_sizes
from yolov7fast.data.image_io import IMG_FORMATS
from yolov7fast.data.labels import MIN_SIDE

CORRECTED = {
    *("missing image", "unreadable image", "image under 10 pixels", "unsupported image format", "unreadable label"),
    *("wrong columns", "not a number", "not finite", "bad class", "fractional class", "box among polygons"),
    *("class beyond nc", "coordinates out of range", "box outside the image", "box over the edge", "box without area"),
    *("duplicate box", "shared label file", "missing label", "suffix differs from content", "label without image"),
}


class LabelChange(NamedTuple):
    """One difference between the copy and the original."""

    file: str
    line: int
    what: str
    before: str = ""
    after: str = ""

    def as_text(self, line_word: str) -> str:
        """'labels/a.txt:3: what: before -> after'; line_word: what `line` counts."""
        values = f": {self.before} -> {self.after}" if self.after else f": {self.before}" if self.before else ""
        return f"{place_text(Place(self.file, self.line, self.what), line_word)}{printable(values, 300)}"


def write_fixed(examined: Examined, folder: Path) -> tuple[Path, Counter]:
    """Write the corrected copy into `folder`, which must be new or empty.

    Returns (path of its changes.txt, number of changes of each kind).
    """
    annotated = examined.annotated
    folder = Path(os.path.abspath(folder))
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"--fix {folder} is not empty: name a new folder; labels are never corrected in place")
    changes: list[LabelChange] = []
    with atomic_folder(folder) as build:
        facts = iter(zip(examined.facts, loaded_sizes(examined.facts)))
        for split, samples in annotated.splits.items():
            for kind in ("images", "labels"):
                (build / kind / split).mkdir(parents=True)
            names = unique_names([os.path.basename(sample.image) for sample in samples])
            for sample, name, (fact, size) in zip(samples, names, facts):
                changes += _file_changes(sample, fact, name)
                if not usable(fact) or sample.unusable:
                    continue
                link(sample.image, build / "images" / split / name)
                original = _original_lines(sample) if annotated.kind == YOLO else {}
                lines, made = correct(sample, len(annotated.names), original, size)
                changes += made
                label = build / "labels" / split / f"{os.path.splitext(name)[0]}.txt"
                label.write_text("".join(f"{line}\n" for line in lines))
        (build / "data.yaml").write_text(yolo_yaml(annotated), encoding="utf-8")
        (build / "changes.txt").write_text(_listed(changes, examined), encoding="utf-8")
    return folder / "changes.txt", Counter(change.what for change in changes)


def usable(fact: np.ndarray) -> bool:
    """Whether training can read an image."""
    good = fact["state"] in (GOOD, TRUNCATED) and fact["format"].item().decode() in IMG_FORMATS
    return bool(good and min(fact["width"], fact["height"]) >= MIN_SIDE)


def _file_changes(sample: Sample, fact: np.ndarray, name: str) -> list[LabelChange]:
    """What the copy changes about files: the image, called `name` there, and the existence of the label file."""
    if not usable(fact):
        return [LabelChange(sample.image, 0, "image left out: it cannot be read or is too small")]
    if fault := sample.unusable:
        return [LabelChange(fault.file, fault.line, f"image left out: {fault.kind}", fault.text)]
    before, changes = os.path.basename(sample.image), []
    if name != before:
        changes.append(LabelChange(sample.image, 0, "image renamed", before, name))
    if not sample.labelled:
        changes.append(LabelChange(sample.label_file, 0, "empty label file added"))
    return changes


def _original_lines(sample: Sample) -> dict[int, str]:
    """The text of each line of a label file: lines without a fault are copied unchanged."""
    try:
        with open(sample.label_file, encoding="utf-8") as file:
            return {i: " ".join(line.split()) for i, line in enumerate(file.read().splitlines(), 1)}
    except (OSError, UnicodeDecodeError):
        return {}


def correct(sample: Sample, nc: int, original: dict[int, str], size: np.ndarray) -> tuple[list[str], list[LabelChange]]:
    """(lines of the corrected label file, what was changed). original: text of YOLO lines; size: (2,) of the image."""
    faults = {fault.line: fault for fault in reversed(sample.faults)}
    removed = [fault for fault in sample.faults if fault.line == 0 or fault.line not in sample.lines]
    changes = [LabelChange(fault.file, fault.line, f"line removed: {fault.kind}", fault.text) for fault in removed]
    lines: list[str] = []
    for k, text, made in label_rows(sample, nc, size=size.tolist()):
        line = int(sample.lines[k])
        before = original.get(line, f"{sample.classes[k]} {sample.boxes[k].round(2).tolist()}")
        if text and not made and line in faults:
            made = [f"line rewritten: {faults[line].kind}"]
        elif text and not made:
            text = original.get(line, text)
        changes += [LabelChange(sample.label_file, line, what, before, text) for what in made]
        lines += [text] if text else []
    return lines, changes


def _listed(changes: list[LabelChange], examined: Examined) -> str:
    """The text of changes.txt: every change, then the findings that only the user can resolve."""
    report = examined.report
    lines = [f"# {len(changes)} changes against {printable(report.path)}"]
    lines += [*(change.as_text(report.line_word) for change in changes), ""]
    rest = [f for f in report.findings if f.check not in CORRECTED and f.severity in (ERROR, WARNING)]
    lines += ["# not corrected, because only you can decide:"] if rest else []
    for finding in rest:
        lines.append(f"# {finding.counted}: {finding.check}. {finding.remedy}")
        lines += [f"#   {place_text(place, report.line_word)}" for place in finding.places]
        if finding.count > len(finding.places):
            lines.append(f"#   ... and {finding.count - len(finding.places):,} more")
    return "\n".join(lines).rstrip() + "\n"
