"""The doctor's visit: read, look, check, count; and remember the outcome for as long as no file changes."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.data.checks.anchors import anchors_of
from yolov7fast.data.checks.findings import Finding, Findings, Place, worst
from yolov7fast.data.checks.image_checks import check_duplicates, check_images
from yolov7fast.data.checks.label_checks import check_labels
from yolov7fast.data.checks.objects import Objects, collect
from yolov7fast.data.checks.set_checks import Figures, check_classes, check_sizes, count
from yolov7fast.data.formats.files import cache_folder, plain_name
from yolov7fast.data.formats.recognise import Found, recognise
from yolov7fast.data.formats.samples import AnnotatedSet, Sample
from yolov7fast.data.formats.yolo import images_by_split, label_of, read
from yolov7fast.data.image_facts import Looking, look_at, stamps_of
from yolov7fast.data.image_io import walk

VERSION = 4
THRESHOLD = 4.0  # anchor_t of the shipped hyper-parameters


@dataclass(frozen=True)
class Options:
    """What the outcome depends on besides the files."""

    img_size: int = 640
    cfg: str = ""
    threshold: float = THRESHOLD


@dataclass
class Report:
    """The outcome of an examination; it can be stored."""

    path: str  # as the user gave it
    kind: str
    evidence: str
    line_word: str  # what lines count: "line" or "annotation"
    summary: str  # '8 images, ...'
    notes: list[str]
    findings: list[Finding]
    figures: Figures
    cached: bool = False

    @property
    def severity(self) -> str:
        return worst(self.findings)


@dataclass
class Examined:
    """A report with what it was made from, for those who draw or correct; None where the report was remembered."""

    report: Report
    annotated: AnnotatedSet | None = None
    samples: list[Sample] = field(default_factory=list)
    objects: Objects | None = None
    facts: np.ndarray | None = None


def examine(path: str | Path, options: Options, anew: bool = False) -> Examined:
    """Check a data set in any format. anew: also if nothing has changed, because the images themselves are wanted."""
    found = recognise(path)
    anchors = anchors_of(options.cfg) if options.cfg else np.zeros((0, 2))
    files = _files(found)
    digest = _digest(found, files, options, anchors)
    place = _place(found)
    if not anew and (report := _remembered(place, digest)):
        return Examined(report)
    findings, images = Findings(), [image for split in files.images.values() for image in split]
    with Looking(images, str(found.root), files.stamps[: len(images)]) as looking:
        # while processes look at images, this one reads and checks labels
        annotated = read(found.yolo, files.images) if found.yolo else found.read()
        samples, objects = collect(annotated)
        check_labels(annotated, samples, objects, findings)
        splits = list(annotated.splits)
        figures = count(samples, objects, splits, annotated.names, options.img_size)
        check_classes(figures, splits, found.yolo.path if found.yolo else str(found.root), findings)
        facts = looking.finish()
    if (images := [s.image for s in samples]) != looking.paths:  # another format
        facts = look_at(images, str(found.root))
    check_images(samples, facts, findings)
    check_duplicates(samples, objects.split, splits, facts, findings)
    check_sizes(samples, objects, facts, anchors, options.threshold, figures, findings)
    figures.image_sizes = _image_sizes(facts)
    report = Report(
        str(path),
        found.kind,
        found.evidence,
        annotated.line_word,
        annotated.counts(),
        annotated.notes,
        findings.sorted(),
        figures,
    )
    _remember(place, digest, report)
    return Examined(report, annotated, samples, objects, facts)


def _image_sizes(facts: np.ndarray, shown: int = 12) -> list[dict]:
    """The most frequent sizes of images."""
    sizes = np.stack((facts["width"], facts["height"]), 1)[facts["width"] > 0]
    each, counts = np.unique(sizes, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:shown]
    return [{"width": int(each[k, 0]), "height": int(each[k, 1]), "count": int(counts[k])} for k in order]


# --- remembering ------------------------------------------------------------------------------------------------------


class Files(NamedTuple):
    """The files of a data set, with sizes and times: what the outcome depends on."""

    images: dict[str, list[str]]  # by split, of a set in YOLO layout; other formats' annotations name theirs
    paths: list[str]  # of all files; images first, in order of their splits
    stamps: np.ndarray  # (n, 2)


def _files(found: Found) -> Files:
    if found.yolo is None:
        paths = [entry.path for entry in walk(found.root)]
        return Files({}, paths, stamps_of(paths))
    images = images_by_split(found.yolo)
    paths = [image for split in images.values() for image in split]
    labels = [label_of(image) for image in paths]
    folders = {os.path.dirname(label) for label in labels}  # their times change when label files come and go
    paths += [*labels, *sorted(folders), found.yolo.path]
    return Files(images, paths, stamps_of(paths))


def _digest(found: Found, files: Files, options: Options, anchors: np.ndarray) -> str:
    """Of all files that were looked at, by path, size and time, and of the options."""
    made = hashlib.blake2b(f"{VERSION} {options} {anchors.tolist()} {found.evidence}\0".encode(), digest_size=16)
    made.update("\0".join(files.paths).encode(errors="surrogateescape"))
    made.update(files.stamps.tobytes())
    return made.hexdigest()


def _place(found: Found) -> Path:
    identity = found.yolo.path if found.yolo else f"{found.root}\0{found.evidence}"
    key = hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=6).hexdigest()
    return cache_folder("checks") / f"{plain_name(found.root.name)}-{key}.json"


def _remember(place: Path, digest: str, report: Report) -> None:
    write_atomically(place, json.dumps({"version": VERSION, "digest": digest, "report": asdict(report)}))


def _remembered(place: Path, digest: str) -> Report | None:
    """The stored report, if it is of these very files and options."""
    try:
        stored = json.loads(place.read_bytes())
        if stored["version"] != VERSION or stored["digest"] != digest:
            return None
        values = stored["report"]
        findings = [Finding(f["check"], f["count"], [Place(*p) for p in f["places"]]) for f in values.pop("findings")]
        figures = Figures(**values.pop("figures"))
        return Report(**{**values, "findings": findings, "figures": figures, "cached": True})
    except (OSError, ValueError, KeyError, TypeError):
        return None
