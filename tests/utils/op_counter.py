"""Counts what reaches the dispatcher: every aten call, and those that make the host wait for the device."""

import weakref
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HOST_READS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "_unique2", "equal"}


class OpCounter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    @property
    def host_reads(self) -> int:
        return sum(count for name, count in self.calls.items() if name in HOST_READS)


class PeakMemory(TorchDispatchMode):
    """Largest sum of bytes, above those alive at the start, of storages that live at one time."""

    def __init__(self):
        super().__init__()
        self.alive, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        for t in torch.utils._pytree.tree_leaves(out):
            if not isinstance(t, torch.Tensor):
                continue
            storage = t.untyped_storage()
            key = storage._cdata
            if key in self.alive or key in inputs:
                continue
            size = storage.nbytes()
            self.alive[key] = size
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, key)
        return out

    def _gone(self, key):
        self.now -= self.alive.pop(key, 0)
