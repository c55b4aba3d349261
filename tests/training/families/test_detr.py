"""DETR beside YOLO: its networks, loss, frames of boxes, files; the commands are tested in test_detr_commands.py."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from tests.training.families.detr_commands import NETWORKS, needs_transformers, run_file
from yolov7fast.checkpoint.checkpoint_reader import CheckpointError, save_checkpoint
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import config_of
from yolov7fast.core.errors import UserError
from yolov7fast.losses.detr_loss import PARTS, attach_loss
from yolov7fast.nn.detr_model import ARCHITECTURES, build
from yolov7fast.predictors.detr_predictor import BatchLayout, DetrPredictor, best_of, boxes_in_pixels
from yolov7fast.predictors.predictor import PredictOptions, load_predictor
from yolov7fast.training.detr_family import DropSchedule
from yolov7fast.training.optimizer import ModelEMA

NAMES = ["ball", "box", "cone", "star"]


@pytest.fixture(params=ARCHITECTURES)
def detector(request):
    torch.manual_seed(0)
    return build(request.param, NAMES, copy.deepcopy(NETWORKS[request.param]))


def small_batch() -> tuple[torch.Tensor, torch.Tensor, list[dict[str, torch.Tensor]]]:
    """Two images of 64 x 64, the second without any object."""
    torch.manual_seed(1)
    one = {"class_labels": torch.tensor([1, 3]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.3], [0.2, 0.3, 0.1, 0.1]])}
    none = {"class_labels": torch.zeros(0, dtype=torch.long), "boxes": torch.zeros(0, 4)}
    return torch.rand(2, 3, 64, 64), torch.ones(2, 64, 64, dtype=torch.long), [one, none]


@needs_transformers
def test_parts_of_the_loss_sum_up_to_it(detector):
    attach_loss(detector)
    output = detector.train()(*small_batch())
    assert tuple(output.loss_dict) == tuple(PARTS)
    assert sum(output.loss_dict.values()).item() == pytest.approx(output.loss.item(), rel=1e-5)


@needs_transformers
def test_without_pretrained_weights_the_whole_backbone_learns(detector):
    attach_loss(detector)
    detector.train()(*small_batch()).loss.backward()
    idle = [name for name, p in detector.named_parameters() if p.grad is None]
    assert not [name for name in idle if "backbone" in name]
    assert not any(type(m).__name__.endswith("FrozenBatchNorm2d") for m in detector.modules())


@needs_transformers
def test_a_folder_of_transformers_weights_is_a_start(detector, tmp_path):
    detector.network.save_pretrained(tmp_path)
    other = build(detector.architecture, ["one", "two"], {}, str(tmp_path))
    assert other.network.config.num_labels == 2
    backbone = {n: p for n, p in other.network.named_parameters() if ".backbone." in n and "convolution" in n}
    own = dict(detector.network.named_parameters())
    assert backbone and all(torch.equal(p, own[n]) for n, p in backbone.items())
    assert not any(p.requires_grad for n, p in backbone.items() if "embedder" in n)


@needs_transformers
def test_tied_layers_are_averaged_once(detector):
    ema = ModelEMA(detector, decay=0.5, ramp=1e-9)
    before = {name: value.clone() for name, value in ema.ema.state_dict().items()}
    with torch.no_grad():
        for parameter in detector.parameters():
            parameter.add_(1.0)
    ema.update(detector)
    for name, value in ema.ema.state_dict().items():
        if name in dict(detector.named_parameters(remove_duplicate=False)):
            torch.testing.assert_close(value, before[name] + 0.5, rtol=0, atol=1e-5)


@needs_transformers
def test_the_matcher_is_a_stage_of_its_own_only_while_it_is_measured(detector):
    loss, marks = attach_loss(detector), []
    loss.mark = marks.append
    loss.timed = True
    detector.train()(*small_batch())
    assert "assignment" in marks and marks[0] == "forward"
    loss.timed, marks[:] = False, []
    detector(*small_batch())
    assert marks == ["forward"]


# --- frames: no network is needed -------------------------------------------------------------------------------------


def roomy(architecture: str, more: int = 0) -> SimpleNamespace:
    """A network that needs images to be so many pixels higher than they are."""
    return SimpleNamespace(kind=ARCHITECTURES[architecture], least_height=lambda height, _: height + more)


SHAPES = [((60, 80), ((0.5, 0.5), (4.0, 6.0))), ((64, 64), ((1.0, 1.0), (0.0, 0.0)))]


@pytest.mark.parametrize(
    ("architecture", "fractions", "pixels"),
    [
        ("detr", [0.54, 0.28, 0.32, 0.32], [14, 17.25, 34, 24.75]),  # of the image: 40 x 30 pixels at (4, 6)
        ("rtdetr_v2", [0.4, 0.225, 0.2, 0.15], [16, 24, 48, 40]),  # of the batch without what no image needs: 64 x 64
    ],
)
def test_boxes_are_fractions_of_the_image_or_of_the_padded_batch(architecture, fractions, pixels):
    frames = BatchLayout.of(SHAPES, (96, 128), roomy(architecture), grid=32)
    (first, _) = frames.labels(torch.tensor([[0, 2, 0.2, 0.15, 0.1, 0.1]]))  # centre (25.6, 14.4), 12.8 x 9.6 pixels
    torch.testing.assert_close(first["boxes"], torch.tensor([fractions]), rtol=0, atol=1e-6)
    found = boxes_in_pixels(torch.tensor([0.5, 0.5, 0.5, 0.25]).expand(2, 1, 4), frames.box)
    whole = boxes_in_pixels(torch.tensor([0.5, 0.5, 1.0, 1.0]).expand(2, 1, 4), frames.box)[0, 0]
    assert whole.tolist() == ([4, 6, 44, 36] if architecture == "detr" else [0, 0, 64, 64])
    torch.testing.assert_close(found[0, 0], torch.tensor([float(p) for p in pixels]), rtol=0, atol=1e-4)


def test_padding_is_cut_off_to_the_grid_and_masked():
    frames = BatchLayout.of(SHAPES, (96, 128), roomy("detr"), grid=32)
    assert (frames.height, frames.width) == (64, 64)
    images, mask = frames.inputs(torch.full((2, 3, 96, 128), 255, dtype=torch.uint8), torch.device("cpu"))
    assert images.shape == (2, 3, 64, 64) and images.max() == 1
    assert mask.shape == (2, 64, 64)
    assert mask[0].sum() == 30 * 40 and mask[0, 6:36, 4:44].all() and mask[1].all()


def test_a_network_that_needs_more_room_gets_padding_below():
    frames = BatchLayout.of(SHAPES, (96, 128), roomy("rtdetr_v2", 32))
    assert (frames.height, frames.width) == (128, 128)
    images, mask = frames.inputs(torch.full((2, 3, 96, 128), 255, dtype=torch.uint8), torch.device("cpu"))
    assert images.shape == (2, 3, 128, 128) and images[:, :, :96].min() == 1 and images[:, :, 96:].max() == 0
    assert mask.shape == (2, 128, 128) and not mask[:, 96:].any()


@needs_transformers
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_images_of_any_shape_pass(architecture):
    """RT-DETR's queries begin as cells, of which a small image has few: 21 with 32 x 32 pixels, 42 with 64 x 32."""
    detector = build(architecture, NAMES, NETWORKS[architecture] | {"num_queries": 60})
    for height, width in ((32, 32), (32, 96), (96, 32), (96, 96)):
        shapes = [((height, width), ((1.0, 1.0), (0.0, 0.0)))]
        found = DetrPredictor(detector, PredictOptions(conf_thres=0.0))(torch.zeros(1, 3, height, width).byte(), shapes)
        assert len(found.detections[0]) >= 60


@needs_transformers
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": None}, "its configuration is None, not a mapping"),
        ({"architecture": "foo"}, "unknown architecture"),
        ({"architecture": ["detr"]}, "unknown architecture"),
        ({"ema": {}}, "its weights do not fit its network"),
        ({"ema": None}, "its weights do not fit its network"),
    ],
)
def test_a_damaged_checkpoint_is_named(detector, tmp_path, change, message):
    path = tmp_path / "bad.pth"
    save_checkpoint({**detector.description(), "ema": detector.state_dict(), **change}, path)
    with pytest.raises(CheckpointError, match=rf"bad\.pth.*{message}"):
        load_predictor(path, torch.device("cpu"), PredictOptions())


def test_the_class_for_nothing_is_never_an_answer():
    logits = torch.tensor([[[2.0, 0.0, 9.0], [0.0, 3.0, 0.0]]])
    score, label, query = best_of(logits, ARCHITECTURES["detr"])
    assert label.tolist() == [[1, 0]] and query.tolist() == [[1, 0]]
    assert score[0, 0] == pytest.approx(np.exp(3) / (np.exp(3) + 2))


def test_independent_classes_compete_over_all_queries():
    logits = torch.tensor([[[2.0, 3.0], [-4.0, -5.0]]])
    score, label, query = best_of(logits, ARCHITECTURES["rtdetr_v2"])
    assert label.tolist() == [[1, 0, 0, 1]] and query.tolist() == [[0, 0, 1, 1]]
    assert score[0].tolist() == sorted(score[0].tolist(), reverse=True)


# --- rates and options ------------------------------------------------------------------------------------------------


def test_rates_drop_to_a_tenth_after_the_warm_up():
    schedule = DropSchedule((1e-3, 1e-4), batches=10, epochs=10, drop=4, warmup=5)
    assert schedule.rates(0, 0).lrs == pytest.approx((2e-4, 2e-5))
    assert schedule.rates(20, 2).lrs == pytest.approx((1e-3, 1e-4))
    assert schedule.rates(40, 4).lrs == pytest.approx((1e-4, 1e-5))


def test_sections_inheritance_and_the_command_line(tmp_path, shapes_small):
    run_file(tmp_path, shapes_small, amp=True, resize_schedule=[[1, 64], [2, 96]])
    over = {"base": "detr.yaml", "training": {"optimizer": {"lr": 5e-4}, "amp": False}}
    (tmp_path / "over.yaml").write_text(yaml.safe_dump(over))
    opt = parser_for("train", "detr").parse_args(
        ["--config", str(tmp_path / "over.yaml"), "--max-epochs", "7", "--overfit"]
    )
    check_train(opt, "detr")
    config = config_of(opt, "detr")
    assert (config.lr, config.backbone_lr, config.amp, config.epochs, config.overfit) == (5e-4, 1e-3, "off", 7, 10)
    assert opt.resize_schedule == "1:64,2:96" and opt.network == NETWORKS["detr"]
    assert parser_for("train", "detr").parse_args(["--config", str(tmp_path / "detr.yaml")]).amp == "auto"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--lr", "-1"], "--lr is -1"),
        (["--scale-min", "0"], "--scale-min"),
        (["--pretrained", "a", "--weights", "b"], "leave one of them out"),
        (["--patience", "3", "--notest"], "drop one of the two"),
    ],
)
def test_impossible_options_are_named(arguments, complaint):
    with pytest.raises(UserError, match=complaint):
        check_train(parser_for("train", "detr").parse_args(arguments), "detr")
