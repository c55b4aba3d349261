"""Python interface: `model = yolov7fast.load("best.pt"); results = model([image, ...])`."""

import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted
from yolov7fast.data.image_io import read_image
from yolov7fast.inference.detection_loop import Detected, detect_batch
from yolov7fast.inference.detection_results import InputImage, Results
from yolov7fast.inference.sources import Frame, network_input
from yolov7fast.predictors.export_metadata import is_exported
from yolov7fast.predictors.nms import check_thresholds
from yolov7fast.predictors.predictor import (
    DEFAULT_SIZE,
    PredictOptions,
    Predictor,
    input_size,
    listed,
    load_predictor,
)

OPTIONS = {  # of a call -> field of PredictOptions
    "conf": "conf_thres",
    "iou": "iou_thres",
    "classes": "classes",
    "agnostic": "agnostic",
    "augment": "augment",
}


class ImageDetector:
    """A detector that is called with images. Its boxes are those of detect.py.

    `conf`, `iou`, `classes`, `agnostic`, `augment` and `size` may be changed between calls.
    """

    def __init__(self, predictor: Predictor, size: int = DEFAULT_SIZE):
        self.predictor, self.size = predictor, size
        self.conf, self.iou = predictor.options.conf_thres, predictor.options.iou_thres
        self.classes, self.agnostic = predictor.options.classes, predictor.options.agnostic
        self.augment = predictor.options.augment

    def __repr__(self) -> str:
        size = self.size or self.predictor.img_size
        kind = type(self.predictor).__name__.removesuffix("Predictor")
        return f"ImageDetector({kind}, {counted(len(self.names), 'class', 'classes')}, size={size}, conf={self.conf:g})"

    @property
    def names(self) -> Sequence[str]:
        return self.predictor.names

    @property
    def stride(self) -> int:
        return self.predictor.stride

    def __call__(self, images: Any, size: int | None = None, **options: Any) -> Results:
        """Detect on one image or a list; images of one letterboxed shape make one batch.

        Args:
            images: paths, addresses, PIL images, arrays or tensors of RGB values.
            size: the longer image side.
            options: `conf`, `iou`, `classes`, `agnostic` and `augment` for this call only.
        """
        start = time.perf_counter()
        given = [_input_image(item, index) for index, item in enumerate(_flattened(images))]
        if not given:
            raise UserError("no image was given")
        self._set_options(options)
        side = input_size(self.predictor, self.size if size is None else size)
        square = self.predictor.fixed_size
        frames = [Frame(p.name, network_input(p.bgr, side, self.stride, square, p.name), p.bgr, "image") for p in given]
        prepared_ms = (time.perf_counter() - start) * 1e3 / len(frames)
        found = self._detect(frames)
        inference_ms, nms_ms = (sum(ms) / len(found) for ms in zip(*(item[2:] for item in found)))
        return Results(given, [item.boxes for item in found], self.names, (prepared_ms, inference_ms, nms_ms))

    def _set_options(self, options: dict[str, Any]) -> None:
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise UserError(f"unknown option {unknown[0]}: a call takes images, size, {', '.join(OPTIONS)}")
        chosen = {name: options.get(name, getattr(self, name)) for name in OPTIONS}
        check_thresholds(chosen["conf"], chosen["iou"])
        wanted = replace(self.predictor.options, **{OPTIONS[name]: value for name, value in chosen.items()})
        if wanted != self.predictor.options:
            self.predictor.options = wanted

    def _detect(self, frames: Sequence[Frame]) -> list[Detected]:
        """The detections of each frame, computed in batches of one shape."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, frame in enumerate(frames):
            groups.setdefault(frame.image.shape, []).append(index)
        found: dict[int, Detected] = {}
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
) -> ImageDetector:
    """The detector of a checkpoint or an exported file.

    Args:
        weights: .pt or .pth file (several make an ensemble), or one .onnx, .xml or .torchscript.pt file.
        device: 0 or cpu; empty for the first GPU, else the CPU.
        size: longer image side; by default 640, or the size of an exported file.
        conf: confidence threshold.
        iou: IoU threshold of NMS.
        classes: keep only these class ids.
        agnostic: class-agnostic NMS.
        augment: test-time augmentation.
        trust_torchscript: run a TorchScript file that was not exported on this machine.
    """
    check_thresholds(conf, iou)
    options = PredictOptions(conf, iou, classes, agnostic, augment=augment, trust_torchscript=trust_torchscript)
    predictor = load_predictor(weights, select_device(device), options)
    exported = all(map(is_exported, listed(weights)))
    return ImageDetector(predictor, size if size is not None else 0 if exported else DEFAULT_SIZE)


# --- images -----------------------------------------------------------------------------------------------------------


def _flattened(given: Any) -> Iterator[Any]:
    if isinstance(given, torch.Tensor | np.ndarray) and given.ndim == 4:
        yield from given
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        for item in given:
            yield from _flattened(item)
    else:
        yield given


def _input_image(item: Any, index: int) -> InputImage:
    if isinstance(item, str) and item.lower().startswith(("http://", "https://")):
        return InputImage(Path(item.split("?")[0]).name or f"image{index}.jpg", _download(item))
    if isinstance(item, str | Path):
        return InputImage(Path(item).name, read_image(str(item)))
    name = Path(getattr(item, "filename", "") or f"image{index}.jpg").name
    if isinstance(item, torch.Tensor):
        return InputImage(name, _from_tensor(item))
    if isinstance(item, np.ndarray):
        return InputImage(name, _from_array(item))
    if hasattr(item, "convert") and hasattr(item, "size"):  # a PIL image
        from PIL import ImageOps

        return InputImage(name, _from_array(np.asarray(ImageOps.exif_transpose(item).convert("RGB"))))
    raise UserError(
        f"image {index} is a {type(item).__name__}; give a path, an address, a PIL image, an array (H, W, 3) or a "
        "tensor (3, H, W) of RGB values"
    )


def _from_array(array: np.ndarray) -> np.ndarray:
    """RGB (H, W, 3), (3, H, W), grey (H, W) or RGBA (H, W, 4) -> BGR (H, W, 3)."""
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise UserError(f"an image array has the shape {array.shape}; it must be (H, W, 3) RGB")
    if array.dtype != np.uint8:
        raise UserError(f"an image array is {array.dtype}; it must be uint8 of 0..255")
    array = np.repeat(array, 3, 2) if array.shape[2] == 1 else array[..., :3]
    return np.ascontiguousarray(array[..., ::-1])


def _from_tensor(tensor: torch.Tensor) -> np.ndarray:
    """RGB (3, H, W), uint8 or floats in 0..1 -> BGR (H, W, 3)."""
    if tensor.ndim != 3 or tensor.shape[0] != 3:
        raise UserError(
            f"an image tensor has the shape {tuple(tensor.shape)}; it must be (3, H, W), or a batch of them"
        )
    if tensor.is_floating_point():
        tensor = (tensor.detach().float() * 255).round().clamp(0, 255).to(torch.uint8)
    return _from_array(tensor.detach().cpu().permute(1, 2, 0).numpy())


def _download(address: str) -> np.ndarray:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            content = answer.read()
    except (OSError, ValueError) as error:
        raise UserError(f"{address} cannot be fetched: {error}") from None
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if content else None
    if image is None:
        raise UserError(f"{address} is not an image that can be decoded")
    return image
