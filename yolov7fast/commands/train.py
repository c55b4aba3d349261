"""Train a YOLOv7 detector: `python train.py --help`."""

import sys
from argparse import Namespace

from yolov7fast.cli.parser import parser_for


def main(opt: Namespace | None = None) -> int:
    """opt: the flags, already parsed; None: those of the command line."""
    opt = opt or parser_for("train").parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # what is printed shows at once, also through a pipe or in a log
    from yolov7fast.families.yolo_run import run  # torch is loaded only once the flags have parsed

    return run(opt)
