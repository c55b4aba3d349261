"""The doctor's report as one page of HTML, with contact sheets of suspicious and of random images."""

import base64
import os
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.data.checks.examine import Examined, Report
from yolov7fast.data.checks.findings import NOTE, SEVERITIES, Place
from yolov7fast.data.checks.terminal import place_text
from yolov7fast.data.formats.samples import Sample
from yolov7fast.data.image_facts import GOOD, TRUNCATED
from yolov7fast.data.image_io import read_unchecked_image
from yolov7fast.reports.html_page import COLOURS, render

SUSPICIOUS, RANDOM = 36, 12  # images shown
EACH = 3  # of one check
SIDE = 320  # pixels of the longer side of an image on the page
QUALITY = 72
MOST_BOXES, MOST_NAMES = 300, 25  # drawn in one image, and up to which they are named


def as_page(examined: Examined, title: str) -> str:
    """The page; `examined` must hold the samples."""
    report = examined.report
    counts = Counter(finding.severity for finding in report.findings)
    suspicious = [t for i, why in _suspicious(report, examined.samples) if (t := _tile(examined, i, why))]
    tiles = [t for i in _random(examined.samples) if (t := _tile(examined, i, []))]
    splits = [entry["name"] for entry in report.figures.splits]
    given = os.path.abspath(report.path)
    root = os.path.join(given if os.path.isdir(given) else os.path.dirname(given), "")  # the heading names it
    return render(
        "doctor.html",
        title=title,
        report=report,
        figures=report.figures,
        severities=[(word, counts[word]) for word in SEVERITIES],
        suspicious=suspicious,
        random=tiles,
        classes=_classes(report),
        splits_head=[(name, "number") for name in splits],
        place=lambda place: place_text(place, report.line_word).replace(root, ""),
    )


def _suspicious(report: Report, samples: Sequence[Sample]) -> list[tuple[int, list[Place]]]:
    """(image, what is odd about it), errors first, a few of each check; notes only where nothing else is left.

    Of a pair of duplicates both are shown, one after the other.
    """
    chosen: dict[int, list[Place]] = defaultdict(list)
    for finding in sorted(report.findings, key=lambda f: f.severity == NOTE):
        for place in [p for p in finding.places if p.image >= 0][:EACH]:
            pair = [(place.image, place.other), (place.other, place.image)][: 2 if place.other >= 0 else 1]
            if len(chosen.keys() | {image for image, _ in pair}) > SUSPICIOUS:
                continue
            for image, other in pair:
                text = f"{finding.check}: {os.path.basename(samples[other].image)}" if other >= 0 else finding.check
                chosen[image].append(place._replace(text=text))
    return list(chosen.items())


def _random(samples: Sequence[Sample]) -> list[int]:
    """The same images on every run: labelled ones first."""
    rng = random.Random(0)
    full = [i for i, s in enumerate(samples) if len(s.classes)]
    picked = full or list(range(len(samples)))
    return sorted(rng.sample(picked, min(RANDOM, len(picked))))


def _tile(examined: Examined, index: int, odd: list[Place]) -> dict[str, Any] | None:
    """What the page needs to show an image with its boxes; None if it cannot be decoded."""
    word = examined.report.line_word
    sample = examined.samples[index]
    if examined.facts is not None and examined.facts["state"][index] not in (GOOD, TRUNCATED):
        return None  # decoding it again would fail, and OpenCV complain in the terminal
    image = _small(sample.image)
    if image is None:
        return None
    height, width = image.shape[:2]
    ok, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    if not ok:
        return None
    names = examined.annotated.names if examined.annotated else []
    boxes = []
    for cls, box, line in zip(sample.classes.tolist()[:MOST_BOXES], sample.fractions, sample.lines):
        left, top, right, bottom = np.clip(box, -0.05, 1.05) * (width, height, width, height)
        name = names[cls] if cls < len(names) else f"class {cls}"
        text_y = top - 4 if top > 16 else min(top + 14, height - 2)
        boxes.append(
            {
                "x": round(float(left), 1),
                "y": round(float(top), 1),
                "w": round(max(float(right - left), 0.5), 1),
                "h": round(max(float(bottom - top), 0.5), 1),
                "text_y": round(float(text_y), 1),
                "colour": COLOURS[cls % len(COLOURS)],
                "name": f"{name}, {word} {line}",
                "odd": any(place.line == line for place in odd),
                "shown": name[:24] if len(sample.classes) <= MOST_NAMES else "",
            }
        )
    source = "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode()
    reasons = [f"{place.text}, {word} {place.line}" if place.line else place.text for place in odd]
    label = f"{_split_of(examined, index)}: {os.path.basename(sample.image)}"
    return {"width": width, "height": height, "src": source, "boxes": boxes, "label": label, "reasons": reasons}


def _split_of(examined: Examined, index: int) -> str:
    if examined.objects is None or examined.annotated is None:
        return ""
    return list(examined.annotated.splits)[int(examined.objects.split[index])]


def _small(path: str) -> np.ndarray | None:
    """An image as training loads it, brought to SIDE."""
    try:
        image = read_unchecked_image(path)
    except UserError:
        return None
    scale = SIDE / max(image.shape[:2])
    size = max(round(image.shape[1] * scale), 1), max(round(image.shape[0] * scale), 1)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST)


def _classes(report: Report) -> list[dict[str, Any]]:
    """Rows of the table of classes, most frequent first."""
    rows = [{**c, "total": sum(c["by_split"].values())} for c in report.figures.classes]
    most = max((row["total"] for row in rows), default=0) or 1
    return sorted(({**row, "fraction": row["total"] / most} for row in rows), key=lambda row: -row["total"])
