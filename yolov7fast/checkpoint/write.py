"""Writes checkpoints so that a kill at any moment leaves the old file or the new one, and the reference can read them.

The reference's readers want protocol 2, its class paths, and know NumPy by its old module name; what the reader here
would refuse is refused when it is written.
"""

import os
import pickle
import shutil
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from yolov7fast.checkpoint.rebuild import ARGUMENTS, CALLS, STORAGES, readable_modules
from yolov7fast.core.errors import UserError
from yolov7fast.nn.blocks import Conv
from yolov7fast.nn.class_paths import PATHS_IN_FILES, class_path

NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)  # what pickles hold by name


class CheckpointPickler(pickle._Pickler):  # the one in Python: how it spells a name can be replaced
    """Python's pickler, held to names that the reader knows, in the spelling of the programs that read our files."""

    dispatch = pickle._Pickler.dispatch.copy()

    def __init__(self, file: BinaryIO, protocol: int):
        super().__init__(file, protocol)
        self.readable = readable_modules().keys() | CALLS.keys() | STORAGES.keys() | ARGUMENTS

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, NAMED) and class_path(obj) not in self.readable:
            raise TypeError(f"a checkpoint cannot hold {class_path(obj)}: it could not be read back")
        if isinstance(obj, torch.Tensor) and obj.__dict__:
            # PyTorch's compiler leaves notes on tensors; older PyTorch cannot read tensors with attributes
            if isinstance(obj, nn.Parameter):
                return torch._utils._rebuild_parameter, (obj.data, obj.requires_grad, OrderedDict())
            return obj.detach().__reduce_ex__(2)
        return NotImplemented

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Classes of networks under upstream's paths, NumPy's functions under the name NumPy 1 and 2 both know."""
        own = getattr(obj, "__module__", None)
        module = PATHS_IN_FILES.get(own) or (own.replace("numpy._core", "numpy.core") if own else own)
        if module == own:
            super().save_global(obj, name)
        else:
            self.write(pickle.GLOBAL + f"{module}\n{obj.__qualname__}\n".encode())
            self.memoize(obj)

    dispatch[types.FunctionType] = save_global


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


def save_checkpoint(obj: Any, *paths: str | Path) -> None:
    """Write one object to every path: serialised once, each file replaced in one step when all are complete.

    obj: a mapping (of modules, tensors, NumPy numbers and arrays, plain values) or a network. Not copied.
    """
    refuse_fused(obj)
    targets = list(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))  # a link stays a link
    with told_as_user_error(targets), temporary_names(targets) as names:
        with open(names[0], "wb") as file:
            remembering = RememberingFile(file)
            pickling = types.SimpleNamespace(__name__="pickle", Pickler=CheckpointPickler)
            torch.save(obj, remembering, pickle_module=pickling, pickle_protocol=2)
            if remembering.error:
                raise remembering.error
        for name in names[1:]:
            shutil.copyfile(names[0], name)
        for name in names:
            flush_to_disk(name)
        for name, target in zip(names, targets):
            os.replace(name, target)
        for folder in {target.parent for target in targets}:
            flush_to_disk(folder)


def refuse_fused(obj: Any) -> None:
    """Programs that read checkpoints expect layers as trained: a fused one would fail or, worse, be fused again."""
    for network in [obj, *(obj.values() if isinstance(obj, dict) else ())]:
        for m in network.modules() if isinstance(network, nn.Module) else ():
            if getattr(m, "fused", False) or (type(m) is Conv and not hasattr(m, "bn")):
                raise ValueError("this network was fused for inference; save it before fuse()")


@contextmanager
def temporary_names(targets: list[Path]) -> Iterator[list[Path]]:
    """A hidden name beside each target, for this process; what is left under it, and what a killed one left, goes."""
    names = [target.with_name(f".{target.name}.{os.getpid()}.tmp") for target in targets]
    for target in targets:
        for path in target.parent.iterdir():
            owner = path.name.removeprefix(f".{target.name}.").removesuffix(".tmp")
            if path.name == f".{target.name}.{owner}.tmp" and owner.isdecimal() and not is_running(int(owner)):
                path.unlink(missing_ok=True)
    try:
        yield names
    finally:
        for name in names:
            with suppress(OSError):
                name.unlink()


def is_running(process: int) -> bool:
    if os.name != "posix":
        return True  # not known, and asking by a signal would be harmful there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def told_as_user_error(targets: list[Path]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        files = " and ".join(map(str, targets))
        raise UserError(
            f"cannot write {files}: {error.strerror or error}; no file there was harmed. "
            "Free some space, or write to a folder that exists and allows it"
        ) from error


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    if path.is_dir() and os.name != "posix":
        return  # only there can a folder be opened
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
