"""A trained network as the module that is exported: input as the file takes it, outputs of one form.

Everything here is traced, so that sizes stay free: no value of a shape decides anything in Python, and the grid of
cells is made anew from the shape of each raw output.
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
from yolov7fast.predictors import base
from yolov7fast.predictors.detr import GRID, best_of, load_network
from yolov7fast.predictors.exported.forms import Form, is_exported


@dataclass(frozen=True)
class Source:
    """A trained network that can be exported: fused, float32, in eval mode, on the CPU."""

    model: Any
    kind: str  # yolo, detr or rtdetr_v2
    names: list[str]
    stride: int
    weights: Path
    img_size: int = 640  # the size it was trained for, as far as the file says

    @property
    def is_yolo(self) -> bool:
        return self.kind == "yolo"


def load_source(weights: str | Path) -> Source:
    """The network of a checkpoint of any family. Branches and implicit vectors are merged, always."""
    path = Path(local_weights(weights))
    if is_exported(path):
        raise UserError(f"--weights {path} is an exported file already: give the .pt file that it was made of")
    checkpoint: Any = load_checkpoint(path)
    family = family_of(checkpoint)
    if family == "detr":
        detector = load_network(base.Source(str(path), checkpoint)).requires_grad_(False)
        return Source(detector, detector.architecture, list(detector.names), GRID, path, int(checkpoint["img_size"]))
    if family != "yolo":
        raise UserError(f"{path} is of the family '{family}', which cannot be exported")
    model: Any = inference_network(checkpoint, str(path))
    return Source(model, "yolo", list(model.names), int(model.stride.max()), path)


def build(source: Source, form: Form, uint8: bool = False, half: bool = False) -> nn.Module:
    """The module to trace. Its outputs are named by `onnx_file.traced_outputs`."""
    if source.is_yolo:
        return YoloModule(source.model, form, uint8, half).eval()
    return DetrModule(source.model, form, uint8, half).eval()


class InputStage(nn.Module):
    """Images as the file takes them -> float32 (B, 3, H, W) RGB in 0..1.

    uint8: (B, H, W, 3) BGR of 0..255, as cameras and OpenCV give them.
    """

    def __init__(self, uint8: bool):
        super().__init__()
        self.uint8 = uint8
        self.to_rgb: torch.Tensor
        self.register_buffer("to_rgb", torch.tensor([2, 1, 0]), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.uint8:
            return images
        return images.index_select(3, self.to_rgb).permute(0, 3, 1, 2).float() / 255.0


class YoloModule(nn.Module):
    """RAW: the raw outputs; GRID: (predictions,); TENSORRT: boxes xywh (B, N, 4) and scores (B, N, classes);
    END2END and NMS: boxes xyxy (B, N, 4), best score (B, N) and its class (B, N) as float32.
    """

    def __init__(self, model: Any, form: Form, uint8: bool, half: bool):
        super().__init__()
        self.form, self.half_precision = form, half
        self.input = InputStage(uint8)
        self.body: Any = deepcopy(model).half() if half else copy(model)
        self.body.traced = True  # the layers up to the head, which is applied here
        self.convolutions: Any = self.body.model[-1]
        self.head: Any = copy(model.model[-1])  # decodes in float32, also where the layers are in half precision
        self.head.cells = fresh_cells

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        images = self.input(images)
        features = self.body(images.half() if self.half_precision else images)
        raw = self.convolutions.raw_outputs(features)
        if isinstance(self.head, MultiHeadDetect):
            raw = [[m.float() for m in levels] for levels in raw]
        else:
            raw = [m.float() for m in raw]
        if self.form is Form.RAW:
            return tuple(flat(raw))
        predictions = self.predictions(raw)
        if self.form is Form.GRID:
            return (predictions,)
        boxes, scores = Detect.boxes_and_scores(predictions)
        if self.head.nc == 1:
            scores = predictions[..., 4:5]  # a one-class network says everything with its objectness
        if self.form is Form.TENSORRT:
            return predictions[..., :4], scores
        score, label = scores.max(-1)
        return boxes, score, label.float()

    def predictions(self, raw: list) -> torch.Tensor:
        """Raw outputs -> (B, N, 5 + classes)."""
        if isinstance(self.head, MultiHeadDetect):
            return all_heads(self.head, raw)
        return self.head.predictions(raw)


def fresh_cells(raw: torch.Tensor, level: int) -> torch.Tensor:
    """`Detect.cells` without its memory, which would freeze the size."""
    return make_grid(raw.shape[3], raw.shape[2], raw.device)


def flat(raw) -> list[torch.Tensor]:
    """Raw outputs in one list: by head, then by level."""
    return [raw] if isinstance(raw, torch.Tensor) else [m for part in raw for m in flat(part)]


def all_heads(head: MultiHeadDetect, raw: list[list[torch.Tensor]]) -> torch.Tensor:
    """`MultiHeadDetect.predictions` by choosing columns: writing into a larger tensor is no operation of runtimes."""
    parts, places = [], cast(torch.Tensor, head.places)
    for k, (levels, (first, last)) in enumerate(zip(raw, head.place_bounds)):
        own = Detect.predictions(head, [head.own_columns(m, k) for m in levels])
        width = last - first
        if width == 6 and head.nc > 1:
            own = torch.cat((own[..., :5], torch.ones_like(own[..., :1])), -1)
        columns = torch.full((5 + head.nc,), width)  # a column of zeros behind the head's own
        columns[places[first:last]] = torch.arange(width)
        parts.append(torch.cat((own, torch.zeros_like(own[..., :1])), -1).index_select(-1, columns))
    return torch.cat(parts, 1)


class DetrModule(nn.Module):
    """RAW: logits (B, queries, classes) and boxes (B, queries, 4), fractions of the frame; NMS: boxes xyxy (B, k, 4)
    in pixels, score (B, k) and class (B, k) as float32, best first. Nothing needs to be suppressed.

    content: (B, 4) x, y, width, height in pixels of the part of each input that is image; the rest is padding.
    """

    def __init__(self, model: Any, form: Form, uint8: bool, half: bool):
        super().__init__()
        self.form, self.half_precision = form, half
        self.input = InputStage(uint8)
        self.body: Any = deepcopy(model).half() if half else model

    def forward(self, images: torch.Tensor, content: torch.Tensor) -> tuple[torch.Tensor, ...]:
        images = self.input(images)
        height, width = images.shape[2:]
        mask = padding_mask(content, height, width)
        if self.half_precision:
            images, mask = images.half(), mask.half()
        output = self.body(images, mask)
        logits, boxes = output.logits.float(), output.pred_boxes.float()
        if self.form is Form.RAW:
            return logits, boxes
        score, label, query = best_of(logits, self.body.kind)
        frame = (corner(images)[None] if self.body.kind.padded_frame else content)[:, None]
        centre = frame[..., :2] + boxes[..., :2] * frame[..., 2:]
        half = boxes[..., 2:] * frame[..., 2:] / 2
        boxes = torch.cat((centre - half, centre + half), -1)
        return boxes.gather(1, query[..., None].expand(-1, -1, 4)), score, label.float()


def corner(images: torch.Tensor) -> torch.Tensor:
    """(4,) float32: 0, 0, width, height of a batch, made of its shape in a way that tracing keeps."""
    height = torch.ones_like(images[0, 0, :, 0], dtype=torch.float32).sum()
    width = torch.ones_like(images[0, 0, 0], dtype=torch.float32).sum()
    nothing = torch.zeros_like(width)
    return torch.stack((nothing, nothing, width, height))
