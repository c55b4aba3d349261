"""What every predictor promises, whoever trained it and whatever runs it. A new predictor joins the list below."""

import inspect

import pytest
import torch

from tests.mini_network import NAMES, mini_model
from tests.training.families.detr_commands import NETWORKS, needs_transformers
from yolov7fast.core.errors import UserError
from yolov7fast.predictors.base import PredictOptions, Predictor, input_size

OPTIONS = PredictOptions(conf_thres=0.0001, iou_thres=0.6)
SHAPES = [((48, 64), ((1.0, 1.0), (0.0, 8.0)))] * 2


def yolo() -> Predictor:
    from yolov7fast.predictors.yolo import YoloPredictor

    return YoloPredictor(mini_model(), OPTIONS)


def detr() -> Predictor:
    from yolov7fast.nn.detr_model import build
    from yolov7fast.predictors.detr import DetrPredictor

    return DetrPredictor(build("detr", NAMES, NETWORKS["detr"]), OPTIONS, img_size=64)


@pytest.fixture(scope="module", params=[yolo, pytest.param(detr, marks=needs_transformers)])
def predictor(request) -> Predictor:
    torch.manual_seed(0)
    return request.param()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 255, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_every_member_is_there(predictor):
    members = set(Predictor.__annotations__)
    kept = {"names", "stride", "img_size", "fixed_size", "border", "precision", "uses_nms", "thread_safe", "options"}
    assert members == kept
    assert all(hasattr(predictor, name) for name in members)
    assert list(predictor.names) == NAMES and predictor.stride == 32 and predictor.precision == "float32"
    assert predictor.options is OPTIONS
    assert list(inspect.signature(predictor.__call__).parameters) == ["images", "shapes", "targets"]
    predictor.warm_up(64)


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


def test_a_static_export_takes_its_own_size_alone():
    from tests.predictors.stubs import StubPredictor

    static = StubPredictor(lambda *_: None, NAMES)
    static.img_size, static.fixed_size = 320, True
    assert input_size(static, 320) == input_size(static, 0) == 320
    with pytest.raises(UserError, match=r"--img-size 640: these weights were exported for 320 alone"):
        input_size(static, 640)


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
    from yolov7fast.predictors.detr import DetrPredictor

    with pytest.raises(UserError, match=message):
        DetrPredictor(build("detr", NAMES, NETWORKS["detr"]), options)
