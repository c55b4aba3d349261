"""Find objects with a DETR checkpoint: `python tools/detect_detr.py --weights best.pth --source folder`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a script from anywhere

from yolov7fast.cli.commands.detect import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(lambda: main(family="detr"))
