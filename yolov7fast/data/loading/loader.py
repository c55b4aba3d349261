"""From a data set to batches: one function chooses the loader.

A data set offers `len()`, `dataset.shape_of(key)` -> (H, W), `dataset.sample_into(key, out)` -> (labels (m, 6), path,
shapes), which writes the image into the uint8 array `out` (3, H, W), and, for a `collate_fn`, `dataset[key]` -> (image
tensor, labels, path, shapes). A key is an index, or (epoch, index) when samples are keyed.

| asked for | loader | order, randomness |
| --- | --- | --- |
| nothing | `EndlessLoader` | upstream's: streams of the process or of each worker |
| image weights | `ReweightedLoader` | upstream's, `dataset.indices` read afresh each epoch |
| `seed` | `KeyedLoader` | a function of (seed, epoch, index), whatever the workers |
| `worker_tensor` | `SharedLoader` | as above with `seed`; without it streams per worker, see there |

Workers live through all epochs in all of them but under image weights, where `persistent_workers` makes them.
Every loader has `len()` (batches per epoch), `dataset`, `num_workers`, `set_epoch(epoch, start_batch=0)`, `close()`,
and yields (imgs uint8 (B, 3, H, W), targets (N, 6) float32, paths, shapes) on the CPU.
"""

import os
from collections.abc import Callable

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.data.loading.samplers import EpochOrder
from yolov7fast.data.loading.shared_memory_loader import SharedLoader
from yolov7fast.data.loading.torch_loader import BatchSource, EndlessLoader, KeyedLoader, ReweightedLoader


def worker_count(workers: int, batch_size: int, world_size: int = 1) -> int:
    """Upstream's rule: no more workers than this process's part of the cores or than samples in a batch."""
    return min(_core_limit(world_size), _batch_limit(batch_size), workers)


def why_fewer(workers: int, batch_size: int, world_size: int = 1) -> str:
    """Why `worker_count` allows fewer than were asked for; empty where it does not."""
    used = worker_count(workers, batch_size, world_size)
    if used == workers:
        return ""
    if used == _core_limit(world_size):
        processes = f" for {world_size} processes" if world_size > 1 else ""
        return f"this machine has {counted(os.cpu_count() or 1, 'core')}{processes}"
    return f"a batch has {counted(batch_size, 'image')}"


def _core_limit(world_size: int) -> int:
    return (os.cpu_count() or 1) // world_size


def _batch_limit(batch_size: int) -> int:
    return batch_size if batch_size > 1 else 0


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
    """The loader for these wishes (see the table above).

    `collate_fn` makes a batch of finished samples (quad); without one, samples are written straight into their batch.
    `workers` 0 makes samples in this process, also with `worker_tensor`. `shuffle` permutes each epoch by its number
    (and `seed`); None: several processes (`rank` >= 0) do. `micro_batch`: samples in one worker task, 0 to choose.
    """
    if quad and worker_tensor:
        raise UserError("--quad joins finished samples, --worker-tensor never holds them apart: leave one of them out")
    if shuffle and seed is None and rank < 0:
        raise UserError("shuffling needs a seed to be reproducible: add --seed N")
    if micro_batch < 0:
        raise UserError(f"--micro-batch {micro_batch}: give the samples of one worker task, or 0 to have it chosen")
    place = {"rank": rank, "world_size": world_size}
    if worker_tensor and workers > 0:
        order = EpochOrder(dataset, batch_size, **place, seed=seed or 0, shuffle=shuffle)
        return SharedLoader(
            dataset, batch_size, workers, order, keyed=seed, micro_batch=micro_batch, reweighted=image_weights
        )
    source = BatchSource(dataset, collate_fn, gates_seed=seed if quad else None)
    if seed is not None:
        order = EpochOrder(dataset, batch_size, **place, seed=seed, shuffle=shuffle)
        return KeyedLoader(
            source, workers, order, seed, reweighted=image_weights, persistent_workers=persistent_workers
        )
    if image_weights:
        return ReweightedLoader(source, batch_size, workers, **place, persistent_workers=persistent_workers)
    return EndlessLoader(source, batch_size, workers, **place)
