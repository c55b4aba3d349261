"""Data checks at the start of training that read no pixels: a small part of `yolov7fast data check`."""

import filecmp
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from yolov7fast.data.autoanchor import box_sizes

if TYPE_CHECKING:
    from yolov7fast.data.dataset import LoadImagesAndLabels

SMALLEST_SIDE = 3.0  # pixels; smaller boxes are ignored by autoanchor and the augmentation
COMPARED = 16  # validation images that are compared with training images
HARMLESS = ("empty label",)  # kinds of problems that need no warning


def odd_signs(train: "LoadImagesAndLabels", val: "LoadImagesAndLabels | None", img_size: int) -> list[str]:
    """Return signs, as text, that a data set should be checked; none for an ordinary one."""
    signs = []
    for name, data in (("train", train), ("val", val)):
        kinds = {} if data is None else {k: n for k, n in data.problem_kinds.items() if k not in HARMLESS}
        if kinds:
            signs.append(f"{name}: " + ", ".join(f"{count} x {kind}" for kind, count in kinds.items()))
    sizes = box_sizes(train, img_size)
    if small := int((sizes < SMALLEST_SIDE).any(1).sum()):
        signs.append(f"{small:,} of {len(sizes):,} boxes are below 3 pixels at {img_size}")
    names = [{os.path.basename(path) for path in data.img_files} for data in (train, val) if data is not None]
    shared = 0 if val is None else len(set.intersection(*names))
    if shared:
        signs.append(f"{shared:,} file names are in train and in val")
    return signs


def same_images(train: "LoadImagesAndLabels", val: "LoadImagesAndLabels") -> str:
    """Return a warning if all validation images seem to be training images too, otherwise an empty text.

    Up to COMPARED validation images, evenly spread, are compared by size and content with training images of their
    shape; the comparison ends at the first one without an equal, so it costs almost nothing for correct data sets.
    """
    by_shape: dict[tuple, list[str]] = {}
    for path, shape in zip(train.img_files, train.shapes.tolist()):
        by_shape.setdefault(tuple(shape), []).append(path)
    n = len(val.img_files)
    for i in sorted({k * n // COMPARED for k in range(COMPARED)}):
        if not _has_equal(val.img_files[i], by_shape.get(tuple(val.shapes[i].tolist()), [])):
            return ""
    equal = "the validation images are" if n <= COMPARED else f"{COMPARED} of {COMPARED} compared validation images are"
    return (
        f"{equal} training images too, so mAP measures memory; keep some images out of training: a split of your own, "
        "or a data set without val: and --val-fraction 0.1"
    )


def _has_equal(path: str, others: Sequence[str]) -> bool:
    """Return whether one of the files is this file or has its content."""
    name = os.path.basename(path)
    others = sorted(others, key=lambda other: os.path.basename(other) != name)  # a copy usually keeps its name
    try:
        return any(os.path.samefile(path, other) or filecmp.cmp(path, other, shallow=False) for other in others)
    except OSError:  # gone since it was checked
        return False


def closer_look(signs: Sequence[str], data: str, img_size: int, cfg: str = "") -> str:
    """Return one line with the signs and the command that lists their files. cfg: the network, if it has anchors."""
    words = ["yolov7fast", "data", "check", data, "--img-size", str(img_size), *(["--cfg", cfg] if cfg else [])]
    return f"data: {'; '.join(signs)}. A closer look: {shlex.join(words)}"
