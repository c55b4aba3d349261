"""Train a detector: `python train.py --help` for YOLOv7, and for other families, which differ in their flags."""

from argparse import Namespace

from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import start_training


def run(opt: Namespace, family: str = "yolo") -> int:
    """Train as the flags say; returns the exit code."""
    return start_training(opt, family)[0]


def main(opt: Namespace | None = None, family: str = "yolo") -> int:
    """opt: the flags, already parsed; None: those of the command line."""
    return run(opt or parser_for("train", family).parse_args(), family)
