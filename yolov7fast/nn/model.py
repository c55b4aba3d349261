"""The network: layers from a description, run in order, ending in a detection head.

`python -m models.yolo --cfg FILE [--img-size N]` prints a table of its layers.
"""

import contextlib
import copy
import logging
import math
import time
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
        origin: where a description that is not a file comes from, for messages.
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
        self._look_ahead(ch, file)
        head.calibrate(self._trial_run(ch, file), BUILD_SIZE)
        assert head.stride is not None  # calibrated
        self.stride = head.stride
        warn_of_mixed_levels(head, file)
        initialize_weights(self)
        self.info()

    @torch.no_grad()
    def _look_ahead(self, ch: int, file: str) -> None:
        """Refuse layers whose outputs would take all memory, or for ever: shapes alone, on the meta device."""

        def check(m: Any, _, output) -> None:
            for out in [output] if isinstance(output, torch.Tensor) else ():
                window = max((math.prod(window_of(part)) for part in m.modules()), default=1)
                if out.numel() > MOST_OUTPUT or out.numel() * window > MOST_WORK:
                    size = "x".join(map(str, out.shape[1:]))
                    raise UserError(f"{file}, layer {m.i} ({m.type}): its output {size} is too much for any machine")

        weightless = {
            n: torch.empty_like(t, device="meta") for n, t in (*self.named_parameters(), *self.named_buffers())
        }
        image = torch.empty(1, ch, BUILD_SIZE, BUILD_SIZE, device="meta")
        hooks = [m.register_forward_hook(check) for m in self.model]
        try:
            with contextlib.suppress(*MISFITS):  # the run itself reports them
                torch.func.functional_call(self, weightless, (image,))
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def _trial_run(self, ch: int, file: str):
        """Output for an image of zeros. It shows the strides and layers that do not fit together.

        In training mode on purpose: fresh networks are known to start with running variances of 0.9 and one batch
        counted, and the first epoch's figures depend on it.
        """
        reached = []
        hooks = [m.register_forward_pre_hook(lambda m, _: reached.append(m)) for m in self.model]
        try:
            return self._run_layers(torch.zeros(1, ch, BUILD_SIZE, BUILD_SIZE))
        except MISFITS as error:
            if is_out_of_memory(error):
                raise
            m = reached[-1]
            where = f"{file}, layer {m.i} ({m.type}, from {shown(m.f)})"
            raise UserError(f"{where}: its inputs do not fit: {one_line(error, 200)}") from error
        finally:
            for hook in hooks:
                hook.remove()

    def forward(self, x: torch.Tensor, augment: bool = False, profile: bool = False):
        """x: (B, ch, H, W), RGB in 0..1, sides a multiple of the largest stride -> the head's output.

        augment: predictions of three scaled or mirrored copies, as (predictions, None). profile: logs time by layer.
        """
        if augment:
            return self._forward_augmented(x)
        return self._profiled(x) if profile else self._run_layers(x)

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

    def _profiled(self, x: torch.Tensor):
        """A plain run that logs the milliseconds of each layer; for devices that run ahead, of its launch."""
        start = {}
        LOGGER.info("%10s %10s  %s", "time (ms)", "params", "module")

        def before(m, _):
            start[m.i] = time.perf_counter()

        def after(m, _, __):
            LOGGER.info("%10.2f %10d  %s", 1000 * (time.perf_counter() - start[m.i]), m.np, m.type)

        hooks = [m.register_forward_pre_hook(before) for m in self.model]
        hooks += [m.register_forward_hook(after) for m in self.model]
        try:
            return self._run_layers(x)
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def fuse(self) -> "Model":
        """Merge BatchNorm, RepConv branches and implicit vectors into convolutions, in place; once is enough."""
        LOGGER.info("Fusing layers...")
        for m in self.modules():
            if type(m) is Conv or isinstance(m, RepConv | Detect):
                m.fuse()
        self.info()
        return self

    def info(self, verbose: bool = False, img_size: int | None = None) -> None:
        """Log counts of modules, parameters and gradients; verbose: each parameter; img_size: GFLOPs at that size."""
        parameters = list(self.named_parameters())
        if verbose:
            LOGGER.info("%5s %40s %9s %12s %20s %10s %10s", "layer", "name", "gradient", "size", "shape", "mu", "sigma")
            for i, (name, p) in enumerate(parameters):
                mean, std, shape = p.mean().item(), p.std().item(), list(p.shape)
                LOGGER.info(
                    "%5d %40s %9s %12d %20s %10.3g %10.3g", i, name, p.requires_grad, p.numel(), shape, mean, std
                )
        gflops = ""
        if img_size:
            from yolov7fast.nn.summary import count_gflops

            gflops = f", {count_gflops(self, img_size):.1f} GFLOPS"
        total = sum(p.numel() for _, p in parameters)
        gradients = sum(p.numel() for _, p in parameters if p.requires_grad)
        modules = sum(1 for _ in self.modules())
        LOGGER.info("Model Summary: %d layers, %d parameters, %d gradients%s", modules, total, gradients, gflops)


def window_of(m: nn.Module) -> tuple[int, ...]:
    """Inputs behind each value of a layer's output: channels x height x width."""
    if isinstance(m, nn.Conv2d):
        return m.in_channels // m.groups, *m.kernel_size
    if isinstance(m, nn.MaxPool2d):
        return m.kernel_size if isinstance(m.kernel_size, tuple) else (m.kernel_size, m.kernel_size)
    return (1,)


def warn_of_mixed_levels(head: Detect, file: str) -> None:
    """Where a row was inserted, the head's old row numbers often still build, and anchors meet the wrong levels."""
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
