"""Training steps on the fake runtime, by kind of loss. The one file here that names classes of yolov7fast.training."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch

from tests.training.families.detr_commands import run_file
from yolov7fast.cli.parser import parser_for
from yolov7fast.machine.gpu_check import RATES, narrow_cfg, step_on_random_batch
from yolov7fast.training.distributed import World
from yolov7fast.training.families import family_class
from yolov7fast.training.run import build_family
from yolov7fast.training.step import TrainStep, choose_amp

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


def yolo_step(kind: str, amp: str, folder: Path) -> Step:
    """A step of a network at an eighth of its width on one random batch of two images, 17 boxes each."""
    cfg, size, assigner = YOLO[kind]
    family, step = step_on_random_batch(CUDA, narrow_cfg(cfg, 0.125, folder), size, 2, folder, amp)
    if assigner not in family.losses:
        from yolov7fast.losses.build import build_loss

        family.losses[assigner] = build_loss(family.model, assigner)
    family.assigner = assigner
    return lambda number: step(family.loader[0], number, RATES)


def detr_step(kind: str, amp: str, folder: Path, data: Path) -> Step:
    """A step of a small network on the first batch of a data set."""
    file = run_file(folder, data, DETR[kind])
    opt: Namespace = parser_for("train", "detr").parse_args(["--config", file, "--device", "0", "--amp", amp])
    family = build_family(family_class("detr"), opt, CUDA, World())
    parts = (family, family.model.train(), family.net, family.optimizer, family.ema, CUDA)
    step = TrainStep(*parts, amp=choose_amp(amp, CUDA), clip_norm=family.clip_norm)
    batch = next(iter(family.loader))
    batch = (batch[0].pin_memory(), *batch[1:])  # as loaders with workers do
    return lambda number: step(batch, number, family.rates(number, 0, number))
