"""Validation as training asks for it: a network in memory, its loss, a loader of its own, pictures."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from tests.small_network import small_network
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.evaluation.yolo import ValidationPredict, half_copy, test
from yolov7fast.loading.dataloader import create_dataloader

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


def test_half_precision_runs_on_a_copy():
    """On CUDA the network is run in half precision; the one that is trained keeps every bit."""
    model = small_network(4, ["ball", "box", "cone", "star"])
    before = deepcopy(model.state_dict())
    copy = half_copy(model)
    assert next(copy.parameters()).dtype == torch.float16 and not copy.training
    assert all(torch.equal(v, before[k]) and v.dtype == before[k].dtype for k, v in model.state_dict().items())


def test_a_given_loader_is_used_and_stays_open(shapes_small, tmp_path):
    loader, _ = create_dataloader(
        str(shapes_small / "images/val"), 64, 4, 32, SimpleNamespace(single_cls=False), rect=True, pad=0.5, workers=0
    )
    model = small_network(4, ["ball", "box", "cone", "star"])
    data = load_data_yaml(str(shapes_small / "shapes.yaml"))
    one, two = (
        test(data, None, 4, 64, model=model, dataloader=loader, plots=False, save_dir=tmp_path) for _ in range(2)
    )
    assert one.results == two.results and one.seen == 8
    loader.close()


def test_pictures_and_tables_inside_training(shapes_small, tmp_path):
    test(
        str(shapes_small / "shapes.yaml"),
        None,
        4,
        64,
        model=small_network(4, list("abcd")),
        workers=0,
        save_dir=tmp_path,
    )
    names = {p.name for p in tmp_path.iterdir()}
    assert {"PR_curve.png", "confusion_matrix.png", "test_batch0_pred.jpg", "per_class.csv", "metrics.json"} <= names


def test_labels_for_auto_labelling_are_in_pixels_of_the_batch():
    class Nothing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, images, augment=False):
            return torch.zeros(len(images), 5, 7), None

    predict = ValidationPredict(Nothing(), 0.25, 0.45, hybrid=True)
    targets = torch.tensor([[1, 1, 0.5, 0.5, 0.25, 0.5]])
    first, second = predict(torch.zeros(2, 3, 64, 128, dtype=torch.uint8), targets).detections
    assert len(first) == 0
    assert second.tolist() == [[48.0, 16.0, 80.0, 48.0, 1.0, 1.0]]


@pytest.mark.parametrize(("agnostic", "classes"), [(False, [0, 3]), (True, [0])])
def test_agnostic_suppression_leaves_one_of_two_boxes_on_an_object(agnostic, classes):
    class Doubled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, images, augment=False):
            box = [30.0, 30.0, 20.0, 20.0, 1.0]
            return torch.tensor([[[*box, 0.9, 0, 0, 0], [*box, 0, 0, 0, 0.8]]]), None

    predict = ValidationPredict(Doubled(), 0.25, 0.45, agnostic=agnostic)
    (found,) = predict(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), torch.zeros(0, 6)).detections
    assert found[:, 5].tolist() == classes


def test_the_loss_sees_half_precision_maps_as_float32_however_they_are_nested():
    seen = []

    class Halved(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1).half())

        def forward(self, images, augment=False):
            return torch.zeros(len(images), 5, 7).half(), [[images[:, :1]], images[:, 1:]]

    def loss(maps, targets):
        seen.extend((maps[0][0].dtype, maps[1].dtype))
        return None, torch.ones(4)

    predict = ValidationPredict(Halved(), 0.25, 0.45, loss=loss)
    predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.zeros(0, 6))
    assert predict.dtype == torch.float16 and seen == [torch.float32] * 2
