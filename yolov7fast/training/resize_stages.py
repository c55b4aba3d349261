"""The stages of a resize schedule, complete: sizes that the strides can hold, a batch for each."""

from yolov7fast.core.errors import UserError
from yolov7fast.core.files import check_img_size
from yolov7fast.core.resize_schedule import ResizeStage, parse_resize_schedule


def final_size(stages: list[ResizeStage], epochs: int) -> int:
    """Of the last stage that a run of so many epochs comes to."""
    return [stage.size for stage in stages if stage.epoch < epochs][-1]


def plan_stages(schedule: str, size: int, batch: int, *, processes: int, grid: int) -> list[ResizeStage]:
    """schedule: as the flag has it, or nothing for one stage of `size`; batch: images in all, until a stage says its
    own, which then holds for those after it; grid: largest stride."""
    stages = []
    for stage in parse_resize_schedule(schedule) or [ResizeStage(0, size)]:
        batch = stage.batch or batch
        if batch % processes:
            raise UserError(
                f"--resize-schedule: the batch {batch} of epoch {stage.epoch + 1} must be a multiple of the number of "
                f"processes, {processes}"
            )
        stages.append(ResizeStage(stage.epoch, check_img_size(stage.size, grid), batch))
    return stages
