"""Upstream's import path for the network and its heads; the names live in the package."""

from yolov7fast.nn.heads import Detect, IAuxDetect, IDetect
from yolov7fast.nn.model import Model

__all__ = ["Detect", "IAuxDetect", "IDetect", "Model"]

if __name__ == "__main__":
    from yolov7fast.core.errors import run_command
    from yolov7fast.nn.summary import main

    run_command(main)
