"""The flags of test.py and the checks they must pass."""

import argparse

from yolov7fast.cli.flags import Flag, Parser
from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import SPLITS
from yolov7fast.metrics.nms import check_thresholds

TASKS = (*SPLITS, "speed", "study")
_SWITCH = {"action": "store_true"}
FLAGS = [
    Flag("--weights", "weights file; several make an ensemble", {"nargs": "+", "type": str, "default": "yolov7.pt"}),
    Flag("--data", "data yaml", {"type": str, "default": "data/coco.yaml"}),
    Flag("--batch-size", "images per batch", {"type": int, "default": 32}),
    Flag("--img-size", "longer side, rounded up to the stride", {"type": int, "default": 640}),
    Flag("--conf-thres", "lowest score", {"type": float, "default": 0.001}),
    Flag("--iou-thres", "overlap above which the weaker box is suppressed", {"type": float, "default": 0.65}),
    Flag("--task", "train, val or test: the split to measure; speed; study: sizes 256 to 1536", {"default": "val"}),
    Flag("--device", "0 or 0,1,2,3 or cpu; empty: the first GPU, else CPU", {"default": ""}),
    Flag("--single-cls", "all labels and detections count as one class", _SWITCH),
    Flag("--augment", "test-time augmentation: three passes", _SWITCH),
    Flag("--verbose", "per-class rows even for 50 classes or more", _SWITCH),
    Flag("--save-txt", "write detections to labels/*.txt", _SWITCH),
    Flag(
        "--save-hybrid",
        "write labels and detections together, for auto-labelling; the figures mean nothing then",
        _SWITCH,
    ),
    Flag("--save-conf", "add the score to the lines of --save-txt", _SWITCH),
    Flag(
        "--save-json",
        "write detections as COCO JSON and run pycocotools; always on for a data file named *coco.yaml",
        _SWITCH,
    ),
    Flag("--project", "parent folder of results", {"default": "runs/test"}),
    Flag("--name", "folder of this run's results", {"default": "exp"}),
    Flag("--exist-ok", "write into an existing folder instead of counting up", _SWITCH),
    Flag("--no-trace", "accepted and without effect: networks always run untraced", _SWITCH),
    Flag("--v5-metric", "AP with recall extended to 1.0", _SWITCH),
    Flag("--save-per-class-ap", "write mAP and the AP of each class to this JSON file", {"type": str}, False),
    Flag(
        "--annotations",
        "COCO annotation file for --save-json; default: looked for beside the images, else built from the labels",
        {"type": str},
        False,
    ),
    Flag("--workers", "loader processes", {"type": int, "default": 8}, False),
    Flag("--agnostic-nms", "boxes suppress each other across classes, and so across heads", _SWITCH, False),
    Flag("--fast-dataloader", "workers write samples straight into shared batch buffers", _SWITCH, False),
    Flag(
        "--cache-images",
        "keep resized images: ram (the bare flag) or disk, a packed file that the next run finds again",
        {"nargs": "?", "const": "ram", "default": False, "choices": ["ram", "disk"]},
        False,
    ),
    Flag("--cache-dir", "folder for --cache-images disk; empty: next to the labels", {"default": ""}, False),
]


def test_parser() -> Parser:
    return Parser(
        FLAGS,
        prog="test.py",
        description="Measure a detector on a labelled data set.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def check_options(opt: argparse.Namespace) -> None:
    """Refuse values that cannot work before anything is loaded; weights become a list."""
    opt.weights = [opt.weights] if isinstance(opt.weights, str) else opt.weights
    opt.save_json |= opt.data.endswith("coco.yaml")
    check_thresholds(opt.conf_thres, opt.iou_thres)
    for flag, value, low in (
        ("--img-size", opt.img_size, 0),
        ("--batch-size", opt.batch_size, 1),
        ("--workers", opt.workers, 0),
    ):
        if value < low:
            raise UserError(f"{flag} {value} is out of range: it must be at least {low}")
    if opt.task not in TASKS:
        raise UserError(f"--task {opt.task} is not known: it is one of {', '.join(TASKS)}")
    if opt.annotations and not opt.save_json:
        raise UserError("--annotations is read by --save-json only: add that flag")
