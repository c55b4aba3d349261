"""The data set of a detector and its loader: pictures in, finished samples out.

A finished sample is a uint8 (3, H, W) RGB picture with float32 (m, 6) labels [0, class, cx, cy, w, h], normalised.
By default the random numbers come from Python's and NumPy's global generators in the reference's order; with a seed
they are keyed by (seed, epoch, index). Readers for detection are imported here for scripts that expect them here.
"""

import contextlib
import os
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import Dataset
from tqdm import tqdm

from utils.augment import (
    apply_hsv,
    draw_hyp_warp,
    hsv_tables,
    letterbox,
    mixup,
    visible_source,
    warp_image,
    warp_labels,
)
from utils.boxes import xywhn2xyxy, xyxy2xywh
from utils.errors import UserError
from utils.images import LoadedImage, load_resized
from utils.label_cache import cache_path, is_writable, load_labels
from utils.labels import IMG_FORMATS, Paths, Subset, find_images, img2label_paths
from utils.loader import make_loader, worker_count
from utils.mosaic import draw_canvas, draw_four, draw_nine, layout, mosaic_labels, mosaic_segments
from utils.packed import PackedImages
from utils.paste import CutOut, copy_paste, cut_out, gather_cutouts, paste_in
from utils.randomness import GLOBAL, KeyedRandom, RandomSource
from utils.sources import LoadImages, LoadStreams

__all__ = [
    "IMG_FORMATS",
    "LoadImages",
    "LoadImagesAndLabels",
    "LoadStreams",
    "create_dataloader",
    "img2label_paths",
    "letterbox",
]

FOUR_TILES = 0.8  # probability that a mosaic has four tiles rather than nine
CACHE_THREADS = 8
Key = int | tuple[int, int]  # index, or (epoch, index)

cv2.setNumThreads(0)  # workers share the cores; a worker's own threads would only fight over them


class Composed(NamedTuple):
    """A sample before its colours are changed."""

    img: np.ndarray  # uint8 (H, W, 3 or 4), BGR first
    labels: np.ndarray  # float32 (m, 5): class, x1, y1, x2, y2 in pixels
    shapes: tuple | None  # ((h0, w0), ((h / h0, w / w0), (dw, dh))); None for a mosaic


def create_dataloader(
    path: Paths,
    imgsz: int,
    batch_size: int,
    stride: int,
    opt,
    hyp: Mapping[str, float] | None = None,
    augment: bool = False,
    cache: bool | str = False,
    pad: float = 0.0,
    rect: bool = False,
    rank: int = -1,
    world_size: int = 1,
    workers: int = 8,
    image_weights: bool = False,
    quad: bool = False,
    prefix: str = "",
    persistent_workers: bool = False,
    worker_tensor: bool = False,
    micro_batch: int = 0,
    seed: int | None = None,
    cache_dir: str | os.PathLike | None = None,
    fast_augment: bool = False,
    subset: Subset | None = None,
    shuffle: bool = False,
):
    """(loader, data set). Of `opt` only `single_cls` is read; `cache` is False, True or "ram", or "disk".

    See `utils.loader` for what `persistent_workers`, `worker_tensor`, `micro_batch`, `seed` and `shuffle` select. With
    several processes, rank 0 checks the labels and writes the caches while the others wait.
    """
    with _rank_zero_first(rank):
        dataset = LoadImagesAndLabels(
            path,
            imgsz,
            batch_size,
            augment=augment,
            hyp=hyp,
            rect=rect,
            image_weights=image_weights,
            cache_images=cache,
            single_cls=opt.single_cls,
            stride=int(stride),
            pad=pad,
            prefix=prefix,
            seed=seed,
            cache_dir=cache_dir,
            fast_augment=fast_augment,
            subset=subset,
        )
    batch_size = min(batch_size, len(dataset))
    loader = make_loader(
        dataset,
        batch_size,
        worker_count(workers, batch_size, world_size),
        collate_fn=LoadImagesAndLabels.collate_fn4 if quad else LoadImagesAndLabels.collate_fn,
        rank=rank,
        world_size=world_size,
        image_weights=image_weights,
        quad=quad,
        persistent_workers=persistent_workers,
        worker_tensor=worker_tensor,
        micro_batch=micro_batch,
        seed=seed,
        shuffle=shuffle,
    )
    return loader, dataset


@contextlib.contextmanager
def _rank_zero_first(rank: int) -> Iterator[None]:
    """Rank 0 runs the block while the others wait; alone, or without a process group, nobody waits."""
    together = rank >= 0 and torch.distributed.is_available() and torch.distributed.is_initialized()
    if together and rank > 0:
        torch.distributed.barrier()
    try:
        yield
    finally:  # also after an error, which the others then meet by themselves
        if together and rank == 0:
            torch.distributed.barrier()


class LoadImagesAndLabels(Dataset):
    """Pictures and labels for training (`augment`) and evaluation.

    `dataset[i]`, or `dataset[(epoch, i)]` under a seed -> (uint8 (3, H, W) tensor, float32 (m, 6) tensor, path,
    shapes). Attributes, all in the same order: `img_files`, `label_files`, `labels` (float32 (m, 5) each), `shapes`
    (float64 (n, 2): width, height), `segments`; `indices` are the pictures that samples begin with and mosaic partners
    are drawn from; `batch` and, under `rect`, `batch_shapes` (H, W) say how samples are grouped.
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
        fast_augment: bool = False,
        subset: Subset | None = None,
    ):
        self.path = path
        self.img_size = img_size
        self.augment = augment
        self.hyp = hyp
        self.image_weights = image_weights
        self.rect = rect and not image_weights
        self.mosaic = augment and not self.rect
        self.mosaic_border = (-img_size // 2, -img_size // 2)
        self.stride = stride
        self.seed = seed
        self.fast_augment = fast_augment
        self._find(prefix, cache_dir, single_cls, subset)
        self.n = len(self.img_files)
        self.indices = range(self.n)
        self.batch = np.arange(self.n) // batch_size
        self.batch_shapes: np.ndarray | None = None
        if self.rect:
            self._group_by_aspect(pad)
        self.has_polygons = any(self.segments)
        self._images = self._cache(cache_images, prefix, cache_dir)

    # --- set up -------------------------------------------------------------------------------------------------------

    def _find(self, prefix: str, cache_dir, single_cls: bool, subset: Subset | None) -> None:
        """Pictures, labels, shapes and polygons, checked."""
        found = find_images(self.path, prefix)
        table = load_labels(found, self.path, prefix, cache_dir)
        if not table.img_files:
            raise UserError(f"{prefix}none of the {len(found)} images of {self.path} is usable: {table.summary()}")
        if self.augment and not table.counts.found:
            raise UserError(_no_labels(prefix, self.path, img2label_paths(found)))
        picked = range(len(table.img_files)) if subset is None else subset.pick(len(table.img_files))
        self.img_files = [table.img_files[i] for i in picked]
        self.label_files = img2label_paths(self.img_files)
        self.labels = [table.labels[i].copy() for i in picked]
        self.segments = [table.segments[i] for i in picked]
        self.shapes = table.shapes[list(picked)].astype(np.float64)
        if single_cls:
            for rows in self.labels:
                rows[:, 0] = 0
        if any(self.segments):
            self.segments = [s or _rectangles(rows) for s, rows in zip(self.segments, self.labels)]

    def _group_by_aspect(self, pad: float) -> None:
        """Order pictures by height / width and give each batch the smallest shape that holds its pictures."""
        ratio = self.shapes[:, 1] / self.shapes[:, 0]
        order = ratio.argsort(kind="stable")
        self.img_files = [self.img_files[i] for i in order]
        self.label_files = [self.label_files[i] for i in order]
        self.labels = [self.labels[i] for i in order]
        self.segments = [self.segments[i] for i in order]
        self.shapes = self.shapes[order]
        ratio = ratio[order]
        wanted = []
        for number in range(self.batch[-1] + 1):
            of_batch = ratio[self.batch == number]
            low, high = of_batch.min(), of_batch.max()
            wanted.append([high, 1] if high < 1 else [1, 1 / low] if low > 1 else [1, 1])
        self.batch_shapes = np.ceil(np.array(wanted) * self.img_size / self.stride + pad).astype(int) * self.stride

    def _cache(self, kind: bool | str, prefix: str, cache_dir) -> list[LoadedImage] | PackedImages | None:
        """The pictures at training size: in memory, in a packed file, or not at all."""
        if kind not in (False, True, None, "ram", "disk"):
            raise UserError(f"--cache-images {kind}: choose ram or disk")
        if not kind:
            return None
        if kind == "disk":
            folder = cache_path(self.path, self.label_files).parent
            if not cache_dir and not is_writable(folder):
                raise UserError(f"{prefix}{folder} is read-only; name a place for the image cache with --cache-dir")
            return PackedImages.open_or_build(
                self.img_files,
                self.img_size,
                augment=self.augment,
                cache_dir=cache_dir,
                prefix=prefix,
                default_dir=folder,
            )
        images: list[LoadedImage] = []
        with ThreadPoolExecutor(CACHE_THREADS) as pool, tqdm(total=self.n) as bar:
            held = 0
            for image in pool.map(lambda f: load_resized(f, self.img_size, self.augment), self.img_files):
                images.append(image)
                held += image.img.nbytes
                bar.set_description_str(f"{prefix}Caching images ({held / 1e9:.1f}GB)", refresh=False)
                bar.update()
        return images

    # --- samples ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Key) -> tuple[torch.Tensor, torch.Tensor, str, tuple | None]:
        img = torch.empty((3, *self.shape_of(key)), dtype=torch.uint8)
        return img, *self.sample_into(key, img.numpy())

    def shape_of(self, key: Key) -> tuple[int, int]:
        """(H, W) of a finished sample."""
        if self.batch_shapes is None:
            return self.img_size, self.img_size
        h, w = self.batch_shapes[self.batch[self.indices[_index(key)]]]
        return int(h), int(w)

    def sample_into(self, key: Key, out: np.ndarray) -> tuple[torch.Tensor, str, tuple | None]:
        """Make a sample and write its picture into `out`, uint8 (3, H, W); returns (labels (m, 6), path, shapes)."""
        rng = self._random_source(key)
        index = self.indices[_index(key)]
        img, labels, shapes = self.compose(index, rng)
        if self.augment:
            img, labels = self._change_colours(img, labels, rng)
        rows = np.zeros((len(labels), 6), np.float32)
        h, w = img.shape[:2]
        if len(labels):
            rows[:, 1] = labels[:, 0]
            rows[:, 2:] = xyxy2xywh(labels[:, 1:5])
            rows[:, [3, 5]] /= h
            rows[:, [2, 4]] /= w
        if self.augment:
            img = self._flip(img, rows, rng)
        cv2.split(img, [out[2], out[1], out[0]])
        return torch.from_numpy(rows), self.img_files[index], shapes

    def _random_source(self, key: Key) -> RandomSource:
        if self.seed is None:
            return GLOBAL
        epoch, index = key if isinstance(key, tuple) else (0, key)
        return KeyedRandom(self.seed, epoch, index)

    def _change_colours(self, img: np.ndarray, labels: np.ndarray, rng: RandomSource):
        """Hue, saturation and value, then perhaps pasted objects."""
        hyp = self.hyp
        img = apply_hsv(img, hsv_tables(rng.np_uniform(-1, 1, 3), hyp["hsv_h"], hyp["hsv_s"], hyp["hsv_v"]))
        if rng.random() < hyp.get("paste_in", 0):
            cutouts = gather_cutouts(lambda: self._cut_outs(rng))
            labels = paste_in(img, labels, cutouts, rng)
        return img, labels

    def _flip(self, img: np.ndarray, rows: np.ndarray, rng: RandomSource) -> np.ndarray:
        """Two gates: up-down, left-right. Rows are changed in place."""
        up_down = rng.random() < self.hyp["flipud"]
        left_right = rng.random() < self.hyp["fliplr"]
        if up_down:
            rows[:, 3] = 1 - rows[:, 3]
        if left_right:
            rows[:, 2] = 1 - rows[:, 2]
        if not (up_down or left_right):
            return img
        return cv2.flip(img, -1 if up_down and left_right else 0 if up_down else 1)

    # --- geometry -----------------------------------------------------------------------------------------------------

    def load_image(self, index: int) -> LoadedImage:
        """A picture at training size; it may be shared memory of a cache, so it must not be changed."""
        if self._images is None:
            return load_resized(self.img_files[index], self.img_size, self.augment)
        return self._images.get(index) if isinstance(self._images, PackedImages) else self._images[index]

    def compose(self, index: int, rng: RandomSource) -> Composed:
        """The geometry of a sample: a mosaic, perhaps blended with another, or one letterboxed picture; warped."""
        if not (self.mosaic and rng.random() < self.hyp["mosaic"]):
            return self._compose_plain(index, rng)
        img, labels = self._compose_mosaic(index, rng)
        if rng.random() < self.hyp["mixup"]:
            four = rng.random() < FOUR_TILES  # drawn before the picture's number
            img2, labels2 = self._compose_mosaic(rng.randint(0, self.n - 1), rng, four)
            img = mixup(img, img2, rng.np_beta(8.0, 8.0))
            labels = np.concatenate((labels, labels2), 0)
        return Composed(img, labels, None)

    def _compose_plain(self, index: int, rng: RandomSource) -> Composed:
        img, (h0, w0), (h, w) = self.load_image(index)
        shape = self.img_size if self.batch_shapes is None else self.batch_shapes[self.batch[index]]
        img, ratio, pad = letterbox(img, shape, auto=False, scaleup=self.augment)
        labels = self.labels[index].copy()
        labels[:, 1:] = xywhn2xyxy(labels[:, 1:], ratio[0] * w, ratio[1] * h, padw=pad[0], padh=pad[1])
        if self.augment:
            warp = draw_hyp_warp(rng, self.hyp, img.shape[:2])
            img, labels = warp_image(img, warp), warp_labels(labels, [], warp)
        return Composed(img, labels, ((h0, w0), ((h / h0, w / w0), pad)))

    def _compose_mosaic(self, index: int, rng: RandomSource, four: bool | None = None):
        """(picture (s, s, 4), labels) of a warped mosaic; `four` is drawn unless given."""
        if four is None:
            four = rng.random() < FOUR_TILES
        plan = (draw_four if four else draw_nine)(rng, index, self.indices, self.img_size)
        images = [self.load_image(i).img for i in plan.tiles]
        where = layout(plan, [img.shape[:2] for img in images], self.img_size)
        labels, segments = self._mosaic_labels(plan, images, where)
        canvas = None
        if segments and self.hyp.get("copy_paste", 0):
            canvas, labels, segments = copy_paste(
                draw_canvas(images, where), labels, segments, self.hyp["copy_paste"], rng
            )
        warp = draw_hyp_warp(rng, self.hyp, (where.size, where.size), self.mosaic_border)
        if canvas is None:
            canvas = draw_canvas(images, where, visible_source(warp))
        return warp_image(canvas, warp), warp_labels(labels, segments, warp)

    def _mosaic_labels(self, plan, images, where):
        """Label rows and polygons on the canvas."""
        shapes = [img.shape[:2] for img in images]
        labels = mosaic_labels([self.labels[i] for i in plan.tiles], shapes, where)
        if not self.has_polygons:
            return labels, []
        polygons = [self.segments[i] for i in plan.tiles]
        return labels, mosaic_segments(polygons, shapes, where, shift=len(plan.tiles) == 9)

    def _cut_outs(self, rng: RandomSource) -> list[CutOut]:
        """One round of gathering objects to paste: a four-tile canvas and a share of its objects.

        Without polygons only the draws are made: nothing could be cut out, so no picture is loaded.
        """
        plan = draw_four(rng, rng.randint(0, self.n - 1), self.indices, self.img_size)
        if not any(self.segments[i] for i in plan.tiles):
            return []
        images = [self.load_image(i).img for i in plan.tiles]
        where = layout(plan, [img.shape[:2] for img in images], self.img_size)
        labels, segments = self._mosaic_labels(plan, images, where)
        return cut_out(draw_canvas(images, where)[..., :3], labels, segments, rng)

    # --- batches ------------------------------------------------------------------------------------------------------

    @staticmethod
    def collate_fn(batch):
        """Samples -> (images (B, 3, H, W), labels (N, 6) numbered in column 0, paths, shapes)."""
        imgs, labels, paths, shapes = zip(*batch)
        for i, rows in enumerate(labels):
            rows[:, 0] = i
        return torch.stack(imgs, 0), torch.cat(labels, 0), paths, shapes

    @staticmethod
    def collate_fn4(batch):
        """Groups of four samples become one picture of twice the size: the first enlarged, or all four tiled.

        One draw of Python's `random` for each group decides. Samples beyond the last whole group are lost, unless
        there are fewer than four: then the first one is enlarged. Paths and shapes are those of each first sample.
        """
        imgs, labels, paths, shapes = zip(*batch)
        groups = max(len(imgs) // 4, 1)
        out_imgs, out_labels = [], []
        for number in range(groups):
            i = number * 4
            if random.random() < 0.5 or len(imgs) < 4:
                big = functional.interpolate(
                    imgs[i][None].float(), scale_factor=2.0, mode="bilinear", align_corners=False
                )
                img, rows = big[0].type(imgs[i].type()), labels[i].clone()
            else:
                left, right = torch.cat(imgs[i : i + 2], 1), torch.cat(imgs[i + 2 : i + 4], 1)
                img = torch.cat((left, right), 2)
                down, across = torch.tensor([0, 0, 0, 1.0, 0, 0]), torch.tensor([0, 0, 1.0, 0, 0, 0])
                rows = torch.cat(
                    (labels[i], labels[i + 1] + down, labels[i + 2] + across, labels[i + 3] + down + across), 0
                ) * torch.tensor([1, 1, 0.5, 0.5, 0.5, 0.5])
            rows[:, 0] = number
            out_imgs.append(img)
            out_labels.append(rows)
        firsts = slice(0, groups * 4, 4)
        return torch.stack(out_imgs, 0), torch.cat(out_labels, 0), paths[firsts], shapes[firsts]


def _index(key: Key) -> int:
    return key[1] if isinstance(key, tuple) else key


def _rectangles(rows: np.ndarray) -> list[np.ndarray]:
    """The outline of each box as a polygon: in a data set with polygons, every row needs one of its own."""
    x, y, w, h = rows[:, 1:5].T
    corners = np.stack([x - w / 2, y - h / 2, x + w / 2, y - h / 2, x + w / 2, y + h / 2, x - w / 2, y + h / 2], 1)
    return list(corners.reshape(-1, 4, 2))


def _no_labels(prefix: str, source: Paths, tried: list[str]) -> str:
    paths = ", ".join(str(Path(p).absolute()) for p in tried[:3])
    more = f" and {len(tried) - 3} more" if len(tried) > 3 else ""
    hint = ""
    if not any(f"{os.sep}labels{os.sep}" in p for p in tried[:3]):
        hint = "; no image path contains /images/ (write ./images instead of images), so labels were sought beside them"
    return f"{prefix}no labels for the images of {source}: looked for {paths}{more}{hint}"
