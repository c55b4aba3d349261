"""The interface of every detector, and the function that opens weights files.

Evaluation and inference use `Predictor` only. To add a detector, subclass `Predictor`, write a function
`load_predictor(files, device, options)` in the same module, and name the module in the family's row in
`checkpoint/families.py`. `tests/predictors/test_predictor.py` checks what every predictor guarantees.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.checkpoint.families import entry_of, family_of
from yolov7fast.checkpoint.released_weights import local_weights
from yolov7fast.core.device import DeviceQueue
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_img_size
from yolov7fast.core.files.settings_files import is_whole
from yolov7fast.predictors.export_metadata import is_exported

log = logging.getLogger(__name__)

DEFAULT_SIZE = 640  # longer image side in pixels where the weights do not define one
LARGEST_SIDE = 1 << 16  # pixels
MAX_BOXES = 300  # detections per image
EXPORTED_MODULE = "yolov7fast.predictors.exported_predictor"


@dataclass(frozen=True)
class PredictOptions:
    """Options of a detector. The defaults are those of detect.py."""

    conf_thres: float = 0.25  # confidence threshold
    iou_thres: float = 0.45  # of NMS
    classes: Sequence[int] | None = None  # keep only these class ids
    agnostic: bool = False  # class-agnostic NMS
    single_cls: bool = False  # treat all classes as one, which makes NMS class-agnostic
    multi_label: bool = False  # several classes per box, as in evaluation; otherwise only the best class
    augment: bool = False  # test-time augmentation
    hybrid: bool = False  # add the labels to the candidates of NMS (auto-labelling)
    half: bool = True  # half precision on CUDA
    bf16: bool = False  # of which kind: bfloat16, else float16
    trust_torchscript: bool = False  # run TorchScript files that were not exported on this machine


DEFAULT = PredictOptions()
Shapes = Sequence[Any]  # of a call, see `Predictor.__call__`
Targets = torch.Tensor | None


class Prediction(NamedTuple):
    """The detections of a batch."""

    detections: list[torch.Tensor]  # per image (k, 6): xyxy in pixels of the batch, score, class; best first
    inference_ms: float = 0.0  # for the whole batch
    nms_ms: float = 0.0
    losses: Mapping[str, torch.Tensor] = {}  # scalars by name, if the predictor computes the loss


Finish = Callable[[], Prediction]  # reads the result of a launched batch; called once


class Predictor(ABC):
    """A detector: uint8 images in, boxes out.

    Images are uint8 (B, 3, H, W) RGB on the host, letterboxed, with sides that are multiples of `stride`. Any B >= 1
    works. The predictor scales them to 0..1 and copies them to its device.
    """

    names: Sequence[str]  # class names by id
    options: PredictOptions  # may be replaced between calls
    stride: int = 32
    img_size: int | None = None  # size used in training or export, if known
    fixed_size: bool = False  # every batch must be img_size x img_size, as for a static export
    border: float = 0.0  # padding of rectangular evaluation batches, in strides
    precision: str = "float32"  # or float16, int8
    uses_nms: bool = True  # whether `options.iou_thres` has an effect
    runs_ahead: bool = False  # whether `launch` returns before the device has finished (`NetworkPredictor`)

    @abstractmethod
    def __call__(self, images: torch.Tensor, shapes: Shapes = (), targets: Targets = None) -> Prediction:
        """The detections of a batch.

        Args:
            images: uint8 (B, 3, H, W).
            shapes: per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h))): its position in the letterbox.
            targets: (n, 6) image, class, xywh normalised to the batch; for losses and hybrid labels.
        """

    def warm_up(self, img_size: int) -> None:  # noqa: B027
        """Run once on an empty image if the first batch would otherwise include the start-up time of the device."""


class NetworkPredictor(Predictor):
    """A predictor that runs a PyTorch network: a batch is launched first and finished later.

    On a device with its own queue (`runs_ahead`), evaluation launches the next batch before it finishes the previous
    one. Detections are returned on the host.
    """

    def __init__(self, device: torch.device):
        self.device, self.queue = device, DeviceQueue(device)
        self.runs_ahead = self.queue.runs_ahead

    @abstractmethod
    def launch(self, images: torch.Tensor, shapes: Shapes = (), targets: Targets = None) -> Finish:
        """Start a batch without a host sync. The arguments must not change until it is finished."""

    def __call__(self, images: torch.Tensor, shapes: Shapes = (), targets: Targets = None) -> Prediction:
        return self.launch(images, shapes, targets)()


def wanted_rows(rows: torch.Tensor, options: PredictOptions) -> torch.Tensor:
    """The detections (k, 6) of an image, sorted best first, that pass the confidence threshold and class filter."""
    keep = rows[:, 4] > options.conf_thres
    if options.classes is not None:
        keep &= torch.isin(rows[:, 5], torch.tensor(options.classes, dtype=rows.dtype))
    return rows[keep][:MAX_BOXES]


def on_host(detections: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The detections on the CPU, copied in one transfer."""
    return list(torch.cat(list(detections)).cpu().split([len(rows) for rows in detections]))


def input_size(predictor: Predictor, wanted: int, least_stride: int = 1) -> int:
    """The longer image side: `wanted` rounded up to the stride, or the predictor's own size (else 640) for 0."""
    own = predictor.img_size
    if own and wanted not in (0, own):
        if predictor.fixed_size:
            raise UserError(f"--img-size {wanted}: these weights were exported for {own} only; leave the flag out")
        log.info("these weights were trained at %d pixels: --img-size %d uses that size", own, own)
    if not wanted and not own:
        log.warning("these weights do not say at which size they were trained: %d pixels are used", DEFAULT_SIZE)
    return check_img_size(wanted or own or DEFAULT_SIZE, max(least_stride, predictor.stride))


# --- weights files ----------------------------------------------------------------------------------------------------


@dataclass
class WeightsFile:
    """A weights file: its path, for messages, and the content of a checkpoint (None for exported files)."""

    path: str
    content: Any = field(repr=False)


def stored_size(content: Any) -> int | None:
    """The training image size stored in a checkpoint, or None if it is missing or invalid."""
    size = content.get("img_size") if isinstance(content, Mapping) else None
    return size if is_whole(size, 1, LARGEST_SIDE) else None


def listed(weights: str | Path | Sequence[str | Path] | None) -> list[str]:
    """Weights given as one path, several or None, as a list of paths."""
    given = [weights] if isinstance(weights, str | Path) else weights or []
    return [str(path) for path in given if str(path)]


def load_predictor(
    weights: str | Path | Sequence[str | Path], device: torch.device, options: PredictOptions
) -> Predictor:
    """The detector of a weights file, or an ensemble of several files of one kind.

    Checkpoints are loaded without executing code. Modules of runtimes are imported only when they are needed.
    """
    paths = list(map(local_weights, listed(weights)))
    if not paths:
        raise UserError("no weights are named: give --weights FILE")
    modules, files = [], []
    for path in paths:
        content = None if is_exported(path) else load_checkpoint(path)
        module = EXPORTED_MODULE if content is None else entry_of(family_of(content), path).predictor
        modules.append(module)
        files.append(WeightsFile(path, content))
    if len(set(modules)) > 1:
        kinds = ", ".join(f"{path} ({module.rpartition('.')[2]})" for path, module in zip(paths, modules))
        raise UserError(f"--weights: an ensemble needs files of one kind, but these are {kinds}")
    return import_module(modules[0]).load_predictor(files, device, options)
