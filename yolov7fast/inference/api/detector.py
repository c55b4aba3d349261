"""A detector to call from Python: `model = load("best.pt"); results = model([image, ...])`."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.inference.api.inputs import input_images
from yolov7fast.inference.api.results import Results
from yolov7fast.inference.frames import Frame, network_input
from yolov7fast.inference.predict import detect_batch
from yolov7fast.predictors.base import DEFAULT_SIZE, PredictOptions, Predictor, input_size
from yolov7fast.predictors.exported.forms import is_exported
from yolov7fast.predictors.nms import check_thresholds
from yolov7fast.predictors.registry import listed, load_predictor


class Detector:
    """Weights of any kind, ready to be called.

    `conf`, `iou`, `classes`, `agnostic`, `augment` and `size` may be changed between calls. The boxes are those of
    detect.py.
    """

    def __init__(self, predictor: Predictor, size: int = DEFAULT_SIZE):
        self.predictor, self.size = predictor, size
        self.conf, self.iou = predictor.options.conf_thres, predictor.options.iou_thres
        self.classes, self.agnostic = predictor.options.classes, predictor.options.agnostic
        self.augment = predictor.options.augment

    def __repr__(self) -> str:
        size = self.size or self.predictor.img_size
        kind = type(self.predictor).__name__.removesuffix("Predictor")
        return f"Detector({kind}, {counted(len(self.names), 'class', 'classes')}, size={size}, conf={self.conf:g})"

    @property
    def names(self) -> Sequence[str]:
        return self.predictor.names

    @property
    def stride(self) -> int:
        return self.predictor.stride

    def __call__(self, images: Any, size: int | None = None, **options: Any) -> Results:
        """Detect on one image or a list: paths, addresses, PIL images, arrays or tensors of RGB values.

        Images of one letterboxed shape make one batch. size: the longer side; options: `conf`, `iou`, `classes`,
        `agnostic` and `augment` for this call alone.
        """
        start = time.perf_counter()
        given = input_images(images)
        if not given:
            raise UserError("no image was given")
        self._choose(options)
        side = input_size(self.predictor, self.size if size is None else size)
        square = self.predictor.fixed_size
        frames = [Frame(p.name, network_input(p.bgr, side, self.stride, square, p.name), p.bgr, "image") for p in given]
        prepared = (time.perf_counter() - start) * 1e3 / len(frames)
        found = self._detect(frames)
        inference, suppression = (sum(ms) / len(found) for ms in zip(*(row[1:] for row in found)))
        return Results(given, [row[0] for row in found], self.names, (prepared, inference, suppression))

    def _choose(self, options: dict[str, Any]) -> None:
        own = {name: getattr(self, name) for name in ("conf", "iou", "classes", "agnostic", "augment")}
        unknown = sorted(set(options) - set(own))
        if unknown:
            raise UserError(f"unknown option {unknown[0]}: a call takes images, size, {', '.join(own)}")
        chosen = own | options
        check_thresholds(chosen["conf"], chosen["iou"])
        wanted = replace(
            self.predictor.options,
            conf_thres=chosen["conf"],
            iou_thres=chosen["iou"],
            classes=chosen["classes"],
            agnostic=chosen["agnostic"],
            augment=chosen["augment"],
        )
        if wanted != self.predictor.options:
            self.predictor.options = wanted

    def _detect(self, frames: Sequence[Frame]) -> list[tuple[torch.Tensor, float, float]]:
        """Boxes and milliseconds of each frame, by batches of one shape."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, frame in enumerate(frames):
            groups.setdefault(frame.image.shape, []).append(index)
        found: dict[int, tuple[torch.Tensor, float, float]] = {}
        for members in groups.values():
            found |= zip(members, detect_batch([frames[i] for i in members], self.predictor))
        return [found[index] for index in range(len(frames))]


def load(
    weights: str | Path | Sequence[str | Path],
    device: str = "",
    *,
    size: int | None = None,
    conf: float = 0.25,
    iou: float = 0.45,
    classes: Sequence[int] | None = None,
    agnostic: bool = False,
    augment: bool = False,
    trust_torchscript: bool = False,
) -> Detector:
    """The detector of a checkpoint (.pt, .pth; several make an ensemble) or an exported file (.onnx, .xml,
    .torchscript.pt).

    device: 0 or cpu; empty: the first GPU, else the CPU. size: longer side of images; by default 640, of an exported
    file its own. conf, iou: thresholds. classes: keep these class ids only. agnostic: classes suppress one another.
    augment: test-time augmentation. trust_torchscript: run a TorchScript file that was not exported on this machine.
    """
    check_thresholds(conf, iou)
    options = PredictOptions(conf, iou, classes, agnostic, augment=augment, trust_torchscript=trust_torchscript)
    predictor = load_predictor(weights, select_device(device), options)
    exported = all(map(is_exported, listed(weights)))
    return Detector(predictor, size if size is not None else 0 if exported else DEFAULT_SIZE)
