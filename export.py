"""Export a trained network to ONNX, TorchScript and OpenVINO: `python export.py --weights best.pt --nms`."""

from yolov7fast.core.errors import run_command


def main() -> int:
    from yolov7fast.cli.commands import export  # imported here, so that a failed import is reported in one line

    return export.main()


if __name__ == "__main__":
    run_command(main)
