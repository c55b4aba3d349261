"""Run a checkout of upstream under the overlay: `python tools/overlay.py --repo DIR -- train.py ...`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from yolov7fast.cli.commands.overlay import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(main)
