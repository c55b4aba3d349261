"""Train a DETR or RT-DETR detector: `python tools/train_detr.py --config configs/detr_smoke.yaml`."""

import sys

from yolov7fast.cli.parser import parser_for


def main() -> int:
    opt = parser_for("train", "detr").parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # what is printed shows at once, also through a pipe or in a log
    from yolov7fast.families.detr_run import run  # torch is loaded only once the flags have parsed

    return run(opt)
