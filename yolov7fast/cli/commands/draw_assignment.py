"""Draw which cells and anchors are positives of each box, by plain, OTA and task-aligned assignment, side by side.

    python tools/draw_assignment.py --data data/shapes.yaml --weights runs/train/exp/weights/best.pt --loss all

One plot per image: a row for each level of the network, a column for each assigner. A box and all its positives have
one colour: filled squares are cells, thin frames the anchors that answer there (darker where several do). Plain takes
every cell that fits by geometry; OTA takes those that the network already finds cheapest; task-aligned assignment those
that score and overlap best, its colours fading with a positive's weight.
"""

import argparse
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.patches import Rectangle
from tqdm import tqdm

from yolov7fast.checkpoint.ensemble import attempt_load
from yolov7fast.cli.programs import program
from yolov7fast.core.device import select_device
from yolov7fast.core.drawing import class_name
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_img_size
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.evaluation.curve_plots import figure, line_colours
from yolov7fast.losses.multihead_loss import MultiHeadLoss
from yolov7fast.losses.yolo_loss import YoloLoss
from yolov7fast.nn.model import Model

SHOWN = {"plain": "plain", "ota": "OTA", "tal": "task-aligned"}
CHOICES = {**{kind: [kind] for kind in SHOWN}, "both": ["plain", "ota"], "all": list(SHOWN)}
LEGEND = "filled squares: cells given to the box of that colour;  thin frames: their anchors;  n: m = box n has m here"
SETTINGS = {"box": 1.0, "obj": 1.0, "cls": 1.0, "cls_pw": 1.0, "obj_pw": 1.0, "fl_gamma": 0.0, "anchor_t": 4.0}


class Given(NamedTuple):
    """The positives of one image, one entry for each."""

    level: np.ndarray
    anchor: np.ndarray
    row: np.ndarray
    column: np.ndarray
    target: np.ndarray  # index of the box
    weight: np.ndarray  # in the box and class loss, 0 to 1


def build_losses(model, kinds: list[str]) -> dict:
    """Of each kind, the loss for this network; gains do not matter here, `anchor_t` is the checkpoint's own."""
    loss = MultiHeadLoss if hasattr(model.model[-1], "head_config") else YoloLoss  # an auxiliary head is not drawn
    hyp = {**SETTINGS, "anchor_t": getattr(model, "hyp", SETTINGS).get("anchor_t", SETTINGS["anchor_t"])}
    seen = SimpleNamespace(model=model.model, hyp=hyp, gr=1.0)
    return {kind: loss(seen, kind) for kind in kinds}


def draw_panel(axes, image: np.ndarray, boxes: np.ndarray, colours, mine: Given, level: int, loss) -> None:
    """One level's cells and anchors over a paled image. boxes: (m, 4) pixels, centre and size."""
    axes.imshow(image)
    axes.imshow(np.full_like(image, 255), alpha=0.45)
    stride, here = float(loss.layout.stride[level]), mine.level == level
    counts = np.bincount(mine.target[here], minlength=len(boxes))
    for anchor, row, column, target, weight in zip(*(field[here] for field in mine[1:])):
        colour, shown = colours[target], 0.45 * (0.15 + 0.85 * weight)
        axes.add_patch(Rectangle((column * stride, row * stride), stride, stride, color=colour, alpha=shown, lw=0))
        w, h = loss.layout.anchors[level, anchor] * stride
        x, y = (column + 0.5) * stride - w / 2, (row + 0.5) * stride - h / 2
        axes.add_patch(Rectangle((x, y), w, h, fill=False, ec=colour, alpha=shown * 0.8, lw=0.6))
    for number, (x, y, w, h) in enumerate(boxes):
        got = counts[number]
        box = {"fill": False, "ec": colours[number], "lw": 1.8 if got else 0.8, "ls": "-" if got else ":"}
        axes.add_patch(Rectangle((x - w / 2, y - h / 2), w, h, **box))
        if got:
            label = {"color": "white", "fontsize": 6, "va": "top", "ha": "left", "clip_on": True}
            frame = {"facecolor": colours[number], "edgecolor": "none", "pad": 0.8}
            axes.text(x - w / 2, y - h / 2, f"{number}: {got}", bbox=frame, **label)
    axes.set(xlim=(0, image.shape[1]), ylim=(image.shape[0], 0), xticks=[], yticks=[])


def caption(boxes_given: dict[str, np.ndarray], classes: np.ndarray, names) -> str:
    """A line of words for every few boxes: its number, class, and how many positives each loss gave it."""
    words = []
    for number, cls in enumerate(classes):
        counts = ", ".join(f"{SHOWN[kind]} {counts[number]}" for kind, counts in boxes_given.items())
        words.append(f"{number} {class_name(names, cls)}: {counts}")
    return "\n".join("     ".join(words[i : i + 5]) for i in range(0, len(words), 5))


def draw(path: Path, image: np.ndarray, rows: np.ndarray, found: dict[str, Given], losses: dict, names) -> None:
    """rows: (m, 6) targets of the image; found: by loss, what the boxes were given."""
    height, width = image.shape[:2]
    boxes = rows[:, 2:6] * (width, height, width, height)
    colours = line_colours(max(len(rows), 1))
    levels = next(iter(losses.values())).levels
    counts = {kind: np.bincount(mine.target, minlength=len(rows)) for kind, mine in found.items()}
    text = caption(counts, rows[:, 1].astype(int), names) if len(rows) <= 40 else ""
    side, words = 4.2, 0.14 * (text.count("\n") + 1)
    size = side * len(found), side * height / width * levels + words + 0.6
    with figure(path, size, dpi=150) as fig:
        fig.suptitle(fill(LEGEND, 72 * len(found)), fontsize=6.5, ha="left", x=0.01)
        grid = fig.subplots(levels, len(found), squeeze=False)
        for column, (kind, mine) in enumerate(found.items()):
            for level in range(levels):
                axes = grid[level, column]
                draw_panel(axes, image, boxes, colours, mine, level, losses[kind])
                cells = int((mine.level == level).sum())
                title = f"{SHOWN[kind]}, stride {losses[kind].layout.stride[level]:.0f}: {cells} positives"
                axes.set_title(title, fontsize=8, pad=3)
        fig.supxlabel(text, fontsize=6.5, ha="left", x=0.01)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    row = program("draw-assignment")
    parser = row.parser()
    parser.add_argument("--data", required=True, help="data yaml")
    parser.add_argument("--weights", required=True, help="checkpoint (.pt)")
    losses = {"choices": tuple(CHOICES), "default": "all"}
    parser.add_argument("--loss", **losses, help="whose assignment to draw (default: %(default)s)")
    parser.add_argument("--split", default="val", help="train, val or test images (default: %(default)s)")
    parser.add_argument("--images", type=int, default=4, help="number of images, from the first (default: %(default)s)")
    parser.add_argument("--img-size", type=int, default=640, help="input size in pixels (default: %(default)s)")
    parser.add_argument("--device", default="", help="cuda device, e.g. 0, or cpu")
    parser.add_argument("--out", default="runs/assignment", help="folder for the plots (default: %(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    opt = parse_args(argv)
    device = select_device(opt.device)
    model = attempt_load(opt.weights, map_location=device)
    if not isinstance(model, Model):
        raise UserError(f"{opt.weights} holds a {type(model).__name__}, not a network whose assignment can be drawn")
    data = load_data_yaml(opt.data)
    if data.nc != model.model[-1].nc:
        raise UserError(f"{opt.data} has {data.nc} classes, {opt.weights} {model.model[-1].nc}: they must agree")
    assert model.stride is not None  # built networks know it
    stride = int(model.stride.max())
    size = check_img_size(opt.img_size, stride)
    dataset = LoadImagesAndLabels(data.split(opt.split), size, 1, stride=stride)
    losses = build_losses(model, CHOICES[opt.loss])
    out = Path(opt.out)
    out.mkdir(parents=True, exist_ok=True)
    for index in tqdm(range(min(opt.images, len(dataset))), desc="drawing"):
        image, targets, path, _ = dataset[index]
        with torch.no_grad():
            raw = model(image[None].to(device).float() / 255)[1]
        found = {}
        for kind, loss in losses.items():
            cells, weight = loss.weighted_cells(raw, targets, image.shape[1])
            level, _, *rest = cells.T
            found[kind] = Given(level, *rest, weight=weight)
        name = out / f"{Path(path).stem}_{opt.loss}.png"
        draw(name, image.permute(1, 2, 0).numpy(), targets.numpy(), found, losses, data.names)
    print(f"{min(opt.images, len(dataset))} plots in {out}/")
    return 0
