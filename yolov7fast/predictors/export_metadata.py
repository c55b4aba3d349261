"""The output forms of exported files and the metadata stored in them.

Letters: B images, N boxes of a dense prediction, K rows for detections (`topk`). Boxes are in pixels of the input.
Every format stores the same keys as text; all values except strings are JSON.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from yolov7fast import __version__
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.settings_files import is_number, is_whole

EXPORTED_SUFFIXES = (".onnx", ".xml", ".torchscript.pt", ".torchscript")


def is_exported(path: str | Path) -> bool:
    """Whether a file name is that of an exported file, not of a checkpoint."""
    return str(path).lower().endswith(EXPORTED_SUFFIXES)


# --- output forms -----------------------------------------------------------------------------------------------------


class ExportForm(StrEnum):
    """What an exported file returns, with fixed output names for each form."""

    RAW = "raw"  # raw output of each level (DETR: logits and boxes of the queries)
    GRID = "grid"  # decoded predictions before NMS
    END2END = "end2end"  # NMS included, one row per detection of the batch
    TENSORRT = "tensorrt"  # NMS included as a TensorRT plugin, which other runtimes do not have
    NMS = "nms"  # NMS included, a fixed number of rows per image

    @property
    def has_nms(self) -> bool:
        return self in (ExportForm.END2END, ExportForm.TENSORRT, ExportForm.NMS)


DETECTIONS = {
    "num_dets": "(B, 1) int32: detections of each image",
    "det_boxes": "(B, K, 4) float32: x1, y1, x2, y2 in pixels of the input, best first; zeros behind the last",
    "det_scores": "(B, K) float32: confidence; zeros behind the last",
    "det_classes": "(B, K) int32: class; -1 behind the last",
}
GRID_OUTPUT = {
    "output": "(B, N, 5 + classes) float32: centre x, centre y, width, height in pixels of the input, objectness, "
    "class probabilities"
}
END2END_OUTPUT = {"output": "(detections, 7) float32: image index, x1, y1, x2, y2, class, score"}
QUERIES = {
    "logits": "(B, queries, classes) float32: raw class scores",
    "boxes": "(B, queries, 4) float32: centre x, centre y, width, height as fractions of the frame",
}
RAW_LEVEL = "(B, anchors, rows, columns, 5 + classes) float32: raw output of a level, before the sigmoid"


def raw_names(count: int) -> list[str]:
    """Names of the raw outputs of a YOLO network; the first is `output`, as in other forms."""
    return ["output", *(f"output_{i}" for i in range(1, count))]


def output_meanings(form: ExportForm, raw_outputs: int = 0) -> dict[str, str]:
    """Output name -> shape and meaning. raw_outputs: number of raw outputs of a YOLO network, 0 for DETR."""
    if form is ExportForm.RAW:
        return dict.fromkeys(raw_names(raw_outputs), RAW_LEVEL) if raw_outputs else dict(QUERIES)
    return dict({ExportForm.GRID: GRID_OUTPUT, ExportForm.END2END: END2END_OUTPUT}.get(form, DETECTIONS))


# --- metadata ---------------------------------------------------------------------------------------------------------

MARK = "yolov7fast"  # key that marks files of this project; its value is the version of the keys
KEYS_VERSION = 1
PADDING = 114  # grey value of the letterbox
AXES = ("batch", "height", "width")
MOST = 65536  # classes, levels, detections of an image
LARGEST_STRIDE = 1 << 10
MOST_PIXELS = 1 << 28  # per batch: 3 GB in float32
LONGEST = 1 << 24  # characters of the metadata of a TorchScript file


@dataclass(frozen=True)
class ExportMetadata:
    """The metadata of an exported file: how to prepare its input and read its output."""

    names: list[str]  # of the classes
    kind: str  # yolo, detr or rtdetr_v2
    form: ExportForm
    stride: int  # image sides are multiples of it
    size: list[int]  # height and width at export; the only ones unless `free` names them
    batch: int  # the only batch size unless `free` names it
    free: list[str]  # dynamic axes: batch, height, width
    outputs: dict[str, str]  # name -> shape and meaning
    dtype: str = "float32"  # of the input: float32 or uint8
    layout: str = "NCHW"
    colour: str = "RGB"
    scale: float = 1 / 255  # factor from pixels in 0..255 to the input
    padding: int = PADDING  # grey value around images that do not fill the input
    half: bool = False  # weights in half precision
    conf_thres: float | None = None  # of the included NMS, if any
    iou_thres: float | None = None
    topk: int | None = None
    class_offset: float | None = None  # pixels between classes in the included NMS; 0: class-agnostic
    strides: list[int] = field(default_factory=list)  # of the levels, for the raw form and RT-DETR
    anchors: list[list[list[float]]] = field(default_factory=list)  # raw form: level, anchor, (w, h) in pixels
    head_classes: list[list[int]] = field(default_factory=list)  # raw form, several heads: global classes of each
    least_cells: int = 0  # cells that the feature maps must have (RT-DETR selects its queries among them)
    weights: str = ""  # name of the exported checkpoint
    version: str = __version__

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """The only supported height and width, or None if they are dynamic."""
        return None if "height" in self.free else (self.size[0], self.size[1])

    @property
    def fixed_batch(self) -> int | None:
        return None if "batch" in self.free else self.batch

    def check(self) -> None:
        """Raise ValueError for an invalid value: files may come from untrusted sources."""
        from yolov7fast.nn.detr_model import ARCHITECTURES  # imports torch, which `is_exported` must not need

        wanted = {
            "names": _all(self.names, str) and len(self.names) > 0,
            "kind": self.kind in ("yolo", *ARCHITECTURES),
            "stride": is_whole(self.stride, 1, LARGEST_STRIDE),
            "size": _all_whole(self.size, 1, MOST) and len(self.size) == 2 and math.prod(self.size) <= MOST_PIXELS,
            "batch": is_whole(self.batch, 1, MOST),
            "free": _all(self.free, str) and set(self.free) <= set(AXES),
            "outputs": isinstance(self.outputs, dict) and 0 < len(self.outputs) <= MOST,
            "dtype": self.dtype in ("float32", "uint8"),
            "half": isinstance(self.half, bool),
            "conf_thres": self.conf_thres is None or is_number(self.conf_thres, 0, 1),
            "iou_thres": self.iou_thres is None or is_number(self.iou_thres, 0, 1),
            "topk": self.topk is None or is_whole(self.topk, 1, MOST),
            "class_offset": self.class_offset is None or is_number(self.class_offset, 0, math.inf),
            "strides": _all_whole(self.strides, 1, LARGEST_STRIDE),
            "anchors": _all(self.anchors, list) and all(_all(level, list) for level in self.anchors),
            "head_classes": _all(self.head_classes, list)
            and all(_all_whole(ids, 0, len(self.names) - 1) for ids in self.head_classes),
            "least_cells": is_whole(self.least_cells, 0, MOST),
        }
        wrong = [name for name, is_right in wanted.items() if not is_right]
        if wrong:
            raise ValueError(f"{wrong[0]} is {shown(getattr(self, wrong[0]))}")
        if self.batch * math.prod(self.size) > MOST_PIXELS:
            raise ValueError(f"a batch of {self.batch} images of {self.size} needs too much memory")

    def to_text(self) -> dict[str, str]:
        """The keys as they are stored in a file."""
        text = {key: v if isinstance(v, str) else json.dumps(v) for key, v in asdict(self).items()}
        return {MARK: str(KEYS_VERSION), **text}

    @classmethod
    def of_json(cls, text: str | bytes, origin: str | Path) -> "ExportMetadata":
        """The metadata in the untrusted JSON of a TorchScript file. origin: file name for messages."""
        try:
            if len(text) > LONGEST:
                raise ValueError(f"it has more than {LONGEST:,} characters")
            return cls.of(json.loads(text or "{}"), origin)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{origin} is damaged: its metadata cannot be read ({error!r:.120})") from None

    @classmethod
    def of(cls, text: Any, origin: str | Path) -> "ExportMetadata":
        """The metadata in the text keys of a file. origin: file name for messages."""
        if not isinstance(text, Mapping) or not all(isinstance(value, str) for value in text.values()):
            raise UserError(f"{origin} is damaged: its metadata is not a mapping of keys to text, but {shown(text)}")
        if text.get(MARK) is None:
            raise UserError(f"{origin} has no metadata of export.py: export the .pt file again with this project")
        if text[MARK] != str(KEYS_VERSION):
            raise UserError(
                f"{origin} is of another version of export.py ({shown(text[MARK])}): export the .pt file again"
            )
        try:
            found = cls(**{name: _read(text[name], kind) for name, kind in cls.__annotations__.items()})
            found.check()
            return found
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{origin} is damaged: its metadata cannot be read ({error!r:.120})") from None


def _read(text: str, kind: Any) -> Any:
    if kind is str:
        return text
    return ExportForm(text) if kind is ExportForm else json.loads(text)


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list) and len(values) <= MOST and all(isinstance(value, kind) for value in values)


def _all_whole(values: Any, low: int, high: int) -> bool:
    return _all(values, int) and all(is_whole(value, low, high) for value in values)
