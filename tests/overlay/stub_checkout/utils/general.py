"""Boxes and suppression of the stub checkout, one image after the other."""

import torch
import torchvision

from utils.metrics import fitness  # noqa: F401 - circles of imports, as in a checkout


def xywh2xyxy(x):
    y = x.clone()
    y[:, :2] = x[:, :2] - x[:, 2:4] / 2
    y[:, 2:4] = x[:, :2] + x[:, 2:4] / 2
    return y


def box_iou(box1, box2):
    low, high = torch.max(box1[:, None, :2], box2[:, :2]), torch.min(box1[:, None, 2:], box2[:, 2:])
    inter = (high - low).clamp(0).prod(2)
    area = [(b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (box1, box2)]
    return inter / (area[0][:, None] + area[1] - inter)


def non_max_suppression(
    prediction, conf_thres=0.25, iou_thres=0.45, classes=None, agnostic=False, multi_label=False, labels=()
):
    output = []
    for x in prediction:
        x = x[x[:, 4] > conf_thres]
        scores, boxes = x[:, 5:] * x[:, 4:5], xywh2xyxy(x[:, :4])
        if multi_label:
            i, j = (scores > conf_thres).nonzero(as_tuple=True)
        else:
            j = scores.argmax(1)
            i = torch.arange(len(x))
            keep = scores[i, j] > conf_thres
            i, j = i[keep], j[keep]
        x = torch.cat((boxes[i], scores[i, j, None], j[:, None].float()), 1)
        x = x[x[:, 4].argsort(descending=True, stable=True)[:30000]]
        kept = torchvision.ops.nms(x[:, :4] + x[:, 5:6] * (0 if agnostic else 4096), x[:, 4], iou_thres)
        output.append(x[kept[:300]])
    return output
