"""Losses of the stub checkout: right numbers, a device named by hand, `super` by the class's own name."""

import torch

from utils.general import box_iou  # noqa: F401 - as in a checkout
from yolov7fast.losses import yolo_loss


class ComputeLoss:
    def __init__(self, model, autobalance=False):
        super(ComputeLoss, self).__init__()  # noqa: UP008
        self.inner = yolo_loss.ComputeLoss(model, autobalance)

    def __call__(self, p, targets):
        return self.inner(p, targets.to("cuda:0") + torch.zeros(1, device="cuda:0"))


class ComputeLossOTA:
    def __init__(self, model, autobalance=False):
        super(ComputeLossOTA, self).__init__()  # noqa: UP008
        self.inner = yolo_loss.ComputeLossOTA(model, autobalance)

    def __call__(self, p, targets, imgs):
        return self.inner(p, targets.cuda(), imgs)


class ComputeLossAuxOTA:
    def __init__(self, model, autobalance=False):
        super(ComputeLossAuxOTA, self).__init__()  # noqa: UP008
        self.inner = yolo_loss.ComputeLossAuxOTA(model, autobalance)

    def __call__(self, p, targets, imgs):
        return self.inner(p, targets.to(torch.device("cuda", 0)), imgs)
