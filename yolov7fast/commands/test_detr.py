"""Measure a DETR checkpoint on a labelled data set: `python tools/test_detr.py --weights best.pth --data my.yaml`.

As test.py, with the defaults of DETR: its size is the one that it was trained for.
"""

from yolov7fast.commands import test


def main() -> int:
    return test.main("detr")
