"""What is written can be read by upstream, is complete or not there, and loses nothing when stripped."""

import copy
import errno
import os
import pickle
import pickletools
import random
import shutil
import signal
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

import yolov7fast.checkpoint.checkpoint_writer
from tests.checkpoint.test_checkpoint_reader import NETWORKS, attributes, kinds
from tests.conftest import ROOT
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, save_checkpoint, state_dict_of, strip_checkpoint
from yolov7fast.checkpoint.checkpoint_writer import SaveError
from yolov7fast.nn.model import Model
from yolov7fast.nn.model_parser import read_description

# Every global that upstream's files refer to, with both spellings of NumPy.
REFERENCE_GLOBALS = {
    *(f"models.yolo.{name}" for name in ("Model", "Detect", "IDetect", "IAuxDetect")),
    *(f"models.common.{name}" for name in ("Conv", "Concat", "ImplicitA", "ImplicitM", "MP", "SP", "RepConv")),
    *(f"models.common.{name}" for name in ("SPPCSPC", "ReOrg", "DownC", "Shortcut")),
    *(f"torch.nn.modules.{name}" for name in ("container.Sequential", "container.ModuleList", "conv.Conv2d")),
    *(f"torch.nn.modules.{name}" for name in ("batchnorm.BatchNorm2d", "pooling.MaxPool2d", "upsampling.Upsample")),
    *(f"torch.nn.modules.activation.{name}" for name in ("LeakyReLU", "SiLU")),
    *("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"),
    *(f"torch.{name}Storage" for name in ("Half", "Float", "Double", "Long")),
    *("collections.OrderedDict", "__builtin__.set", "numpy.ndarray", "numpy.dtype", "_codecs.encode"),
    *("numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar"),
}
CONFIGURATIONS = sorted(  # of upstream; it has no networks with several heads
    str(path.relative_to(ROOT / "cfg")) for path in (ROOT / "cfg").glob("*/yolov7*.yaml") if "1b4h" not in path.name
)
HOLD_EVERY_BLOCK = {
    "training/yolov7-tiny.yaml",
    "training/yolov7.yaml",
    "training/yolov7-e6e.yaml",
    "deploy/yolov7.yaml",
}


def globals_of(path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        found, protocols = set(), set()
        for opcode, argument, _ in pickletools.genops(archive.read(name)):
            assert opcode.name not in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")
            if opcode.name == "GLOBAL":
                found.add(argument.replace(" ", "."))
            if opcode.name == "PROTO":
                protocols.add(argument)
    assert protocols == {2}
    return found


@pytest.fixture
def checkpoint(reference_files):
    return load_checkpoint(reference_files["training_yolov7_tiny__full"])


def trained(configuration: str, width: float) -> Model:
    """A narrow network with the attributes that training gives it."""
    path = ROOT / "cfg" / configuration
    network = Model({**read_description(path), "nc": 3, "width_multiple": width})
    network.yaml_file = path.name
    network.nc, network.hyp, network.gr = 3, {"box": 0.05}, 1.0
    network.class_weights = torch.ones(3, dtype=torch.float64)
    return network


@pytest.mark.parametrize("configuration", NETWORKS.values())
def test_networks_built_here_are_written_with_the_attributes_of_the_reference(configuration, golden, tmp_path):
    expected = golden("models_ckpt.json.gz")["ckpt"][configuration]
    network = trained(f"{configuration}.yaml", expected["width_multiple"])
    ema = copy.deepcopy(network).eval().requires_grad_(False)
    ema(torch.zeros(1, 3, 64, 64))
    content = {
        "epoch": 0,
        "best_fitness": np.array([0.25]),
        "training_results": "",
        "model": copy.deepcopy(network).half(),
        "ema": ema.half(),
        "updates": 1,
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(8)}}, "param_groups": [{"lr": np.float64(0.01)}]},
        "wandb_id": None,
    }
    save_checkpoint(content, tmp_path / "full.pt")
    save_checkpoint(network, tmp_path / "init.pt")
    raw = as_the_reference_reads(tmp_path / "full.pt")
    assert kinds(raw) == expected["keys_full"]
    assert attributes([raw["model"], raw["ema"]]) == expected["attrs"]
    assert set(expected["module_private"]) <= vars(raw["model"]).keys()
    old_numpy = {path.replace("numpy._core", "numpy.core") for path in expected["globals_full"]}
    assert globals_of(tmp_path / "full.pt") == old_numpy
    assert globals_of(tmp_path / "init.pt") == set(expected["globals_init"])


def as_the_reference_reads(path):
    """By PyTorch's own loader, in a program that has classes of those names, but without this project's reader."""
    stand_ins: dict[str, type] = {}

    class Finder(pickle.Unpickler):
        def find_class(self, module, name):
            if module.startswith("models."):
                return stand_ins.setdefault(name, type(name, (nn.Module,), {"__module__": module}))
            return super().find_class(module, name)

    pickling = type("pickling", (), {"Unpickler": Finder})
    return torch.load(path, pickle_module=pickling, weights_only=False)


@pytest.mark.parametrize(
    "configuration",
    [pytest.param(c, marks=[] if c in HOLD_EVERY_BLOCK else pytest.mark.slow) for c in CONFIGURATIONS],
)
def test_every_network_survives_the_way_through_a_file(configuration, tmp_path):
    network = trained(configuration, 0.0625).half()
    save_checkpoint({"model": network}, tmp_path / "x.pt")
    assert globals_of(tmp_path / "x.pt") <= REFERENCE_GLOBALS
    again = load_checkpoint(tmp_path / "x.pt")["model"]
    theirs, ours = network.state_dict(), again.state_dict()
    assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert attributes([again]) == attributes([network])
    assert (again.yaml, again.names, again.save) == (network.yaml, network.names, network.save)


def test_resume_state_comes_back_as_it_was(checkpoint, tmp_path):
    resume = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "order": np.arange(12, dtype=">i2").reshape(3, 4).T,
        "scaler": {"scale": 65536.0, "on": True},
        "nested": [(1, None, "text"), {"a": {1: 2.5}}],
        "shapes": (torch.Size([2, 3]), torch.float16, b"\x00\xff", b"", {"x", 3}),
        "mask": torch.tensor([True, False]),
        "view": torch.arange(12.0).view(3, 4).t(),
    }
    save_checkpoint({**checkpoint, "resume": resume}, tmp_path / "last.pt")
    again = load_checkpoint(tmp_path / "last.pt")["resume"]
    for key in ("python", "scaler", "nested", "shapes"):
        assert again[key] == resume[key]
    np.testing.assert_equal(again["numpy"], resume["numpy"])
    np.testing.assert_array_equal(again["order"], resume["order"])
    for key in ("torch", "mask", "view"):
        assert torch.equal(again[key], resume[key]) and again[key].stride() == resume[key].stride()
    random.setstate(again["python"])
    np.random.set_state(again["numpy"])
    torch.set_rng_state(again["torch"])


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    save_checkpoint({"epoch": 1}, tmp_path / "x.pt")
    for value in (print, np.array([1, 2]).sum, ValueError("x"), lambda: None, nn.Bilinear(1, 1, 1), tmp_path):
        with pytest.raises(TypeError, match="a checkpoint cannot hold"):
            save_checkpoint({"resume": value}, tmp_path / "x.pt")
    assert os.listdir(tmp_path) == ["x.pt"] and load_checkpoint(tmp_path / "x.pt") == {"epoch": 1}


def test_notes_that_the_compiler_leaves_on_tensors_are_left_out(checkpoint, tmp_path):
    network = checkpoint["model"]
    network.model[0].conv.weight._note = network.model[0].bn.num_batches_tracked._note = print
    save_checkpoint({"model": network}, tmp_path / "x.pt")
    assert globals_of(tmp_path / "x.pt") <= REFERENCE_GLOBALS
    again = load_checkpoint(tmp_path / "x.pt")["model"].model[0]
    assert torch.equal(again.conv.weight, network.model[0].conv.weight) and again.conv.weight.requires_grad
    assert torch.equal(again.bn.num_batches_tracked, network.model[0].bn.num_batches_tracked)


def test_fused_network_is_not_written(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="save it before fuse"):
        save_checkpoint({"model": checkpoint["ema"].float().fuse()}, tmp_path / "x.pt")


# --- stripping --------------------------------------------------------------------------------------------------------


def test_stripping_gives_what_the_reference_gives(reference_files, tmp_path):
    full, stripped = tmp_path / "last.pt", tmp_path / "out.pt"
    save_checkpoint({**load_checkpoint(reference_files["training_yolov7_tiny__full"]), "resume": {"seed": 1}}, full)
    before = full.read_bytes()
    strip_checkpoint(full, stripped)
    assert full.read_bytes() == before
    strip_checkpoint(full)
    expected = load_checkpoint(reference_files["training_yolov7_tiny__stripped"])
    for path in (full, stripped):
        ours = load_checkpoint(path)
        assert kinds(ours) == kinds(expected)
        assert list(ours) == list(expected) and ours["epoch"] == -1
        a, b = state_dict_of(ours), state_dict_of(expected)
        assert list(a) == list(b) and all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in b)
        assert not ours["model"].training and not any(p.requires_grad for p in ours["model"].parameters())


# --- all or nothing ---------------------------------------------------------------------------------------------------


def no_links(*_):
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_name_that_does_not_fit_costs_no_other(tmp_path, monkeypatch):
    last, best, epoch = names = [tmp_path / f"{name}.pt" for name in ("last", "best", "epoch_001")]
    save_checkpoint({"epoch": 1}, *names)
    whole = shutil.copyfile

    def copy_some(source, target):
        if "best" not in target.name:
            return whole(source, target)
        target.write_bytes(source.read_bytes()[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", copy_some)
    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(SaveError, match=r"cannot write .*best\.pt: No space left on device") as caught:
        save_checkpoint({"epoch": 2}, *names)
    assert caught.value.failed == [best]
    assert [load_checkpoint(name)["epoch"] for name in names] == [2, 1, 2]
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "epoch_001.pt", "last.pt"]
    monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    with pytest.raises(SaveError) as caught:
        save_checkpoint({"epoch": 3}, *names)
    assert set(caught.value.failed) == {last, best, epoch} and load_checkpoint(last)["epoch"] == 2


def test_kill_at_any_step_leaves_the_old_file_or_the_new(tmp_path, monkeypatch):
    """A child process kills itself at its first write, its third, ... until one gets through alive."""
    names = tmp_path / "last.pt", tmp_path / "best.pt"
    save_checkpoint({"epoch": 1}, *names)
    outcomes = []
    for step in range(0, 1000, 2):
        process = os.fork()
        if process == 0:
            try:
                save_and_die_at(step, names, monkeypatch)
            finally:
                os._exit(0)
        _, status = os.waitpid(process, 0)
        outcomes.append(tuple(load_checkpoint(name)["epoch"] for name in names))
        if not os.WIFSIGNALED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    # a run resumes from the first: no other file may be older than it, for it would stay so
    assert set(outcomes) == {(1, 1), (1, 2), (2, 2)} and outcomes == sorted(outcomes)
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "last.pt"]  # the last one also cleared what the killed ones left


def save_and_die_at(step: int, names, monkeypatch) -> None:
    left = [step]

    def dying(function):
        def call(*arguments, **named):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(
        yolov7fast.checkpoint.checkpoint_writer.RememberingFile,
        "write",
        dying(yolov7fast.checkpoint.checkpoint_writer.RememberingFile.write),
    )
    for owner, name in ((os, "fsync"), (os, "replace"), (shutil, "copyfile")):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))
    save_checkpoint({"epoch": 2, "w": torch.zeros(10)}, *names)
