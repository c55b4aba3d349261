"""Memory that a loader and its forked workers share: batch buffers that are used again and again.

The memory is an anonymous mapping. It has no name, so nothing is left behind however the processes end, and it does
not count against /dev/shm, which containers keep small.
"""

import mmap
import os
from typing import Any

import numpy as np
import torch

from yolov7fast.core.errors import UserError


class BatchBuffer:
    """`slots` places for one batch of images each. Pages are given by the system when first written, then kept."""

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
        """uint8 (count, 3, H, W): the memory of a slot, seen as a batch of that shape."""
        start = slot * self.slot_bytes
        return self._bytes[start : start + count * 3 * shape[0] * shape[1]].view(count, 3, *shape)

    def pin(self) -> None:
        """Where there is CUDA, lock the pages so that copies to the device can run beside the computation."""
        if torch.cuda.is_available() and not self.pinned:
            code = _cudart().cudaHostRegister(self._bytes.data_ptr(), self._bytes.numel(), 0)
            self.pinned = int(code) == 0  # a refusal (limits on locked memory) costs speed, not correctness

    def unpin(self) -> None:
        if self.pinned:
            _cudart().cudaHostUnregister(self._bytes.data_ptr())
            self.pinned = False

    def mark(self) -> "torch.cuda.Event | None":
        """A mark in the device's queue of work; a slot read before it may be written once it `has_passed`."""
        if not self.pinned:
            return None
        event = torch.cuda.Event()
        event.record()
        return event


def _cudart() -> Any:
    """CUDA's runtime library, whose functions torch does not declare."""
    return torch.cuda.cudart()


def has_passed(mark, wait: bool) -> bool:
    """Whether the device has done all that was queued before the mark; `wait` until it has."""
    if mark is None:
        return True
    if wait:
        mark.synchronize()
    return mark.query()


class ClaimBoard:
    """Who does which part of which batch: a free worker claims the next group, so a slow one holds up nobody.

    A slot has one number, serial * 2^20 + groups claimed. The serial number of the batch keeps a worker that comes
    late from claiming groups of the batch that has the slot now. Workers exclude each other by a lock that needs no
    named semaphore; the main process needs no lock, since a slot changes hands only when all its groups are claimed
    and done, and workers write to a slot's number only while some are left.
    """

    def __init__(self, slots: int):
        numbers = np.frombuffer(mmap.mmap(-1, (1 + slots) * 8), np.int64)
        self._cancelled, self._claims = numbers[:1], numbers[1:]
        self._read, self._write = os.pipe()  # the lock: whoever has read the one byte holds it
        os.write(self._write, b"x")

    def open(self, slot: int, serial: int) -> None:
        """Main process: a batch is to be made in this slot."""
        self._claims[slot] = serial << 20

    def claim(self, slot: int, serial: int, groups: int) -> int | None:
        """Worker: the number of a group of this batch that nobody else has; None once all are taken."""
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
        """Main process: batches with lower serial numbers are not wanted any more."""
        self._cancelled[0] = below

    def is_cancelled(self, serial: int) -> bool:
        return serial < int(self._cancelled[0])

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
