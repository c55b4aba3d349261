"""Network descriptions: YAML mappings of `nc`, `anchors` and rows `[from, number, module, args]`, read and checked.

Every number is bounded here, before a layer is built from it. The bounds are far beyond any detector in use; they keep
a slip of the pen from taking all memory.
"""

from pathlib import Path
from typing import Any

from yolov7fast.core.bounded import MOST_CLASSES, is_number, is_whole
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.paths import check_path
from yolov7fast.core.files.shipped import shipped_file
from yolov7fast.core.files.yaml_file import read_yaml

MOST_ANCHORS = 100  # for each level
LARGEST_ANCHOR = 1e6  # pixels
MOST_ROWS = 10_000
MOST_REPEATS = 1_000
MOST_CHANNELS = 1 << 16
LARGEST_MULTIPLE = 1_000.0
LARGEST_ARGUMENT = 1 << 16  # kernel sizes and the like


def read_description(path: str | Path) -> dict:
    """The mapping in a model YAML, or in a shipped one of that path or name.

    A key `base` names another file in the same folder, whose keys this one replaces; of its head, the key `last`
    replaces the last row.
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
        raise UserError(f"{path}: is no model description; it must hold nc, anchors, backbone and head")
    return mapping


def check_description(d: dict, file: str) -> None:
    """Keys that must be there, of the kind they must be, within bounds."""
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
    """Pixels for each level, or how many for each level."""
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
    """`from`: one or several earlier layers, counted from the start or, negative, back from this one."""
    for value in sources if isinstance(sources, list) else [sources]:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{where}: `from` must be a whole number or a list of them, not {shown(sources)}")
        if index == 0 and value != -1:
            raise UserError(f"{where}: `from` of the first layer must be -1 (the image), not {value}")
        if index and not -index <= value < index:
            raise UserError(f"{where}: `from` {value} is no earlier layer; use {-index} to {index - 1}")


def check_arguments(args: list, where: str, depth: int = 3) -> None:
    """Numbers among a row's arguments, and in lists among them, within bounds."""
    for value in args:
        if isinstance(value, list) and depth:
            check_arguments(value, where, depth - 1)
        elif isinstance(value, list):
            raise UserError(f"{where}: lists stand too deep in its arguments")
        elif isinstance(value, int | float) and not is_number(float(value), -LARGEST_ARGUMENT, LARGEST_ARGUMENT):
            raise UserError(f"{where}: the argument {shown(value)} is out of range: at most {LARGEST_ARGUMENT:,}")
