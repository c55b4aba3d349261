"""A sample's objects as lines of a YOLO label file that training accepts."""

from collections import Counter

import numpy as np

from yolov7fast.data.formats.outline import agrees, corners, extent, join_rings, with_four_points
from yolov7fast.data.formats.samples import Sample

ROUGH = 5  # decimals within which two lines are the same object: a reader would reject the whole file for it


def label_lines(sample: Sample, changes: Counter, boxes_only: bool = False, size=None) -> list[str]:
    """Lines `class cx cy w h`, or `class x y x y ...` for all objects if any has an outline.

    What training does not take is left out or cut, and counted in `changes`: crowd regions, boxes without area, the
    same object twice, parts outside the image. size: the image's pixels, where the frame is (1, 1).
    """
    frame = np.array(sample.frame)
    outlines = sample.outlines
    polygons = not boxes_only and any(outlines)
    width, height = size or sample.frame
    pixel = (frame[0] / width, frame[1] / height) if width > 1 else (0.002, 0.002)
    lines: dict[tuple, str] = {}
    for cls, box, crowd, rings in zip(sample.classes.tolist(), sample.boxes, sample.crowd, outlines):
        if crowd:
            changes["crowd regions left out"] += 1
            continue
        path = corners(box)
        if polygons and rings:
            joined = join_rings(rings)
            if agrees(joined, box, pixel):
                path = with_four_points(joined)
            else:
                changes["outlines replaced by their boxes, which they do not fit"] += 1
        inside = np.clip(path / frame, 0, 1)
        left, top, right, bottom = extent(inside)
        if right <= left or bottom <= top:
            changes["boxes without area left out"] += 1
            continue
        if np.abs(inside * frame - path).max() > 1e-3 * max(pixel):
            changes["boxes cut at the edge of the image"] += 1
        whole = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
        key = (cls, *(round(float(v), ROUGH) for v in whole))
        if key in lines:
            changes["objects given twice, kept once"] += 1
            continue
        values = inside.ravel() if polygons else whole
        lines[key] = f"{cls} " + " ".join(f"{v:.8g}" for v in values)
    return list(lines.values())
