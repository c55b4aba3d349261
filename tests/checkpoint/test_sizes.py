"""A checkpoint takes no more memory than its size, holds numbers only, and any damage is reported in one line."""

import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch

from tests.checkpoint.hostile_files import (
    Runs,
    call,
    mapping,
    module,
    name,
    plain,
    refusal,
    storage,
    tensor,
    text,
    write_zip,
)
from yolov7fast.checkpoint.checkpoint_reader import LEGACY_MAGIC, LEGACY_VERSION, load_checkpoint

# --- NumPy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["O8", "O", "V8", "U4", "M8", "f8,O", "object", "F8"])
def test_numpy_types_are_numbers_only(refused, code):
    assert "only numbers are read" in refused(call("numpy.dtype", text(code)))


def test_numpy_objects_are_refused(tmp_path, refused):
    canary = tmp_path / "canary"
    array = np.empty(1, object)
    array[0] = Runs(os.system, f"touch {canary}")
    torch.save({"best_fitness": array}, tmp_path / "x.pt")
    assert "holds a NumPy array of type 'O8'" in refusal(tmp_path / "x.pt")
    assert not canary.exists()
    compound = plain((3, "|", None, ("a",), None, -1, -1, 0))
    assert "compound type" in refused(call("numpy.dtype", text("f8")) + compound + pickle.BUILD)
    as_number = call("numpy.dtype", text("f8")) + plain((3, "|", None, None, None, -1, -1, 63)) + pickle.BUILD
    assert "compound type" in refused(as_number)


@pytest.mark.parametrize("spelling", ["numpy.core", "numpy._core"])
def test_numpy_array_has_the_bytes_its_shape_needs(refused, spelling):
    empty = call(f"{spelling}.multiarray._reconstruct", name("numpy.ndarray"), plain((0,)), plain(b"b"))
    f8 = call("numpy.dtype", text("f8"))
    for shape in (10**15, 2):
        state = pickle.MARK + plain(1) + plain((shape,)) + f8 + plain(False) + plain(bytes(8)) + pickle.TUPLE
        assert "fewer or more bytes than its shape needs" in refused(empty + state + pickle.BUILD)
    assert "fewer or more bytes" in refused(call(f"{spelling}.multiarray.scalar", f8, plain(bytes(3))))
    matrix = call(f"{spelling}.multiarray._reconstruct", name("torch.HalfStorage"), plain((0,)), plain(b"b"))
    assert "of an unknown class" in refused(matrix)


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_well_formed_tensor_is_read_so_that_the_others_fail_for_their_reason(tmp_path):
    body = mapping({"w": tensor(storage(2))})
    path = write_zip(tmp_path / "x.pt", body, {"0": np.array([1, 2], np.float32).tobytes()})
    assert load_checkpoint(path)["w"].tolist() == [1, 2]


@pytest.mark.parametrize("count", [10**15, 3, 1, 2**63])
def test_storage_that_claims_other_than_it_has_is_damaged(refused, count):
    message = refused(mapping({"w": tensor(storage(count))}), {"0": bytes(8)})
    assert f"is damaged: it names {count} numbers" in message
    assert "where it holds 0 bytes" in refused(tensor(storage(count, key="../data.pkl")))


@pytest.mark.parametrize(
    "view",
    [
        {"size": (10**12,)},
        {"size": (10**12,), "stride": (0,)},
        {"size": (2,), "stride": (10**12,)},
        {"offset": 1},
        {"offset": 2**70},
        {"size": (0,), "offset": 10},
        {"size": (2**40, 2**40), "stride": (0, 0)},
    ],
)
def test_tensor_outside_its_storage_is_damaged(refused, view):
    message = refused(tensor(storage(2), **view), {"0": bytes(8)})
    assert "asks for more numbers than are stored" in message


@pytest.mark.parametrize("view", [{"size": (-1,)}, {"stride": (-1,)}, {"offset": -1}, {"size": (1.5,)}, {"size": 2}])
def test_tensor_of_a_strange_shape_is_damaged(refused, view):
    assert "is not a list of whole numbers" in refused(tensor(storage(2), **view), {"0": bytes(8)})


def test_tensor_cannot_hold_hooks(refused):
    hooks = mapping({"0": module("models.common.Concat")})
    assert "holds hooks" in refused(tensor(storage(2), hooks=hooks), {"0": bytes(8)})
    parameter = call("torch._utils._rebuild_parameter", tensor(storage(2)), plain(True), hooks)
    assert "holds hooks" in refused(parameter, {"0": bytes(8)})


def test_persistent_ids_name_storages_only(refused):
    for body in (plain("storage"), plain(("storage", 1, "0", "cpu", 2)), plain(("module", 1, "a", "b"))):
        assert "is not described as PyTorch does" in refused(body + pickle.BINPERSID)


def test_compressed_archive_is_not_unpacked(tmp_path):
    bomb = write_zip(tmp_path / "x.pt", tensor(storage(10**6)), {"0": bytes(4 * 10**6)}, zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 10**5
    assert "is a compressed archive" in refusal(bomb)


def test_records_that_overlap_are_damaged(tmp_path):
    """Many records over the same bytes would otherwise fill the memory from a small file."""
    path = write_zip(tmp_path / "x.pt", tensor(storage(250)), {"0": bytes(1000)})
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    end = content.index(b"PK\x05\x06")
    entry = content[content.rindex(b"PK\x01\x02") : end]
    copies = b"".join(entry.replace(b"data/0", b"data/%d" % i) for i in range(1, 9))
    count, size = struct.pack("<H", 10), struct.pack("<I", end - start + len(copies))
    tail = content[end : end + 8] + count + count + size + content[end + 16 :]
    path.write_bytes(content[:end] + copies + tail)
    assert "claim more bytes than the file has" in refusal(path)


def legacy(body: bytes, keys: list, numbers: bytes) -> bytes:
    head = [LEGACY_MAGIC, LEGACY_VERSION, {"protocol_version": LEGACY_VERSION, "little_endian": True}]
    main = pickle.PROTO + b"\x02" + body + pickle.STOP
    return b"".join(pickle.dumps(part, 2) for part in head) + main + pickle.dumps(keys, 2) + numbers


@pytest.mark.parametrize(
    ("body", "keys", "numbers", "message"),
    [
        (tensor(storage(10**15)), ["0"], b"", "more than the file can hold"),
        (tensor(storage(2)), ["0"], struct.pack("<q", 3) + bytes(12), "counts of its tensors do not agree"),
        (tensor(storage(2)), ["0"], struct.pack("<q", 2) + bytes(7), "is cut short"),
        (tensor(storage(2)), [], b"", "list of its tensors is not complete"),
        (tensor(storage(2)), ["0", "0"], struct.pack("<q", 2) + bytes(8), "is cut short"),
        (name("os.system"), [], b"", "refers to os.system"),
        (pickle.BINUNICODE8 + struct.pack("<Q", 1 << 50), [], b"", "is damaged"),
    ],
)
def test_older_container_is_held_to_the_same(tmp_path, body, keys, numbers, message):
    (tmp_path / "x.pt").write_bytes(legacy(body, keys, numbers))
    assert message in refusal(tmp_path / "x.pt")


# --- networks and values without end ----------------------------------------------------------------------------------

SEQUENTIAL = "torch.nn.modules.container.Sequential"


def nested(levels: int, copies: int) -> bytes:
    """A Sequential that holds the one below it `copies` times, so many levels deep, each written once."""
    body = module("torch.nn.modules.activation.SiLU", inplace=plain(False), training=plain(True)) + put(0)
    for level in range(levels):
        inside = mapping({str(copy): get(level) for copy in range(copies)})
        state = mapping({"_parameters": pickle.EMPTY_DICT, "_buffers": pickle.EMPTY_DICT, "_modules": inside})
        made = name(SEQUENTIAL) + pickle.EMPTY_TUPLE + pickle.NEWOBJ + state + pickle.BUILD
        body += made + put(level + 1) + pickle.POP
    return body + get(levels)


def put(index: int) -> bytes:
    return pickle.LONG_BINPUT + struct.pack("<I", index)


def get(index: int) -> bytes:
    return pickle.LONG_BINGET + struct.pack("<I", index)


def test_modules_shared_on_every_level_are_refused(refused):
    """28 levels of two: 57 objects in the file, and 2**28 entries for whoever walks through the network."""
    assert "has a network of 131,071 layers, 17 deep" in refused(nested(28, 2))


def test_a_chain_of_thousands_of_modules_is_refused(refused):
    assert "101 deep" in refused(nested(3000, 1))


@pytest.mark.parametrize("key", ["epoch", "names"])
def test_values_repeated_on_every_level_are_refused(tmp_path, key):
    value = ["x"]
    for _ in range(40):
        value = [value, value]
    torch.save({key: value}, tmp_path / "x.pt")
    assert "has more than 16,777,216 values once what it repeats is written out" in refusal(tmp_path / "x.pt")


def test_a_value_that_contains_itself_is_refused(tmp_path):
    value: list = []
    value.append(value)
    torch.save({"epoch": value}, tmp_path / "x.pt")
    assert "contains itself" in refusal(tmp_path / "x.pt")
