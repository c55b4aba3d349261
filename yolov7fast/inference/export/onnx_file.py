"""The ONNX model of an export."""

from typing import Any

import torch

from yolov7fast.inference.export import suppression
from yolov7fast.inference.export.graph import checked, set_metadata, set_shape, simplified, trace_onnx
from yolov7fast.inference.export.network import Source, build
from yolov7fast.inference.export.plan import Plan, raw_outputs
from yolov7fast.predictors.exported.forms import Form, raw_names
from yolov7fast.predictors.exported.metadata import Metadata


def example(source: Source, plan: Plan) -> dict[str, torch.Tensor]:
    """Inputs to trace with, by name. Free sizes take small, distinct values, so that none passes for a constant."""
    step = source.stride
    sizes = {"batch": plan.batch, "height": plan.size[0], "width": plan.size[1]}
    # a batch of 2: PyTorch gives 1 a meaning of its own
    small = {"batch": 2, "height": 5 * step, "width": 4 * step}
    batch, height, width = (small[name] if name in plan.free else size for name, size in sizes.items())
    if not source.is_yolo:
        height = source.model.least_height(height, width)
    shape: Any = plan.input_shape(batch, height, width)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(shape, generator=generator)
    inputs = {"images": (images * 255).to(torch.uint8) if plan.uint8 else images}
    if not source.is_yolo:
        inputs["content"] = torch.tensor([[1.0, 2.0, width - 3.0, height - 4.0]]).repeat(batch, 1)
    return inputs


def traced_outputs(source: Source, form: Form) -> list[str]:
    """Names of what the traced module gives, before suppression is appended."""
    if form is Form.RAW:
        return raw_names(raw_outputs(source)) if source.is_yolo else ["logits", "boxes"]
    if form is Form.GRID:
        return ["output"]
    return ["boxes", "scores"] if form is Form.TENSORRT else ["boxes", "score", "label"]


def free_axes(plan: Plan, outputs: list[str], has_content: bool) -> dict[str, dict[int, str]]:
    axes = {axis: name for axis, name in enumerate(plan.named_input_shape) if isinstance(name, str)}
    if not axes:
        return {}
    rows = {0: "batch"} if "batch" in plan.free else {}
    result = {"images": axes} | ({"content": rows} if has_content and rows else {})
    # what else is free in an output follows from the input; names are written over in `name_outputs`
    return result | {name: dict(rows) for name in outputs if rows}


def onnx_model(source: Source, plan: Plan, metadata: Metadata) -> Any:
    """Trace the network, append its suppression, describe it."""
    module = build(source, plan.form, plan.uint8, plan.half)
    inputs, outputs = example(source, plan), traced_outputs(source, plan.form)
    model = trace_onnx(module, inputs, outputs, free_axes(plan, outputs, "content" in inputs))
    batch: int | str = "batch" if "batch" in plan.free else plan.batch
    set_shape(model.graph.input[0], plan.named_input_shape)
    if plan.form is Form.NMS and source.is_yolo:
        suppression.add_nms(model, plan.suppression, batch)
    elif plan.form is Form.NMS:
        suppression.add_threshold_only(model, plan.suppression, batch)
    elif plan.form is Form.END2END:
        suppression.add_end2end(model, plan.suppression)
    elif plan.form is Form.TENSORRT:
        suppression.add_tensorrt(model, plan.suppression, batch)
    else:
        name_outputs(model, source, plan, batch)
    del model.graph.value_info[:]  # shapes inside follow from the input; old ones may be of the traced size
    if plan.simplify:
        model = simplified(model)
    set_metadata(model, metadata.to_text())
    model.producer_name, model.producer_version = "yolov7fast", metadata.version
    return checked(model)


def name_outputs(model, source: Source, plan: Plan, batch: int | str) -> None:
    """Shapes of raw and decoded outputs, as far as they are fixed."""
    if not source.is_yolo:
        queries, classes = source.model.network.config.num_queries, len(source.names)
        last = classes + source.model.kind.has_background
        for value, columns in zip(model.graph.output, (last, 4)):
            set_shape(value, [batch, queries, columns])
        return
    head = source.model.model[-1]
    sized = "height" not in plan.free
    if plan.form is Form.GRID:
        cells = sum((plan.size[0] // int(s)) * (plan.size[1] // int(s)) for s in head.stride.tolist())
        rows = cells * head.na * (raw_outputs(source) // head.nl)
        set_shape(model.graph.output[0], [batch, rows if sized else "boxes", head.no])
        return
    for index, value in enumerate(model.graph.output):
        level, k = index % head.nl, index // head.nl
        stride = int(head.stride[level])
        grid = [side // stride if sized else f"{name}_{stride}" for name, side in zip(("rows", "columns"), plan.size)]
        width = head.heads[k][level].out_channels // head.na if hasattr(head, "heads") else head.no
        set_shape(value, [batch, head.na, *grid, width])
