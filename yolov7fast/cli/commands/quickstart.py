"""`make train` on a fresh machine: train on the project's own data set, detect on a few images, say what to look at."""

import argparse
import csv
import subprocess
import time
from pathlib import Path

from yolov7fast.cli.programs import program
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import CHECKOUT

CONFIG = "configs/shapes.yaml"
IMAGES = "data/shapes/images/val"


def command(name: str, *flags: str, folder: Path) -> None:
    started = program(name)
    done = subprocess.run([*started.child(), *flags], cwd=folder)
    if done.returncode:
        raise UserError(f"{started.invocation} {' '.join(flags)} ended with code {done.returncode}")


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime).relative_to(folder)


def best_map50(results: Path) -> float:
    with results.open() as f:
        return max(float(row["metrics/mAP_0.5"] or 0) for row in csv.DictReader(f))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=program("quickstart").invocation,
        description="Train yolov7-tiny on the project's own data set and detect on its val images: "
        "some minutes on two CPU cores. It takes no flags.",
    )
    parser.parse_args()
    started, folder = time.time(), CHECKOUT or Path.cwd()
    command("train", "--config", CONFIG, folder=folder)
    run = newest(folder, "runs/train/shapes*")
    weights = str(run / "weights" / "best.pt")
    command("detect", "--weights", weights, "--source", IMAGES, "--img-size", "224", "--name", "shapes", folder=folder)
    found = newest(folder, "runs/detect/shapes*")
    map50 = best_map50(folder / run / "results.csv")
    print(
        f"\nDone in {(time.time() - started) / 60:.1f} minutes; mAP@.5 on the val images: {map50:.3f}\n"
        f"  checkpoint           {run}/weights/best.pt\n"
        f"  training curves      {run}/results.png, results.csv\n"
        f"  training batch       {run}/train_batch0.jpg\n"
        f"  validation           {run}/PR_curve.png, confusion_matrix.png, test_batch0_pred.jpg\n"
        f"  detections           {found}/ (val images with their detections)\n"
        f"Next: {program('train').invocation} --help, or the README's chapter on training your own data"
    )
