"""The doctor's visit: read, look, check, count; and remember the outcome for as long as no file changes."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.data.formats.files import cache_folder, plain_name, walk
from yolov7fast.data.formats.recognise import Found, recognise
from yolov7fast.data.formats.samples import SPLITS, AnnotatedSet, Sample
from yolov7fast.data.formats.yolo import images_of, label_of, root_of
from yolov7fast.data.image_facts import Looking, look_at, stamp
from yolov7fast.doctor.anchors import anchors_of
from yolov7fast.doctor.findings import Finding, Findings, Place, worst
from yolov7fast.doctor.image_checks import check_duplicates, check_images
from yolov7fast.doctor.label_checks import check_labels
from yolov7fast.doctor.objects import Objects, collect
from yolov7fast.doctor.set_checks import Figures, check_classes, check_sizes, count

VERSION = 2
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
    digest = _digest(found, options, anchors)
    place = _place(found)
    if not anew and (report := _remembered(place, digest)):
        return Examined(report)
    with Looking(_images(found), str(found.root)) as looking:  # in processes, while labels are read in this one
        annotated = found.read()
        samples, objects = collect(annotated)
        facts = looking.finish()
    images = [s.image for s in samples]
    if images != looking.paths:  # another format, or a file that came or went meanwhile
        facts = look_at(images, str(found.root))
    findings = Findings()
    splits = list(annotated.splits)
    check_images(samples, facts, findings)
    check_labels(annotated, samples, objects, findings)
    check_duplicates(samples, objects.split, splits, facts, findings)
    figures = count(samples, objects, splits, annotated.names, options.img_size)
    source = found.yolo.path if found.yolo else str(found.root)
    check_classes(figures, splits, source, findings)
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


def _digest(found: Found, options: Options, anchors: np.ndarray) -> str:
    """Of all files that were looked at, by path, size and time, and of the options."""
    made = hashlib.blake2b(f"{VERSION} {options} {anchors.tolist()} {found.evidence}".encode(), digest_size=16)
    for path in _files(found):
        made.update(f"{path}\0{stamp(path)}\n".encode(errors="surrogateescape"))
    return made.hexdigest()


def _images(found: Found) -> list[str]:
    """The images of a data set in YOLO layout; none for other formats, whose annotations name them."""
    if found.yolo is None:
        return []
    sources = [source for split in SPLITS if (source := getattr(found.yolo, split))]
    root = root_of(found.yolo)
    return [image for source in sources for image in images_of(source, root)]


def _files(found: Found) -> Sequence[str]:
    if found.yolo is None:
        return [entry.path for entry in walk(found.root)]
    images = _images(found)
    labels = [label_of(image) for image in images]
    folders = {os.path.dirname(label) for label in labels}  # their times change when label files come and go
    return [found.yolo.path, *images, *labels, *sorted(folders)]


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
