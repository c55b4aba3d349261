"""Train a YOLOv7 detector: `python train.py --help`."""

import sys

from engine.cli import train_parser


def main(opt) -> int:
    from engine.run import run  # torch is loaded only once the flags have parsed

    return run(opt)


parser = train_parser()

if __name__ == "__main__":
    from utils.errors import run_command

    opt = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # what is printed shows at once, also through a pipe or in a log
    run_command(lambda: main(opt))
