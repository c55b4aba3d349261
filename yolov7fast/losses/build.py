"""Which loss a network has: by its detection layer, with an assigner by name."""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from yolov7fast.core.errors import UserError
from yolov7fast.losses.assigners import find_assigner
from yolov7fast.losses.multihead import MultiHeadLoss
from yolov7fast.losses.yolo import AuxiliaryLoss, YoloLoss
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.nn.multihead import MultiHeadDetect


def build_loss(model: Any, assigner: str, autobalance: bool = False) -> YoloLoss:
    """The loss of a network for one head, a lead and an auxiliary head, or several heads.

    With an assigner that compares no predictions with boxes (plain), auxiliary heads do not learn: for validation only.
    """
    head = getattr(model, "module", model).model[-1]
    if isinstance(head, MultiHeadDetect):
        return MultiHeadLoss(model, assigner, autobalance)
    if isinstance(head, IAuxDetect) and find_assigner(assigner).compares:
        return AuxiliaryLoss(model, assigner, autobalance)
    return YoloLoss(model, assigner, autobalance)


def assigner_name(hyp: Mapping[str, Any]) -> str:
    """What the hyper-parameters ask for: `assigner`, or else `loss_ota`, 0 (plain) or 1 (ota)."""
    return hyp.get("assigner") or ("ota" if hyp["loss_ota"] else "plain")


class Stage(NamedTuple):
    """From which epoch (counted from 0) on which assigner is used."""

    epoch: int
    assigner: str


def assigner_stages(hyp: Mapping[str, Any], epochs: int) -> list[Stage]:
    """The assigners of a run by epoch, the first from epoch 0 on.

    `assigner_schedule` names them all. `loss_ota_from` is short for two: plain, then the one that `assigner_name` says.
    A start below 1 is a fraction of the epochs, rounded up, otherwise an epoch.
    """
    name = assigner_name(hyp)
    schedule = hyp.get("assigner_schedule")
    if schedule is None:
        start = hyp.get("loss_ota_from", 0)
        schedule = [[0, "plain"], [start, name]] if start and name != "plain" else [[0, name]]
    stages = [Stage(math.ceil(start * epochs) if 0 < start < 1 else int(start), name) for start, name in schedule]
    for before, after in itertools.pairwise(stages):
        if after.epoch < before.epoch:
            raise UserError(
                f"assigner_schedule: of {epochs} epochs {after.assigner} would begin in epoch {after.epoch}, before "
                f"{before.assigner} in epoch {before.epoch}: list the stages in their order"
            )
    return stages


def assigner_at(stages: list[Stage], epoch: int) -> str:
    """The assigner of an epoch: of the last stage that has begun."""
    return next(stage.assigner for stage in reversed(stages) if stage.epoch <= epoch)
