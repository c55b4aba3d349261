"""Shrink a data set once, so that training does not decode full-size images again and again."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from yolov7fast.cli.commands.resize_dataset import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(main)
