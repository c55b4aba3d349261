"""Does a level at stride 4 pay? Over several seeds, the gain beside the spread of the seeds.

`python -m benchmarks.learning.small_objects [--parts tiny-p2 p2] [--width 0.25] [--epochs 30] [--seeds 0 1 2]
[--quick] [--json FILE] [--train-args ..]`

tiny-p2, p2: yolov7-tiny and yolov7 against their P2 configurations on drawn images of 128 pixels, objects of 5 to 14
pixels, of one class: finding them is measured, not naming them. Each as train.py does it, from scratch, the networks at
`--width` of their channels; mAP of the last epoch. A gain counts if it exceeds the spread of the seeds and the worst
run of one side is better than the best of the other. Runs that are in the JSON file already are not repeated.
"""

import argparse
import csv
import json
import tempfile
import time
from pathlib import Path
from statistics import mean

import cv2
import numpy as np
import yaml

from benchmarks.measure import machine, write_json
from yolov7fast.cli.parser import parser_for
from yolov7fast.commands.train import main as train_command
from yolov7fast.core.errors import UserError, run_command
from yolov7fast.data.shapes import HUES, NAMES, Shape, draw_ground, draw_shape, hue_to_bgr, outline

ROOT = Path(__file__).resolve().parents[2]
SIZE = 128
BATCH = 8
COMMON = ["--weights", "", "--img", str(SIZE), "--batch-size", str(BATCH), "--workers", "1", "--cache-images"]
PARTS = {  # of each part its two sides: network, further arguments of train.py
    "tiny-p2": {"tiny": ("yolov7-tiny", ["--single-cls"]), "tiny-p2": ("yolov7-tiny-p2", ["--single-cls"])},
    "p2": {"yolov7": ("yolov7", ["--single-cls"]), "yolov7-p2": ("yolov7-p2", ["--single-cls"])},
}
HYP = {"nominal_batch": BATCH, "mosaic": 0.5, "scale": 0.2}  # against hyp.small.yaml: runs this short need less change
FIGURES = (("map50", "metrics/mAP_0.5", "mAP@.5"), ("map", "metrics/mAP_0.5:0.95", "mAP@.5:.95"))


# --- the sets ---------------------------------------------------------------------------------------------------------


def draw_set(folder: Path, part: str, train: int, val: int) -> Path:
    """The drawn set of a part and its data yaml."""
    for split, count, first in (("train", train, 0), ("val", val, 1_000_000)):
        images, labels = folder / "images" / split, folder / "labels" / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for i in range(count):
            image, boxes = scene(np.random.RandomState([1, first + i]))
            cv2.imwrite(str(images / f"{i:06}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 95])
            lines = [f"{c} {(a + x) / 2} {(b + y) / 2} {x - a} {y - b}\n" for c, a, b, x, y in boxes]
            (labels / f"{i:06}.txt").write_text("".join(lines))
    path = folder / f"{part}.yaml"
    path.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: {list(NAMES)}\n")
    return path


def scene(rng: np.random.RandomState) -> tuple[np.ndarray, list[tuple]]:
    """An image and its boxes (class, left, top, right, bottom as fractions); objects do not touch."""
    image = draw_ground(rng, SIZE, SIZE)
    taken: list[tuple] = []
    for _ in range(rng.randint(4, 10)):
        half = rng.randint(3, 8)
        cls = int(rng.choice(len(NAMES)))
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


def changed(file: str, folder: Path, **values) -> str:
    """A copy of a shipped YAML file with other values."""
    path = folder / Path(file).name
    path.write_text(yaml.safe_dump(yaml.safe_load((ROOT / file).read_text()) | values))
    return str(path)


def train(run: dict, data: Path, folder: Path, extra: list[str]) -> dict:
    """One run; its settings, last figures and minutes."""
    part, side, seed, epochs = (run[key] for key in ("part", "side", "seed", "epochs"))
    name, (cfg, arguments) = f"{part}_{side}_{seed}", PARTS[part][side]
    cfg = changed(f"cfg/training/{cfg}.yaml", folder, width_multiple=run["width"])
    hyp = changed("data/hyp.small.yaml", folder, **HYP)
    command = [*COMMON, "--cfg", cfg, "--hyp", hyp, *arguments, "--data", str(data)]
    command += ["--epochs", str(epochs), "--seed", str(seed), "--eval-interval", str(epochs)]
    start = time.perf_counter()
    opt = parser_for("train", "yolo").parse_args([*command, "--project", str(folder), "--name", name, *extra])
    if code := train_command(opt):
        raise UserError(f"the run {name} ended with code {code}")
    with (folder / name / "results.csv").open() as file:
        *_, last = csv.DictReader(file)
    found = {figure: float(last[column]) for figure, column, _ in FIGURES}
    minutes = (time.perf_counter() - start) / 60
    print(f"{name}: mAP@.5 {found['map50']:.3f}, mAP@.5:.95 {found['map']:.3f}, {minutes:.1f} min", flush=True)
    return {**run, "minutes": minutes, **found}


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


def earlier_runs(path: str | None) -> list[dict]:
    """The runs of a JSON file that an earlier call wrote."""
    return json.loads(Path(path).read_text())["runs"] if path and Path(path).is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured")
    parser.add_argument("--width", type=float, default=0.25, help="fraction of the channels (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=30, help="of each run (default %(default)s)")
    parser.add_argument("--images", type=int, nargs=2, default=(160, 80), help="train and val (default 160 80)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="a run of both sides each")
    parser.add_argument("--quick", action="store_true", help="2 epochs on 16 and 8 images, one seed")
    parser.add_argument("--json", help="write the results to this file after each run, and add to what is there")
    parser.add_argument("--train-args", nargs=argparse.REMAINDER, default=[], help="further arguments of train.py")
    opt = parser.parse_args()
    epochs, images, seeds = (2, [16, 8], [0]) if opt.quick else (opt.epochs, list(opt.images), opt.seeds)
    runs = earlier_runs(opt.json)
    with tempfile.TemporaryDirectory() as name:
        for part in opt.parts:
            wanted = [{"part": part, "side": side, "seed": seed} for seed in seeds for side in PARTS[part]]
            wanted = [run | {"epochs": epochs, "images": images, "width": opt.width} for run in wanted]
            missing = [run for run in wanted if not any(run == {key: known[key] for key in run} for known in runs)]
            data = draw_set(Path(name) / part, part, *images) if missing else None
            for run in missing:
                runs.append(train(run, data, Path(name), opt.train_args))
                write_json(opt.json, {"machine": machine(), "runs": runs})
    same = [r for r in runs if (r["epochs"], r["images"], r["width"]) == (epochs, images, opt.width)]
    results = [summary(same, part, figure, label) for part in opt.parts for figure, _, label in FIGURES]
    write_json(opt.json, {"machine": machine(), "runs": runs, "summary": results})


if __name__ == "__main__":
    run_command(main)
