"""Trains a small RT-DETR on photographs: `python -m benchmarks.learning.detr` on BCCD blood cells.

Trains configs/rtdetr_small.yaml from scratch and evaluates an untrained network of the same seed, and prints mAP@.5 of
both and the minutes it took. Uses ../shared/bccd where present, else the project's own data set.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import machine, write_json
from benchmarks.photographs import ROOT, photographs

SCRIPT = "tools/train_detr.py"


def train(folder: Path, name: str, data: str, *flags: str) -> float:
    """mAP@.5 of the last validation of a run."""
    command = [sys.executable, SCRIPT, "--config", "configs/rtdetr_small.yaml", "--data", data, "--seed", "0"]
    subprocess.run([*command, "--project", str(folder), "--name", name, *flags], cwd=ROOT, check=True)
    rows = list(csv.DictReader((folder / name / "results.csv").open()))
    return float(rows[-1]["metrics/mAP_0.5"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--img-size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    opt = parser.parse_args()
    sizes = ["--img-size", str(opt.img_size), "--batch-size", str(opt.batch_size)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = str(photographs(folder))
        still = ["--epochs", "1", "--max-iter", "1", "--lr", "0", "--backbone-lr", "0"]
        untrained = train(folder, "untrained", data, *sizes, *still)
        start = time.time()
        flags = ["--epochs", str(opt.epochs), "--eval-interval", str(max(opt.epochs // 3, 1))]
        trained = train(folder, "trained", data, *sizes, *flags)
        minutes = (time.time() - start) / 60
    print(f"mAP@.5 untrained {untrained:.3f}, after {opt.epochs} epochs {trained:.3f}, in {minutes:.1f} minutes")
    found = {"machine": machine(), "epochs": opt.epochs, "img_size": opt.img_size, "untrained": untrained}
    write_json(opt.json, {**found, "trained": trained, "minutes": minutes})


if __name__ == "__main__":
    main()
