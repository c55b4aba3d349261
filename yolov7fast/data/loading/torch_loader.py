"""Loaders on top of torch's: upstream's ways, and the same with samples keyed by (epoch, index).

All yield (imgs uint8 (B, 3, H, W), targets (N, 6) float32, paths, shapes), on the CPU. A worker makes a whole batch.
"""

import gc
import random
import sys
from collections.abc import Callable, Iterator
from multiprocessing import active_children, util
from typing import NoReturn

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from yolov7fast.core.errors import UserError
from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.data.augment.random_source import KeyedRandom
from yolov7fast.data.loading.collate import make_batch
from yolov7fast.data.loading.samplers import EpochByEpoch, EpochOrder, KeyedBatches, RestartingBatches, upstream_sampler
from yolov7fast.data.loading.worker_processes import Failure, death_of, failure_of
from yolov7fast.data.loading.worker_processes import leave_stopping_to_main, stopping_held_back
from yolov7fast.data.loading.torch_loader import awaiting_workers, dead_workers, tame_torch_handler


class _TorchLoader:
    """What the loaders below share: torch's loader inside, errors in words, an orderly end."""

    def __init__(self, source: "BatchSource", workers: int, batches, *, generator=None, send_indices: bool = False):
        """`batches`: batch sampler. `send_indices`: keep the workers and send them new `dataset.indices`."""
        self.dataset = source.dataset
        self.num_workers = workers
        self.batch_sampler = batches
        self._source = source
        if not workers:
            keep_freed_memory()  # it is this process that makes the samples
        if send_indices:
            source.indices = _SharedIndices(self.dataset)
        self._loader = DataLoader(
            source,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=torch.cuda.is_available(),  # elsewhere it only warns
            worker_init_fn=_prepare_worker,
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            persistent_workers=send_indices,
            generator=generator,
        )
        self._iterators: list = []  # none or one
        # At exit, while its queues still work (they close at priority 10) and before multiprocessing ends all children,
        # which torch would take for a fault.
        self._closing = util.Finalize(self, _end_workers, (self._iterators,), exitpriority=100)

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self.batch_sampler)

    def _new_iterator(self) -> None:
        if self._loader is None:
            raise RuntimeError("this loader was closed")
        if self._source.indices is None:
            _end_workers(self._iterators)
        else:
            self._source.indices.publish(self.dataset.indices)
        tame_torch_handler()
        others = active_children()
        with stopping_held_back():
            try:
                self._iterators[:] = [iter(self._loader)]
            except OSError as error:  # its queues need locks, which live in /dev/shm
                setattr(_MultiProcessingDataLoaderIter, "_shutdown", True)  # noqa: B010 - what never began has none
                for worker in active_children():
                    if worker not in others:
                        worker.kill()
                self._fail(failure_of(error) or error)

    def _fetch(self):
        """The next batch; a worker's death or complaint becomes a `UserError`."""
        if self._loader is None:
            raise RuntimeError("this loader was closed")
        iterator = self._iterators[0]
        if dead := dead_workers(iterator):
            self._fail(death_of(dead))
        try:
            with awaiting_workers():
                batch = next(iterator)
        except (RuntimeError, OSError, EOFError) as error:
            # A worker that dies while its memory is being handed over breaks the connection before it has ended.
            dead = dead_workers(iterator, seconds=0 if isinstance(error, RuntimeError) else 5)
            self._fail(death_of(dead) if dead else failure_of(error) or error)
        if isinstance(batch, Failure):
            self._fail(batch)
        return batch

    def _fail(self, reason: "Exception | Failure") -> NoReturn:
        self.close()
        raise UserError(reason.message) if isinstance(reason, Failure) else reason

    def close(self) -> None:
        """End the workers. The loader cannot be used afterwards."""
        self._closing()
        self._loader = None


class EndlessLoader(_TorchLoader):
    """Upstream's loader: one iterator, made here, for all epochs; an epoch is `len()` further batches.

    Leaving an epoch early therefore shifts the next one, and workers keep the data set as it is now.
    """

    def __init__(self, source: "BatchSource", batch_size: int, workers: int, *, rank: int = -1, world_size: int = 1):
        self.sampler = upstream_sampler(source.dataset, rank, world_size)
        super().__init__(source, workers, RestartingBatches(self.sampler, batch_size))
        self._new_iterator()

    def __iter__(self) -> Iterator[tuple]:
        for _ in range(len(self)):
            yield self._fetch()

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """For the distributed sampler. Workers have drawn ahead by then: orders lag (see `RestartingBatches`)."""
        _set_sampler_epoch(self.sampler, epoch, start_batch)


class ReweightedLoader(_TorchLoader):
    """Upstream's loader under image weights: every epoch reads `dataset.indices` afresh.

    New workers each epoch bring this about. With `persistent_workers` they live on, the new indices are sent to them,
    and their random streams run on instead of starting from a new base seed.
    """

    def __init__(
        self, source, batch_size: int, workers: int, *, rank: int = -1, world_size: int = 1, persistent_workers=False
    ):
        self.sampler = upstream_sampler(source.dataset, rank, world_size)
        batches = BatchSampler(self.sampler, batch_size, drop_last=False)
        super().__init__(source, workers, batches, send_indices=persistent_workers and workers > 0)

    def __iter__(self) -> Iterator[tuple]:
        self._new_iterator()
        for _ in range(len(self)):
            yield self._fetch()

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Pass the epoch, which selects the permutation, to the distributed sampler."""
        _set_sampler_epoch(self.sampler, epoch, start_batch)


class KeyedLoader(_TorchLoader, EpochByEpoch):
    """Samples and order follow from (seed, epoch, index) alone: any epoch can begin at any batch.

    Workers run on from one epoch into the next as long as epochs are asked for in turn; any other wish (a resumed
    run, an epoch left early) starts them anew. Under image weights (`reweighted`) every epoch does, since its indices
    are not known before, unless `persistent_workers` has them sent.
    """

    def __init__(
        self, source, workers: int, order: EpochOrder, seed: int, *, reweighted=False, persistent_workers=False
    ):
        self.endless = not reweighted
        # A generator of its own: making workers must not advance the stream that training draws from.
        super().__init__(
            source,
            workers,
            KeyedBatches(order, endless=self.endless),
            generator=torch.Generator().manual_seed(seed),
            send_indices=reweighted and persistent_workers and workers > 0,
        )

    def _begin_at(self, epoch: int, start: int) -> None:
        self.batch_sampler.start = (epoch, start)
        self._new_iterator()

    def _take(self) -> tuple:
        return self._fetch()


class BatchSource(Dataset):
    """What torch's workers call: keys in, a finished batch or a `Failure` out."""

    def __init__(self, dataset, collate_fn: Callable | None = None, gates_seed: int | None = None):
        """`collate_fn`: finished samples -> batch; None to write samples straight into the batch.

        `gates_seed`: collating draws random numbers (quad); draw them from (seed, epoch, first index).
        """
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.gates_seed = gates_seed
        self.indices: _SharedIndices | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: list):
        """Torch hands over the keys of a whole batch here."""
        try:
            if self.indices is not None:
                self.indices.apply(self.dataset)
            in_worker = get_worker_info() is not None
            if self.collate_fn is None:
                return make_batch(self.dataset, keys, shared=in_worker)
            batch = self._collate(self.collate_fn, keys, [self.dataset[key] for key in keys])
            if in_worker:
                for tensor in batch[:2]:
                    tensor.share_memory_()  # torch would when sending, in a thread whose errors are lost: a hang
            return batch
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            return failure

    def _collate(self, collate_fn: Callable, keys: list, samples: list) -> tuple:
        if self.gates_seed is None:
            return collate_fn(samples)
        before = random.getstate()
        random.setstate(KeyedRandom(self.gates_seed, *keys[0], len(keys)).getstate())
        try:
            return collate_fn(samples)
        finally:
            random.setstate(before)


class _SharedIndices:
    """`dataset.indices` in memory that living workers see, with a version that rises with every change."""

    def __init__(self, dataset):
        self._shared = torch.zeros(1 + len(dataset.indices), dtype=torch.int64).share_memory_()
        self._seen = 0

    def publish(self, indices) -> None:
        """In the main process, while no batch is in the making."""
        self._shared[1:] = torch.as_tensor(list(indices))
        self._shared[0] += 1

    def apply(self, dataset) -> None:
        """In a worker, before a batch."""
        version = int(self._shared[0])
        if version != self._seen:
            dataset.indices = self._shared[1:].tolist()
            self._seen = version


def _end_workers(iterators: list) -> None:
    """Empty the list; end the workers of its iterator now, not when the garbage collector finds it."""
    while iterators:
        iterator = iterators.pop()
        for worker in getattr(iterator, "_workers", ()):
            worker.terminate = worker.kill  # torch's last resort is SIGTERM, which workers leave to the main process
        if hasattr(iterator, "_shutdown_workers"):  # absent without workers
            iterator._shutdown_workers()


def _as_it_is(batch):
    return batch


def _prepare_worker(worker_id: int) -> None:
    leave_stopping_to_main()
    keep_freed_memory()
    gc.freeze()  # the collector would write into every inherited object, and so copy its page


def _set_sampler_epoch(sampler, epoch: int, start_batch: int) -> None:
    if start_batch:
        raise ValueError("an epoch can only begin in its middle when samples are keyed: give a seed")
    if isinstance(sampler, DistributedSampler):
        sampler.set_epoch(epoch)
