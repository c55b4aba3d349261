"""train.py whose processes compare their weights at the end, and report which threads of the group outlive it.

FATAL_RANK=r FATAL="step n" kills one of them, FATAL="step n|step m" in the first start of torchrun, and in its second;
RECORD=FOLDER keeps which images made up which step of which process; NORM_BY_IMAGE=1 normalises each image by itself;
FAR_RANK=r has another --project;
STOPPED=FILE names the process that FATAL="stop n" has stopped: the other one kills it when it ends;
BAD_RANK=r BAD_STEP=n makes the loss of one process's n-th batch a number that is none.
"""

import atexit
import hashlib
import itertools
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch.nn.functional as F
from torch import nn

from tests.training.fatal_train import arm
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import run_command
from yolov7fast.training.distributed import from_all
from yolov7fast.training.step import TrainStep
from yolov7fast.training.trainer import Trainer
from yolov7fast.training.yolo_family import YoloFamily


def weights_hash(model) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def compare_at_the_end() -> None:
    whole_fit = Trainer.fit

    def fit(self):
        outcome = whole_fit(self)
        hashes = from_all(weights_hash(self.family.model), self.world)
        if self.world.is_distributed and self.world.is_main:
            print(f"weights agree: {len(set(hashes)) == 1} over {len(hashes)} processes")
        return outcome

    Trainer.fit = fit
    atexit.register(report_group_threads)


def report_group_threads() -> None:
    """A thread of the process group that is still there when the interpreter ends can abort the process."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    print(f"threads of the group at the end: {sum('gloo' in name for name in names)}")


def kill_stopped_at_exit(file: Path) -> None:
    """`os._exit`, with which a process ends that has lost a peer, runs no atexit function."""
    leave = os._exit

    def left(code: int = 0) -> None:
        if file.is_file():
            os.kill(int(file.read_text()), signal.SIGKILL)
            file.unlink()
            print(f"exit code {code} of the process that was left", file=sys.stderr, flush=True)
        leave(code)

    os._exit = left
    atexit.register(lambda: left(2) if file.is_file() else None)


def break_loss(step: int) -> None:
    whole, numbers = YoloFamily.forward_loss, itertools.count()

    def broken(self, *args):
        loss, items = whole(self, *args)
        return (loss * float("nan") if next(numbers) == step else loss), items

    YoloFamily.forward_loss = broken


def record_batches(folder: Path, rank: str) -> None:
    whole = TrainStep.__call__

    def step(self, batch, global_step, *args):
        with (folder / f"rank{rank}.txt").open("a") as record:
            record.write(f"{global_step} {' '.join(Path(path).name for path in batch[2])}\n")
        return whole(self, batch, global_step, *args)

    TrainStep.__call__ = step


if __name__ == "__main__":
    compare_at_the_end()
    if os.environ.get("FATAL_RANK") == os.environ.get("RANK", "0"):
        moments = os.environ["FATAL"].split("|")
        start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if start < len(moments):
            arm(moments[start])
    elif os.environ.get("STOPPED"):
        kill_stopped_at_exit(Path(os.environ["STOPPED"]))
    if os.environ.get("RECORD"):
        record_batches(Path(os.environ["RECORD"]), os.environ.get("RANK", "0"))
    if os.environ.get("NORM_BY_IMAGE"):
        nn.BatchNorm2d.forward = lambda self, x: F.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)
    if os.environ.get("BAD_RANK") == os.environ.get("RANK", "0"):
        break_loss(int(os.environ["BAD_STEP"]))
    opt = parser_for("train").parse_args()
    if os.environ.get("FAR_RANK") == os.environ.get("RANK", "0"):  # a machine that does not see the run's folder
        opt.project += "_elsewhere"
    run_command(lambda: run(opt))
