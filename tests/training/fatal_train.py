"""train.py that kills itself, as `kill -9` would, at a chosen moment: FATAL="step 7", "write 3", "rename 2", "text 1".

step N: before the N-th step of this process; stop N: the same with SIGSTOP; validate N: SIGSTOP in a
validation; write N: in the middle of the N-th write of a checkpoint's bytes;
rename N: after the N-th temporary file of a checkpoint is complete, before it takes its name (the copy of the one
before it, previous.pt, not counted); text N: the same of opt.yaml, hyp.yaml, results.txt and results.csv.
"""

import os
import signal
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import yolov7fast.core.files.atomic
import yolov7fast.training.family
import yolov7fast.training.step
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import run_command


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Stop all threads of this process; a peer ends it when it leaves (`agreeing_train`)."""
    Path(os.environ["STOPPED"]).write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


class Countdown:
    def __init__(self, count: int):
        self.count = count

    def __call__(self) -> bool:
        self.count -= 1
        return self.count == 0


def arm(moment: str) -> None:
    kind, count = moment.split()
    due = Countdown(int(count))
    if kind == "validate":
        yolov7fast.training.family.Family.validate = lambda *_, **__: stop()
    elif kind in ("step", "stop"):
        whole = yolov7fast.training.step.TrainStep.__call__

        def step(self, *args, **kwargs):
            if due():
                die() if kind == "step" else stop()
            return whole(self, *args, **kwargs)

        yolov7fast.training.step.TrainStep.__call__ = step
    elif kind == "write":

        def fsync(descriptor):
            written = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if (is_checkpoint(written) or written.name == "weights") and due():
                if written.is_file():
                    os.truncate(written, written.stat().st_size // 2)
                die()
            os.fsync(descriptor)

        yolov7fast.core.files.atomic.os = types.SimpleNamespace(**vars(os) | {"fsync": fsync})
    elif kind in ("rename", "text"):

        def replace(source, target):
            if is_checkpoint(target) == (kind == "rename") and due():
                die()
            os.replace(source, target)

        yolov7fast.core.files.atomic.os = types.SimpleNamespace(**vars(os) | {"replace": replace})


def is_checkpoint(path: Path) -> bool:
    return ".pt" in path.suffixes and "previous" not in path.name


if __name__ == "__main__":
    if os.environ.get("FATAL"):
        arm(os.environ["FATAL"])
    opt = parser_for("train").parse_args()
    run_command(lambda: run(opt))
