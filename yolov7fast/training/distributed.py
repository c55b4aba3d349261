"""One process or many: the rank of this one, what the processes must agree on, and their heartbeats."""

import contextlib
import importlib
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from yolov7fast.core.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PEER_LOST = (
    "Connection closed by peer",
    "Connection reset",
    "Connect timeout",
    "Application timeout caused pair closure",
)
PEER_LOST += ("NCCL", "gloo", "Gloo", "timed out", "Timed out")
PATIENCE = timedelta(hours=2)  # rank 0 validates, checks labels and builds caches alone while the others wait
MINUTES = 10.0  # that a process waits for the others in a step, unless --dist-timeout says otherwise
_patient: Any = None  # the group of those long waits


@dataclass(frozen=True)
class World:
    """This process among all: rank is -1 if there is only one process. launcher: torchrun's process, which ends the
    others if one is lost; 0: started in another way.
    """

    rank: int = -1
    local_rank: int = -1
    size: int = 1
    launcher: int = 0

    @property
    def is_main(self) -> bool:
        return self.rank in (-1, 0)

    @property
    def is_distributed(self) -> bool:
        return self.rank != -1


def _number_in_environment(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise UserError(f"the environment's {name} is '{text}', not a number: unset it, or use torchrun") from None


def world_from_environment(local_rank_flag: int = -1) -> World:
    """torchrun's variables, or those of older launchers that pass --local_rank."""
    size, rank, local_rank = (
        _number_in_environment(name, default)
        for name, default in (("WORLD_SIZE", 1), ("RANK", -1), ("LOCAL_RANK", local_rank_flag))
    )
    if rank != -1 and local_rank == -1:
        raise UserError(
            "RANK is set but neither LOCAL_RANK nor --local_rank is: start with torchrun --nproc_per_node N"
        )
    is_torchrun = rank != -1 and "TORCHELASTIC_RUN_ID" in os.environ
    return World(rank, local_rank, size, os.getppid() if is_torchrun else 0)


def join(world: World, device: torch.device, total_batch: int, minutes: float = MINUTES) -> torch.device:
    """Enter the process group; returns this process's device. minutes: the longest wait for others in a step."""
    global _patient
    if not world.is_distributed:
        return device
    if total_batch % world.size:
        raise UserError(f"--batch-size {total_batch} must be a multiple of the number of processes, {world.size}")
    if device.type == "cuda":
        if torch.cuda.device_count() <= world.local_rank:
            raise UserError(
                f"process {world.local_rank} has no GPU: {torch.cuda.device_count()} are visible; "
                f"start fewer processes with --nproc_per_node"
            )
        torch.cuda.set_device(world.local_rank)
        device = torch.device("cuda", world.local_rank)
    if not dist.is_initialized():
        # Its functions have the current group as a default. Imported later, as DistributedDataParallel would,
        # they would keep the group alive, and `leave` could not end it.
        importlib.import_module("torch.distributed.nn.functional")
        backend = "cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo"
        init_group(backend, minutes)
        _patient = dist.new_group(backend="gloo", timeout=PATIENCE)
    return device


def init_group(backend: str, minutes: float) -> None:
    """As `init_process_group` does by itself, but under keys of this start only."""
    from torch.distributed.distributed_c10d import PrefixStore  # absent from builds without torch.distributed
    from torch.distributed.rendezvous import rendezvous

    start = timedelta(minutes=max(minutes, MINUTES))  # they may take longer to start than to answer in a step
    store, rank, size = next(rendezvous("env://", timeout=start))
    dist.init_process_group(
        backend=backend,
        store=PrefixStore(name_of_start(store, rank, size, start), store),
        rank=rank,
        world_size=size,
        timeout=timedelta(minutes=minutes),
    )


def name_of_start(store: "Store", rank: int, size: int, timeout: timedelta) -> str:
    """A name that is shared by this start of the processes and differs from earlier ones; all later keys begin with it.

    torchrun keeps its store when it restarts a run, with the addresses of processes that have ended: an early process
    would read such an address and fail to connect. torchrun's count of restarts cannot be used, because it differs by
    machine.
    """
    own = uuid.uuid4().hex
    deadline = time.monotonic() + timeout.total_seconds()
    try:
        if rank:
            store.set(f"waiting/{rank}", own)
            name = store.get(f"start/{own}").decode()  # waits: only the running first process can answer
            store.set(f"joined/{name}/{rank}", "")
            return name
        for other in range(1, size):
            joined = [f"joined/{own}/{other}"]
            while not store.check(joined):
                if time.monotonic() > deadline:
                    raise dist.DistStoreError(f"rank {other} has not joined")
                greeting = store.get(f"waiting/{other}").decode()  # it may still be that of an ended process
                store.set(f"start/{greeting}", own)
                with contextlib.suppress(dist.DistStoreError):
                    store.wait(joined, timedelta(seconds=0.1))
    except dist.DistStoreError:
        raise UserError(
            f"rank {rank}: another process of this run did not start within {timeout}: read its own message, "
            "check the connection"
        ) from None
    return own


def leave() -> None:
    """End the process group and its threads: a group that still holds a tensor when Python exits aborts the process.
    Called at the end of a successful run, when DistributedDataParallel has been deleted: if that held the last
    reference, its destructor would wait for threads that wait for Python. After an error the group is kept, because
    other processes may be dead.
    """
    global _patient
    if dist.is_available() and dist.is_initialized():
        _patient = None
        dist.destroy_process_group()


def any_rank(flags: Sequence[bool], world: World) -> list[bool]:
    """For each flag whether it is true in any process; a few bytes are exchanged between the hosts' CPUs, without the
    devices."""
    if not world.is_distributed:
        return list(flags)
    votes = torch.tensor([int(flag) for flag in flags])
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return [bool(vote) for vote in votes.tolist()]


def share_start(model: nn.Module, world: World) -> None:
    """Give every process the weights and statistics of the first, as DistributedDataParallel does."""
    if world.is_distributed:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


def lowest(value: int, world: World) -> int:
    """The smallest value of all processes, on every one."""
    if not world.is_distributed:
        return value
    shared = torch.tensor([value])
    dist.all_reduce(shared, op=dist.ReduceOp.MIN)
    return int(shared)


def from_main(value, world: World, patient: bool = False):
    """Rank 0's value, on every rank. patient: rank 0 may work for hours first."""
    if not world.is_distributed:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=_patient if patient else None)
    return box[0]


def from_all(value, world: World) -> list:
    """Every rank's value in order, on the main process; the others get only their own."""
    if not world.is_distributed:
        return [value]
    if not world.is_main:
        dist.gather_object(value, None, dst=0)
        return [value]
    values = [value] * world.size
    dist.gather_object(value, values, dst=0)
    return values


@contextlib.contextmanager
def main_first(world: World) -> Iterator[None]:
    """Rank 0 does the block first (builds caches, downloads), then the others."""
    if world.is_distributed and not world.is_main:
        dist.barrier(group=_patient)
    yield
    if world.is_distributed and world.is_main:
        dist.barrier(group=_patient)


@contextlib.contextmanager
def peer_failure_as_user_error(world: World) -> Iterator[None]:
    """A dead peer causes a failing collective: raise one sentence instead of a traceback."""
    try:
        yield
    except (dist.DistBackendError, RuntimeError) as error:
        text = str(error)
        if not world.is_distributed or not any(sign in text for sign in PEER_LOST):
            raise
        raise UserError(
            f"rank {world.rank}: another process of this run has ended or cannot be reached "
            f"({text.splitlines()[0][:120]}); read its own message, check the connection, then resume with --resume"
        ) from None


# --- heartbeats -------------------------------------------------------------------------------------------------------
# Heartbeats of the processes of a training: one that is stopped (SIGSTOP, a hanging driver) ends the others.
#
# A process that dies closes its connections, which its peers notice at once. One that is stopped does not: the others
# would wait in NCCL or, while rank 0 validates alone, for hours.


BEATS = 10  # within the time after which a process counts as stopped
LAST_CALL = 5.0  # seconds
DONE = 1 << 40  # added to the count of a process that has left the run normally


class Heartbeat:
    """Two threads: one increments a counter in the processes' store and reads the others', one watches the first.

    The store is in rank 0 (or in torchrun): a call waits without a limit if that process is stopped.
    """

    def __init__(self, rank: int, size: int, start: str, seconds: float):
        """start: a name that all processes share and that differs for each start of the run: torchrun keeps its
        store."""
        self.rank, self.size, self.start, self.seconds = rank, size, start, seconds
        self.ended = threading.Event()
        self.last = time.monotonic()  # when the counts were read
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._watch)]
        for thread in self.threads:
            thread.start()

    def _beat(self) -> None:
        seconds, own = timedelta(seconds=self.seconds), self.rank
        others = [rank for rank in range(self.size) if rank != own]
        counts, changed = dict.fromkeys(others, 0), dict.fromkeys(others, self.last)
        with contextlib.suppress(dist.DistStoreError, RuntimeError):  # rank 0 has ended: collectives fail, too
            library: Any = dist  # whose type stubs lack the public store classes
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = library.TCPStore(address, port, None, False, seconds, wait_for_workers=False)
            store = library.PrefixStore(f"alive/{self.start}", store)
            while not self.ended.wait(self.seconds / BEATS):
                store.add(str(own), 1)
                found, now = {rank: store.add(str(rank), 0) for rank in others}, time.monotonic()
                was_stopped = now - self.last > self.seconds / 2  # this process, or the one with the store
                for rank, count in found.items():
                    if count != counts[rank] or count >= DONE or was_stopped:
                        counts[rank], changed[rank] = count, now
                    elif now - changed[rank] > self.seconds:
                        self.leave(f"rank {rank} has not run")
                self.last = now
            store.add(str(own), DONE)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self.ended.wait(self.seconds / BEATS):
            now = time.monotonic()
            if now - before > self.seconds / 2:  # this process was stopped itself
                self.last = now
            before = now
            if now - self.last > self.seconds:
                self.leave("rank 0 cannot be reached")

    def leave(self, reason: str) -> None:
        """End the process, whose main thread cannot be interrupted in a collective."""
        if self.ended.is_set():
            return
        line = f"error: rank {self.rank}: {reason} for {self.seconds / 60:g} minutes (--dist-timeout); read its "
        with contextlib.suppress(OSError):
            os.write(2, f"{line}own message, then resume with --resume\n".encode())
        os._exit(2)


@contextlib.contextmanager
def peers_watched(rank: int, size: int, start: str, minutes: float) -> Iterator[None]:
    """In the block, end this process with one line if one of `size` processes has not run for `minutes`."""
    heartbeat = Heartbeat(rank, size, start, 60 * minutes) if size > 1 else None
    try:
        yield
    finally:
        if heartbeat is not None:
            heartbeat.ended.set()
            heartbeat.threads[0].join(timeout=LAST_CALL)  # tells the others that this process leaves
