"""Training steps on the fake runtime, by kind of loss. The one file here that names classes of yolov7fast.training."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from tests.training.families.detr_commands import run_file
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.machine.gpu_check import RATES, narrow_cfg, step_on_random_batch
from yolov7fast.nn.cuda_graphs import GraphedNet
from yolov7fast.training.step import TrainStep

CUDA = torch.device("cuda", 0)
YOLO = {  # network, image size, assigner
    "plain": ("cfg/training/yolov7-tiny.yaml", 64, "plain"),
    "ota": ("cfg/training/yolov7-tiny.yaml", 64, "ota"),
    "tal": ("cfg/training/yolov7-tiny.yaml", 64, "tal"),
    "auxiliary heads": ("cfg/training/yolov7-w6.yaml", 128, "ota"),
    "multi-head": ("cfg/training/yolov7-tiny-1b4h.yaml", 64, "ota"),
}
DETR = {"detr": "detr", "rt-detr": "rtdetr_v2"}
STEP = ("training/step.py", "(__call__)")  # path and function of a line of the training step
Step = Callable[[int], None]  # called with the global step


class FirstStep(BaseException):
    """Ends a run at its first step, and carries the step, its batch and its rates."""


def yolo_step(kind: str, amp: str, folder: Path, cuda_graph: bool = False) -> Step:
    """A step of a network at an eighth of its width on one random batch of two images, 17 boxes each."""
    cfg, size, assigner = YOLO[kind]
    family, step = step_on_random_batch(CUDA, narrow_cfg(cfg, 0.125, folder), size, 2, folder, amp)
    if assigner not in family.losses:
        family.losses[assigner] = type(family.losses["plain"])(family.model, assigner)
    family.assigner = assigner
    if cuda_graph:
        step.net = GraphedNet(family.model)
    return lambda number: step(family.loader[0], number, RATES)


def detr_step(kind: str, amp: str, folder: Path, data: Path) -> Step:
    """The step of tools/train_detr.py with a small network, on the first batch of a data set."""

    def stop(self, batch, global_step, rates, *timer):
        raise FirstStep(self, batch, rates)

    file = run_file(folder, data, DETR[kind])
    words = ["--config", file, "--device", "0", "--amp", amp, "--profile", "1"]
    with mock.patch.object(TrainStep, "__call__", stop):
        try:
            run(parser_for("train", "detr").parse_args(words), "detr")
        except FirstStep as first:
            step, batch, rates = first.args
    batch = (batch[0].pin_memory(), *batch[1:])  # as loaders with workers do
    return lambda number: step(batch, number, rates)
