"""Atomic writing of checkpoints that upstream (WongKinYiu/yolov7) can read: protocol 2, its class paths, and NumPy's
old module name. Objects that `checkpoint_reader` would refuse are refused when they are written.
"""

import _compat_pickle
import io
import os
import pickle
import shutil
import threading
import types
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import nn
from torch._utils import _rebuild_parameter

from yolov7fast.checkpoint.safe_constructors import ARGUMENTS, CALLS, STORAGES, readable_modules
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import Replacement, atomic_path
from yolov7fast.nn.blocks import Conv
from yolov7fast.nn.class_paths import PATHS_IN_FILES, class_path

REMEDY = "the existing file was not changed. Free some space, or choose an existing folder with write permission"
NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)  # pickled by name
MODULE_NAMES = {**PATHS_IN_FILES, "numpy._core.multiarray": "numpy.core.multiarray"}  # the latter is in NumPy 1 and 2
_NAMES_LOCK = threading.Lock()


class CheckpointPickler(pickle.Pickler):
    """Python's pickler, restricted to names that the reader accepts, with module names of upstream."""

    def __init__(self, file: BinaryIO, protocol: int):
        super().__init__(file, protocol)
        self.readable = readable_modules().keys() | CALLS.keys() | STORAGES.keys() | ARGUMENTS

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, NAMED):
            path = class_path(obj)
            if path not in self.readable:
                raise TypeError(f"a checkpoint cannot hold {path}: it could not be read back")
        elif isinstance(obj, torch.Tensor) and obj.__dict__:
            # torch.compile sets attributes on tensors, which older versions of PyTorch cannot read
            if isinstance(obj, nn.Parameter):
                return _rebuild_parameter, (obj.data, obj.requires_grad, OrderedDict())
            return obj.detach().__reduce_ex__(2)
        return NotImplemented

    def dump(self, obj: Any) -> None:
        """Pickle with module names of upstream, by entries in the table that protocol 2 uses for names of Python 2."""
        table = _compat_pickle.REVERSE_IMPORT_MAPPING
        with _NAMES_LOCK:
            table.update(MODULE_NAMES)
            try:
                super().dump(obj)
            finally:
                for module in MODULE_NAMES:
                    del table[module]


class RememberingFile:
    """File for torch.save that records the first error instead of raising it: torch.save's clean-up writes again."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.error: OSError | None = None

    def write(self, data) -> int:
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Required by torch.save; `save_checkpoint` flushes the complete file."""


class SaveError(UserError):
    """A checkpoint could not be written to some of its paths (`failed`); the others were written."""

    def __init__(self, errors: Iterable[UserError], failed: Iterable[Path]):
        super().__init__("; ".join(map(str, errors)))
        self.failed = list(failed)


def save_checkpoint(obj: Any, *paths: str | Path) -> None:
    """Serialise an object once and replace every path atomically.

    obj: a mapping (of modules, tensors, NumPy numbers and arrays, plain values) or a network. Not copied.
    The first path is the most important: it is written first, and one that does not fit on the disk does not affect the
    others (`SaveError` names it). It is renamed last, so that after a kill no other file is older than it.
    """
    refuse_fused(obj)
    first, *others = dict.fromkeys(Path(os.path.realpath(path)) for path in paths)
    errors: dict[Path, UserError] = {}
    with ExitStack() as stack:
        complete: dict[Path, Replacement] = {}
        for path in (first, *others):
            write = partial(copy_or_link, complete[first].temporary) if complete else partial(serialise, obj)
            try:
                replacement = stack.enter_context(Replacement(path, remedy=REMEDY))
                replacement.fill(write)
                complete[path] = replacement
            except UserError as error:
                if path == first:
                    raise SaveError([error], [first, *others]) from error
                errors[path] = error
        for path in reversed(complete):
            try:
                complete[path].commit()
            except UserError as error:
                errors[path] = error
    for path in [path for path in errors if first not in errors]:  # replacing the first may have freed space
        try:
            with atomic_path(path, remedy=REMEDY) as temporary:
                copy_or_link(first, temporary)
            del errors[path]
        except UserError:
            pass
    if errors:
        raise SaveError(errors.values(), [path for path in (first, *others) if path in errors])


def copy_or_link(source: Path, path: Path) -> None:
    """Copy a file, so that changing one in place does not change the other; if the disk is full, link it."""
    try:
        shutil.copyfile(source, path)
    except OSError as error:
        path.unlink(missing_ok=True)
        try:
            os.link(source, path)
        except OSError:
            path.write_bytes(b"")  # so that it can be discarded
            raise error from None


def serialised(obj: Any) -> bytes:
    """The bytes of a file of the object, in memory."""
    content = io.BytesIO()
    write_object(obj, content)
    return content.getvalue()


def serialise(obj: Any, path: Path) -> None:
    with open(path, "wb") as file:
        write_object(obj, file)


def write_object(obj: Any, file: BinaryIO) -> None:
    remembering = RememberingFile(file)
    pickling = types.SimpleNamespace(__name__="pickle", Pickler=CheckpointPickler)
    torch.save(obj, cast(BinaryIO, remembering), pickle_module=pickling, pickle_protocol=2)
    if remembering.error:
        raise remembering.error


def refuse_fused(obj: Any) -> None:
    """Raise ValueError for a fused network: readers of checkpoints would fail or fuse it again."""
    for network in [obj, *(obj.values() if isinstance(obj, dict) else ())]:
        for m in network.modules() if isinstance(network, nn.Module) else ():
            if getattr(m, "fused", False) or (type(m) is Conv and not hasattr(m, "bn")):
                raise ValueError("this network was fused for inference; save it before fuse()")
