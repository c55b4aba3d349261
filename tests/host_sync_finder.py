"""Finds the operators that make the host wait for a device, with their source lines.

A dispatch mode judges every operator by its arguments. It also finds what `torch.cuda.set_sync_debug_mode` misses, such
as `non_blocking` copies out of pageable memory. It needs no GPU: see `tests.simulated_device`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.op_counter import COPIES, HOST_READS, MASKED, is_host, source_of, waits
from yolov7fast.core.files.paths import PACKAGE

INDEXED = {*MASKED, "index_select", "index_add", "index_add_", "index_copy", "index_copy_", "gather", "scatter"}
TORCH = str(Path(torch.__file__).parent)
OWN = (__file__, str(Path(__file__).with_name("simulated_device.py")))


class Place(NamedTuple):
    """A source line: of the package, or of a library that it calls."""

    file: str  # below the package, or of a library from its own folder on
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


class Wait(NamedTuple):
    """Why the host waits, and where."""

    why: str
    operator: str
    place: Place
    through: Place | None  # the package's own line, where `place` is a library's

    def __str__(self) -> str:
        through = f", called from {self.through}" if self.through else ""
        return f"{self.place}: {self.operator} {self.why}{through}"


def reason(name: str, args: tuple, kwargs: dict, pinned: Callable[[torch.Tensor], bool]) -> str:
    """Why this call makes the host wait for a device; '' where it does not. pinned: whether memory is page-locked."""
    if name in COPIES:
        source = source_of(name, args)
        target_host = is_host(args[0]) if name == "copy_" else _host_device(kwargs.get("device"), source)
        if is_host(source) == target_host:
            return ""
        if waits(name, args, kwargs):
            return "copies to the host and waits" if target_host else "copies to the device and waits"
        if not target_host and not _is_dense(source):
            return "copies memory with gaps, which the host closes first: non_blocking waits all the same"
        if not target_host and not pinned(source):
            return "copies pageable memory: non_blocking waits all the same"
        if target_host and name == "copy_" and not pinned(args[0]):
            return "copies into pageable memory: non_blocking waits all the same"
        return ""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if all(map(is_host, tensors)):
        return ""
    if name in INDEXED:
        indices = [t for t in tree_leaves(args[1:3]) if isinstance(t, torch.Tensor)]
        if name in MASKED and any(t.dtype in (torch.bool, torch.uint8) for t in tree_leaves(args[1]) if t is not None):
            return "looks for the true places of a mask"
        if not is_host(args[0]) and any(is_host(t) and t.ndim for t in indices):
            return "takes its index from the host"
    return "reads a value of the device" if name in HOST_READS else ""


def _host_device(device: torch.device | str | None, source: torch.Tensor) -> bool:
    return is_host(source) if device is None else torch.device(device).type == "cpu"


def _is_dense(tensor: torch.Tensor) -> bool:
    wide = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return wide or tensor.is_contiguous()


class WaitFinder(TorchDispatchMode):
    """Collects in `found` what the operators of the block make the host wait for."""

    def __init__(self, pinned: Callable[[torch.Tensor], bool] = torch.Tensor.is_pinned):
        super().__init__()
        self.found: dict[Wait, int] = {}  # how often
        self.pinned = pinned

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        why = reason(name, args, kwargs, self.pinned)
        if why:
            self.note(why, name)
        return func(*args, **kwargs)

    def note(self, why: str, operator: str) -> None:
        places = call_places()
        inner = places[0] if places else Place("?", 0, "?")
        own = next((p for p in places if is_own(p)), None)
        wait = Wait(why, operator, inner, own if own != inner else None)
        self.found[wait] = self.found.get(wait, 0) + 1


def call_places() -> list[Place]:
    """The callers' source lines, the innermost first, without those of torch and of the watchers."""
    places, frame = [], sys._getframe(1)
    while frame is not None:
        if not _is_hidden(frame):
            code = frame.f_code
            places.append(Place(_shown(code.co_filename), frame.f_lineno, code.co_name))
        frame = frame.f_back
    return places


def _is_hidden(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith((TORCH, "<")) or file in OWN


def _shown(file: str) -> str:
    """Below the package's parent folder, or a library's file from site-packages on."""
    path = Path(file)
    if path.is_relative_to(PACKAGE.parent):
        path = path.relative_to(PACKAGE.parent)
        if "site-packages" not in path.parts:
            return str(path)
    return (
        str(Path(*path.parts[path.parts.index("site-packages") + 1 :])) if "site-packages" in path.parts else str(path)
    )


def is_own(place: Place) -> bool:
    """Whether a line is the package's."""
    return place.file.startswith(f"{PACKAGE.name}/")
