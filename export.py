"""Export a trained network to ONNX, TorchScript and OpenVINO: `python export.py --weights best.pt --nms`."""

from yolov7fast.commands.export import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(main)
