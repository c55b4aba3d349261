"""One export from checked options to proved files: trace, write, prove, then rename."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yolov7fast.core.errors import UserError, need
from yolov7fast.core.files.atomic import atomic_path
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.inference.export.accuracy import Accuracy, AccuracyCheck
from yolov7fast.inference.export.network import Source
from yolov7fast.inference.export.onnx_file import onnx_model
from yolov7fast.inference.export.plan import Plan, describe
from yolov7fast.inference.export.proof import Report, prove
from yolov7fast.inference.export.samples import sample_images
from yolov7fast.inference.export.writers import SUFFIXES, target_of, write_openvino, write_torchscript
from yolov7fast.predictors.exported.forms import Form

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
    accuracy: Accuracy | None  # where a data set was given

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


class Proof:
    """How the files of an export are proved before they take their names; with a data set they are measured, too."""

    def __init__(self, source: Source, plan: Plan, data: DataYaml | None):
        self.source, self.plan, self.images = source, plan, sample_images(data)
        accuracy = AccuracyCheck(source.weights, plan, data) if data else None
        self.accuracy = accuracy if accuracy and accuracy.possible else None

    def __call__(self, path: Path, target: Path) -> tuple[Report, Accuracy | None]:
        report = prove(path, self.source, self.plan, self.images, target)
        return report, self.accuracy(path, target) if self.accuracy else None


def export_files(
    source: Source,
    plan: Plan,
    formats: Sequence[str],
    data: DataYaml | None = None,
    folder: Path | None = None,
) -> list[Exported]:
    """Write every format beside the weights, or into a folder. A file takes its name only when it is proved.

    data: prove with its val images, and measure the accuracy of both files on them.
    """
    check_formats(formats, plan)
    plan.check(source)
    metadata = describe(source, plan)
    proof = Proof(source, plan, data)
    model: Any = onnx_model(source, plan, metadata) if {"onnx", "openvino"} & set(formats) else None
    done = []
    for file_format in formats:
        target = target_of(source.weights, file_format, folder)
        if file_format == "openvino":
            found = _write_pair(target, model, proof)
        else:
            with atomic_path(target, suffix=SUFFIXES[file_format]) as path:
                if file_format == "onnx":
                    path.write_bytes(model.SerializeToString())
                else:
                    write_torchscript(source, plan, metadata, path)
                found = proof(path, target)
        done.append(Exported(target, file_format, *found))
    return done


def _write_pair(target: Path, model: Any, proof: Proof) -> tuple[Report, Accuracy | None]:
    """OpenVINO's two files: the weights get their name first, so that an .xml never stands without its own."""
    with atomic_path(target, suffix=".xml") as path, atomic_path(target.with_suffix(".bin"), suffix=".bin") as weights:
        written = path.with_suffix(".bin")
        try:
            write_openvino(model, proof.plan, describe(proof.source, proof.plan), path)
            found = proof(path, target)
            os.replace(written, weights)
        finally:
            written.unlink(missing_ok=True)
    return found
