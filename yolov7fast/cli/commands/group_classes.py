"""Distribute the classes of a data set over the heads of a multi-head network, by the geometry of their boxes.

    python tools/group_classes.py --data data/shapes.yaml --heads 2 --img-size 320

Reads the training labels, groups classes whose boxes are alike in aspect ratio and area (k-means on the class means),
prints a table, and writes the head configuration (for --head-config) and a plot of the groups beside it.
"""

import json
from pathlib import Path

import numpy as np
import yaml

from yolov7fast.cli.programs import program
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.text import printable
from yolov7fast.data.class_groups import (
    ClassGeometry,
    class_geometry,
    geometry_config,
    group_ratio,
    training_geometry,
)
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.evaluation.curve_plots import figure, line_colours
from yolov7fast.nn.head_config import HeadConfig


def read_annotations(path: str | Path, nc: int) -> ClassGeometry:
    """Geometry from a COCO instances file, in pixels of the original images; categories in order of their ids."""
    try:
        content = json.loads(Path(path).read_bytes())
        classes = {category: i for i, category in enumerate(sorted({c["id"] for c in content["categories"]}))}
        rows = np.array([(classes[a["category_id"]], *box_sides(a["bbox"])) for a in content["annotations"]], float)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = printable(f"{type(error).__name__}: {error}", 200)
        raise UserError(f"{path} is not a readable COCO instances file ({reason})") from None
    if not np.isfinite(rows).all():
        raise UserError(f"{path}: a bbox has sides that are not finite")
    if len(classes) != nc:
        raise UserError(f"{path} has {len(classes)} categories, the data yaml {nc} classes")
    cls, width, height = rows.reshape(-1, 3).T
    return class_geometry(cls, width, height, nc)


def box_sides(bbox: list[float]) -> tuple[float, float]:
    _, _, width, height = bbox
    return width, height


def table(config: HeadConfig, geometry: ClassGeometry, names: list[str]) -> str:
    """The groups in words: one line a head, then its classes."""
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


def config_text(config: HeadConfig, names: list[str], title: str, notes: list[str], data: dict | None = None) -> str:
    """The YAML file: readable by a person, the name of every class in a comment.

    data: keys that are ignored here and make the file serve as data yaml too (train, val).
    """
    lines = [f"# {line}" for line in title.splitlines()]
    lines += ["", f"nc: {config.nc}  # classes in all", f"heads: {config.heads}  # number of heads"]
    lines += [f"grouping: {config.grouping}  # how the groups came about", "", "head_assignments:"]
    for h, ids in enumerate(config.classes):
        name = yaml.safe_dump(config.names[h], default_flow_style=True).splitlines()[0]
        lines += [f"  head_{h}:  # {notes[h]}", f"    name: {name}"]
        lines += [f"    weight: {config.weights[h]!r}  # of this head in the loss"]
        lines += ["    classes:  # global ids; their order gives the ids within the head"]
        lines += [f"      - {c}  # {' '.join(names[c].split())}" for c in ids]
    values = {**(data or {}), "names": names}
    lines += ["", "# not needed for the heads: names for error messages" + " and, with nc, a data yaml" * bool(data)]
    lines += yaml.safe_dump(
        values, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    ).splitlines()
    return "\n".join(lines) + "\n"


def checked_output(output: Path, inputs: list[str]) -> Path:
    """Where the file may be written; the plot goes beside it."""
    if output.suffix not in (".yaml", ".yml"):
        raise UserError(f"--output {output}: a head configuration is a YAML file; give a name that ends in .yaml")
    if output.is_dir():
        raise UserError(f"--output {output} is a folder; give the name of a file in it")
    if any(Path(file).exists() and output.exists() and output.samefile(file) for file in inputs):
        raise UserError(f"--output {output} is what the classes are read from; give another name")
    if not output.parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.parent}; make it, or give another")
    return output


def write(output: Path, text: str, exist_ok: bool) -> None:
    """Write the file, but never over one that says something else: it may have been edited."""
    if output.exists() and not exist_ok and output.read_bytes() != text.encode():
        raise UserError(f"{output} exists and differs: give another name with --output, or --exist-ok to replace it")
    write_atomically(output, text)


def draw(config: HeadConfig, geometry: ClassGeometry, names: list[str], path: Path) -> None:
    """Classes as dots over mean w/h and mean size, coloured by head, larger with more boxes."""
    area = 20 + 180 * np.sqrt(geometry.count / geometry.count.max())
    with figure(path, (10, 7), dpi=120) as fig:
        ax = fig.subplots()
        for h, (ids, colour) in enumerate(zip(config.classes, line_colours(config.heads))):
            x, y = np.exp(geometry.log_ratio[list(ids)]), np.exp(geometry.log_side[list(ids)])
            label = f"head_{h}: {config.names[h]}, {len(ids)} classes, w/h {group_ratio(geometry, ids):.2f}"
            ax.scatter(x, y, area[list(ids)], color=colour, alpha=0.6, label=label)
            for c, px, py in zip(ids, x, y):
                ax.annotate(names[c], (px, py), (3, 3), textcoords="offset points", fontsize=7)
        ax.set_xscale("log")
        ax.set_yscale("log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("{x:g}")
        ax.set_xlabel("mean width / height of a class's boxes")
        ax.set_ylabel("mean side in pixels, sqrt(width * height)")
        ax.set_title(f"{config.nc} classes on {config.heads} heads ({config.grouping})")
        ax.legend(fontsize=8)


def main() -> None:
    parser = program("group-classes").parser(__doc__)
    parser.add_argument("--data", required=True, help="data yaml")
    parser.add_argument("--heads", type=int, default=4, help="number of heads (default: %(default)s)")
    parser.add_argument("--img-size", type=int, default=640, help="size boxes are measured at (default: %(default)s)")
    parser.add_argument(
        "--balanced", action="store_true", help="give every head the same number of classes, or one less"
    )
    parser.add_argument("--ratio-only", action="store_true", help="leave the area out: the exact grouping by w/h alone")
    parser.add_argument("--annotations", default="", help="COCO instances file to read boxes from, not the label files")
    parser.add_argument("--output", type=Path, help="file to write (default: DATA_Nheads_geometry.yaml beside DATA)")
    parser.add_argument("--exist-ok", action="store_true", help="replace a file of that name that says something else")
    opt = parser.parse_args()
    if opt.img_size < 32:
        raise UserError("--img-size must be at least 32")
    data = load_data_yaml(opt.data)
    beside = Path(data.path).with_name(f"{Path(data.path).stem}_{opt.heads}heads_geometry.yaml")
    output = checked_output(opt.output or beside, [data.path, opt.annotations])
    if opt.annotations:
        geometry = read_annotations(opt.annotations, data.nc)
    else:
        geometry = training_geometry(data, opt.img_size)
    config = geometry_config(geometry, opt.heads, not opt.ratio_only, opt.balanced)
    print(table(config, geometry, data.names))
    notes = [f"mean w/h {group_ratio(geometry, ids):.2f}" for ids in config.classes]
    title = (
        f"Heads for {Path(data.path).name}, grouped by box geometry at {opt.img_size} pixels (tools/group_classes.py)."
    )
    write(output, config_text(config, data.names, title, notes), opt.exist_ok)
    draw(config, geometry, data.names, output.with_suffix(".png"))
    print(
        f"written: {output} and {output.with_suffix('.png')}\nuse it with: --heads {opt.heads} --head-config {output}"
    )
