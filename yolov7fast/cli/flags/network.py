"""Flags of the network, its start weights and what is detected with it."""

from functools import partial

from yolov7fast.cli.flags.row import DETECT, DETECTION, DETR, HEADS, NETWORK, SPEED, TEST, TRAIN, YOLO, Flag, mapping

DETECTED = TEST + DETECT
network = partial(Flag, group=NETWORK)
detected = partial(network, where=DETECTED)
of_yolo = partial(network, where=YOLO, upstream=TRAIN, fixed=True)
of_detr = partial(network, where=DETR, fixed=True)
heads = partial(Flag, group=HEADS, where=YOLO, fixed=True)
speed = partial(Flag, group=SPEED, where=YOLO)
detection = partial(Flag, group=DETECTION, where=DETECTED)
of_detect = partial(detection, where=DETECT)
threshold = partial(detection, upstream=DETECTED, low=0, high=1)

WEIGHTS_HELP = (
    "checkpoint to start from, or a published one by name (yolov7-tiny.pt: downloaded once); empty: from scratch"
)
TORCHSCRIPT_HELP = "run a TorchScript file that was not exported on this machine; such a file can run any code"
CFG_HELP = "model yaml: a file, or the name of a shipped one such as yolov7-tiny; empty: taken from the weights"
FREEZE_HELP = "n: freeze layers 0..n-1; several numbers: exactly those layers"
GEOMETRY_HELP = "group classes by the shape of their boxes: for COCO by the shipped file, for other data by measuring"
CONF_DETECT = {"default": 0.25, "help": "confidence threshold; for DETR checkpoints (.pth) 0.5"}
IOU_HELP = "IoU above which NMS suppresses the weaker box"
NO_HALF_HELP = "single precision on CUDA too, for cards whose half precision gives NaN (GTX 16xx); a CPU always uses it"
SLICE_HELP = "also detect on tiles of N pixels, for small objects in large images; 0: only on the whole image"
OVERLAP_HELP = "fraction of a tile that it shares with the next; objects smaller than it are complete in one tile"
NO_TRACE_HELP = "accepted for compatibility with upstream, without effect: networks are never traced"
TRANSFER_HELP = "load the entries of --weights that fit; optimizer, epoch and EMA are new"
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
COMPILE_HELP = "torch.compile the network, as USE_COMPILE=1 does, in one of its modes"
GRAPH_HELP = "run the network's forward and backward pass as CUDA graphs: less host time, the same kernels"
NETWORK_HELP = "keys of the network's configuration in transformers: '{num_queries: 50}'"

ROWS = [
    network("--weights", str, "", WEIGHTS_HELP, where=TRAIN, upstream=TRAIN, fixed=True),
    detected("--weights", str, "yolov7.pt", "checkpoint; several make an ensemble", upstream=DETECTED, nargs="+"),
    detected("--trust-torchscript", bool, False, TORCHSCRIPT_HELP),
    of_yolo("--cfg", str, "", CFG_HELP),
    of_yolo("--freeze", int, [0], FREEZE_HELP, nargs="+", rare=True),
    of_yolo("--noautoanchor", bool, False, "skip the anchor check", fixed=False),
    of_yolo("--transfer-weights", bool, False, TRANSFER_HELP, upstream=()),
    of_detr("--architecture", str, "detr", "kind of network", choices=("detr", "rtdetr_v2")),
    of_detr("--network", mapping, {}, NETWORK_HELP),
    of_detr("--pretrained", str, "", "folder or hub name of weights in transformers' format to start from"),
    heads("--heads", int, 0, "number of detection heads of a multi-head network", low=0),
    heads("--head-config", str, "", "yaml that assigns each class to a head"),
    heads("--standard-grouping", bool, False, "heads by meaning (COCO, 4 heads) or, for other data, by class number"),
    heads("--geometry-grouping", bool, False, GEOMETRY_HELP),
    speed("--channels-last", bool, False, "channels-last memory layout"),
    speed("--compile", str, "", COMPILE_HELP, nargs="?", const="default", choices=COMPILE_MODES),
    speed("--cuda-graph", bool, False, GRAPH_HELP),
    threshold("--conf-thres", float, 0.001, "confidence threshold", changed={"detect": CONF_DETECT}),
    threshold("--iou-thres", float, 0.65, IOU_HELP, changed={"detect": {"default": 0.45}}),
    of_detect("--classes", int, None, "keep only these class ids: --classes 0 2", upstream=DETECT, nargs="+"),
    detection("--agnostic-nms", bool, False, "boxes suppress each other across classes and heads", upstream=DETECT),
    detection("--augment", bool, False, "test-time augmentation: three passes", upstream=DETECTED),
    detection("--no-half", bool, False, NO_HALF_HELP, rare=True),
    of_detect("--slice", int, 0, SLICE_HELP, low=0),
    of_detect("--slice-overlap", float, 0.25, OVERLAP_HELP, low=0, high=0.9, rare=True),
    detection("--no-trace", bool, False, NO_TRACE_HELP, upstream=DETECTED, rare=True),
]
