"""Training runs under observation: what the recorded runs of upstream (WongKinYiu/yolov7) hold, taken from ours."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import yolov7fast.training.family
import yolov7fast.training.logging.reporter
import yolov7fast.training.yolo_family
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import config_of
from yolov7fast.evaluation.eval_result import SUMMARY
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.distributed import World
from yolov7fast.training.train import train
from yolov7fast.training.yolo_family import YoloFamily

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def recorded(name: str) -> dict:
    return json.loads((GOLDEN / name).read_text())


def synthetic_batches(batch: int, size: int, steps: int) -> list[tuple]:
    """The recipe that the recorded synthetic runs name."""
    random = np.random.RandomState(4242)
    batches = []
    for _ in range(steps):
        images = random.randint(0, 256, (batch, 3, size, size)).astype(np.uint8)
        rows = []
        for image in range(batch):
            n = random.randint(2, 12)
            wh = np.exp(random.uniform(np.log(0.05), np.log(0.6), (n, 2)))
            xy = random.uniform(0.05, 0.95, (n, 2))
            classes = random.randint(0, 3, (n, 1))
            rows.append(np.concatenate([np.full((n, 1), image), classes, xy, wh], 1))
        targets = torch.from_numpy(np.concatenate(rows).astype(np.float32))
        batches.append((torch.from_numpy(images), targets, (f"synthetic{len(batches)}",) * batch, (None,) * batch))
    return batches


class FakeLoader(list):
    num_workers = 0

    def set_epoch(self, epoch, start_batch=0):
        pass

    def close(self):
        pass


class FakeDataset:
    labels = tuple(np.array([[c, 0.5, 0.5, 0.2, 0.2]], np.float32) for c in range(3))
    label_files = ("a.txt", "b.txt", "c.txt")
    img_files = ("a.jpg", "b.jpg", "c.jpg")
    segments = ((), (), ())
    shapes = np.full((3, 2), 64)
    indices = range(3)
    n = 3

    def __init__(self):
        self.problem_kinds: dict[str, int] = {}

    def __len__(self) -> int:
        return self.n


def replace_data(monkeypatch, batches) -> None:
    """Let the family train on given batches, and validate to zeros."""
    monkeypatch.setattr(
        yolov7fast.training.family, "create_dataloader", lambda *_, **__: (FakeLoader(batches), FakeDataset())
    )
    nothing = SimpleNamespace(metrics=dict.fromkeys(SUMMARY, 0.0), losses={}, per_class_ap=np.zeros(3), fitness=0.0)
    monkeypatch.setattr(yolov7fast.training.family, "run_evaluation", lambda *_, **__: nothing)
    monkeypatch.setattr(yolov7fast.training.family, "findings", lambda *_: {})
    monkeypatch.setattr(yolov7fast.training.logging.reporter, "plot_images", lambda *_: None)


class ObservedFamily(YoloFamily):
    """Notes each step's losses and rates; `double`: runs the network in double precision."""

    double = False
    seen: dict

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        ObservedFamily.seen = {"steps": [], "family": self}

    def build_loss(self):
        super().build_loss()
        if self.double:
            self.model.double()
            self.ema.ema.double()
            self.net = lambda images: self.model(images.double())

    def forward_loss(self, net, batch, mark):
        loss, items = super().forward_loss(net, batch, mark)
        groups = self.optimizer.param_groups
        self.seen["steps"].append(
            {
                "items": items.tolist(),
                "loss": loss.item(),
                "lr": [group["lr"] for group in groups],
                "momentum": [group["momentum"] for group in groups],
                "targets": batch[1].clone(),
                "images": (batch[0] * 255).round().to(torch.uint8),
            }
        )
        return loss, items


def observe(monkeypatch, arguments: list[str], *, double: bool = False) -> tuple[dict, YoloTrainConfig]:
    """Train by the command's own path; returns what was seen and the config."""
    monkeypatch.setattr(ObservedFamily, "double", double)
    opt = parser_for("train").parse_args(arguments)
    train(config_of(opt, "yolo"), ObservedFamily, World())
    return ObservedFamily.seen, ObservedFamily.seen["family"].config


def weight_sums(model: torch.nn.Module, names) -> dict[str, list[float]]:
    state = model.state_dict()
    return {name: [state[name].double().mean().item(), state[name].double().abs().sum().item()] for name in names}
