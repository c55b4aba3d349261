"""YOLO networks as predictors: suppression, losses, precision, ensembles."""

from copy import deepcopy

import pytest
import torch

from tests.mini_network import NAMES, write_mini_weights
from tests.predictors.stubs import StubNetwork
from tests.small_network import small_network
from yolov7fast.core.errors import UserError
from yolov7fast.predictors.base import PredictOptions
from yolov7fast.predictors.registry import load_predictor
from yolov7fast.predictors.yolo import YoloPredictor, half_copy, network_predictor

CPU = torch.device("cpu")
BOX = [30.0, 30.0, 20.0, 20.0, 1.0]


def test_half_precision_runs_on_a_copy():
    """On CUDA the network is run in half precision; the one that is trained keeps every bit."""
    model = small_network(4, ["ball", "box", "cone", "star"])
    before = deepcopy(model.state_dict())
    copy = half_copy(model)
    assert next(copy.parameters()).dtype == torch.float16
    assert all(torch.equal(v, before[k]) and v.dtype == before[k].dtype for k, v in model.state_dict().items())


def test_a_network_in_training_is_run_in_eval_mode_and_names_its_parts():
    model = small_network(4, ["ball", "box", "cone", "star"]).train()
    predictor = network_predictor(model, PredictOptions())
    assert predictor.model is model and not model.training
    assert (list(predictor.names), predictor.stride, predictor.precision) == (model.names, 32, "float32")


def test_labels_for_auto_labelling_are_in_pixels_of_the_batch():
    nothing = StubNetwork(lambda images: (torch.zeros(len(images), 5, 7), None))
    predictor = YoloPredictor(nothing, PredictOptions(hybrid=True))
    targets = torch.tensor([[1, 1, 0.5, 0.5, 0.25, 0.5]])
    first, second = predictor(torch.zeros(2, 3, 64, 128, dtype=torch.uint8), targets=targets).detections
    assert len(first) == 0
    assert second.tolist() == [[48.0, 16.0, 80.0, 48.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("options", "classes"),
    [
        (PredictOptions(), [0, 3]),
        (PredictOptions(agnostic=True), [0]),
        (PredictOptions(single_cls=True), [0]),
        (PredictOptions(classes=[3]), [3]),
        (PredictOptions(conf_thres=0.85), [0]),
    ],
)
def test_two_boxes_on_an_object_are_suppressed_as_asked(options, classes):
    doubled = StubNetwork(lambda _: (torch.tensor([[[*BOX, 0.9, 0, 0, 0], [*BOX, 0, 0, 0, 0.8]]]), None))
    (found,) = YoloPredictor(doubled, options)(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).detections
    assert found[:, 5].tolist() == classes


@pytest.mark.parametrize(("multi_label", "classes"), [(False, [0]), (True, [0, 1])])
def test_only_evaluation_counts_several_classes_of_a_box(multi_label, classes):
    network = StubNetwork(lambda _: (torch.tensor([[[*BOX, 0.9, 0.8]]]), None))
    predictor = YoloPredictor(network, PredictOptions(multi_label=multi_label))
    (found,) = predictor(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).detections
    assert found[:, 5].tolist() == classes


def test_the_loss_sees_half_precision_outputs_as_float32_however_they_are_nested():
    seen = []

    def halved(images):
        return torch.zeros(len(images), 5, 7).half(), [[images[:, :1]], images[:, 1:]]

    def loss(outputs, targets):
        seen.extend((outputs[0][0].dtype, outputs[1].dtype))
        return None, torch.tensor([1.0, 2.0, 3.0, 6.0])

    predictor = YoloPredictor(StubNetwork(halved, dtype=torch.float16), loss=loss)
    found = predictor(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), targets=torch.zeros(0, 6))
    assert predictor.precision == "float16" and seen == [torch.float32] * 2
    assert {name: float(value) for name, value in found.losses.items()} == {"box": 1.0, "obj": 2.0, "cls": 3.0}


def test_weights_files_are_opened_and_several_make_an_ensemble(tmp_path):
    path = str(write_mini_weights(tmp_path / "mini.pt"))
    images = torch.randint(0, 255, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    one, two = (load_predictor(weights, CPU, PredictOptions(conf_thres=0.001)) for weights in (path, [path, path]))
    assert list(one.names) == list(two.names) == NAMES and one.stride == two.stride == 32
    for single, both in zip(one(images).detections, two(images).detections, strict=True):
        assert len(single) and torch.equal(single, both), "equal boxes suppress each other"


def test_no_weights_and_families_that_are_not_known_are_named(tmp_path):
    from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint

    with pytest.raises(UserError, match="no weights are named: give --weights FILE"):
        load_predictor("", CPU, PredictOptions())
    save_checkpoint({"family": "future", "model": {}}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x\.pt: no family of detectors is called 'future': one of yolo, detr"):
        load_predictor(tmp_path / "x.pt", CPU, PredictOptions())
