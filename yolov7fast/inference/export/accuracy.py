"""The accuracy of an exported file beside that of the .pt file, both measured in the same way on the same images."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_loop import evaluate
from yolov7fast.evaluation.eval_result import MAP
from yolov7fast.evaluation.run_evaluation import LoaderConfig, check_classes, evaluation_loader
from yolov7fast.inference.export.plan import Plan
from yolov7fast.predictors.base import Prediction, Predictor, input_size
from yolov7fast.predictors.exported.forms import Form
from yolov7fast.predictors.exported.predictor import ExportedPredictor
from yolov7fast.predictors.registry import load_predictor

CPU = torch.device("cpu")
TOLERANCE = 5e-5  # equal to four digits
IOU = 0.65  # test.py's
BATCH = 16


class Accuracy(NamedTuple):
    """mAP@.5:.95 of both."""

    weights: float
    exported: float

    def __str__(self) -> str:
        return f"mAP@.5:.95 {self.exported:.4f}, of the .pt file {self.weights:.4f}"


class FirstBoxes:
    """A predictor of which the first `count` boxes of an image count, as of a file with suppression inside."""

    def __init__(self, predictor: Predictor, count: int):
        self.predictor, self.count = predictor, count

    def __call__(self, *arguments) -> Prediction:
        found = self.predictor(*arguments)
        return found._replace(detections=[rows[: self.count] for rows in found.detections])


def measure(predictor: Predictor, data: DataYaml, config: EvalConfig, first: int | None = None) -> float:
    """mAP@.5:.95 on the val images. first: boxes of an image that count."""
    config = replace(config, img_size=input_size(predictor, config.img_size))
    loader = evaluation_loader(predictor, data, config, LoaderConfig(workers=0))
    try:
        return evaluate(FirstBoxes(predictor, first) if first else predictor, loader, data.nc, config).metrics[MAP]
    finally:
        loader.close()


class AccuracyCheck:
    """Measures files of one export, and the .pt file once."""

    def __init__(self, weights: Path, plan: Plan, data: DataYaml):
        self.weights, self.plan, self.data = weights, plan, data
        self.config = EvalConfig(img_size=max(plan.size), batch_size=BATCH, iou_thres=IOU)
        inside = plan.form.has_suppression
        agnostic = inside and plan.suppression.class_offset == 0
        self.options = replace(self.config.predict_options(), multi_label=not inside, half=False, agnostic=agnostic)
        self.first = plan.suppression.topk if inside else None

    @property
    def possible(self) -> bool:
        """Not for a file of one uneven size, which evaluation cannot feed, nor for one that TensorRT alone can run."""
        uneven = "height" not in self.plan.free and self.plan.size[0] != self.plan.size[1]
        return not uneven and self.plan.form is not Form.TENSORRT

    @cached_property
    def original(self) -> float:
        predictor = load_predictor(self.weights, CPU, self.options)
        if "height" not in self.plan.free:
            predictor.fixed_size, predictor.img_size = True, self.plan.size[0]  # the same squares for both
        check_classes(predictor, self.data, [str(self.weights)])
        return measure(predictor, self.data, self.config, self.first)

    def __call__(self, path: Path, target: Path) -> Accuracy:
        """Refuses a file in full precision whose fourth digit differs. target: its final name, for messages."""
        exported = ExportedPredictor(path, CPU, self.options)
        found = Accuracy(self.original, measure(exported, self.data, self.config, self.first))
        if not self.plan.half and abs(found.weights - found.exported) > TOLERANCE:
            raise UserError(f"{target} is not written: {found}: they differ in the fourth digit")
        return found
