"""The ONNX model of an export: the traced network with NMS appended as graph nodes.

PyTorch's TorchScript-based exporter is used: the newer one, based on `torch.export`, needs half a minute instead of one
second for a small network with dynamic sizes, and gives the same nodes.

NMS follows `predictors.nms`: best class of a box, strict comparisons, best score first, equal scores in row order, and
one pass for all classes, whose boxes are moved apart by an offset. Letters: B images, N boxes, K rows for detections, S
boxes that NMS keeps in the whole batch.
"""

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from yolov7fast.core.errors import need
from yolov7fast.core.process.output import logging_at
from yolov7fast.inference.export.export_network import ExportSource, traced_module
from yolov7fast.inference.export.export_plan import ExportPlan, NmsSettings
from yolov7fast.predictors.export_metadata import ExportForm, ExportMetadata, raw_names
from yolov7fast.predictors.runtime_sessions import TENSORRT_PLUGIN

OPSET = 18
PLUGIN_DOMAIN = "TRT"


def onnx_model(source: ExportSource, plan: ExportPlan, metadata: ExportMetadata) -> Any:
    """The ONNX model (a protobuf): traced network, NMS, metadata; checked by onnx."""
    onnx = need("onnx", "--format onnx")
    inputs, outputs = example_inputs(source, plan), traced_outputs(source, plan.form)
    model = _trace(source, plan, inputs, outputs)
    batch: int | str = "batch" if "batch" in plan.free else plan.batch
    set_shape(model.graph.input[0], plan.named_input_shape)
    if plan.form is ExportForm.NMS:
        (add_nms if source.is_yolo else add_threshold)(model, plan.nms, batch)
    elif plan.form is ExportForm.END2END:
        add_end2end(model, plan.nms)
    elif plan.form is ExportForm.TENSORRT:
        add_tensorrt(model, plan.nms, batch)
    else:
        _set_output_shapes(model, source, plan, batch)
    del model.graph.value_info[:]  # shapes inside the graph may be those of the example
    if plan.simplify:
        optimizer = need("onnxscript.optimizer", "--simplify")
        with tracer_warnings_hidden():
            model = optimizer.optimize(model)
    onnx.helper.set_model_props(model, metadata.to_text())
    model.producer_name, model.producer_version = "yolov7fast", metadata.version
    onnx.checker.check_model(model)
    return model


def example_inputs(source: ExportSource, plan: ExportPlan) -> dict[str, torch.Tensor]:
    """Inputs for tracing, by name. Dynamic axes have small, distinct sizes, so that none is taken for a constant."""
    step = source.stride
    sizes = {"batch": plan.batch, "height": plan.size[0], "width": plan.size[1]}
    small = {"batch": 2, "height": 5 * step, "width": 4 * step}  # PyTorch treats a batch of 1 as a special case
    batch, height, width = (small[name] if name in plan.free else size for name, size in sizes.items())
    if not source.is_yolo:
        height = source.model.least_height(height, width)
    shape: Any = plan.input_shape(batch, height, width)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    inputs = {"images": (images * 255).to(torch.uint8) if plan.uint8 else images}
    if not source.is_yolo:
        inputs["content"] = torch.tensor([[1.0, 2.0, width - 3.0, height - 4.0]]).repeat(batch, 1)
    return inputs


def traced_outputs(source: ExportSource, form: ExportForm) -> list[str]:
    """Names of the outputs of the traced module, before NMS is appended."""
    if form is ExportForm.RAW:
        return raw_names(source.raw_outputs) if source.is_yolo else ["logits", "boxes"]
    if form is ExportForm.GRID:
        return ["output"]
    return ["boxes", "scores"] if form is ExportForm.TENSORRT else ["boxes", "score", "label"]


@contextmanager
def tracer_warnings_hidden() -> Iterator[None]:
    """Hide the warnings of the tracer, because the proof compares the exported file with the network."""
    with logging_at(logging.ERROR, "torch.onnx", "onnxscript", "onnx_ir"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _trace(source: ExportSource, plan: ExportPlan, inputs: Mapping[str, torch.Tensor], outputs: list[str]) -> Any:
    onnx = need("onnx", "--format onnx")
    axes = {axis: name for axis, name in enumerate(plan.named_input_shape) if isinstance(name, str)}
    rows = {0: "batch"} if "batch" in plan.free else {}
    dynamic = {"images": axes} if axes else {}
    if rows:  # other dynamic axes of the outputs follow from the input; `_set_output_shapes` names them
        dynamic |= {name: rows for name in [*outputs, *inputs] if name != "images"}
    buffer: Any = io.BytesIO()
    with tracer_warnings_hidden(), torch.no_grad():
        torch.onnx.export(
            traced_module(source, plan.form, plan.uint8, plan.half),
            tuple(inputs.values()),
            buffer,
            dynamo=False,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_axes=dynamic or None,
            opset_version=OPSET,
        )
    return onnx.load_from_string(buffer.getvalue())


def set_shape(value, shape: Sequence[int | str]) -> None:
    """Set the shape of a graph input or output; strings are names of dynamic sizes."""
    helper = need("onnx", "--format onnx").helper
    value.type.CopyFrom(helper.make_tensor_type_proto(value.type.tensor_type.elem_type, shape))


def _set_output_shapes(model, source: ExportSource, plan: ExportPlan, batch: int | str) -> None:
    """Set the shapes of raw and decoded outputs."""
    if not source.is_yolo:
        queries, classes = source.model.network.config.num_queries, len(source.names)
        for value, columns in zip(model.graph.output, (classes + source.model.kind.has_background, 4)):
            set_shape(value, [batch, queries, columns])
        return
    head = source.model.model[-1]
    is_fixed = "height" not in plan.free
    if plan.form is ExportForm.GRID:
        cells = sum((plan.size[0] // int(s)) * (plan.size[1] // int(s)) for s in head.stride.tolist())
        rows = cells * head.na * (source.raw_outputs // head.nl)
        set_shape(model.graph.output[0], [batch, rows if is_fixed else "boxes", head.no])
        return
    for index, value in enumerate(model.graph.output):
        level, k = index % head.nl, index // head.nl
        stride = int(head.stride[level])
        grid = [side // stride for side in plan.size] if is_fixed else [f"rows_{stride}", f"columns_{stride}"]
        width = head.heads[k][level].out_channels // head.na if hasattr(head, "heads") else head.no
        set_shape(value, [batch, head.na, *grid, width])


# --- NMS as graph nodes -----------------------------------------------------------------------------------------------


class NmsGraph:
    """Appends nodes, constants and outputs to the graph of a model."""

    def __init__(self, model: Any):
        self.onnx = need("onnx", "NMS inside the file")
        self.graph = model.graph

    def add(self, nodes: str) -> None:
        """Append nodes in ONNX's text syntax, one per line: `result = Operator <attribute = 1> (input, input)`."""
        for line in nodes.strip().splitlines():
            node = self.onnx.parser.parse_node(line)
            node.name = f"{node.op_type}_{node.output[0]}"
            self.graph.node.append(node)

    def constants(self, dtype: Any, **values: Any) -> None:
        """Append named constants. `runtime_sessions` replaces the thresholds by their names."""
        for name, value in values.items():
            self.graph.initializer.append(self.onnx.numpy_helper.from_array(np.array(value, dtype), name))

    def replace_outputs(self, outputs: Mapping[str, tuple[Any, Sequence[int | str]]]) -> None:
        """Replace the graph's outputs. outputs: name -> dtype and shape."""
        helper = self.onnx.helper
        del self.graph.output[:]
        for name, (dtype, shape) in outputs.items():
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            self.graph.output.append(helper.make_tensor_value_info(name, kind, shape))


def detection_outputs(batch: int | str, topk: int) -> dict[str, tuple[Any, list[int | str]]]:
    """Outputs of the NMS and TENSORRT forms: name -> dtype and shape."""
    return {
        "num_dets": (np.int32, [batch, 1]),
        "det_boxes": (np.float32, [batch, topk, 4]),
        "det_scores": (np.float32, [batch, topk]),
        "det_classes": (np.int32, [batch, topk]),
    }


def add_nms(model, settings: NmsSettings, batch: int | str) -> None:
    """NMS on boxes (B, N, 4), score (B, N) and label (B, N), with the outputs of `detection_outputs`."""
    graph = NmsGraph(model)
    _select(graph, settings)
    graph.add("""
        kept_scores = GatherND (score, places)
        score_shape = Shape (score)
        no_scores = ConstantOfShape (score_shape)
        score_if_kept = ScatterND (no_scores, places, kept_scores)
    """)
    _pack(graph, settings.topk, batch)


def add_threshold(model, settings: NmsSettings, batch: int | str) -> None:
    """Boxes above the confidence threshold, for networks that need no NMS (DETR); inputs and outputs as `add_nms`."""
    graph = NmsGraph(model)
    graph.constants(np.float32, conf_thres=[settings.conf_thres], no_score=0)
    graph.add("""
        is_confident = Greater (score, conf_thres)
        score_if_kept = Where (is_confident, score, no_score)
    """)
    _pack(graph, settings.topk, batch)


def add_end2end(model, settings: NmsSettings) -> None:
    """NMS with one output, `output` (S, 7): image, x1, y1, x2, y2, class, score."""
    graph = NmsGraph(model)
    _select(graph, settings)
    graph.constants(np.int64, column=[1], image_column=[0])
    graph.add("""
        kept_boxes = GatherND (boxes, places)
        kept_class_row = GatherND (label, places)
        kept_class = Unsqueeze (kept_class_row, column)
        kept_score_row = GatherND (score, places)
        kept_score = Unsqueeze (kept_score_row, column)
        image_whole = Gather <axis = 1> (selected, image_column)
        kept_image = Cast <to = 1> (image_whole)
        output = Concat <axis = 1> (kept_image, kept_boxes, kept_class, kept_score)
    """)
    graph.replace_outputs({"output": (np.float32, ["detections", 7])})


def add_tensorrt(model, settings: NmsSettings, batch: int | str) -> None:
    """TensorRT's NMS plugin on boxes xywh (B, N, 4) and scores (B, N, classes)."""
    graph = NmsGraph(model)
    outputs = detection_outputs(batch, settings.topk)
    node = graph.onnx.helper.make_node(
        TENSORRT_PLUGIN,
        ["boxes", "scores"],
        list(outputs),
        name=f"{TENSORRT_PLUGIN}_num_dets",
        domain=PLUGIN_DOMAIN,
        background_class=-1,
        box_coding=1,
        iou_threshold=settings.iou_thres,
        max_output_boxes=settings.topk,
        plugin_version="1",
        score_activation=0,
        score_threshold=settings.conf_thres,
    )
    graph.graph.node.append(node)
    graph.replace_outputs(outputs)
    model.opset_import.append(graph.onnx.helper.make_opsetid(PLUGIN_DOMAIN, 1))


def _select(graph: NmsGraph, settings: NmsSettings) -> None:
    """Add NMS -> `selected` (S, 3): image, 0, row; `places` (S, 2): image, row."""
    graph.constants(np.float32, iou_thres=[settings.iou_thres], conf_thres=[settings.conf_thres])
    moved = "boxes"
    if settings.class_offset:
        moved = "boxes_apart"
        graph.constants(np.float32, class_offset=settings.class_offset)
        graph.constants(np.int64, last_axis=[-1])
        graph.add("""
            offset = Mul (label, class_offset)
            offset_column = Unsqueeze (offset, last_axis)
            boxes_apart = Add (boxes, offset_column)
        """)
    graph.constants(np.int64, class_axis=[1], most=[settings.topk], image_and_row=[0, 2])
    graph.add(f"""
        score_rows = Unsqueeze (score, class_axis)
        selected = NonMaxSuppression ({moved}, score_rows, most, iou_thres, conf_thres)
        places = Gather <axis = 1> (selected, image_and_row)
    """)


def _pack(graph: NmsGraph, topk: int, batch: int | str) -> None:
    """`score_if_kept` (B, N), 0 for removed boxes -> K rows per image, best first, also if N is smaller than K.

    Rows after the last detection may point at the spare ones: they read row 0 and are set to zero.
    """
    graph.constants(np.int64, topk=[topk], row_axis=[1], first_row=0, column_axis=[2])
    graph.constants(np.float32, nothing=0)
    graph.constants(np.int32, no_class=-1)
    graph.add("""
        batch_size = Shape <end = 1> (score_if_kept)
        spare_shape = Concat <axis = 0> (batch_size, topk)
        spare = ConstantOfShape (spare_shape)
        score_and_spare = Concat <axis = 1> (score_if_kept, spare)
        det_scores, picked = TopK <axis = 1> (score_and_spare, topk)
        is_detection = Greater (det_scores, nothing)
        ones = Cast <to = 6> (is_detection)
        num_dets = ReduceSum <keepdims = 1> (ones, row_axis)
        rows = Where (is_detection, picked, first_row)
        row_classes = GatherElements <axis = 1> (label, rows)
        whole_classes = Cast <to = 6> (row_classes)
        det_classes = Where (is_detection, whole_classes, no_class)
        row_column = Unsqueeze (rows, column_axis)
        row_boxes = GatherND <batch_dims = 1> (boxes, row_column)
        is_detection_column = Unsqueeze (is_detection, column_axis)
        det_boxes = Where (is_detection_column, row_boxes, nothing)
    """)
    graph.replace_outputs(detection_outputs(batch, topk))
