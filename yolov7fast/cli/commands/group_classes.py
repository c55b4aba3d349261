"""Assign the classes of a data set to the heads of a multi-head network, by the geometry of their boxes.

    yolov7fast data heads data/shapes.yaml --heads 2 --img-size 320

Groups classes whose training boxes are similar in aspect ratio and area (k-means on the class means), prints a table,
and writes the head configuration (for --head-config).
"""

import argparse
from pathlib import Path

import numpy as np
import yaml

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.data.class_groups import ClassGeometry, geometry_config, group_ratio, training_geometry
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.nn.multihead import HeadConfig

SUMMARY = "assign the classes of a data set to the heads of a multi-head network, by the shape of their boxes"


def table(config: HeadConfig, geometry: ClassGeometry, names: list[str]) -> str:
    """The groups as text: one line for each head, then its classes."""
    total = geometry.count.sum()
    lines = [f"{'head':<8}{'shape':<8}{'classes':>8}{'boxes':>10}{'boxes %':>8}{'w/h':>7}{'side':>7}"]
    for h, ids in enumerate(config.classes):
        count = geometry.count[list(ids)].sum()
        side = np.exp(geometry.log_side[list(ids)].mean())
        lines.append(
            f"head_{h:<3}{config.names[h]:<8}{len(ids):>8}{count:>10}{count / total:>8.1%}"
            f"{group_ratio(geometry, ids):>7.2f}{side:>7.0f}"
        )
        lines.append("        " + ", ".join(f"{names[c]} ({c})" for c in ids))
    return "\n".join(lines)


def config_text(config: HeadConfig, names: list[str], title: str, notes: list[str]) -> str:
    """The YAML file, with the name of every class in a comment. notes: one for each head."""
    lines = [f"# {title}", "", f"nc: {config.nc}  # number of classes", f"heads: {config.heads}  # number of heads"]
    lines += [f"grouping: {config.grouping}  # how the groups were chosen", "", "head_assignments:"]
    for h, ids in enumerate(config.classes):
        name = yaml.safe_dump(config.names[h], default_flow_style=True).splitlines()[0]
        lines += [f"  head_{h}:  # {notes[h]}", f"    name: {name}"]
        lines += [f"    weight: {config.weights[h]!r}  # of this head in the loss"]
        lines += ["    classes:  # global ids; their order gives the ids within the head"]
        lines += [f"      - {c}  # {' '.join(names[c].split())}" for c in ids]
    dumped = yaml.safe_dump({"names": names}, allow_unicode=True, width=110, default_flow_style=None)
    lines += ["", "# not needed for the heads: names for error messages", *dumped.splitlines()]
    return "\n".join(lines) + "\n"


def write(output: Path, text: str, exist_ok: bool) -> None:
    """Write the file; one with other content, which may have been edited, is only replaced with --exist-ok."""
    if output.exists() and not exist_ok and output.read_bytes() != text.encode():
        raise UserError(f"{output} exists and differs: give another name with --output, or --exist-ok to replace it")
    write_atomically(output, text)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", help="data YAML, folder, .zip, COCO .json or .csv")
    parser.add_argument("--heads", type=int, default=4, help="number of heads")
    parser.add_argument("--img-size", type=int, default=640, help="size boxes are measured at")
    parser.add_argument("--ratio-only", action="store_true", help="ignore the area: exact grouping by w/h only")
    parser.add_argument("--output", type=Path, help="file to write; default: DATA_Nheads_geometry.yaml next to DATA")
    parser.add_argument("--exist-ok", action="store_true", help="replace an existing file with other content")


def run(opt: argparse.Namespace) -> None:
    if opt.img_size < 32:
        raise UserError("--img-size must be at least 32")
    data = load_data_yaml(opt.data)
    path = Path(data.path)
    output = opt.output or path.with_name(f"{path.stem}_{opt.heads}heads_geometry.yaml")
    if output.suffix not in (".yaml", ".yml") or output.is_dir() or (output.exists() and output.samefile(data.path)):
        raise UserError(f"--output {output}: give the name of a new .yaml file, the head configuration")
    geometry = training_geometry(data, opt.img_size)
    config = geometry_config(geometry, opt.heads, not opt.ratio_only)
    print(table(config, geometry, data.names))
    notes = [f"mean w/h {group_ratio(geometry, ids):.2f}" for ids in config.classes]
    title = f"Heads for {path.name}, grouped by box geometry at {opt.img_size} pixels (yolov7fast data heads)."
    write(output, config_text(config, data.names, title, notes), opt.exist_ok)
    print(f"written: {output}\nuse it with: --heads {opt.heads} --head-config {output}")
