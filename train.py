"""Train a YOLOv7 detector: `python train.py --help`."""

from argparse import Namespace

from yolov7fast.core.process.signals import end_on_signals

if __name__ == "__main__":
    end_on_signals()  # first: the imports take seconds

from yolov7fast.cli.parser import parser_for

parser = parser_for("train")


def main(opt: Namespace) -> int:
    from yolov7fast.cli.commands import train  # imported here, so that a failed import is reported in one line

    return train.main(opt)


if __name__ == "__main__":
    from yolov7fast.core.errors import run_command  # here: the text up to the next line must be a whole program

    opt = parser.parse_args()
    run_command(lambda: main(opt))
