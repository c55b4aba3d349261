"""The fraction of an epoch that validation takes: in this version, and in an earlier one beside it.

`python -m benchmarks.training.validation [--before DIR] [--weights FILE] [--every N] [--quick] [--json FILE]`

Each side is the `train.py` of its folder, started as a user starts it, in turn: yolov7-tiny, 320 pixels, batch 16,
2 workers, on all photographs of both splits: three batches of 32 in a validation. Seconds come from results.csv, which
counts an epoch from its first batch to the end of its validation. The last epoch of a run draws plots besides and is
left out. DIR: a clone of this project at the commit to compare with, such as 8ca4006, the last one that did matching
and drawing between two batches of the network. Both sides take some 6 minutes on two cores.
"""

import csv
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from tqdm import tqdm

from benchmarks.measure import note, quick_parser, show_machine, write_json
from benchmarks.photographs import ROOT, photographs
from benchmarks.side_by_side.parts import own_data
from yolov7fast.core.errors import UserError, run_command

SETTINGS = {"--cfg": "cfg/training/yolov7-tiny.yaml", "--hyp": "data/hyp.scratch.tiny.yaml", "--img-size": "320"}
SETTINGS |= {"--batch-size": "16", "--workers": "2", "--seed": "0"}
KEYS = ("seconds", "train_seconds", "val_seconds")  # columns of results.csv


def train(root: Path, data: Path, settings: dict[str, str], epochs: int, folder: Path) -> list[dict[str, float]]:
    """Run one side; seconds of each epoch but the last: of all, of training, of validation."""
    values = settings | {"--data": str(data), "--epochs": str(epochs)}
    values |= {"--project": str(folder.parent), "--name": folder.name}
    command = [sys.executable, "train.py", *(part for pair in values.items() for part in pair)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = [line for line in done.stderr.replace("\r", "\n").splitlines() if line.strip()][-1:]
        raise UserError(f"{root}/train.py ended with code {done.returncode}: {''.join(said)[:300]}")
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: float(row[key]) for key in KEYS} for row in rows[:-1]]


def measure(sides: dict[str, Path], settings: dict[str, str], epochs: int, runs: int, every: int, scratch: Path):
    """Of each side, medians over the epochs of all its runs: seconds of all, of training, of validation.

    every: of each split, each such image, in the order of their names; 1 = all.
    """
    given = yaml.safe_load(photographs(scratch).read_text())
    splits = {}
    for split in ("train", "val"):
        folder = own_data(Path(given[split]), scratch / split)
        listed = scratch / f"{split}.txt"
        listed.write_text("\n".join(sorted(map(str, folder.iterdir()))[::every]) + "\n")
        splits[split] = str(listed)
    data = scratch / "data.yaml"
    data.write_text(yaml.safe_dump({**given, **splits}))
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    turns = [(number, side) for number in range(runs) for side in sides]
    for number, side in tqdm(turns, "runs of train.py in turn", leave=False):
        found[side] += train(sides[side], data, settings, epochs, scratch / f"{side}{number}")
    return {side: {key: statistics.median(row[key] for row in rows) for key in KEYS} for side, rows in found.items()}


def main(argv: list[str] | None = None) -> int:
    parser = quick_parser(
        "benchmarks.training.validation", __doc__, "every 13th image at 64 pixels: shows that it runs"
    )
    parser.add_argument("--before", type=Path, metavar="DIR", help="clone of this project at an earlier commit")
    parser.add_argument("--weights", default="", help="weights to start from; empty: a network that has learnt nothing")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="use every Nth image (default 1: all)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a run, the last not counted (default 3)")
    parser.add_argument("--runs", type=int, default=2, help="runs of each side, in turn (default 2)")
    opt = parser.parse_args(argv)
    if opt.epochs < 2:
        raise UserError(f"--epochs {opt.epochs}: the last epoch is not counted; give at least 2")
    if opt.every < 1:
        raise UserError(f"--every {opt.every}: give 1 for all images, 2 for every second one, and so on")
    if opt.before and not (opt.before / "train.py").is_file():
        raise UserError(f"--before {opt.before}: there is no train.py; give a clone of this project")
    settings = SETTINGS | ({"--img-size": "64"} if opt.quick else {})
    settings["--weights"] = os.path.abspath(opt.weights) if opt.weights else ""
    results: dict = {"machine": show_machine(), "settings": settings, "every": opt.every}
    sides = ({"before": opt.before.resolve()} if opt.before else {}) | {"now": ROOT}
    with tempfile.TemporaryDirectory() as scratch:
        found = results["sides"] = measure(
            sides, settings, opt.epochs, opt.runs, 13 if opt.quick else opt.every, Path(scratch)
        )
    counted = (opt.epochs - 1) * opt.runs
    for side, own in found.items():
        parts = f"{own['train_seconds']:.1f} of training, {own['val_seconds']:.1f} of validation"
        print(f"{side}: {own['seconds']:.1f} s an epoch, {parts}")
        note(results, f"validation / epoch, {side}", own["val_seconds"] / own["seconds"], "-", counted)
    if "before" in found:
        ratio = found["before"]["val_seconds"] / found["now"]["val_seconds"]
        note(results, "seconds of validation, before / now", ratio, "-", counted)
    write_json(opt.json, results)
    return 0


if __name__ == "__main__":
    run_command(main)
