"""What fails in a checkout with today's versions is repaired, and untrusted files execute nothing."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError
from yolov7fast.core.errors import UserError
from yolov7fast.overlay import repairs
from yolov7fast.overlay.checkout import Patches


@pytest.fixture
def patches():
    with Patches() as made:
        yield made


def test_names_that_numpy_took_away_are_back_and_go_again(patches):
    missing = [name for name in ("trapz", "int", "float") if not hasattr(np, name)]
    repairs.before_imports(patches)
    assert np.trapz([0.0, 1.0], [0.0, 1.0]) == 0.5
    assert (np.int, np.float) == (int, float)
    patches.close()
    assert [name for name in ("trapz", "int", "float") if not hasattr(np, name)] == missing


# --- torchvision ------------------------------------------------------------------------------------------------------


def test_the_stand_in_serves_imports_by_any_spelling(patches, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    repairs.put_in_torchvision(patches)
    import torchvision
    import torchvision.ops
    from torchvision.ops import nms, roi_align
    from torchvision.utils import save_image

    boxes = torch.tensor([[0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30.0]])
    assert torchvision.ops.nms(boxes, torch.tensor([0.8, 0.9, 0.7]), 0.5).tolist() == [1, 2]
    assert nms is torchvision.ops.nms
    assert find_spec("torchvision").name == "torchvision" and find_spec("torchvision.ops").name == "torchvision.ops"
    for call in (roi_align, save_image):
        with pytest.raises(UserError, match="torchvision does not load with torch"):
            call(boxes)


# --- loading ----------------------------------------------------------------------------------------------------------


class Hostile:
    def __reduce__(self):
        return os.system, ("touch hostile_was_here",)


def test_an_untrusted_file_is_refused_and_not_run(known_repo, inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside(known_repo)
    torch.save({"model": Hostile()}, tmp_path / "bad.pt")
    with pytest.raises(CheckpointError, match="no code was executed"):
        torch.load(tmp_path / "bad.pt", map_location="cpu")
    assert not (tmp_path / "hostile_was_here").exists()


def test_networks_come_back_as_the_checkouts_classes(known_repo, inside, tmp_path):
    inside(known_repo)
    network = import_module("models.yolo").Model(nc=3).eval()
    network.model[0].forward = network.model[0].fuseforward  # a fused layer stays fused
    torch.save({"model": network, "epoch": 3}, tmp_path / "last.pt")
    loaded = torch.load(tmp_path / "last.pt", map_location=torch.device("cpu"))
    image = torch.rand(1, 3, 64, 64)
    assert type(loaded["model"]) is type(network)
    assert torch.equal(loaded["model"](image)[0], network(image)[0])
    torch.save(loaded, tmp_path / "again.pt")  # as a script does when it strips a checkpoint


def test_label_caches_of_the_checkout_are_read_and_other_calls_get_torchs_own_load(known_repo, inside, tmp_path):
    inside(known_repo)
    rows = np.arange(10, dtype=np.float32).reshape(2, 5)
    torch.save({"a.jpg": [rows, (640, 480), []], "hash": "x", "version": 0.1}, tmp_path / "train.cache")
    np.testing.assert_array_equal(torch.load(tmp_path / "train.cache")["a.jpg"][0], rows)
    torch.save([1, 2], tmp_path / "list.pt")
    assert torch.load(tmp_path / "list.pt", weights_only=True) == [1, 2]
    with open(tmp_path / "list.pt", "rb") as file:
        assert torch.load(file) == [1, 2]


def test_a_label_cache_of_another_trainer_is_named_with_the_remedy(known_repo, inside, tmp_path):
    inside(known_repo)
    with (tmp_path / "train.cache").open("wb") as file:
        np.save(file, np.array({"hash": "0", "version": "1.0.3"}))
    with pytest.raises(UserError, match=r"train\.cache is not a label cache of this checkout.*; delete it"):
        torch.load(tmp_path / "train.cache")


# --- devices and ranks ------------------------------------------------------------------------------------------------


class ByHand:
    def __call__(self, p, targets):
        first = torch.zeros(2, device="cuda:0") + torch.ones(2, device=torch.device("cuda", 0))
        return first + targets.to("cuda:0") + targets.cuda() + p[0].sum()


def test_devices_named_by_hand_are_the_predictions_own():
    call = repairs.on_own_device(ByHand.__call__)
    assert call(ByHand(), [torch.ones(1)], torch.ones(2)).tolist() == [4.0, 4.0]
    assert call(ByHand(), [torch.ones(1, device="meta")], torch.ones(2, device="meta")).device.type == "meta"


def test_the_checkouts_own_losses_run_where_they_are_kept(known_repo, inside):
    inside(known_repo, loss=False)
    module, network = import_module("utils.loss"), import_module("models.yolo").Model(nc=3)
    network.hyp = {"box": 0.05, "obj": 1.0, "cls": 0.5, "cls_pw": 1.0, "obj_pw": 1.0, "fl_gamma": 0.0, "anchor_t": 4.0}
    network.gr = 1.0
    image, targets = torch.rand(1, 3, 64, 64), torch.tensor([[0, 1, 0.5, 0.5, 0.2, 0.3]])
    items = module.ComputeLossOTA(network)(network(image), targets, image)[1]
    assert torch.isfinite(items).all()


def test_torchruns_rank_reaches_scripts_that_ask_for_it(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert repairs.with_rank("train.py", ["--img", "64"]) == ["--img", "64"]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert repairs.with_rank("train.py", ["--img", "64"]) == ["--img", "64", "--local_rank", "1"]
    assert repairs.with_rank("train_aux.py", []) == ["--local_rank", "1"]
    assert repairs.with_rank("train.py", ["--local-rank=0"]) == ["--local-rank=0"]
    assert repairs.with_rank("test.py", []) == []
