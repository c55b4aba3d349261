"""Writes checkpoints so that a kill at any moment leaves the old file or the new one.

WongKinYiu/yolov7 ("upstream") can read them: its readers want protocol 2, its class paths, and know NumPy
by its old module name. What the reader here would refuse is refused when it is written.
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

REMEDY = "the file there was not harmed. Free some space, or write to a folder that exists and allows it"


NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)  # what pickles hold by name
SPELLINGS = {**PATHS_IN_FILES, "numpy._core.multiarray": "numpy.core.multiarray"}  # the latter NumPy 1 and 2 both know
_SPELLING = threading.Lock()


class CheckpointPickler(pickle.Pickler):
    """Python's pickler, held to names that the reader knows, in the spelling of the programs that read our files."""

    def __init__(self, file: BinaryIO, protocol: int):
        super().__init__(file, protocol)
        self.readable = readable_modules().keys() | CALLS.keys() | STORAGES.keys() | ARGUMENTS

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, NAMED):
            path = class_path(obj)
            if path not in self.readable:
                raise TypeError(f"a checkpoint cannot hold {path}: it could not be read back")
        elif isinstance(obj, torch.Tensor) and obj.__dict__:
            # PyTorch's compiler leaves notes on tensors; older PyTorch cannot read tensors with attributes
            if isinstance(obj, nn.Parameter):
                return _rebuild_parameter, (obj.data, obj.requires_grad, OrderedDict())
            return obj.detach().__reduce_ex__(2)
        return NotImplemented

    def dump(self, obj: Any) -> None:
        """Pickle with names in the spelling of upstream.

        Up to protocol 2 Python's pickler spells modules as its table for Python 2 says: ours stand there meanwhile.
        """
        table = _compat_pickle.REVERSE_IMPORT_MAPPING
        with _SPELLING:
            table.update(SPELLINGS)
            try:
                super().dump(obj)
            finally:
                for module in SPELLINGS:
                    del table[module]


class RememberingFile:
    """Takes writes for torch.save, which must not see one fail: its own clean-up would write again."""

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
        """torch.save asks for it; `save_checkpoint` flushes when the file is whole."""


class SaveError(UserError):
    """A checkpoint that could not be written under some of its names. failed: those names; the others are written."""

    def __init__(self, errors: Iterable[UserError], failed: Iterable[Path]):
        super().__init__("; ".join(map(str, errors)))
        self.failed = list(failed)


def save_checkpoint(obj: Any, *paths: str | Path) -> None:
    """Write one object to every path: serialised once, each file replaced in one step.

    obj: a mapping (of modules, tensors, NumPy numbers and arrays, plain values) or a network. Not copied.
    The paths come in the order of their weight: on a nearly full disk the first has its room first, and one that does
    not fit costs no other (`SaveError` names it). The first takes its name last: whoever resumes from it after a kill
    never finds another file older than it.
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
    for path in [path for path in errors if first not in errors]:  # what the first one replaced may have made room
        try:
            with atomic_path(path, remedy=REMEDY) as temporary:
                copy_or_link(first, temporary)
            del errors[path]
        except UserError:
            pass
    if errors:
        raise SaveError(errors.values(), [path for path in (first, *others) if path in errors])


def copy_or_link(source: Path, path: Path) -> None:
    """A copy, so that a program that changes one file in place changes no other; where none fits, a second name."""
    try:
        shutil.copyfile(source, path)
    except OSError as error:
        path.unlink(missing_ok=True)
        try:
            os.link(source, path)
        except OSError:
            path.write_bytes(b"")  # ours to discard
            raise error from None


def serialised(obj: Any) -> bytes:
    """What a file of the object would hold, in memory."""
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
    """Programs that read checkpoints expect layers as trained: a fused one would fail or, worse, be fused again."""
    for network in [obj, *(obj.values() if isinstance(obj, dict) else ())]:
        for m in network.modules() if isinstance(network, nn.Module) else ():
            if getattr(m, "fused", False) or (type(m) is Conv and not hasattr(m, "bn")):
                raise ValueError("this network was fused for inference; save it before fuse()")
