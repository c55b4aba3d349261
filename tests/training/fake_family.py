"""A family of detectors that is one number: what the training loop does can be seen without any data or network."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from yolov7fast.evaluation.eval_loop import EvaluationStopped
from yolov7fast.evaluation.eval_result import SUMMARY
from yolov7fast.training.config import TrainConfig
from yolov7fast.training.distributed import World
from yolov7fast.training.family import Validation
from yolov7fast.training.logging.reporter import Reporter
from yolov7fast.training.optimizer import ModelEMA, Rates
from yolov7fast.training.trainer import Trainer


class Scalar(nn.Module):
    """One weight; the loss of a batch is weight * batch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0]))


class Batches(list):
    """Batches as loaders yield them: numbers in place of images, labels, paths."""

    num_workers = 0

    def __init__(self, numbers):
        super().__init__((number, [0], [f"image of {number}"]) for number in numbers)

    def set_epoch(self, epoch: int, start_batch: int) -> None:
        pass

    def close(self) -> None:
        pass


class FakeFamily:
    """Batches are numbers; `fitnesses` are what validations find, one after the other."""

    loss_names = ("total",)
    name = "scalar"
    checkpoint_suffix = ".pt"
    metric_names = ()
    epoch_files = ("epoch_*.pt",)
    loss_factor, clip_norm, no_sync = 1.0, 0.0, None
    test_size = width = 32
    drawn_batches, saves_initial, wandb_id = 0, False, None
    settings_files, names = {}, ()
    dataset = validation_set = None
    device = torch.device("cpu")
    advice = {}  # noqa: RUF012 (never changed)

    def __init__(self, folder: Path, batches=(1.0, 1.0), fitnesses=()):
        self.model = Scalar()
        self.net = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.ema = ModelEMA(self.model)
        self.loader = Batches(batches)
        self.folder, self.fitnesses = folder, list(fitnesses)
        self.weights_dir = folder / "weights"
        self.events: list[str] = []
        self.during_validation = lambda: None
        self.writes_epochs = False
        self.stops_in_validation = False  # or only after it, as with a validation of one batch

    # --- building: all is there

    stages = (None,)

    def build_optimizer(self) -> torch.optim.Optimizer:
        return self.optimizer

    def build_loaders(self, stage) -> None:
        pass

    def fit_to_data(self, resumed) -> None:
        pass

    def wrapped(self) -> nn.Module:
        return self.model

    def build_loss(self) -> None:
        pass

    # --- training

    def start_epoch(self, epoch, batch_index, per_class_ap) -> None:
        self.events.append(f"epoch {epoch}")

    def rates(self, global_step, epoch, batch_index) -> Rates:
        return Rates((0.1,), 0.9, 1)

    def to_device(self, batch, device):
        return torch.tensor([batch[0]])

    def forward_loss(self, net, batch, mark):
        loss = net.weight * batch
        return loss, loss.detach()

    def validate(self, epoch, final, draw, should_stop) -> Validation:
        self.events.append("validate")
        self.during_validation()
        if self.stops_in_validation and should_stop():
            raise EvaluationStopped
        fitness = self.fitnesses.pop(0) if self.fitnesses else 0.0
        return Validation(dict.fromkeys(SUMMARY, 0.0), [], fitness, {})

    def checkpoint_content(self, progress) -> dict[str, Any]:
        return {}

    def checkpoint_names(self, epoch, final, is_best) -> list[str]:
        return ["last.pt", f"epoch_{epoch}.pt"] if self.writes_epochs else ["last.pt"]

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state) -> None:
        pass

    def write_final_files(self, last) -> None:
        self.events.append("finish")

    def close(self) -> None:
        pass


def fake_trainer(folder: Path, family: FakeFamily | None = None, **flags) -> Trainer:
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    family = family or FakeFamily(folder)
    config = TrainConfig(**{"epochs": 2, "seed": 1, "save_every": 0.0} | flags, save_dir=str(folder))
    return Trainer(family, config, World(), Reporter(folder, family.loss_names))
