"""train.py that kills itself, as `kill -9` would, at a chosen moment: FATAL="step 7", "write 3" or "rename 2".

step N: before the N-th step of this process; write N: in the middle of the N-th write of a checkpoint's bytes;
rename N: after the N-th temporary file is complete, before it takes its name.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import engine.step
import models.write
from engine.cli import train_parser
from engine.run import run
from utils.errors import run_command


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Countdown:
    def __init__(self, count: int):
        self.count = count

    def __call__(self) -> bool:
        self.count -= 1
        return self.count == 0


def arm(moment: str) -> None:
    kind, count = moment.split()
    due = Countdown(int(count))
    if kind == "step":
        whole = engine.step.TrainStep.__call__

        def step(self, *args, **kwargs):
            if due():
                die()
            return whole(self, *args, **kwargs)

        engine.step.TrainStep.__call__ = step
    elif kind == "write":
        whole_fsync = os.fsync

        def fsync(descriptor):
            if due():
                written = os.readlink(f"/proc/self/fd/{descriptor}")
                if os.path.isfile(written):
                    os.truncate(written, os.path.getsize(written) // 2)
                die()
            whole_fsync(descriptor)

        models.write.os.fsync = fsync
    elif kind == "rename":
        whole_replace = os.replace

        def replace(source, target):
            if due():
                die()
            whole_replace(source, target)

        models.write.os.replace = replace


if __name__ == "__main__":
    if os.environ.get("FATAL"):
        arm(os.environ["FATAL"])
    opt = train_parser().parse_args()
    run_command(lambda: run(opt))
