"""Writes the files of an export: each is verified before it gets its final name."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from yolov7fast.core.errors import UserError, need
from yolov7fast.core.files.atomic import atomic_path
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.inference.export.export_network import ExportSource, traced_module
from yolov7fast.inference.export.export_plan import ExportPlan, metadata_of
from yolov7fast.inference.export.export_proof import ProofReport, prove, sample_images
from yolov7fast.inference.export.onnx_graph import example_inputs, onnx_model, tracer_warnings_hidden
from yolov7fast.predictors.export_metadata import ExportForm, ExportMetadata
from yolov7fast.predictors.runtime_sessions import record_export

SUFFIXES = {"onnx": ".onnx", "torchscript": ".torchscript.pt", "openvino": ".xml"}
NEEDED = {  # packages for writing and verifying, by format
    "onnx": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
    "torchscript": (),
}


@dataclass(frozen=True)
class ExportedFile:
    """A written file."""

    path: Path
    report: ProofReport

    @property
    def size(self) -> int:
        """Bytes, including the .bin file of an .xml file."""
        weights = self.path.with_suffix(".bin")
        return self.path.stat().st_size + (weights.stat().st_size if self.path.suffix == ".xml" else 0)


def export_files(
    source: ExportSource,
    plan: ExportPlan,
    formats: Sequence[str],
    data: DataYaml | None = None,
    folder: Path | None = None,
) -> list[ExportedFile]:
    """Write all formats to the folder of the weights or to `folder`: X.pt -> X.onnx, X.torchscript.pt, X.xml.

    data: verify the files with its val images.
    """
    check_formats(formats, plan)
    plan.check(source)
    metadata, images = metadata_of(source, plan), sample_images(data)
    model: Any = onnx_model(source, plan, metadata) if {"onnx", "openvino"} & set(formats) else None
    done = []
    for file_format in formats:
        target = (folder or source.weights.parent) / (source.weights.stem + SUFFIXES[file_format])
        with atomic_path(target, suffix=SUFFIXES[file_format]) as path:
            weights = path.with_suffix(".bin")  # of an .xml file
            try:
                if file_format == "onnx":
                    path.write_bytes(model.SerializeToString())
                elif file_format == "torchscript":
                    write_torchscript(source, plan, metadata, path)
                else:
                    write_openvino(model, plan, metadata, path)
                report = prove(path, source, plan, images, target)
                if weights.exists():  # gets its name first, so that no .xml exists without it
                    with atomic_path(target.with_suffix(".bin")) as written:
                        weights.replace(written)
            finally:
                weights.unlink(missing_ok=True)
        done.append(ExportedFile(target, report))
    return done


def check_formats(formats: Sequence[str], plan: ExportPlan) -> None:
    """Raise UserError for missing packages and for formats that do not support the form."""
    for file_format in formats:
        for package in NEEDED[file_format]:
            need(package, f"--format {file_format}")
    if plan.simplify:
        need("onnxscript", "--simplify")
    if "torchscript" in formats and plan.form.has_nms:
        raise UserError(
            "--format torchscript supports no NMS inside the file: leave it out, or export it separately with --grid "
            "instead of --nms and --end2end"
        )
    if plan.form is ExportForm.TENSORRT and list(formats) != ["onnx"]:
        raise UserError("--end2end without --max-wh is for TensorRT, which reads ONNX: give --format onnx alone")
    if plan.form is ExportForm.END2END and "openvino" in formats:
        raise UserError("--end2end is for --format onnx: give --nms for OpenVINO")


def write_openvino(model: Any, plan: ExportPlan, metadata: ExportMetadata, path: Path) -> None:
    """Write the OpenVINO model of an ONNX model: `path` (.xml) and its weights (.bin)."""
    openvino = need("openvino", "--format openvino")
    with tracer_warnings_hidden():
        converted = openvino.convert_model(io.BytesIO(model.SerializeToString()))
    for key, value in metadata.to_text().items():
        converted.set_rt_info(value, ["model_info", key])
    openvino.save_model(converted, path, compress_to_fp16=plan.half)


def write_torchscript(source: ExportSource, plan: ExportPlan, metadata: ExportMetadata, path: Path) -> None:
    module = traced_module(source, plan.form, plan.uint8, plan.half)
    with tracer_warnings_hidden(), torch.no_grad():
        traced = torch.jit.trace(module, tuple(example_inputs(source, plan).values()), check_trace=False)
        traced = torch.jit.freeze(traced)
        torch.jit.save(traced, str(path), _extra_files={"metadata.json": json.dumps(metadata.to_text())})
    record_export(path)
