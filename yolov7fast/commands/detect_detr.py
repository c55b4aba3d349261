"""Find objects with a DETR checkpoint: `python tools/detect_detr.py --weights best.pth --source folder`.

As detect.py, with the defaults of DETR: its size is the one that it was trained for.
"""

from yolov7fast.commands import detect


def main() -> int:
    return detect.main("detr")
