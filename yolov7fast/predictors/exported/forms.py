"""What an exported file answers with: five forms, each with outputs of fixed names and meanings.

Letters: B images, N boxes of a dense prediction, K rows for detections (`topk`). Boxes are in pixels of the input.
"""

from enum import StrEnum
from pathlib import Path

EXPORTED = (".onnx", ".xml", ".torchscript.pt", ".torchscript")


def is_exported(path: str | Path) -> bool:
    """Whether a file's name is that of an exported file, not of a checkpoint."""
    return str(path).lower().endswith(EXPORTED)


class Form(StrEnum):
    """How far the file goes from the network's feature maps to detections."""

    RAW = "raw"  # the raw output of each level (of DETR networks: logits and boxes of the queries)
    GRID = "grid"  # decoded predictions, before suppression
    END2END = "end2end"  # suppression inside, one row for each detection of the batch
    TENSORRT = "tensorrt"  # suppression inside by TensorRT's plugin, which no other runtime has
    NMS = "nms"  # suppression inside, a fixed number of rows for each image

    @property
    def has_suppression(self) -> bool:
        return self in (Form.END2END, Form.TENSORRT, Form.NMS)


DETECTIONS = {
    "num_dets": "(B, 1) int32: detections of each image",
    "det_boxes": "(B, K, 4) float32: x1, y1, x2, y2 in pixels of the input, best first; zeros behind the last",
    "det_scores": "(B, K) float32: confidence; zeros behind the last",
    "det_classes": "(B, K) int32: class; -1 behind the last",
}
MEANINGS: dict[Form, dict[str, str]] = {
    Form.GRID: {
        "output": "(B, N, 5 + classes) float32: centre x, centre y, width, height in pixels of the input, objectness, "
        "class probabilities"
    },
    Form.END2END: {"output": "(detections, 7) float32: image index, x1, y1, x2, y2, class, score"},
    Form.TENSORRT: DETECTIONS,
    Form.NMS: DETECTIONS,
}
QUERIES = {
    "logits": "(B, queries, classes) float32: raw class scores",
    "boxes": "(B, queries, 4) float32: centre x, centre y, width, height as fractions of the frame",
}


def raw_names(count: int) -> list[str]:
    """Names of the raw outputs of a YOLO network: the first one is `output`, as in every other form."""
    return ["output", *(f"output_{i}" for i in range(1, count))]


def meanings(form: Form, raw_outputs: int = 0) -> dict[str, str]:
    """Output name -> shape and meaning. raw_outputs: of a YOLO network, how many; 0: a DETR network."""
    if form is not Form.RAW:
        return dict(MEANINGS[form])
    if not raw_outputs:
        return dict(QUERIES)
    meaning = "(B, anchors, rows, columns, 5 + classes) float32: raw output of a level, before the sigmoid"
    return dict.fromkeys(raw_names(raw_outputs), meaning)
