"""The DETR family: training of detectors of transformers, AdamW and its learning rates, and `--profile`."""

import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, state_dict_of, transfer_weights
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.detr_dataset import DetrDataset
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_result import EvalResult
from yolov7fast.losses.detr_loss import PARTS, attach_loss
from yolov7fast.nn.detr_model import DetrNetwork, build, rebuild
from yolov7fast.predictors.detr_predictor import GRID, BatchLayout, DetrPredictor
from yolov7fast.predictors.predictor import Predictor
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.config import DetrTrainConfig
from yolov7fast.training.distributed import World
from yolov7fast.training.family import Family, class_names, load_run_data
from yolov7fast.training.logging.bottleneck import DISK_CACHE, FAST_LOADER, WORKERS, Advice, Remedy
from yolov7fast.training.logging.page import peak_memory
from yolov7fast.training.optimizer import ModelEMA, Rates
from yolov7fast.training.step import TrainStep, choose_amp
from yolov7fast.training.timing import STAGES, StageTimer
from yolov7fast.training.train import prepare_process

log = logging.getLogger(__name__)
AP_SMALL, PEAK_MEMORY = "metrics/AP_small", "peak_memory_gb"
WARM_STEPS = 3  # of --profile, before the measurement


class DetrFamily(Family):
    """A DETR network with its loaders, loss and optimizer."""

    name = "detr"
    loss_names = (*PARTS, "total")
    config_class = DetrTrainConfig
    grid = GRID
    checkpoint_suffix = ".pth"
    shorter_warmup = "a lower --warmup-iters, or more --epochs"
    weights_folder = ""  # checkpoints lie in the run's folder itself
    strips_final_checkpoint = True
    metric_names = (AP_SMALL, PEAK_MEMORY)
    dataset_class = DetrDataset
    finds_unused_parameters = True  # a batch without any box gives no gradient to RT-DETR's denoising
    advice = {  # noqa: RUF012 (read only)
        "data": Advice("waiting for data", (FAST_LOADER, DISK_CACHE, WORKERS)),
        "loss": Advice("the loss, whose matcher runs on the host", (Remedy("--profile 50, which measures it"),)),
        "network": Advice(
            "the network (the usual case)",
            (
                Remedy("a smaller --img-size"),
                Remedy("--resize-schedule"),
                Remedy("--amp", "amp"),
                Remedy("fewer queries"),
            ),
        ),
    }
    epoch_files = ("checkpoint_epoch_*.pth",)
    config: DetrTrainConfig
    model: DetrNetwork

    # --- how runs start and resume ------------------------------------------------------------------------------------

    @classmethod
    def build_network(cls, config: DetrTrainConfig, data: DataYaml, checkpoint: dict[str, Any] | None) -> DetrNetwork:
        if checkpoint is not None:
            return rebuild(checkpoint, config.resume)
        names = class_names(data, config.single_cls)
        model = build(config.architecture, names, config.network, config.pretrained)
        if config.weights:
            weights = state_dict_of(load_checkpoint(config.weights), prefer_ema=True, origin=config.weights)
            transfer_weights(model, weights, origin=config.weights)
        size = sum(parameter.numel() for parameter in model.parameters())
        log.info("%s: %.2f million parameters, %d classes", config.architecture, size / 1e6, len(names))
        return model

    # --- building -----------------------------------------------------------------------------------------------------

    def build_optimizer(self) -> torch.optim.Optimizer:
        """AdamW over two groups: everything else, then the backbone, which DETR trains more slowly."""
        config = self.config
        return build_adamw(self.model, config.lr, config.backbone_lr, config.weight_decay)

    def fit_to_data(self, resumed: bool) -> None:
        self.loss = attach_loss(self.model)
        self.loss.shared = self.world.is_distributed

    def build_loss(self) -> None:
        config, self.clip_norm = self.config, self.config.clip_norm
        self.schedule = DropSchedule(
            base=(config.lr, config.backbone_lr),
            batches=self.mean_batches(),
            epochs=config.epochs,
            kind=config.schedule,
            drop=config.lr_drop,
            final=config.final_lr,
            warmup=config.warmup_iters,
        )

    def loader_options(self, split: str) -> dict[str, Any]:
        if split == "val":
            return super().loader_options(split)
        names = ("fliplr", "flipud", "scale_min", "crop", "crop_min")
        chances = {name: getattr(self.config, name) for name in names}
        return super().loader_options(split) | {"hyp": chances, "augment": not self.config.overfit}

    def mean_batches(self) -> float:
        """Batches of an epoch, on average over the stages of the resize schedule, which may differ in batch size."""
        ends = [min(stage.epoch, self.config.epochs) for stage in self.stages[1:]] + [self.config.epochs]
        images = -(-len(self.dataset) // self.world.size)
        total, begin = 0, 0
        for stage, end in zip(self.stages, ends):
            total, begin = total + (end - begin) * -(-images // (stage.batch // self.world.size)), end
        return total / self.config.epochs

    # --- epoch and step -----------------------------------------------------------------------------------------------

    @property
    def warmup(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.schedule.warmup

    def rates(self, global_step: int, epoch: int, batch_index: int) -> Rates:
        return self.schedule.rates(global_step, epoch)

    def to_device(self, batch, device: torch.device):
        """(images in 0..1, padding mask, labels by image): cut to the part that images cover."""
        images, targets, _, shapes = batch
        frames = BatchLayout.of(shapes, images.shape[2:], self.model, grid=GRID)
        self.width = frames.width
        labels = frames.sent_labels(targets, device)
        return *frames.inputs(images, device), labels

    def forward_loss(self, net: Callable, batch, mark: Callable[[str], None]) -> tuple[torch.Tensor, torch.Tensor]:
        self.loss.mark = mark
        output = net(*batch)
        parts = [output.loss_dict[name] for name in PARTS]
        return output.loss, torch.stack([*parts, output.loss.detach()])

    # --- validation and files -----------------------------------------------------------------------------------------

    def predictor(self, config: EvalConfig) -> Predictor:
        return DetrPredictor(self.ema.ema, config.predict_options(), with_loss=True)

    def further_metrics(self, result: EvalResult) -> dict[str, float]:
        return {AP_SMALL: result.sizes["small"].ap, PEAK_MEMORY: peak_memory(self.device)[0]}

    def checkpoint_content(self, progress: Progress) -> dict[str, Any]:
        """Plain values and state dicts; weights that `resume` holds too are stored once.

        Rates depend only on the schedule and the global step: `scheduler` is for readers of the file.
        """
        return {
            **self.model.description(),
            "model": self.model.state_dict(),
            "ema": self.ema.ema.state_dict(),
            "scheduler": self.schedule.state(progress.global_step, progress.epoch),
        }

    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]:
        names = super().checkpoint_names(epoch, final, is_best)
        period = self.config.checkpoint_period
        if period and ((epoch + 1) % period == 0 or final):
            names.append(f"checkpoint_epoch_{epoch + 1}.pth")
        return names


def build_adamw(model: nn.Module, lr: float, backbone_lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW over two groups: everything else, then the backbone, which DETR trains more slowly."""
    learning = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for name, p in learning if ".backbone." not in name], "lr": lr},
        {"params": [p for name, p in learning if ".backbone." in name], "lr": backbone_lr},
    ]
    log.info("AdamW: %d parameters, %d of the backbone", *(len(group["params"]) for group in groups))
    fused = True if next(model.parameters()).is_cuda else None
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay, fused=fused)


@dataclass(frozen=True)
class DropSchedule:
    """Linear warm-up, then rates that drop to a tenth once, or follow half a cosine; the same factor for each group."""

    base: tuple[float, ...]  # learning rate of each optimizer group
    batches: float  # of an epoch, on average
    epochs: int
    kind: str = "step"  # or "cosine"
    drop: int = 0  # step: epochs before the drop; 0: four fifths of all
    final: float = 0.01  # cosine: the factor at the end
    warmup: int = 0  # iterations

    def factor(self, global_step: int, epoch: int) -> float:
        warm = min((global_step + 1) / self.warmup, 1.0) if self.warmup else 1.0
        if self.kind == "step":
            return warm * (0.1 if epoch >= (self.drop or max(round(self.epochs * 0.8), 1)) else 1.0)
        done = min(global_step / max(self.batches * self.epochs, 1), 1.0)
        return warm * (self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2)

    def rates(self, global_step: int, epoch: int) -> Rates:
        factor = self.factor(global_step, epoch)
        return Rates(tuple(lr * factor for lr in self.base), 0.0, 1)

    def state(self, global_step: int, epoch: int) -> dict[str, Any]:
        """Plain values for a checkpoint: the settings, the progress of the run, and the rates of its next iteration."""
        place = {"global_step": global_step, "epoch": epoch, "last_lr": list(self.rates(global_step, epoch).lrs)}
        return {**asdict(self), "base": list(self.base), **place}


def profile_steps(config: DetrTrainConfig, world: World, checkpoint: dict[str, Any] | None) -> int:
    """--profile N: run a few steps on the real loader and print their times by stage; the matcher is `assignment`."""
    config, device = prepare_process(config, DetrFamily, world, checkpoint)
    data = load_run_data(config, world)
    model = DetrFamily.build_network(config, data, checkpoint).to(device)
    family = DetrFamily(config, data, model, device, world)
    family.optimizer, family.ema = family.build_optimizer(), ModelEMA(model)
    family.build_loaders(family.stages[0])
    family.fit_to_data(resumed=checkpoint is not None)
    family.net = family.wrapped()
    family.build_loss()
    family.loss.timed = True
    timer, total, global_step = StageTimer(device), WARM_STEPS + config.profile, 0
    parts = family.model.train(), family.net, family.optimizer, family.ema, device
    step = TrainStep(family, *parts, amp=choose_amp(config.amp, device), clip_norm=family.clip_norm)
    try:
        with tqdm(total=total, desc="profile") as bar:
            while global_step < total:
                for batch in family.loader:
                    if global_step == WARM_STEPS:
                        timer = StageTimer(device)
                    step(batch, global_step, family.rates(global_step, 0, global_step), timer)
                    global_step += 1
                    bar.update()
                    if global_step == total:
                        break
    finally:
        family.close()
    middle = {stage: median(times) for stage, times in timer.totals().items()}
    whole = sum(middle.values())
    print(f"{'stage':>12s}{'ms':>10s}{'fraction':>10s}   median of {config.profile} steps on {device.type}")
    for stage in (stage for stage in STAGES if stage in middle):
        print(f"{stage:>12s}{middle[stage]:10.2f}{middle[stage] / whole:10.1%}")
    print(
        f"{'step':>12s}{whole:10.2f}   assignment is the matcher: cost matrix, its copy to the host, SciPy's assignment"
    )
    return 0
