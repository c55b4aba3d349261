"""Images to prove a file with: of the data set where one is given, else drawn; letterboxed to the size in question."""

from typing import Any, NamedTuple

import numpy as np

from yolov7fast.data.augment.transforms import letterbox
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.image_io import read_image
from yolov7fast.data.labels import find_images
from yolov7fast.data.shapes import draw_scene
from yolov7fast.inference.export.network import Source
from yolov7fast.inference.export.plan import Plan

COUNT = 6
DRAWN_SIZE = 640
BATCHES = (1, 3, 2)  # COUNT in all


class Case(NamedTuple):
    """A batch size and an image size that are tried."""

    batch: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.height}x{self.width}"


class Batch(NamedTuple):
    """Letterboxed images and where they lie."""

    images: np.ndarray  # uint8 (B, h, w, 3) BGR
    shapes: list[Any]  # per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h)))

    def content(self) -> np.ndarray:
        """(B, 4) float32: x, y, width, height of each image inside its letterbox, in whole pixels."""
        rows = [(pw, ph, w0 * rw, h0 * rh) for (h0, w0), ((rh, rw), (pw, ph)) in self.shapes]
        return np.array(rows, np.float32).reshape(-1, 4)


def sample_images(data: DataYaml | None, count: int = COUNT) -> list[np.ndarray]:
    """Images (h, w, 3) BGR, spread over the val images of the data set; without one, drawn."""
    if data is None:
        return [draw_scene(0, index, DRAWN_SIZE)[0] for index in range(count)]
    files = find_images(data.split("val"))
    return [read_image(path) for path in files[:: max(len(files) // count, 1)][:count]]


def cases(plan: Plan, source: Source) -> list[Case]:
    """What is tried: what the file allows, several batches and sizes where they are free."""
    height, width = plan.size
    half_height, half_width = (max(side // 2 // source.stride, 1) * source.stride for side in plan.size)
    sizes = [(height, width)]
    if "height" in plan.free:
        sizes += [(half_height, half_width), (half_height, width)]
        if not source.is_yolo:
            sizes = [(source.model.least_height(h, w), w) for h, w in sizes]
    batches = BATCHES if "batch" in plan.free else [plan.batch] * len(BATCHES)
    return [Case(batch, *sizes[i % len(sizes)]) for i, batch in enumerate(batches)]


def make_batch(images: list[np.ndarray], case: Case, first: int = 0) -> Batch:
    """The next images of the list, from `first` on, in letterboxes of the case's size."""
    chosen = [images[(first + i) % len(images)] for i in range(case.batch)]
    boxed = [letterbox(image, (case.height, case.width), auto=False) for image in chosen]
    shapes = [(image.shape[:2], ((r[1], r[0]), pad)) for image, (_, r, pad) in zip(chosen, boxed)]
    return Batch(np.stack([padded for padded, _, _ in boxed]), shapes)
