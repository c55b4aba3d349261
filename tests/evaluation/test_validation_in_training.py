"""Validation as training asks for it: a network in memory, its loss, a separate loader, images."""

from copy import deepcopy
from types import SimpleNamespace

import torch

from tests.small_network import small_network
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.loading.create_dataloader import create_dataloader
from yolov7fast.evaluation.run_evaluation import test

test.__test__ = False  # pytest takes it for a test by its name


class Wandb:
    def __init__(self):
        self.seen = {}

    def log(self, values):
        self.seen |= values


def test_training_gets_its_losses_and_keeps_its_model(shapes_small, tmp_path):
    model = small_network(4, ["ball", "box", "cone", "star"]).train()
    before = deepcopy(model.state_dict())
    calls, wandb = [], Wandb()

    def loss(maps, targets):
        calls.append((len(maps), maps[0].dtype, targets.shape[1]))
        return None, torch.tensor([1.0, 2.0, 3.0, 6.0])

    found = test(
        str(shapes_small / "shapes.yaml"), None, 4, 64, model=model, workers=0, plots=False, compute_loss=loss,
        save_dir=tmp_path, wandb_logger=wandb,
    )  # fmt: skip
    (*_, box, obj, cls), maps, times = found
    assert (box, obj, cls) == (1.0, 2.0, 3.0) and calls == [(3, torch.float32, 6)] * 2
    assert len(maps) == 4 and times[3:] == (64, 64, 4)
    assert wandb.seen["test/obj_loss"] == 2.0
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not list(tmp_path.iterdir())


def test_a_given_loader_is_used_and_stays_open(shapes_small, tmp_path, monkeypatch):
    """Its rectangular batches are not tuned one by one by cuDNN."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    tuned = set()
    loader, _ = create_dataloader(
        str(shapes_small / "images/val"), 64, 4, 32, SimpleNamespace(single_cls=False), rect=True, pad=0.5, workers=0
    )
    model = small_network(4, ["ball", "box", "cone", "star"])
    model.register_forward_hook(lambda *_: tuned.add(torch.backends.cudnn.benchmark))
    data = load_data_yaml(str(shapes_small / "shapes.yaml"))
    one, two = (
        test(data, None, 4, 64, model=model, dataloader=loader, plots=False, save_dir=tmp_path) for _ in range(2)
    )
    assert one[0] == two[0]
    assert tuned == {False} and torch.backends.cudnn.benchmark
    loader.close()
