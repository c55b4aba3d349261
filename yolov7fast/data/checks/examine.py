"""All checks of a data set, and those of the set as a whole: classes, box sizes against anchors, objects an image."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.files.settings_files import read_yaml
from yolov7fast.core.text import counted
from yolov7fast.data.autoanchor import anchor_fitness, cluster, evolve, side_ratios
from yolov7fast.data.checks.check_findings import CheckReport, DatasetCounts, Findings
from yolov7fast.data.checks.sample_checks import Objects, check_duplicates, check_images, check_labels, collect
from yolov7fast.data.formats.annotated_set import AnnotatedSet, Sample
from yolov7fast.data.formats.recognise import recognise
from yolov7fast.data.image_facts import loaded_sizes, look_at
from yolov7fast.data.quick_check import SMALLEST_SIDE

DEFAULT_CFG = "cfg/training/yolov7.yaml"
RARE = 20  # training objects below which a class is rare
OUTNUMBERED = 10  # times as many training objects as a class has, in the most frequent one
BINS = (0, 3, 8, 16, 32, 64, 96, 128, 256, 512)  # pixels, of box sizes
FEW_FOR_ANCHORS, MOST_FOR_ANCHORS = 50, 5000  # below the first none are searched; above the second a sample is used
GENERATIONS = 300  # of their evolution
THRESHOLD = 4.0  # anchor_t of the shipped hyper-parameters
SHOWN_SIZES = 12  # of images, the most frequent ones


@dataclass
class Examined:
    """A report with the data that it was made from."""

    report: CheckReport
    annotated: AnnotatedSet
    samples: list[Sample]  # of all splits
    objects: Objects
    facts: np.ndarray  # FACTS (n,) of the samples' images


def examine(path: str | Path, img_size: int = 640, cfg: str = DEFAULT_CFG) -> Examined:
    """Check a data set in any format.

    Args:
        path: data YAML, folder, .zip, COCO .json or .csv.
        img_size: the training size in pixels by which boxes are judged.
        cfg: the network whose anchors the boxes are judged by.
    """
    found = recognise(path)
    anchors = anchors_of(cfg)
    annotated = found.read()
    samples, objects = collect(annotated)
    facts = look_at([sample.image for sample in samples], str(found.root))
    findings, splits = Findings(), list(annotated.splits)
    figures = count(samples, objects, splits, annotated.names, img_size)
    check_labels(annotated, samples, objects, findings)
    check_classes(figures, splits, found.yolo.path if found.yolo else str(found.root), findings)
    check_images(samples, facts, findings)
    check_duplicates(samples, objects.split, splits, facts, findings)
    check_sizes(samples, objects, facts, anchors, figures, findings)
    ordered, summary = findings.sorted(), annotated.counts()
    report = CheckReport(
        str(path), found.kind, found.evidence, annotated.line_word, summary, annotated.notes, ordered, figures
    )
    return Examined(report, annotated, samples, objects, facts)


def anchors_of(cfg: str) -> np.ndarray:
    """(k, 2) widths and heights in pixels of all anchors of a network's YAML."""
    path = check_file(cfg, "cfg")
    values = read_yaml(path)
    levels: Any = values.get("anchors") if isinstance(values, dict) else None
    try:
        anchors = np.array([pair for level in levels for pair in np.reshape(level, (-1, 2))], np.float64)
    except (TypeError, ValueError):
        anchors = np.zeros((0, 2))
    if not len(anchors) or not (anchors > 0).all():
        raise UserError(f"--cfg {path} has no anchors; give the description of a YOLOv7 network, such as {DEFAULT_CFG}")
    return anchors


def count(
    samples: Sequence[Sample], objects: Objects, splits: list[str], names: list[str], img_size: int
) -> DatasetCounts:
    """Counts of images, classes and objects."""
    figures = DatasetCounts(img_size=img_size)
    labelled = np.array([s.labelled for s in samples], bool)
    seen = objects.cls < len(names)
    per = np.zeros((len(splits), len(names)), np.int64)
    np.add.at(per, (objects.split[objects.image[seen]], objects.cls[seen]), 1)
    for number, name in enumerate(splits):
        own = objects.split == number
        counted = {"images": int(own.sum()), "labelled": int((own & labelled).sum())}
        figures.splits.append({"name": name, **counted, "objects": int(objects.counts[own].sum())})
    pairs = np.unique(np.stack((objects.cls[seen], objects.image[seen]), 1), axis=0)
    images = np.bincount(pairs[:, 0], minlength=len(names)) if len(names) else []
    for cls, name in enumerate(names):
        by_split = dict(zip(splits, per[:, cls].tolist()))
        figures.classes.append({"id": cls, "name": name, "by_split": by_split, "images": int(images[cls])})
    train = objects.counts[objects.split == 0]
    top = np.sort(train)[::-1]
    figures.most_objects, figures.mosaic4, figures.mosaic9 = (int(top[:n].sum()) for n in (1, 4, 9))
    figures.objects = _bins(train, (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
    return figures


def _bins(values: np.ndarray, edges: Sequence[int]) -> list[dict]:
    """How many values lie from one edge up to the next, without empty bins at the end."""
    counts, _ = np.histogram(values, [*edges, np.inf])
    last = int(np.flatnonzero(counts)[-1]) if counts.any() else -1
    ends = [*edges[1:], None]
    return [{"from": edges[k], "to": ends[k], "count": int(counts[k])} for k in range(last + 1)]


def check_classes(figures: DatasetCounts, splits: list[str], source: str, found: Findings) -> None:
    """source: the file or folder that names the classes."""
    by_plain = defaultdict(list)
    most = max(figures.classes, key=lambda c: c["by_split"].get("train", 0), default={})
    for entry in figures.classes:
        by_plain[" ".join(entry["name"].casefold().replace("_", " ").split())].append(entry)
        train, total = entry["by_split"].get("train", 0), sum(entry["by_split"].values())
        place = f"class {entry['id']} {entry['name']}"
        if not total:
            found.add("unused class", source, text=place)
        elif "train" in splits and not train:
            found.add("class in val alone", source, text=f"{place}: {counted(total, 'object')}, none in train")
        elif "train" in splits and train < RARE:
            found.add("rare class", source, text=f"{place}: {counted(train, 'object')} in train")
        elif train and (times := most["by_split"]["train"] / train) >= OUTNUMBERED:
            found.add(
                "outnumbered class", source, text=f"{place}: {most['name']} has {times:.0f} times as many objects"
            )
        if total and train and "val" in splits and not entry["by_split"]["val"]:
            found.add("class missing in val", source, text=f"{place}: {counted(train, 'object')} in train")
    for entries in by_plain.values():
        for entry in entries[1:]:
            found.add("class name given twice", source, text=f"classes {entries[0]['id']} and {entry['id']}")


def check_sizes(
    samples: Sequence[Sample],
    objects: Objects,
    facts: np.ndarray,
    anchors: np.ndarray,
    figures: DatasetCounts,
    found: Findings,
) -> None:
    """Boxes too small for the image size, and boxes that no anchor (k, 2) matches within a factor of THRESHOLD."""
    sizes = loaded_sizes(facts).astype(np.float64)
    longer = sizes.max(1, initial=0)
    scaled = sizes * (figures.img_size / np.maximum(longer, 1))[:, None]  # longer side: img_size
    wh = objects.wh * scaled[objects.image]
    usable = (longer[objects.image] > 0) & (objects.wh > 0).all(1) & (objects.wh <= 1.01).all(1) & ~objects.crowd
    figures.sizes = _bins(np.sqrt(wh[usable].prod(1)), BINS)
    rows = np.flatnonzero(usable)
    reached = _reached(wh[rows], anchors)
    for check, own, digits in (
        ("box below 3 pixels", rows[(wh[rows] < SMALLEST_SIDE).any(1)], 1),
        ("no anchor reaches", rows[~reached], 0),
    ):
        for k in own.tolist():
            i, (w, h) = int(objects.image[k]), wh[k]
            text = f"{w:.{digits}f} x {h:.{digits}f} pixels at {figures.img_size}"
            found.add(check, samples[i].label_file, int(objects.line[k]), text, i)
    figures.anchors_given = anchor_text(anchors)
    figures.reached = float(reached.mean()) if len(reached) else 1.0
    if len(rows) >= FEW_FOR_ANCHORS and not reached.all():
        _better_anchors(wh[rows], len(anchors), figures)
    common = Counter(zip(facts["width"].tolist(), facts["height"].tolist())).most_common()
    known = [{"width": w, "height": h, "count": n} for (w, h), n in common if w > 0]
    figures.image_sizes = known[:SHOWN_SIZES]


def _reached(wh: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(m,) whether an anchor matches each box."""
    return side_ratios(wh.astype(np.float32), anchors.astype(np.float32)).max(1, initial=0) > 1 / THRESHOLD


def _better_anchors(wh: np.ndarray, n: int, figures: DatasetCounts) -> None:
    """Search n anchors by autoanchor's k-means and evolution, with the same random numbers on every run."""
    state = np.random.get_state()
    np.random.seed(0)
    some = wh[np.random.permutation(len(wh))[:MOST_FOR_ANCHORS]].astype(np.float32)
    try:
        found = evolve(cluster(some, n), lambda anchors: anchor_fitness(anchors, some, THRESHOLD), GENERATIONS)
    except UserError:  # boxes of one size
        return
    finally:
        np.random.set_state(state)
    then = float(_reached(wh, found).mean())
    if then > figures.reached:
        figures.anchors_found, figures.reached_then = anchor_text(found[np.argsort(found.prod(1))]), then


def anchor_text(anchors: np.ndarray) -> str:
    """'10,13, 16,30': as a network's YAML has them."""
    return ", ".join(f"{w:.0f},{h:.0f}" for w, h in anchors)
