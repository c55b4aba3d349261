"""`make train` on a fresh machine: train on the project's own data set, detect on a few images, say what to look at."""

import csv
import subprocess
import sys
import time
from pathlib import Path

from yolov7fast.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "configs/shapes.yaml"


def command(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT)
    if done.returncode:
        raise UserError(f"python {' '.join(arguments)} ended with code {done.returncode}")


def newest(pattern: str) -> Path:
    return max(ROOT.glob(pattern), key=lambda path: path.stat().st_mtime)


def best_map50(run: Path) -> float:
    with (run / "results.csv").open() as f:
        return max(float(row["metrics/mAP_0.5"] or 0) for row in csv.DictReader(f))


def main() -> None:
    started = time.time()
    command("train.py", "--config", CONFIG)
    run = newest("runs/train/shapes*")
    pictures = ROOT / "data/shapes/images/val"
    weights = str(run / "weights" / "best.pt")
    command("detect.py", "--weights", weights, "--source", str(pictures), "--img-size", "224", "--name", "shapes")
    found = newest("runs/detect/shapes*")
    print(
        f"\nDone in {(time.time() - started) / 60:.1f} minutes; mAP@.5 on the val images: {best_map50(run):.3f}\n"
        f"  the detector         {run.relative_to(ROOT)}/weights/best.pt\n"
        f"  how it learnt        {run.relative_to(ROOT)}/results.png, results.csv\n"
        f"  what it saw          {run.relative_to(ROOT)}/train_batch0.jpg\n"
        f"  how good it is       {run.relative_to(ROOT)}/PR_curve.png, confusion_matrix.png, test_batch0_pred.jpg\n"
        f"  what it finds        {found.relative_to(ROOT)}/ (val images with their detections)\n"
        "Next: python train.py --help, or the README's chapter on training your own data"
    )
