"""The memory that `SharedMemoryLoader` and its workers share, and the worker's side of it.

The memory is an anonymous mapping. It has no name, so nothing is left behind however the processes end, and it does
not count against /dev/shm, which is small in containers.
"""

import contextlib
import io
import logging
import mmap
import os
import pickle
import random
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.data.loading.collate import write_samples
from yolov7fast.data.loading.worker_processes import WorkerFailure, failure_of, set_up_worker

LOGGER = logging.getLogger(__name__)
LENGTH_BYTES = 8
NO_LABELS = np.zeros((0, 6), np.float32)


# --- shared memory ----------------------------------------------------------------------------------------------------


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
        self.pinned = False

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
        code = int(_cudart().cudaHostRegister(self._bytes.data_ptr(), self._bytes.numel(), 0))
        self.pinned = code == 0
        if not self.pinned:
            # CUDA keeps the error until it is read; torch reads and clears it when it checks a kernel launch
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device="cuda")
            LOGGER.info(
                f"CUDA refused to page-lock {self._bytes.numel() / 1e6:.0f} MB of batches (error {code}): copies to "
                "the GPU are slower; raise the limit with `ulimit -l unlimited`, or docker run --ulimit memlock=-1"
            )

    def unpin(self) -> None:
        if self.pinned:
            _cudart().cudaHostUnregister(self._bytes.data_ptr())
            self.pinned = False

    def mark(self) -> "torch.cuda.Event | None":
        """Return an event after the device's queued work; a slot read before it may be written after it."""
        if not self.pinned:
            return None
        event = torch.cuda.Event()
        event.record()
        return event


def _cudart() -> Any:
    """CUDA's runtime library, whose functions torch does not declare."""
    return torch.cuda.cudart()


class ClaimBoard:
    """Which groups of which batch are taken: a free worker claims the next group, so a slow one delays no other.

    A slot has one number, serial * 2^20 + groups claimed. The serial number of the batch keeps a late worker from
    claiming groups of the batch that uses the slot now. Workers exclude each other by a lock that needs no named
    semaphore (those live in /dev/shm). The main process needs no lock: a slot gets a new batch only when all its groups
    are claimed and done, and workers write to a slot's number only while some are left.
    """

    def __init__(self, slots: int):
        numbers = np.frombuffer(mmap.mmap(-1, (1 + slots) * 8), np.int64)
        self._cancelled, self._claims = numbers[:1], numbers[1:]
        self._read, self._write = os.pipe()  # the lock: the worker that has read the one byte holds it
        os.write(self._write, b"x")

    def open(self, slot: int, serial: int) -> None:
        """Main process: start a batch in this slot."""
        self._claims[slot] = serial << 20

    def claim(self, slot: int, serial: int, groups: int) -> int | None:
        """Worker: return a group of this batch that no other worker has, None once all are taken."""
        os.read(self._read, 1)
        try:
            owner, group = divmod(int(self._claims[slot]), 1 << 20)
            if owner != serial or group >= groups:
                return None
            self._claims[slot] += 1
            return group
        finally:
            os.write(self._write, b"x")

    def cancel(self, below: int) -> None:
        """Main process: batches with lower serial numbers are no longer needed."""
        self._cancelled[0] = below

    def is_cancelled(self, serial: int) -> bool:
        return serial < int(self._cancelled[0])

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


# --- messages ---------------------------------------------------------------------------------------------------------


class BatchTask(NamedTuple):
    """One batch to be made, sent to every worker."""

    serial: int  # number of the batch since the loader was made
    slot: int
    epoch: int | None  # None: samples are not keyed
    indices: list[int]
    shape: tuple[int, int]
    first_group: int  # number of its first group since the loader was made


class NewIndices(NamedTuple):
    """Replaces `dataset.indices` in every worker (image weights)."""

    indices: list[int]


class GroupDone(NamedTuple):
    """The images of a group are written."""

    serial: int
    group: int
    labels: np.ndarray  # float32 (k, 6), column 0 is the index in the batch; empty for a cancelled batch
    paths: list[str]
    shapes: list


class WorkerSetup(NamedTuple):
    """What a worker is forked with."""

    dataset: Any
    buffer: BatchBuffer
    board: ClaimBoard
    micro_batch: int
    workers: int
    base_seed: int
    claim_dynamically: bool  # free workers claim groups; otherwise group g belongs to worker g mod workers


def framed(message) -> bytes:
    """Return a message for the task pipe: its length, then its pickle. The main process may write it in parts."""
    data = pickle.dumps(message, protocol=5)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def _read_framed(stream: BinaryIO):
    """Wait for the next message of a task pipe and return it."""
    size = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    return pickle.loads(stream.read(size))


# --- the worker -------------------------------------------------------------------------------------------------------


def run_worker(worker: int, setup: WorkerSetup, tasks: Connection, results: Connection) -> None:
    """Make groups of samples until the message None arrives or the main process ends."""
    set_up_worker()
    torch.set_num_threads(1)
    _seed_like_torch(setup.base_seed, worker)
    stream = io.BufferedReader(io.FileIO(tasks.fileno(), closefd=False))
    while (task := _read_framed(stream)) is not None:
        if isinstance(task, NewIndices):
            setup.dataset.indices = task.indices
            continue
        # one message for all its groups: each message wakes the main process, and the batch waits for the last group
        answers = [_answer(setup, task, group) for group in _groups_of(worker, setup, task)]
        if answers:
            results.send_bytes(pickle.dumps(answers, protocol=5))


def _seed_like_torch(base_seed: int, worker: int) -> None:
    """Seed Python's, NumPy's and torch's generators as torch's loader does for its worker of this number."""
    random.seed(base_seed + worker)
    torch.manual_seed(base_seed + worker)
    words = [worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(words).generate_state(4))


def _groups_of(worker: int, setup: WorkerSetup, task: BatchTask) -> Iterator[int]:
    """Yield the groups of a batch that this worker makes."""
    count = -(-len(task.indices) // setup.micro_batch)
    if setup.claim_dynamically:
        while (group := setup.board.claim(task.slot, task.serial, count)) is not None:
            yield group
    else:
        yield from (g for g in range(count) if (task.first_group + g) % setup.workers == worker)


def _answer(setup: WorkerSetup, task: BatchTask, group: int) -> "GroupDone | WorkerFailure | str":
    """Make a group; return a `WorkerFailure` if the user must act, a traceback as text for any other error."""
    if setup.board.is_cancelled(task.serial):
        return GroupDone(task.serial, group, NO_LABELS, [], [])
    try:
        first = group * setup.micro_batch
        images = setup.buffer.images(task.slot, len(task.indices), task.shape).numpy()
        keys = task.indices[first : first + setup.micro_batch]
        if task.epoch is not None:
            keys = [(task.epoch, index) for index in keys]
        return GroupDone(task.serial, group, *write_samples(setup.dataset, keys, images, first))
    except Exception as error:
        return failure_of(error) or traceback.format_exc()
