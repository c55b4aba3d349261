"""Checks of the set as a whole: classes, box sizes against image size and anchors, objects an image."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.data.autoanchor import cluster, evolve
from yolov7fast.data.checks.findings import Findings, counted
from yolov7fast.data.checks.objects import Objects
from yolov7fast.data.formats.samples import Sample
from yolov7fast.data.image_facts import loaded_sizes
from yolov7fast.data.quick_check import SMALLEST_SIDE

RARE = 20  # training objects below which a class is rare
OUTNUMBERED = 10  # times as many training objects as a class has, in the most frequent one
BINS = (0, 3, 8, 16, 32, 64, 96, 128, 256, 512)  # pixels, of box sizes
FEW_FOR_ANCHORS, MOST_FOR_ANCHORS = 50, 5000  # boxes between which anchors are worked out from all
GENERATIONS = 300  # of their evolution
SMALLEST_ANCHOR = 2.0  # pixels: boxes smaller than the smallest anchor that the evolution makes are left out


@dataclass
class Figures:
    """What is counted rather than found; plain numbers, so that they can be stored."""

    splits: list[dict] = field(default_factory=list)  # name, images, labelled, objects
    classes: list[dict] = field(default_factory=list)  # name, objects by split, images
    sizes: list[dict] = field(default_factory=list)  # from, to, boxes
    img_size: int = 640
    anchors_given: str = ""
    anchors_found: str = ""  # anchors that reach all boxes, where the given ones do not
    reached: float = 1.0  # fraction of boxes that an anchor reaches
    reached_then: float = 1.0  # with the anchors found
    objects: list[dict] = field(default_factory=list)  # from, to, images
    most_objects: int = 0
    mosaic4: int = 0  # objects of the densest mosaic of 4 and of 9 images
    mosaic9: int = 0
    image_sizes: list[dict] = field(default_factory=list)  # width, height, images


def count(samples: Sequence[Sample], objects: Objects, splits: list[str], names: list[str], img_size: int) -> Figures:
    """Everything that is counted, without looking at pixels."""
    figures = Figures(img_size=img_size)
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


def check_classes(figures: Figures, splits: list[str], source: str, found: Findings) -> None:
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


def boxes_in_pixels(objects: Objects, facts: np.ndarray, img_size: int) -> tuple[np.ndarray, np.ndarray]:
    """((m, 2) sizes of boxes in pixels when the longer side of their image is `img_size`, (m,) which are usable)."""
    sizes = loaded_sizes(facts).astype(np.float64)
    longer = sizes.max(1, initial=0)
    scaled = sizes * (img_size / np.maximum(longer, 1))[:, None]
    wh = objects.wh * scaled[objects.image]
    usable = (longer[objects.image] > 0) & (objects.wh > 0).all(1) & (objects.wh <= 1.01).all(1) & ~objects.crowd
    return wh, usable


def check_sizes(
    samples: Sequence[Sample],
    objects: Objects,
    facts: np.ndarray,
    anchors: np.ndarray,
    threshold: float,
    figures: Figures,
    found: Findings,
) -> None:
    """Boxes too small for the image size, and boxes that no anchor (k, 2) reaches by a factor of `threshold`."""
    wh, usable = boxes_in_pixels(objects, facts, figures.img_size)
    figures.sizes = _bins(np.sqrt(wh[usable].prod(1)), BINS)
    for k in np.flatnonzero(usable & (wh < SMALLEST_SIDE).any(1)).tolist():
        i, text = int(objects.image[k]), f"{wh[k, 0]:.1f} x {wh[k, 1]:.1f} pixels at {figures.img_size}"
        found.add("box below 3 pixels", samples[i].label_file, int(objects.line[k]), text, i)
    rows = np.flatnonzero(usable)
    reached = reach(wh[rows], anchors, threshold)
    for k in rows[~reached].tolist():
        i, text = int(objects.image[k]), f"{wh[k, 0]:.0f} x {wh[k, 1]:.0f} pixels at {figures.img_size}"
        found.add("no anchor reaches", samples[i].label_file, int(objects.line[k]), text, i)
    figures.anchors_given = anchor_text(anchors)
    figures.reached = float(reached.mean()) if len(reached) else 1.0
    if not reached.all():
        _better_anchors(wh[rows], len(anchors), threshold, figures)


def best_match(wh: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(m,) the worse side ratio, up to 1, of each box with the anchor that fits it best."""
    best = np.zeros(len(wh), wh.dtype)
    for anchor in anchors.astype(wh.dtype):
        ratio = wh / anchor
        sides = np.minimum(ratio, 1 / ratio)
        np.maximum(best, np.minimum(sides[:, 0], sides[:, 1]), out=best)
    return best


def reach(wh: np.ndarray, anchors: np.ndarray, threshold: float) -> np.ndarray:
    """(m,) whether an anchor is within a factor of `threshold` of a box in width and in height."""
    return best_match(wh, anchors) > 1 / threshold


def _better_anchors(wh: np.ndarray, n: int, threshold: float, figures: Figures) -> None:
    """Anchors by the same k-means and evolution as autoanchor's, for the same draws on every run."""
    if len(wh) < FEW_FOR_ANCHORS:
        return
    state = np.random.get_state()
    np.random.seed(0)
    some = wh if len(wh) <= MOST_FOR_ANCHORS else wh[np.random.permutation(len(wh))[:MOST_FOR_ANCHORS]]
    some = some[(some >= SMALLEST_ANCHOR).any(1)]
    rough = some.astype(np.float32)

    def fitness(anchors: np.ndarray) -> float:
        """Mean best match of all boxes, 0 for those that no anchor reaches."""
        best = best_match(rough, anchors)
        return float(np.where(best > 1 / threshold, best, 0).mean())

    try:
        found = evolve(cluster(some, n), fitness, GENERATIONS)
    except UserError:  # boxes of one size
        return
    finally:
        np.random.set_state(state)
    found = found[np.argsort(found.prod(1))]
    then = float(reach(wh, found, threshold).mean())
    if then > figures.reached:
        figures.anchors_found, figures.reached_then = anchor_text(found), then


def anchor_text(anchors: np.ndarray) -> str:
    """'10,13, 16,30': as a network's YAML has them."""
    return ", ".join(f"{w:.0f},{h:.0f}" for w, h in anchors)
