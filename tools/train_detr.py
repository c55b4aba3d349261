"""Train a DETR or RT-DETR detector: `python tools/train_detr.py --config configs/detr_smoke.yaml`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from engine.cli_detr import train_parser
from utils.errors import run_command


def main(opt) -> int:
    from engine.detr_run import run  # torch is loaded only once the flags have parsed

    return run(opt)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # what is printed shows at once, also through a pipe or in a log
    opt = train_parser().parse_args()
    run_command(lambda: main(opt))
