"""Recall of small objects in large images, with and without `detect.py --slice`.

    python -m benchmarks.inference.slicing --weights best.pt [--images 20] [--side 5] [--img-size 224] [--json FILE]

Every large image is a square of side x side scenes of the project's own data set, each 400 pixels wide, so that its
objects are as large as in training at full resolution and small once the image is shrunk to --img-size. The weights are
those of `make train` (data/shapes.yaml). An object counts as found by a box of its class with an IoU of at least 0.5.
"""

import argparse
import sys

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.measure import show_machine, write_json
from yolov7fast.core.boxes import box_iou
from yolov7fast.data.shapes import draw_scene
from yolov7fast.inference.detection_loop import detect_batch, detect_tiles
from yolov7fast.inference.slicing import Slicing
from yolov7fast.inference.sources import Frame, network_input
from yolov7fast.predictors.predictor import PredictOptions, load_predictor

SCENE = 400
SMALL = 32**2  # px², at the size that the whole image is shrunk to: COCO's bound of small objects


def large_image(number: int, side: int) -> tuple[np.ndarray, torch.Tensor]:
    """An image of side x side scenes, and its labels (n, 5): class, x1, y1, x2, y2 in pixels."""
    canvas = np.full((side * SCENE, side * SCENE, 3), 114, np.uint8)
    labels = []
    for place in range(side * side):
        scene, boxes = draw_scene(1, number * side * side + place, SCENE)
        y, x = place // side * SCENE, place % side * SCENE
        canvas[y : y + scene.shape[0], x : x + scene.shape[1]] = scene
        labels += [(cls, x1 + x, y1 + y, x2 + x, y2 + y) for cls, x1, y1, x2, y2 in boxes]
    return canvas, torch.tensor(labels, dtype=torch.float32)


def found(labels: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Which labels a box of their class covers."""
    if not len(boxes):
        return torch.zeros(len(labels), dtype=torch.bool)
    same = labels[:, :1] == boxes[None, :, 5]
    return ((box_iou(labels[:, 1:], boxes[:, :4]) >= 0.5) & same).any(1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.inference.slicing", description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--side", type=int, default=5)
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--slice", type=int, default=SCENE)
    parser.add_argument("--json")
    opt = parser.parse_args(argv)
    predictor = load_predictor(opt.weights, torch.device("cpu"), PredictOptions())
    slicing = Slicing(opt.slice)
    seen: dict[str, list[torch.Tensor]] = {"whole": [], "sliced": [], "small": []}
    boxes_in_all = {"whole": 0, "sliced": 0}
    for number in tqdm(range(opt.images), desc="images"):
        image, labels = large_image(number, opt.side)
        frame = Frame(str(number), network_input(image, opt.img_size, predictor.stride, False), image, "image")
        (whole,) = detect_batch([frame], predictor)
        sliced = detect_tiles(whole, predictor, opt.img_size, 8, slicing)
        ratio = opt.img_size / max(image.shape[:2])
        area = (labels[:, 3] - labels[:, 1]) * (labels[:, 4] - labels[:, 2]) * ratio**2
        seen["small"].append(area < SMALL)
        for name, detected in (("whole", whole), ("sliced", sliced)):
            seen[name].append(found(labels, detected.boxes))
            boxes_in_all[name] += len(detected.boxes)
    joined = {name: torch.cat(values) for name, values in seen.items()}
    small = joined["small"]
    recall = {name: float(joined[name][small].float().mean()) for name in ("whole", "sliced")}
    print(f"{len(small)} objects, {int(small.sum())} of them small in images of {opt.side * SCENE} px")
    for name, value in recall.items():
        print(f"{name:<8} recall of small objects {value:.3f}, {boxes_in_all[name]} boxes")
    figures = {"recall": recall, "boxes": boxes_in_all, "small": int(small.sum())}
    write_json(opt.json, {"machine": show_machine()} | figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
