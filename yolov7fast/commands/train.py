"""Train a detector: `python train.py --help` for YOLOv7, and for other families, which differ in their flags."""

from argparse import Namespace

from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import TrainCommand
from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.core.process.waiting import wait_briefly


def run(opt: Namespace, family: str = "yolo") -> int:
    """Train as the flags say; returns the exit code."""
    from yolov7fast.families.registry import family_class  # torch is loaded only once the flags have parsed
    from yolov7fast.training.run import run_training

    return run_training(family_class(family), opt, TrainCommand(family))


def main(opt: Namespace | None = None, family: str = "yolo") -> int:
    """`run` in a process that does nothing else: its threads and its memory are set up for that.

    opt: the flags, already parsed; None: those of the command line.
    """
    flags = opt or parser_for("train", family).parse_args()
    wait_briefly()
    import torch

    if flags.device == "cpu" or not torch.cuda.is_available():
        keep_freed_memory(of_any_size=True)  # a step frees and needs the same blocks as the one before
    return run(flags, family)
