"""Train a DETR or RT-DETR detector: `python tools/train_detr.py --config configs/detr_smoke.yaml`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from yolov7fast.core.process.signals import end_on_signals

if __name__ == "__main__":
    end_on_signals()  # first: the imports take seconds

from yolov7fast.core.errors import run_command


def main() -> int:
    from yolov7fast.cli.commands import train  # imported here, so that a failed import is reported in one line

    return train.main(family="detr")


if __name__ == "__main__":
    run_command(main)
