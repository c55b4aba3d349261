"""The flags of export.py. Upstream's have its names, defaults and abbreviations."""

from functools import partial

from yolov7fast.cli.flags.row import DATA, DETECTION, NETWORK, Flag

FILE = "the file"
own = partial(Flag, where=("export",))
upstream = partial(Flag, where=("export",), upstream=("export",))
UPSTREAM_ONLY = "of upstream's CoreML files, which are not written here: refused; see --half"
MAX_WH_HELP = (
    "pixels between classes in NMS, 0: classes suppress one another. --end2end without it is for TensorRT, with it for "
    "onnxruntime"
)

ROWS = [
    upstream("--weights", str, "yolov7.pt", "checkpoint of any family; files are written next to it", NETWORK),
    own("--format", str, ["onnx"], "onnx, torchscript, openvino; several: onnx,openvino", FILE, nargs="+"),
    upstream("--img-size", int, [640, 640], "height and width; one value serves for both", FILE, nargs="+", low=1),
    upstream("--batch-size", int, 1, "images of a batch", FILE, low=1),
    upstream("--dynamic", bool, False, "leave batch, height and width free (not with --end2end)", FILE),
    upstream("--dynamic-batch", bool, False, "leave the batch free", FILE),
    upstream("--grid", bool, False, "decoded predictions (B, boxes, 5 + classes) instead of raw outputs", FILE),
    own("--uint8", bool, False, "input as OpenCV gives it: uint8 (B, height, width, 3) BGR", FILE),
    own("--half", bool, False, "weights and layers in half precision", FILE),
    upstream("--fp16", bool, False, UPSTREAM_ONLY, FILE),
    upstream("--int8", bool, False, UPSTREAM_ONLY, FILE),
    upstream("--simplify", bool, False, "ONNX: fold constants, remove unused nodes", FILE),
    own("--nms", bool, False, "NMS in the file: any batch, any image size, outputs of fixed meaning", DETECTION),
    upstream("--include-nms", bool, False, "the same as --nms", DETECTION),
    upstream("--end2end", bool, False, "NMS in the file as upstream has it; needs --grid", DETECTION),
    upstream("--max-wh", int, None, MAX_WH_HELP, DETECTION, low=0),
    upstream("--topk-all", int, None, "most detections of an image; default 100, with --nms 300", DETECTION, low=1),
    upstream("--iou-thres", float, 0.45, "IoU above which NMS suppresses the weaker box", DETECTION, low=0, high=1),
    upstream("--conf-thres", float, 0.25, "confidence threshold", DETECTION, low=0, high=1),
    own("--data", str, "", "data yaml: verify with its val images", DATA),
    upstream("--device", str, "cpu", "cpu: networks are traced there, and files name no device", FILE),
    own("--deploy-cfg", str, "", "write NAME_deploy.pt instead: the network of this cfg/deploy YAML", FILE),
]
