"""Does pruning pay? ASHA with 27 trials against 9 full ones on the project's own shapes: best mAP and time of both.

`python -m benchmarks.learning.multi_fidelity [--folder outputs/multi_fidelity] [--json FILE] [--quick]`: one large
shape in an image of 64 pixels, six convolutions, rungs at 3, 9 and 27 of 81 epochs, the first after 270 iterations.
Both searches draw from the same ranges with the same seed, so that the full trials are the first 9 of the 27. Time is
that of the whole command on one thread, one training after the other, with the start of each; CPU time, which other
work on the machine changes little, stands beside it. The best of several single runs is flattered by chance, that of
nine more than that of one: which search found the better setting, both best ones say in trainings with fresh seeds.
Searches in --folder are resumed, finished ones are kept: a benchmark that was interrupted continues.
"""

import argparse
import csv
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import yaml

from benchmarks.measure import machine, write_json
from benchmarks.photographs import ROOT
from yolov7fast.core.errors import UserError, run_command
from yolov7fast.data import shapes

AT_MOST = 0.6  # of the time of the full trials
SEEDS, FIRST_SEED = 5, 100  # of the trainings that compare the best settings; the searches train with seed 0
SPACE = {
    "lr0": {"log_uniform": [0.0001, 0.3]},  # from what learns nothing to what diverges
    "momentum": {"uniform": [0.6, 0.98]},
    "box": {"log_uniform": [0.005, 0.5]},
    "obj": {"log_uniform": [0.05, 10.0]},
    "weight_decay": {"log_uniform": [0.00005, 0.02]},
}
HYP = {
    "base": "data/hyp.small.yaml", "loss_ota": 0, "nominal_batch": 8, "warmup_epochs": 0.5,
    "mosaic": 0.0, "hsv_h": 0.0, "hsv_s": 0.0, "hsv_v": 0.0, "scale": 0.2,
}  # fmt: skip
BASE = {
    "hyp": HYP, "weights": "", "img_size": 64, "batch_size": 8, "workers": 0, "single_cls": True, "noautoanchor": True,
    "cache_images": "ram", "keep_epochs": 0, "seed": 0,
}  # fmt: skip
IMAGES = {"train": 720, "val": 80}
LARGE = {"OBJECTS": (1,), "RADII": (150, 180, 210, 250, 300), "EMPTY_EVERY": 1 << 30}  # of yolov7fast.data.shapes
ACTIVATION = "nn.LeakyReLU(0.1)"
NETWORK = {
    "nc": 1,
    "depth_multiple": 1.0,
    "width_multiple": 1.0,
    "anchors": [[14, 14, 20, 14, 14, 20], [22, 22, 32, 22, 22, 32], [34, 34, 46, 34, 34, 46]],
    "backbone": [[-1, 1, "Conv", [width, 3, 2, None, 1, ACTIVATION]] for width in (8, 16, 32, 48, 64)],
    "head": [
        [-1, 1, "nn.Upsample", [None, 2, "nearest"]],
        [[-1, 3], 1, "Concat", [1]],
        [-1, 1, "Conv", [48, 1, 1, None, 1, ACTIVATION]],
        [[2, 7, 4], 1, "IDetect", ["nc", "anchors"]],
    ],
}  # three levels after six convolutions


def write_inputs(folder: Path, interval: int) -> None:
    """The data set, the network, the base configuration and the ranges; interval: epochs between validations."""
    folder.mkdir(parents=True, exist_ok=True)
    with mock.patch.multiple(shapes, **LARGE):
        images = shapes.make_shapes(folder / "shapes", size=96, **IMAGES) / "images"
    data = {split: str(images / split) for split in IMAGES} | {"nc": len(shapes.NAMES), "names": [*shapes.NAMES]}
    files = {"cfg": str(folder / "network.yaml"), "data": str(folder / "data.yaml")}
    base = BASE | files | {"eval_interval": interval}
    for name, content in (("network", NETWORK), ("data", data), ("base", base), ("space", SPACE)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))


def search(folder: Path, name: str, *flags: str) -> dict:
    """The figures of trials in `folder`/`name`, begun, resumed or there already."""
    output, spent = folder / name, {"seconds": 0.0, "cpu_seconds": 0.0, "ended": False}
    cost = output.with_suffix(".json")  # of all processes that have worked on this search
    if cost.is_file():
        spent = json.loads(cost.read_text())
    if (output / "trials.json").is_file():
        flags = ("--resume",)
    else:
        flags = ("--base-config", str(folder / "base.yaml"), *flags)
    if not spent["ended"]:
        command = [sys.executable, "tools/run_trials.py", "--output-dir", str(output), *flags]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}  # so small a network gains nothing by a second one
        begun, cpu = time.perf_counter(), children_seconds()
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        spent["seconds"] += time.perf_counter() - begun
        spent["cpu_seconds"] += children_seconds() - cpu
        spent["ended"] = code == 0
        cost.write_text(json.dumps(spent))
        if code:
            raise UserError(f"the search in {output} did not end well; the same command resumes it")
    rows = read_table(output, "trials_*.csv")
    return figures(rows) | {"epochs": epochs_in(output)} | {k: round(spent[k], 1) for k in ("seconds", "cpu_seconds")}


def read_table(output: Path, pattern: str) -> list[dict[str, str]]:
    (table,) = output.glob(pattern)
    with table.open() as f:
        return list(csv.DictReader(f))


def confirm(folder: Path, sides: dict[str, dict], *flags: str) -> None:
    """Train the best setting of each side with fresh seeds: their mean mAP@.5:.95 and deviation into its figures."""
    settings = [found["best_settings"] for found in sides.values()]
    distinct = [setting for k, setting in enumerate(settings) if setting not in settings[:k]]
    (folder / "best.json").write_text(json.dumps(distinct))
    seeds = ("--repeat", str(SEEDS), "--seed", str(FIRST_SEED))
    search(folder, "confirmed", "--trials-file", str(folder / "best.json"), *seeds, *flags)
    ranking = {row["setting"]: row for row in read_table(folder / "confirmed", "ranking_*.csv")}
    for found in sides.values():
        row = ranking[str(1 + distinct.index(found["best_settings"]))]
        found |= {"mean_map": float(row["map_mean"]), "deviation": float(row["map_deviation"])}


def children_seconds() -> float:
    """CPU time of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def epochs_in(output: Path) -> int:
    """Epochs that all its trials have trained, those between a decision and the end of the process among them."""
    return sum(len(path.read_text().splitlines()) - 1 for path in output.glob("trial_*/results.csv"))


def figures(rows: list[dict[str, str]]) -> dict:
    """Trials, how many came to their end, the best one of these and its mAP@.5:.95."""
    completed = [row for row in rows if row["status"] == "completed"]
    if not completed:
        raise UserError("no trial came to its end; reasons stand in the table, --fresh begins anew")
    best = max(completed, key=lambda row: float(row["final_map"]))
    settings = {key.removeprefix("param_"): float(best[key]) for key in best if key.startswith("param_")}
    found = {"best_map": float(best["final_map"]), "best_trial": int(best["trial_id"]), "best_settings": settings}
    return {"trials": len(rows), "completed": len(completed)} | found


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("outputs/multi_fidelity"), help="(default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=81, help="of a full trial (default: %(default)s)")
    parser.add_argument("--full-trials", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="9 epochs, 2 full trials against 6: whether it runs")
    parser.add_argument("--fresh", action="store_true", help="begin anew where the folder holds searches")
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    opt = parse(argv)
    epochs, count = (9, 2) if opt.quick else (opt.epochs, opt.full_trials)
    folder = (opt.folder / "quick" if opt.quick else opt.folder).resolve()
    if opt.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    first = max(1, epochs // 27)
    write_inputs(folder, first)
    budget = ("--budget-epochs", str(epochs), "--jobs", "1")
    ranges = ("--search", str(folder / "space.yaml"), *budget)
    full = search(folder, "full", *ranges, "--pruner", "none", "--trials", str(count))
    asha = search(folder, "asha", *ranges, "--first-rung", str(first), "--trials", str(3 * count))
    confirm(folder, {"full": full, "asha": asha}, *budget)
    for name, found in (("full", full), ("ASHA", asha)):
        best = f"best mAP@.5:.95 {found['best_map']:.4f}, that setting with {SEEDS} fresh seeds {found['mean_map']:.4f}"
        print(f"{name}: {found['trials']} trials, {best} ± {found['deviation']:.4f}, {found['seconds']:.0f} s")
    results = {"machine": machine(), "epochs": epochs, "seeds": SEEDS, "full": full, "asha": asha}
    write_json(opt.json, results | verdict(full, asha))


def verdict(full: dict, asha: dict) -> dict:
    """ASHA's time in that of the full trials, and whether it is short enough and the best as good; printed, too."""
    names = {"time_ratio": "seconds", "cpu_ratio": "cpu_seconds", "epoch_ratio": "epochs"}
    ratios = {name: round(asha[of] / full[of], 3) for name, of in names.items()}
    is_as_good = asha["mean_map"] >= full["mean_map"]
    is_short = max(ratios["time_ratio"], ratios["cpu_ratio"]) <= AT_MOST  # whatever else the machine did meanwhile
    time_, cpu, trained = (f"{ratio:.0%}" for ratio in ratios.values())
    print(f"ASHA in the full trials' figures: {time_} of the time, {cpu} of the CPU time, {trained} of the epochs")
    print(
        f"as good: {'yes' if is_as_good else 'no'}; in at most {AT_MOST:.0%} of the time: {'yes' if is_short else 'no'}"
    )
    return ratios | {"as_good": is_as_good, "holds": is_as_good and is_short}


if __name__ == "__main__":
    run_command(main)
