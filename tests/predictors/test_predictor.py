"""What every predictor guarantees, and YOLO networks: NMS, losses, precision, ensembles."""

from copy import deepcopy

import pytest
import torch

from tests.mini_network import NAMES, mini_model, write_mini_weights
from tests.predictors.stubs import StubNetwork
from tests.small_network import small_network
from tests.training.families.detr_commands import NETWORKS, needs_transformers
from yolov7fast.core.errors import UserError
from yolov7fast.predictors import yolo_predictor
from yolov7fast.predictors.predictor import PredictOptions, Predictor, input_size, load_predictor
from yolov7fast.predictors.yolo_predictor import YoloPredictor, network_predictor

OPTIONS = PredictOptions(conf_thres=0.0001, iou_thres=0.6)
SHAPES = [((48, 64), ((1.0, 1.0), (0.0, 8.0)))] * 2


def yolo() -> Predictor:
    from yolov7fast.predictors.yolo_predictor import YoloPredictor

    return YoloPredictor(mini_model(), OPTIONS)


def detr() -> Predictor:
    from yolov7fast.nn.detr_model import build
    from yolov7fast.predictors.detr_predictor import DetrPredictor

    return DetrPredictor(build("detr", NAMES, NETWORKS["detr"]), OPTIONS, img_size=64)


@pytest.fixture(scope="module", params=[yolo, pytest.param(detr, marks=needs_transformers)])
def predictor(request) -> Predictor:
    torch.manual_seed(0)
    return request.param()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 255, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_boxes_are_pixels_of_the_batch_best_first_above_the_threshold(predictor, images):
    found = predictor(images, SHAPES)
    assert len(found.detections) == 2 and found.losses == {}
    assert found.inference_ms > 0 and found.nms_ms >= 0
    for boxes in found.detections:
        assert boxes.shape[1] == 6 and len(boxes) and boxes.shape[0] <= 300
        assert (boxes[:, 4].diff() <= 0).all() and (boxes[:, 4] > OPTIONS.conf_thres).all()
        assert set(boxes[:, 5].tolist()) <= {0.0, 1.0, 2.0}
        assert (boxes[:, 2:4] > boxes[:, :2]).any() and boxes[:, :4].abs().max() < 640


def test_images_are_left_alone_and_any_batch_size_gives_the_same_boxes(predictor, images):
    kept = images.clone()
    together = predictor(images, SHAPES).detections
    alone = [predictor(images[i : i + 1], SHAPES[i : i + 1]).detections[0] for i in range(2)]
    assert torch.equal(images, kept)
    for one, other in zip(together, alone, strict=True):
        assert len(one) == len(other)
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-4)


def test_sizes_are_rounded_up_to_the_stride_and_zero_means_the_one_trained_for(predictor, caplog):
    assert input_size(predictor, 70) == 96
    assert input_size(predictor, 0) == (predictor.img_size or 640)
    assert ("do not say at which size they were trained: 640 pixels" in caplog.text) == (not predictor.img_size)


@needs_transformers
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PredictOptions(augment=True), "--augment is for YOLO networks"),
        (PredictOptions(hybrid=True), "--save-hybrid is for YOLO networks"),
        (PredictOptions(agnostic=True), "--agnostic-nms has no meaning for DETR"),
    ],
)
def test_what_detr_cannot_do_is_refused(options, message):
    from yolov7fast.nn.detr_model import build
    from yolov7fast.predictors.detr_predictor import DetrPredictor

    with pytest.raises(UserError, match=message):
        DetrPredictor(build("detr", NAMES, NETWORKS["detr"]), options)


CPU = torch.device("cpu")
BOX = [30.0, 30.0, 20.0, 20.0, 1.0]


def test_half_precision_runs_on_a_copy(monkeypatch):
    """On CUDA the network is run in half precision; the weights of the trained one do not change."""
    monkeypatch.setattr(yolo_predictor, "half_dtype", lambda model, options: torch.float16)
    model = small_network(4, ["ball", "box", "cone", "star"])
    before = deepcopy(model.state_dict())
    assert network_predictor(model, PredictOptions()).precision == "float16"
    assert all(torch.equal(v, before[k]) and v.dtype == before[k].dtype for k, v in model.state_dict().items())


def test_labels_for_auto_labelling_are_in_pixels_of_the_batch():
    nothing = StubNetwork(lambda images: (torch.zeros(len(images), 5, 7), None))
    predictor = YoloPredictor(nothing, PredictOptions(hybrid=True))
    targets = torch.tensor([[1, 1, 0.5, 0.5, 0.25, 0.5]])
    first, second = predictor(torch.zeros(2, 3, 64, 128, dtype=torch.uint8), targets=targets).detections
    assert len(first) == 0
    assert second.tolist() == [[48.0, 16.0, 80.0, 48.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("options", "classes"),
    [(PredictOptions(), [0, 3]), (PredictOptions(agnostic=True), [0]), (PredictOptions(single_cls=True), [0])],
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
