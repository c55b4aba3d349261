"""`--worker-tensor`: all workers fill one batch together, in shared memory that is reused.

Torch's workers make a whole batch each: the first batch takes as long as one worker needs for all of it, and every
batch is new memory that is allocated, filled, copied and freed. Here a batch is divided into groups of `micro_batch`
samples, each worker writes its groups directly into the batch's slot of a buffer, and the main process receives one
message per worker with labels already numbered.
"""

import contextlib
import os
import pickle
import select
from collections import deque
from collections.abc import Iterator
from itertools import chain
from multiprocessing import get_all_start_methods, get_context, util

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.data.loading.samplers import EpochByEpoch, EpochOrder
from yolov7fast.data.loading.shared_memory_worker import (
    BatchBuffer,
    BatchTask,
    ClaimBoard,
    GroupDone,
    NewIndices,
    WorkerSetup,
    framed,
    run_worker,
)
from yolov7fast.data.loading.worker_processes import WorkerFailure, death_of, stopping_held_back

HELD = 2  # batches that stay readable: the last one returned and the one before


def default_micro_batch(batch_size: int, workers: int) -> int:
    """Return the group size: two groups of a batch per worker, so that others make the last group of a slow one."""
    return max(-(-batch_size // (2 * workers)), 1)


def batches_ahead(batch_size: int, workers: int, micro_batch: int) -> int:
    """Return how many batches to prepare: three, or enough to keep every worker busy with two groups."""
    return max(3, -(-2 * workers * micro_batch // batch_size))


class SharedMemoryLoader(EpochByEpoch):
    """Batches in order from worker processes that share their memory.

    The image tensor of a batch is a view of a slot: it stays valid until the iterator has been advanced **twice
    more**. Copy it (or send it to a device) to keep it longer. Targets are fresh memory.

    With a `seed` samples are those of the other loaders, bit for bit, and free workers take the next group. Without
    one, group g of the run belongs to worker g mod W, and worker k's generators are seeded as torch seeds its worker k:
    reproducible for a number of workers and `micro_batch`, but equal to the default loader's samples only if a group is
    a whole batch. Under image weights (`reweighted`) workers receive `dataset.indices` at the start of each epoch and
    do not prepare batches of the next one.
    """

    def __init__(
        self, dataset, batch_size: int, workers: int, order: EpochOrder, *, seed=None, micro_batch=0, reweighted=False
    ):
        if "fork" not in get_all_start_methods():
            raise UserError("--worker-tensor needs processes that fork (Linux, macOS): leave the flag out")
        self.dataset = dataset
        self.num_workers = workers
        self.batch_sampler = order
        self.endless = not reweighted
        self._keyed = seed is not None
        self.micro_batch = min(micro_batch or default_micro_batch(batch_size, workers), batch_size)
        slots = HELD + batches_ahead(batch_size, workers, self.micro_batch)
        largest = max(h * w for h, w in map(dataset.shape_of, range(len(dataset))))
        self._buffer = BatchBuffer(slots, batch_size * 3 * largest)
        self._board = ClaimBoard(slots)
        self._free = deque(range(slots))
        self._held: deque = deque()  # [slot, mark] of batches returned, oldest first
        self._pending: deque[_PendingBatch] = deque()  # being made, in order
        self._plan = iter(())
        self._serial = self._group = 0
        base_seed = int(torch.empty((), dtype=torch.int64).random_()) if seed is None else seed
        self._workers = _Workers(
            WorkerSetup(dataset, self._buffer, self._board, self.micro_batch, workers, base_seed, self._keyed)
        )
        self._buffer.pin()
        self._closing = util.Finalize(self, _shut, (self._workers, self._buffer, self._board), exitpriority=100)

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self.batch_sampler)

    @property
    def pinned(self) -> bool:
        """Whether the batches are in page-locked memory."""
        return self._buffer.pinned

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """As in `EpochByEpoch`; a start in the middle of an epoch needs keyed samples."""
        if start_batch and not self._keyed:
            raise ValueError("an epoch can only begin in its middle when samples are keyed: give a seed")
        super().set_epoch(epoch, start_batch)

    def close(self) -> None:
        """End the workers. Returned batches stay readable; the loader cannot be used afterwards."""
        self._closing()

    def _begin_at(self, epoch: int, start: int) -> None:
        """Discard the batches being made and start from another one."""
        with self._closing_on_error():
            self._board.cancel(self._serial)
            while self._pending:
                self._wait_for(self._pending[0])
                self._free.append(self._pending.popleft().slot)
            if not self.endless:
                self._workers.send(NewIndices(list(self.dataset.indices)))
        self._plan = self.batch_sampler.onwards(epoch, start, endless=self.endless)

    def _take(self) -> tuple:
        """Return the next batch; workers make the following ones in the meantime."""
        with self._closing_on_error():
            self._recycle()
            self._order_batches()
            batch = self._pending[0]
            self._wait_for(batch)
            self._pending.popleft()
            self._held.append([batch.slot, None])
            self._order_batches()
        return self._buffer.images(batch.slot, batch.count, batch.shape), *batch.labels()

    @contextlib.contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Close the loader on any exception, Ctrl-C included: a message may have been read in part."""
        if not self._closing.still_active():
            raise RuntimeError("this loader was closed")
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _recycle(self) -> None:
        """Free the slots that the caller may no longer read and that the device has read."""
        if self._held:
            self._held[-1][1] = self._buffer.mark()  # the caller's work on the last batch is queued by now
        while len(self._held) >= HELD:
            slot, mark = self._held[0]
            if mark is not None and not mark.query():
                if self._free or self._pending:
                    break
                mark.synchronize()
            self._held.popleft()
            self._free.append(slot)

    def _order_batches(self) -> None:
        """Send tasks while there are free slots and batches to make."""
        while self._free and (planned := next(self._plan, None)) is not None:
            epoch, indices = planned
            slot = self._free.popleft()
            shape = tuple(self.dataset.shape_of(indices[0]))
            key_epoch = epoch if self._keyed else None
            task = BatchTask(self._serial, slot, key_epoch, list(indices), shape, self._group)
            batch = _PendingBatch(task, self.micro_batch)
            self._board.open(slot, self._serial)
            self._pending.append(batch)
            self._serial += 1
            self._group += batch.groups
            self._workers.send(task)

    def _wait_for(self, batch: "_PendingBatch") -> None:
        """Receive messages of workers until this batch is complete."""
        first = self._pending[0].serial
        while batch.missing:
            for done in self._workers.receive():
                if isinstance(done, WorkerFailure):
                    raise UserError(done.message)
                if isinstance(done, str):
                    raise RuntimeError(f"error in a data worker:\n{done}")
                self._pending[done.serial - first].put(done)


class _PendingBatch:
    """A batch that is being made."""

    def __init__(self, task: BatchTask, micro_batch: int):
        self.serial, self.slot, self.count, self.shape = task.serial, task.slot, len(task.indices), task.shape
        self._done: dict[int, GroupDone] = {}
        self.groups = -(-self.count // micro_batch)  # how many it is divided into

    @property
    def missing(self) -> int:
        """Number of groups that are not done yet."""
        return self.groups - len(self._done)

    def put(self, done: GroupDone) -> None:
        self._done[done.group] = done

    def labels(self) -> tuple[torch.Tensor, tuple[str, ...], tuple]:
        """Return targets, float32 (N, 6), paths and shapes."""
        done = [self._done[group] for group in range(self.groups)]
        targets = torch.from_numpy(np.concatenate([group.labels for group in done]))
        return targets, tuple(chain(*(group.paths for group in done))), tuple(chain(*(group.shapes for group in done)))


class _Workers:
    """The worker processes and the pipes to and from each.

    The main process never blocks on a task pipe: a worker that waits for the main process to read its results would
    deadlock. What a pipe does not accept at once is sent while results are awaited, so pipes of any size work (the
    system gives a user with many pipes small ones).
    """

    def __init__(self, setup: WorkerSetup):
        context = get_context("fork")
        self.processes, self._to, self._from = [], [], {}
        self._unsent: dict[int, bytearray] = {}  # by task pipe; only those with something to send
        self._poll = select.poll()
        try:
            for worker in range(setup.workers):
                self._start(context, worker, setup)
        except OSError as error:
            self.kill()
            raise UserError(f"cannot start {setup.workers} data workers ({error}); use fewer --workers") from error

    def _start(self, context, worker: int, setup: WorkerSetup) -> None:
        tasks, to_worker = context.Pipe(duplex=False)
        from_worker, results = context.Pipe(duplex=False)
        _widen(results)
        os.set_blocking(to_worker.fileno(), False)
        process = context.Process(
            target=run_worker, args=(worker, setup, tasks, results), daemon=True, name=f"data worker {worker}"
        )
        with stopping_held_back():
            process.start()
        tasks.close()
        results.close()
        self.processes.append(process)
        self._to.append(to_worker)
        self._from[from_worker.fileno()] = from_worker
        self._poll.register(from_worker, select.POLLIN)
        self._poll.register(process.sentinel, select.POLLIN)

    def send(self, message) -> None:
        """Send a message to every worker, now or while results are awaited."""
        data = framed(message)
        for pipe in self._to:
            fd = pipe.fileno()
            if fd not in self._unsent:
                self._unsent[fd] = bytearray()
                self._poll.register(fd, select.POLLOUT)
            self._unsent[fd] += data
            self._flush(fd)

    def _flush(self, fd: int) -> None:
        """Write what a task pipe accepts; keep the rest."""
        rest = self._unsent[fd]
        try:
            while rest:
                del rest[: os.write(fd, rest)]
        except BlockingIOError:
            return
        except BrokenPipeError:  # dead: `receive` reports it
            pass
        del self._unsent[fd]
        self._poll.unregister(fd)

    def receive(self) -> list["GroupDone | WorkerFailure | str"]:
        """Return the next message, a worker's answers for a batch; a dead worker raises `UserError`."""
        while True:
            ready = [fd for fd, _ in self._poll.poll()]
            dead = [p for p in self.processes if p.sentinel in ready]
            if dead:
                raise death_of(dead)
            for fd in self._unsent.keys() & ready:
                self._flush(fd)
            answered = next((fd for fd in ready if fd in self._from), None)
            if answered is None:
                continue
            try:
                return pickle.loads(self._from[answered].recv_bytes())
            except (EOFError, OSError):
                self._poll.unregister(answered)  # closed, or cut off in a message: its process is ending

    def kill(self) -> None:
        """Kill all workers: they hold nothing that needs a clean-up."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in (*self._to, *self._from.values()):
            pipe.close()


def _shut(workers: _Workers, buffer: BatchBuffer, board: ClaimBoard) -> None:
    workers.kill()
    buffer.unpin()
    board.close()


def _widen(pipe) -> None:
    """Enlarge a pipe so that it holds the messages of several batches while the main process computes (Linux)."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)
