"""Measure a detector on a labelled data set: `python test.py --weights best.pt --data my.yaml`."""

from yolov7fast.cli.commands.test import main, test
from yolov7fast.core.errors import run_command

__all__ = ["main", "test"]  # scripts call `test.test(...)`

if __name__ == "__main__":
    run_command(main)
