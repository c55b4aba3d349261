"""The recorded loss cases as the tests look at them: with their assignments, and matches in a comparable form."""

import numpy as np
import torch

from tests.losses import recorded_losses
from tests.losses.recorded_losses import FOLDER as GOLDEN
from tests.losses.recorded_losses import HYP, names, stand_in
from yolov7fast.losses.candidates import AUX_REACH, LEAD_REACH
from yolov7fast.losses.simota import AUX_TOP, LEAD_TOP, SimOTA
from yolov7fast.losses.yolo_loss import AuxiliaryLoss, YoloLoss

LOSSES = {
    **recorded_losses.LOSSES,
    "tal": lambda model: YoloLoss(model, "tal"),
    "aux tal": lambda model: AuxiliaryLoss(model, "tal"),
}
__all__ = ["GOLDEN", "HYP", "LOSSES", "Case", "batched_matches", "names", "stand_in"]


class Case(recorded_losses.Case):
    """A recorded case with what the assignment of its boxes is made of."""

    @property
    def lead(self) -> list[torch.Tensor]:
        return self.maps[: self.levels]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        return [tuple(m.shape[2:4]) for m in self.lead]

    @property
    def strides(self) -> list[float]:
        return self.head.stride.tolist()

    @property
    def top(self) -> int:
        return AUX_TOP if self.kind == "aux" else LEAD_TOP

    @property
    def assignments(self) -> dict[str, float]:
        return {"lead": LEAD_REACH, "aux": AUX_REACH} if self.kind == "aux" else {"lead": LEAD_REACH}

    def recorded(self, field: str) -> list[list[tuple]]:
        return [[tuple(row) for row in self.figures[f"{field}{level}"].tolist()] for level in range(self.levels)]


def batched_matches(loss, maps, targets, height: int, reach: float, top: int) -> list[list[tuple]]:
    """Per level, (image, anchor, row, column, target) of every match that `loss` makes, in emission order."""
    plan = loss.plan(targets, maps, reach, height)
    loss.assigner = SimOTA(top)
    given = loss.match(loss.predicted(maps, plan), plan)
    counts = [len(c) for c in plan.cells]
    levels = []
    for cells, taken, target, m in zip(
        plan.cells, given.positive_mask.split(counts), given.matched_gt.split(counts), maps
    ):
        where = np.unravel_index(cells[taken].numpy(), m.shape[:4])
        levels.append(list(zip(*(w.tolist() for w in where), target[taken].tolist())))
    return levels
