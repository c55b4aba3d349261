"""Detection heads: feature maps to raw outputs, and raw outputs to boxes.

Letters: B images, L levels (`nl`), A anchors per level (`na`), H x W cells of a level, O = 5 + classes (`no`).
Raw outputs are (B, A, H, W, O) with O = x, y, w, h, objectness, classes. Predictions are (B, sum of A*H*W, O): boxes as
centre and size in pixels of the network input, then probabilities; ordered by level, anchor, row, column.

`stride` and `grid` are plain attributes, not buffers, as in upstream's files.
"""

import logging
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from yolov7fast.core.boxes import decode_wh, decode_xy
from yolov7fast.nn.blocks import ImplicitA, ImplicitM

LOGGER = logging.getLogger(__name__)


class Detect(nn.Module):
    """One 1x1 convolution per level.

    Switches, tested in this order, off by default: `export` returns the raw outputs in eval mode too; `end2end` and
    `concat` return only the predictions; `include_nms` returns ((boxes xyxy, class scores times objectness),).
    """

    inputs_per_level = 1

    anchors: torch.Tensor
    anchor_grid: torch.Tensor
    # float32 (L,), None until `calibrate`; class-level values also serve objects pickled without them
    stride: torch.Tensor = cast(torch.Tensor, None)
    export = False
    end2end = False
    include_nms = False
    concat = False

    def __init__(self, nc=80, anchors=(), ch=()):
        """anchors: one flat list w, h, w, h, ... in pixels for each level; ch: channels of each input."""
        super().__init__()
        self.nc = nc
        self.no = nc + 5
        self.nl = len(anchors)
        self.na = len(anchors[0]) // 2
        self.grid = [torch.zeros(1)] * self.nl
        pixels = torch.tensor(anchors, dtype=torch.float32).view(self.nl, -1, 2)
        self.register_buffer("anchors", pixels)  # in cells of the level, once `calibrate` has run
        self.register_buffer("anchor_grid", pixels.clone().view(self.nl, 1, -1, 1, 1, 2))  # in pixels
        self.m = conv_list(ch[: self.nl], self.no * self.na)

    def forward(self, x):
        """x: feature maps (B, C, H, W) -> list of raw outputs in training, (predictions, raw outputs) in eval mode."""
        raw = self.raw_outputs(x)
        if self.training or self.export:
            return raw
        pred = self.predictions(raw)
        if self.end2end:
            return pred
        if self.include_nms:
            return (self.boxes_and_scores(pred),)
        if self.concat:
            return pred
        return pred, raw

    def raw_outputs(self, x) -> list:
        return [self.split_anchors(conv(level)) for conv, level in zip(self.m, x)]

    def split_anchors(self, x: torch.Tensor) -> torch.Tensor:
        """(B, A*O, H, W) -> (B, A, H, W, O)"""
        b, c, h, w = x.shape
        return x.view(b, self.na, c // self.na, h, w).permute(0, 1, 3, 4, 2).contiguous()

    def predictions(self, raw: list) -> torch.Tensor:
        """Raw outputs of all levels -> (B, sum of A*H*W, O)."""
        return torch.cat([self.decode(m, level).flatten(1, 3) for level, m in enumerate(raw)], 1)

    def decode(self, raw: torch.Tensor, level: int) -> torch.Tensor:
        """Raw output of one level -> the same shape with boxes in pixels and probabilities, in its dtype.

        bfloat16 becomes float32: with 8 bits, boxes could only lie at every fourth pixel.
        """
        s = (raw.float() if raw.dtype is torch.bfloat16 else raw).sigmoid()
        xy = decode_xy(s[..., 0:2], self.cells(raw, level)) * self.stride[level]
        wh = decode_wh(s[..., 2:4], self.anchor_grid[level])
        return torch.cat((xy.to(s.dtype), wh.to(s.dtype), s[..., 4:]), -1)

    def cells(self, raw: torch.Tensor, level: int) -> torch.Tensor:
        """(1, 1, H, W, 2): column and row of each cell; cached until the output's size or device changes."""
        h, w = raw.shape[2:4]
        grid = self.grid[level]
        if grid.shape[2:4] != (h, w) or grid.device != raw.device:
            grid = self.grid[level] = make_grid(w, h, raw.device)
        return grid

    @staticmethod
    def boxes_and_scores(pred: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, N, O) -> corners x1, y1, x2, y2 (B, N, 4) and class times objectness (B, N, classes)."""
        centre, half = pred[..., 0:2], pred[..., 2:4] / 2
        return torch.cat((centre - half, centre + half), -1), pred[..., 5:] * pred[..., 4:5]

    # --- construction and fusing --------------------------------------------------------------------------------------

    def level_maps(self, output) -> list[torch.Tensor]:
        """The raw outputs in a training-mode output that have each level's size."""
        return output[: self.nl]

    def calibrate(self, output, size: int) -> None:
        """Set strides from a training-mode output of a size x size input, then anchors in cells and biases."""
        strides = [size / m.shape[-2] for m in self.level_maps(output)]
        self.stride = torch.tensor(strides, dtype=torch.float32, device="cpu")
        check_anchor_order(self)
        self.anchors /= self.stride.to(self.anchors.device).view(-1, 1, 1)
        self.initialize_biases()

    def initialize_biases(self) -> None:
        for conv, stride in zip(self.m, self.stride.tolist()):
            add_prior_bias(conv, stride, self.na, self.nc)

    def fuse(self) -> None:
        """Nothing to merge in this head."""


class IDetect(Detect):
    """Adds a learned vector to the input of each convolution and multiplies its output by another, until fused."""

    fused = False

    def __init__(self, nc=80, anchors=(), ch=()):
        super().__init__(nc, anchors, ch)
        self._add_implicit(ch)

    def _add_implicit(self, ch) -> None:
        self.ia = cast(Sequence[ImplicitA], nn.ModuleList(ImplicitA(c) for c in ch[: self.nl]))
        self.im = cast(Sequence[ImplicitM], nn.ModuleList(ImplicitM(self.no * self.na) for _ in ch[: self.nl]))

    def raw_outputs(self, x) -> list[torch.Tensor]:
        if self.fused:
            return super().raw_outputs(x)
        levels = zip(self.m, self.ia, self.im, x)
        return [self.split_anchors(im(conv(ia(level)))) for conv, ia, im, level in levels]

    @torch.no_grad()
    def fuse(self) -> None:
        """Fold both vectors into the convolutions; they remain in the module, unused."""
        if self.fused:
            return
        for conv, ia, im in zip(self.m, self.ia, self.im):
            weight, bias = fold_implicit(conv.weight, bias_of(conv), ia.implicit, im.implicit)
            conv.weight.copy_(weight)
            bias_of(conv).copy_(bias)
        self.fused = True


class IAuxDetect(IDetect):
    """Lead head as IDetect on the first L inputs; in training also plain convolutions on L auxiliary inputs.

    Training returns 2L raw outputs, lead first; eval mode omits the auxiliary head.
    """

    inputs_per_level = 2

    def __init__(self, nc=80, anchors=(), ch=()):
        Detect.__init__(self, nc, anchors, ch)
        self.m2 = conv_list(ch[self.nl :], self.no * self.na)
        self._add_implicit(ch)

    def raw_outputs(self, x) -> list[torch.Tensor]:
        lead = super().raw_outputs(x[: self.nl])
        if not (self.training or self.export):
            return lead
        return lead + [self.split_anchors(conv(level)) for conv, level in zip(self.m2, x[self.nl :])]

    def initialize_biases(self) -> None:
        super().initialize_biases()
        for conv, stride in zip(self.m2, self.stride.tolist()):
            add_prior_bias(conv, stride, self.na, self.nc)


def conv_list(widths: Sequence[int], outputs: int) -> Sequence[nn.Conv2d]:
    """A module list of 1x1 convolutions with bias, one for each input width."""
    return cast(Sequence[nn.Conv2d], nn.ModuleList(nn.Conv2d(c, outputs, 1) for c in widths))


def bias_of(conv: nn.Conv2d) -> torch.Tensor:
    assert conv.bias is not None  # made by `conv_list`
    return conv.bias


def make_grid(w: int, h: int, device) -> torch.Tensor:
    """(1, 1, h, w, 2) float32: x, y of every cell."""
    y, x = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
    return torch.stack((x, y), 2).view(1, 1, h, w, 2).float()


@torch.no_grad()
def add_prior_bias(conv: nn.Conv2d, stride: float, na: int, nc: int, columns: list[int] | None = None) -> None:
    """Add prior probabilities to the bias: about 8 objects in a 640-pixel image, each class 0.6 / nc.

    columns: of the nc classes, if they are not all columns after the first five. The bias becomes a new parameter. For
    one class the prior is ln 60, i.e. nearly certain.
    """
    bias = bias_of(conv).detach().clone().view(na, -1)
    bias[:, 4] += math.log(8 / (640 / stride) ** 2)
    classes = slice(5, None) if columns is None else [5 + c for c in columns]
    bias[:, classes] += math.log(0.6 / (nc - 0.99))
    conv.bias = nn.Parameter(bias.view(-1))


@torch.no_grad()
def fold_implicit(weight, bias, ia, im) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the one 1x1 convolution that equals im * convolution(x + ia), in float32 at least.

    weight: (out, in, 1, 1); bias: (out,); ia: (1, in, 1, 1); im: (1, out, 1, 1).
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    weight, bias, ia, im = (t.to(dtype) for t in (weight, bias, ia, im))
    return weight * im.view(-1, 1, 1, 1), (bias + weight.flatten(1) @ ia.view(-1)) * im.view(-1)


@torch.no_grad()
def check_anchor_order(head: Detect) -> None:
    """Flip the levels of both anchor buffers if areas and strides run in opposite directions.

    Compares only the first and last anchor, as upstream does. Both buffers must be in pixels.
    """
    if head.anchor_grid.is_meta:
        return
    area = head.anchor_grid.prod(-1).view(-1)
    if (area[-1] - area[0]).sign() != (head.stride[-1] - head.stride[0]).sign().to(area):
        LOGGER.info("Reversing anchor order")
        head.anchors[:] = head.anchors.flip(0)
        head.anchor_grid[:] = head.anchor_grid.flip(0)
