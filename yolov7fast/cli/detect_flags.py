"""The flags of detect.py and the checks they must pass."""

import argparse

from yolov7fast.cli.flags import Flag, Parser
from yolov7fast.core.errors import UserError
from yolov7fast.metrics.nms import check_thresholds

_SWITCH = {"action": "store_true"}
FLAGS = [
    Flag("--weights", "weights file; several make an ensemble", {"nargs": "+", "type": str, "default": "yolov7.pt"}),
    Flag(
        "--source",
        "image, folder, glob, video, camera number, rtsp/rtmp/http(s) address, or .txt list of these",
        {"type": str, "default": "inference/images"},
    ),
    Flag("--img-size", "longer side of the network's input", {"type": int, "default": 640}),
    Flag("--conf-thres", "lowest score", {"type": float, "default": 0.25}),
    Flag("--iou-thres", "overlap above which the weaker box is suppressed", {"type": float, "default": 0.45}),
    Flag("--device", "0 or 0,1,2,3 or cpu; empty: the first GPU, else CPU", {"default": ""}),
    Flag("--view-img", "show a window; q in it stops", _SWITCH),
    Flag("--save-txt", "write detections to labels/*.txt", _SWITCH),
    Flag("--save-conf", "add the score to the lines of --save-txt", _SWITCH),
    Flag("--nosave", "do not save pictures or videos", _SWITCH),
    Flag("--classes", "keep only these class ids: --classes 0 2", {"nargs": "+", "type": int}),
    Flag("--agnostic-nms", "boxes suppress each other across classes", _SWITCH),
    Flag("--augment", "test-time augmentation: three passes", _SWITCH),
    Flag("--update", "strip the weights files of all but the network, after detection", _SWITCH),
    Flag("--project", "parent folder of results", {"default": "runs/detect"}),
    Flag("--name", "folder of this run's results", {"default": "exp"}),
    Flag("--exist-ok", "write into an existing folder instead of counting up", _SWITCH),
    Flag("--no-trace", "accepted and without effect: networks always run untraced", _SWITCH),
    Flag("--batch-size", "pictures of one shape at a time", {"type": int, "default": 1}, reference=False),
]


def detect_parser() -> Parser:
    return Parser(
        FLAGS,
        prog="detect.py",
        description="Find objects in images, videos and streams.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def check_options(opt: argparse.Namespace) -> None:
    """Refuse values that cannot work before anything is loaded; weights become a list."""
    opt.weights = [opt.weights] if isinstance(opt.weights, str) else opt.weights
    check_thresholds(opt.conf_thres, opt.iou_thres)
    for flag, value, low in (("--img-size", opt.img_size, 0), ("--batch-size", opt.batch_size, 1)):
        if value < low:
            raise UserError(f"{flag} {value} is out of range: it must be at least {low}")
