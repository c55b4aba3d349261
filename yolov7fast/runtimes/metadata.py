"""What an exported file says of itself: all that a consumer needs to feed it and to read its answer.

Every format stores the same keys as text; values other than words are JSON. `Metadata.of` reads them back.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from yolov7fast import __version__
from yolov7fast.core.errors import UserError
from yolov7fast.runtimes.forms import Form

MARK = "yolov7fast"  # the key that tells our files from others; its value is the version of this table
TABLE_VERSION = 1
PADDING = 114  # grey of the letterbox


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

    def to_text(self) -> dict[str, str]:
        values = asdict(self)
        text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        return {MARK: str(TABLE_VERSION), **text}

    @classmethod
    def of(cls, text: Mapping[str, str], origin: str | Path) -> "Metadata":
        """From the keys of a file; origin: its name, for messages."""
        if text.get(MARK) is None:
            raise UserError(f"{origin} carries no metadata of export.py: export the .pt file again with this project")
        if text[MARK] != str(TABLE_VERSION):
            raise UserError(f"{origin} is of another version of export.py ({text[MARK]}): export the .pt file again")
        try:
            values = {name: _read(text[name], kind) for name, kind in cls.__annotations__.items()}
            return cls(**values)
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(f"{origin} is damaged: its metadata cannot be read ({error!r:.120})") from None


def _read(text: str, kind: Any) -> Any:
    if kind is str:
        return text
    return Form(text) if kind is Form else json.loads(text)
