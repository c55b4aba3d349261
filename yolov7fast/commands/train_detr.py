"""Train a DETR or RT-DETR detector: `python tools/train_detr.py --config configs/detr_smoke.yaml`."""

from yolov7fast.commands import train


def main() -> int:
    return train.main(family="detr")
