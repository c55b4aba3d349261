"""Loaders based on torch's: upstream's order of draws, and the same with samples keyed by (epoch, index).

All yield (imgs uint8 (B, 3, H, W), targets (N, 6) float32, paths, shapes), on the CPU. A worker makes a whole batch.
"""

import contextlib
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import active_children, util
from multiprocessing.connection import wait
from typing import NoReturn

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, get_worker_info
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from yolov7fast.core.errors import UserError
from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.data.augment.random_source import KeyedRandom
from yolov7fast.data.loading.collate import make_batch
from yolov7fast.data.loading.samplers import EpochByEpoch, EpochOrder, KeyedBatches, RestartingBatches, upstream_sampler
from yolov7fast.data.loading.worker_processes import (
    WorkerFailure,
    death_of,
    failure_of,
    set_up_worker,
    stopping_held_back,
)


class _TorchLoader:
    """Common base: torch's loader inside, errors as messages, workers ended in order."""

    def __init__(self, source: "BatchSource", workers: int, batches, *, generator=None, send_indices: bool = False):
        """batches: batch sampler. send_indices: keep the workers and send them new `dataset.indices`."""
        self.dataset = source.dataset
        self.num_workers = workers
        self.batch_sampler = batches
        self._source = source
        if not workers:
            keep_freed_memory()  # samples are made in this process
        if send_indices:
            source.indices = _SharedIndices(self.dataset)
        self._loader = DataLoader(
            source,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=torch.cuda.is_available(),  # elsewhere it only warns
            worker_init_fn=_set_up_torch_worker,
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            persistent_workers=send_indices,
            generator=generator,
        )
        self._iterators: list = []  # none or one
        # At exit: before its queues close (at priority 10) and before multiprocessing ends all children, which torch
        # would report as an error.
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
        restrict_torch_handler()
        others = active_children()
        with stopping_held_back():
            try:
                self._iterators[:] = [iter(self._loader)]
            except OSError as error:  # its queues need locks, which live in /dev/shm
                setattr(_MultiProcessingDataLoaderIter, "_shutdown", True)  # noqa: B010 - missing if __init__ failed
                for worker in active_children():
                    if worker not in others:
                        worker.kill()
                self._fail(failure_of(error) or error)

    def _fetch(self):
        """Return the next batch; a worker's death or failure becomes a `UserError`."""
        if self._loader is None:
            raise RuntimeError("this loader was closed")
        iterator = self._iterators[0]
        if dead := _dead_workers(iterator):
            self._fail(death_of(dead))
        try:
            with _awaiting_workers():
                batch = next(iterator)
        except (RuntimeError, OSError, EOFError) as error:
            # A worker that dies while its memory is transferred breaks the connection before it has ended.
            dead = _dead_workers(iterator, seconds=0 if isinstance(error, RuntimeError) else 5)
            self._fail(death_of(dead) if dead else failure_of(error) or error)
        if isinstance(batch, WorkerFailure):
            self._fail(batch)
        return batch

    def _fail(self, reason: "Exception | WorkerFailure") -> NoReturn:
        self.close()
        raise UserError(reason.message) if isinstance(reason, WorkerFailure) else reason

    def close(self) -> None:
        """End the workers. The loader cannot be used afterwards."""
        self._closing()
        self._loader = None


class _UpstreamOrder(_TorchLoader):
    """Common base of the loaders without a seed: an epoch starts at its first batch."""

    def __init__(self, source, workers: int, batches, sampler, **options):
        self.sampler = sampler
        super().__init__(source, workers, batches, **options)

    def __iter__(self) -> Iterator[tuple]:
        for _ in range(len(self)):
            yield self._fetch()

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Pass the epoch, which selects the permutation, to the distributed sampler."""
        if start_batch:
            raise ValueError("an epoch can only begin in its middle when samples are keyed: give a seed")
        if isinstance(self.sampler, DistributedSampler):
            self.sampler.set_epoch(epoch)


class EndlessLoader(_UpstreamOrder):
    """Upstream's loader: one iterator for all epochs, created here; an epoch is the next `len()` batches.

    Leaving an epoch early therefore shifts the next one, workers keep the data set as it is now, and the order of a
    distributed sampler lags (see `RestartingBatches`).
    """

    def __init__(self, source: "BatchSource", batch_size: int, workers: int, *, rank: int = -1, world_size: int = 1):
        sampler = upstream_sampler(source.dataset, rank, world_size)
        super().__init__(source, workers, RestartingBatches(sampler, batch_size), sampler)
        self._new_iterator()


class ReweightedLoader(_UpstreamOrder):
    """Upstream's loader under image weights: every epoch reads `dataset.indices` again.

    By default each epoch starts new workers. With `persistent_workers` they stay, the new indices are sent to them,
    and their generators continue instead of starting from a new base seed.
    """

    def __init__(
        self, source, batch_size: int, workers: int, *, rank: int = -1, world_size: int = 1, persistent_workers=False
    ):
        sampler = upstream_sampler(source.dataset, rank, world_size)
        batches = BatchSampler(sampler, batch_size, drop_last=False)
        super().__init__(source, workers, batches, sampler, send_indices=persistent_workers and workers > 0)

    def __iter__(self) -> Iterator[tuple]:
        self._new_iterator()
        yield from super().__iter__()


class KeyedLoader(_TorchLoader, EpochByEpoch):
    """Samples and order are a function of (seed, epoch, index): any epoch can begin at any batch.

    Workers continue from one epoch into the next as long as epochs are requested in order; otherwise (a resumed run,
    an epoch left early) they are restarted. Under image weights (`reweighted`) every epoch restarts them, since its
    indices are not known earlier, unless `persistent_workers` has the indices sent.
    """

    def __init__(
        self, source, workers: int, order: EpochOrder, seed: int, *, reweighted=False, persistent_workers=False
    ):
        self.endless = not reweighted
        super().__init__(
            source,
            workers,
            KeyedBatches(order, endless=self.endless),
            # a separate generator: starting workers must not advance the one that training draws from
            generator=torch.Generator().manual_seed(seed),
            send_indices=reweighted and persistent_workers and workers > 0,
        )

    def _begin_at(self, epoch: int, start: int) -> None:
        self.batch_sampler.start = (epoch, start)
        self._new_iterator()

    def _take(self) -> tuple:
        return self._fetch()


# --- in the workers ---------------------------------------------------------------------------------------------------


class BatchSource(Dataset):
    """What torch's workers call: keys in, a finished batch or a `WorkerFailure` out."""

    def __init__(self, dataset, collate_fn: Callable | None = None, quad_seed: int | None = None):
        """collate_fn: finished samples -> batch; None writes samples straight into the batch.

        quad_seed: the collate function draws random numbers; key them by (quad_seed, epoch, first index).
        """
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.quad_seed = quad_seed
        self.indices: _SharedIndices | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: list):
        """Return the batch of these keys; torch calls this with the keys of a whole batch."""
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
        if self.quad_seed is None:
            return collate_fn(samples)
        before = random.getstate()
        random.setstate(KeyedRandom(self.quad_seed, *keys[0], len(keys)).getstate())
        try:
            return collate_fn(samples)
        finally:
            random.setstate(before)


class _SharedIndices:
    """`dataset.indices` in memory that running workers see, with a version number that each change increments."""

    def __init__(self, dataset):
        self._shared = torch.zeros(1 + len(dataset.indices), dtype=torch.int64).share_memory_()
        self._seen = 0

    def publish(self, indices) -> None:
        """Called in the main process, while no batch is being made."""
        self._shared[1:] = torch.as_tensor(list(indices))
        self._shared[0] += 1

    def apply(self, dataset) -> None:
        """Called in a worker, before a batch."""
        version = int(self._shared[0])
        if version != self._seen:
            dataset.indices = self._shared[1:].tolist()
            self._seen = version


def _as_it_is(batch):
    return batch


def _set_up_torch_worker(worker_id: int) -> None:
    set_up_worker()


# --- ended workers ----------------------------------------------------------------------------------------------------

_awaiting = False
_gated = False  # torch's handler is installed, behind the gate


def restrict_torch_handler() -> None:
    """Let torch's handler of SIGCHLD raise only while a batch is awaited. Call before workers start.

    The handler raises wherever the main process is: in the middle of a training step, of a checkpoint, of another
    loader. While a batch is awaited it is needed: it ends a wait that could be endless.
    """
    global _gated
    if threading.current_thread() is not threading.main_thread() or _gated:
        return
    signal_handling._set_SIGCHLD_handler()
    handler = signal.getsignal(signal.SIGCHLD)
    if callable(handler):
        signal.signal(signal.SIGCHLD, lambda *args: handler(*args) if _awaiting else None)
    _gated = True


@contextlib.contextmanager
def _awaiting_workers() -> Iterator[None]:
    """Within the block a worker's death raises a `RuntimeError`."""
    global _awaiting
    _awaiting = True
    try:
        yield
    finally:
        _awaiting = False


def _dead_workers(iterator, seconds: float = 0) -> list:
    """Return the worker processes of a torch iterator that have ended; wait for one up to `seconds`."""
    workers = getattr(iterator, "_workers", [])  # missing without workers
    ended = wait([w.sentinel for w in workers], timeout=seconds) if workers and seconds else []
    return [w for w in workers if w.sentinel in ended or not w.is_alive()]


def _end_workers(iterators: list) -> None:
    """Empty the list and end the workers of its iterator now, not when the garbage collector finds it."""
    while iterators:
        iterator = iterators.pop()
        for worker in getattr(iterator, "_workers", ()):
            worker.terminate = worker.kill  # torch sends SIGTERM, which workers ignore
        if hasattr(iterator, "_shutdown_workers"):  # missing without workers
            iterator._shutdown_workers()
