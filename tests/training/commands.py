"""train.py as a user starts it, on a network and a data set small enough for tests."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import yaml

from tests.processes import ROOT, run_script
from tests.small_network import NETWORK
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.machine.gpu_check import checkpoint_tensors as weights_of

__all__ = ["ROOT", "assert_same_weights", "here", "small_network", "small_run", "torchrun", "train", "weights_of"]


def small_network(folder: Path) -> str:
    """A description of the network of `tests.small_network`, for --cfg."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(NETWORK))
    return str(path)


def small_run(folder: Path, shapes: Path, *extra: str) -> list[str]:
    """Arguments of a run of 4 batches an epoch, at 64 pixels."""
    return [
        *("--cfg", small_network(folder), "--data", str(shapes / "shapes.yaml"), "--hyp", "data/hyp.small.yaml"),
        *("--img", "64", "--batch-size", "4", "--workers", "0", "--device", "cpu", "--noautoanchor"),
        *("--project", str(folder / "runs"), "--name", "run", *extra),
    ]


def train(*arguments: str, script: str = "train.py", **environment: str) -> subprocess.CompletedProcess:
    """Run to its end in a process of its own; output is captured."""
    return run_script(script, *arguments, **environment)


def here(*arguments: str) -> int:
    """Train in this process."""
    return run(parser_for("train").parse_args(list(arguments)))


def torchrun(
    *arguments: str,
    script: str = "tests/training/agreeing_train.py",
    restarts: int = 0,
    timeout: float = 200,
    **environment: str,
) -> subprocess.CompletedProcess:
    """As a user starts it: torchrun's own process, then each of the two from the beginning."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
    launcher += ["--max-restarts", str(restarts)]
    return subprocess.run(
        [*launcher, "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", str(ROOT / script), *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def assert_same_weights(one: Path, other: Path) -> None:
    """Bit for bit: network, EMA, optimizer."""
    left, right = weights_of(one), weights_of(other)
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different, f"{len(different)} of {len(left)} tensors differ, first {different[:3]}"
