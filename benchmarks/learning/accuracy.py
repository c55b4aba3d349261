"""Do the fast flags cost accuracy? The same training with and without them, several seeds, mAP beside the seeds' noise.

`python -m benchmarks.learning.accuracy [--epochs 40] [--seeds 0 1] [--json FILE] [--train-args ..]`: tiny with the OTA
loss, 320 pixels, batch 16, from scratch, on the BCCD photographs where present.
"""

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import machine, write_json
from benchmarks.photographs import ROOT, photographs
from benchmarks.training.train import FAST
from yolov7fast.core.errors import UserError, run_command

COMMON = ["--cfg", "cfg/training/yolov7-tiny.yaml", "--hyp", "data/hyp.small.yaml", "--weights", "", "--img", "320"]
COMMON += ["--batch-size", "16", "--workers", "2", "--noautoanchor", "--eval-interval", "10"]
SIDES = {"default": [], "fast": FAST}


def train(side: str, seed: int, epochs: int, data: Path, folder: Path, extra: list[str]) -> dict:
    """One run through train.py; its last figures."""
    command = ["train.py", *COMMON, "--data", str(data), "--epochs", str(epochs), "--seed", str(seed), *SIDES[side]]
    command += ["--cache-dir", str(folder), "--project", str(folder), "--name", f"{side}_{seed}", *extra]
    done = subprocess.run([sys.executable, *command], cwd=ROOT)
    if done.returncode:
        raise UserError(f"the {side} run with seed {seed} ended with code {done.returncode}")
    with (folder / f"{side}_{seed}" / "results.csv").open() as f:
        *_, last = csv.DictReader(f)
    figures = {"map50": float(last["metrics/mAP_0.5"]), "map": float(last["metrics/mAP_0.5:0.95"])}
    print(f"{side}, seed {seed}: mAP@.5 {figures['map50']:.3f}, mAP@.5:.95 {figures['map']:.3f}", flush=True)
    return {"side": side, "seed": seed, **figures}


def summary(runs: list[dict], figure: str) -> str:
    """Means of both sides, their difference, and how far apart seeds alone are."""
    values = {side: [run[figure] for run in runs if run["side"] == side] for side in SIDES}
    means = {side: statistics.mean(found) for side, found in values.items()}
    noise = max(max(found) - min(found) for found in values.values())
    parts = ", ".join(f"{side} {means[side]:.3f} ({' '.join(f'{v:.3f}' for v in values[side])})" for side in SIDES)
    return f"{parts}; fast - default {means['fast'] - means['default']:+.3f}, seeds differ by up to {noise:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40, help="of each run (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="one pair of runs each (default 0 1)")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--train-args", nargs=argparse.REMAINDER, default=[], help="further arguments of train.py")
    opt = parser.parse_args()
    results = {"machine": machine(), "epochs": opt.epochs, "runs": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = photographs(folder)
        for seed in opt.seeds:
            for side in SIDES:
                results["runs"].append(train(side, seed, opt.epochs, data, folder, opt.train_args))
    print(f"{data.stem}, {opt.epochs} epochs")
    for figure, label in (("map50", "mAP@.5"), ("map", "mAP@.5:.95")):
        print(f"{label}: {summary(results['runs'], figure)}")
    write_json(opt.json, results)


if __name__ == "__main__":
    run_command(main)
