"""An unpickler that executes no code: opcodes, names and module states are each checked against an explicit list.

Python's unpickler calls any function that a file names. Even with restricted names, a file can set attributes of
classes, call `__setstate__` with any state and append to any object. Every opcode that accesses an object is therefore
replaced. Names become inert `Name`s; calls go to the functions of `safe_constructors`; modules are created without
their constructor, and get their state after the whole file has been read, when the file can no longer change it.
"""

import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from yolov7fast.checkpoint.safe_constructors import (
    ARGUMENTS,
    CALLS,
    CONSTANTS,
    FUSED_FORWARD,
    STATES,
    STORAGES,
    Damaged,
    Forbidden,
    FusedForward,
    Name,
    Storage,
    is_key,
    no_hooks,
)
from yolov7fast.core.files.settings_files import Unbounded, count_values
from yolov7fast.nn.class_paths import COMPILED_MARK

Modules = dict[str, type[nn.Module]]  # dotted path in files -> class
ReadStorage = Callable[[str, torch.dtype, int], Storage]  # key, type, count of numbers

# opcodes of protocols 2 to 4 that only move plain values
# fmt: off
HARMLESS = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "MEMOIZE",
    "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE",
    "BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "STACK_GLOBAL",
)
# fmt: on


LONGEST_INTEGER = 32  # bytes; states of random generators have integers of 17
OPCODE_NAMES = {opcode.code: opcode.name for opcode in pickletools.opcodes}


class Opcodes(dict):
    """Opcode -> handler; raises `Forbidden` for others."""

    def __missing__(self, code: int):
        name = OPCODE_NAMES.get(chr(code))
        if name is None:
            raise Damaged("its pickle is broken")
        raise Forbidden(f"uses the pickle instruction {name}, which no checkpoint needs")


class RestrictedUnpickler(pickle._Unpickler):  # the one in Python: its opcodes can be replaced
    """Reads one pickle. modules: the classes of modules it may contain. read_storage: returns numbers of tensors."""

    # attributes of Python's unpickler, which does not declare them
    stack: list[Any]
    read: Callable[[int], bytes]
    readline: Callable[[], bytes]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    dispatch: ClassVar[dict[int, Callable]] = Opcodes(
        {ord(getattr(pickle, n)): pickle._Unpickler.dispatch[ord(getattr(pickle, n))] for n in HARMLESS}
    )

    def __init__(self, file, modules: Modules | None = None, read_storage: ReadStorage | None = None):
        super().__init__(file)
        self.modules = modules or {}
        self.read_storage = read_storage
        self.made: list[nn.Module] = []
        self.states: list[tuple[nn.Module, Any]] = []

    def load(self) -> Any:
        result = super().load()
        if len(give_states(self.states)) != len(self.made):
            raise Damaged("a layer has no state")
        check_bounded([result, *(vars(module) for module in self.made)])
        return result

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        if path in CONSTANTS:
            return CONSTANTS[path]
        if path not in self.modules and not any(path in table for table in (CALLS, STORAGES, ARGUMENTS)):
            raise Forbidden(
                f"refers to {path if len(path) <= 100 else path[:100] + '...'}, "
                "which is not a network block, tensor or plain value"
            )
        return Name(path)

    def load_global(self) -> None:
        module, name = self.readline(), self.readline()
        if not name.endswith(b"\n"):
            raise EOFError("it ends within a name")
        self.append(self.find_class(module[:-1].decode(), name[:-1].decode()))

    # --- opcodes that make objects ------------------------------------------------------------------------------------

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if type(function) is not Name or function.path not in CALLS or type(arguments) is not tuple:
            shown = function.path if type(function) is Name else f"an object of type {type(function).__name__}"
            raise Forbidden(f"calls {shown}, which is not allowed")
        self.append(CALLS[function.path](*arguments))

    def load_newobj(self) -> None:
        arguments, cls = self.stack.pop(), self.stack.pop()
        if type(cls) is not Name or cls.path not in self.modules or arguments != ():
            shown = cls.path if type(cls) is Name else f"an object of type {type(cls).__name__}"
            raise Forbidden(f"creates a {shown}, which is not allowed")
        self.made.append(object.__new__(self.modules[cls.path]))
        self.append(self.made[-1])

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, nn.Module):
            self.states.append((made, state))
            return
        for kind, give_state in STATES.items():
            if isinstance(made, kind):
                return give_state(made, state)
        raise Forbidden(f"gives a state to a {type(made).__name__}, which takes none")

    def load_binpersid(self) -> None:
        """Storages, as (`storage`, type, key, device, count) and in the older format a sixth entry that is None;
        in the older format also classes with their source text, which is ignored."""
        match self.stack.pop():
            case ("storage", Name(path), str(key), str(), int(count), *rest) if (
                path in STORAGES and count >= 0 and rest in ([], [None]) and self.read_storage
            ):
                self.append(self.read_storage(key, STORAGES[path], count))
            case ("module", Name(path) as name, _, _) if path in self.modules:
                self.append(name)
            case _:
                raise Damaged("a storage of a tensor is not described in PyTorch's format")

    # --- integers -----------------------------------------------------------------------------------------------------

    def load_long1(self) -> None:
        self.load_integer(*self.read(1))

    def load_long4(self) -> None:
        self.load_integer(int.from_bytes(self.read(4), "little"))

    def load_integer(self, size: int) -> None:
        """Refuse integers that Python cannot print (4,300 digits) or convert to float (310 digits)."""
        if size > LONGEST_INTEGER:
            raise Forbidden(f"holds an integer of {size} bytes, which no checkpoint needs")
        self.append(int.from_bytes(self.read(size), "little", signed=True))

    # --- opcodes that fill containers, restricted to plain ones -------------------------------------------------------

    def fill(self, *kinds: type) -> Any:
        if type(self.stack[-1]) not in kinds:
            raise Forbidden(f"puts items into a {type(self.stack[-1]).__name__}, which is not allowed")
        return self.stack[-1]

    def load_append(self) -> None:
        item = self.stack.pop()
        self.fill(list).append(item)

    def load_appends(self) -> None:
        items = self.pop_mark()
        self.fill(list).extend(items)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def load_setitems(self) -> None:
        self.set_items(self.pop_mark())

    def set_items(self, items: list) -> None:
        filled = self.fill(dict, OrderedDict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not is_key(key):
                raise Forbidden(f"has a dictionary with a {type(key).__name__} as key, which no checkpoint needs")
            filled[key] = value

    def load_additems(self) -> None:
        items = self.pop_mark()
        if not all(map(is_key, items)):
            raise Forbidden("has a set whose values are not plain")
        self.fill(set).update(items)


RESTRICTED = "LONG1 LONG4 GLOBAL REDUCE NEWOBJ BUILD BINPERSID APPEND APPENDS SETITEM SETITEMS ADDITEMS"
for _name in RESTRICTED.split():
    RestrictedUnpickler.dispatch[ord(getattr(pickle, _name))] = getattr(RestrictedUnpickler, f"load_{_name.lower()}")


# --- the states of modules --------------------------------------------------------------------------------------------

MEMBERS = {"_parameters": nn.Parameter, "_buffers": torch.Tensor, "_modules": nn.Module}
PRIVATE = frozenset({"_non_persistent_buffers_set", "_is_full_backward_hook", "_reversed_padding_repeated_twice"})


class Extent(NamedTuple):
    """Size of a module, with shared modules counted once per occurrence."""

    modules: int
    depth: int


MOST = Extent(modules=100_000, depth=100)  # yolov7-e6e has some 1,700 modules, 6 deep
MOST_VALUES = 1 << 24  # plain values in a file


def check_bounded(values: Any) -> None:
    """Raise `Forbidden` for values that are too large to traverse."""
    try:
        count_values(values, MOST_VALUES)
    except Unbounded as error:
        raise Forbidden(str(error)) from None


def give_states(states: Iterable[tuple[nn.Module, Any]]) -> dict[int, Extent]:
    """Check each state and set it on its module, in the order of the file; returns the extents of modules by id.

    A module may contain only modules that were complete before it, so no network can contain itself. Sharing and
    nesting are limited, so that traversing the network terminates soon and does not overflow the stack.
    """
    complete: dict[int, Extent] = {}
    for module, state in states:
        if id(module) in complete:
            raise Forbidden(f"sets the state of one {type(module).__name__} twice")
        fused = check_state(module, state, complete)
        if isinstance(module, nn.Upsample):
            state.setdefault("recompute_scale_factor", None)  # absent before PyTorch 1.11
        module.__setstate__(state)  # PyTorch's: fills in what files of older versions lack
        if fused:
            fuse(module)
        parts = [complete[id(part)] for part in state["_modules"].values() if part is not None]
        extent = Extent(1 + sum(p.modules for p in parts), 1 + max((p.depth for p in parts), default=0))
        if extent.modules > MOST.modules or extent.depth > MOST.depth:
            raise Forbidden(
                f"has a network of {extent.modules:,} layers, {extent.depth} deep, beyond the limits of this reader"
            )
        complete[id(module)] = extent
    return complete


def fuse(module: nn.Module) -> None:
    """Mark a layer as fused: by its switch, or as upstream does, by another forward method."""
    layer: Any = module
    if hasattr(type(module), "fused"):
        layer.fused = True
    elif hasattr(type(module), "fuseforward"):
        layer.forward = layer.fuseforward


def check_state(module: nn.Module, state: Any, complete: Container[int]) -> bool:
    """Raise unless a state contains only tensors, plain values and checked modules; returns whether it was fused.

    `type` is the only method that files of networks replace, by the class path as text.
    """
    kind = type(module).__name__
    if type(state) is not dict or not MEMBERS.keys() <= state.keys():
        raise Damaged(f"the state of a {kind} is not that of a PyTorch module")
    state.pop(COMPILED_MARK, None)
    fused = state.get("forward") is FUSED_FORWARD
    if fused:
        del state["forward"]
    for name, value in state.items():
        if type(name) is not str or not name.isidentifier():
            raise Damaged(f"a {kind} has an attribute without a proper name")
        if name in MEMBERS:
            check_members(kind, name, value, complete)
        elif "_hooks" in name:
            no_hooks(value)
        elif name == "_is_full_backward_hook":
            no_hooks(None if value is False else value)
        elif name.startswith("_") and name not in PRIVATE:
            raise Forbidden(f"sets the attribute {name} of a {kind}, which such a layer does not have")
        elif callable(getattr(type(module), name, None)) and not (name == "type" and type(value) is str):
            raise Forbidden(f"replaces the method {name} of a {kind}, which is not allowed")
        elif callable(value) or isinstance(value, Name | FusedForward):
            raise Forbidden(f"sets the attribute {name} of a {kind} to a value that is not plain")
    return fused


def check_members(kind: str, name: str, members: Any, complete: Container[int]) -> None:
    if type(members) not in (dict, OrderedDict):
        raise Damaged(f"{name} of a {kind} is not a dictionary")
    for key, value in members.items():
        if type(key) is not str or not (value is None or isinstance(value, MEMBERS[name])):
            raise Damaged(f"{key} in {name} of a {kind} is a {type(value).__name__}")
        if isinstance(value, nn.Module) and id(value) not in complete:
            raise Damaged(f"{key} in a {kind} is not complete")
