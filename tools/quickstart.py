"""`make train` on a fresh machine: train on the project's own data set, detect on a few images, say what to look at."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from yolov7fast.cli.commands.quickstart import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(main)
