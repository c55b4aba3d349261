"""Draw which cells and anchors each box of an image was given, by the plain loss and by OTA, side by side."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from yolov7fast.cli.commands.draw_assignment import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(main)
