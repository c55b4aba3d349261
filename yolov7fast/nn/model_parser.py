"""Network descriptions (YAML mappings of `nc`, `anchors` and rows `[from, number, module, args]`) and their layers.

Every number is checked before a layer is built from it; the bounds are far beyond any detector in use and protect
against typing errors. A registry lists the blocks that a description may name and the rule for the widths of each;
other modules add blocks with `register`. Words in `args` come from a small vocabulary: expressions are not evaluated.
"""

import contextlib
import difflib
import inspect
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import nn

from yolov7fast.core.errors import UserError, is_out_of_memory, one_line, shown
from yolov7fast.core.files.paths import check_path, shipped_file
from yolov7fast.core.files.settings_files import MOST_CLASSES, is_number, is_whole, read_yaml
from yolov7fast.core.text import printable
from yolov7fast.nn import blocks as common
from yolov7fast.nn import heads
from yolov7fast.nn.class_paths import class_path

LOGGER = logging.getLogger(__name__)
MOST_WEIGHTS = 10**9  # of a network
MOST_ANCHORS = 100  # for each level
LARGEST_ANCHOR = 1e6  # pixels
MOST_ROWS = 10_000
MOST_REPEATS = 1_000
MOST_CHANNELS = 1 << 16
LARGEST_MULTIPLE = 1_000.0
LARGEST_ARGUMENT = 1 << 16  # kernel sizes and the like


# --- reading and checking a description -------------------------------------------------------------------------------


def read_description(path: str | Path) -> dict:
    """The mapping in a model YAML, or in a shipped one of that path or name.

    A key `base` names another file in the same folder, whose keys this file overrides; the key `last` replaces the last
    row of its head.
    """
    check_path(path)
    path = path if Path(path).is_file() else shipped_file(str(path), "cfg") or path
    description = read_mapping(path)
    if "base" not in description:
        return description
    named = description.pop("base")
    if not isinstance(named, str):
        raise UserError(f"{path}: `base` must name a file in the same folder, not {shown(named)}")
    base = Path(path).parent / named
    below = read_mapping(base)
    if "base" in below:
        raise UserError(f"{path}: its base {base} has a base itself; name that one")
    if "last" in description:
        check_description(below, str(base))
        description["head"] = [*below["head"][:-1], description.pop("last")]
    return below | description


def read_mapping(path: str | Path) -> dict:
    mapping = read_yaml(path, remedy="give a model description such as cfg/training/yolov7.yaml")
    if not isinstance(mapping, dict):
        raise UserError(f"{path}: is not a model description; it must contain nc, anchors, backbone and head")
    return mapping


def check_description(d: dict, file: str) -> None:
    """UserError unless the required keys are present, with valid types and values."""
    for key in ("nc", "anchors", "backbone", "head"):
        if d.get(key) is None:
            raise UserError(f"{file}: key `{key}` is missing")
    for key in ("backbone", "head"):
        if not isinstance(d[key], list):
            raise UserError(f"{file}: `{key}` must be a list of rows [from, number, module, arguments]")
    if len(d["backbone"]) + len(d["head"]) > MOST_ROWS:
        raise UserError(f"{file}: backbone and head have more than {MOST_ROWS:,} rows")
    if not is_whole(d["nc"], 1, MOST_CLASSES):
        raise UserError(f"{file}: `nc` must be a whole number of classes, 1 to {MOST_CLASSES:,}, not {shown(d['nc'])}")
    if not is_whole(d.get("ch", 3), 1, MOST_CHANNELS):
        raise UserError(f"{file}: `ch` must be the number of channels of an image, not {shown(d['ch'])}")
    check_anchors(d["anchors"], file)
    for key in ("depth_multiple", "width_multiple"):
        value = d.get(key, 1.0)
        if not is_number(value, 0, LARGEST_MULTIPLE) or value == 0:
            limits = f"above 0, at most {LARGEST_MULTIPLE:g}"
            raise UserError(f"{file}: `{key}` must be a number {limits}, not {shown(value)}")


def check_anchors(anchors: Any, where: str) -> None:
    """UserError unless anchors are lists of pixels for each level, or their number per level."""
    if is_whole(anchors, 1, MOST_ANCHORS):
        return
    rows = anchors if isinstance(anchors, list) and anchors and isinstance(anchors[0], list) else None
    if not rows or any(not isinstance(row, list) or len(row) != len(rows[0]) for row in rows):
        raise UserError(
            f"{where}: anchors must be one list of width, height pairs for each level, all of one length, "
            f"or the number of anchors for each level (1 to {MOST_ANCHORS}), not {shown(anchors)}"
        )
    if len(rows[0]) % 2 or not 2 <= len(rows[0]) <= 2 * MOST_ANCHORS or len(rows) > MOST_ROWS:
        raise UserError(f"{where}: anchors must be 1 to {MOST_ANCHORS} pairs of width, height for each level")
    for value in (value for row in rows for value in row):
        if not is_number(value, 0, LARGEST_ANCHOR):
            raise UserError(f"{where}: anchors must be widths and heights in pixels, not {shown(value)}")


def check_sources(sources: Any, index: int, where: str) -> None:
    """UserError unless `from` names earlier layers, counted from the start or, negative, from this layer."""
    for value in sources if isinstance(sources, list) else [sources]:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{where}: `from` must be a whole number or a list of them, not {shown(sources)}")
        if index == 0 and value != -1:
            raise UserError(f"{where}: `from` of the first layer must be -1 (the image), not {value}")
        if index and not -index <= value < index:
            raise UserError(f"{where}: `from` {value} is not an earlier layer; use {-index} to {index - 1}")


def check_arguments(args: list, where: str, depth: int = 3) -> None:
    """UserError for numbers in a row's arguments, or in lists among them, that are out of range."""
    for value in args:
        if isinstance(value, list) and depth:
            check_arguments(value, where, depth - 1)
        elif isinstance(value, list):
            raise UserError(f"{where}: lists are nested too deeply in its arguments")
        elif isinstance(value, int | float) and not is_number(float(value), -LARGEST_ARGUMENT, LARGEST_ARGUMENT):
            raise UserError(f"{where}: the argument {shown(value)} is out of range: at most {LARGEST_ARGUMENT:,}")


# --- the registry -----------------------------------------------------------------------------------------------------


class Resolved(NamedTuple):
    """The result of a width rule for a row."""

    args: list  # the constructor's arguments
    width: int  # channels of the output
    repeats: int  # how many instances run one after another


@dataclass(frozen=True)
class Block:
    """A module class that descriptions may name, and the rule that resolves its rows."""

    cls: type[nn.Module]
    rule: Callable[["Row"], Resolved]


BLOCKS: dict[str, Block] = {}
PARTS: list[type[nn.Module]] = [common.ImplicitA, common.ImplicitM]  # inside blocks, never named in a row


def register(name: str, cls: type[nn.Module], rule: Callable[["Row"], Resolved], parts=()) -> None:
    """Add a block. parts: classes of the project that it contains, which checkpoints may then contain."""
    BLOCKS[name] = Block(cls, rule)
    PARTS.extend(part for part in parts if part not in PARTS)


def known_classes() -> dict[str, type[nn.Module]]:
    """Dotted path -> class, of every block and part, which checkpoints may contain."""
    return {class_path(cls): cls for cls in [*(block.cls for block in BLOCKS.values()), *PARTS]}


# --- a row and the rules for its widths -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One row, its words already resolved, with the widths that rules need."""

    where: str  # "file, layer 3 (Conv)": how messages name it
    block: Block
    sources: int | list[int]  # `from` as written
    widths: list[int]  # channels of each source
    previous: int  # channels of the row before
    repeats: int  # the row's number, after depth_multiple
    args: list
    width_multiple: float
    head_width: int  # anchors x (classes + 5): a block asking for exactly this is never scaled

    @property
    def indices(self) -> list[int]:
        return self.sources if isinstance(self.sources, list) else [self.sources]

    def fail(self, problem: str) -> NoReturn:
        raise UserError(f"{self.where}: {problem}")

    @property
    def width(self) -> int:
        """Channels of the only source."""
        if isinstance(self.sources, list):
            self.fail(
                f"takes one source, but `from` is {shown(self.sources)}; write a single number, or Concat them first"
            )
        return self.widths[0]

    def listed(self, least: int = 1) -> list[int]:
        """Channels of the sources of a block that takes a list."""
        if not isinstance(self.sources, list) or len(self.sources) < least:
            given = shown(self.sources)
            self.fail(f"takes a list of {least} or more sources, but `from` is {given}; write [-1, 5] or the like")
        return self.widths


def scaled(row: Row) -> Resolved:
    """(c1, c2, rest): c2 is the first argument times width_multiple, rounded up to a multiple of 8."""
    c1 = row.width
    if not row.args or not is_number(row.args[0], 0, MOST_CHANNELS):
        row.fail(f"its first argument must be the number of output channels, but the arguments are {shown(row.args)}")
    asked = row.args[0]
    c2 = int(asked) if asked == row.head_width else math.ceil(asked * row.width_multiple / 8) * 8
    return Resolved([c1, c2, *row.args[1:]], c2, row.repeats)


def scaled_counted(row: Row) -> Resolved:
    """As `scaled`; the repeat count is the third argument of the block instead."""
    (c1, c2, *rest), width, repeats = scaled(row)
    return Resolved([c1, c2, repeats, *rest], width, 1)


def same_width(row: Row) -> Resolved:
    return Resolved(row.args, row.width, row.repeats)


def summed_widths(row: Row) -> Resolved:
    return Resolved(row.args, sum(row.listed()), row.repeats)


def first_width(row: Row) -> Resolved:
    return Resolved(row.args, row.listed(least=2)[0], row.repeats)


def quadrupled(row: Row) -> Resolved:
    return Resolved(row.args, 4 * row.width, row.repeats)


def detection_head(row: Row) -> Resolved:
    """(nc, anchors, ..., widths of all sources). An anchor count gives placeholders 0, 1, 2, ... on every level."""
    widths = list(row.listed())
    if len(row.args) < 2:
        row.fail(f"a head's arguments are [nc, anchors], not {shown(row.args)}")
    nc, anchors, *rest = row.args
    per_level = cast("type[heads.Detect]", row.block.cls).inputs_per_level
    check_anchors(anchors, row.where)
    if isinstance(anchors, int):
        anchors = [list(range(2 * anchors))] * (len(widths) // per_level)
    if not anchors:
        row.fail(f"takes {per_level} or more sources, but `from` lists {len(widths)}")
    if len(anchors) * per_level != len(widths):
        levels = f"{len(anchors)} levels of anchors need {len(anchors) * per_level} sources"
        row.fail(f"{levels}, but `from` lists {len(widths)}")
    return Resolved([nc, anchors, *rest, widths], row.previous, row.repeats)


for _names, _rule in {
    "Conv RepConv": scaled,
    "DownC SPPCSPC": scaled_counted,
    "MP SP": same_width,
    "Concat": summed_widths,
    "Shortcut": first_width,
    "ReOrg": quadrupled,
}.items():
    for _name in _names.split():
        register(_name, getattr(common, _name), _rule)
for _name in ("Detect", "IDetect", "IAuxDetect"):
    register(_name, getattr(heads, _name), detection_head)
register("nn.Conv2d", nn.Conv2d, scaled)
for _name in ("Upsample", "MaxPool2d", "Identity"):
    register(f"nn.{_name}", getattr(nn, _name), same_width)


# --- words in the arguments of a row ----------------------------------------------------------------------------------

ACTIVATIONS = ("SiLU", "LeakyReLU", "ReLU", "ReLU6", "Hardswish", "Mish", "GELU", "Sigmoid", "Tanh", "Identity")
_CALL = re.compile(r"nn\.(\w+)\(\s*([-+.\deE]*)\s*\)")


def resolve_word(word: Any, nc: int, anchors: Any, where: str) -> Any:
    """An element of `args`: `None`, `nc`, `anchors`, `nn.LeakyReLU(0.1)` and the like; plain words stay strings."""
    if not isinstance(word, str):
        return word
    fixed = {"None": None, "True": True, "False": False, "nc": nc, "anchors": anchors}
    if word in fixed:
        return fixed[word]
    call = _CALL.fullmatch(word)
    if call and call[1] in ACTIVATIONS:
        with contextlib.suppress(TypeError, ValueError):  # reported below
            values = [float(call[2])] if call[2] else []
            check_arguments(values, where)
            return getattr(nn, call[1])(*values)
    elif word.isidentifier():
        return word
    known = ", ".join(f"nn.{name}()" for name in ACTIVATIONS)
    raise UserError(
        f"{where}: argument `{printable(word, 80)}` is not understood; "
        f"known are None, nc, anchors, plain words and {known}"
    )


def find_block(name: Any, where: str) -> Block:
    if isinstance(name, str) and name in BLOCKS:
        return BLOCKS[name]
    near = difflib.get_close_matches(name[:100] if isinstance(name, str) else "", BLOCKS, 1, 0)[0]
    raise UserError(f"{where}: there is no block `{block_name(name)}`; the nearest known name is `{near}`")


def block_name(name: Any) -> str:
    """The name of a block for messages."""
    return printable(name, 60) if isinstance(name, str) else shown(name)


# --- a whole description ----------------------------------------------------------------------------------------------


def parse_model(d: dict, ch: list[int], file: str = "model description") -> tuple[nn.Sequential, list[int]]:
    """Build the layers of a description.

    ch: [channels of the input]. Returns the layers, each with `i` (index), `f` (its `from`), `type` (class path) and
    `np` (parameters), and the sorted indices of the outputs that later layers read. Weights are drawn in row order.
    """
    check_description(d, file)
    LOGGER.debug("%3s%18s%3s%10s  %-40s%-30s", "", "from", "n", "params", "module", "arguments")
    layers, save, weights = [], [], 0
    widths = list(ch)  # of each layer's output; before the first one, of the input
    for i, written in enumerate([*d["backbone"], *d["head"]]):
        row = make_row(d, i, written, widths, file)
        resolved = row.block.rule(row)
        if not is_whole(resolved.width, 0, MOST_CHANNELS):
            row.fail(f"its output has {shown(resolved.width)} channels: at most {MOST_CHANNELS:,} are possible")
        layer: Any = build_layer(row, resolved, MOST_WEIGHTS - weights)
        layer.i, layer.f, layer.type = i, row.sources, class_path(row.block.cls)
        layer.np = sum(p.numel() for p in layer.parameters())
        weights += layer.np
        LOGGER.debug("%3s%18s%3s%10d  %-40s%-30s", i, row.sources, row.repeats, layer.np, layer.type, resolved.args)
        save.extend(j % i for j in row.indices if j != -1)
        layers.append(layer)
        widths = [*widths, resolved.width] if i else [resolved.width]
    if not layers:
        raise UserError(f"{file}: backbone and head hold no layer")
    return nn.Sequential(*layers), sorted(save)


def make_row(d: dict, index: int, written: Any, widths: list[int], file: str) -> Row:
    """Check a row of the file and resolve its words and numbers."""
    if not isinstance(written, list) or len(written) != 4 or not isinstance(written[3], list):
        raise UserError(f"{file}, layer {index}: a row is [from, number, module, [arguments]], not {shown(written)}")
    sources, repeats, name, args = written
    where = f"{file}, layer {index} ({block_name(name)})"
    block = find_block(name, where)
    check_sources(sources, index, where)
    check_arguments(args, where)
    if is_whole(repeats, 2, MOST_REPEATS):
        repeats = max(round(repeats * d.get("depth_multiple", 1.0)), 1)
    if not is_whole(repeats, 0, MOST_REPEATS):
        raise UserError(
            f"{where}: the repeat count must be a whole number, at most {MOST_REPEATS:,}, not {shown(repeats)}"
        )
    nc, anchors = d["nc"], d["anchors"]
    na = anchors if isinstance(anchors, int) else len(anchors[0]) // 2
    return Row(
        where=where,
        block=block,
        sources=sources,
        widths=[widths[j] for j in (sources if isinstance(sources, list) else [sources])],
        previous=widths[-1],
        repeats=repeats,
        args=[resolve_word(word, nc, anchors, where) for word in args],
        width_multiple=d.get("width_multiple", 1.0),
        head_width=na * (nc + 5),
    )


def build_layer(row: Row, resolved: Resolved, most_weights: int) -> nn.Module:
    """The module of a row; where repeated, a Sequential of modules with the same arguments.

    most_weights: of all repeats. They are counted on the meta device, without memory or random draws.
    """
    cls, args, repeats = row.block.cls, resolved.args, max(resolved.repeats, 1)
    signature = inspect.signature(cls)
    try:
        signature.bind(*args)
    except TypeError:
        supplied = len(args) - len(row.args)
        hint = f", of which the sources give {supplied}" if supplied else ""
        row.fail(f"the arguments {shown(row.args)} do not fit {cls.__name__}{signature}{hint}")
    try:
        with torch.device("meta"):
            weights = sum(p.numel() for p in cls(*args).parameters()) * repeats
        if weights > most_weights:
            raise UserError(f"has {weights:,} weights; at most {MOST_WEIGHTS:,} are possible in a network")
        modules = [cls(*args) for _ in range(repeats)]
    except Exception as error:  # PyTorch raises exceptions of every type for invalid values
        if is_out_of_memory(error):
            raise
        row.fail(f"cannot be built from {shown(row.args)}: {one_line(error, 200)}")
    return nn.Sequential(*modules) if repeats > 1 else modules[0]
