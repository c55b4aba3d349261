"""A checkpoint from a stranger runs nothing and changes nothing outside itself.

Every file here is one that Python's own unpickler would obey. Each must end in one sentence that names what it asked
for; the tests also look whether anything happened.
"""

import io
import os
import pickle
import struct

import pytest
import torch
from torch import nn

from tests.checkpoint.hostile_files import (
    Runs,
    call,
    mapping,
    module,
    name,
    plain,
    refusal,
    text,
    write_zip,
)
from yolov7fast.checkpoint.api import load_checkpoint
from yolov7fast.checkpoint.rebuild import Unreadable
from yolov7fast.checkpoint.unpickle import RestrictedUnpickler
from yolov7fast.core.errors import UserError
from yolov7fast.nn.blocks import Conv
from yolov7fast.predictors.predictor import PredictOptions, load_predictor

# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("old_container", [False, True])
def test_call_of_a_command_is_refused_by_its_name_and_not_run(tmp_path, protocol, old_container):
    canary = tmp_path / "canary"
    content = {"model": Runs(os.system, f"touch {canary}")}
    torch.save(content, tmp_path / "x.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=not old_container)
    assert "refers to posix.system, which is none of" in refusal(tmp_path / "x.pt")
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
        ("yolov7fast.checkpoint.api.save_checkpoint", ""),
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
        assert f"refers to {path}," in message and "nothing of it was run" in message


def test_name_in_the_message_is_made_harmless(refused):
    assert r"refers to os.\x1b[2J" in refused(name("os.\x1b[2J" + "x" * 10_000))
    assert len(refused(name("os.\x1b[2J" + "x" * 10_000))) < 600


def test_known_module_path_split_elsewhere_is_still_only_that_class(tmp_path):
    body = module("models.common.Concat").replace(b"models.common\nConcat\n", b"models\ncommon.Concat\n")
    assert type(load_checkpoint(write_zip(tmp_path / "x.pt", body))).__name__ == "Concat"


# --- calls and new objects --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["models.yolo.Model", "models.common.Conv", "numpy.ndarray", "torch.HalfStorage"])
def test_classes_are_not_called(refused, path):
    assert f"calls {path}, which is not called here" in refused(call(path, plain("cfg.yaml")))


@pytest.mark.parametrize("number", [10**4400, -(10**100)])
def test_integers_that_cannot_be_printed_or_computed_with_are_refused(refused, number):
    assert "holds an integer of" in refused(plain({"epoch": number}))
    assert "holds an integer of" in refused(pickle.EMPTY_DICT + plain(number) + pickle.NONE + pickle.SETITEM)


def test_integers_of_random_generators_are_read(tmp_path):
    content = {"state": 2**127 + 1, "inc": -(2**128) + 1, "small": -1, "zero": 0, "word": 2**31}
    assert load_checkpoint(write_zip(tmp_path / "x.pt", plain(content))) == content


@pytest.mark.parametrize("family", [torch.zeros(2), ["yolo"], 3, {"a": 1}, "x" * 9000])
def test_a_family_that_is_no_name_is_refused_by_the_file(tmp_path, family):
    torch.save({"family": family, "model": None}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x\.pt: no family of detectors is called") as error:
        load_predictor(tmp_path / "x.pt", torch.device("cpu"), PredictOptions())
    assert len(str(error.value)) < 400


def test_calling_something_that_is_not_a_name_is_refused(refused):
    body = plain([1]) + pickle.EMPTY_TUPLE + pickle.REDUCE
    assert "calls an object of type list" in refused(body)
    body = module("models.common.Concat") + pickle.EMPTY_TUPLE + pickle.REDUCE  # a module is callable
    assert "calls an object of type Concat" in refused(body)


def test_new_objects_are_modules_made_without_arguments(refused):
    empty = pickle.EMPTY_TUPLE + pickle.NEWOBJ
    assert "makes a new collections.OrderedDict" in refused(name("collections.OrderedDict") + empty)
    assert "makes a new models.common.Conv" in refused(name("models.common.Conv") + plain((3, 8)) + pickle.NEWOBJ)


@pytest.mark.parametrize("attribute", ["__init__", "forward", "__class__", "fuse"])
def test_getattr_reaches_nothing(refused, attribute):
    body = call("__builtin__.getattr", module("models.common.Conv"), text(attribute))
    assert "calls builtins.getattr" in refused(body)
    assert "calls builtins.getattr" in refused(
        call("builtins.getattr", name("models.common.Conv"), text("fuseforward"))
    )


@pytest.mark.parametrize("codec", ["rot13", "hex", "utf-7", "zlib"])
def test_encode_makes_bytes_only(refused, codec):
    assert "calls _codecs.encode" in refused(call("_codecs.encode", text("abc"), text(codec)))


@pytest.mark.parametrize(
    ("body", "instruction"),
    [
        (pickle.EXT1 + b"\x01", "EXT1"),
        (pickle.EXT2 + b"\x01\x00", "EXT2"),
        (pickle.EXT4 + b"\x01\x00\x00\x00", "EXT4"),
        (pickle.MARK + pickle.INST + b"os\nsystem\n", "INST"),
        (pickle.MARK + name("models.common.Conv") + pickle.OBJ, "OBJ"),
        (name("models.common.Conv") + b")}" + pickle.NEWOBJ_EX, "NEWOBJ_EX"),
        (pickle.PERSID + b"0\n", "PERSID"),
        (pickle.STRING + b"'a'\n", "STRING"),
        (pickle.NEXT_BUFFER, "NEXT_BUFFER"),
        (pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 60), "BYTEARRAY8"),
    ],
)
def test_instructions_that_torch_never_writes_are_refused(refused, body, instruction):
    assert f"uses the pickle instruction {instruction}" in refused(body)


# --- states -----------------------------------------------------------------------------------------------------------


def test_state_cannot_be_given_to_a_class_or_a_plain_object(refused):
    before = dict(vars(Conv))
    poison = pickle.NONE + mapping({"forward": plain("x")}) + pickle.TUPLE2 + pickle.BUILD
    assert "gives a state to a Name" in refused(name("models.common.Conv") + poison)
    assert "gives a state to a dict" in refused(pickle.EMPTY_DICT + poison)
    assert "is damaged" in refused(name("models.common.Conv") + b")" + pickle.NEWOBJ + poison)
    assert dict(vars(Conv)) == before
    ordered = call("collections.OrderedDict") + mapping({"items": plain(1)}) + pickle.BUILD
    assert "sets attributes on a dictionary" in refused(ordered)


@pytest.mark.parametrize("attribute", ["forward", "__call__", "__class__", "_compiled_call_impl", "fuse", "to", "half"])
def test_module_state_cannot_replace_what_a_layer_does(refused, attribute):
    for value in (plain("x"), module("models.common.Concat")):
        assert f" {attribute} of a Conv" in refused(module("models.common.Conv", **{attribute: value}))


@pytest.mark.parametrize("hooks", [hooks for hooks in vars(nn.Module()) if hooks.endswith("hooks")])
def test_module_state_cannot_hold_hooks(refused, hooks):
    planted = mapping({"0": module("models.common.Concat")})
    assert "holds hooks" in refused(module("models.common.Conv", **{hooks: planted}))
    # put in after the module was given its state, through the pickle's memory
    late = module("models.common.Conv", **{hooks: pickle.EMPTY_DICT + pickle.BINPUT + b"\x07"})
    body = late + pickle.BINGET + b"\x07" + text("0") + module("models.common.Concat") + pickle.SETITEM
    assert "holds hooks" in refused(body + pickle.TUPLE2)


def test_module_members_are_what_they_should_be(refused):
    tensor_like, layer = plain([1.0]), module("models.common.Concat")
    assert "is damaged: w in _parameters of a Conv is a list" in refused(
        module("models.common.Conv", _parameters=mapping({"w": tensor_like}))
    )
    assert "is damaged: w in _buffers of a Conv is a Concat" in refused(
        module("models.common.Conv", _buffers=mapping({"w": layer}))
    )
    assert "is damaged: w in _modules of a Conv is a list" in refused(
        module("models.common.Conv", _modules=mapping({"w": tensor_like}))
    )
    assert "something else than a plain value" in refused(module("models.common.Conv", extra=name("models.yolo.Model")))
    assert "without a proper name" in refused(module("models.common.Conv", **{"a.b": plain(1)}))


def test_network_cannot_contain_itself_nor_be_left_half_made(refused):
    new = name("models.common.Conv") + pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.BINPUT + b"\x07"
    parts = {"_parameters": pickle.EMPTY_DICT, "_buffers": pickle.EMPTY_DICT}
    itself = mapping(parts | {"_modules": mapping({"conv": pickle.BINGET + b"\x07"})})
    assert "is not complete" in refused(new + itself + pickle.BUILD)
    assert "without its state" in refused(new)
    state = mapping(parts | {"_modules": pickle.EMPTY_DICT})
    assert "twice" in refused(new + state + pickle.BUILD + state + pickle.BUILD)


def test_items_go_into_plain_containers_only(refused):
    layers = module("torch.nn.modules.container.ModuleList")
    assert "puts items into a ModuleList" in refused(layers + plain(1) + pickle.APPEND)
    assert "puts items into a ModuleList" in refused(layers + pickle.MARK + plain(1) + pickle.APPENDS)
    assert "puts items into a Name" in refused(name("models.common.Conv") + text("a") + plain(1) + pickle.SETITEM)
    assert "puts items into a list" in refused(plain([]) + pickle.MARK + plain(1) + pickle.ADDITEMS)


def test_deeply_nested_keys_do_not_reach_the_hash(refused):
    nested = pickle.EMPTY_TUPLE + pickle.TUPLE1 * 200_000  # hashing it would overflow the C stack
    assert "with a tuple as key" in refused(pickle.EMPTY_DICT + nested + pickle.NONE + pickle.SETITEM)
