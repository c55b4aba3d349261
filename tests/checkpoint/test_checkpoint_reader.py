"""Files that upstream wrote become this project's networks: keys, attributes, weights, and they run."""

import copy
import io
import pickle
import zipfile

import pytest
import torch
from torch import nn

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError, load_checkpoint, module_of, state_dict_of
from yolov7fast.nn.blocks import Conv
from yolov7fast.nn.class_paths import COMPILED_MARK, class_path
from yolov7fast.nn.model import Model

NETWORKS = {
    "training_yolov7_tiny": "training/yolov7-tiny",
    "training_yolov7": "training/yolov7",
    "training_yolov7_w6": "training/yolov7-w6",
    "deploy_yolov7": "deploy/yolov7",
}


@pytest.fixture(scope="module")
def recorded(golden):
    return golden("models_ckpt.json.gz")["ckpt"]


@pytest.fixture
def tiny(reference_files):
    return load_checkpoint(reference_files["training_yolov7_tiny__full"])


def kind(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"Tensor:{value.dtype}"
    return class_path(type(value))


def kinds(checkpoint: dict) -> dict[str, str]:
    return {key: kind(value) for key, value in checkpoint.items()}


def attributes(networks) -> dict:
    """Class -> attribute -> kinds, as the recorded figures list them."""
    found = {}
    for m in (m for network in networks for m in network.modules()):
        of_class = found.setdefault(class_path(type(m)), {})
        for name, value in vars(m).items():
            if not name.startswith("_"):
                of_class.setdefault(name, set()).add(kind(value))
        for group in ("_parameters", "_buffers", "_modules"):
            for name, value in vars(m)[group].items():
                if not name.isdecimal():
                    tensor = "None" if value is None else "tensor"
                    shown = type(value).__name__ if group == "_modules" else tensor
                    of_class.setdefault(f"{group}.{name}", set()).add(shown)
    return {cls: {name: sorted(kinds) for name, kinds in names.items()} for cls, names in found.items()}


def entries(state_dict) -> list:
    return [
        [name, list(t.shape), str(t.dtype).removeprefix("torch."), pytest.approx(t.double().mean().item(), rel=1e-12)]
        for name, t in state_dict.items()
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_training_file_holds_what_was_recorded(name, reference_files, recorded):
    checkpoint, expected = load_checkpoint(reference_files[f"{name}__full"]), recorded[NETWORKS[name]]
    assert kinds(checkpoint) == expected["keys_full"]
    assert list(checkpoint) == list(expected["keys_full"])
    model, ema = checkpoint["model"], checkpoint["ema"]
    assert attributes([model, ema]) == expected["attrs"]
    assert set(expected["module_private"]) <= vars(model).keys()
    assert entries(model.state_dict()) == expected["state_dict"]
    assert [list(grid.shape) for grid in ema.model[-1].grid] == expected["grid_shapes_ema"]
    assert [list(grid.shape) for grid in model.model[-1].grid] == expected["grid_shapes_model"]
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert not ema.training and not any(p.requires_grad for p in ema.parameters())
    assert checkpoint["best_fitness"].tolist() == [0.25]
    assert len(checkpoint["optimizer"]["param_groups"]) == 3


@pytest.mark.parametrize("name", NETWORKS)
def test_stripped_file_holds_what_was_recorded(name, reference_files, recorded):
    checkpoint, expected = load_checkpoint(reference_files[f"{name}__stripped"]), recorded[NETWORKS[name]]
    assert kinds(checkpoint) == expected["keys_stripped"]
    assert checkpoint["epoch"] == -1
    assert entries(checkpoint["model"].state_dict()) == expected["state_dict"]


@pytest.mark.parametrize("name", NETWORKS)
def test_bare_network_file_runs_as_a_fresh_network_with_its_weights(name, reference_files):
    network = load_checkpoint(reference_files[f"{name}__init"])
    fresh = Model(network.yaml)
    fresh.load_state_dict(network.state_dict())
    image = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for mode in (True, False):
        ours, theirs = fresh.train(mode)(image), network.train(mode)(image)
        for a, b in zip(ours if mode else [ours[0]], theirs if mode else [theirs[0]], strict=True):
            assert torch.equal(a, b)


def test_file_of_old_torch_and_numpy_gets_what_it_lacks(reference_files):
    old = load_checkpoint(reference_files["training_yolov7__legacy_full"])
    new = load_checkpoint(reference_files["training_yolov7__full"])
    for m in old["model"].modules():
        assert vars(nn.Module()).keys() <= vars(m).keys()
        if isinstance(m, nn.Upsample):
            assert m.recompute_scale_factor is None
    image = torch.rand(1, 3, 64, 64)
    assert torch.equal(*(c["ema"].float()(image)[0] for c in (old, new)))
    assert old["best_fitness"].tolist() == [0.25]


def test_container_before_torch_1_6_gives_the_same(tiny, tmp_path, reference_files):
    torch.save(tiny, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    again = load_checkpoint(tmp_path / "old.pt")
    assert list(again) == list(tiny)
    for key in ("model", "ema"):
        ours, theirs = again[key].state_dict(), tiny[key].state_dict()
        assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    momentum = again["optimizer"]["state"][0]["momentum_buffer"]
    assert torch.equal(momentum, tiny["optimizer"]["state"][0]["momentum_buffer"])
    content = (tmp_path / "old.pt").read_bytes()
    for length in (1, 20, 200, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.pt").write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cut\.pt is "):
            load_checkpoint(tmp_path / "cut.pt")


def test_synchronised_batchnorm_and_parallel_wrapper(tiny, tmp_path):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(tiny["model"].float())
    torch.save(nn.DataParallel(model), tmp_path / "init.pt")
    again = load_checkpoint(tmp_path / "init.pt")
    assert type(again) is Model
    assert type(again.model[0].bn) is nn.SyncBatchNorm
    assert torch.equal(again.state_dict()["model.0.bn.weight"], model.state_dict()["model.0.bn.weight"])


class FuseForward:
    """Pickled as Python pickles the bound method `fuseforward` of a layer."""

    def __init__(self, owner):
        self.owner = owner

    def __reduce__(self):
        return getattr, (self.owner, "fuseforward")


def test_file_of_a_fused_network_is_not_fused_again(tiny, tmp_path):
    image = torch.rand(1, 3, 64, 64)
    network = tiny["ema"].float().fuse()
    expected = network(image)[0]
    saved = copy.deepcopy(network)
    for m in saved.modules():
        if isinstance(m, Conv) or m is saved.model[-1]:
            m.__dict__["forward"] = FuseForward(m)
    del saved.model[-1].fused  # upstream has no such mark
    torch.save({"model": saved}, tmp_path / "fused.pt")
    again = load_checkpoint(tmp_path / "fused.pt")["model"]
    assert torch.equal(again(image)[0], expected)
    assert torch.equal(again.fuse()(image)[0], expected)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_state_dict_is_accepted_bare_and_under_its_usual_keys(tiny, tmp_path, protocol):
    weights = tiny["model"].state_dict()
    for content in (
        weights,
        {"state_dict": weights},
        {"model": weights},
        {f"module.{k}": v for k, v in weights.items()},
    ):
        torch.save(content, tmp_path / "weights.pt", pickle_protocol=protocol)
        found = state_dict_of(load_checkpoint(tmp_path / "weights.pt"))
        assert list(found) == list(weights)
        assert torch.equal(found["model.0.conv.weight"], weights["model.0.conv.weight"])
    with pytest.raises(CheckpointError, match=r"w\.pt holds weights only"):
        module_of(load_checkpoint(tmp_path / "weights.pt"), prefer_ema=True, origin="w.pt")


def test_ema_or_model_as_asked(tiny):
    assert module_of(tiny, prefer_ema=True) is tiny["ema"]
    assert module_of(tiny, prefer_ema=False) is tiny["model"]
    assert module_of({**tiny, "ema": None}, prefer_ema=True) is tiny["model"]
    assert module_of(tiny["ema"], prefer_ema=False) is tiny["ema"]
    with pytest.raises(CheckpointError, match="its keys: epoch"):
        module_of({"epoch": 3}, prefer_ema=False)


# --- files that are no checkpoints ------------------------------------------------------------------------------------


def test_missing_file_names_those_that_are_there(tmp_path):
    (tmp_path / "exp" / "weights").mkdir(parents=True)
    (tmp_path / "exp" / "weights" / "best.pt").touch()
    with pytest.raises(CheckpointError, match=r"none\.pt does not exist; there is .*best\.pt"):
        load_checkpoint(tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match="does not exist, nor does its folder"):
        load_checkpoint(tmp_path / "nowhere" / "none.pt")
    with pytest.raises(CheckpointError, match=r"is a folder; give a \.pt file; there is .*best\.pt"):
        load_checkpoint(tmp_path / "exp")


def zipped(content: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"epoch: 3\n", "is not a checkpoint: it begins with b'epoch"),
        (b"\x80", "is not a checkpoint"),
        (pickle.dumps({"model": 1}, 2) + pickle.dumps(2, 2), "is a pickle but not a checkpoint"),
        (zipped({"photo.jpg": b"abc"}), "is a zip archive with 0 data.pkl"),
        (zipped({"a/data.pkl": b"", "a/constants.pkl": b""}), "TorchScript"),
        (zipped({"a/data.pkl": pickle.dumps([1, 2], 2)}), "holds a list, not a checkpoint"),
        (zipped({"a/data.pkl": pickle.dumps({}, 2), "a/byteorder": b"big"}), "another byte order"),
    ],
)
def test_file_that_is_no_checkpoint_is_told_in_one_sentence(tmp_path, content, message):
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as error:
        load_checkpoint(tmp_path / "x.pt")
    assert "x.pt " in str(error.value) and "\n" not in str(error.value)


def test_truncated_or_altered_zip_is_damaged(reference_files, tmp_path):
    content = reference_files["training_yolov7_tiny__stripped"].read_bytes()
    for length in (10, 1000, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.pt").write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="is cut short or damaged"):
            load_checkpoint(tmp_path / "cut.pt")
    altered = bytearray(content)
    altered[len(content) // 2] ^= 1  # among the weights: the record's checksum tells
    (tmp_path / "altered.pt").write_bytes(altered)
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(tmp_path / "altered.pt")


def test_a_network_that_torch_compile_has_marked_is_read_without_the_mark(tiny, tmp_path):
    model = tiny["model"]
    torch.compile(model, backend="eager")
    vars(model).setdefault(COMPILED_MARK, True)  # older versions of PyTorch do not mark it
    torch.save({"model": model}, tmp_path / "compiled.pt")
    read = load_checkpoint(tmp_path / "compiled.pt")["model"]
    assert type(read) is Model and COMPILED_MARK not in vars(read)
