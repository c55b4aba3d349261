"""Trained networks as modules to trace: input as the exported file takes it, outputs of one form.

Everything here is traced with dynamic sizes: no value of a shape decides anything in Python, and the grid of cells is
computed from the shape of each raw output.
"""

from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.checkpoint.ensemble import inference_network
from yolov7fast.checkpoint.families import family_of
from yolov7fast.checkpoint.released_weights import local_weights
from yolov7fast.core.errors import UserError
from yolov7fast.data.detr_dataset import padding_mask
from yolov7fast.nn.heads import Detect, make_grid
from yolov7fast.nn.multihead import MultiHeadDetect
from yolov7fast.predictors.detr_predictor import GRID, decode_queries, load_network
from yolov7fast.predictors.export_metadata import ExportForm, is_exported
from yolov7fast.predictors.predictor import WeightsFile


@dataclass(frozen=True)
class ExportSource:
    """A trained network to export: fused, float32, in eval mode, on the CPU."""

    model: Any
    kind: str  # yolo, detr or rtdetr_v2
    names: list[str]
    stride: int
    weights: Path
    img_size: int = 640  # training image size, if the file contains it

    @property
    def is_yolo(self) -> bool:
        return self.kind == "yolo"

    @property
    def raw_outputs(self) -> int:
        """Number of raw outputs of a YOLO network; 0 for DETR networks."""
        if not self.is_yolo:
            return 0
        head = self.model.model[-1]
        return head.nl * (len(head.heads) if isinstance(head, MultiHeadDetect) else 1)

    @property
    def least_cells(self) -> int:
        """Cells that the feature maps must have: one per query if the network selects its queries among them."""
        selects = not self.is_yolo and self.model.kind.picks_cells
        return self.model.network.config.num_queries if selects else 0

    @property
    def cell_strides(self) -> list[int]:
        """Strides of the feature maps of a DETR network."""
        return [int(stride) for stride in self.model.network.config.feat_strides]


def load_source(weights: str | Path) -> ExportSource:
    """The network of a checkpoint of any family, with branches and implicit vectors merged."""
    path = Path(local_weights(weights))
    if is_exported(path):
        raise UserError(f"--weights {path} is an exported file already: give the .pt file that it was made of")
    checkpoint: Any = load_checkpoint(path)
    family = family_of(checkpoint)
    if family == "detr":
        model = load_network(WeightsFile(str(path), checkpoint)).requires_grad_(False)
        return ExportSource(model, model.architecture, list(model.names), GRID, path, int(checkpoint["img_size"]))
    if family != "yolo":
        raise UserError(f"{path} is of the family '{family}', which cannot be exported")
    model: Any = inference_network(checkpoint, str(path))
    return ExportSource(model, "yolo", list(model.names), int(model.stride.max()), path)


def traced_module(source: ExportSource, form: ExportForm, uint8: bool = False, half: bool = False) -> nn.Module:
    """The module to trace; `onnx_graph.traced_outputs` names its outputs."""
    return (YoloModule if source.is_yolo else DetrModule)(source.model, form, uint8, half).eval()


class TracedModule(nn.Module):
    """What the modules of both families have in common."""

    def __init__(self, form: ExportForm, uint8: bool, half: bool):
        super().__init__()
        self.form, self.uint8, self.half_precision = form, uint8, half
        self.to_rgb: torch.Tensor
        self.register_buffer("to_rgb", torch.tensor([2, 1, 0]), persistent=False)

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 (B, H, W, 3) BGR, as OpenCV reads images -> float32 (B, 3, H, W) RGB in 0..1, which others are."""
        return images.index_select(3, self.to_rgb).permute(0, 3, 1, 2).float() / 255.0 if self.uint8 else images


class YoloModule(TracedModule):
    """A YOLO network. Outputs by form:

    RAW: the raw outputs. GRID: predictions (B, N, 5 + classes). TENSORRT: boxes xywh (B, N, 4) and scores (B, N,
    classes). END2END and NMS: boxes xyxy (B, N, 4), best score (B, N) and its class (B, N) as float32.
    """

    def __init__(self, model: Any, form: ExportForm, uint8: bool, half: bool):
        super().__init__(form, uint8, half)
        self.body: Any = deepcopy(model).half() if half else copy(model)
        self.body.traced = True  # return the features before the head, which is applied here
        self.convolutions: Any = self.body.model[-1]
        self.head: Any = copy(model.model[-1])  # decodes in float32 even if the layers are in half precision
        # `Detect.cells` caches the grid, which would freeze the size
        self.head.cells = lambda raw, level: make_grid(raw.shape[3], raw.shape[2], raw.device)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        images = self.normalised(images)
        features = self.body(images.half() if self.half_precision else images)
        raw = self.convolutions.raw_outputs(features)
        is_multi = isinstance(self.head, MultiHeadDetect)
        levels = [m.float() for part in raw for m in part] if is_multi else [m.float() for m in raw]
        if self.form is ExportForm.RAW:
            return tuple(levels)
        if is_multi:
            nl = self.head.nl
            predictions = _all_heads(self.head, [levels[i : i + nl] for i in range(0, len(levels), nl)])
        else:
            predictions = self.head.predictions(levels)
        if self.form is ExportForm.GRID:
            return (predictions,)
        boxes, scores = Detect.boxes_and_scores(predictions)
        if self.head.nc == 1:
            scores = predictions[..., 4:5]  # the confidence of a one-class network is its objectness
        if self.form is ExportForm.TENSORRT:
            return predictions[..., :4], scores
        score, label = scores.max(-1)
        return boxes, score, label.float()


def _all_heads(head: MultiHeadDetect, raw: list[list[torch.Tensor]]) -> torch.Tensor:
    """`MultiHeadDetect.predictions` by selecting columns, since runtimes cannot assign to slices."""
    parts, places = [], cast(torch.Tensor, head.places)
    for k, (levels, (first, last)) in enumerate(zip(raw, head.place_bounds)):
        own = Detect.predictions(head, [head.own_columns(m, k) for m in levels])
        width = last - first
        if width == 6 and head.nc > 1:
            own = torch.cat((own[..., :5], torch.ones_like(own[..., :1])), -1)
        columns = torch.full((5 + head.nc,), width)  # index of a column of zeros, appended below
        columns[places[first:last]] = torch.arange(width)
        parts.append(torch.cat((own, torch.zeros_like(own[..., :1])), -1).index_select(-1, columns))
    return torch.cat(parts, 1)


class DetrModule(TracedModule):
    """A DETR network. Outputs by form: RAW: logits (B, queries, classes) and boxes (B, queries, 4) as fractions of the
    frame; NMS: boxes xyxy (B, k, 4) in pixels, score (B, k) and class (B, k) as float32, best first.

    The input `content` is (B, 4) x, y, width, height in pixels of each image inside the input; the rest is padding.
    """

    def __init__(self, model: Any, form: ExportForm, uint8: bool, half: bool):
        super().__init__(form, uint8, half)
        self.body: Any = deepcopy(model).half() if half else model

    def forward(self, images: torch.Tensor, content: torch.Tensor) -> tuple[torch.Tensor, ...]:
        images = self.normalised(images)
        mask = padding_mask(content, *images.shape[2:])
        if self.half_precision:
            images, mask = images.half(), mask.half()
        output = self.body(images, mask)
        logits, boxes = output.logits.float(), output.pred_boxes.float()
        if self.form is ExportForm.RAW:
            return logits, boxes
        frame = _whole_frame(images)[None] if self.body.kind.padded_frame else content
        boxes, score, label = decode_queries(logits, boxes, frame, self.body.kind)
        return boxes, score, label.float()


def _whole_frame(images: torch.Tensor) -> torch.Tensor:
    """(4,) float32: 0, 0, width, height of a batch, computed so that tracing keeps the sizes dynamic."""
    height = torch.ones_like(images[0, 0, :, 0], dtype=torch.float32).sum()
    width = torch.ones_like(images[0, 0, 0], dtype=torch.float32).sum()
    zero = torch.zeros_like(width)
    return torch.stack((zero, zero, width, height))
