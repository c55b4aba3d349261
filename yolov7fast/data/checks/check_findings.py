"""The table of all checks with severity and remedy, the findings of a check, and their report as text."""

import shutil
import textwrap
from dataclasses import dataclass, field
from typing import NamedTuple

from yolov7fast.core.text import counted, printable
from yolov7fast.data.formats.annotated_set import place_of

NOTE, WARNING, ERROR = "note", "warning", "error"
SEVERITIES = (ERROR, WARNING, NOTE)
EXIT_CODES = {NOTE: 0, WARNING: 3, ERROR: 4}  # 1 is Python's own, 2 a mistake in the command
KEPT_PLACES = 200  # of each finding; counting continues
SHOWN_PLACES = 3  # of each finding in the terminal
SHOWN_CLASSES = 12
NARROWEST = 72  # columns


class Check(NamedTuple):
    """Something that can be wrong. unit: what is counted."""

    severity: str
    unit: str
    remedy: str


CHECKS = {
    # images
    "missing image": Check(ERROR, "image", "Restore the file, or remove it from the list or annotation that names it."),
    "unreadable image": Check(ERROR, "image", "Export or copy the file again, or remove it; training leaves it out."),
    "truncated image": Check(WARNING, "image", "Copy the file again: training reads its missing part as grey."),
    "unsupported image format": Check(ERROR, "image", "Save the image as JPEG or PNG; training leaves it out."),
    "image under 10 pixels": Check(ERROR, "image", "Remove it; training leaves it out."),
    "tiny image": Check(WARNING, "image", "Check that it is not a thumbnail; a larger original shows more."),
    "huge image": Check(WARNING, "image", "Shrink it beforehand (yolov7fast data resize), or cut it into tiles."),
    "rotated by EXIF": Check(WARNING, "image", "Training turns it upright; check the boxes."),
    "size differs from annotation": Check(ERROR, "image", "Correct width and height in the annotation, or the boxes."),
    "dark 16-bit image": Check(WARNING, "image", "Multiply its values by 2 ** (16 - used bits), or save 8 bits."),
    "grey image": Check(NOTE, "image", "Fine if images in use are grey too; else add colour images."),
    "suffix differs from content": Check(NOTE, "image", "Rename the file; training reads it by its content."),
    # labels
    "missing label": Check(WARNING, "image", "Label it, or keep it as background with an empty label file."),
    "empty label": Check(NOTE, "image", "Background images are useful up to about a tenth of the set."),
    "unreadable label": Check(ERROR, "file", "Export the file again; training leaves its image out."),
    "too many objects": Check(ERROR, "file", "Split the image into tiles; training leaves it out."),
    "image id given twice": Check(ERROR, "image", "Give each image a separate id; training leaves these out."),
    "image named twice": Check(ERROR, "image", "Merge the entries of the image into one; training leaves it out."),
    "wrong columns": Check(ERROR, "line", "Write 'class cx cy w h', or class and at least 4 points of a polygon."),
    "not a number": Check(ERROR, "line", "Correct or remove the line; training leaves the whole image out."),
    "not finite": Check(ERROR, "line", "Correct or remove the line; training leaves the whole image out."),
    "bad class": Check(ERROR, "line", "Give the object one of the data set's classes."),
    "fractional class": Check(WARNING, "line", "Write the class as a whole number; training cuts the fraction."),
    "box among polygons": Check(ERROR, "line", "Write the box as a polygon of 4 points, or the whole file as boxes."),
    "class beyond nc": Check(ERROR, "box", "Correct the class, or nc and names of the data set; training stops here."),
    "coordinates out of range": Check(ERROR, "box", "Give fractions of the image in 0..1, not pixels or percentages."),
    "box outside the image": Check(ERROR, "box", "Remove it, or correct the image's size in the annotation."),
    "box over the edge": Check(WARNING, "box", "Cut it at the edge of the image (--fix does)."),
    "box without area": Check(ERROR, "box", "Remove it (--fix does); it is never learnt."),
    "duplicate box": Check(ERROR, "box", "Remove it (--fix does); training leaves the whole image out."),
    "nearly the same box": Check(WARNING, "pair", "Keep one of the two boxes, unless there are two objects."),
    "nearly the same box, two classes": Check(WARNING, "pair", "Keep one class; the two boxes contradict each other."),
    "box covers the image": Check(NOTE, "box", "Check that it is an object and not drawn by mistake."),
    "label without image": Check(WARNING, "file", "Add the image, or remove the label."),
    "shared label file": Check(ERROR, "image", "Rename one of the images: both read the same label file."),
    # the set
    "image in two splits": Check(ERROR, "image", "Remove it from one of them: validation metrics are too high."),
    "near duplicates in two splits": Check(WARNING, "pair", "Keep a scene in one split: metrics are too high."),
    "same image twice": Check(WARNING, "image", "Remove one, or check that both have the same labels."),
    "near duplicates": Check(NOTE, "pair", "Fine for frames of a video; otherwise keep fewer of them."),
    "unused class": Check(WARNING, "class", "Remove the name, or label objects of it."),
    "class in val alone": Check(ERROR, "class", "Move some of its images to training; it cannot be learnt."),
    "class missing in val": Check(WARNING, "class", "Move some of its images to validation; its AP is not measured."),
    "rare class": Check(WARNING, "class", "Label more of it, or try --image-weights."),
    "outnumbered class": Check(NOTE, "class", "Compare its AP with the others'; --image-weights draws it more often."),
    "class name given twice": Check(WARNING, "class", "Merge the two classes, or rename one of them."),
    "box below 3 pixels": Check(WARNING, "box", "Train at a larger --img-size, or cut images into tiles."),
    "no anchor reaches": Check(WARNING, "box", "Let autoanchor run, or use the anchors given here."),
}


# what a copy written by `formats.write_dataset` does not have
CORRECTED = {
    *("missing image", "unreadable image", "image under 10 pixels", "unsupported image format", "unreadable label"),
    *("wrong columns", "not a number", "not finite", "bad class", "fractional class", "box among polygons"),
    *("class beyond nc", "coordinates out of range", "box outside the image", "box over the edge", "box without area"),
    *("duplicate box", "shared label file", "missing label", "suffix differs from content", "label without image"),
}


class Place(NamedTuple):
    """Where something was found."""

    file: str
    line: int  # 1-based; 0: the whole file; for COCO the id of the annotation
    text: str
    image: int = -1  # index of the image in the report, -1: none
    other: int = -1  # the other image of a pair


@dataclass
class Finding:
    """All places of one check."""

    check: str
    count: int = 0
    places: list[Place] = field(default_factory=list)

    @property
    def severity(self) -> str:
        return CHECKS[self.check].severity

    @property
    def remedy(self) -> str:
        return CHECKS[self.check].remedy

    @property
    def counted(self) -> str:
        """'3 boxes'."""
        unit = CHECKS[self.check].unit
        return counted(self.count, unit, f"{unit}es" if unit[-1] in "xs" else "")


class Findings:
    """Findings by check, filled place by place."""

    def __init__(self):
        self._by_check: dict[str, Finding] = {}

    def add(self, check: str, file: str, line: int = 0, text: str = "", image: int = -1, other: int = -1) -> None:
        finding = self._by_check.setdefault(check, Finding(check))
        finding.count += 1
        if len(finding.places) < KEPT_PLACES:
            finding.places.append(Place(file, line, text, image, other))

    def sorted(self) -> list[Finding]:
        """Errors first, then in the order of the table."""
        order = {check: i for i, check in enumerate(CHECKS)}
        return sorted(self._by_check.values(), key=lambda f: (SEVERITIES.index(f.severity), order[f.check]))


@dataclass
class DatasetCounts:
    """Counts of a data set, as the report shows them."""

    splits: list[dict] = field(default_factory=list)  # name, images, labelled, objects
    classes: list[dict] = field(default_factory=list)  # name, objects by split, images
    sizes: list[dict] = field(default_factory=list)  # from, to, boxes
    img_size: int = 640
    anchors_given: str = ""
    anchors_found: str = ""  # anchors that match all boxes, where the given ones do not
    reached: float = 1.0  # fraction of boxes that an anchor matches
    reached_then: float = 1.0  # with the anchors found
    objects: list[dict] = field(default_factory=list)  # from, to, images
    most_objects: int = 0
    mosaic4: int = 0  # objects of the densest mosaic of 4 and of 9 images
    mosaic9: int = 0
    image_sizes: list[dict] = field(default_factory=list)  # width, height, images


@dataclass
class CheckReport:
    """The outcome of the checks of a data set."""

    path: str  # as the user gave it
    kind: str
    evidence: str
    line_word: str  # what lines count: "line", "annotation" or "object"
    summary: str  # '8 images, ...'
    notes: list[str]
    findings: list[Finding]
    figures: DatasetCounts

    @property
    def severity(self) -> str:
        """The highest severity of the findings; a note if there are none."""
        return min((f.severity for f in self.findings), key=SEVERITIES.index, default=NOTE)


# --- report as text ---------------------------------------------------------------------------------------------------


def as_text(report: CheckReport, width: int | None = None) -> str:
    """All findings with their first places and remedies, then the counts, as wide as the terminal."""
    width = max(width or shutil.get_terminal_size((110, 24)).columns, NARROWEST)
    lines = _wrapped(f"{report.path}: {report.kind} ({report.evidence}): {report.summary}", width)
    for note in report.notes:
        lines += _wrapped(note, width, "  ")
    lines += ["", f"{'severity':<9}{'count':>15}  finding" if report.findings else "no problems were found"]
    for finding in report.findings:
        lines.append(f"{finding.severity:<9}{finding.counted:>15}  {finding.check}")
        indent = " " * 26
        for place in finding.places[:SHOWN_PLACES]:
            lines += _wrapped(place_text(place, report.line_word), width, indent)
        if finding.count > SHOWN_PLACES:
            lines.append(f"{indent}... and {finding.count - SHOWN_PLACES:,} more")
        lines += _wrapped(f"-> {finding.remedy}", width, indent)
    return "\n".join([*lines, "", *_count_lines(report.figures, width)])


def undecided(report: CheckReport) -> str:
    """The findings that only the user can resolve, with all known places."""
    rest = [f for f in report.findings if f.check not in CORRECTED and f.severity != NOTE]
    lines = ["# not corrected, because only you can decide:"] if rest else []
    for finding in rest:
        lines.append(f"# {finding.counted}: {finding.check}. {finding.remedy}")
        lines += [f"#   {place_text(place, report.line_word)}" for place in finding.places]
        if finding.count > len(finding.places):
            lines.append(f"#   ... and {finding.count - len(finding.places):,} more")
    return "\n".join(lines)


def place_text(place: Place, line_word: str) -> str:
    """'labels/a.txt:3: class 9; ...': file, line (or annotation) and the fault."""
    where = place_of(place.file, place.line, line_word)
    return f"{where}: {printable(place.text, 400)}" if place.text else where


def _count_lines(figures: DatasetCounts, width: int) -> list[str]:
    line = "{name:<6} {images:>9,} images {labelled:>9,} labelled {objects:>10,} objects"
    lines = [*(line.format(**entry) for entry in figures.splits), ""]
    ordered = sorted(((sum(c["by_split"].values()), c["name"]) for c in figures.classes), key=lambda c: -c[0])
    total = max(sum(n for n, _ in ordered), 1)
    for n, name in ordered[:SHOWN_CLASSES]:
        lines.append(f"{printable(name, 24):<24} {n:>10,} objects {n / total:>6.1%}  {'#' * round(30 * n / total)}")
    if len(ordered) > SHOWN_CLASSES:
        lines.append(f"... and {len(ordered) - SHOWN_CLASSES} more classes")
    ranges = [f"{b['from']}-{b['to']}" if b["to"] else f"over {b['from']}" for b in figures.sizes]
    sizes = ", ".join(f"{span} px {b['count']:,}" for span, b in zip(ranges, figures.sizes)) or "no boxes"
    paragraphs = [f"box sizes at {figures.img_size}: {sizes}"]
    if figures.anchors_given:
        paragraphs.append(f"boxes that an anchor reaches: {figures.reached:.2%}")
    if figures.anchors_found:
        paragraphs.append(f"anchors for this set reach {figures.reached_then:.2%}: {figures.anchors_found}")
    densest = f"densest mosaic of 4 images {figures.mosaic4:,}, of 9 images {figures.mosaic9:,} objects"
    paragraphs.append(f"objects an image: at most {figures.most_objects:,}; {densest}")
    return [*lines, "", *(line for text in paragraphs for line in _wrapped(text, width))]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    wrapper = textwrap.TextWrapper(width, indent, indent, break_on_hyphens=False, break_long_words=False)
    return wrapper.wrap(printable(text))
