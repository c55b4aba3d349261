"""Pickles written opcode by opcode, and the checkpoints around them: what no honest program writes."""

import pickle
import pickletools
import struct
import zipfile

import pytest

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError, load_checkpoint


def text(value: str) -> bytes:
    encoded = value.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded


def name(path: str, of: str = "") -> bytes:
    """The GLOBAL opcode for `module.name`; of: the module, where the name itself has dots."""
    module = of or path.rpartition(".")[0]
    return pickle.GLOBAL + f"{module}\n{path[len(module) + 1 :]}\n".encode()


def mapping(entries: dict[str, bytes]) -> bytes:
    inside = b"".join(text(key) + value for key, value in entries.items())
    return pickle.EMPTY_DICT + pickle.MARK + inside + pickle.SETITEMS


def plain(value) -> bytes:
    """Opcodes of an ordinary value."""
    return pickletools.optimize(pickle.dumps(value, 2))[2:-1]


def call(path: str, *arguments: bytes) -> bytes:
    return name(path) + pickle.MARK + b"".join(arguments) + pickle.TUPLE + pickle.REDUCE


def module(path: str, **attributes: bytes) -> bytes:
    """A module with an empty tree and further attributes."""
    empty = {key: pickle.EMPTY_DICT for key in ("_parameters", "_buffers", "_modules")}
    return name(path) + pickle.EMPTY_TUPLE + pickle.NEWOBJ + mapping(empty | attributes) + pickle.BUILD


def write_zip(path, body: bytes, records: dict[str, bytes] | None = None, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickle.PROTO + b"\x02" + body + pickle.STOP)
        for key, data in (records or {}).items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def storage(count: int, key: str = "0", kind: str = "torch.FloatStorage") -> bytes:
    inside = text("storage") + name(kind) + text(key) + text("cpu") + plain(count)
    return pickle.MARK + inside + pickle.TUPLE + pickle.BINPERSID


def tensor(source: bytes, offset=0, size=(2,), stride=(1,), hooks: bytes = b"") -> bytes:
    numbers = plain(offset) + plain(size) + plain(stride)
    hooks = hooks or call("collections.OrderedDict")
    return call("torch._utils._rebuild_tensor_v2", source, numbers, plain(False), hooks)


class Runs:
    """Pickles as a call of any function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def refusal(path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path)
    message = str(error.value)
    assert message.startswith(f"{path} ") and "\n" not in message
    return message
