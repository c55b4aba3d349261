"""The functions that a checkpoint's pickle may call: they create tensors, arrays of numbers and plain containers.

A pickle names callables and calls them. Here a name is only a key of `CALLS`, and its function, defined in this file,
checks every argument first. None of them accepts a callable, a class or a type code of Python objects, and none
allocates more memory than the file has bytes for.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from yolov7fast.nn.class_paths import class_path
from yolov7fast.nn.model import Model
from yolov7fast.nn.model_parser import ACTIVATIONS, known_classes


class Unreadable(Exception):
    """Why a file is not read and the remedy: the end of a sentence that begins with its name."""


class Damaged(Unreadable):
    """The file is incomplete or was changed."""

    def __init__(self, problem: str):
        super().__init__(f"is damaged: {problem}; copy or download it again")


class Forbidden(Unreadable):
    """The file contains something that no checkpoint needs."""

    def __init__(self, request: str):
        super().__init__(
            f"{request}; no code was executed. If you trust the file, "
            "load it with the program that wrote it and save the model's state_dict() alone"
        )


@dataclass(frozen=True)
class Name:
    """A known global that the pickle names; inert."""

    path: str


@dataclass(frozen=True)
class Storage:
    """The numbers of one or several tensors."""

    memory: torch.UntypedStorage
    dtype: torch.dtype

    @property
    def count(self) -> int:
        return len(self.memory) // self.dtype.itemsize


class FusedForward:
    """Placeholder for the bound method `fuseforward` of a fused layer in upstream's files."""


FUSED_FORWARD = FusedForward()

STORAGES: dict[str, torch.dtype] = {
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.FloatStorage": torch.float32,
    "torch.DoubleStorage": torch.float64,
    "torch.ByteStorage": torch.uint8,
    "torch.CharStorage": torch.int8,
    "torch.ShortStorage": torch.int16,
    "torch.IntStorage": torch.int32,
    "torch.LongStorage": torch.int64,
    "torch.BoolStorage": torch.bool,
}
CONSTANTS: dict[str, Any] = {str(dtype): dtype for dtype in STORAGES.values()}
NUMBER_CODES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"})


def is_key(value: Any) -> bool:
    """Whether a value may be a dictionary key or set member; nested values could overflow the stack when hashed."""
    return value is None or type(value) in (str, int, float, bool)


def no_hooks(hooks: Any) -> None:
    """Raise `Forbidden` for hooks: callables that a tensor or module would call later."""
    if hooks is not None and (type(hooks) not in (dict, OrderedDict) or hooks):
        raise Forbidden("holds hooks (functions to be called later), which no checkpoint needs")


def whole_numbers(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or any(type(n) is not int or n < 0 for n in value):
        raise Damaged(f"{what} is not a list of whole numbers")
    return tuple(value)


# --- tensors ----------------------------------------------------------------------------------------------------------


def tensor(storage, offset, size, stride, requires_grad, hooks, metadata=None) -> torch.Tensor:
    """A tensor inside a storage. metadata (conjugate and negative bits) must be empty."""
    if not isinstance(storage, Storage) or metadata or type(requires_grad) is not bool:
        raise Damaged("a tensor is not described in PyTorch's format")
    no_hooks(hooks)
    size, stride = whole_numbers(size, "the shape of a tensor"), whole_numbers(stride, "the stride of a tensor")
    (offset,) = whole_numbers([offset], "the offset of a tensor")
    count = math.prod(size)
    end = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1 if count else offset
    if max(count, end) > storage.count:
        raise Damaged(f"a tensor of shape {list(size)} needs more numbers than are stored")
    empty = torch.empty(0, dtype=storage.dtype)
    return empty.set_(storage.memory, offset, size, stride).requires_grad_(requires_grad)


def parameter(data, requires_grad, hooks, state=None) -> nn.Parameter:
    """A parameter. state: Python attributes that newer versions of PyTorch store; ignored."""
    if type(data) is not torch.Tensor or type(requires_grad) is not bool:
        raise Damaged("a parameter is not described in PyTorch's format")
    no_hooks(hooks)
    return nn.Parameter(data, requires_grad)


# --- NumPy ------------------------------------------------------------------------------------------------------------


def dtype(code, align=False, copy=True) -> np.dtype:
    """A new dtype of numbers (not NumPy's shared object), whose byte order `dtype_state` may set."""
    if code not in NUMBER_CODES:
        raise Forbidden(f"holds a NumPy array of type {code!r}, where only numbers are read")
    return np.dtype(code, False, True)


def dtype_state(made: np.dtype, state: Any) -> None:
    """Set the state of a dtype of numbers: (version, byte order, no fields ..., flags 0)."""
    if not isinstance(state, tuple) or len(state) != 8 or state[1] not in ("<", ">", "|", "="):
        raise Damaged("a NumPy type is not described in NumPy's format")
    if state[2:] != (None, None, None, -1, -1, 0):
        raise Forbidden("holds a NumPy array of a compound type, where only numbers are read")
    cast(Any, made).__setstate__((3, *state[1:]))


def array(kind, shape, code) -> np.ndarray:
    """An empty array, which `array_state` fills."""
    if kind != Name("numpy.ndarray"):
        raise Forbidden("holds a NumPy array of an unknown class, where only plain arrays of numbers are read")
    return np.empty(0, np.int8)


def array_state(made: np.ndarray, state: Any) -> None:
    """Set the state of an array: (version, shape, dtype, Fortran order, bytes of exactly that size)."""
    if not isinstance(state, tuple) or len(state) != 5:
        raise Damaged("a NumPy array is not described in NumPy's format")
    _, shape, kind, fortran, data = state
    shape = whole_numbers(shape, "the shape of a NumPy array")
    check_bytes(kind, data, math.prod(shape))
    cast(Any, made).__setstate__((1, shape, kind, bool(fortran), data))


def scalar(kind, data) -> np.generic:
    check_bytes(kind, data, 1)
    return np.frombuffer(data, kind)[0]


def check_bytes(kind: Any, data: Any, count: int) -> None:
    if type(data) is not bytes or not isinstance(kind, np.dtype) or kind.kind not in "biufc":
        raise Forbidden("holds a NumPy array of other values than numbers")
    if len(data) != count * kind.itemsize:
        raise Damaged("a NumPy array has fewer or more bytes than its shape needs")


# --- plain values -----------------------------------------------------------------------------------------------------


def ordered_dict_state(made: OrderedDict, state: Any) -> None:
    """Set `_metadata`, the version numbers of modules that PyTorch stores as an attribute of a state dict."""
    if type(state) is not dict or state.keys() - {"_metadata"}:
        raise Forbidden("sets attributes on a dictionary, which no checkpoint needs")
    made.__dict__.update(state)


def plain_set(members=()) -> set:
    if type(members) not in (list, tuple) or not all(map(is_key, members)):
        raise Damaged("a set is not made of plain values")
    return set(members)


def encoded(text="", encoding="latin1") -> bytes:
    """Bytes, which protocol 2 writes as text."""
    if type(text) is not str or encoding != "latin1":
        raise Forbidden("calls _codecs.encode for other values than plain bytes")
    return text.encode("latin1")


def size(numbers=()) -> torch.Size:
    return torch.Size(whole_numbers(numbers, "a shape"))


def device(kind, index=None) -> torch.device:
    if type(kind) is not str or not (index is None or type(index) is int):
        raise Damaged("a device is not described in PyTorch's format")
    return torch.device(kind) if index is None else torch.device(kind, index)


def attribute(owner, name) -> FusedForward:
    """The only attribute that a checkpoint may request: the forward of a fused layer."""
    if not isinstance(owner, nn.Module) or name != "fuseforward":
        raise Forbidden("calls builtins.getattr, which could reach anything")
    return FUSED_FORWARD


CALLS: dict[str, Any] = {
    "torch._utils._rebuild_tensor_v2": tensor,
    "torch._utils._rebuild_parameter": parameter,
    "torch._utils._rebuild_parameter_with_state": parameter,
    "torch.Size": size,
    "torch.device": device,
    "collections.OrderedDict": lambda: OrderedDict(),
    "_codecs.encode": encoded,
    "numpy.dtype": dtype,
    "numpy.core.multiarray._reconstruct": array,
    "numpy.core.multiarray.scalar": scalar,
    "numpy._core.multiarray._reconstruct": array,
    "numpy._core.multiarray.scalar": scalar,
} | {
    f"{builtins}.{name}": call
    for builtins in ("builtins", "__builtin__")  # Python 3 and, because of the pickle protocol, Python 2 spelling
    for name, call in {"set": plain_set, "bytes": lambda: b"", "getattr": attribute}.items()
}
ARGUMENTS = frozenset({"numpy.ndarray"})  # named as arguments of calls only
STATES = {np.dtype: dtype_state, np.ndarray: array_state, OrderedDict: ordered_dict_state}


# --- modules ----------------------------------------------------------------------------------------------------------

STOCK: tuple[type[nn.Module], ...] = (  # of PyTorch, inside blocks
    *(nn.Sequential, nn.ModuleList, nn.Conv2d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.MaxPool2d, nn.Upsample),
    *(nn.Linear, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout),
    *(getattr(nn, name) for name in ACTIVATIONS),
)


class Wrapper(nn.Module):
    """Replaces torch.nn.DataParallel around a network in `module`."""


def stock_modules() -> dict[str, type[nn.Module]]:
    """Class path in files -> class, of the modules that come with PyTorch."""
    return {class_path(cls): cls for cls in STOCK} | {class_path(nn.DataParallel): Wrapper}


def readable_modules() -> dict[str, type[nn.Module]]:
    """Class path in files -> class, of every module a checkpoint may hold."""
    classes = known_classes() | {class_path(Model): Model} | stock_modules()
    as_here = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes.values()}  # saved by torch.save alone
    return as_here | classes
