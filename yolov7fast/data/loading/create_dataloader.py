"""`create_dataloader`: a data set and its loader from the paths of a data YAML (upstream's signature, extended).

A data set offers `len()`, `dataset.shape_of(key)` -> (H, W), `dataset.sample_into(key, out)` -> (labels (m, 6), path,
shapes), which writes the image into the uint8 array `out` (3, H, W), and, for a `collate_fn`, `dataset[key]` -> (image
tensor, labels, path, shapes). A key is an index, or (epoch, index) when samples are keyed.

`BatchLoader` draws in upstream's order from generators of the process or of each worker; under image weights it reads
`dataset.indices` again each epoch. With a `seed` samples are a function of (seed, epoch, index), independent of the
workers. `SharedMemoryLoader` (`worker_tensor`) does the same, with the images of a batch made by all workers.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.labels import Paths, Subset
from yolov7fast.data.loading.batches import BatchOrder, collate_quad
from yolov7fast.data.loading.shared_memory_loader import SharedMemoryLoader
from yolov7fast.data.loading.torch_loader import BatchLoader, BatchSource


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
    seed: int | None = None,
    cache_dir: str | os.PathLike | None = None,
    subset: Subset | None = None,
    dataset_class: type[LoadImagesAndLabels] | None = None,
    keep_partial_labels: bool = False,
    **loading: Any,
):
    """Return (loader, data set).

    Args:
        opt: only `single_cls` is read.
        cache: False, True or "ram", or "disk".
        dataset_class: a data set with another augmentation; None: `LoadImagesAndLabels`.
        loading: further options of `make_loader`.
    """
    dataset = (dataset_class or LoadImagesAndLabels)(
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
        subset=subset,
        keep_partial_labels=keep_partial_labels,
    )
    batch_size = min(batch_size, len(dataset))
    loader = make_loader(
        dataset,
        batch_size,
        worker_count(workers, batch_size, world_size),
        collate_fn=collate_quad if quad else None,
        rank=rank,
        world_size=world_size,
        image_weights=image_weights,
        quad=quad,
        seed=seed,
        **loading,
    )
    return loader, dataset


def make_loader(
    dataset,
    batch_size: int,
    workers: int,
    *,
    collate_fn: Callable | None = None,
    rank: int = -1,
    world_size: int = 1,
    image_weights: bool = False,
    quad: bool = False,
    persistent_workers: bool = False,
    worker_tensor: bool = False,
    micro_batch: int = 0,
    seed: int | None = None,
    shuffle: bool | None = None,
):
    """Return the loader for these options.

    Args:
        workers: processes; 0 makes samples in this process, also with `worker_tensor`.
        collate_fn: joins finished samples (quad); None writes samples directly into their batch.
        micro_batch: samples in one worker task, 0 for the default.
        shuffle: permute each epoch by its number (and `seed`); None: only with several processes (`rank` >= 0).
    """
    if quad and worker_tensor:
        raise UserError("--quad needs finished samples, which --worker-tensor never makes: leave one of them out")
    if shuffle and seed is None and rank < 0:
        raise UserError("shuffling needs a seed to be reproducible: add --seed N")
    if micro_batch < 0:
        raise UserError(f"--micro-batch {micro_batch}: give the samples of one worker task, or 0 for the default")
    order = BatchOrder(
        dataset,
        batch_size,
        rank=rank,
        world_size=world_size,
        seed=seed,
        shuffle=shuffle,
        endless=not image_weights,
    )
    if worker_tensor and workers > 0:
        return SharedMemoryLoader(dataset, batch_size, workers, order, micro_batch)
    source = BatchSource(dataset, collate_fn, quad_seed=seed if quad else None)
    return BatchLoader(source, workers, order, persistent_workers=persistent_workers)


def worker_count(workers: int, batch_size: int, world_size: int = 1) -> int:
    """Return upstream's number of workers: at most this process's share of the cores and the samples of a batch."""
    return min((os.cpu_count() or 1) // world_size, batch_size if batch_size > 1 else 0, workers)


def why_fewer(workers: int, batch_size: int, world_size: int = 1) -> str:
    """Return why `worker_count` allows fewer workers than requested; empty where it does not."""
    used = worker_count(workers, batch_size, world_size)
    if used == workers:
        return ""
    if used == (os.cpu_count() or 1) // world_size:
        processes = f" for {world_size} processes" if world_size > 1 else ""
        return f"this machine has {counted(os.cpu_count() or 1, 'core')}{processes}"
    return f"a batch has {counted(batch_size, 'image')}"
