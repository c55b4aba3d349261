"""The network: layers from a description, run in order, ending in a detection head.

`python -m models.yolo --cfg FILE [--img-size N]` prints a table of its layers.
"""

import contextlib
import copy
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from yolov7fast.core.errors import UserError, is_out_of_memory, one_line, shown
from yolov7fast.nn.blocks import Conv, RepConv
from yolov7fast.nn.heads import Detect, IAuxDetect, IDetect
from yolov7fast.nn.model_parser import check_description, parse_model, read_description
from yolov7fast.nn.multihead import MultiHeadDetect, MultiHeadDetectAttention, with_heads

__all__ = [
    "Detect",
    "IAuxDetect",
    "IDetect",
    "Model",
    "MultiHeadDetect",
    "MultiHeadDetectAttention",
    "scale_img",
]

LOGGER = logging.getLogger(__name__)
BUILD_SIZE = 256  # side of the image of zeros that shows the strides
MOST_OUTPUT = 1 << 28  # values in the output of a layer for that image
MOST_WORK = 1e12  # multiplications of a layer for that image
MISFITS = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError)  # of layers and inputs
TTA_PASSES = ((1.0, False), (0.83, True), (0.67, False))  # scale, mirrored left to right


class Model(nn.Module):
    """A detector built from a YAML file or mapping.

    `model`: the layers; `save`: indices of outputs that later layers read; `yaml`: the description with nc, anchors and
    ch as used; `names`: class names; `stride`: pixels for each cell of each level, float32 on the host.
    """

    model: nn.Sequential
    names: list[str]
    stride: torch.Tensor
    # set by training and kept in checkpoints
    nc: int
    hyp: dict[str, float]
    gr: float
    class_weights: torch.Tensor
    traced = False  # class-level, so that objects pickled without it have it

    def __init__(
        self,
        cfg: str | Path | dict,
        ch: int = 3,
        nc: int | None = None,
        anchors=None,
        heads=None,
        origin: str = "model description",
    ):
        """anchors: overrides the description's, as an anchor count for each level or as lists of pixels.

        heads: overrides those of a multi-head description, as their number or as a head configuration (a dictionary).
        origin: name of a description that is not a file, for messages.
        """
        super().__init__()
        self.traced = False
        if isinstance(cfg, dict):
            file = origin
            self.yaml = copy.deepcopy(cfg)
        else:
            file = str(cfg)
            self.yaml_file = Path(cfg).name
            self.yaml = read_description(cfg)
        ch = self.yaml["ch"] = self.yaml.get("ch", ch)
        if nc and nc != self.yaml.get("nc"):
            LOGGER.info("Overriding model.yaml nc=%s with nc=%s", self.yaml.get("nc"), nc)
            self.yaml["nc"] = nc
        if anchors:
            LOGGER.info("Overriding model.yaml anchors with anchors=%s", anchors)
            self.yaml["anchors"] = anchors if isinstance(anchors, list) else round(anchors)
        if heads:
            check_description(self.yaml, file)
            self.yaml["head"] = with_heads(self.yaml["head"], heads, file)
        self.model, self.save = parse_model(copy.deepcopy(self.yaml), [ch], file)
        self.names = [str(i) for i in range(self.yaml["nc"])]
        head = self.model[-1]
        if not isinstance(head, Detect):
            raise UserError(f"{file}, layer {head.i} ({head.type}): the last layer must be a detection head")
        self._check_outputs(ch, file)
        head.calibrate(self._trial_run(ch, file), BUILD_SIZE)
        assert head.stride is not None  # calibrated
        self.stride = head.stride
        warn_of_mixed_levels(head, file)
        initialize_weights(self)
        self.info()

    @contextlib.contextmanager
    def _hooked(self, register: str, hook: Callable) -> Iterator[None]:
        hooks = [getattr(m, register)(hook) for m in self.model]
        try:
            yield
        finally:
            for handle in hooks:
                handle.remove()

    @torch.no_grad()
    def _check_outputs(self, ch: int, file: str) -> None:
        """Raise UserError for layers whose outputs need too much memory or time; computes shapes on the meta device."""

        def check(m: Any, _, output) -> None:
            for out in [output] if isinstance(output, torch.Tensor) else ():
                window = max((math.prod(window_of(part)) for part in m.modules()), default=1)
                if out.numel() > MOST_OUTPUT or out.numel() * window > MOST_WORK:
                    size = "x".join(map(str, out.shape[1:]))
                    raise UserError(f"{file}, layer {m.i} ({m.type}): its output {size} is too much for any machine")

        tensors = *self.named_parameters(), *self.named_buffers()
        on_meta = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
        image = torch.empty(1, ch, BUILD_SIZE, BUILD_SIZE, device="meta")
        # other errors are reported by the trial run
        with self._hooked("register_forward_hook", check), contextlib.suppress(*MISFITS):
            torch.func.functional_call(self, on_meta, (image,))

    @torch.no_grad()
    def _trial_run(self, ch: int, file: str):
        """Output for an image of zeros, from which strides are computed; UserError for layers that do not fit.

        In training mode, so that running statistics equal upstream's: variances of 0.9 and one batch counted.
        """
        reached = []
        try:
            with self._hooked("register_forward_pre_hook", lambda m, _: reached.append(m)):
                return self._run_layers(torch.zeros(1, ch, BUILD_SIZE, BUILD_SIZE))
        except MISFITS as error:
            if is_out_of_memory(error):
                raise
            m = reached[-1]
            where = f"{file}, layer {m.i} ({m.type}, from {shown(m.f)})"
            raise UserError(f"{where}: its inputs do not fit: {one_line(error, 200)}") from error

    def forward(self, x: torch.Tensor, augment: bool = False):
        """x: (B, ch, H, W), RGB in 0..1, sides a multiple of the largest stride -> the head's output.

        augment: predictions of three scaled or mirrored copies, as (predictions, None).
        """
        return self._forward_augmented(x) if augment else self._run_layers(x)

    def _run_layers(self, x):
        outputs = []  # those that later layers read, None for the others
        head = len(self.model) - 1
        m: Any  # with what the parser wrote on it: i, f
        for m in self.model:
            if isinstance(m.f, list):
                x = [x if j == -1 else outputs[j] for j in m.f]
            elif m.f != -1:
                x = outputs[m.f]
            if self.traced and m.i == head:
                return x  # the head is applied outside a traced body
            x = m(x)
            outputs.append(x if m.i in self.save else None)
        return x

    def _forward_augmented(self, x: torch.Tensor):
        width = x.shape[-1]
        multiple = int(self.stride.max())
        predictions = []
        for ratio, mirrored in TTA_PASSES:
            pred = self._run_layers(scale_img(x.flip(3) if mirrored else x, ratio, multiple))[0]
            box = pred[..., :4] / ratio
            if mirrored:
                box = torch.cat((width - box[..., :1], box[..., 1:]), -1)
            predictions.append(torch.cat((box, pred[..., 4:]), -1))
        return torch.cat(predictions, 1), None

    @torch.no_grad()
    def fuse(self, verbose: bool = True) -> "Model":
        """Merge BatchNorm, RepConv branches and implicit vectors into convolutions, in place. verbose: log it."""
        if verbose:
            LOGGER.info("Fusing layers...")
        for m in self.modules():
            if type(m) is Conv or isinstance(m, RepConv | Detect):
                m.fuse()
        if verbose:
            self.info()
        return self

    def info(self) -> None:
        """Log the numbers of modules, parameters and gradients."""
        parameters = list(self.parameters())
        counts = sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)
        LOGGER.info("Model Summary: %d layers, %d parameters, %d gradients", len(list(self.modules())), *counts)


def window_of(m: nn.Module) -> tuple[int, ...]:
    """Inputs that each output value depends on: channels x height x width."""
    if isinstance(m, nn.Conv2d):
        return m.in_channels // m.groups, *m.kernel_size
    if isinstance(m, nn.MaxPool2d):
        return m.kernel_size if isinstance(m.kernel_size, tuple) else (m.kernel_size, m.kernel_size)
    return (1,)


def warn_of_mixed_levels(head: Detect, file: str) -> None:
    """Warn if strides are not monotonic: after inserting a row, old row numbers often still build a network."""
    strides = head.stride.tolist()
    if strides not in (sorted(strides), sorted(strides, reverse=True)):
        LOGGER.warning(
            "%s, layer %s (%s, from %s): its levels have strides %s, which neither rise nor fall; check the numbers in "
            "`from`: a row that was inserted moves all rows behind it",
            *(file, head.i, head.type, shown(head.f), ", ".join(f"{stride:g}" for stride in strides)),
        )


def initialize_weights(model: nn.Module) -> None:
    """Constants of BatchNorm and in-place activations; convolutions keep PyTorch's draws."""
    for m in model.modules():
        if type(m) is nn.BatchNorm2d:
            m.eps = 1e-3
            m.momentum = 0.03
        elif isinstance(m, nn.Hardswish | nn.LeakyReLU | nn.ReLU | nn.ReLU6):
            m.inplace = True


def scale_img(x: torch.Tensor, ratio: float, multiple: int) -> torch.Tensor:
    """Resize (B, C, H, W) by ratio, sides truncated, then pad right and bottom with grey to the multiple."""
    if ratio == 1.0:
        return x
    h, w = x.shape[2:]
    size = int(h * ratio), int(w * ratio)
    x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
    full_h, full_w = (math.ceil(side * ratio / multiple) * multiple for side in (h, w))
    return F.pad(x, [0, full_w - size[1], 0, full_h - size[0]], value=0.447)  # 0.447: the mean of ImageNet


if __name__ == "__main__":
    from yolov7fast.core.errors import run_command
    from yolov7fast.nn.summary import main

    run_command(main)
