"""Writing the files of an export: each format to a path that takes its final name only once the file is proved."""

import json
from pathlib import Path
from typing import Any

import torch

from yolov7fast.core.errors import need
from yolov7fast.inference.export.graph import without_warnings
from yolov7fast.inference.export.network import Source, build
from yolov7fast.inference.export.onnx_file import example
from yolov7fast.inference.export.plan import Plan
from yolov7fast.predictors.exported.metadata import Metadata
from yolov7fast.predictors.exported.trust import record_export

SUFFIXES = {"onnx": ".onnx", "torchscript": ".torchscript.pt", "openvino": ".xml"}


def target_of(weights: Path, file_format: str, folder: Path | None = None) -> Path:
    """X.pt -> X.onnx, X.torchscript.pt or X.xml, beside it or in a folder."""
    return (folder or weights.parent) / (weights.stem + SUFFIXES[file_format])


def write_openvino(model: Any, plan: Plan, metadata: Metadata, path: Path) -> None:
    """The OpenVINO model of an ONNX one: `path` (.xml) and the weights beside it (.bin)."""
    openvino = need("openvino", "--format openvino")
    import io

    with without_warnings():
        converted = openvino.convert_model(io.BytesIO(model.SerializeToString()))
    for key, value in metadata.to_text().items():
        converted.set_rt_info(value, ["model_info", key])
    openvino.save_model(converted, path, compress_to_fp16=plan.half)


def write_torchscript(source: Source, plan: Plan, metadata: Metadata, path: Path) -> None:
    module = build(source, plan.form, plan.uint8, plan.half)
    with without_warnings(), torch.no_grad():
        traced = torch.jit.trace(module, tuple(example(source, plan).values()), check_trace=False)
        traced = torch.jit.freeze(traced)
        torch.jit.save(traced, str(path), _extra_files={"metadata.json": json.dumps(metadata.to_text())})
    record_export(path)
