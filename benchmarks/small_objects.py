"""Do a level at stride 4 and weights of classes pay? Both over several seeds, the gain beside the spread of the seeds.

`python -m benchmarks.small_objects [--parts p2 weights] [--epochs 40] [--seeds 0 1 2] [--quick] [--json FILE]
[--train-args ..]`

p2: yolov7-tiny against yolov7-tiny-p2 on drawn images of 320 pixels, objects of 5 to 14 pixels. weights: yolov7-tiny
with and without `--class-weights auto` on a drawn set whose four classes occur as 64 : 16 : 4 : 1 in training and
evenly in validation. Each through train.py, from scratch; mAP of the last epoch. A gain counts if the worst of one side
is better than the best of the other.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

import cv2
import numpy as np

from benchmarks.measure import machine, write_json
from yolov7fast.core.errors import UserError, run_command
from yolov7fast.data.shapes import HUES, NAMES, Shape, draw_ground, draw_shape, hue_to_bgr, outline

ROOT = Path(__file__).resolve().parent.parent
SIZE = 320
COMMON = ["--hyp", "data/hyp.small.yaml", "--weights", "", "--img", str(SIZE), "--batch-size", "16", "--workers", "2"]
TINY, TINY_P2 = (["--cfg", f"cfg/training/{name}.yaml"] for name in ("yolov7-tiny", "yolov7-tiny-p2"))
PARTS = {
    "p2": {"tiny": TINY, "tiny-p2": TINY_P2},
    "weights": {"even": TINY, "auto": [*TINY, "--class-weights", "auto"]},
}
FIGURES = (("map50", "metrics/mAP_0.5", "mAP@.5"), ("map", "metrics/mAP_0.5:0.95", "mAP@.5:.95"))


# --- the sets ---------------------------------------------------------------------------------------------------------


def draw_set(folder: Path, part: str, train: int, val: int) -> Path:
    """The drawn set of a part and its data yaml."""
    for split, count, first in (("train", train, 0), ("val", val, 1_000_000)):
        images, labels = folder / "images" / split, folder / "labels" / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for i in range(count):
            rng = np.random.RandomState([part == "p2", first + i])
            image, boxes = scene(rng, part, even=split == "val")
            cv2.imwrite(str(images / f"{i:06}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 95])
            lines = [f"{c} {(a + x) / 2} {(b + y) / 2} {x - a} {y - b}\n" for c, a, b, x, y in boxes]
            (labels / f"{i:06}.txt").write_text("".join(lines))
    path = folder / f"{part}.yaml"
    path.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: {list(NAMES)}\n")
    return path


def scene(rng: np.random.RandomState, part: str, even: bool) -> tuple[np.ndarray, list[tuple]]:
    """An image and its boxes (class, left, top, right, bottom as fractions); objects do not touch."""
    image = draw_ground(rng, SIZE, SIZE)
    small = part == "p2"
    chances = np.ones(len(NAMES)) if small or even else np.array((64.0, 16.0, 4.0, 1.0))
    taken: list[tuple] = []
    for _ in range(rng.randint(8, 25) if small else rng.randint(2, 7)):
        half = rng.randint(3, 8) if small else rng.randint(12, 40)
        cls = int(rng.choice(len(NAMES), p=chances / chances.sum()))
        x, y = (int(v) for v in rng.randint(half + 2, SIZE - half - 2, 2))
        colour = hue_to_bgr(rng.randint(*HUES[cls]), rng.randint(0, 30), rng.randint(170, 245))
        shape = Shape(cls, x, y, half, half, int(rng.randint(-14, 14)), colour)
        points = outline(shape)
        (left, top), (right, bottom) = points.min(0), points.max(0) + 1
        if any(left < r + 3 and right > a - 3 and top < d + 3 and bottom > b - 3 for _, a, b, r, d in taken):
            continue
        draw_shape(image, shape, (90, -200))
        taken.append((cls, left, top, right, bottom))
    noisy = image + rng.randint(-5, 6, image.shape)
    boxes = [(c, *(float(v) / SIZE for v in np.clip(box, 0, SIZE))) for c, *box in taken]
    return np.clip(noisy, 0, 255).astype(np.uint8), boxes


# --- the runs ---------------------------------------------------------------------------------------------------------


def train(part: str, side: str, seed: int, epochs: int, data: Path, folder: Path, extra: list[str]) -> dict:
    """One run; its last figures and its minutes."""
    name = f"{part}_{side}_{seed}"
    command = ["train.py", *COMMON, *PARTS[part][side], "--data", str(data), "--epochs", str(epochs)]
    command += ["--seed", str(seed), "--eval-interval", str(max(epochs // 4, 1)), "--project", str(folder)]
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *command, "--name", name, *extra], cwd=ROOT)
    if done.returncode:
        raise UserError(f"the run {name} ended with code {done.returncode}")
    with (folder / name / "results.csv").open() as file:
        *_, last = csv.DictReader(file)
    run = {"part": part, "side": side, "seed": seed, "minutes": (time.perf_counter() - start) / 60}
    run |= {figure: float(last[column]) for figure, column, _ in FIGURES}
    print(f"{name}: mAP@.5 {run['map50']:.3f}, mAP@.5:.95 {run['map']:.3f}, {run['minutes']:.1f} min", flush=True)
    return run


def summary(runs: list[dict], part: str, figure: str, label: str) -> dict:
    """Means, gain, spread of the seeds, and whether the gain exceeds it."""
    old, new = PARTS[part]
    values = {side: sorted(r[figure] for r in runs if (r["part"], r["side"]) == (part, side)) for side in (old, new)}
    gain = mean(values[new]) - mean(values[old])
    spread = max(v[-1] - v[0] for v in values.values())
    pays = gain > spread and values[new][0] > values[old][-1]
    shown = "; ".join(f"{side} {mean(v):.3f} ({' '.join(f'{x:.3f}' for x in v)})" for side, v in values.items())
    word = "the gain exceeds the spread" if pays else "the gain does not exceed the spread"
    print(f"{part}, {label}: {shown}; gain {gain:+.3f}, seeds differ by up to {spread:.3f}: {word}")
    return {"part": part, "figure": figure, "gain": gain, "spread": spread, "pays": pays}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured")
    parser.add_argument("--epochs", type=int, default=40, help="of each run (default %(default)s)")
    parser.add_argument("--images", type=int, nargs=2, default=(240, 80), help="train and val (default 240 80)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="a run of both sides each")
    parser.add_argument("--quick", action="store_true", help="2 epochs on 16 and 8 images, one seed")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--train-args", nargs=argparse.REMAINDER, default=[], help="further arguments of train.py")
    opt = parser.parse_args()
    epochs, images, seeds = (2, (16, 8), [0]) if opt.quick else (opt.epochs, opt.images, opt.seeds)
    results = {"machine": machine(), "epochs": epochs, "images": images, "runs": [], "summary": []}
    with tempfile.TemporaryDirectory() as name:
        for part in opt.parts:
            data = draw_set(Path(name) / part, part, *images)
            for seed in seeds:
                for side in PARTS[part]:
                    results["runs"].append(train(part, side, seed, epochs, data, Path(name), opt.train_args))
    for part in opt.parts:
        results["summary"] += [summary(results["runs"], part, figure, label) for figure, _, label in FIGURES]
    write_json(opt.json, results)


if __name__ == "__main__":
    run_command(main)
