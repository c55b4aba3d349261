"""Flags of the network, its start weights and what is detected with it."""

from functools import partial

from yolov7fast.cli.flags.row import DETECT, DETECTION, DETR, HEADS, NETWORK, SPEED, TEST, TRAIN, YOLO, Flag
from yolov7fast.cli.values import mapping

network = partial(Flag, group=NETWORK)
of_detr = partial(network, where=DETR, fixed=True)
heads = partial(Flag, group=HEADS, where=YOLO, fixed=True)
speed = partial(Flag, group=SPEED, where=YOLO)
detection = partial(Flag, group=DETECTION)

DETECTED = TEST + DETECT

ROWS = [
    network(
        "--weights",
        str,
        "",
        "checkpoint to start from, or a published one by name (yolov7-tiny.pt: fetched once); empty: from scratch",
        where=TRAIN,
        upstream=TRAIN,
        fixed=True,
    ),
    network(
        "--weights",
        str,
        "yolov7.pt",
        "checkpoint; several make an ensemble",
        where=DETECTED,
        upstream=DETECTED,
        nargs="+",
    ),
    network(
        "--trust-torchscript",
        bool,
        False,
        "run a TorchScript file that was not exported on this machine; such a file can run any code",
        where=DETECTED,
    ),
    network(
        "--cfg",
        str,
        "",
        "model yaml: a file, or the name of a shipped one such as yolov7-tiny; empty: taken from the weights",
        where=YOLO,
        upstream=TRAIN,
        fixed=True,
    ),
    network(
        "--freeze",
        int,
        [0],
        "n: freeze layers 0..n-1; several numbers: exactly those layers",
        where=YOLO,
        upstream=TRAIN,
        nargs="+",
        fixed=True,
    ),
    network("--noautoanchor", bool, False, "skip the anchor check", where=YOLO, upstream=TRAIN),
    network(
        "--transfer-weights",
        bool,
        False,
        "take what fits from --weights; optimizer, epoch and EMA start fresh",
        where=YOLO,
        fixed=True,
    ),
    of_detr("--architecture", str, "detr", "kind of network", choices=("detr", "rtdetr_v2")),
    of_detr("--network", mapping, {}, "keys of the network's configuration in transformers: '{num_queries: 50}'"),
    of_detr("--pretrained", str, "", "folder or hub name of weights in transformers' format to start from"),
    heads("--heads", int, 0, "number of detection heads of a multi-head network", low=0),
    heads("--head-config", str, "", "yaml that assigns each class to a head"),
    heads("--standard-grouping", bool, False, "heads by meaning (COCO, 4 heads), for other data by class number"),
    heads("--geometry-grouping", bool, False, "heads by the shape of boxes: COCO's shipped file, other data measured"),
    speed("--channels-last", bool, False, "channels-last memory layout"),
    speed("--compile", bool, False, "torch.compile the network, as USE_COMPILE=1 does"),
    detection(
        "--conf-thres",
        float,
        0.001,
        "confidence threshold",
        where=DETECTED,
        upstream=DETECTED,
        low=0,
        high=1,
        changed={"detect": {"default": 0.25, "help": "confidence threshold; for DETR checkpoints (.pth) 0.5"}},
    ),
    detection(
        "--iou-thres",
        float,
        0.65,
        "IoU above which NMS suppresses the weaker box",
        where=DETECTED,
        upstream=DETECTED,
        low=0,
        high=1,
        changed={"detect": {"default": 0.45}},
    ),
    detection(
        "--classes", int, None, "keep only these class ids: --classes 0 2", where=DETECT, upstream=DETECT, nargs="+"
    ),
    detection(
        "--agnostic-nms",
        bool,
        False,
        "boxes suppress each other across classes, and so across heads",
        where=DETECTED,
        upstream=DETECT,
    ),
    detection("--augment", bool, False, "test-time augmentation: three passes", where=DETECTED, upstream=DETECTED),
    detection(
        "--no-half",
        bool,
        False,
        "single precision on CUDA, too, for cards whose half precision gives NaN (GTX 16xx); a CPU always uses it",
        where=DETECTED,
    ),
    detection(
        "--slice",
        int,
        0,
        "detect on tiles of N pixels, too, for small objects in large images; 0: only on the whole image",
        where=DETECT,
        low=0,
    ),
    detection(
        "--slice-overlap",
        float,
        0.25,
        "fraction of a tile that it shares with the next; objects smaller than it are whole in one of them",
        where=DETECT,
        low=0,
        high=0.9,
    ),
    detection(
        "--no-trace",
        bool,
        False,
        "accepted for upstream's sake, without effect: networks always run untraced",
        where=DETECTED,
        upstream=DETECTED,
    ),
]
