"""The report of `yolov7fast data check` as an HTML page, with contact sheets of suspicious and of random images."""

import os
import random
from collections import Counter, defaultdict
from typing import Any

import cv2
import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.data.checks.check_findings import NOTE, SEVERITIES, Place, place_text
from yolov7fast.data.checks.examine import Examined
from yolov7fast.data.image_facts import GOOD, TRUNCATED
from yolov7fast.data.image_io import read_unchecked_image
from yolov7fast.reports.html_page import box_values, data_url, render

SUSPICIOUS, RANDOM = 36, 12  # images shown
EACH = 3  # of one check
SIDE = 320  # pixels of the longer side of an image on the page
MOST_BOXES, MOST_NAMES = 300, 25  # boxes drawn in one image; number up to which they have names


def as_page(examined: Examined, title: str) -> str:
    """The page as HTML text."""
    report = examined.report
    counts = Counter(finding.severity for finding in report.findings)
    splits = [(entry["name"], "number") for entry in report.figures.splits]
    given = os.path.abspath(report.path)
    root = os.path.join(given if os.path.isdir(given) else os.path.dirname(given), "")  # already given in the heading
    return render(
        "doctor.html",
        title=title,
        report=report,
        figures=report.figures,
        severities=[(word, counts[word]) for word in SEVERITIES],
        suspicious=[tile for i, reasons in _suspicious(examined) if (tile := _tile(examined, i, reasons))],
        random=[tile for i in _random(examined) if (tile := _tile(examined, i, []))],
        classes=_class_rows(report.figures.classes),
        splits_head=splits,
        place=lambda place: place_text(place, report.line_word).replace(root, ""),
    )


def _suspicious(examined: Examined) -> list[tuple[int, list[Place]]]:
    """(image, its findings): errors and warnings first, a few images of each check, both images of a pair."""
    chosen: dict[int, list[Place]] = defaultdict(list)
    for finding in sorted(examined.report.findings, key=lambda f: f.severity == NOTE):
        for place in [p for p in finding.places if p.image >= 0][:EACH]:
            pair = [(place.image, place.other), (place.other, place.image)][: 2 if place.other >= 0 else 1]
            if len(chosen.keys() | {image for image, _ in pair}) > SUSPICIOUS:
                continue
            for image, other in pair:
                partner = f": {os.path.basename(examined.samples[other].image)}" if other >= 0 else ""
                chosen[image].append(place._replace(text=f"{finding.check}{partner}"))
    return list(chosen.items())


def _random(examined: Examined) -> list[int]:
    """Random images, the same on every run; images with objects if there are any."""
    picked = [i for i, s in enumerate(examined.samples) if len(s.classes)] or list(range(len(examined.samples)))
    return sorted(random.Random(0).sample(picked, min(RANDOM, len(picked))))


def _tile(examined: Examined, index: int, findings: list[Place]) -> dict[str, Any] | None:
    """The values of the template for an image with its boxes; None if the image cannot be decoded."""
    sample, word, names = examined.samples[index], examined.report.line_word, examined.annotated.names
    if examined.facts["state"][index] not in (GOOD, TRUNCATED):
        return None  # OpenCV would print a warning
    image = _small(sample.image)
    if image is None:
        return None
    height, width = image.shape[:2]
    boxes = []
    for cls, box, line in zip(sample.classes.tolist()[:MOST_BOXES], sample.fractions, sample.lines):
        corners = (np.clip(box, -0.05, 1.05) * (width, height, width, height)).tolist()
        name = names[cls] if cls < len(names) else f"class {cls}"
        texts = {"name": f"{name}, {word} {line}", "shown": name[:24] if len(sample.classes) <= MOST_NAMES else ""}
        boxes.append(box_values(corners, height, cls, odd=any(place.line == line for place in findings), **texts))
    reasons = [f"{place.text}, {word} {place.line}" if place.line else place.text for place in findings]
    label = f"{list(examined.annotated.splits)[examined.objects.split[index]]}: {os.path.basename(sample.image)}"
    size = {"width": width, "height": height}
    return {**size, "src": data_url(image), "boxes": boxes, "label": label, "reasons": reasons}


def _small(path: str) -> np.ndarray | None:
    """An image as loaded for training, resized so that its longer side is SIDE; None if it cannot be read."""
    try:
        image = read_unchecked_image(path)
    except UserError:
        return None
    scale = SIDE / max(image.shape[:2])
    size = max(round(image.shape[1] * scale), 1), max(round(image.shape[0] * scale), 1)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST)


def _class_rows(classes: list[dict]) -> list[dict[str, Any]]:
    """Rows of the table of classes, most frequent first."""
    rows = [{**c, "total": sum(c["by_split"].values())} for c in classes]
    most = max((row["total"] for row in rows), default=0) or 1
    return sorted(({**row, "fraction": row["total"] / most} for row in rows), key=lambda row: -row["total"])
