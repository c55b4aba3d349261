"""Find objects in images, videos and streams: `python detect.py --weights best.pt --source folder`."""

from yolov7fast.commands.detect import main
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    run_command(main)
