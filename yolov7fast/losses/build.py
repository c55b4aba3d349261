"""Which loss a network has: by its detection layer, with an assigner by name."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from yolov7fast.assign.registry import find_assigner
from yolov7fast.losses.multihead import MultiHeadLoss
from yolov7fast.losses.yolo import AuxiliaryLoss, YoloLoss
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.nn.multihead import MultiHeadDetect


def build_loss(
    model: Any, assigner: str, autobalance: bool = False, class_weights: np.ndarray | None = None
) -> YoloLoss:
    """The loss of a network for one head, a lead and an auxiliary head, or several heads.

    With an assigner that lets no candidates compete (plain), auxiliary heads do not learn: that is for validation.
    """
    head = getattr(model, "module", model).model[-1]
    if isinstance(head, MultiHeadDetect):
        return MultiHeadLoss(model, assigner, autobalance, class_weights)
    if isinstance(head, IAuxDetect) and find_assigner(assigner).pooled:
        return AuxiliaryLoss(model, assigner, autobalance, class_weights)
    return YoloLoss(model, assigner, autobalance, class_weights)


def assigner_name(hyp: Mapping[str, Any]) -> str:
    """What the hyper-parameters ask for: `assigner`, or else `loss_ota`, 0 (plain) or 1 (ota)."""
    return hyp.get("assigner") or ("ota" if hyp["loss_ota"] else "plain")
