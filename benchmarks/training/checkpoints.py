"""Cost of a checkpoint inside an epoch: seconds and megabytes of one save, and its fraction of the ten minutes between
two. Each save is done as in training: serialised, flushed to the disk, renamed."""

import argparse
import tempfile
from copy import deepcopy
from pathlib import Path

import torch

from benchmarks.measure import in_turn, machine, wall_seconds, write_json
from benchmarks.photographs import ROOT
from yolov7fast.checkpoint.checkpoint_reader import save_checkpoint
from yolov7fast.nn.model import Model
from yolov7fast.training.config import SAVE_MINUTES

NETWORKS = {"yolov7-tiny": "cfg/training/yolov7-tiny.yaml", "yolov7": "cfg/training/yolov7.yaml"}


def trained(cfg: str) -> tuple[Model, torch.optim.Optimizer]:
    """A network with gradients and momentum, as in the middle of an epoch."""
    model = Model(str(ROOT / cfg), ch=3, nc=80)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def save(model: Model, ema: Model, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """What the YOLO family stores and `training.checkpoints.resume.collect_state` adds."""
    state = {"model": model.state_dict(), "ema": ema.state_dict(), "gradients": [p.grad for p in model.parameters()]}
    content = {"epoch": 0, "model": deepcopy(model).half(), "ema": deepcopy(ema).half()}
    save_checkpoint(content | {"optimizer": optimizer.state_dict(), "resume": state}, path)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.training.checkpoints", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="yolov7-tiny alone")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--folder", default=None, help="where checkpoints are written: the disk to measure")
    parser.add_argument("--json", default=None)
    opt = parser.parse_args(argv)
    names = ["yolov7-tiny"] if opt.quick else list(NETWORKS)
    with tempfile.TemporaryDirectory(dir=opt.folder) as folder:
        paths = {name: Path(folder) / f"{name}.pt" for name in names}
        sides = {}
        for name in names:
            model, optimizer = trained(NETWORKS[name])
            ema = deepcopy(model)
            sides[name] = lambda m=model, e=ema, o=optimizer, p=paths[name]: wall_seconds(lambda: save(m, e, o, p))
        seconds = in_turn(sides, opt.runs)
        sizes = {name: path.stat().st_size / 1e6 for name, path in paths.items()}
    rows = []
    for name in names:
        fraction = seconds[name] / (SAVE_MINUTES * 60)
        rows.append(
            {"what": f"{name}: a save / {SAVE_MINUTES:g} minutes", "value": fraction, "must": "", "runs": opt.runs}
        )
        print(f"{name}: {seconds[name]:.2f} s, {sizes[name]:.0f} MB, {fraction:.3%} of {SAVE_MINUTES:g} minutes")
    write_json(opt.json, {"machine": machine(), "seconds": seconds, "megabytes": sizes, "ratios": rows})


if __name__ == "__main__":
    main()
