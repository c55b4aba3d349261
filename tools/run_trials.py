"""Search for good settings: many short trainings from a list or a search, ranked in a table."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from yolov7fast.cli.commands.run_trials import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(main)
