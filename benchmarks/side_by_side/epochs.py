"""Whole runs of a checkout's train.py, in turn: with the overlay's repairs alone, and with all its parts."""

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import yaml
from tqdm import tqdm

from benchmarks.photographs import BCCD, ROOT
from benchmarks.side_by_side.parts import NETWORK, Case, own_data
from yolov7fast.core.errors import UserError
from yolov7fast.overlay.checkout import Checkout

SWITCHES = {"upstream": ["--no-loss", "--no-fast-dataloader", "--no-metrics"], "overlay": []}
FIRST_STEP = re.compile(r"0/\d+ +\S+ +([\d.]+ +[\d.]+ +[\d.]+ +[\d.]+) +\d+ +\d+:")
BEGIN, END = re.compile(r"Starting training for"), re.compile(r"epochs? completed in")


def measure_epochs(checkout: Checkout, case: Case, epochs: int, rounds: int, scratch: Path) -> list[dict]:
    """One row: seconds from the first batch to the end of the last validation; differing first losses are logged."""
    data = {"train": str(case.images), "val": str(case.images), "nc": 3, "names": ["RBC", "WBC", "Platelets"]}
    if (BCCD / "images" / "val").is_dir():
        data["val"] = str(own_data(BCCD / "images" / "val", scratch / "val"))
    (scratch / "data.yaml").write_text(yaml.safe_dump(data))
    seconds: dict[str, list[float]] = {side: [] for side in SWITCHES}
    first: dict[str, str] = {}
    for number in tqdm(range(rounds), desc="runs of train.py in turn", leave=False):
        for side in SWITCHES:
            taken, first[side] = run(checkout, case, side, epochs, scratch / f"{side}{number}")
            seconds[side].append(taken)
    row = {"what": f"{epochs} epoch(s) of train.py", **{side: statistics.median(s) for side, s in seconds.items()}}
    return [{**row, "difference": 0.0 if first["upstream"] == first["overlay"] else float("inf"), "first_step": first}]


def run(checkout: Checkout, case: Case, side: str, epochs: int, folder: Path) -> tuple[float, str]:
    """Seconds of training and validation, and the first step's losses as the script prints them."""
    tool = [sys.executable, str(ROOT / "tools" / "overlay.py"), "--repo", str(checkout.root), *SWITCHES[side], "--"]
    values = {"--data": folder.parent / "data.yaml", "--cfg": NETWORK, "--hyp": "data/hyp.scratch.tiny.yaml"}
    values |= {"--epochs": epochs, "--batch-size": case.step_batch, "--workers": case.workers, "--weights": ""}
    values |= {"--device": "cpu", "--project": folder.parent, "--name": folder.name}
    arguments = [str(part) for pair in values.items() for part in pair]
    command = [*tool, "train.py", *arguments, "--img-size", *[str(case.size)] * 2]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    text, marks = "", {}
    while chunk := process.stdout.readline():
        text += chunk
        for mark in (BEGIN, END):
            if mark.search(chunk):
                marks[mark] = time.perf_counter()
    if process.wait() or len(marks) < 2:
        said = [line for line in text.replace("\r", "\n").splitlines() if line.strip()][-1:]
        raise UserError(f"{side}: train.py of {checkout.root} failed: {''.join(said)[:160]}")
    return marks[END] - marks[BEGIN], FIRST_STEP.search(text)[1]
