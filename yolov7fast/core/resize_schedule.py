"""The text of `--resize-schedule`: image sizes, and perhaps batches, by epoch."""

from typing import NamedTuple

from yolov7fast.core.errors import UserError


class RequestedStage(NamedTuple):
    """From `epoch` (counted from 0) on, train at `size` with `batch` images in all (None: as before)."""

    epoch: int
    size: int
    batch: int | None = None


def parse_resize_schedule(text: str) -> list[RequestedStage]:
    """'1:320,20:480' or '1:320:64,20:480:32' -> stages; epochs are counted from 1 in the text."""
    stages = []
    for step in filter(None, (part.strip() for part in text.split(","))):
        try:
            numbers = [int(number) for number in step.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) not in (2, 3) or min(numbers) < 1:
            raise UserError(f"--resize-schedule: '{step}' is not EPOCH:SIZE or EPOCH:SIZE:BATCH, such as 20:480")
        stages.append(RequestedStage(numbers[0] - 1, *numbers[1:]))
    epochs = [stage.epoch for stage in stages]
    if stages and (epochs[0] != 0 or sorted(set(epochs)) != epochs):
        raise UserError(f"--resize-schedule '{text}' must begin with epoch 1 and rise, such as 1:320,20:480")
    return stages
