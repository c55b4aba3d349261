"""Dense scenes: the OTA loss on a batch of xView's shape, and with the same number of boxes spread evenly.

    python -m benchmarks.losses.dense [--quick] [--json FILE]

128 images of 640 px, 60 classes, 75,357 boxes, 4,967 of them in one image. Memory is what the loss allocates above its
inputs, counted at the dispatcher on `meta` as a GPU would allocate it; time is CPU time of one thread, forward, both
sides in turn in one process. With --quick an eighth of images and boxes.
"""

import sys
from functools import partial

import numpy as np
import torch

from benchmarks.losses.loss import CENTRAL, STRIDES, Case, head
from benchmarks.measure import cpu_seconds, in_turn, note, quick_parser, show_machine, write_json
from yolov7fast.losses.yolo_loss import ComputeLossOTA
from yolov7fast.training.memory_plan import PeakMemory

IMAGES, SIZE, CLASSES, BOXES, MOST = 128, 640, 60, 75357, 4967
GIB = 1 << 30


def targets(images: int, boxes: int, most: int, seed: int = 0) -> torch.Tensor:
    """(boxes, 6); `most` boxes in the first image, the others spread evenly; sides of 0.5 to 10% of the image's."""
    random = np.random.RandomState(seed)
    counts = np.full(images, (boxes - most) // (images - 1))
    counts[0] = most
    counts[1 : 1 + boxes - counts.sum()] += 1
    wh = np.exp(random.uniform(np.log(0.005), np.log(0.1), (boxes, 2)))
    columns = [np.repeat(np.arange(images), counts)[:, None], random.randint(0, CLASSES, (boxes, 1))]
    return torch.from_numpy(np.concatenate([*columns, random.uniform(0, 1, (boxes, 2)), wh], 1).astype(np.float32))


def raw_outputs(images: int, device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    sides = [SIZE // stride for stride in STRIDES]
    return [torch.randn(images, 3, side, side, 5 + CLASSES, device=device) for side in sides]


def run(raw: list[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    image = torch.empty(len(raw[0]), 3, SIZE, SIZE, device="meta")  # only its height is read
    return ComputeLossOTA(head(CLASSES))(raw, rows, image)[0]


def peak_gib(images: int, rows: torch.Tensor) -> float:
    """Forward and backward."""
    raw = [m.requires_grad_() for m in raw_outputs(images, "meta")]
    with PeakMemory() as memory:
        run(raw, rows).backward()
    return memory.peak / GIB


def crowd_ratio(results: dict, runs: int) -> None:
    """60 boxes an image at 320: the OTA loss against the plain one."""
    case = Case(*CENTRAL[:2], 60)
    kinds = ("plain", "ota")
    sides = {kind: partial(cpu_seconds, partial(case.forward, kind)) for kind in kinds}
    in_turn(sides, 2)  # warm
    seconds = in_turn(sides, runs)
    what = "OTA / plain forward (batch 64, 320, 60 boxes an image)"
    note(results, what, seconds["ota"] / seconds["plain"], "<= 2.0", runs)


def main(argv: list[str] | None = None) -> int:
    quick = "an eighth of the images and boxes, fewer runs"
    opt = quick_parser("benchmarks.losses.dense", __doc__, quick).parse_args(argv)
    torch.set_num_threads(1)
    part, runs = (8, 1) if opt.quick else (1, 3)
    images, boxes, most = IMAGES // part, BOXES // part, MOST // part
    results: dict = {"machine": show_machine(), "runs": runs}
    crowded, even = targets(images, boxes, most), targets(images, boxes, boxes // images)
    size = f"{images} images, {boxes} boxes, {most} in one"
    note(results, f"GiB above the inputs, {size}", peak_gib(images, crowded), "<= 1.5", 1)
    crowd_ratio(results, 3 if opt.quick else 11)
    raw = raw_outputs(images, "cpu")
    sides = {name: partial(cpu_seconds, partial(run, raw, rows)) for name, rows in (("one", crowded), ("even", even))}
    seconds = in_turn(sides, runs)
    results["seconds"] = seconds
    print(f"forward: {seconds['one']:.2f} s, spread evenly {seconds['even']:.2f} s")
    note(results, f"time / spread evenly, {size}", seconds["one"] / seconds["even"], "<= 1.5", runs)
    write_json(opt.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
