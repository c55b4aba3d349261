"""The stages of a run's resize schedule: sizes and batches by epoch. A run without a schedule has one stage."""

from collections.abc import Sequence
from typing import NamedTuple

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_img_size
from yolov7fast.core.resize_schedule import RequestedStage, parse_resize_schedule


class ResizeStage(NamedTuple):
    """From `epoch` (counted from 0) on, train at `size`, which the strides divide, with `batch` images in all."""

    epoch: int
    size: int
    batch: int


def plan_stages(schedule: str, size: int, batch: int, *, processes: int, grid: int) -> list[ResizeStage]:
    """schedule: as the flag has it, or nothing for one stage of `size`; batch: images in all, until a stage names its
    own, which then holds for those after it; grid: largest stride."""
    stages = []
    for stage in parse_resize_schedule(schedule) or [RequestedStage(0, size)]:
        batch = stage.batch or batch
        if batch % processes:
            raise UserError(
                f"--resize-schedule: the batch {batch} of epoch {stage.epoch + 1} must be a multiple of the number of "
                f"processes, {processes}"
            )
        stages.append(ResizeStage(stage.epoch, check_img_size(stage.size, grid), batch))
    return stages


def stage_of(stages: Sequence[ResizeStage], epoch: int) -> ResizeStage:
    """The stage that an epoch belongs to."""
    return [stage for stage in stages if stage.epoch <= epoch][-1]


def final_size(stages: Sequence[ResizeStage], epochs: int) -> int:
    """Of the last stage that a run of this many epochs reaches."""
    return stage_of(stages, epochs - 1).size
