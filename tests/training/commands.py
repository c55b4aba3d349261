"""train.py as a user starts it, on a network and a data set small enough for tests."""

import subprocess
from pathlib import Path

import torch
import yaml

from tests.processes import ROOT, run_script
from yolov7fast.checkpoint.api import load_checkpoint

__all__ = ["ROOT", "assert_same_weights", "small_network", "small_run", "train", "weights_of"]


def small_network(folder: Path) -> str:
    """yolov7-tiny at an eighth of its width."""
    description = yaml.safe_load((ROOT / "cfg/training/yolov7-tiny.yaml").read_text())
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(description | {"width_multiple": 0.125}))
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


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    """All the state a complete checkpoint holds, flattened by name."""
    checkpoint = load_checkpoint(path)
    state = checkpoint["resume"]
    found = {f"model.{k}": v for k, v in state["model"].items()} | {f"ema.{k}": v for k, v in state["ema"].items()}
    for key, values in checkpoint["optimizer"]["state"].items():
        found |= {f"optimizer.{key}.{k}": v for k, v in values.items() if isinstance(v, torch.Tensor)}
    return found


def assert_same_weights(one: Path, other: Path) -> None:
    """Bit for bit: network, EMA, optimizer."""
    left, right = weights_of(one), weights_of(other)
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different, f"{len(different)} of {len(left)} tensors differ, first {different[:3]}"
