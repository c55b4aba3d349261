"""Train a YOLOv7 detector: `python train.py --help`."""

import sys

from engine.cli import train_parser
from utils.errors import run_command


def main(opt) -> int:
    from engine.run import run  # torch is loaded only once the flags have parsed

    return run(opt)


parser = train_parser()

if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # what is printed shows at once, also through a pipe or in a log
    opt = parser.parse_args()
    run_command(lambda: main(opt))
