"""From a traced module to an ONNX graph.

The exporter is PyTorch's TorchScript-based one. The newer one, based on `torch.export`, reasons about every free size
with a computer algebra system: a tiny network with free batch, height and width takes it half a minute instead of one
second, for the same nodes.
"""

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from yolov7fast.core.errors import need
from yolov7fast.core.process.output import quiet

OPSET = 18


@contextmanager
def without_warnings() -> Iterator[None]:
    """Of the tracer: what they warn of is what the proof of the file finds out."""
    with quiet("torch.onnx", "onnxscript", "onnx_ir", level=logging.ERROR), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def trace_onnx(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    free_axes: Mapping[str, Mapping[int, str]],
):
    """The ONNX model (a protobuf) of a module. free_axes: input or output name -> axis -> name of the free size."""
    onnx = need("onnx", "--format onnx")
    buffer: Any = io.BytesIO()
    with without_warnings(), torch.no_grad():
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            buffer,
            dynamo=False,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=dict(free_axes) or None,
            opset_version=OPSET,
        )
    return onnx.load_from_string(buffer.getvalue())


def simplified(model):
    """The same graph with constants folded and idle nodes taken out."""
    optimizer = need("onnxscript.optimizer", "--simplify")
    with without_warnings():
        return optimizer.optimize(model)


def set_shape(value, shape: Sequence[int | str]) -> None:
    """Write the shape of a graph's input or output: numbers are fixed sizes, words are names of free ones."""
    dimensions = value.type.tensor_type.shape
    del dimensions.dim[:]
    for size in shape:
        dimension = dimensions.dim.add()
        if isinstance(size, str):
            dimension.dim_param = size
        else:
            dimension.dim_value = size


def set_metadata(model, text: Mapping[str, str]) -> None:
    del model.metadata_props[:]
    for key, value in text.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


def checked(model) -> Any:
    """The model, refused where it is no valid ONNX."""
    onnx = need("onnx", "--format onnx")
    onnx.checker.check_model(model)
    return model
