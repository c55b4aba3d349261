"""Box conversions and the IoU family equal the recorded figures."""

import numpy as np
import pytest
import torch

from yolov7fast.core import boxes

MODES = ("IoU", "GIoU", "DIoU", "CIoU")


@pytest.fixture(scope="module")
def figures(golden):
    return golden("eval_boxes.npz")


def tensor(array):
    return torch.from_numpy(array.copy())


def close(got, want, atol=2e-6):
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", [tensor, np.copy], ids=["tensor", "array"])
def test_conversions(figures, kind):
    xywh = boxes.xyxy2xywh(kind(figures["a"]))
    close(xywh, figures["xyxy2xywh_a"], 1e-4)
    close(boxes.xywh2xyxy(xywh), figures["xywh2xyxy_of_that"], 1e-4)
    pixels = boxes.xywhn2xyxy(kind(figures["norm_xywh"]), 640, 480, 3.5, 7)
    close(pixels, figures["xywhn2xyxy_w640_h480_padw3p5_padh7"], 1e-4)
    close(boxes.xyn2xy(kind(np.array([[0.5, 0.25]], np.float32)), 640, 480, 3.5, 7), [[323.5, 127.0]])


def test_scaling_back_and_clipping(figures):
    rows = figures["scale_in"]
    close(boxes.scale_coords((320, 320), tensor(rows), (480, 640)), figures["scale_320x320_to_480x640_auto"], 1e-4)
    close(boxes.scale_coords((384, 640), tensor(rows), (375, 500)), figures["scale_384x640_to_375x500_auto"], 1e-4)
    ratio_pad = ((0.5, 0.5), (16.0, 8.0))
    got = boxes.scale_coords((256, 352), tensor(rows), (480, 640), ratio_pad)
    close(got, figures["scale_256x352_to_480x640_ratiopad"], 1e-4)
    for kind in (tensor, np.copy):
        clipped = kind(rows)
        boxes.clip_coords(clipped, (200, 250))
        close(clipped, figures["clip_h200_w250"], 1e-4)


def test_iou_of_every_pair(figures):
    a, b = tensor(figures["a"]), tensor(figures["b"])
    close(boxes.box_iou(a, b), figures["box_iou"])
    close(boxes.wh_iou(boxes.xyxy2xywh(a)[:, 2:], boxes.xyxy2xywh(b)[:, 2:]), figures["wh_iou"])


@pytest.mark.parametrize("mode", MODES)
def test_iou_pair_by_pair(figures, mode):
    a, b = tensor(figures["a"]), tensor(figures["b"])
    options = {} if mode == "IoU" else {mode: True}
    a_xywh, b_xywh = boxes.xyxy2xywh(a[:9]), boxes.xyxy2xywh(b)
    close(boxes.bbox_iou(a[:9].T, b, **options), figures[f"bbox_{mode}_pair_xyxy"])
    close(boxes.bbox_iou(a_xywh.T, b_xywh, x1y1x2y2=False, **options), figures[f"bbox_{mode}_pair_xywh"])
    close(boxes.bbox_iou(a[3], b, **options), figures[f"bbox_{mode}_one_xyxy"])


def test_gradient_of_ciou_treats_the_aspect_weight_as_constant(figures):
    xywh = boxes.xyxy2xywh(tensor(figures["a"])[:9]).requires_grad_()
    target = boxes.xyxy2xywh(tensor(figures["b"]))
    boxes.bbox_iou(xywh.T, target, x1y1x2y2=False, CIoU=True).sum().backward()
    close(xywh.grad, figures["bbox_CIoU_pair_xywh_grad_box1"])
