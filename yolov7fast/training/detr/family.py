"""The DETR family: network, loss, data and validation of transformers' detectors."""

import logging
import resource
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, state_dict_of, transfer_weights
from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.detr_dataset import DetrDataset
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_result import EvalResult
from yolov7fast.losses.detr_loss import PARTS, attach_loss
from yolov7fast.nn.detr_model import Detector, build, rebuild
from yolov7fast.predictors.detr_predictor import GRID, BatchLayout, DetrPredictor
from yolov7fast.predictors.predictor import Predictor
from yolov7fast.training.base_family import BaseFamily, class_names
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.detr.optimization import DropSchedule, build_optimizer
from yolov7fast.training.detr.profile import profile
from yolov7fast.training.distributed import World
from yolov7fast.training.ema import ModelEMA
from yolov7fast.training.logging.bottleneck import DISK_CACHE, FAST_LOADER, WORKERS, Advice, Remedy
from yolov7fast.training.optimizer import Rates
from yolov7fast.training.run import build_family
from yolov7fast.training.step import choose_amp

log = logging.getLogger(__name__)
AP_SMALL, PEAK_MEMORY = "metrics/AP_small", "peak_memory_gb"


class DetrFamily(BaseFamily):
    """A DETR network with all that trains it."""

    name = "detr"
    loss_names = (*PARTS, "total")
    checkpoint_suffix = ".pth"
    weights_folder = ""  # checkpoints lie in the run's folder itself
    strips_final_checkpoint = True
    metric_names = (AP_SMALL, PEAK_MEMORY)
    dataset_class = DetrDataset
    finds_unused_parameters = True  # a batch without any box leaves RT-DETR's denoising unused
    advice = {  # noqa: RUF012 (read only)
        "data": Advice("waiting for data", (FAST_LOADER, DISK_CACHE, WORKERS)),
        "loss": Advice("the loss, whose matcher runs on the host", (Remedy("--profile 50, which measures it"),)),
        "network": Advice(
            "the network, as it should be",
            (
                Remedy("a smaller --img-size"),
                Remedy("--resize-schedule"),
                Remedy("--amp", "amp"),
                Remedy("fewer queries"),
            ),
        ),
    }
    epoch_files = ("checkpoint_epoch_*.pth",)
    model: Detector

    # --- of the class -------------------------------------------------------------------------------------------------

    @classmethod
    def run_instead(
        cls, opt: Namespace, device: torch.device, world: World, checkpoint: dict[str, Any] | None
    ) -> int | None:
        """--profile, which measures a few steps and trains no further."""
        if not opt.profile:
            return None
        family = build_family(cls, opt, device, world, checkpoint)
        profile(family, family.loss, opt.profile, choose_amp(opt.amp, family.device))
        return 0

    @classmethod
    def complete_checkpoint(cls, path: Path) -> tuple[dict[str, Any], Path]:
        """A finished run's last.pth is stripped; its last checkpoint_epoch_N.pth still holds the whole state."""
        files = sorted(path.parent.glob("checkpoint_epoch_*.pth"), key=lambda file: (len(file.name), file.name))
        for candidate in reversed(files):
            checkpoint = load_checkpoint(candidate)
            if isinstance(checkpoint, dict) and checkpoint.get("resume"):
                return checkpoint, candidate
        raise UserError(
            f"--resume {path}: the file is stripped (its run is finished) and no checkpoint_epoch_*.pth is beside it; "
            f"start a new run with --weights {path}"
        )

    @classmethod
    def build_network(cls, opt: Namespace, data: DataYaml, checkpoint: dict[str, Any] | None) -> Detector:
        if checkpoint is not None:
            return rebuild(checkpoint, opt.resume)
        names = class_names(data, opt.single_cls)
        model = build(opt.architecture, names, opt.network, opt.pretrained)
        if opt.weights:
            weights = state_dict_of(load_checkpoint(opt.weights), prefer_ema=True, origin=opt.weights)
            transfer_weights(model, weights, origin=opt.weights)
        size = sum(parameter.numel() for parameter in model.parameters())
        log.info("%s: %.2f million parameters, %d classes", opt.architecture, size / 1e6, len(names))
        return model

    # --- building -----------------------------------------------------------------------------------------------------

    def __init__(
        self,
        opt: Namespace,
        data: DataYaml,
        model: Detector,
        device: torch.device,
        world: World,
        resumed: bool = False,
    ):
        super().__init__(opt, data, model, device, world, resumed)
        self.clip_norm = opt.clip_norm
        self.ema = ModelEMA(model) if world.is_main else None
        self.loss = attach_loss(model)
        self.loss.shared = world.is_distributed
        self.optimizer = build_optimizer(model, opt.lr, opt.backbone_lr, opt.weight_decay)
        self.plan_sizes(opt.img_size, GRID)
        self.build_loaders(self.stages[0])
        self.net = self.wrapped(model)
        self.schedule = DropSchedule(
            base=(opt.lr, opt.backbone_lr),
            batches=self.mean_batches(),
            epochs=opt.epochs,
            kind=opt.schedule,
            drop=opt.lr_drop,
            final=opt.final_lr,
            warmup=opt.warmup_iters,
        )

    def train_loader_options(self) -> dict[str, Any]:
        names = ("fliplr", "flipud", "scale_min", "crop", "crop_min")
        chances = {name: getattr(self.opt, name) for name in names}
        return super().train_loader_options() | {"hyp": chances, "augment": not self.opt.overfit}

    def mean_batches(self) -> float:
        """Batches of an epoch, on average over the stages of the resize schedule, which may differ in batch size."""
        ends = [min(stage.epoch, self.opt.epochs) for stage in self.stages[1:]] + [self.opt.epochs]
        images = -(-len(self.dataset) // self.world.size)
        total, begin = 0, 0
        for stage, end in zip(self.stages, ends):
            total, begin = total + (end - begin) * -(-images // (stage.batch // self.world.size)), end
        return total / self.opt.epochs

    # --- the step -----------------------------------------------------------------------------------------------------

    @property
    def warmup(self) -> int:
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
        return DetrPredictor(self.averaged.ema, config.predict_options(), with_loss=True)

    def further_metrics(self, result: EvalResult) -> dict[str, float]:
        return {AP_SMALL: result.sizes["small"].ap, PEAK_MEMORY: peak_memory_gb(self.device)}

    def checkpoint_content(self) -> dict[str, Any]:
        """Plain values and state dicts; weights that `resume` holds too are stored once."""
        return {
            **self.model.description(),
            "img_size": self.test_size,
            "model": self.model.state_dict(),
            "ema": self.averaged.ema.state_dict(),
        }

    @property
    def shorter_warmup(self) -> str:
        return "a lower --warmup-iters, or more --epochs"

    def checkpoint(self, progress: Progress, results_text: str) -> dict[str, Any]:
        """Rates follow from the schedule and the global step alone: `scheduler` is for those who read the file."""
        schedule = self.schedule.state(progress.global_step, progress.epoch)
        return super().checkpoint(progress, results_text) | {"scheduler": schedule}

    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]:
        names = super().checkpoint_names(epoch, final, is_best)
        period = self.opt.checkpoint_period
        if period and ((epoch + 1) % period == 0 or final):
            names.append(f"checkpoint_epoch_{epoch + 1}.pth")
        return names


def peak_memory_gb(device: torch.device) -> float:
    """The most memory so far: of the GPU where there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
