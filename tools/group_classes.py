"""Divide the classes of a data set among the heads of a multi-head network, by the geometry of their boxes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from yolov7fast.cli.commands.group_classes import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(main)
