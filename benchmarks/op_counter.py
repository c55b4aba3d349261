"""Counts calls at the dispatcher: every aten call, and those that make the host wait for the device."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# operators whose result, or its shape, the host must know before it continues, whatever device they run on
HOST_READS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "_unique2", "equal"}
COPIES = {"_to_copy", "copy_"}
MASKED = {
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
}  # a mask is read by the host


def reads_device(name: str, args: tuple, kwargs: dict, out) -> bool:
    """Whether a call makes the host wait for device data; a copy with `non_blocking` does not."""
    if name in COPIES:
        return waits(name, args, kwargs) and is_host(out) and not is_host(source_of(name, args))
    if name in MASKED:
        return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    return name in HOST_READS


def sends_and_waits(name: str, args: tuple, kwargs: dict, out) -> bool:
    """Whether a call copies from the host to a device and waits until that is done."""
    return name in COPIES and waits(name, args, kwargs) and is_host(source_of(name, args)) and not is_host(out)


def waits(name: str, args: tuple, kwargs: dict) -> bool:
    return not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))


def source_of(name: str, args: tuple) -> torch.Tensor:
    return args[1] if name == "copy_" else args[0]


def is_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


class OpCounter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()
        self.host_reads = self.host_sends = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        out = func(*args, **kwargs)
        self.calls[name] += 1
        self.host_reads += reads_device(name, args, kwargs, out)
        self.host_sends += sends_and_waits(name, args, kwargs, out)
        return out

    @property
    def total(self) -> int:
        return sum(self.calls.values())
