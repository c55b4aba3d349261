"""The YOLOv7 family: training, validation and checkpoints of YOLOv7 networks. Checkpoints hold upstream's keys and
class paths, so that either program reads both.
"""

import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from yolov7fast.checkpoint.released_weights import local_weights
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.text import printable
from yolov7fast.data.class_groups import labels_to_class_weights, labels_to_image_weights
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.evaluation.eval_config import TRAINING_IOU, EvalConfig
from yolov7fast.evaluation.run_evaluation import run_evaluation
from yolov7fast.losses.assigners import assigner_at, assigner_stages
from yolov7fast.losses.loss_builder import build_loss
from yolov7fast.losses.yolo_loss import LOSS_NAMES
from yolov7fast.nn import compiling
from yolov7fast.nn.cuda_graphs import GraphedNet
from yolov7fast.nn.model import IAuxDetect, Model
from yolov7fast.nn.multihead import HeadConfig
from yolov7fast.predictors.predictor import Predictor
from yolov7fast.predictors.yolo_predictor import network_predictor
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training.checkpoints.resume import Progress, run_folder_of
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.distributed import World, from_main, main_first, share_start
from yolov7fast.training.family import Family, ResizeStage, class_names
from yolov7fast.training.optimizer import (
    Rates,
    YoloSchedule,
    build_optimizer,
    freeze_layers,
    scaled_weight_decay,
    set_weight_decay,
)
from yolov7fast.training.yolo_network import build_model

log = logging.getLogger(__name__)
DEFAULT_CFG = "cfg/training/yolov7.yaml"  # the network of a run that names none


class YoloFamily(Family):
    """A YOLOv7 network with its loaders, loss and optimizer."""

    name = "yolo"
    loss_names = (*LOSS_NAMES, "total")
    config_class = YoloTrainConfig
    epoch_files = ("epoch_*.pt", "best_*.pt")
    strips_final_checkpoint = True
    saves_initial = True
    drawn_batches = 10
    shorter_warmup = "more --epochs, or choose --hyp small or a file with lower warmup_epochs and warmup_min_iters"
    test_flags = ("--iou-thres", f"{TRAINING_IOU:g}")
    files = MappingProxyType({**Family.files, "cfg": partial(check_file, kind="cfg"), "weights": local_weights})
    config: YoloTrainConfig
    model: Model
    dataset: LoadImagesAndLabels
    losses: dict[str, Any]  # by assigner

    # --- how runs start and resume ------------------------------------------------------------------------------------

    @classmethod
    def find_files(cls, config: YoloTrainConfig, missing_ok: bool = False) -> YoloTrainConfig:
        if config.assigner and not missing_ok:
            hyper.check_assigner(config.assigner, "--assigner")
        config = super().find_files(config, missing_ok)
        if config.cfg or config.weights:
            return config
        cfg = check_file(DEFAULT_CFG, "cfg")
        if not config.resume:  # a resumed run has its network from the checkpoint
            log.info("Neither --cfg nor --weights is given: training %s from scratch", cfg)
        return replace(config, cfg=cfg)

    @classmethod
    def resume_options(cls, options: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
        hyp = run_folder_of(checkpoint) / "hyp.yaml"
        changed = {"hyp": str(hyp)} if hyp.is_file() else {}
        cfg = options["cfg"] if Path(options["cfg"]).is_file() else ""
        return options | changed | {"cfg": cfg, "weights": str(checkpoint)}

    @classmethod
    def automatic_batch(cls, config: YoloTrainConfig, device: torch.device, world: World) -> int:
        from yolov7fast.training.memory_plan import batch_that_fits

        with main_first(world):
            return batch_that_fits(config, device, world.size)

    # --- building -----------------------------------------------------------------------------------------------------

    @classmethod
    def build_network(cls, config: YoloTrainConfig, data: DataYaml, checkpoint: dict[str, Any] | None) -> Model:
        return build_model(config, hyper.load_hyp(config.hyp), len(class_names(data, config.single_cls)), checkpoint)

    def __init__(self, config: YoloTrainConfig, data: DataYaml, model: Model, device: torch.device, world: World):
        stored = hyper.load_hyp(config.hyp)  # as in the run's hyp.yaml
        self.settings_files = {"hyp.yaml": stored}
        self.hyp = hyp = hyper.effective_hyp(stored, config)
        source = config.hyp if isinstance(config.hyp, str) else "of the run file"
        log.info("hyperparameters: %s (%d values; --verbose lists them)", source, len(hyp))
        log.debug("%s", ", ".join(f"{k}={v}" for k, v in hyp.items()))
        frozen = freeze_layers(model, config.freeze)
        if frozen:
            log.info("frozen: %d parameters of layers %s", len(frozen), config.freeze)
        if config.channels_last:
            model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.loss_factor = world.size * (4.0 if config.quad else 1.0)
        self.grid = max(int(model.stride.max()), 32)
        if heads := getattr(model.model[-1], "head_config", None):
            heads = HeadConfig.from_dict(heads)
            self.class_groups = {f"{h}: {name}": ids for h, (name, ids) in enumerate(zip(heads.names, heads.classes))}
        super().__init__(config, data, model, device, world)

    def build_optimizer(self) -> torch.optim.Optimizer:
        decay = scaled_weight_decay(self.hyp, self.stages[0].batch)
        log.info("Scaled weight_decay = %g", decay)
        optimizer = build_optimizer(self.model, self.hyp, adam=self.config.adam, weight_decay=decay)
        log.info("Optimizer groups: %d other, %d decayed, %d bias", *(len(g["params"]) for g in optimizer.param_groups))
        return optimizer

    def loader_options(self, split: str) -> dict[str, Any]:
        config = self.config
        options = super().loader_options(split) | {
            "hyp": dict(self.hyp),
            "persistent_workers": config.persistent_workers or config.fast_dataloader,
            "worker_tensor": config.worker_tensor or config.fast_dataloader,
            "micro_batch": config.micro_batch,
        }
        if split == "val":
            return options | {"pad": 0.5} | ({"cache": False} if config.notest else {})
        chosen = {name: getattr(config, name) for name in ("rect", "image_weights", "quad")}
        return options | chosen | {"augment": not config.overfit}

    def fit_to_data(self, resumed: bool) -> None:
        """Check the anchors of a fresh run, and set the attributes that checkpoints store with the network."""
        if self.config.sync_bn and self.world.is_distributed and self.device.type == "cuda":
            self.model = cast(Model, nn.SyncBatchNorm.convert_sync_batchnorm(self.model)).to(self.device)
        if self.world.is_main and not resumed:
            if not self.config.noautoanchor:
                from yolov7fast.data.autoanchor import check_anchors

                check_anchors(self.dataset, model=self.model, thr=self.hyp["anchor_t"], imgsz=self.img_size)
            self.model.half().float()  # as upstream does: start from weights that half precision can hold
        self.attach_settings()

    def wrapped(self) -> Callable:
        mode, obstacle = compiling.compile_mode(self.config.compile), self.obstacle_to_graphs()
        if self.config.cuda_graph and not obstacle:
            share_start(self.model, self.world)  # the step averages the gradients, once for each update
            return GraphedNet(self.model)
        if obstacle:
            log.warning("--cuda-graph has no effect with %s", obstacle)
        net = super().wrapped()
        return compiling.CompiledNet(net, mode=mode) if mode else net

    def obstacle_to_graphs(self) -> str:
        """Why --cuda-graph cannot help this run; empty: it can, or was not asked for."""
        config = self.config
        flags = ("multi_scale", "rect", "sync_bn") if config.cuda_graph else ()
        found = [f"--{name.replace('_', '-')}" for name in flags if getattr(config, name)]
        return "a CPU" if config.cuda_graph and self.device.type != "cuda" else " and ".join(found)

    def attach_settings(self) -> None:
        """Set the attributes that a checkpoint stores with its network; the loss gains are for this size."""
        model, head = self.model, cast(Any, self.model.model[-1])
        model.nc = self.nc
        model.hyp = hyper.scale_gains(
            {**self.hyp, "weight_decay": scaled_weight_decay(self.hyp, self.stage.batch)},
            levels=head.nl,
            classes=self.nc,
            img_size=self.img_size,
            smoothing=self.config.label_smoothing,
        )
        model.gr = 1.0
        model.class_weights = labels_to_class_weights(self.dataset.labels, self.nc).to(self.device) * self.nc
        model.names = self.names

    def build_loss(self) -> None:
        self.schedule = YoloSchedule(
            self.hyp, len(self.loader), self.config.epochs, self.stage.batch, self.config.linear_lr
        )
        self.build_losses()

    def build_losses(self) -> None:
        """The losses by assigner. The plain one is also used for validation."""
        self.assigners = assigner_stages(self.hyp, self.config.epochs)
        if isinstance(self.model.model[-1], IAuxDetect) and any(stage.assigner == "plain" for stage in self.assigners):
            scheduled = [key for key in (hyper.ASSIGNER_SCHEDULE, "loss_ota_from") if key in self.hyp]
            remedy = f"remove {scheduled[0]} from the hyp file" if scheduled else "--assigner ota or tal"
            raise UserError(f"networks with auxiliary heads have no plain loss: {remedy}")
        assigners = dict.fromkeys(stage.assigner for stage in self.assigners if stage.assigner != "plain")
        names = ["plain", *(assigners or ["ota"])]  # a checkpoint stores them as a list in this order
        self.losses = {name: build_loss(self.model, name) for name in names}
        self.assigner = self.assigners[0].assigner
        if compiling.compile_mode(self.config.compile):
            from yolov7fast.losses.loss_builder import compile_loss

            for loss in self.losses.values():
                compile_loss(loss)

    # --- epoch and step -----------------------------------------------------------------------------------------------

    @property
    def warmup(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.schedule.warmup

    def enter_stage(self, stage: ResizeStage) -> None:
        """Its batch also determines accumulation and weight decay; the warm-up stays as planned, in batches of the
        first stage."""
        super().enter_stage(stage)
        self.attach_settings()
        self.build_losses()
        self.schedule = replace(self.schedule, total_batch=stage.batch)
        set_weight_decay(self.optimizer, scaled_weight_decay(self.hyp, stage.batch))

    def start_epoch(self, epoch: int, batch_index: int, per_class_ap: Sequence[float]) -> None:
        super().start_epoch(epoch, batch_index, per_class_ap)
        self.assigner = assigner_at(self.assigners, epoch)
        if self.config.image_weights and batch_index == 0:
            self.dataset.indices = self.weighted_indices(per_class_ap)

    def weighted_indices(self, per_class_ap: Sequence[float]) -> list[int]:
        """Draw images by the weight of their classes; classes of low AP have more weight."""
        ap = np.array(per_class_ap) if len(per_class_ap) else np.zeros(self.nc)
        class_weights = self.model.class_weights.cpu().numpy() * (1 - ap) ** 2 / self.nc
        weights = labels_to_image_weights(self.dataset.labels, self.nc, class_weights)
        drawn = random.choices(range(self.dataset.n), weights=list(weights), k=self.dataset.n)
        return from_main(drawn, self.world)

    def rates(self, global_step: int, epoch: int, batch_index: int) -> Rates:
        return self.schedule.rates(global_step, epoch, batch_index)

    def to_device(self, batch, device: torch.device):
        images, targets, *rest = batch
        images = images.to(device, non_blocking=True).float() / 255.0
        if self.config.multi_scale:
            images = self.rescaled(images)
        if self.config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        self.width = images.shape[-1]
        return images, targets, *rest

    def rescaled(self, images: torch.Tensor) -> torch.Tensor:
        """A random size between half and one and a half times the training size, in steps of the grid."""
        size = random.randrange(self.img_size // 2, self.img_size * 3 // 2 + self.grid) // self.grid * self.grid
        ratio = size / max(images.shape[2:])
        if ratio == 1:
            return images
        shape = [math.ceil(side * ratio / self.grid) * self.grid for side in images.shape[2:]]
        return F.interpolate(images, size=shape, mode="bilinear", align_corners=False)

    def forward_loss(self, net: Callable, batch, mark: Callable[[str], None]) -> tuple[torch.Tensor, torch.Tensor]:
        images, targets = batch[:2]
        outputs = net(images)
        mark("forward")
        return self.losses[self.assigner](outputs, targets, images)

    # --- validation ---------------------------------------------------------------------------------------------------

    def predictor(self, config: EvalConfig) -> Predictor:
        self.ema.copy_attributes(self.model)
        return network_predictor(self.ema.ema, config.predict_options(), self.losses["plain"])

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint_content(self, progress: Progress) -> dict[str, Any]:
        """Upstream writes the best fitness as an array of one value, and as a plain 0.0 while no fitness is above
        zero."""
        best = np.array([progress.best_fitness]) if progress.best_fitness else 0.0
        self.ema.copy_attributes(self.model)
        networks = {"model": deepcopy(self.model).half(), "ema": deepcopy(self.ema.ema).half()}
        return {"best_fitness": best, **networks}

    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]:
        names = super().checkpoint_names(epoch, final, is_best)
        if is_best and epoch >= 200:
            names.append(f"best_{epoch:03d}.pt")
        if epoch == 0 or (epoch + 1) % 25 == 0 or epoch >= self.config.epochs - 5 or final:
            names.append(f"epoch_{epoch:03d}.pt")
        return names

    def state(self) -> dict[str, Any]:
        return {
            "stage": self.stages.index(self.stage),
            "indices": list(self.dataset.indices) if self.config.image_weights else [],
            "balance": [list(loss.balance) for loss in self.losses.values()],
            "hyp": dict(self.settings_files["hyp.yaml"]),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Entering a stage resets its indices and losses, so that comes first.

        Hyper-parameters that were edited since the checkpoint have their new values: some are in its optimizer.
        """
        stage = self.stages[state.get("stage", 0)]
        if stage is not self.stage:
            self.enter_stage(stage)
        if state["indices"]:
            self.dataset.indices = list(state["indices"])
        stored = self.settings_files["hyp.yaml"]
        changes = changed_values(state.get("hyp", stored), stored)  # older checkpoints have none
        for loss, balance in zip(self.losses.values(), state["balance"], strict=not changes):
            loss.balance = list(balance)
        if changes:
            self.use_hyp()
            if self.world.is_main:
                file = self.run_dir / "hyp.yaml"
                log.warning("%s was edited after this checkpoint; its values are used: %s", file, ", ".join(changes))

    def use_hyp(self) -> None:
        """Replace those hyper-parameters in the optimizer that are not set by every batch."""
        set_weight_decay(self.optimizer, scaled_weight_decay(self.hyp, self.stage.batch))
        for group in self.optimizer.param_groups:
            if "betas" in group:  # SGD's momentum is set for each batch
                group["betas"] = (self.hyp["momentum"], group["betas"][1])

    def load_foreign_checkpoint(self, checkpoint: dict[str, Any], progress: Progress) -> None:
        """Resume from a file of upstream: epochs, best fitness and EMA."""
        progress.epoch = checkpoint["epoch"] + 1
        progress.global_step = progress.epoch * len(self.loader)
        progress.best_fitness = float(np.asarray(checkpoint["best_fitness"]).reshape(-1)[0])
        if self.ema and checkpoint.get("ema") is not None:
            self.ema.ema.load_state_dict(checkpoint["ema"].float().state_dict())
            self.ema.updates = checkpoint["updates"]

    def write_final_files(self, last: Path) -> None:
        self.final_coco_test([last, last.with_stem("best")])
        super().write_final_files(last)

    def final_coco_test(self, weights: Sequence[Path]) -> None:
        """Evaluate last and best with pycocotools and NMS IoU 0.7, as upstream does at the end of a COCO run."""
        if not (Path(self.config.data).name.endswith("coco.yaml") and self.nc == 80):
            return
        config = EvalConfig(
            img_size=self.test_size,
            batch_size=self.val_batch,
            iou_thres=0.7,
            v5_metric=self.config.v5_metric,
            half=self.config.amp != "off",
            bf16=self.config.amp == "bf16",
            save_json=True,
            plots=False,
            is_coco=True,
        )
        from yolov7fast.checkpoint.ensemble import attempt_load

        for path in filter(Path.is_file, weights):
            print(f"final test of {path}")
            predictor = network_predictor(attempt_load(path, self.device), config.predict_options())
            run_evaluation(predictor, self.val_loader, self.data, self.run_dir, config, weights=[str(path)])


def changed_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """'lr0 0.01 -> 0.02' for each key that differs."""
    values = {key: (before.get(key, "unset"), now.get(key, "unset")) for key in [*now, *before]}
    return [f"{printable(key, 60)} {shown(old)} -> {shown(new)}" for key, (old, new) in values.items() if old != new]
