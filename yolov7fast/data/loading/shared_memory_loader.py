"""`--worker-tensor`: workers write images directly into the memory of the batch, which is reused.

By default a worker makes a whole batch: the first batch takes as long as one worker needs for all of it, and every
batch is new memory that is allocated, filled, copied and freed. Here a batch is divided into groups of `micro_batch`
samples, which go to the workers in turn; a worker writes the images of its groups into the batch's slot of a buffer
and sends back only their labels.

The buffer is an anonymous mapping. It has no name, so nothing is left behind however the processes end, and it does
not count against /dev/shm, which is small in containers.
"""

import contextlib
import logging
import mmap
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.data.loading.batches import BatchOrder, write_samples
from yolov7fast.data.loading.torch_loader import BatchLoader, BatchSource

LOGGER = logging.getLogger(__name__)
SMALLEST_GROUP = 8  # samples; the main process spends about 0.07 ms on the message of each group
BATCHES_AHEAD = 3  # at least as many batches are being made
HELD = 2  # batches that the caller may still read: the last one and the one being taken
QUEUED = 2  # further batches that the device may not have copied yet


class SharedMemoryLoader(BatchLoader):
    """A `BatchLoader` whose batches are views of shared memory.

    The image tensor of a batch stays valid until the iterator has been advanced **twice more**. Copy it (or send it to
    a device) to keep it longer. Targets are fresh memory.

    With a seed samples are those of the other loaders, bit for bit. Without one, group g of the run belongs to worker
    g mod W, whose generators are seeded as torch's: reproducible for a number of workers and `micro_batch`, but equal
    to the default loader's samples only if a group is a whole batch.
    """

    def __init__(self, dataset, batch_size: int, workers: int, order: BatchOrder, micro_batch: int = 0):
        """micro_batch: samples of a group; 0: two groups of a batch per worker, of at least SMALLEST_GROUP samples."""
        if sys.platform != "linux":
            raise UserError("--worker-tensor needs Linux: leave the flag out")
        micro_batch = min(micro_batch or max(-(-batch_size // (2 * workers)), SMALLEST_GROUP), batch_size)
        self._groups = -(-batch_size // micro_batch)
        groups_per_worker = max(2, -(-BATCHES_AHEAD * self._groups // workers))
        slots = HELD + QUEUED + -(-groups_per_worker * workers // self._groups)
        largest = max(h * w for h, w in map(dataset.shape_of, range(len(dataset))))
        self._buffer = BatchBuffer(slots, batch_size * 3 * largest)
        self._tasks = _GroupTasks(dataset, order, self._groups, micro_batch, slots)
        super().__init__(
            _GroupSource(dataset, self._buffer),
            workers,
            order,
            persistent_workers=True,
            tasks=self._tasks,
            prefetch_factor=groups_per_worker,
            pin_memory=False,  # the buffer is
        )

    def _new_iterator(self) -> None:
        if self._buffer.pinned:  # workers are forked without pinned memory
            torch.cuda.synchronize()
            self._buffer.unpin()
        super()._new_iterator()
        self._buffer.pin()

    def _take(self) -> tuple:
        """Return the next batch; workers make the following ones in the meantime."""
        tasks = self._tasks
        if tasks.taken >= 0:  # the caller's work on the last batch is queued by now
            tasks.read_by_device[tasks.taken] = self._buffer.mark()
        groups = [BatchLoader._take(self) for _ in range(self._groups)]
        slot, count, shape = tasks.pending.popleft()
        tasks.taken = slot
        labels, paths, shapes = zip(*groups)
        targets = torch.from_numpy(np.concatenate(labels))
        return self._buffer.images(slot, count, shape), targets, tuple(chain(*paths)), tuple(chain(*shapes))

    def close(self) -> None:
        """End the workers. Returned batches stay readable; the loader cannot be used afterwards."""
        super().close()
        self._buffer.unpin()


class BatchBuffer:
    """Memory for `slots` batches of images, reused for the whole run. A page is allocated when it is first written."""

    def __init__(self, slots: int, slot_bytes: int):
        self.slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._map = mmap.mmap(-1, slots * self.slot_bytes)
        except (OSError, ValueError, OverflowError) as error:
            raise UserError(
                f"no memory for {slots} batches of {slot_bytes / 1e6:.0f} MB each ({error}); use a smaller "
                "--batch-size or image size, or fewer --workers"
            ) from error
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._unpin: weakref.finalize | None = None

    def images(self, slot: int, count: int, shape: tuple[int, int]) -> torch.Tensor:
        """Return the memory of a slot as a batch of images: uint8 (count, 3, H, W)."""
        start = slot * self.slot_bytes
        return self._bytes[start : start + count * 3 * shape[0] * shape[1]].view(count, 3, *shape)

    def pin(self) -> None:
        """Page-lock the memory if CUDA is available, so that copies to the device are asynchronous.

        A refusal (limits on locked memory) costs speed only.
        """
        if not torch.cuda.is_available() or self.pinned:
            return
        cudart: Any = torch.cuda.cudart()  # CUDA's runtime library, whose functions torch does not declare
        code = int(cudart.cudaHostRegister(self._bytes.data_ptr(), self._bytes.numel(), 0))
        if code == 0:
            self._unpin = weakref.finalize(self, cudart.cudaHostUnregister, self._bytes.data_ptr())
        else:
            # CUDA keeps the error until it is read; torch reads and clears it when it checks a kernel launch
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device="cuda")
            LOGGER.info(
                f"CUDA refused to page-lock {self._bytes.numel() / 1e6:.0f} MB of batches (error {code}): copies to "
                "the GPU are slower; raise the limit with `ulimit -l unlimited`, or docker run --ulimit memlock=-1"
            )

    @property
    def pinned(self) -> bool:
        """Whether the memory is page-locked."""
        return self._unpin is not None and self._unpin.alive

    def unpin(self) -> None:
        if self._unpin is not None:
            self._unpin()

    def mark(self) -> "torch.cuda.Event | None":
        """Return an event after the device's queued work, which may read this memory."""
        if not self.pinned:
            return None
        event = torch.cuda.Event()
        event.record()
        return event


class _GroupTask(NamedTuple):
    """A group of samples to be made."""

    slot: int
    images: int  # of its batch
    shape: tuple[int, int]  # (H, W)
    first: int  # index in the batch of its first image
    keys: list


class _GroupTasks:
    """The batch sampler of torch's loader: the groups of each batch in turn, each batch in the next slot of a ring.

    Every batch has the same number of groups, of which the last ones may be empty. Torch sends a task for every group
    it has received, so at most a fixed number of batches is being made, and a slot is free when its turn comes.
    """

    def __init__(self, dataset, order: BatchOrder, groups: int, micro_batch: int, slots: int):
        self._dataset, self._order = dataset, order
        self._groups, self.micro_batch, self._slots = groups, micro_batch, slots
        self.taken = -1  # slot of the batch that was returned last
        self.read_by_device: list = [None] * slots  # marks after the work that reads a slot
        self.pending: deque[tuple[int, int, tuple[int, int]]] = deque()  # slot, images and shape of batches being made

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[_GroupTask]:
        self.pending.clear()
        slot = self.taken
        for keys in self._order:
            slot = (slot + 1) % self._slots
            mark = self.read_by_device[slot]
            if mark is not None and not mark.query():
                mark.synchronize()
            shape = tuple(self._dataset.shape_of(keys[0]))
            self.pending.append((slot, len(keys), shape))
            for first in range(0, self._groups * self.micro_batch, self.micro_batch):
                yield _GroupTask(slot, len(keys), shape, first, keys[first : first + self.micro_batch])


class _GroupSource(BatchSource):
    """What torch's workers call: a `_GroupTask` in; its labels (k, 6), paths and shapes out."""

    def __init__(self, dataset, buffer: BatchBuffer):
        super().__init__(dataset)
        self._buffer = buffer

    def make(self, keys: Any) -> tuple[np.ndarray, list[str], list]:
        task: _GroupTask = keys
        images = self._buffer.images(task.slot, task.images, task.shape).numpy()
        return write_samples(self.dataset, task.keys, images, task.first)
