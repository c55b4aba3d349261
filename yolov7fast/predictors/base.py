"""The one interface behind which every detector stands, whoever trained it and whatever runs it.

Evaluation and inference know `Predictor` alone. To add a detector (a family, an exported file): write a class with the
members below and a function `load_predictor(sources, device, options)` beside it, and name the module in the family's
row (`checkpoint.families`) or, for exported files, in `predictors.registry`. `tests/predictors/test_protocol.py` holds
what every predictor promises.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from yolov7fast.core.device import DeviceQueue, time_synchronized
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_img_size
from yolov7fast.core.files.settings_files import is_whole

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PredictOptions:
    """What is asked of a detector. The defaults are those of detect.py."""

    conf_thres: float = 0.25  # confidence threshold
    iou_thres: float = 0.45  # of non-maximum suppression
    classes: Sequence[int] | None = None  # keep these class ids only
    agnostic: bool = False  # classes suppress one another
    single_cls: bool = False  # all classes count as one, so they suppress one another too
    multi_label: bool = False  # a box may have several classes, as evaluation counts them; else its best one only
    augment: bool = False  # test-time augmentation
    hybrid: bool = False  # labels are put among the candidates (auto-labelling)
    half: bool = True  # half precision where it pays: on CUDA
    trust_torchscript: bool = False  # run a TorchScript file that was not exported on this machine


DEFAULT = PredictOptions()
DEFAULT_SIZE = 640  # longer side of an image, where nothing else is known
LARGEST_SIDE = 1 << 16  # pixels of an image
MAX_BOXES = 300  # of an image, as every predictor gives


def wanted_rows(rows: torch.Tensor, options: PredictOptions) -> torch.Tensor:
    """Of (k, 6) detections of an image, best first, those that the options ask for."""
    keep = rows[:, 4] > options.conf_thres
    if options.classes is not None:
        keep &= torch.isin(rows[:, 5], torch.tensor(options.classes, dtype=rows.dtype))
    return rows[keep][:MAX_BOXES]


class Prediction(NamedTuple):
    """What a detector says of a batch."""

    detections: list[torch.Tensor]  # per image (k, 6): xyxy in pixels of the batch, score, class; best first
    inference_ms: float = 0.0  # for the whole batch
    nms_ms: float = 0.0
    losses: Mapping[str, torch.Tensor] = {}  # scalars by name, where the loss is measured too


Finish = Callable[[], Prediction]  # reads what a device was asked for; called once


class Predictor(Protocol):
    """A detector, ready to be asked.

    Input: uint8 (B, 3, H, W) RGB on the host, letterboxed, sides multiples of `stride`; scaling to 0..1 and copies to
    a device are the predictor's own. Any B from 1 up must work.
    """

    names: Sequence[str]  # of the classes, by id
    stride: int  # sides of a batch are multiples of it
    img_size: int | None  # the size it was trained or exported for, where that is known
    fixed_size: bool  # True: every batch must be img_size x img_size, as in a static export
    border: float  # in strides, around the images of a rectangular batch in evaluation
    precision: str  # what it runs in: float32, float16, int8
    uses_nms: bool  # whether `options.iou_thres` has a meaning
    thread_safe: bool  # whether several threads may ask at once, each with its own of PyTorch's threads: on the CPU
    options: PredictOptions

    def __call__(
        self, images: torch.Tensor, shapes: Sequence[Any] = (), targets: torch.Tensor | None = None
    ) -> Prediction:
        """shapes: per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h))), where the image lies in its letterbox.
        targets (n, 6): image, class, xywh normalised to the batch; needed for losses and hybrid labels alone."""
        ...

    def warm_up(self, img_size: int) -> None:
        """One pass over an empty image where the first real one would otherwise be charged for the device's start."""
        ...


class NetworkPredictor(ABC):
    """What predictors that run a network of PyTorch have besides: a batch is launched, and finished later.

    Where the device has a queue of its own (`runs_ahead`), it computes between the two: evaluation launches the next
    batch before it finishes the former. Detections are on the host.
    """

    def __init__(self, device: torch.device):
        self.device, self.queue = device, DeviceQueue(device)
        self.runs_ahead = self.queue.runs_ahead

    @abstractmethod
    def launch(self, images: torch.Tensor, shapes: Sequence[Any] = (), targets: torch.Tensor | None = None) -> Finish:
        """Hand a batch to the device, without reading anything of it. All that is given must stay as it is until it is
        finished."""

    def __call__(
        self, images: torch.Tensor, shapes: Sequence[Any] = (), targets: torch.Tensor | None = None
    ) -> Prediction:
        return self.launch(images, shapes, targets)()


def on_host(detections: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same on the CPU, by one transfer."""
    return list(torch.cat(list(detections)).cpu().split([len(rows) for rows in detections]))


def input_size(predictor: Predictor, wanted: int, least_stride: int = 1) -> int:
    """The longer side to use: as wanted, rounded up to the stride.

    0: the one it was trained or exported for; 640 where the file does not say, as upstream's do not.
    """
    own = predictor.img_size
    if own and wanted not in (0, own):
        if predictor.fixed_size:
            raise UserError(f"--img-size {wanted}: these weights were exported for {own} alone; leave the flag out")
        log.info("these weights were trained at %d pixels: --img-size %d uses that size", own, own)
    if not wanted and not own:
        log.warning("these weights do not say at which size they were trained: %d pixels are used", DEFAULT_SIZE)
    return check_img_size(wanted or own or DEFAULT_SIZE, max(least_stride, predictor.stride))


def stored_size(content: Any) -> int | None:
    """The size that a checkpoint says it was trained for, if it does and it makes sense."""
    size = content.get("img_size") if isinstance(content, Mapping) else None
    return size if is_whole(size, 1, LARGEST_SIDE) else None


@dataclass
class Source:
    """A weights file that was opened: its path, for messages, and what it holds."""

    path: str
    content: Any = field(repr=False)


class Stopwatch:
    """Milliseconds between calls of `lap`, the device's work included."""

    def __init__(self):
        self.last = time_synchronized()

    def lap(self) -> float:
        now = time_synchronized()
        passed, self.last = (now - self.last) * 1e3, now
        return passed
