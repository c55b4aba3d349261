"""Exported files as predictors. Their metadata defines how the input is prepared and the outputs are decoded."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from yolov7fast.core.boxes import decode_wh, decode_xy
from yolov7fast.core.errors import UserError
from yolov7fast.data.detr_dataset import content
from yolov7fast.nn.detr_model import ARCHITECTURES, cells
from yolov7fast.nn.heads import make_grid
from yolov7fast.predictors.detr_predictor import decode_queries
from yolov7fast.predictors.export_metadata import ExportForm, ExportMetadata
from yolov7fast.predictors.nms import non_max_suppression
from yolov7fast.predictors.predictor import (
    DEFAULT,
    Prediction,
    PredictOptions,
    Predictor,
    Shapes,
    Targets,
    WeightsFile,
    wanted_rows,
)
from yolov7fast.predictors.runtime_sessions import RuntimeSession, file_errors, open_session

log = logging.getLogger(__name__)

Outputs = Mapping[str, np.ndarray]


class ExportedPredictor(Predictor):
    """A file written by export.py.

    If the file includes NMS, its thresholds follow `options`; only the best class of a box counts, and the number of
    boxes is that of the file.
    """

    def __init__(self, path: str | Path, device: torch.device, options: PredictOptions = DEFAULT):
        self.path, self.device_type = Path(path), device.type
        self.session: RuntimeSession = open_session(path, self.device_type, trust_torchscript=options.trust_torchscript)
        self.metadata = metadata = self.session.metadata
        if metadata.fixed_size and metadata.size[0] != metadata.size[1]:
            raise UserError(
                f"{path} was exported for {metadata.size[0]}x{metadata.size[1]} images only; for detect.py and test.py "
                "export with --dynamic or --nms, or at one size for height and width"
            )
        inside = {"conf_thres": metadata.conf_thres, "iou_thres": metadata.iou_thres} if metadata.form.has_nms else {}
        self._thresholds = {name: value for name, value in inside.items() if value is not None}
        self.options = options
        self._applied: PredictOptions | None = None
        self._apply_options()
        self.names = metadata.names
        self.stride = metadata.stride
        self.img_size = max(metadata.size)
        self.fixed_size = metadata.fixed_size is not None
        self.is_yolo = metadata.kind == "yolo"
        self.border = 0.5 if self.is_yolo else 0.0
        self.uses_nms = self.is_yolo
        self.precision = "float16" if metadata.half else "float32"

    def _apply_options(self) -> None:
        """Check options that were replaced since the last call, and set the thresholds inside the file."""
        if self.options is self._applied:
            return
        check_options(self.path, self.metadata, self.options)
        self._applied = self.options
        wanted = {name: float(getattr(self.options, name)) for name in self._thresholds}
        if wanted != self._thresholds:
            self.session = open_session(
                self.path, self.device_type, wanted, trust_torchscript=self.options.trust_torchscript
            )
            self._thresholds = wanted

    @torch.no_grad()
    def __call__(self, images: torch.Tensor, shapes: Shapes = (), targets: Targets = None) -> Prediction:
        self._apply_options()
        height, width = images.shape[2:]
        if self.metadata.fixed_size not in (None, (height, width)):
            raise UserError(f"{self.path} takes images of {self.metadata.size} only, not {[height, width]}")
        inputs = self._inputs(images, shapes)
        start = time.perf_counter()
        with file_errors(self.path, self.session.runtime, "run"):
            outputs = run_in_batches(self.session, inputs, self.metadata.fixed_batch)
        end = time.perf_counter()
        with file_errors(self.path, "its own metadata", "read"):
            detections = self._detections(outputs, inputs, (height, width))
        return Prediction(detections, (end - start) * 1e3, (time.perf_counter() - end) * 1e3)

    def _inputs(self, images: torch.Tensor, shapes: Sequence[Any]) -> dict[str, np.ndarray]:
        """The input arrays for host images (B, 3, H, W) RGB; DETR networks also take the position of the images."""
        inputs = {}
        if not self.is_yolo:
            rows = content(shapes).numpy() if len(shapes) else np.array([[0, 0, images.shape[3], images.shape[2]]])
            inputs["content"] = np.array(np.broadcast_to(rows, (len(images), 4)), np.float32)
            images = F.pad(images, (0, 0, 0, self._missing_rows(*images.shape[2:])))
        planes = images.numpy()
        if self.metadata.dtype == "uint8":
            return {"images": np.ascontiguousarray(planes[:, ::-1].transpose(0, 2, 3, 1)), **inputs}
        return {"images": np.divide(planes, np.float32(255), dtype=np.float32), **inputs}

    def _missing_rows(self, height: int, width: int) -> int:
        """Rows to add below an image with fewer cells than the network has queries."""
        full = height
        while self.metadata.least_cells and cells(full, width, self.metadata.strides) < self.metadata.least_cells:
            full += self.stride
        return full - height

    def _detections(self, outputs: Outputs, inputs: Outputs, size: tuple[int, int]) -> list[torch.Tensor]:
        """Per image (k, 6): xyxy, score, class, filtered by the options."""
        options, batch = self.options, len(inputs["images"])
        if self.metadata.form.has_nms:
            found = included_detections(outputs, self.metadata, batch)
        elif self.is_yolo:
            return non_max_suppression(
                dense_predictions(outputs, self.metadata),
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
        """Run once: runtimes optimise for a shape on its first use."""
        self(torch.zeros(1, 3, img_size, img_size, dtype=torch.uint8))


def check_options(path: Path, metadata: ExportMetadata, options: PredictOptions) -> None:
    """Raise UserError for options that the file does not support."""
    for wanted, flag in ((options.augment, "--augment"), (options.hybrid, "--save-hybrid")):
        if wanted:
            raise UserError(f"{flag} is for .pt files, not for the exported file {path}: leave it out")
    if (options.agnostic or options.single_cls) and metadata.form.has_nms and metadata.class_offset:
        raise UserError(
            f"{path} includes NMS within classes: for --agnostic-nms and --single-cls export it with --max-wh 0, or "
            "with --grid"
        )
    if options.multi_label and metadata.form.has_nms and metadata.kind == "yolo":
        log.info(
            "%s includes NMS: only the best class of a box counts, and %d boxes of an image; the .pt file is evaluated "
            "with every class of a box",
            path,
            metadata.topk,
        )


def run_in_batches(session: RuntimeSession, inputs: Outputs, size: int | None) -> dict[str, np.ndarray]:
    """Run a batch of any size on a file with the fixed batch size `size`; the last part is padded with zeros."""
    count = len(inputs["images"])
    if size in (None, count):
        return session.run(inputs)
    parts = []
    for first in range(0, count, size):
        part = {name: value[first : first + size] for name, value in inputs.items()}
        used = len(part["images"])
        full = {name: np.concatenate((v, np.zeros((size - used, *v.shape[1:]), v.dtype))) for name, v in part.items()}
        outputs = session.run(full)
        for name, value in outputs.items():
            if name == "output" and value.ndim == 2 and value.shape[1] == 7:  # one row per detection
                outputs[name] = value[value[:, 0] < used] + np.array([first, 0, 0, 0, 0, 0, 0], np.float32)
            else:
                outputs[name] = value[:used]
        parts.append(outputs)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


# --- decoding of outputs ----------------------------------------------------------------------------------------------


def dense_predictions(outputs: Outputs, metadata: ExportMetadata) -> torch.Tensor:
    """Outputs of the raw or grid form -> (B, N, 5 + classes), as a YOLO head returns."""
    if metadata.form is ExportForm.GRID:
        return torch.from_numpy(outputs["output"])
    raw = [torch.from_numpy(outputs[name]) for name in metadata.outputs]
    levels = len(metadata.strides)
    heads = [decode_levels(raw[first : first + levels], metadata) for first in range(0, len(raw), levels)]
    if not metadata.head_classes:
        return heads[0]
    nc = len(metadata.names)
    return torch.cat([_global_columns(p, ids, nc) for p, ids in zip(heads, metadata.head_classes)], 1)


def decode_levels(levels: Sequence[torch.Tensor], metadata: ExportMetadata) -> torch.Tensor:
    """Raw outputs (B, A, rows, columns, 5 + C) of all levels -> (B, N, 5 + C)."""
    parts = []
    for raw, stride, anchors in zip(levels, metadata.strides, metadata.anchors):
        s = raw.sigmoid()
        xy = decode_xy(s[..., 0:2], make_grid(raw.shape[3], raw.shape[2], raw.device)) * stride
        wh = decode_wh(s[..., 2:4], torch.tensor(anchors).view(1, -1, 1, 1, 2))
        parts.append(torch.cat((xy, wh, s[..., 4:]), -1).flatten(1, 3))
    return torch.cat(parts, 1)


def _global_columns(predictions: torch.Tensor, classes: Sequence[int], nc: int) -> torch.Tensor:
    """Predictions of one of several heads with its classes in their global columns, zeros elsewhere.

    Full heads also have columns of the other heads' classes, which are dropped. The confidence of a head with one class
    is its objectness.
    """
    if predictions.shape[-1] != 5 + len(classes):
        predictions = predictions[..., [*range(5), *(5 + c for c in classes)]]
    full = predictions.new_zeros(*predictions.shape[:2], 5 + nc)
    full[..., :5] = predictions[..., :5]
    full[..., [5 + c for c in classes]] = 1.0 if len(classes) == 1 and nc > 1 else predictions[..., 5:]
    return full


def included_detections(outputs: Outputs, metadata: ExportMetadata, batch: int) -> list[torch.Tensor]:
    """Outputs of a form with NMS -> per image (k, 6): xyxy in pixels, score, class; best first."""
    if metadata.form is ExportForm.END2END:
        rows = torch.from_numpy(outputs["output"])
        found = [rows[rows[:, 0] == image][:, [1, 2, 3, 4, 6, 5]] for image in range(batch)]
        return [d[d[:, 4].sort(descending=True, stable=True)[1]] for d in found]
    counts = outputs["num_dets"][:, 0].tolist()
    columns = (outputs["det_boxes"], outputs["det_scores"][..., None], outputs["det_classes"][..., None])
    rows = torch.from_numpy(np.concatenate([c.astype(np.float32) for c in columns], -1))
    return [rows[image, :count] for image, count in enumerate(counts[:batch])]


def query_detections(
    outputs: Outputs, metadata: ExportMetadata, content: torch.Tensor, size: tuple[int, int]
) -> list[torch.Tensor]:
    """Logits and boxes of a DETR network -> per image (k, 6): xyxy in pixels of the input, score, class; best first.

    content: (B, 4) x, y, width, height of each image inside the input of `size` (h, w).
    """
    kind = ARCHITECTURES[metadata.kind]
    frame = torch.tensor([[0.0, 0.0, size[1], size[0]]]) if kind.padded_frame else content
    logits, boxes = torch.from_numpy(outputs["logits"]), torch.from_numpy(outputs["boxes"])
    boxes, score, label = decode_queries(logits, boxes, frame, kind)
    return list(torch.cat((boxes, score[..., None], label[..., None].float()), -1))


def load_predictor(files: Sequence[WeightsFile], device: torch.device, options: PredictOptions) -> ExportedPredictor:
    """The predictor of an exported file."""
    if len(files) > 1:
        raise UserError(f"--weights: an ensemble is made of .pt files; give one of the {len(files)} exported files")
    return ExportedPredictor(files[0].path, device, options)
