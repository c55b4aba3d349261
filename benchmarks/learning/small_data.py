"""Training on small data sets: from scratch with `--hyp small` and several seeds; mAP@.5 of each.

`python -m benchmarks.learning.small_data [--sets cells one-class] [--seeds 0 1 2] [--epochs 40] [--img N]
[--json FILE] [--train-args ..]`: yolov7-tiny on the 205 BCCD photographs with their three classes, and on 150 of them
with one class (white blood cells: one in most images, so it takes some hundred iterations to learn). Runs in --json
are kept and not done again, so that pieces add up.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.measure import machine, write_json
from benchmarks.photographs import BCCD, ROOT
from yolov7fast.core.errors import UserError, run_command

NAMES = ("RBC", "WBC", "Platelets")
ONE_CLASS, IMAGES = 1, 150
SETS = {"cells": "three classes, 205 images", "one-class": f"one class, {IMAGES} images"}
SIZES = {"cells": 192, "one-class": 160}
LEARNT = 0.5  # mAP@.5 above which a detector has learned its set
COMMON = ["--cfg", "yolov7-tiny", "--weights", "", "--batch-size", "16", "--workers", "2", "--noautoanchor"]
COMMON += ["--fast-dataloader", "--cache-images", "ram", "--channels-last", "--eval-interval", "5"]
COMMON += ["--keep-epochs", "0"]


def make_set(kind: str, folder: Path) -> Path:
    """A data set in the folder, its images links to BCCD's; returns its yaml."""
    if not BCCD.is_dir():
        raise UserError(f"the BCCD photographs are not at {BCCD}")
    for split in ("train", "val"):
        files = sorted((BCCD / "images" / split).glob("*.jpg"))
        for path in files[:IMAGES] if kind == "one-class" and split == "train" else files:
            image, label = (folder / part / split for part in ("images", "labels"))
            image.mkdir(parents=True, exist_ok=True)
            label.mkdir(parents=True, exist_ok=True)
            (image / path.name).symlink_to(path.resolve())
            lines = (BCCD / "labels" / split / f"{path.stem}.txt").read_text().splitlines()
            if kind == "one-class":
                lines = [f"0 {line.split(maxsplit=1)[1]}" for line in lines if int(line.split()[0]) == ONE_CLASS]
            (label / f"{path.stem}.txt").write_text("\n".join(lines) + "\n" * bool(lines))
    names = [NAMES[ONE_CLASS]] if kind == "one-class" else list(NAMES)
    data = {"train": str(folder / "images/train"), "val": str(folder / "images/val"), "nc": len(names), "names": names}
    (folder / "data.yaml").write_text(yaml.safe_dump(data))
    return folder / "data.yaml"


def train(kind: str, seed: int, data: Path, folder: Path, opt: argparse.Namespace) -> dict:
    """One run through train.py; its best and its last mAP@.5."""
    name = f"{kind}_{seed}"
    size = opt.img or SIZES[kind]
    command = ["train.py", *COMMON, "--hyp", opt.hyp, "--data", str(data), "--img", str(size)]
    command += ["--epochs", str(opt.epochs), "--seed", str(seed), "--project", str(folder), "--name", name]
    started = time.monotonic()
    done = subprocess.run([sys.executable, *command, *opt.train_args], cwd=ROOT)
    if done.returncode:
        raise UserError(f"the run of {kind} with seed {seed} ended with code {done.returncode}")
    with (folder / name / "results.csv").open() as f:
        found = [float(row["metrics/mAP_0.5"]) for row in csv.DictReader(f) if row["metrics/mAP_0.5"]]
    settings = {"hyp": opt.hyp, "epochs": opt.epochs, "img": size, "train_args": opt.train_args}
    figures = {"best_map50": max(found), "last_map50": found[-1], "seconds": round(time.monotonic() - started, 1)}
    return {"set": kind, "seed": seed, **settings, **figures}


def table(runs: list[dict]) -> str:
    lines = []
    for kind, what in SETS.items():
        own = sorted((run for run in runs if run["set"] == kind), key=lambda run: run["seed"])
        if own:
            figures = ", ".join(f"seed {run['seed']} {run['last_map50']:.3f}" for run in own)
            learnt = sum(run["last_map50"] >= LEARNT for run in own)
            slowest = max(run["seconds"] for run in own)
            lines.append(
                f"{what}: mAP@.5 {figures}; {learnt} of {len(own)} reach {LEARNT}, at most {slowest:.0f} s a run"
            )
    return "\n".join(lines)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), help="(default: both)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run each (default: 0 1 2)")
    parser.add_argument("--epochs", type=int, default=40, help="of each run (default: %(default)s)")
    parser.add_argument("--img", type=int, default=0, help=f"image size (default: {SIZES})")
    parser.add_argument("--hyp", default="small", help="hyper-parameters (default: %(default)s)")
    parser.add_argument("--json", help="add the results to this file")
    parser.add_argument("--train-args", nargs=argparse.REMAINDER, default=[], help="further arguments of train.py")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    opt = parse(argv)
    kept = json.loads(Path(opt.json).read_text())["runs"] if opt.json and Path(opt.json).is_file() else []
    done = {(run["set"], run["seed"]) for run in kept}
    with tempfile.TemporaryDirectory() as name:
        for kind in opt.sets:
            folder = Path(name) / kind
            data = make_set(kind, folder)
            for seed in (seed for seed in opt.seeds if (kind, seed) not in done):
                kept.append(train(kind, seed, data, folder, opt))
                write_json(opt.json, {"machine": machine(), "runs": kept})
                print(f"{kind}, seed {seed}: mAP@.5 {kept[-1]['last_map50']:.3f}", flush=True)
    print(table(kept))


if __name__ == "__main__":
    run_command(main)
