"""A simulated accelerator: tensors whose device is `meta` while their values are in the host's memory.

Every operator on them reaches the dispatcher as on an accelerator, copies to and from the host included, and computes
correct values: host syncs of a training step can be found on a machine without a GPU. Page-locked memory is simulated.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

SIMULATED = torch.device("meta")


class SimulatedTensor(torch.Tensor):
    """Numbers in the host's memory (`near`) behind a tensor of the simulated device."""

    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> "SimulatedTensor":
        made = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            layout=near.layout,
            device=SIMULATED,
            requires_grad=near.requires_grad,
        )
        made.near = near
        return made

    def __repr__(self, **_) -> str:
        return f"SimulatedTensor({self.near!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run_far(func, args, kwargs or {})


def run_far(func, args: tuple, kwargs: dict[str, Any]):
    """Run an operator on the numbers; its results are of the simulated device, unless it copies to the host."""
    device = kwargs.get("device")
    to_host = device is not None and torch.device(device).type == "cpu"
    near_args, near_kwargs = tree_map_only(SimulatedTensor, lambda t: t.near, (args, kwargs))
    if device is not None:
        near_kwargs = {**near_kwargs, "device": torch.device("cpu")}
    near_kwargs.pop("non_blocking", None)
    out = func(*near_args, **near_kwargs)
    if to_host or _writes_to_host(func, args):
        return args[0] if _writes_to_host(func, args) else out
    far = tree_map_only(torch.Tensor, SimulatedTensor, out)
    return return_and_correct_aliasing(func, args, kwargs, far)


def _writes_to_host(func, args: tuple) -> bool:
    """`host.copy_(far)` and the like change a tensor of the host, and give it back."""
    return func._schema.is_mutable and isinstance(args[0], torch.Tensor) and not isinstance(args[0], SimulatedTensor)


class _Far(TorchDispatchMode):
    """Tensors that are made on the simulated device, or copied there, have numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == SIMULATED.type:
            return run_far(func, args, kwargs)
        return func(*args, **kwargs)


class _AboveDispatcher(TorchFunctionMode):
    """What never reaches the dispatcher as it is: `torch.tensor(numbers, device=...)` makes its tensor on the host and
    copies it then, and so does a list as an index; `tolist` copies first."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.tolist and isinstance(args[0], SimulatedTensor):
            return args[0].cpu().tolist()
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], SimulatedTensor):
            args = (args[0], _with_host_lists(args[1]), *args[2:])
        if func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], torch.Tensor):
            device = kwargs.pop("device", None)
            made = func(*args, **kwargs)
            return made if device is None else made.to(device)
        return func(*args, **kwargs)


def _with_host_lists(index):
    """An index whose lists are tensors of the host."""
    if isinstance(index, tuple):
        return tuple(map(_with_host_lists, index))
    return torch.tensor(index) if isinstance(index, list) else index


class PinnedPages:
    """Which of the host's memory is page-locked, as far as this process pretends."""

    def __init__(self):
        self.storages: dict[int, torch.UntypedStorage] = {}

    def lock(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage  # kept, so that no other memory takes its address
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.storages


@contextmanager
def simulated_device() -> Iterator[PinnedPages]:
    """While open, `SIMULATED` is the machine's accelerator; yields what is known to be page-locked."""
    pages, autocast = PinnedPages(), torch.autocast

    def no_autocast(device_type: str, *args, **kwargs):
        """The simulated device has one precision, which torch would refuse to speak of."""
        return nullcontext() if device_type == SIMULATED.type else autocast(device_type, *args, **kwargs)

    def pin_memory(tensor: torch.Tensor, *_) -> torch.Tensor:
        return pages.lock(tensor.clone())

    with (
        mock.patch.object(torch.accelerator, "is_available", lambda: True),
        mock.patch.object(torch.accelerator, "current_accelerator", lambda *_, **__: SIMULATED),
        mock.patch.object(torch.Tensor, "pin_memory", pin_memory),
        mock.patch.object(torch, "autocast", no_autocast),
        _Far(),
        _AboveDispatcher(),
    ):
        yield pages
