"""A stub of train.py for tests of the trial runner: same files, flags and exit codes, a network of one number.

Its mAP depends on lr0, the seed and the epochs before, so an epoch lost or done twice shows. FAKE={"trial_003": "..."}
makes a trial misbehave in its second epoch ("*": all others):
crash · nan · out of memory · talk (then end well) · hang (until asked to stop) · deaf (until killed) ·
kill runner (SIGKILL, once, then hang with a lock held) · interrupt runner (SIGINT, once, then hang) ·
kill runner at the end (the same, when all is done). --max-iter counts epochs here.
"""

import csv
import fcntl
import json
import os
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from yolov7fast.cli.parser import parser_for
from yolov7fast.training.hyperparameters import load_hyp

HEADER = ["epoch", "train/box", "train/total", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95", "seconds"]


def misbehave(kind: str, folder: Path) -> None:
    """What FAKE says this trial does; some kinds only once in a folder of trials."""
    once = folder.parent / "misbehaved"
    if kind == "crash":
        raise RuntimeError("the network fell over")
    if kind == "nan":
        sys.exit("error: the loss of batch 3 (epoch 1) is not finite; try a lower lr0")
    if kind == "out of memory":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "talk":
        print("environment", os.environ.get("OMP_NUM_THREADS"), "arguments", *sys.argv[1:], flush=True)
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind in ("hang", "deaf"):
        wait_for_the_end(folder)
    if "runner" in kind and not once.exists():
        held = (folder.parent / "held").open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
        once.touch()
        os.kill(os.getppid(), signal.SIGINT if kind == "interrupt runner" else signal.SIGKILL)
        wait_for_the_end(folder)


def wait_for_the_end(folder: Path) -> None:
    (folder / "hanging").touch()
    while True:
        signal.pause()


def main() -> None:
    opt = vars(parser_for("train").parse_args())
    assert opt["resume"] == "auto"
    folder = Path(opt["project"]) / opt["name"]
    lr0, epochs, checkpoint = load_hyp(opt["hyp"])["lr0"], opt["epochs"], folder / "weights" / "last.pt"
    checkpoint.parent.mkdir(exist_ok=True)
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"epoch": 0, "score": 0.0, "rows": []}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kinds = json.loads(os.environ.get("FAKE", "{}"))
    kind = kinds.get(opt["name"], kinds.get("*", ""))
    if state.get("finished"):
        sys.exit(0)
    last = min(epochs, opt["max_iter"] or epochs) - 1
    for epoch in range(state["epoch"], last + 1):
        if epoch == 1 and not kind.endswith("end"):
            misbehave(kind, folder)
        chance = random.Random(f"{opt['seed']} {epoch}").random()
        state["score"] = 0.8 * state["score"] + lr0 * (1 + 0.1 * chance)
        row = [epoch, 0.5, 1.0 / (1 + state["score"]), 2 * state["score"], state["score"], 0.1]
        if epoch < last and (epoch + 1) % opt["eval_interval"]:
            row[3:5] = "", ""  # not validated
        state["rows"].append(row)
        state["epoch"] = epoch + 1
        with (folder / "results.csv").open("w", newline="") as f:
            csv.writer(f).writerows([HEADER, *([v and f"{v:.6g}" for v in row] for row in state["rows"])])
        state["finished"] = epoch == last
        if epoch % 2 == 0 or epoch == last:  # some epochs have a row, but no checkpoint yet when the process is killed
            checkpoint.write_text(json.dumps(state))
    checkpoint.with_name("best.pt").write_text("best")
    if kind.endswith("end"):
        misbehave(kind, folder)


if __name__ == "__main__":
    main()
