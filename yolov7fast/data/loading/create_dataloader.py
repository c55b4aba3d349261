"""`create_dataloader`: from a data yaml's paths to a data set and its loader, as upstream's function of that name."""

import contextlib
import os
from collections.abc import Iterator, Mapping

import torch

from yolov7fast.data.loading.collate import collate_quad
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.labels import Paths, Subset
from yolov7fast.data.loading.create_dataloader import make_loader, worker_count


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
    subset: Subset | None = None,
    shuffle: bool | None = None,
    dataset_class: type[LoadImagesAndLabels] | None = None,
    keep_partial_labels: bool = False,
    rank_zero_first: bool = True,
):
    """(loader, data set). Of `opt` only `single_cls` is read; `cache` is False, True or "ram", or "disk".

    See `loading.loader` for what `persistent_workers`, `worker_tensor`, `micro_batch`, `seed` and `shuffle` select.
    With several processes, rank 0 checks the labels and writes the caches while the others wait, unless the caller
    sees to that (`rank_zero_first`). `dataset_class`: a data set with an augmentation of its own.
    """
    with _rank_zero_first(rank if rank_zero_first else -1):
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
        collate_fn=collate_quad if quad else None,  # None: samples are written straight into their batch
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
