"""One export from checked options to proved files: trace, write, prove, then rename."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.core.atomic import atomic_path
from yolov7fast.core.errors import UserError
from yolov7fast.core.optional import need
from yolov7fast.export.network import Source
from yolov7fast.export.onnx_file import onnx_model
from yolov7fast.export.plan import Plan, describe
from yolov7fast.export.proof import Report, prove
from yolov7fast.export.writers import target_of, write_openvino, write_torchscript
from yolov7fast.runtimes.forms import Form

NEEDED = {  # by format: packages for writing and for the proof
    "onnx": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
    "torchscript": (),
}


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    file_format: str
    report: Report

    @property
    def size(self) -> int:
        """Bytes, the weights beside an .xml file included."""
        beside = self.path.with_suffix(".bin")
        return self.path.stat().st_size + (beside.stat().st_size if self.path.suffix == ".xml" else 0)


def check_formats(formats: Sequence[str], plan: Plan) -> None:
    """Refuse formats that cannot hold the form, and name packages that are missing, before anything is done."""
    for file_format in formats:
        for package in NEEDED[file_format]:
            need(package, f"--format {file_format}")
    if plan.simplify:
        need("onnxscript", "--simplify")
    if "torchscript" in formats and plan.form.has_suppression:
        raise UserError(
            "--format torchscript holds no suppression: leave it out, or export it apart with --grid instead of "
            "--nms and --end2end"
        )
    if plan.form is Form.TENSORRT and list(formats) != ["onnx"]:
        raise UserError("--end2end without --max-wh is for TensorRT, which reads ONNX: give --format onnx alone")
    if plan.form is Form.END2END and "openvino" in formats:
        raise UserError("--end2end is for --format onnx: give --nms for OpenVINO")


def export_files(source: Source, plan: Plan, formats: Sequence[str], images: list[np.ndarray]) -> list[Exported]:
    """Write every format beside the weights. A file takes its name only when it is proved."""
    check_formats(formats, plan)
    plan.check(source)
    metadata = describe(source, plan)
    model: Any = onnx_model(source, plan, metadata) if {"onnx", "openvino"} & set(formats) else None
    done = []
    for file_format in formats:
        target = target_of(source.weights, file_format)
        if file_format == "openvino":
            report = _write_pair(target, source, plan, model, images)
        else:
            with atomic_path(target, suffix=target.suffix) as path:
                if file_format == "onnx":
                    path.write_bytes(model.SerializeToString())
                else:
                    write_torchscript(source, plan, metadata, path)
                report = prove(path, source, plan, images, target)
        done.append(Exported(target, file_format, report))
    return done


def _write_pair(target: Path, source: Source, plan: Plan, model: Any, images: list[np.ndarray]) -> Report:
    """OpenVINO's two files: the weights get their name first, so that an .xml never stands without its own."""
    with atomic_path(target, suffix=".xml") as path, atomic_path(target.with_suffix(".bin"), suffix=".bin") as weights:
        written = path.with_suffix(".bin")
        try:
            write_openvino(model, plan, describe(source, plan), path)
            report = prove(path, source, plan, images, target)
            os.replace(written, weights)
        finally:
            written.unlink(missing_ok=True)
    return report
