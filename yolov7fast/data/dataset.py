"""The data set of a detector: images and labels, augmented for training or letterboxed for evaluation.

A sample is a uint8 (3, H, W) RGB image with float32 (m, 6) labels [0, class, cx, cy, w, h], normalised. By default its
random numbers come from Python's and NumPy's global generators in upstream's order; with a seed they are keyed by
(seed, epoch, index).
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

from yolov7fast.core.boxes import xywhn2xyxy
from yolov7fast.core.errors import UserError
from yolov7fast.data.augment.copy_paste import ENOUGH_CUTOUTS, CutOut, copy_paste, cut_out, paste_in
from yolov7fast.data.augment.mosaic import (
    MosaicLayout,
    MosaicPlan,
    SampleDraft,
    Scene,
    draw_canvas,
    draw_four,
    draw_nine,
    layout,
    mosaic_labels,
    mosaic_segments,
    render,
    visible_images,
)
from yolov7fast.data.augment.random_source import GLOBAL, KeyedRandom, RandomSource
from yolov7fast.data.augment.transforms import (
    Warp,
    draw_colour,
    draw_warp,
    letterbox,
    letterbox_fit,
    resize_to,
    warp_labels,
)
from yolov7fast.data.caches.image_cache import open_cache
from yolov7fast.data.caches.label_cache import cache_path, load_labels
from yolov7fast.data.image_io import LoadedImage, load_resized, resized_shape
from yolov7fast.data.labels import Paths, Subset, find_images, img2label_paths
from yolov7fast.data.loading.batches import collate, collate_quad

FOUR_TILES = 0.8  # probability that a mosaic has four images rather than nine
Key = int | tuple[int, int]  # index, or (epoch, index)
# [class, x1, y1, x2, y2] @ CENTRES = [0, class, cx, cy, w, h]; products are exact, so each sum is rounded once
CENTRES = np.array(
    [[0, 1, 0, 0, 0, 0], [0, 0, 0.5, 0, -1, 0], [0, 0, 0, 0.5, 0, -1], [0, 0, 0.5, 0, 1, 0], [0, 0, 0, 0.5, 0, 1]],
    np.float32,
)

cv2.setNumThreads(0)  # workers share the cores, so OpenCV's threads would only compete


class Augmented(NamedTuple):
    """A sample before its flips."""

    img: np.ndarray  # uint8 (H, W, 3) BGR
    labels: np.ndarray  # float32 (m, 5): class, x1, y1, x2, y2 in pixels
    shapes: tuple | None  # ((h0, w0), ((h / h0, w / w0), (dw, dh))); None for a mosaic


class LoadImagesAndLabels(Dataset):
    """Images and labels for training (`augment`) and evaluation.

    `dataset[i]`, or `dataset[(epoch, i)]` under a seed -> (uint8 (3, H, W) tensor, float32 (m, 6) tensor, path,
    shapes). Attributes, all in the same order: `img_files`, `label_files`, `labels` (float32 (m, 5) each), `shapes`
    (float64 (n, 2): width, height), `segments`. Samples start with, and mosaics draw from, the images `indices`.
    `batch` is the batch number of each image and, under `rect`, `batch_shapes` the (H, W) of each batch.
    """

    def __init__(
        self,
        path: Paths,
        img_size: int = 640,
        batch_size: int = 16,
        augment: bool = False,
        hyp: Mapping[str, float] | None = None,
        rect: bool = False,
        image_weights: bool = False,
        cache_images: bool | str = False,
        single_cls: bool = False,
        stride: int = 32,
        pad: float = 0.0,
        prefix: str = "",
        *,
        seed: int | None = None,
        cache_dir: str | os.PathLike | None = None,
        subset: Subset | None = None,
        keep_partial_labels: bool = False,
    ):
        self.path = path
        self.img_size = img_size
        self.augment = augment
        self.hyp: Mapping[str, float] = {} if hyp is None else hyp
        self.image_weights = image_weights
        self.rect = rect and not image_weights
        self.mosaic = augment and not self.rect
        self.mosaic_border = (-img_size // 2, -img_size // 2)
        self.stride = stride
        self.seed = seed
        found = find_images(path, prefix)
        table = load_labels(found, path, prefix, cache_dir, keep_partial_labels)
        if not table.img_files:
            raise UserError(f"{prefix}none of the {len(found)} images of {path} is usable: {table.why_skipped()}")
        if self.augment and not table.counts.found:
            raise UserError(_no_labels(prefix, path, img2label_paths(found)))
        picked = range(len(table.img_files)) if subset is None else subset.pick(len(table.img_files))
        self.img_files = [table.img_files[i] for i in picked]
        self.label_files = img2label_paths(self.img_files)
        self.labels = [table.labels[i].copy() for i in picked]
        self.segments = [table.segments[i] for i in picked]
        self.shapes = table.shapes[list(picked)].astype(np.float64)
        self.problem_kinds = dict(Counter(problem.kind for problem in table.problems))
        self.first_loss = table.first_loss
        if single_cls:
            for rows in self.labels:
                rows[:, 0] = 0
        if any(self.segments):
            self.segments = [s or _rectangles(rows) for s, rows in zip(self.segments, self.labels)]
        self.n = len(self.img_files)
        self.indices: Sequence[int] = range(self.n)
        self.batch = np.arange(self.n) // batch_size
        self.batch_shapes: np.ndarray | None = None
        if self.rect:
            self._group_by_aspect(pad)
        self.has_polygons = any(self.segments)
        # int64 (n, 2): h, w of each image once loaded, from the sizes in the label cache
        self._resized = np.array([resized_shape(int(h), int(w), img_size) for w, h in self.shapes.tolist()])
        folder = cache_path(path, self.label_files).parent
        self._images = open_cache(cache_images, self.img_files, img_size, augment, prefix, folder, cache_dir)

    def _group_by_aspect(self, pad: float) -> None:
        """Order images by height / width and give each batch the smallest shape that holds its images."""
        ratio = self.shapes[:, 1] / self.shapes[:, 0]
        order = ratio.argsort(kind="stable")
        for name in ("img_files", "label_files", "labels", "segments"):
            setattr(self, name, [getattr(self, name)[i] for i in order])
        self.shapes = self.shapes[order]
        ratio = ratio[order]
        starts = np.flatnonzero(np.diff(self.batch, prepend=-1))  # of each batch
        limits = zip(np.minimum.reduceat(ratio, starts), np.maximum.reduceat(ratio, starts))
        wanted = [[high, 1] if high < 1 else [1, 1 / low] if low > 1 else [1, 1] for low, high in limits]
        self.batch_shapes = np.ceil(np.array(wanted) * self.img_size / self.stride + pad).astype(int) * self.stride

    # --- samples ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Key) -> tuple[torch.Tensor, torch.Tensor, str, tuple | None]:
        img = np.empty((3, *self.shape_of(key)), np.uint8)
        return torch.from_numpy(img), *self.sample_into(key, img)

    def shape_of(self, key: Key) -> tuple[int, int]:
        """(H, W) of a finished sample."""
        if self.batch_shapes is None:
            return self.img_size, self.img_size
        h, w = self.batch_shapes[self.batch[self.indices[_index(key)]]]
        return int(h), int(w)

    def sample_into(self, key: Key, out: np.ndarray) -> tuple[torch.Tensor, str, tuple | None]:
        """Make a sample and write its image into `out`, uint8 (3, H, W); return (labels (m, 6), path, shapes)."""
        index = self.indices[_index(key)]
        rng = self._random_source(key) if self.augment else None
        img, labels, shapes = self._letterboxed(index) if rng is None else self._augmented(index, rng)
        rows = labels @ CENTRES
        h, w = img.shape[:2]
        rows[:, 2:] /= np.array((w, h, w, h), np.float32)
        flip = None if rng is None else self._draw_flips(rows, rng)
        if out.shape != (3, h, w) or out.dtype != np.uint8:
            raise ValueError(f"a sample of {h} x {w} does not fit an array of {out.shape}, {out.dtype}")
        planes = [out[2], out[1], out[0]]
        cv2.split(img, planes)
        if flip is not None:
            for plane in planes:
                cv2.flip(plane, flip, dst=plane)
        return torch.from_numpy(rows), self.img_files[index], shapes

    def _random_source(self, key: Key) -> RandomSource:
        if self.seed is None:
            return GLOBAL
        epoch, index = key if isinstance(key, tuple) else (0, key)
        return KeyedRandom(self.seed, epoch, index)

    def _letterboxed(self, index: int) -> Augmented:
        """Return an evaluation sample, without random draws."""
        img, (h0, w0), (h, w) = self.load_image(index)
        img, ratio, pad = letterbox(img, self._box_of(index), auto=False, scaleup=False)
        labels = self._letterboxed_labels(index, (h, w), ratio, pad)
        return Augmented(img, labels, ((h0, w0), ((h / h0, w / w0), pad)))

    def _augmented(self, index: int, rng: RandomSource) -> Augmented:
        """Return a training sample before its flips."""
        hyp = self.hyp
        draft = self.draft(index, rng)
        colour = draw_colour(rng, hyp["hsv_h"], hyp["hsv_s"], hyp["hsv_v"])
        img, labels = render(draft, colour), draft.labels
        if rng.random() < hyp.get("paste_in", 0):
            cutouts = self._cut_outs(rng)
            while cutouts and len(cutouts) < ENOUGH_CUTOUTS:
                cutouts += self._cut_outs(rng)
            labels = paste_in(img, labels, cutouts, rng)
        return Augmented(img, labels, draft.shapes)

    def _draw_flips(self, rows: np.ndarray, rng: RandomSource) -> int | None:
        """Draw the flips up-down and left-right and apply them to the rows; return OpenCV's flip code, if any."""
        up_down = rng.random() < self.hyp["flipud"]
        left_right = rng.random() < self.hyp["fliplr"]
        if up_down:
            rows[:, 3] = 1 - rows[:, 3]
        if left_right:
            rows[:, 2] = 1 - rows[:, 2]
        return {(True, True): -1, (True, False): 0, (False, True): 1}.get((up_down, left_right))

    # --- geometry -----------------------------------------------------------------------------------------------------

    def load_image(self, index: int) -> LoadedImage:
        """Return an image at training size. It may be memory of a cache: do not change it."""
        if self._images is not None:
            return self._images.get(index)
        return load_resized(self.img_files[index], self.img_size, self.augment)

    def draft(self, index: int, rng: RandomSource) -> SampleDraft:
        """Draw the geometry of a training sample: a mosaic, possibly mixed with another one, or a single image."""
        if not (self.mosaic and rng.random() < self.hyp["mosaic"]):
            return self._draft_plain(index, rng)
        scene, labels = self._draft_mosaic(index, rng, rng.random() < FOUR_TILES)
        if rng.random() >= self.hyp["mixup"]:
            return SampleDraft([scene], 1.0, labels, None)
        four = rng.random() < FOUR_TILES
        scene2, labels2 = self._draft_mosaic(rng.randint(0, self.n - 1), rng, four)
        return SampleDraft([scene, scene2], rng.np_beta(8.0, 8.0), np.concatenate((labels, labels2), 0), None)

    def _box_of(self, index: int):
        """Return the letterbox of an image: (H, W), or the side of a square."""
        return self.img_size if self.batch_shapes is None else self.batch_shapes[self.batch[index]]

    def _letterboxed_labels(self, index: int, shape: tuple[int, int], ratio, pad) -> np.ndarray:
        """Return label rows in pixels of the letterboxed image; `shape` (h, w) is the image's before letterboxing."""
        labels = self.labels[index].copy()
        labels[:, 1:] = xywhn2xyxy(labels[:, 1:], ratio[0] * shape[1], ratio[1] * shape[0], padw=pad[0], padh=pad[1])
        return labels

    def _draft_plain(self, index: int, rng: RandomSource) -> SampleDraft:
        """Draw one letterboxed image and its warp; polygons are not used."""
        img, (h0, w0), (h, w) = self.load_image(index)
        fit = letterbox_fit((h, w), self._box_of(index), auto=False, scaleup=True)
        img = resize_to(img, fit.inner)
        top, bottom, left, right = fit.border
        warp = draw_warp(rng, self.hyp, (img.shape[0] + top + bottom, img.shape[1] + left + right))
        labels = warp_labels(self._letterboxed_labels(index, (h, w), fit.ratio, fit.pad), [], warp)
        shapes = (h0, w0), ((h / h0, w / w0), fit.pad)
        return SampleDraft([Scene([img], [(left, top)], warp)], 1.0, labels, shapes)

    def _draft_mosaic(self, index: int, rng: RandomSource, four: bool) -> tuple[Scene, np.ndarray]:
        """Draw a mosaic; return it with its labels in pixels of the sample.

        Images outside the visible part of the canvas, about a quarter, are not loaded.
        """
        plan = (draw_four if four else draw_nine)(rng, index, self.indices, self.img_size)
        if self.has_polygons and self.hyp.get("copy_paste", 0):
            return self._draft_pasted(plan, rng)
        warp = self._draw_mosaic_warp(rng)
        shapes = [(h, w) for h, w in self._resized[plan.tiles].tolist()]
        where = layout(plan, shapes, self.img_size)
        visible = visible_images(where.on_canvas, shapes, warp)
        loaded = [self.load_image(i) if needed else None for i, needed in zip(plan.tiles, visible)]
        images = [image and image.img for image in loaded]
        if any(image and image.resized != shape for image, shape in zip(loaded, shapes)):  # a file has changed
            images = [self.load_image(i).img for i in plan.tiles]
            shapes = [img.shape[:2] for img in images]
            where = layout(plan, shapes, self.img_size)
        labels, segments = self._laid_out(plan, shapes, where)
        return Scene(images, where.on_canvas, warp), warp_labels(labels, segments, warp)

    def _draft_pasted(self, plan: MosaicPlan, rng: RandomSource) -> tuple[Scene, np.ndarray]:
        """Draw a mosaic with copy-paste on its canvas."""
        canvas, labels, segments = self._draw_mosaic(plan)
        canvas, labels, segments = copy_paste(canvas, labels, segments, self.hyp["copy_paste"], rng)
        warp = self._draw_mosaic_warp(rng)
        return Scene([], [], warp, canvas), warp_labels(labels, segments, warp)

    def _draw_mosaic_warp(self, rng: RandomSource) -> Warp:
        return draw_warp(rng, self.hyp, (2 * self.img_size, 2 * self.img_size), self.mosaic_border)

    def _draw_mosaic(self, plan: MosaicPlan) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Return canvas, label rows and polygons of a mosaic, in pixels of the canvas."""
        images = [self.load_image(i).img for i in plan.tiles]
        shapes = [img.shape[:2] for img in images]
        where = layout(plan, shapes, self.img_size)
        return draw_canvas(images, where.on_canvas, (where.size, where.size)), *self._laid_out(plan, shapes, where)

    def _laid_out(self, plan: MosaicPlan, shapes, where: MosaicLayout) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return label rows and polygons of a mosaic in pixels of its canvas; shapes: (h, w) of its images."""
        labels = mosaic_labels([self.labels[i] for i in plan.tiles], shapes, where)
        if not self.has_polygons:
            return labels, []
        polygons = [self.segments[i] for i in plan.tiles]
        return labels, mosaic_segments(polygons, shapes, where, shift=len(plan.tiles) == 9)

    def _cut_outs(self, rng: RandomSource) -> list[CutOut]:
        """Return objects to paste, cut out of a four-image mosaic.

        Without polygons only the draws are made and no image is loaded.
        """
        plan = draw_four(rng, rng.randint(0, self.n - 1), self.indices, self.img_size)
        if not any(self.segments[i] for i in plan.tiles):
            return []
        canvas, labels, segments = self._draw_mosaic(plan)
        return cut_out(canvas[..., :3], labels, segments, rng)

    collate_fn = staticmethod(collate)
    collate_fn4 = staticmethod(collate_quad)


def _index(key: Key) -> int:
    return key[1] if isinstance(key, tuple) else key


def _rectangles(rows: np.ndarray) -> list[np.ndarray]:
    """Return the outline of each box as a polygon: in a data set with polygons, every row needs one."""
    x, y, w, h = rows[:, 1:5].T
    corners = np.stack([x - w / 2, y - h / 2, x + w / 2, y - h / 2, x + w / 2, y + h / 2, x - w / 2, y + h / 2], 1)
    return list(corners.reshape(-1, 4, 2))


def _no_labels(prefix: str, source: Paths, tried: list[str]) -> str:
    paths = ", ".join(str(Path(p).absolute()) for p in tried[:3])
    more = f" and {len(tried) - 3} more" if len(tried) > 3 else ""
    hint = ""
    if not any(f"{os.sep}labels{os.sep}" in p for p in tried[:3]):
        hint = "; no image path contains /images/ (write ./images instead of images), so labels must be next to them"
    return (
        f"{prefix}no labels for the images of {source}: looked for {paths}{more}{hint}; put a .txt file there for each "
        "image (an empty one for background), or give --data the folder or file that holds the annotations"
    )
