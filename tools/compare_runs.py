"""Compare training runs: accuracy, losses, time, cost, settings, and which one for which need."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from yolov7fast.cli.commands.compare_runs import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(main)
