"""Suppression as nodes of an ONNX graph, appended to a network that ends in boxes, scores and classes.

Letters: B images, N boxes, K rows for detections, S boxes that suppression keeps in the whole batch. The rules are
those of `evaluation.nms`: the best class of a box, strict comparisons, best score first, equal scores in the order of
the rows, and one suppression for all classes, whose boxes are moved apart by an offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from yolov7fast.core.errors import need
from yolov7fast.inference.export.graph import set_shape
from yolov7fast.predictors.exported.sessions import TENSORRT_PLUGIN

DEFAULT_TOPK = 300  # as `evaluation.nms` keeps
THRESHOLDS = ("conf_thres", "iou_thres")  # constants under these names, so that a reader of the file can change them


@dataclass(frozen=True)
class Suppression:
    """The numbers of a suppression."""

    conf_thres: float = 0.25
    iou_thres: float = 0.45
    topk: int = DEFAULT_TOPK
    class_offset: float = 4096.0  # 0: classes suppress one another


class Nodes:
    """Appends nodes to a graph; every result gets the name given to it."""

    def __init__(self, model):
        self.onnx = need("onnx", "suppression inside the file")
        self.graph = model.graph

    def add(
        self, op: str, inputs: Sequence[str], name: str | Sequence[str], domain: str = "", **attributes: Any
    ) -> str:
        names = [name] if isinstance(name, str) else list(name)
        node = self.onnx.helper.make_node(op, list(inputs), names, name=f"{op}_{names[0]}", domain=domain, **attributes)
        self.graph.node.append(node)
        return names[0]

    def constant(self, name: str, values: Any, dtype: Any = np.int64) -> str:
        self.graph.initializer.append(self.onnx.numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def replace_outputs(self, outputs: dict[str, tuple[np.dtype | type, Sequence[int | str]]]) -> None:
        """The graph's outputs from now on: name -> type and shape."""
        del self.graph.output[:]
        for name, (dtype, shape) in outputs.items():
            kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            value = self.onnx.helper.make_tensor_value_info(name, kind, None)
            set_shape(value, shape)
            self.graph.output.append(value)


def add_thresholds(nodes: Nodes, settings: Suppression, names: Sequence[str] = THRESHOLDS) -> None:
    for name in names:
        nodes.constant(name, [getattr(settings, name)], np.float32)


def select(nodes: Nodes, settings: Suppression) -> None:
    """boxes (B, N, 4), score (B, N), label (B, N) -> `selected` (S, 3): image, 0, row; `places` (S, 2): image, row."""
    add_thresholds(nodes, settings)
    moved = "boxes"
    if settings.class_offset:
        nodes.constant("class_offset", settings.class_offset, np.float32)
        nodes.add("Mul", ["label", "class_offset"], "offset")
        nodes.add("Unsqueeze", ["offset", nodes.constant("last_axis", [-1])], "offset_column")
        moved = nodes.add("Add", ["boxes", "offset_column"], "boxes_apart")
    nodes.add("Unsqueeze", ["score", nodes.constant("class_axis", [1])], "score_rows")
    nodes.constant("most", [settings.topk])
    nodes.add("NonMaxSuppression", [moved, "score_rows", "most", "iou_thres", "conf_thres"], "selected")
    nodes.constant("image_and_row", [0, 2])
    nodes.add("Gather", ["selected", "image_and_row"], "places", axis=1)


def add_nms(model, settings: Suppression, batch: int | str) -> None:
    """num_dets, det_boxes, det_scores, det_classes, for any batch and size."""
    nodes = Nodes(model)
    select(nodes, settings)
    nodes.add("GatherND", ["score", "places"], "kept_scores")
    nodes.add("Shape", ["score"], "score_shape")
    nodes.add("ConstantOfShape", ["score_shape"], "no_scores")
    nodes.add("ScatterND", ["no_scores", "places", "kept_scores"], "score_if_kept")
    pack(nodes, settings.topk, batch)


def add_threshold_only(model, settings: Suppression, batch: int | str) -> None:
    """The same outputs for a network that needs no suppression (DETR): boxes above the confidence threshold."""
    nodes = Nodes(model)
    add_thresholds(nodes, settings, ["conf_thres"])
    nodes.add("Greater", ["score", "conf_thres"], "is_confident")
    nodes.constant("no_score", 0, np.float32)
    nodes.add("Where", ["is_confident", "score", "no_score"], "score_if_kept")
    pack(nodes, settings.topk, batch)


def pack(nodes: Nodes, topk: int, batch: int | str) -> None:
    """`score_if_kept` (B, N), 0 for what is not kept -> K rows an image, best first, also where N is below K."""
    nodes.constant("topk", [topk])
    nodes.add("Shape", ["score_if_kept"], "batch_size", end=1)
    nodes.add("Concat", ["batch_size", "topk"], "spare_shape", axis=0)
    nodes.add("ConstantOfShape", ["spare_shape"], "spare")
    nodes.add("Concat", ["score_if_kept", "spare"], "score_and_spare", axis=1)
    nodes.add("TopK", ["score_and_spare", "topk"], ["det_scores", "picked"], axis=1)
    nodes.constant("nothing", 0, np.float32)
    nodes.add("Greater", ["det_scores", "nothing"], "is_detection")
    nodes.add("Cast", ["is_detection"], "ones", to=nodes.onnx.TensorProto.INT32)
    nodes.add("ReduceSum", ["ones", nodes.constant("row_axis", [1])], "num_dets", keepdims=1)
    # rows behind the last detection point anywhere, also at the spare ones: they read row 0 and are blanked
    nodes.constant("first_row", 0)
    nodes.add("Where", ["is_detection", "picked", "first_row"], "rows")
    nodes.add("GatherElements", ["label", "rows"], "row_classes", axis=1)
    nodes.add("Cast", ["row_classes"], "whole_classes", to=nodes.onnx.TensorProto.INT32)
    nodes.constant("no_class", -1, np.int32)
    nodes.add("Where", ["is_detection", "whole_classes", "no_class"], "det_classes")
    nodes.constant("column_axis", [2])
    nodes.add("Unsqueeze", ["rows", "column_axis"], "row_column")
    nodes.add("GatherND", ["boxes", "row_column"], "row_boxes", batch_dims=1)
    nodes.add("Unsqueeze", ["is_detection", "column_axis"], "is_detection_column")
    nodes.add("Where", ["is_detection_column", "row_boxes", "nothing"], "det_boxes")
    nodes.replace_outputs(
        {
            "num_dets": (np.int32, [batch, 1]),
            "det_boxes": (np.float32, [batch, topk, 4]),
            "det_scores": (np.float32, [batch, topk]),
            "det_classes": (np.int32, [batch, topk]),
        }
    )


def add_end2end(model, settings: Suppression) -> None:
    """`output` (S, 7): image, x1, y1, x2, y2, class, score."""
    nodes = Nodes(model)
    select(nodes, settings)
    nodes.add("GatherND", ["boxes", "places"], "kept_boxes")
    nodes.constant("column", [1])
    for source, kept in (("label", "kept_class"), ("score", "kept_score")):
        nodes.add("GatherND", [source, "places"], f"{kept}_row")
        nodes.add("Unsqueeze", [f"{kept}_row", "column"], kept)
    nodes.add("Gather", ["selected", nodes.constant("image_column", [0])], "image_whole", axis=1)
    nodes.add("Cast", ["image_whole"], "kept_image", to=nodes.onnx.TensorProto.FLOAT)
    nodes.add("Concat", ["kept_image", "kept_boxes", "kept_class", "kept_score"], "output", axis=1)
    nodes.replace_outputs({"output": (np.float32, ["detections", 7])})


PLUGIN_DOMAIN = "TRT"


def add_tensorrt(model, settings: Suppression, batch: int | str) -> None:
    """TensorRT's plugin on boxes xywh (B, N, 4) and scores (B, N, classes)."""
    nodes = Nodes(model)
    outputs = {
        "num_dets": (np.int32, [batch, 1]),
        "det_boxes": (np.float32, [batch, settings.topk, 4]),
        "det_scores": (np.float32, [batch, settings.topk]),
        "det_classes": (np.int32, [batch, settings.topk]),
    }
    nodes.add(
        TENSORRT_PLUGIN,
        ["boxes", "scores"],
        list(outputs),
        domain=PLUGIN_DOMAIN,
        background_class=-1,
        box_coding=1,
        iou_threshold=settings.iou_thres,
        max_output_boxes=settings.topk,
        plugin_version="1",
        score_activation=0,
        score_threshold=settings.conf_thres,
    )
    nodes.replace_outputs(outputs)
    model.opset_import.append(nodes.onnx.helper.make_opsetid(PLUGIN_DOMAIN, 1))
