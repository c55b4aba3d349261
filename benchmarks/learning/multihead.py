"""Size and accuracy of several heads: sizes of each variant, the same training with 1, 2 and 4 heads.

`python -m benchmarks.learning.multihead [--heads 1 2 4] [--seeds 0 1] [--epochs 27] [--quick] [--no-training]
[--json FILE] [--train-args ..]`

Trains through train.py as configs/shapes.yaml says (the project's own data set: 4 classes, so 4 heads have one class
each); only the network's last layer differs. One head is the ordinary yolov7-tiny.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import mean

import torch

from benchmarks.measure import machine, write_json
from yolov7fast.core.errors import UserError, run_command
from yolov7fast.nn.model import Model
from yolov7fast.nn.summary import count_gflops

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "cfg" / "training"
ORDINARY, SEVERAL, ATTENTION = "yolov7-tiny.yaml", "yolov7-tiny-1b4h.yaml", "yolov7-tiny-1b4h-attn.yaml"
NEAR = 0.05  # largest allowed loss of mAP@.5 against one head


def sizes() -> list[dict]:
    """Parameters and GFLOPs at 640 pixels for COCO's 80 classes."""
    rows = []
    for cfg, heads in (
        *((ORDINARY, None), (SEVERAL, 2), (SEVERAL, 4), (SEVERAL, 8), (ATTENTION, 4)),
        *(("yolov7.yaml", None), ("yolov7-1b4h.yaml", 4)),
    ):
        with torch.device("meta"):
            model = Model(TRAINING / cfg, heads=heads)
        total = sum(p.numel() for p in model.parameters())
        last = model.model[-1].np
        rows.append({"cfg": cfg, "heads": heads or 1, "parameters": total, "last": last})
        rows[-1]["gflops"] = count_gflops(model, 640)
    return rows


def print_sizes(rows: list[dict]) -> None:
    print(f"{'network, 80 classes':<32}{'heads':>6}{'parameters':>13}{'last layer':>13}{'GFLOPs at 640':>15}")
    for row in rows:
        numbers = f"{row['parameters']:>13,}{row['last']:>13,}{row['gflops']:>15.2f}"
        print(f"{row['cfg']:<32}{row['heads']:>6}{numbers}")


def train(heads: int, seed: int, epochs: int, folder: Path, extra: list[str]) -> dict:
    """One run; its last results."""
    name = f"{heads}_heads_seed_{seed}"
    cfg = ORDINARY if heads == 1 else SEVERAL
    command = ["train.py", "--config", "configs/shapes.yaml", "--epochs", str(epochs), "--cfg", str(TRAINING / cfg)]
    command += [] if heads == 1 else ["--heads", str(heads)]
    command += ["--project", str(folder), "--name", name, "--seed", str(seed)]
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *command, *extra], cwd=ROOT)
    if done.returncode:
        raise UserError(f"the run with {heads} heads and seed {seed} ended with code {done.returncode}")
    with (folder / name / "results.csv").open() as f:
        *_, last = csv.DictReader(f)
    figures = {"map50": float(last["metrics/mAP_0.5"]), "map": float(last["metrics/mAP_0.5:0.95"])}
    return {"heads": heads, "seed": seed, **figures, "minutes": (time.perf_counter() - start) / 60}


def ratios(runs: list[dict]) -> list[dict]:
    """Each number of heads compared with one head: the loss of mAP@.5, mean over seeds."""
    found = {heads: [run["map50"] for run in runs if run["heads"] == heads] for heads in {run["heads"] for run in runs}}
    return [
        {
            "what": f"mAP@.5 of one head less that of {heads} heads, same epochs",
            "value": mean(found[1]) - mean(found[heads]),
            "must": f"<= {NEAR}",
            "runs": len(found[heads]),
        }
        for heads in sorted(found)
        if heads > 1 and 1 in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 2, 4], help="numbers of heads (default 1 2 4)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="each number of heads with these (default 0)")
    parser.add_argument("--epochs", type=int, default=27, help="epochs of each run (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one epoch at 64 pixels, to test that it runs")
    parser.add_argument("--no-training", action="store_true", help="print the table of sizes only")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--train-args", nargs=argparse.REMAINDER, default=[], help="further arguments of train.py")
    opt = parser.parse_args()
    results = {"machine": machine(), "sizes": sizes(), "runs": []}
    epochs, extra = (1, ["--img-size", "64"]) if opt.quick else (opt.epochs, [])
    with tempfile.TemporaryDirectory() as folder:
        for seed, heads in [] if opt.no_training else product(opt.seeds, opt.heads):
            results["runs"].append(train(heads, seed, epochs, Path(folder), [*extra, *opt.train_args]))
    results["ratios"] = ratios(results["runs"])
    print_sizes(results["sizes"])
    for run in results["runs"]:
        figures = f"mAP@.5 {run['map50']:.3f}, mAP {run['map']:.3f}, {run['minutes']:.1f} minutes"
        print(f"heads {run['heads']}, seed {run['seed']}: {figures}")
    for row in results["ratios"]:
        print(f"{row['what']}: {row['value']:.3f} (must be {row['must']})")
    write_json(opt.json, results)


if __name__ == "__main__":
    run_command(main)
