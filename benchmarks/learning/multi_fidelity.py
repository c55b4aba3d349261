"""Does pruning pay? ASHA with 27 trials against 9 full ones on the project's own data set: best mAP and time of both.

`python -m benchmarks.learning.multi_fidelity [--folder outputs/multi_fidelity] [--json FILE] [--quick]`: a quarter of
yolov7-tiny's width at 96 pixels, rungs at 3, 9 and 27 of 81 epochs. Both searches draw from the same ranges with the
same seed, so that the full trials are the first of the 27. Time is the sum of all trainings, start-up included.
Searches in --folder are resumed, finished ones are kept: a benchmark that was interrupted continues.
"""

import argparse
import csv
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from benchmarks.measure import machine, write_json
from benchmarks.photographs import ROOT
from yolov7fast.core.errors import UserError, run_command

AT_MOST = 0.6  # of the time of the full trials
SPACE = {
    "lr0": {"log_uniform": [0.0005, 0.1]},
    "momentum": {"uniform": [0.7, 0.98]},
    "box": {"log_uniform": [0.01, 0.2]},
    "obj": {"log_uniform": [0.1, 4.0]},
    "weight_decay": {"log_uniform": [0.00005, 0.005]},
}
BASE = {
    "data": "data/shapes.yaml", "hyp": {"base": "data/hyp.small.yaml", "nominal_batch": 8}, "weights": "",
    "img_size": 96, "batch_size": 8, "workers": 0, "noautoanchor": True, "cache_images": "ram", "fast_augment": True,
    "keep_epochs": 0, "seed": 0,
}  # fmt: skip


def write_inputs(folder: Path, interval: int) -> None:
    """The network, the base configuration and the ranges; interval: epochs between validations."""
    folder.mkdir(parents=True, exist_ok=True)
    network = yaml.safe_load((ROOT / "cfg/training/yolov7-tiny.yaml").read_text()) | {"width_multiple": 0.25}
    base = BASE | {"cfg": str(folder / "network.yaml"), "eval_interval": interval}
    for name, content in (("network", network), ("base", base), ("space", SPACE)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))


def search(folder: Path, name: str, *flags: str) -> list[dict[str, str]]:
    """The rows of a search in `folder`/`name`, begun, resumed or there already."""
    output = folder / name
    if (output / "trials.json").is_file():
        flags = ("--resume",)
    else:
        inputs = ("--base-config", str(folder / "base.yaml"), "--search", str(folder / "space.yaml"))
        flags = (*inputs, *flags)
    command = [sys.executable, "tools/run_trials.py", "--output-dir", str(output), *flags]
    if subprocess.run(command, cwd=ROOT).returncode:
        raise UserError(f"the search in {output} did not end well; the same command resumes it")
    (table,) = output.glob("trials_*.csv")
    with table.open() as f:
        return list(csv.DictReader(f))


def figures(rows: list[dict[str, str]]) -> dict:
    """Best mAP@.5:.95 of the completed trials, its settings, seconds and epochs of all."""
    completed = [row for row in rows if row["status"] == "completed"]
    best = max(completed, key=lambda row: float(row["final_map"]))
    return {
        "trials": len(rows),
        "completed": len(completed),
        "best_map": float(best["final_map"]),
        "best_trial": int(best["trial_id"]),
        "seconds": round(sum(float(row["wall_time"]) for row in rows), 1),
    }


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
    full = figures(search(folder, "full", *budget, "--pruner", "none", "--trials", str(count)))
    asha = ("--pruner", "asha", "--first-rung", str(first), "--trials", str(3 * count))
    pruned = figures(search(folder, "asha", *budget, *asha))
    ratio = pruned["seconds"] / full["seconds"]
    holds = ratio <= AT_MOST and pruned["best_map"] >= full["best_map"]
    for name, found in (("full", full), ("ASHA", pruned)):
        print(f"{name}: {found['trials']} trials, best mAP@.5:.95 {found['best_map']:.4f}, {found['seconds']:.0f} s")
    print(f"ASHA takes {ratio:.0%} of the time (at most {AT_MOST:.0%} and no worse: {'yes' if holds else 'no'})")
    found = {"machine": machine(), "epochs": epochs, "full": full, "asha": pruned, "time_ratio": round(ratio, 3)}
    write_json(opt.json, found | {"holds": holds})


if __name__ == "__main__":
    run_command(main)
