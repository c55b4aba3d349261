"""The loader based on torch's: upstream's order of draws, or samples keyed by (epoch, index).

It yields (imgs uint8 (B, 3, H, W), targets (N, 6) float32, paths, shapes), on the CPU. A worker makes a whole batch.
"""

import contextlib
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import active_children, util
from multiprocessing.connection import wait
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from yolov7fast.core.errors import UserError
from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.data.augment.random_source import KeyedRandom
from yolov7fast.data.loading.batches import BatchOrder, make_batch
from yolov7fast.data.loading.worker_processes import (
    WorkerFailure,
    death_of,
    failure_of,
    set_up_worker,
    stopping_held_back,
)


class BatchLoader:
    """Batches of torch's loader, with errors as messages and workers that are ended in order.

    * Default: upstream's loader. One iterator serves all epochs and is created here; an epoch is the next `len()`
      batches. Leaving an epoch early therefore shifts the next one, and workers keep the data set in its current state.
    * Image weights (`order.endless` is False): every epoch reads `dataset.indices` again and starts new workers. With
      `persistent_workers` they stay, the new indices are sent to them, and their generators continue instead of
      starting from a new base seed.
    * With a seed (`order.keyed`) any epoch can begin at any batch. Workers continue from one epoch into the next as
      long as epochs are requested in order; otherwise (a resumed run, an epoch left early) they are restarted.
    """

    def __init__(
        self,
        source: "BatchSource",
        workers: int,
        order: BatchOrder,
        *,
        persistent_workers: bool = False,
        tasks=None,
        **options: Any,
    ):
        """tasks: batch sampler of torch's loader; None: `order`. options: further ones of torch's loader."""
        self.dataset = source.dataset
        self.num_workers = workers
        self.batch_sampler = order
        self._source = source
        send_indices = persistent_workers and not order.endless and workers > 0
        if not workers:
            keep_freed_memory()  # samples are made in this process
        if send_indices:
            source.indices = _SharedIndices(self.dataset)
        options.setdefault("pin_memory", torch.cuda.is_available())  # elsewhere it only warns
        self._loader = DataLoader(
            source,
            batch_sampler=order if tasks is None else tasks,
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=set_up_worker,
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            persistent_workers=send_indices,
            # a separate generator: starting workers must not advance the one that training draws from
            generator=torch.Generator().manual_seed(order.seed) if order.seed is not None else None,
            **options,
        )
        self._next = (0, 0)  # (epoch, batch) that the next iteration begins with
        self._ahead: tuple[int, int] | None = None  # (epoch, batch) that `_take` gives next
        self._iterators: list = []  # none or one
        self._at_once = tasks is not None  # shared batches are not in the queues
        # At exit: before its queues close (at priority 10) and before multiprocessing ends all children, which torch
        # would report as an error.
        self._closing = util.Finalize(self, _end_workers, (self._iterators, self._at_once), exitpriority=100)
        if not order.keyed and order.endless:
            self._new_iterator()

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self.batch_sampler)

    @property
    def sampler(self) -> "BatchLoader":
        """What upstream's scripts call `set_epoch` of."""
        return self

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Set the epoch, and the batch within it, of the next iteration. Default: the epoch after the last one."""
        if not self.batch_sampler.keyed:
            if start_batch:
                raise ValueError("an epoch can only begin in its middle when samples are keyed: give a seed")
            self.batch_sampler.sampler.set_epoch(epoch)
        self._next = (epoch, start_batch)

    def __iter__(self) -> Iterator[tuple]:
        order = self.batch_sampler
        epoch, start = self._next
        self._next = (epoch + 1, 0)
        if self._ahead != (epoch, start) and (order.keyed or not order.endless):
            order.start = (epoch, start)
            self._new_iterator()
        for batch in range(start, len(self)):
            last = batch + 1 == len(self)
            self._ahead = (epoch + 1, 0) if last and order.endless else (epoch, batch + 1)
            yield self._take()

    def _new_iterator(self) -> None:
        self._check_open()
        if self._source.indices is None:
            _end_workers(self._iterators, self._at_once)
        else:
            self._source.indices.publish(self.dataset.indices)
        restrict_torch_handler()
        others = active_children()
        with stopping_held_back():
            try:
                self._iterators[:] = [iter(self._loader)]
            except OSError as error:  # no processes; or no locks for its queues, which live in /dev/shm
                setattr(_MultiProcessingDataLoaderIter, "_shutdown", True)  # noqa: B010 - missing if __init__ failed
                for worker in active_children():
                    if worker not in others:
                        worker.kill()
                text = f"cannot start {self.num_workers} data workers ({error}); use fewer --workers"
                self._fail(failure_of(error) or UserError(text))

    def _check_open(self) -> None:
        if not self._closing.still_active():
            raise RuntimeError("this loader was closed")

    def _take(self):
        """Return torch's next batch (of groups: its next group); a worker's death or failure becomes a `UserError`."""
        self._check_open()
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


# --- in the workers ---------------------------------------------------------------------------------------------------


class BatchSource(Dataset):
    """What torch's workers call: keys in, a finished batch or a `WorkerFailure` out."""

    def __init__(self, dataset, collate_fn: Callable | None = None, quad_seed: int | None = None):
        """collate_fn: finished samples -> batch; None writes samples directly into the batch.

        quad_seed: the collate function draws random numbers; key them by (quad_seed, epoch, first index).
        """
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.quad_seed = quad_seed
        self.indices: _SharedIndices | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys):
        """Return the batch of these keys; torch calls this with the keys of a whole batch."""
        try:
            if self.indices is not None:
                self.indices.apply(self.dataset)
            return self.make(keys)
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            return failure

    def make(self, keys: Any) -> tuple:
        in_worker = get_worker_info() is not None
        if self.collate_fn is None:
            return make_batch(self.dataset, keys, shared=in_worker)
        samples = [self.dataset[key] for key in keys]
        before = random.getstate()
        if self.quad_seed is not None:
            random.setstate(KeyedRandom(self.quad_seed, *keys[0], len(keys)).getstate())
        batch = self.collate_fn(samples)
        if self.quad_seed is not None:
            random.setstate(before)
        if in_worker:
            for tensor in batch[:2]:
                tensor.share_memory_()  # torch would when sending, in a thread whose errors are lost: a hang
        return batch


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


def _end_workers(iterators: list, at_once: bool = False) -> None:
    """Empty the list and end the workers of its iterator now, not when the garbage collector finds it.

    at_once: kill them, as they hold nothing that needs a clean-up; otherwise they finish what they are sending.
    If Ctrl-C interrupts this, the call at exit does the rest.
    """
    while iterators:
        iterator = iterators[-1]
        for worker in getattr(iterator, "_workers", ()):
            worker.terminate = worker.kill  # torch sends SIGTERM, which workers ignore
            if at_once:
                worker.kill()
        if hasattr(iterator, "_shutdown_workers"):  # missing without workers
            iterator._shutdown_workers()
        iterators.pop()
