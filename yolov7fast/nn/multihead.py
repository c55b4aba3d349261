"""Several detection heads on one backbone, each for a group of classes.

Letters as in `nn.heads`, and K heads, C classes of a head. Head k has a separate 1x1 convolution on every level;
anchors and strides are shared. Raw outputs are a list over heads of lists over levels, (B, A, H, W, 5 + C). Predictions
are those of an ordinary head with all classes, (B, K * sum of A*H*W, 5 + nc), head after head: class scores are in the
columns of their global numbers, with zeros elsewhere, so NMS, metrics and plots need no special case.

The classes of each head are defined by a head configuration (`nn.head_config`), stored as a plain dictionary.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import cast

import torch
from torch import nn

from yolov7fast.core.errors import UserError
from yolov7fast.nn.head_config import DEFAULT_HEADS, HeadConfig
from yolov7fast.nn.heads import Detect, add_prior_bias, conv_list
from yolov7fast.nn.model_parser import BLOCKS, Resolved, Row, detection_head, register


class MultiHeadDetect(Detect):
    """K heads, each with one convolution per level.

    The class score of a head with a single class is 1, since its logit is not trained. (With one class in all there is
    one such head, which returns what the ordinary head returns.)
    """

    places: torch.Tensor

    def __init__(self, nc: int, anchors, config: HeadConfig, ch=()):
        super().__init__(nc, anchors, ())
        del self.m
        self.head_config = config.to_dict()
        self.class_columns = [list(columns) for columns in config.columns]  # in a head's raw output, of its own classes
        convs = (conv_list(ch, self.na * (5 + width)) for width in config.widths)
        self.heads = cast(Sequence[Sequence[nn.Conv2d]], nn.ModuleList(cast(Iterable[nn.Module], convs)))
        places = [[*range(5), *(5 + c for c in ids)] for ids in config.classes]
        self.register_buffer("places", torch.tensor([*chain(*places)]), persistent=False)  # in the predictions' columns
        self.place_bounds = list(pairwise(accumulate(map(len, places), initial=0)))

    def raw_outputs(self, x) -> list[list[torch.Tensor]]:
        return [
            [self.split_anchors(conv(level)) for conv, level in zip(head, self.features(x, k))]
            for k, head in enumerate(self.heads)
        ]

    def features(self, x: list[torch.Tensor], k: int) -> list[torch.Tensor]:
        """The feature maps that head k reads."""
        return x

    def predictions(self, raw: list[list[torch.Tensor]]) -> torch.Tensor:
        rows = sum(m[0, ..., 0].numel() for m in raw[0])
        pred = raw[0][0].new_zeros(raw[0][0].shape[0], rows * len(raw), 5 + self.nc)
        for k, (levels, (first, last)) in enumerate(zip(raw, self.place_bounds)):
            own = super().predictions([self.own_columns(m, k) for m in levels])
            if own.shape[-1] == 6 and self.nc > 1:
                own[..., 5] = 1.0
            pred[:, k * rows : (k + 1) * rows].index_copy_(2, self.places[first:last], own)
        return pred

    def own_columns(self, raw: torch.Tensor, k: int) -> torch.Tensor:
        """The output of head k, without the columns of other heads' classes."""
        width = raw.shape[-1] - 5
        if len(self.class_columns[k]) == width:
            return raw
        first, last = self.place_bounds[k]
        return raw.index_select(-1, self.places[first:last])

    # --- construction -------------------------------------------------------------------------------------------------

    def level_maps(self, output) -> list[torch.Tensor]:
        return output[0]

    def initialize_biases(self) -> None:
        for head, columns in zip(self.heads, self.class_columns):
            for conv, stride in zip(head, self.stride.tolist()):
                add_prior_bias(conv, stride, self.na, len(columns), columns)


class MultiHeadDetectAttention(MultiHeadDetect):
    """With a separate attention module (CBAM) before every convolution."""

    def __init__(self, nc: int, anchors, config: HeadConfig, ch=()):
        super().__init__(nc, anchors, config, ch)
        lists = nn.ModuleList(nn.ModuleList(CBAM(c) for c in ch) for _ in self.heads)
        self.attentions = cast(Sequence[Sequence[CBAM]], lists)

    def features(self, x: list[torch.Tensor], k: int) -> list[torch.Tensor]:
        return [attention(level) for attention, level in zip(self.attentions[k], x)]


class CBAM(nn.Module):
    """Convolutional block attention: weights channels, then positions. (B, C, H, W) -> the same shape."""

    def __init__(self, channels: int):
        super().__init__()
        self.channel_attention = ChannelAttention(channels)
        self.spatial_attention = SpatialAttention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.channel_attention(x)
        return x * self.spatial_attention(x)


class ChannelAttention(nn.Module):
    """(B, C, H, W) -> (B, C, 1, 1) in 0..1, from each channel's mean and maximum."""

    def __init__(self, channels: int, reduction: int = 16):
        super().__init__()
        narrow = max(channels // reduction, 1)
        self.fc = nn.Sequential(
            nn.Conv2d(channels, narrow, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(narrow, channels, 1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, top = x.mean((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
        return torch.sigmoid(self.fc(mean) + self.fc(top))


class SpatialAttention(nn.Module):
    """(B, C, H, W) -> (B, 1, H, W) in 0..1, from each position's mean and maximum over channels."""

    def __init__(self, size: int = 7):
        super().__init__()
        self.conv = nn.Conv2d(2, 1, size, padding=size // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat((x.mean(1, keepdim=True), x.amax(1, keepdim=True)), 1)
        return torch.sigmoid(self.conv(both))


# --- rows of a description --------------------------------------------------------------------------------------------


def heads_of(description: Mapping) -> dict | int | None:
    """The heads in the last row of a description; None if it has no multi-head row or does not name them."""
    row = description["head"][-1] if description["head"] else None
    if not isinstance(row, list) or len(row) != 4 or not isinstance(row[3], list) or not isinstance(row[2], str):
        return None  # reported by the parser
    return row[3][2] if row[2] in NAMES and len(row[3]) > 2 else None


def with_heads(rows: list, heads: dict | int, file: str) -> list:
    """The rows of a description's head with these heads in the last one, the detection layer."""
    if not rows or not isinstance(rows[-1], list) or len(rows[-1]) != 4:
        return rows  # reported by the parser
    *before, (sources, number, name, args) = rows
    if name not in BLOCKS:
        return rows
    if name not in NAMES:
        kind = "with auxiliary heads, which cannot be divided" if name == "IAuxDetect" else "with one head"
        raise UserError(
            f"{file}: ends in {name}, a detection layer {kind}: for several heads take a description that ends in "
            f"{' or '.join(NAMES)}, such as cfg/training/yolov7-tiny-1b4h.yaml"
        )
    if not isinstance(args, list) or len(args) < 2:
        raise UserError(f"{file}: the arguments of {name} in its last row must begin with nc and anchors")
    return [*before, [sources, number, name, [*args[:2], heads]]]


def multi_head(row: Row) -> Resolved:
    """[nc, anchors] and optionally the heads: their number (default 4, classes in order) or a head configuration."""
    if len(row.args) > 1 and isinstance(row.args[1], list) and len(row.widths) == 2 * len(row.args[1]):
        row.fail("reads one source for each level: there are no auxiliary heads in a multi-head network")
    resolved = detection_head(row)
    nc, anchors, *heads, widths = resolved.args
    if len(heads) > 1:
        row.fail(f"its arguments are [nc, anchors] and the heads, not {row.args}")
    config = read_heads(heads[0] if heads else min(DEFAULT_HEADS, nc), nc, row.where)
    return resolved._replace(args=[nc, anchors, config, widths])


def read_heads(heads, nc: int, where: str) -> HeadConfig:
    """A head configuration from the third argument of a multi-head row."""
    if isinstance(heads, Mapping):
        return HeadConfig.from_dict(heads, where).check_agrees(
            nc,
            where=where,
            instead="give --cfg with a description that leaves the heads open, such as cfg/training/"
            "yolov7-tiny-1b4h.yaml",
        )
    if isinstance(heads, bool) or not isinstance(heads, int):
        raise UserError(f"{where}: the heads are a number or a head configuration, not {heads!r}")
    try:
        return HeadConfig.consecutive(nc, heads)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


NAMES = ("MultiHeadDetect", "MultiHeadDetectAttention")
register("MultiHeadDetect", MultiHeadDetect, multi_head)
register("MultiHeadDetectAttention", MultiHeadDetectAttention, multi_head, (CBAM, ChannelAttention, SpatialAttention))
