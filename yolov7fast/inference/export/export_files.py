"""Writes the files of an export: each is proved, and optionally evaluated, before it gets its final name."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from yolov7fast.core.errors import UserError, need
from yolov7fast.core.files.atomic import atomic_path
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_loop import evaluate
from yolov7fast.evaluation.eval_result import MAP
from yolov7fast.evaluation.run_evaluation import LoaderConfig, check_classes, evaluation_loader
from yolov7fast.inference.export.export_network import ExportSource, traced_module
from yolov7fast.inference.export.export_plan import ExportPlan, metadata_of
from yolov7fast.inference.export.export_proof import ProofReport, prove, sample_images
from yolov7fast.inference.export.onnx_graph import example_inputs, onnx_model, tracer_warnings_hidden
from yolov7fast.predictors.export_metadata import ExportForm, ExportMetadata
from yolov7fast.predictors.exported_predictor import ExportedPredictor
from yolov7fast.predictors.predictor import Prediction, Predictor, input_size, load_predictor
from yolov7fast.predictors.runtime_sessions import record_export

SUFFIXES = {"onnx": ".onnx", "torchscript": ".torchscript.pt", "openvino": ".xml"}
NEEDED = {  # packages for writing and proving, by format
    "onnx": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
    "torchscript": (),
}
CPU = torch.device("cpu")
ACCURACY_TOLERANCE = 5e-5  # equal to four digits
ACCURACY_IOU = 0.65  # of test.py
ACCURACY_BATCH = 16


class Accuracy(NamedTuple):
    """mAP@.5:.95 of the .pt file and of the exported file."""

    weights: float
    exported: float

    def __str__(self) -> str:
        return f"mAP@.5:.95 {self.exported:.4f}, of the .pt file {self.weights:.4f}"


@dataclass(frozen=True)
class ExportedFile:
    """A written file."""

    path: Path
    report: ProofReport
    accuracy: Accuracy | None  # if a data set was given

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

    data: prove the files with its val images, and evaluate the .pt file and the exported files on them.
    """
    check_formats(formats, plan)
    plan.check(source)
    metadata, images = metadata_of(source, plan), sample_images(data)
    check = AccuracyCheck(source.weights, plan, data) if data else None
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
                accuracy = check(path, target) if check and check.possible else None
                if weights.exists():  # gets its name first, so that no .xml exists without it
                    with atomic_path(target.with_suffix(".bin")) as written:
                        weights.replace(written)
            finally:
                weights.unlink(missing_ok=True)
        done.append(ExportedFile(target, report, accuracy))
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


class AccuracyCheck:
    """Compares the accuracy of exported files with that of the .pt file, which is evaluated once.

    If NMS is inside the file, both are evaluated with the best class of a box and the file's number of boxes.
    """

    def __init__(self, weights: Path, plan: ExportPlan, data: DataYaml):
        self.weights, self.plan, self.data = weights, plan, data
        self.config = EvalConfig(img_size=max(plan.size), batch_size=ACCURACY_BATCH, iou_thres=ACCURACY_IOU)
        inside = plan.form.has_nms
        agnostic = inside and plan.nms.class_offset == 0
        self.options = replace(self.config.predict_options(), multi_label=not inside, half=False, agnostic=agnostic)
        self.most = plan.nms.topk if inside else None

    @property
    def possible(self) -> bool:
        """False for a fixed size with unequal sides, which evaluation does not support, and for TensorRT's plugin."""
        uneven = "height" not in self.plan.free and self.plan.size[0] != self.plan.size[1]
        return not uneven and self.plan.form is not ExportForm.TENSORRT

    @cached_property
    def original(self) -> float:
        """mAP@.5:.95 of the .pt file."""
        predictor = load_predictor(self.weights, CPU, self.options)
        if "height" not in self.plan.free:
            predictor.fixed_size, predictor.img_size = True, self.plan.size[0]  # the same squares for both
        check_classes(predictor, self.data, [str(self.weights)])
        return measured_map(predictor, self.data, self.config, self.most)

    def __call__(self, path: Path, target: Path) -> Accuracy:
        """The accuracy of both files. target: the final name of the file `path`, for messages.

        Raises UserError for a file in full precision that differs in the fourth digit.
        """
        exported = ExportedPredictor(path, CPU, self.options)
        found = Accuracy(self.original, measured_map(exported, self.data, self.config, self.most))
        if not self.plan.half and abs(found.weights - found.exported) > ACCURACY_TOLERANCE:
            raise UserError(f"{target} is not written: {found}: they differ in the fourth digit")
        return found


def measured_map(predictor: Predictor, data: DataYaml, config: EvalConfig, most: int | None = None) -> float:
    """mAP@.5:.95 on the val images. most: number of boxes of an image that count."""

    def predict(*arguments) -> Prediction:
        found = predictor(*arguments)
        return found._replace(detections=[rows[:most] for rows in found.detections])

    config = replace(config, img_size=input_size(predictor, config.img_size))
    loader = evaluation_loader(predictor, data, config, LoaderConfig(workers=0))
    try:
        return evaluate(predict, loader, data.nc, config).metrics[MAP]
    finally:
        loader.close()
