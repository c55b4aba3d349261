"""Find objects with a DETR checkpoint: `python tools/detect_detr.py --weights best.pth --source folder`.

As detect.py, with the defaults of DETR: its size is the one that it was trained for.
"""

import logging

from yolov7fast.cli.detr_flags import detect_parser
from yolov7fast.commands import detect as command
from yolov7fast.inference.predict import Summary


def detect(opt) -> Summary:
    """Run detection with the options of the command."""
    return command.detect(opt)


def main() -> int:
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    return 130 if detect(detect_parser().parse_args()).stopped else 0
