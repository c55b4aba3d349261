"""Several detection heads on one backbone, each for a group of classes.

Letters as in `nn.heads`, and K heads, C classes of a head. Head k has a separate 1x1 convolution on every level;
anchors and strides are shared. Raw outputs are a list over heads of lists over levels, (B, A, H, W, 5 + C). Predictions
are those of an ordinary head with all classes, (B, K * sum of A*H*W, 5 + nc), head after head: class scores are in the
columns of their global numbers, with zeros elsewhere, so NMS, metrics and plots need no special case.

The classes of each head are defined by a head configuration (`HeadConfig`), stored as a plain dictionary.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.paths import ROOT
from yolov7fast.core.files.settings_files import MOST_CLASSES, is_number, is_whole, read_yaml
from yolov7fast.core.text import printable
from yolov7fast.nn.heads import Detect, add_prior_bias, conv_list
from yolov7fast.nn.model_parser import BLOCKS, Resolved, Row, detection_head, register

SHIPPED = {  # for COCO's 80 classes and four heads
    "standard": ROOT / "data" / "coco_320_1b4h_standard.yaml",
    "geometry": ROOT / "data" / "coco_320_1b4h_geometry.yaml",
}
DEFAULT_NC, DEFAULT_HEADS = 80, 4
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6  # of a head; the loss overflows in single precision beyond


@dataclass(frozen=True, repr=False)
class HeadConfig:
    """A checked configuration: every class 0..nc-1 belongs to exactly one head, every weight is positive."""

    nc: int
    classes: tuple[tuple[int, ...], ...]  # global ids of each head; the position is the local id
    weights: tuple[float, ...]  # loss weight of each head
    names: tuple[str, ...]  # of the heads
    grouping: str = "standard"
    full_head: bool = False

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.classes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes of each head."""
        return tuple(len(ids) for ids in self.classes)

    @cached_property
    def head_of(self) -> tuple[int, ...]:
        """Head of each global class."""
        owner = {c: h for h, ids in enumerate(self.classes) for c in ids}
        return tuple(owner[c] for c in range(self.nc))

    @cached_property
    def local_of(self) -> tuple[int, ...]:
        """Local id, within its head, of each global class."""
        local = {c: i for ids in self.classes for i, c in enumerate(ids)}
        return tuple(local[c] for c in range(self.nc))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Number of class columns in each head's raw outputs."""
        return (self.nc,) * self.heads if self.full_head else self.sizes

    @cached_property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """Columns of each head's own classes among the class columns of its raw outputs, by local id."""
        return self.classes if self.full_head else tuple(tuple(range(size)) for size in self.sizes)

    def __repr__(self) -> str:
        return f"{self.heads} heads ({self.grouping}) of {', '.join(map(str, self.sizes))} classes"

    def to_dict(self) -> dict[str, Any]:
        """Plain values with the keys of the YAML file, as stored in checkpoints and read by `from_dict`."""
        sections = {
            f"head_{h}": {"name": self.names[h], "classes": list(ids), "weight": self.weights[h]}
            for h, ids in enumerate(self.classes)
        }
        return {
            "nc": self.nc,
            "heads": self.heads,
            "grouping": self.grouping,
            "full_head": self.full_head,
            "head_assignments": sections,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str = "head configuration") -> "HeadConfig":
        """Check the keys of a configuration; `where` names its source in errors."""
        if not isinstance(content, Mapping) or not isinstance(content.get("head_assignments"), Mapping):
            raise UserError(f"{where} has no section head_assignments with head_0, head_1, ...")
        sections = content["head_assignments"]
        nc = _count(content.get("nc", DEFAULT_NC), "nc", where)
        heads = _count(content.get("heads", len(sections) or DEFAULT_HEADS), "heads", where)
        expected = [f"head_{h}" for h in range(heads)]
        if missing := [key for key in expected if key not in sections]:
            raise UserError(f"{where}: heads is {heads}, but head_assignments lacks {_some(missing)}")
        if extra := [str(key) for key in sections if key not in expected]:
            raise UserError(f"{where}: heads is {heads}, but head_assignments also has {_some(extra)}")
        full_head = content.get("full_head", False)
        if not isinstance(full_head, bool):
            raise UserError(f"{where}: full_head must be true or false, not {shown(full_head)}")
        parsed = [_section(sections[key], key, nc, where) for key in expected]
        classes = tuple(ids for ids, _, _ in parsed)
        _check_partition(classes, nc, where if "nc" in content else f"{where}, which gives no nc")
        return cls(
            nc,
            classes,
            tuple(weight for _, weight, _ in parsed),
            tuple(name or f"Head {h}" for h, (_, _, name) in enumerate(parsed)),
            _text(content.get("grouping", "standard")),
            full_head,
        )

    @classmethod
    def load(cls, path: str | Path) -> "HeadConfig":
        """Read and check a configuration file."""
        return cls.from_dict(read_yaml(path, "head configuration"), str(path))

    @classmethod
    def consecutive(cls, nc: int, heads: int = DEFAULT_HEADS) -> "HeadConfig":
        """Classes in order, divided evenly; the first heads take one more if nc is not a multiple of `heads`."""
        if not 1 <= heads <= nc:
            raise UserError(f"{nc} classes cannot be divided among {heads} heads: ask for 1 to {nc} heads")
        ends = [0]
        for h in range(heads):
            ends.append(ends[-1] + nc // heads + (h < nc % heads))
        classes = tuple(tuple(range(a, b)) for a, b in itertools.pairwise(ends))
        return cls(nc, classes, (1.0,) * heads, tuple(f"Head {h}" for h in range(heads)), "consecutive")

    def check_agrees(
        self, nc: int, heads: int = 0, where: str = "head configuration", instead: str = "give --heads N alone"
    ) -> "HeadConfig":
        """Itself; UserError unless it fits a data set of `nc` classes and the requested number of heads (0: any)."""
        if nc != self.nc:
            raise UserError(
                f"{where} is for {self.nc} classes, the data set has {nc}: make one for it with"
                f" yolov7fast data heads DATA.yaml --heads N, or {instead}"
            )
        if heads and heads != self.heads:
            raise UserError(
                f"--heads {heads}, but {where} has {self.heads} heads: make them agree, or leave out --heads"
            )
        return self


def _count(value: Any, key: str, where: str) -> int:
    """A whole number of classes or heads."""
    if not is_whole(value, 1, MOST_CLASSES):
        raise UserError(f"{where}: {key} must be a whole number, 1 to {MOST_CLASSES:,}, not {shown(value)}")
    return value


def _text(value: Any) -> str:
    """A label, escaped and shortened."""
    return printable(value if isinstance(value, str) else shown(value), 100)


def _some(words: Sequence[str]) -> str:
    return ", ".join(printable(word, 40) for word in words[:5]) + (", ..." if len(words) > 5 else "")


def _section(section: Any, key: str, nc: int, where: str) -> tuple[tuple[int, ...], float, str]:
    """Class ids, weight and name of one head."""
    ids = section.get("classes") if isinstance(section, Mapping) else None
    if not isinstance(ids, list) or not ids:
        raise UserError(f"{where}: {key} needs a list `classes` that is not empty")
    for c in ids:
        if not is_whole(c, 0, nc - 1):
            raise UserError(f"{where}: {key} lists class {shown(c)}, but nc is {nc}: classes are 0 to {nc - 1}")
    weight = section.get("weight", 1.0)
    if not is_number(weight, LEAST_WEIGHT, MOST_WEIGHT):
        limits = f"from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
        raise UserError(f"{where}: weight of {key} must be a positive number, {limits}, not {shown(weight)}")
    return tuple(ids), float(weight), _text(section.get("name") or "")


def _check_partition(classes: Sequence[Sequence[int]], nc: int, where: str) -> None:
    """UserError unless every class is in exactly one head."""
    owner: dict[int, int] = {}
    for h, ids in enumerate(classes):
        for c in ids:
            if c in owner:
                raise UserError(f"{where}: class {c} is in head_{owner[c]} and in head_{h}; keep one of them")
            owner[c] = h
    if absent := [c for c in range(nc) if c not in owner]:
        raise UserError(f"{where}: {len(absent)} of {nc} classes in no head: {_some([f'class {c}' for c in absent])}")


def choose_head_config(
    nc: int,
    heads: int = 0,
    path: str = "",
    standard: bool = False,
    geometry: bool = False,
    from_boxes: Callable[[int], HeadConfig] | None = None,
    names: Sequence[str] = (),
) -> HeadConfig | None:
    """The configuration for --heads, --head-config, --standard-grouping and --geometry-grouping; None without them.

    For COCO's 80 classes (recognised by `names`) on 4 heads the groupings are the shipped files. Otherwise standard
    divides the classes in order, as --heads alone does, and geometry calls `from_boxes(heads)`, which groups by the
    boxes of the training set.
    """
    if bool(path) + standard + geometry > 1:
        raise UserError("give one of --head-config, --standard-grouping and --geometry-grouping, not several")
    if path:
        return HeadConfig.load(path).check_agrees(nc, heads, path)
    if (
        (standard or geometry)
        and heads in (0, DEFAULT_HEADS)
        and list(names) == read_yaml(SHIPPED["standard"])["names"]
    ):
        return HeadConfig.load(SHIPPED["standard" if standard else "geometry"])
    if geometry:
        if from_boxes is None:
            raise UserError(
                "--geometry-grouping needs the training set: make a file with `yolov7fast data heads` instead"
            )
        return from_boxes(heads or min(DEFAULT_HEADS, nc))
    return HeadConfig.consecutive(nc, heads or min(DEFAULT_HEADS, nc)) if standard or heads else None


# --- networks ---------------------------------------------------------------------------------------------------------


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
        heads = [
            super(MultiHeadDetect, self).predictions([self.own_columns(m, k) for m in raw[k]]) for k in range(len(raw))
        ]
        batch, rows = heads[0].shape[:2]
        pred = heads[0].new_zeros(batch, rows * len(raw), 5 + self.nc)
        for k, (own, (first, last)) in enumerate(zip(heads, self.place_bounds)):
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
