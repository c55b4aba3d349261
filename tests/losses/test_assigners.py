"""Assigners by name: which there are, how a loss gets one, what a wrong name is answered with."""

import pytest
import torch

from tests.losses.loss_golden import stand_in
from tests.losses.test_yolo_loss import small_case
from yolov7fast.core.errors import UserError
from yolov7fast.losses.assigners import PlainAssigner, assigner_name, find_assigner
from yolov7fast.losses.loss_builder import build_loss
from yolov7fast.losses.multihead_loss import MultiHeadLoss
from yolov7fast.losses.simota import AUX_TOP, LEAD_TOP, SimOTA
from yolov7fast.losses.tal import TAL
from yolov7fast.losses.yolo_loss import AuxiliaryLoss, YoloLoss
from yolov7fast.nn.model import Model
from yolov7fast.training.hyperparameters import check_hyp, load_hyp

HYP = {"box": 0.05, "obj": 0.7, "cls": 0.3, "cls_pw": 1.0, "obj_pw": 1.0, "fl_gamma": 0.0, "anchor_t": 4.0}


def test_names_and_what_they_stand_for():
    assert (find_assigner("plain"), find_assigner("ota"), find_assigner("tal")) == (PlainAssigner, SimOTA, TAL)
    assert find_assigner("ota").build(False) == SimOTA(LEAD_TOP) and find_assigner("ota").build(True) == SimOTA(AUX_TOP)


@pytest.mark.parametrize("name", ["otta", 3, None, ["ota"]])
def test_a_wrong_name_is_answered_with_those_that_exist(name):
    with pytest.raises(UserError, match=r"unknown assigner .*known are ota, plain, tal"):
        find_assigner(name)


def test_loss_ota_selects_as_before_and_a_name_takes_its_place():
    assert [assigner_name({"loss_ota": value}) for value in (0, 1, 0.0, 1.0)] == ["plain", "ota", "plain", "ota"]
    assert assigner_name({"loss_ota": 1, "assigner": "plain"}) == "plain"
    hyp = load_hyp("data/hyp.scratch.tiny.yaml")
    assert "assigner" not in hyp and check_hyp(hyp | {"assigner": "plain"}, "x")["assigner"] == "plain"
    with pytest.raises(UserError, match=r"x\.yaml: unknown assigner 'tall'"):
        check_hyp(hyp | {"assigner": "tall"}, "x.yaml")


@pytest.mark.parametrize(
    ("cfg", "plain", "ota"),
    [
        ("yolov7-tiny", YoloLoss, YoloLoss),
        ("yolov7-w6", YoloLoss, AuxiliaryLoss),  # the plain one is for validation: the lead head alone
        ("yolov7-tiny-1b4h", MultiHeadLoss, MultiHeadLoss),
    ],
)
def test_the_loss_of_each_kind_of_head(cfg, plain, ota):
    with torch.device("meta"):
        model = Model(f"cfg/training/{cfg}.yaml")
    model.to_empty(device="cpu").hyp, model.gr = HYP, 1.0
    assert type(build_loss(model, "plain")) is plain and type(build_loss(model, "ota")) is ota
    assert build_loss(model, "ota").assigner == SimOTA(AUX_TOP if ota is AuxiliaryLoss else LEAD_TOP)


def test_an_assigner_without_images_says_what_it_needs():
    raw, targets, _ = small_case()
    with pytest.raises(TypeError, match="SimOTA needs the images too"):
        YoloLoss(stand_in("p5", 5), "ota")(raw, targets)
