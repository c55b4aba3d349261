"""What the tests of detect.py share: drawn images and videos, runs of the command, a detector that finds nothing."""

from pathlib import Path

import cv2
import numpy as np
import torch

from tests.mini_network import NAMES
from tests.predictors.stubs import StubPredictor
from yolov7fast.cli.commands import detect as command
from yolov7fast.cli.parser import parser_for
from yolov7fast.inference.detection_loop import DetectSummary
from yolov7fast.predictors.predictor import Prediction, PredictOptions


def cells(seed: int, height: int = 120, width: int = 160) -> np.ndarray:
    """An image (BGR) with discs, on which the trained small network finds something at a low threshold."""
    rng = np.random.default_rng(seed)
    image = np.full((height, width, 3), 220, np.uint8)
    for x, y in zip(rng.integers(10, width - 10, 6).tolist(), rng.integers(10, height - 10, 6).tolist()):
        cv2.circle(image, (x, y), 14, (150, 140, 200), -1)
    return image


def make_video(path: Path, images, fps: int = 10) -> Path:
    height, width = images[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), fps, (width, height))
    for image in images:
        writer.write(image)
    writer.release()
    return path


def run(weights, source, *arguments: str) -> DetectSummary:
    arguments = ("--weights", str(weights), "--source", str(source), "--img", "320", "--project", "det", *arguments)
    return command.detect(parser_for("detect").parse_args(arguments))


def nothing_found(images: torch.Tensor, _shapes=(), _targets=None) -> Prediction:
    return Prediction([torch.zeros(0, 6)] * len(images))


blind = StubPredictor(nothing_found, NAMES, PredictOptions(conf_thres=0.25))
