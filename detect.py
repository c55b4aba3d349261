"""Find objects in images, videos and streams: `python detect.py --weights best.pt --source folder`."""

from yolov7fast.core.errors import run_command


def main() -> int:
    from yolov7fast.cli.commands import detect  # imported here, so that a failed import is reported in one line

    return detect.main()


if __name__ == "__main__":
    run_command(main)
