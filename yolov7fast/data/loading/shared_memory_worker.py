"""The worker's side of `SharedLoader`: samples are written where the batch will be read."""

import gc
import io
import pickle
import random
import traceback
from multiprocessing.connection import Connection
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.data.loading.collate import write_samples
from yolov7fast.data.loading.shared_memory_loader import BatchBuffer, ClaimBoard
from yolov7fast.data.loading.worker_processes import Failure, failure_of
from yolov7fast.data.loading.worker_processes import leave_stopping_to_main

LENGTH_BYTES = 8
NO_LABELS = np.zeros((0, 6), np.float32)


class Task(NamedTuple):
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


class Done(NamedTuple):
    """A group of samples is in its place."""

    serial: int
    group: int
    labels: np.ndarray  # float32 (k, 6), column 0 is the index in the batch; of a cancelled batch: none
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
    claim_dynamically: bool  # free workers claim groups; otherwise group g is worker (g mod workers)'s


def framed(message) -> bytes:
    """A message for the task pipe: its length, then itself. The main process may have to write it piece by piece."""
    data = pickle.dumps(message, protocol=5)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def read_framed(stream: BinaryIO):
    """The next message of a task pipe; waits for all of it."""
    size = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    return pickle.loads(stream.read(size))


def seed_like_torch(base_seed: int, worker: int) -> None:
    """Seed the three generators of a worker as torch's own loader does."""
    random.seed(base_seed + worker)
    torch.manual_seed(base_seed + worker)
    words = [worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(words).generate_state(4))


def run_worker(worker: int, setup: WorkerSetup, tasks: Connection, results: Connection) -> None:
    """Make groups of samples until sent None or the main process is gone."""
    leave_stopping_to_main()
    keep_freed_memory()
    gc.freeze()  # the collector would write into every inherited object, and so copy its page
    torch.set_num_threads(1)
    seed_like_torch(setup.base_seed, worker)
    stream = io.BufferedReader(io.FileIO(tasks.fileno(), closefd=False))
    while (task := read_framed(stream)) is not None:
        if isinstance(task, NewIndices):
            setup.dataset.indices = task.indices
            continue
        # one message for all its groups: the batch waits for the last of them anyway, and each wakes the main process
        answers = [_answer(setup, task, group) for group in _groups_of(worker, setup, task)]
        if answers:
            results.send_bytes(pickle.dumps(answers, protocol=5))


def _groups_of(worker: int, setup: WorkerSetup, task: Task):
    """The groups of a batch that this worker is to make."""
    count = -(-len(task.indices) // setup.micro_batch)
    if setup.claim_dynamically:
        while (group := setup.board.claim(task.slot, task.serial, count)) is not None:
            yield group
    else:
        yield from (g for g in range(count) if (task.first_group + g) % setup.workers == worker)


def _answer(setup: WorkerSetup, task: Task, group: int) -> "Done | Failure | str":
    """`Done`, or what went wrong: a `Failure` for the user to fix, a traceback as text for all else."""
    if setup.board.is_cancelled(task.serial):
        return Done(task.serial, group, NO_LABELS, [], [])
    try:
        return _fill(setup, task, group)
    except Exception as error:
        return failure_of(error) or traceback.format_exc()


def _fill(setup: WorkerSetup, task: Task, group: int) -> Done:
    """Write the images of a group into the batch; labels, paths and shapes go into the answer."""
    first = group * setup.micro_batch
    images = setup.buffer.images(task.slot, len(task.indices), task.shape).numpy()
    keys = task.indices[first : first + setup.micro_batch]
    if task.epoch is not None:
        keys = [(task.epoch, index) for index in keys]
    return Done(task.serial, group, *write_samples(setup.dataset, keys, images, first))
