"""What an exported file says of itself: all that a consumer needs to feed it and to read its answer.

Every format stores the same keys as text; values other than words are JSON. `Metadata.of` reads them back.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from yolov7fast import __version__
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.settings_files import is_number, is_whole
from yolov7fast.nn.detr_model import ARCHITECTURES
from yolov7fast.predictors.exported.forms import Form

MARK = "yolov7fast"  # the key that marks files of this project; its value is the version of this table
TABLE_VERSION = 1
PADDING = 114  # grey of the letterbox
AXES = ("batch", "height", "width")
MOST = 65536  # classes, levels, detections of an image
LARGEST_STRIDE = 1 << 10
MOST_PIXELS = 1 << 28  # of a batch: 3 GB in float32
LONGEST = 1 << 24  # characters of the metadata of a TorchScript file


@dataclass(frozen=True)
class Metadata:
    """The keys of an exported file."""

    names: list[str]  # of the classes
    kind: str  # yolo, detr or rtdetr_v2
    form: Form
    stride: int  # sides of an image are multiples of it
    size: list[int]  # height and width it was exported at: the only ones, unless `free` names them
    batch: int  # the only batch size, unless `free` names it
    free: list[str]  # which of batch, height, width the runtime may choose
    outputs: dict[str, str]  # name -> shape and meaning
    dtype: str = "float32"  # of the input: float32 or uint8
    layout: str = "NCHW"
    colour: str = "RGB"
    scale: float = 1 / 255  # a pixel of 0..255 times this is what the file takes
    padding: int = PADDING  # grey of 0..255 around an image that does not fill the input
    half: bool = False  # weights in half precision
    conf_thres: float | None = None  # of the suppression inside, if any
    iou_thres: float | None = None
    topk: int | None = None
    class_offset: float | None = None  # pixels between classes in the suppression; 0: classes suppress one another
    strides: list[int] = field(
        default_factory=list
    )  # pixels for each cell of each level, where needed: raw form, RT-DETR
    anchors: list[list[list[float]]] = field(default_factory=list)  # raw form: level, anchor, (w, h) in pixels
    head_classes: list[list[int]] = field(default_factory=list)  # raw form, several heads: global classes of each
    least_cells: int = 0  # places that an image must have in the feature maps (RT-DETR picks its queries among them)
    weights: str = ""  # name of the file it was made of
    version: str = __version__

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """The only height and width, or None where they are free."""
        return None if "height" in self.free else (self.size[0], self.size[1])

    @property
    def fixed_batch(self) -> int | None:
        return None if "batch" in self.free else self.batch

    def check(self) -> None:
        """Raise ValueError where a value is not what its key means: a file may come from anywhere."""
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
        values = asdict(self)
        text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        return {MARK: str(TABLE_VERSION), **text}

    @classmethod
    def of_json(cls, text: str | bytes, origin: str | Path) -> "Metadata":
        """From the JSON in a TorchScript file, which may hold anything; origin: the file's name, for messages."""
        try:
            if len(text) > LONGEST:
                raise ValueError(f"it has more than {LONGEST:,} characters")
            return cls.of(json.loads(text or "{}"), origin)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{origin} is damaged: its metadata cannot be read ({error!r:.120})") from None

    @classmethod
    def of(cls, text: Any, origin: str | Path) -> "Metadata":
        """From the keys of a file, each with its text; origin: the file's name, for messages."""
        if not isinstance(text, Mapping) or not all(isinstance(value, str) for value in text.values()):
            raise UserError(f"{origin} is damaged: its metadata is no mapping of keys to text, but {shown(text)}")
        if text.get(MARK) is None:
            raise UserError(f"{origin} carries no metadata of export.py: export the .pt file again with this project")
        if text[MARK] != str(TABLE_VERSION):
            raise UserError(
                f"{origin} is of another version of export.py ({shown(text[MARK])}): export the .pt file again"
            )
        try:
            values = {name: _read(text[name], kind) for name, kind in cls.__annotations__.items()}
            found = cls(**values)
            found.check()
            return found
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{origin} is damaged: its metadata cannot be read ({error!r:.120})") from None


def _read(text: str, kind: Any) -> Any:
    if kind is str:
        return text
    return Form(text) if kind is Form else json.loads(text)


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list) and len(values) <= MOST and all(isinstance(value, kind) for value in values)


def _all_whole(values: Any, low: int, high: int) -> bool:
    return _all(values, int) and all(is_whole(value, low, high) for value in values)
