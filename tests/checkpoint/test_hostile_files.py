"""A checkpoint from an untrusted source runs nothing and changes nothing outside itself.

Every file here is one that Python's own unpickler would obey. Each must end in one sentence that names what it asked
for; the tests also look whether anything happened.
"""

import io
import os
import pickle
import pickletools
import struct
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from yolov7fast.checkpoint.checkpoint_reader import LEGACY_MAGIC, LEGACY_VERSION, CheckpointError, load_checkpoint
from yolov7fast.checkpoint.restricted_unpickler import RestrictedUnpickler
from yolov7fast.checkpoint.safe_constructors import Unreadable
from yolov7fast.nn.blocks import Conv

# --- pickles written opcode by opcode, and the checkpoints around them -----------------------------------------------


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


@pytest.fixture
def refused(tmp_path):
    """`refused(opcodes)`: put a pickle of these into a checkpoint; the sentence it is refused with."""
    return lambda body: refusal(write_zip(tmp_path / "hostile.pt", body))


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("old_container", [False, True])
def test_call_of_a_command_is_refused_by_its_name_and_not_run(tmp_path, protocol, old_container):
    canary = tmp_path / "canary"
    content = {"model": Runs(os.system, f"touch {canary}")}
    torch.save(content, tmp_path / "x.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=not old_container)
    assert "refers to posix.system, which is not a network block" in refusal(tmp_path / "x.pt")
    assert not canary.exists()


def test_unpickler_itself_refuses_what_pickle_would_run(tmp_path):
    canary = tmp_path / "canary"
    content = pickle.dumps(Runs(open, str(canary), "w"), 2)
    with pytest.raises(Unreadable, match=r"io\.open"):
        RestrictedUnpickler(io.BytesIO(content)).load()
    assert not canary.exists()
    pickle.loads(content).close()
    assert canary.exists()  # so the file was indeed able to


@pytest.mark.parametrize(
    ("path", "of"),
    [
        ("builtins.eval", ""),
        ("__builtin__.exec", ""),
        ("torch.load", ""),
        ("torch.hub.load", ""),
        ("torch.jit.load", ""),
        ("numpy.load", ""),
        ("functools.partial", ""),
        ("operator.attrgetter", ""),
        ("copyreg._reconstructor", ""),
        ("types.FunctionType", ""),
        ("torch._utils._rebuild_wrapper_subclass", ""),
        ("yolov7fast.checkpoint.checkpoint_reader.save_checkpoint", ""),
        ("models.yolo.read_description", ""),
        ("models.yolo.Models", ""),  # nearly a known name
        ("Models.yolo.Model", ""),
        ("models.yolo.model", ""),
        ("models.yolo.Model ", ""),
        ("models.common.Conv.__init__", "models.common"),  # through an attribute of a known class
        ("models.common.torch.hub.load", "models.common"),  # through a module that a known module imports
        ("models.yolo.time.sys.exit", "models.yolo"),
        ("torch.serialization.os.system", "torch"),
        ("torch.nn.Module.__setattr__", "torch.nn"),
        ("numpy.core.multiarray._reconstruct.__class__", "numpy.core.multiarray"),
        ("torch.StorageWeakRef", ""),
    ],
)
def test_names_are_compared_whole(refused, path, of):
    by_global = name(path, of)
    spelled = text(of or path.rpartition(".")[0]) + text(path[len(of or path.rpartition(".")[0]) + 1 :])
    for body in (by_global, spelled + pickle.STACK_GLOBAL):
        message = refused(body)
        assert f"refers to {path}," in message and "no code was executed" in message


def test_name_in_the_message_is_made_harmless(refused):
    assert r"refers to os.\x1b[2J" in refused(name("os.\x1b[2J" + "x" * 10_000))
    assert len(refused(name("os.\x1b[2J" + "x" * 10_000))) < 600


# --- calls, new objects, states, members: what each body is refused with ----------------------------------------------

CONV, CONCAT, MODULE_LIST = "models.common.Conv", "models.common.Concat", "torch.nn.modules.container.ModuleList"
NEW_CONV = name(CONV) + pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.BINPUT + b"\x07"  # remembered as 7
AGAIN = pickle.BINGET + b"\x07"
LAYER, PLANTED = module(CONCAT), mapping({"0": module(CONCAT)})
PARTS = {"_parameters": pickle.EMPTY_DICT, "_buffers": pickle.EMPTY_DICT}
STATE = mapping(PARTS | {"_modules": pickle.EMPTY_DICT})
F8 = call("numpy.dtype", text("f8"))
HOOKS = [hooks for hooks in vars(nn.Module()) if hooks.endswith("hooks")]
CLASSES = ("models.yolo.Model", CONV, "numpy.ndarray", "torch.HalfStorage")


def late_hooks(hooks: str) -> bytes:
    """Hooks that are put in after the module was given its state, through the pickle's memory."""
    late = module(CONV, **{hooks: pickle.EMPTY_DICT + pickle.BINPUT + b"\x07"})
    return late + AGAIN + text("0") + LAYER + pickle.SETITEM + pickle.TUPLE2


def array(spelling: str, shape: int) -> bytes:
    empty = call(f"{spelling}.multiarray._reconstruct", name("numpy.ndarray"), plain((0,)), plain(b"b"))
    return empty + pickle.MARK + plain(1) + plain((shape,)) + F8 + plain(False) + plain(bytes(8)) + pickle.TUPLE


NESTED_KEY = pickle.EMPTY_TUPLE + pickle.TUPLE1 * 200_000  # hashing it would overflow the C stack
REFUSED = [
    *((call(path, plain("cfg.yaml")), f"calls {path}, which is not allowed") for path in CLASSES),
    (plain({"epoch": 10**4400}), "holds an integer of"),  # cannot be printed
    (plain({"epoch": -(10**100)}), "holds an integer of"),  # cannot be computed with
    (pickle.EMPTY_DICT + plain(10**4400) + pickle.NONE + pickle.SETITEM, "holds an integer of"),
    (plain([1]) + pickle.EMPTY_TUPLE + pickle.REDUCE, "calls an object of type list"),
    (LAYER + pickle.EMPTY_TUPLE + pickle.REDUCE, "calls an object of type Concat"),  # a module is callable
    (name("collections.OrderedDict") + pickle.EMPTY_TUPLE + pickle.NEWOBJ, "creates a collections.OrderedDict"),
    (name(CONV) + plain((3, 8)) + pickle.NEWOBJ, "creates a models.common.Conv"),
    *(
        (call("__builtin__.getattr", module(CONV), text(attribute)), "calls builtins.getattr")
        for attribute in ("__init__", "forward", "__class__", "fuse")
    ),
    (call("builtins.getattr", name(CONV), text("fuseforward")), "calls builtins.getattr"),
    *((call("_codecs.encode", text("a"), text(codec)), "calls _codecs.encode") for codec in ("rot13", "hex", "zlib")),
    # states and members
    *(
        (module(CONV, **{attribute: value}), f" {attribute} of a Conv")
        for attribute in ("forward", "__call__", "__class__", "_compiled_call_impl", "fuse", "to", "half")
        for value in (plain("x"), LAYER)
    ),
    *((module(CONV, **{hooks: PLANTED}), "holds hooks") for hooks in HOOKS),
    *((late_hooks(hooks), "holds hooks") for hooks in HOOKS),
    (module(CONV, _parameters=mapping({"w": plain([1.0])})), "is damaged: w in _parameters of a Conv is a list"),
    (module(CONV, _buffers=mapping({"w": LAYER})), "is damaged: w in _buffers of a Conv is a Concat"),
    (module(CONV, _modules=mapping({"w": plain([1.0])})), "is damaged: w in _modules of a Conv is a list"),
    (module(CONV, extra=name("models.yolo.Model")), "to a value that is not plain"),
    (module(CONV, **{"a.b": plain(1)}), "without a proper name"),
    (NEW_CONV + mapping(PARTS | {"_modules": mapping({"conv": AGAIN})}) + pickle.BUILD, "is not complete"),
    (NEW_CONV, "a layer has no state"),
    (NEW_CONV + STATE + pickle.BUILD + STATE + pickle.BUILD, "twice"),
    # containers
    (module(MODULE_LIST) + plain(1) + pickle.APPEND, "puts items into a ModuleList"),
    (module(MODULE_LIST) + pickle.MARK + plain(1) + pickle.APPENDS, "puts items into a ModuleList"),
    (name(CONV) + text("a") + plain(1) + pickle.SETITEM, "puts items into a Name"),
    (plain([]) + pickle.MARK + plain(1) + pickle.ADDITEMS, "puts items into a list"),
    (pickle.EMPTY_DICT + NESTED_KEY + pickle.NONE + pickle.SETITEM, "with a tuple as key"),
    # instructions that torch never writes
    (pickle.EXT1 + b"\x01", "uses the pickle instruction EXT1"),
    (pickle.EXT2 + b"\x01\x00", "uses the pickle instruction EXT2"),
    (pickle.EXT4 + b"\x01\x00\x00\x00", "uses the pickle instruction EXT4"),
    (pickle.MARK + pickle.INST + b"os\nsystem\n", "uses the pickle instruction INST"),
    (pickle.MARK + name(CONV) + pickle.OBJ, "uses the pickle instruction OBJ"),
    (name(CONV) + b")}" + pickle.NEWOBJ_EX, "uses the pickle instruction NEWOBJ_EX"),
    (pickle.PERSID + b"0\n", "uses the pickle instruction PERSID"),
    (pickle.STRING + b"'a'\n", "uses the pickle instruction STRING"),
    (pickle.NEXT_BUFFER, "uses the pickle instruction NEXT_BUFFER"),
    (pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 60), "uses the pickle instruction BYTEARRAY8"),
    # NumPy
    *((call("numpy.dtype", text(code)), "only numbers are read") for code in ("O8", "V8", "U4", "M8", "f8,O", "F8")),
    (F8 + plain((3, "|", None, ("a",), None, -1, -1, 0)) + pickle.BUILD, "compound type"),
    (F8 + plain((3, "|", None, None, None, -1, -1, 63)) + pickle.BUILD, "compound type"),
    *(
        (array(spelling, shape) + pickle.BUILD, "fewer or more bytes than its shape needs")
        for spelling in ("numpy.core", "numpy._core")
        for shape in (10**15, 2)
    ),
    (call("numpy.core.multiarray.scalar", F8, plain(bytes(3))), "fewer or more bytes"),
    (
        call("numpy.core.multiarray._reconstruct", name("torch.HalfStorage"), plain((0,)), plain(b"b")),
        "of an unknown class",
    ),
    # sizes: the storage has 8 bytes
    *((mapping({"w": tensor(storage(n))}), f"damaged: it declares {n} numbers") for n in (10**15, 3, 1, 2**63)),
    (tensor(storage(2, key="../data.pkl")), "but contains 0 bytes"),
    *(
        (tensor(storage(2), **view), "needs more numbers than are stored")
        for view in (
            *({"size": (10**12,)}, {"size": (10**12,), "stride": (0,)}, {"size": (2,), "stride": (10**12,)}),
            *({"offset": 1}, {"offset": 2**70}, {"size": (0,), "offset": 10}),
            {"size": (2**40, 2**40), "stride": (0, 0)},
        )
    ),
    *(
        (tensor(storage(2), **view), "is not a list of whole numbers")
        for view in ({"size": (-1,)}, {"stride": (-1,)}, {"offset": -1}, {"size": (1.5,)}, {"size": 2})
    ),
    (tensor(storage(2), hooks=PLANTED), "holds hooks"),
    (call("torch._utils._rebuild_parameter", tensor(storage(2)), plain(True), PLANTED), "holds hooks"),
    *(
        (plain(place) + pickle.BINPERSID, "is not described in PyTorch's format")
        for place in ("storage", ("storage", 1, "0", "cpu", 2), ("module", 1, "a", "b"))
    ),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_no_checkpoint_needs_is_refused(tmp_path, body, message):
    assert message in refusal(write_zip(tmp_path / "x.pt", body, {"0": bytes(8)}))


def test_integers_of_random_generators_are_read(tmp_path):
    content = {"state": 2**127 + 1, "inc": -(2**128) + 1, "small": -1, "zero": 0, "word": 2**31}
    assert load_checkpoint(write_zip(tmp_path / "x.pt", plain(content))) == content


def test_state_cannot_be_given_to_a_class_or_a_plain_object(refused):
    before = dict(vars(Conv))
    poison = pickle.NONE + mapping({"forward": plain("x")}) + pickle.TUPLE2 + pickle.BUILD
    assert "gives a state to a Name" in refused(name("models.common.Conv") + poison)
    assert "gives a state to a dict" in refused(pickle.EMPTY_DICT + poison)
    assert "is damaged" in refused(name("models.common.Conv") + b")" + pickle.NEWOBJ + poison)
    assert dict(vars(Conv)) == before
    ordered = call("collections.OrderedDict") + mapping({"items": plain(1)}) + pickle.BUILD
    assert "sets attributes on a dictionary" in refused(ordered)


def test_numpy_objects_are_refused(tmp_path, refused):
    canary = tmp_path / "canary"
    array = np.empty(1, object)
    array[0] = Runs(os.system, f"touch {canary}")
    torch.save({"best_fitness": array}, tmp_path / "x.pt")
    assert "holds a NumPy array of type 'O8'" in refusal(tmp_path / "x.pt")
    assert not canary.exists()


def test_well_formed_tensor_is_read_so_that_the_others_fail_for_their_reason(tmp_path):
    body = mapping({"w": tensor(storage(2))})
    path = write_zip(tmp_path / "x.pt", body, {"0": np.array([1, 2], np.float32).tobytes()})
    assert load_checkpoint(path)["w"].tolist() == [1, 2]


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
