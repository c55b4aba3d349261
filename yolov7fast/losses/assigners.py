"""Assigners by name, and which of them a run uses in which epoch. A further assigner is a module and an entry here."""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from yolov7fast.core.errors import UserError, shown
from yolov7fast.losses.simota import Assigner, Assignment, GroundTruthBoxes, Predictions, SimOTA
from yolov7fast.losses.tal import TAL


class PlainAssigner(Assigner):
    """Every candidate is a positive of the target that proposed it."""

    def __call__(
        self, proposed: torch.Tensor, predictions: Predictions | None = None, gt: GroundTruthBoxes | None = None
    ) -> Assignment:
        return Assignment(torch.ones_like(proposed, dtype=torch.bool), proposed)


ASSIGNERS: dict[str, type[Assigner]] = {"plain": PlainAssigner, "ota": SimOTA, "tal": TAL}


def register(name: str, assigner: type[Assigner]) -> None:
    """Add an assigner that is defined outside the package."""
    ASSIGNERS[name] = assigner


def find_assigner(name: str) -> type[Assigner]:
    """The class of the assigner of that name; UserError if there is none."""
    if not isinstance(name, str) or name not in ASSIGNERS:
        raise UserError(f"unknown assigner {shown(name)}; known are {', '.join(sorted(ASSIGNERS))}")
    return ASSIGNERS[name]


def assigner_name(hyp: Mapping[str, Any]) -> str:
    """The assigner that the hyper-parameters select: `assigner`, or else `loss_ota`, 0 (plain) or 1 (ota)."""
    return hyp.get("assigner") or ("ota" if hyp["loss_ota"] else "plain")


class AssignerStage(NamedTuple):
    """The assigner that is used from an epoch (counted from 0) on."""

    epoch: int
    assigner: str


def assigner_stages(hyp: Mapping[str, Any], epochs: int) -> list[AssignerStage]:
    """The assigners of a run by epoch; the first stage begins in epoch 0.

    `assigner_schedule` lists all stages. `loss_ota_from` means two: plain, then the one of `assigner_name`. A start
    below 1 is a fraction of the epochs, rounded up; otherwise it is an epoch.
    """
    name = assigner_name(hyp)
    schedule = hyp.get("assigner_schedule")
    if schedule is None:
        start = hyp.get("loss_ota_from", 0)
        schedule = [[0, "plain"], [start, name]] if start and name != "plain" else [[0, name]]
    stages = [AssignerStage(math.ceil(at * epochs) if 0 < at < 1 else int(at), name) for at, name in schedule]
    for before, after in itertools.pairwise(stages):
        if after.epoch < before.epoch:
            raise UserError(
                f"assigner_schedule: of {epochs} epochs {after.assigner} would begin in epoch {after.epoch}, before "
                f"{before.assigner} in epoch {before.epoch}: list the stages in their order"
            )
    return stages


def assigner_at(stages: list[AssignerStage], epoch: int) -> str:
    """The assigner of an epoch: that of the last stage that has begun."""
    return next(stage.assigner for stage in reversed(stages) if stage.epoch <= epoch)
