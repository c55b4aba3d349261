"""The trainers that `peers.py` compares: how each is started, where it writes mAP@.5, the size of its network."""

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.photographs import ROOT
from yolov7fast.core.errors import UserError

PEER = Path(__file__).with_name("peer_process.py")
TINY = "cfg/training/yolov7-tiny.yaml"
FAST = ["--hyp", "small", "--fast-dataloader", "--cache-images", "ram", "--channels-last"]
REPAIRS_ALONE = [
    "--no-loss",
    "--no-fast-dataloader",
    "--no-metrics",
]  # upstream, on current torch and NumPy
CSV = "results.csv"
LOOK_SECONDS = 0.05


class Race(NamedTuple):
    """The settings that all trainers share."""

    data: Path  # data yaml
    pixels: int
    batch: int
    workers: int
    folder: Path  # of the runs


class Training(NamedTuple):
    folder: Path
    seconds: float  # from its start to its end
    first: float  # until its first epoch was done and validated
    epochs: list[float]  # of each further one


class Trainer(NamedTuple):
    """A trainer with one network, from scratch, with the settings its documents recommend for a small data set."""

    name: str
    network: str
    command: Callable[[Race, int, str], list[str]]  # race, epochs, name of the run
    results: str  # the file in the run's folder to which every epoch adds a line
    map50: Callable[[Path], float]  # of the last validation, from the run's folder
    size: Callable[[Race, Path], dict[str, float]]  # millions of parameters, GFLOPs

    def run(self, race: Race, epochs: int, name: str) -> Training:
        """Train; its output is written to a log next to the run's folder."""
        folder, log = race.folder / name, race.folder / f"{name}.log"
        code, seconds, grown = watched(self.command(race, epochs, name), race.folder, log, folder / self.results)
        if code:
            said = [line for line in log.read_text(errors="replace").replace("\r", "\n").splitlines() if line.strip()]
            raise UserError(f"{self.name} ended with code {code}: {''.join(said[-1:])[:200]}")
        if len(grown) < epochs:
            raise UserError(f"{self.name} wrote {len(grown)} lines to {self.results} in {epochs} epochs")
        ends = grown[-epochs:]  # a heading may precede them
        return Training(folder, seconds, ends[0], [end - before for before, end in itertools.pairwise(ends)])


def watched(command: list[str], cwd: Path, log: Path, results: Path) -> tuple[int, float, list[float]]:
    """Run a command; its exit code, its seconds, and after how many of them each line was added to `results`."""
    grown: list[float] = []
    start = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=cwd, stdout=output, stderr=subprocess.STDOUT, env=environment())
        try:
            is_over = False
            while not is_over:
                time.sleep(LOOK_SECONDS)
                is_over = process.poll() is not None  # before reading: its last lines count
                lines = results.read_bytes().count(b"\n") if results.is_file() else 0
                grown += [time.perf_counter() - start] * (lines - len(grown))
        finally:
            process.kill()
    return process.wait(), time.perf_counter() - start, grown


def environment() -> dict[str, str]:
    """Other trainers look for updates, fonts and weights on the network; here they must use what is installed."""
    return {**os.environ, "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "MPLBACKEND": "Agg"}


def last(path: Path, column: str) -> float:
    """The last number in a column of a CSV file; epochs without validation leave it empty."""
    with path.open() as file:
        return [float(row[column]) for row in csv.DictReader(file, skipinitialspace=True) if row[column]][-1]


def own_size(race: Race, run: Path) -> dict[str, float]:
    from yolov7fast.nn.model import Model
    from yolov7fast.nn.summary import count_gflops

    model = Model(str(ROOT / TINY), nc=3)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    return {"parameters": parameters, "gflops": count_gflops(model, race.pixels)}


def own(name: str, flags: list[str]) -> Trainer:
    def command(race: Race, epochs: int, run: str) -> list[str]:
        values = {"--data": race.data, "--cfg": ROOT / TINY, "--weights": "", "--img-size": race.pixels}
        values |= {"--batch-size": race.batch, "--workers": race.workers, "--epochs": epochs}
        values |= {"--project": race.folder, "--name": run, "--keep-epochs": 0}
        return [sys.executable, str(ROOT / "train.py"), *(str(x) for pair in values.items() for x in pair), *flags]

    return Trainer(name, "YOLOv7-tiny", command, CSV, lambda run: last(run / CSV, "metrics/mAP_0.5"), own_size)


def upstream(repo: Path) -> Trainer:
    def command(race: Race, epochs: int, run: str) -> list[str]:
        tool = [sys.executable, str(ROOT / "tools/overlay.py"), "--repo", str(repo), *REPAIRS_ALONE, "--", "train.py"]
        values = {"--data": race.data, "--cfg": TINY, "--weights": "", "--hyp": "data/hyp.scratch.tiny.yaml"}
        values |= {"--batch-size": race.batch, "--workers": race.workers, "--epochs": epochs, "--device": "cpu"}
        values |= {"--project": race.folder, "--name": run}
        return [*tool, *(str(x) for pair in values.items() for x in pair), "--img-size", *[str(race.pixels)] * 2]

    def map50(run: Path) -> float:
        return float((run / "results.txt").read_text().splitlines()[-1].split()[10])

    return Trainer("WongKinYiu/yolov7", "YOLOv7-tiny", command, "results.txt", map50, own_size)


def peer_size(python: str, package: str) -> Callable[[Race, Path], dict[str, float]]:
    def size(race: Race, run: Path) -> dict[str, float]:
        command = [python, str(PEER), "size", package, str(run / "weights/last.pt"), str(race.pixels)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
        return json.loads(done.stdout.splitlines()[-1])

    return size


def ultralytics(python: str, network: str) -> Trainer:
    def command(race: Race, epochs: int, run: str) -> list[str]:
        values = {"model": f"{network}.yaml", "data": race.data, "epochs": epochs, "batch": race.batch}
        values |= {"imgsz": race.pixels, "workers": race.workers, "device": "cpu", "pretrained": False, "plots": False}
        values |= {"patience": 0, "project": race.folder, "name": run, "exist_ok": True}
        return [python, str(PEER), "yolo", "detect", "train", *(f"{key}={value}" for key, value in values.items())]

    def map50(run: Path) -> float:
        return last(run / CSV, "metrics/mAP50(B)")

    return Trainer("ultralytics", network, command, CSV, map50, peer_size(python, "ultralytics"))


def libreyolo(python: str, network: str) -> Trainer:
    def command(race: Race, epochs: int, run: str) -> list[str]:
        values = {"--data": race.data, "--model": network, "--epochs": epochs, "--batch": race.batch}
        values |= {"--imgsz": race.pixels, "--workers": race.workers, "--device": "cpu", "--eval-interval": 1}
        values |= {"--patience": 0, "--project": race.folder, "--name": run}
        # its defaults end with 15 epochs without augmentation after 5 of warm-up: more than a short race has
        values |= {"--warmup-epochs": min(3, epochs // 3), "--no-aug-epochs": min(15, epochs // 4)}
        options = [str(x) for pair in values.items() for x in pair]
        return [python, str(PEER), "libreyolo", "train", *options, "--no-pretrained", "--no-amp", "--exist-ok"]

    def map50(run: Path) -> float:
        return last(run / CSV, "metrics/mAP50(B)")

    return Trainer("libreyolo", network, command, CSV, map50, peer_size(python, "libreyolo"))


def entered(opt: argparse.Namespace) -> list[Trainer]:
    """This project by default and with its fast flags, and the other trainers that are installed."""
    trainers = [own("yolov7fast", []), own("yolov7fast, fast flags", FAST)]
    if opt.reference:
        trainers.append(upstream(Path(opt.reference).resolve()))
    if opt.ultralytics:
        trainers.append(ultralytics(opt.ultralytics, opt.ultralytics_network))
    if opt.libreyolo:
        trainers += [libreyolo(opt.libreyolo, network) for network in opt.libreyolo_networks]
    return trainers
