"""An exported file as a predictor (`predictors.base.Predictor`): what it takes and gives, it says itself."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from yolov7fast.core.errors import UserError
from yolov7fast.data.detr_dataset import content
from yolov7fast.nn.detr_model import cells
from yolov7fast.predictors.base import DEFAULT, Prediction, PredictOptions, Source, Stopwatch, wanted_rows
from yolov7fast.predictors.exported.answers import detections_of, predictions_of, query_detections
from yolov7fast.predictors.exported.metadata import Metadata
from yolov7fast.predictors.exported.sessions import Session, damaged, open_session
from yolov7fast.predictors.nms import non_max_suppression

log = logging.getLogger(__name__)


class ExportedPredictor:
    """A file of export.py behind the interface of every detector.

    Where suppression is inside the file, its thresholds follow `options`; the best class of a box counts there, and no
    more than the file's own number of boxes.
    """

    thread_safe = False  # runtimes have threads of their own

    def __init__(self, path: str | Path, device: torch.device, options: PredictOptions = DEFAULT):
        self.path, self.device_type = Path(path), device.type
        self.session: Session = open_session(path, self.device_type, trust_torchscript=options.trust_torchscript)
        self.metadata = self.session.metadata
        self._thresholds = own_thresholds(self.metadata)
        check_usable(self.path, self.metadata)
        self.options = options
        self._followed: PredictOptions | None = None
        self._follow_options()
        self.names: Sequence[str] = self.metadata.names
        self.stride = self.metadata.stride
        self.img_size: int | None = max(self.metadata.size)
        self.fixed_size = self.metadata.fixed_size is not None
        self.is_yolo = self.metadata.kind == "yolo"
        self.border = 0.5 if self.is_yolo else 0.0
        self.uses_nms = self.is_yolo
        self.precision = "float16" if self.metadata.half else "float32"

    def _follow_options(self) -> None:
        """Options may be replaced at any time: what is asked now is checked, and thresholds inside the file follow."""
        if self.options is self._followed:
            return
        check_asked(self.path, self.metadata, self.options)
        self._followed = self.options
        wanted = {name: float(getattr(self.options, name)) for name in self._thresholds}
        if wanted != self._thresholds:
            self.session = open_session(
                self.path, self.device_type, wanted, trust_torchscript=self.options.trust_torchscript
            )
            self._thresholds = wanted

    @torch.no_grad()
    def __call__(
        self, images: torch.Tensor, shapes: Sequence[Any] = (), targets: torch.Tensor | None = None
    ) -> Prediction:
        self._follow_options()
        height, width = images.shape[2:]
        if self.metadata.fixed_size not in (None, (height, width)):
            raise UserError(f"{self.path} takes images of {self.metadata.size} alone, not {[height, width]}")
        inputs = self._inputs(images, shapes)
        clock = Stopwatch()
        with damaged(self.path, self.session.runtime, "run"):
            outputs = run_in_batches(self.session, inputs, self.metadata.fixed_batch)
        inference_ms = clock.lap()
        with one_thread(), damaged(self.path, "its own metadata", "read"):
            detections = self._detections(outputs, inputs, (height, width))
        return Prediction(detections, inference_ms, clock.lap())

    def _inputs(self, images: torch.Tensor, shapes: Sequence[Any]) -> dict[str, np.ndarray]:
        """Host images (B, 3, H, W) RGB as the file takes them; DETR networks also want to know where images lie."""
        inputs = {}
        if not self.is_yolo:
            rows = content(shapes).numpy() if len(shapes) else np.array([[0, 0, images.shape[3], images.shape[2]]])
            inputs["content"] = np.array(np.broadcast_to(rows, (len(images), 4)), np.float32)
            images = F.pad(images, (0, 0, 0, self._missing_rows(*images.shape[2:])))
        planes = images.numpy()  # and on without PyTorch's threads, see `one_thread`
        if self.metadata.dtype == "uint8":
            return {"images": np.ascontiguousarray(planes[:, ::-1].transpose(0, 2, 3, 1)), **inputs}
        return {"images": np.divide(planes, np.float32(255), dtype=np.float32), **inputs}

    def _missing_rows(self, height: int, width: int) -> int:
        """Rows to be added below an image that has fewer cells than the network picks."""
        full = height
        while self.metadata.least_cells and cells(full, width, self.metadata.strides) < self.metadata.least_cells:
            full += self.stride
        return full - height

    def _detections(self, outputs: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray], size) -> list:
        options, batch = self.options, len(inputs["images"])
        if self.metadata.form.has_suppression:
            found = detections_of(outputs, self.metadata, batch)
        elif self.is_yolo:
            return non_max_suppression(
                predictions_of(outputs, self.metadata),
                options.conf_thres,
                options.iou_thres,
                options.classes,
                agnostic=options.agnostic or options.single_cls,
                multi_label=options.multi_label,
            )
        else:
            found = query_detections(outputs, self.metadata, torch.from_numpy(inputs["content"]), size)
        return [wanted_rows(rows, self.options) for rows in found]

    def warm_up(self, img_size: int) -> None:
        """One pass: runtimes make their plans for a shape when they first see it."""
        self(torch.zeros(1, 3, img_size, img_size, dtype=torch.uint8))


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: its threads, once woken, would spin for a while and take cores from the runtime's own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def own_thresholds(metadata: Metadata) -> dict[str, float]:
    """The thresholds of the suppression inside a file, by the names of its constants."""
    if not metadata.form.has_suppression:
        return {}
    values = {"conf_thres": metadata.conf_thres, "iou_thres": metadata.iou_thres}
    return {name: value for name, value in values.items() if value is not None}


def check_usable(path: Path, metadata: Metadata) -> None:
    if metadata.fixed_size and metadata.size[0] != metadata.size[1]:
        raise UserError(
            f"{path} was exported for {metadata.size[0]}x{metadata.size[1]} images alone; for detect.py and test.py "
            "export with --dynamic or --nms, or at one size for height and width"
        )


def check_asked(path: Path, metadata: Metadata, options: PredictOptions) -> None:
    """Refuse what this file cannot do, each by its flag."""
    for wanted, flag in ((options.augment, "--augment"), (options.hybrid, "--save-hybrid")):
        if wanted:
            raise UserError(f"{flag} is for .pt files, not for the exported file {path}: leave it out")
    agnostic = options.agnostic or options.single_cls
    if agnostic and metadata.form.has_suppression and metadata.class_offset:
        raise UserError(
            f"{path} has its suppression inside, within classes: for --agnostic-nms and --single-cls export it with "
            "--max-wh 0, or with --grid"
        )
    if options.multi_label and metadata.form.has_suppression and metadata.kind == "yolo":
        log.info(
            "%s has its suppression inside: of a box the best class counts, and %d boxes of an image; the .pt file is "
            "measured with every class of a box",
            path,
            metadata.topk,
        )


def run_in_batches(session: Session, inputs: Mapping[str, np.ndarray], size: int | None) -> dict[str, np.ndarray]:
    """Run a batch of any size on a file that may take `size` images alone: the last part is filled up with zeros."""
    count = len(inputs["images"])
    if size in (None, count):
        return session.run(inputs)
    parts = []
    for first in range(0, count, size):
        part = {name: value[first : first + size] for name, value in inputs.items()}
        spare = size - len(part["images"])
        full = {name: np.concatenate((v, np.zeros((spare, *v.shape[1:]), v.dtype))) for name, v in part.items()}
        parts.append(shifted(session.run(full), first, size - spare))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def shifted(outputs: Mapping[str, np.ndarray], first: int, count: int) -> dict[str, np.ndarray]:
    """Outputs of the first `count` images of a part that begins with image `first` of the batch."""
    result = {}
    for name, value in outputs.items():
        if value.ndim == 2 and value.shape[1] == 7 and name == "output":  # one row for each detection
            value = value[value[:, 0] < count]
            value = value + np.array([first, 0, 0, 0, 0, 0, 0], np.float32)
        else:
            value = value[:count]
        result[name] = value
    return result


def load_predictor(sources: Sequence[Source], device: torch.device, options: PredictOptions) -> ExportedPredictor:
    """The predictor of an exported file."""
    if len(sources) > 1:
        raise UserError(f"--weights: an ensemble is made of .pt files; give one of the {len(sources)} exported files")
    return ExportedPredictor(sources[0].path, device, options)
