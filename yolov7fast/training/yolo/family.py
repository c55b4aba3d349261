"""The YOLOv7 family: network, losses, data and validation. Its checkpoints are in `checkpoints`, its rates in
`optimization`."""

import logging
import math
import random
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from yolov7fast.checkpoint.ensemble import attempt_load
from yolov7fast.checkpoint.released_weights import local_weights, released_for
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_file, check_img_size
from yolov7fast.data.autoanchor import check_anchors
from yolov7fast.data.class_weights import labels_to_class_weights, labels_to_image_weights
from yolov7fast.data.data_yaml import DataYaml, load_data_yaml
from yolov7fast.evaluation.eval_config import TRAINING_IOU, EvalConfig, OutputConfig
from yolov7fast.evaluation.run_evaluation import run_evaluation
from yolov7fast.losses.assigners import assigner_at, assigner_stages
from yolov7fast.losses.loss_builder import build_loss, compile_loss, diagnose_loss
from yolov7fast.losses.yolo_loss import LOSS_NAMES
from yolov7fast.nn import compiling
from yolov7fast.nn.head_config import HeadConfig
from yolov7fast.nn.model import IAuxDetect, Model
from yolov7fast.predictors.predictor import Predictor
from yolov7fast.predictors.yolo_predictor import network_predictor
from yolov7fast.search.evolve import evolve
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training import memory_plan
from yolov7fast.training.base_family import class_names
from yolov7fast.training.distributed import World, from_main, main_first
from yolov7fast.training.ema import ModelEMA
from yolov7fast.training.optimizer import Rates
from yolov7fast.training.resize_stages import ResizeStage
from yolov7fast.training.run import train_once
from yolov7fast.training.trainer import Outcome
from yolov7fast.training.yolo.checkpoints import YoloCheckpoints
from yolov7fast.training.yolo.network import build_model
from yolov7fast.training.yolo.optimization import (
    YoloSchedule,
    build_optimizer,
    freeze_layers,
    scaled_weight_decay,
    set_weight_decay,
)
from yolov7fast.training.yolo.workload import planned_work

log = logging.getLogger(__name__)
DEFAULT_CFG = "cfg/training/yolov7.yaml"  # what a run trains that names no network


def effective_hyp(hyp: Mapping[str, float], opt: Namespace) -> dict[str, float]:
    """The file's values with what the flags change; the file itself is stored as it was read."""
    values = hyper.with_assigner(hyp, opt.loss_ota, opt.assigner)
    if opt.auto_lr:
        values = hyper.auto_lr(values, opt.total_batch_size)
        log.info("--auto-lr: lr0 %g, warmup_epochs %g", values["lr0"], values["warmup_epochs"])
    return values


class YoloFamily(YoloCheckpoints):
    """A YOLOv7 network with all that trains it, built in upstream's order, on which its random draws rest."""

    name = "yolo"
    loss_names = (*LOSS_NAMES, "total")
    uses_all_gpus = True
    drawn_batches = 10
    model: Model

    # --- of the class -------------------------------------------------------------------------------------------------

    @classmethod
    def check_files(cls, opt: Namespace) -> None:
        super().check_files(opt)
        if opt.assigner:
            hyper.check_assigner(opt.assigner, "--assigner")
        opt.cfg = check_file(opt.cfg, "cfg")
        opt.weights = local_weights(opt.weights)
        if not opt.cfg and not opt.weights:
            opt.cfg = check_file(DEFAULT_CFG, "cfg")
            if not opt.resume or cls.ignores_resume(opt):  # a resumed run has its network from the checkpoint
                log.info("Neither --cfg nor --weights is given: training %s from scratch", opt.cfg)

    @classmethod
    def ignores_resume(cls, opt: Namespace) -> bool:
        """Evolution keeps a table of its own, which it resumes by itself."""
        return opt.evolve

    @classmethod
    def command_flags(cls, command: str, opt: Namespace) -> list[str]:
        nms = ["--iou-thres", f"{TRAINING_IOU:g}"] if command == "test" else []
        return ["--img-size", str(opt.test_size), *nms, *super().command_flags(command, opt)]

    @classmethod
    def run_instead(
        cls, opt: Namespace, device: torch.device, world: World, checkpoint: dict[str, Any] | None
    ) -> int | None:
        """--evolve, which trains many times, or the report that DIAGNOSE_COMPILE=1 asks for."""
        if opt.evolve:
            return cls.evolve(opt, device, world)
        if not compiling.diagnosis_wanted():
            return None
        data = load_data_yaml(opt.data, fetch=False, val_fraction=opt.val_fraction)
        model = cls.build_network(opt, data, checkpoint).to(device)
        images = torch.zeros(2, 3, opt.img_size[0], opt.img_size[0], device=device)
        network = compiling.diagnose(model, images)
        model.hyp, model.gr = hyper.with_assigner(hyper.load_hyp(opt.hyp), opt.loss_ota, opt.assigner), 1.0
        loss = build_loss(model, assigner_stages(model.hyp, opt.epochs)[-1].assigner)
        boxes = torch.tensor([[i, 0, 0.5, 0.5, size, size] for i in range(2) for size in (0.1, 0.3, 0.6)])
        return max(network, diagnose_loss(loss, model(images), boxes, images))

    @classmethod
    def automatic_batch(cls, opt: Namespace, device: torch.device, world: World) -> int:
        with main_first(world):
            work, images = planned_work(opt, device)
        replicas = torch.cuda.device_count() if device.type == "cuda" and not world.is_distributed else world.size
        limits = memory_plan.BatchLimits(int(hyper.get(work.hyp, "nominal_batch")), images, max(replicas, 1))
        return memory_plan.choose_batch(work, memory_plan.available_memory(device, opt.workers), limits)

    @classmethod
    def evolve(cls, opt: Namespace, device: torch.device, world: World) -> int:
        """Each generation is a training without checkpoints, which validates after its last epoch only."""
        if world.is_distributed:
            raise UserError("--evolve runs in one process: start it without torchrun")
        changed = vars(opt) | {"name": "evolve", "exist_ok": True, "notest": True, "nosave": True}

        def train(child: dict[str, Any]) -> Outcome:
            return train_once(cls, Namespace(**changed | {"hyp": child}), device, world, keep_files=False)

        hyp = hyper.with_assigner(hyper.load_hyp(opt.hyp), opt.loss_ota, opt.assigner)  # stored in the set
        return evolve(hyp, Path(opt.project) / "evolve", train, opt.bucket)

    @classmethod
    def build_network(cls, opt: Namespace, data: DataYaml, checkpoint: dict[str, Any] | None) -> Model:
        nc = len(class_names(data, opt.single_cls))
        return build_model(opt, hyper.load_hyp(opt.hyp), nc, torch.device("cpu"), checkpoint)

    # --- building -----------------------------------------------------------------------------------------------------

    def __init__(
        self,
        opt: Namespace,
        data: DataYaml,
        model: Model,
        device: torch.device,
        world: World,
        resumed: bool = False,
        hyp: Mapping[str, float] | None = None,
    ):
        """hyp: instead of what the options say."""
        super().__init__(opt, data, model, device, world, resumed)
        self.stored_hyp = hyp or hyper.load_hyp(opt.hyp)
        self.hyp = hyp = hyp or effective_hyp(self.stored_hyp, opt)
        source = opt.hyp if isinstance(opt.hyp, str) else "of the run file"
        log.info("hyperparameters: %s (%d values; --verbose lists them)", source, len(hyp))
        log.debug("%s", ", ".join(f"{k}={v}" for k, v in hyp.items()))
        self.draws_plots = not opt.evolve
        self.loss_factor = world.size * (4.0 if opt.quad else 1.0)
        frozen = freeze_layers(model, opt.freeze)
        if frozen:
            log.info("frozen: %d parameters of layers %s", len(frozen), opt.freeze)
        if opt.channels_last:
            model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.choose_sizes()
        decay = scaled_weight_decay(hyp, self.stages[0].batch)
        log.info("Scaled weight_decay = %g", decay)
        self.optimizer = build_optimizer(model, hyp, adam=opt.adam, weight_decay=decay)
        log.info(
            "Optimizer groups: %d other, %d decayed, %d bias", *(len(g["params"]) for g in self.optimizer.param_groups)
        )
        self.ema = ModelEMA(model) if world.is_main else None
        if opt.sync_bn and world.is_distributed and device.type == "cuda":
            self.model = cast(Model, nn.SyncBatchNorm.convert_sync_batchnorm(model)).to(device)
        self.build_loaders(self.stages[0])
        if world.is_main and not resumed:
            if not opt.noautoanchor:
                check_anchors(self.dataset, model=model, thr=hyp["anchor_t"], imgsz=self.img_size)
            self.model.half().float()  # as upstream does: start from weights that half precision can hold
        self.attach_settings(self.model)
        net = self.wrapped(self.model)
        self.net = compiling.CompiledNet(net) if compiling.compile_wanted(opt.compile) else net
        self.schedule = YoloSchedule(hyp, len(self.loader), opt.epochs, self.stage.batch, opt.linear_lr)
        self.build_losses()

    def choose_sizes(self) -> None:
        """Image sizes, rounded up to what the strides divide, and the stages of the resize schedule.

        The size of validation is noted among the options: a resumed run cannot know whether it was given.
        """
        opt, grid = self.opt, max(int(self.model.stride.max()), 32)
        sizes = opt.img_size if len(opt.img_size) == 2 else opt.img_size * 2
        rounded = {size: check_img_size(size, grid) for size in dict.fromkeys(sizes)}  # each is reported once
        size, test_size = (rounded[size] for size in sizes)
        self.plan_sizes(size, grid)
        if not opt.resize_schedule or "img_size" in opt.given:
            self.test_size = test_size
        self.test_size = opt.test_size = getattr(opt, "test_size", None) or self.test_size

    def loader_options(self) -> dict[str, Any]:
        opt = self.opt
        return super().loader_options() | {
            "hyp": dict(self.hyp),
            "persistent_workers": opt.persistent_workers or opt.fast_dataloader,
            "worker_tensor": opt.worker_tensor or opt.fast_dataloader,
            "micro_batch": opt.micro_batch,
        }

    def train_loader_options(self) -> dict[str, Any]:
        names = ("rect", "image_weights", "quad")
        chosen = {name: getattr(self.opt, name) for name in names}
        return super().train_loader_options() | chosen | {"augment": not self.opt.overfit}

    def val_loader_options(self) -> dict[str, Any]:
        return {"pad": 0.5} | ({"cache": False} if self.opt.notest else {})

    def attach_settings(self, model: Model) -> None:
        """What a checkpoint's network carries besides its weights; the gains are those of this size."""
        head: Any = model.model[-1]
        model.nc = self.nc
        model.hyp = hyper.scale_gains(
            {**self.hyp, "weight_decay": scaled_weight_decay(self.hyp, self.stage.batch)},
            levels=head.nl,
            classes=self.nc,
            img_size=self.img_size,
            smoothing=self.opt.label_smoothing,
        )
        model.gr = 1.0
        model.class_weights = labels_to_class_weights(self.dataset.labels, self.nc).to(self.device) * self.nc
        model.names = self.names

    def use_hyp(self, optimizer: torch.optim.Optimizer) -> None:
        set_weight_decay(optimizer, scaled_weight_decay(self.hyp, self.stage.batch))
        for group in optimizer.param_groups:
            if "betas" in group:  # SGD's momentum is set for each batch
                group["betas"] = (self.hyp["momentum"], group["betas"][1])

    def build_losses(self) -> None:
        """By assigner. The plain one is for validation, too."""
        self.assigners = assigner_stages(self.hyp, self.opt.epochs)
        if isinstance(self.model.model[-1], IAuxDetect) and any(stage.assigner == "plain" for stage in self.assigners):
            scheduled = [key for key in (hyper.ASSIGNER_SCHEDULE, "loss_ota_from") if key in self.hyp]
            remedy = f"remove {scheduled[0]} from the hyp file" if scheduled else "--assigner ota or tal"
            raise UserError(f"networks with auxiliary heads have no plain loss: {remedy}")
        pooled = dict.fromkeys(stage.assigner for stage in self.assigners if stage.assigner != "plain")
        names = ["plain", *(pooled or ["ota"])]  # what a checkpoint holds of them is a list in this order
        self.losses = {name: build_loss(self.model, name) for name in names}
        self.assigner = self.assigners[0].assigner
        if compiling.compile_wanted(self.opt.compile):
            for loss in self.losses.values():
                compile_loss(loss)

    # --- the step -----------------------------------------------------------------------------------------------------

    @property
    def warmup(self) -> int:
        return self.schedule.warmup

    @property
    def shorter_warmup(self) -> str:
        """Which of the two that the length is the larger of makes it that long decides."""
        if round(self.hyp["warmup_epochs"] * len(self.loader)) >= self.warmup:
            return "more --epochs, or lower warmup_epochs in the hyp file"
        if "warmup_min_iters" in self.hyp:
            return "more --epochs, or lower warmup_min_iters in the hyp file"
        return "--hyp small, the hyper-parameters for small data sets"

    @property
    def start_weights(self) -> str:
        file = released_for(self.opt.cfg)
        return "" if self.opt.weights or not file else f"--weights {file}, which is fetched on first use"

    def enter_stage(self, stage: ResizeStage) -> None:
        """Its batch decides accumulation and weight decay too; the warm-up stays as planned, in batches of the first
        stage."""
        super().enter_stage(stage)
        self.attach_settings(self.model)
        self.build_losses()
        self.schedule = replace(self.schedule, total_batch=stage.batch)
        set_weight_decay(self.optimizer, scaled_weight_decay(self.hyp, stage.batch))

    def prepare_epoch(self, epoch: int, batch_index: int, per_class_ap: Sequence[float]) -> None:
        """Choose loss and images of the epoch."""
        self.assigner = assigner_at(self.assigners, epoch)
        if self.opt.image_weights and batch_index == 0:
            self.dataset.indices = self.weighted_indices(per_class_ap)

    def weighted_indices(self, per_class_ap: Sequence[float]) -> list[int]:
        """Images drawn by the weight of their classes; classes of low AP weigh more."""
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
        if self.opt.multi_scale:
            images = self.rescaled(images)
        if self.opt.channels_last:
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
        self.averaged.copy_attributes(self.model)
        return network_predictor(self.averaged.ema, config.predict_options(), self.losses["plain"])

    def class_groups(self) -> Mapping[str, Sequence[int]]:
        config = getattr(self.model.model[-1], "head_config", None)
        if config is None:
            return {}
        heads = HeadConfig.from_dict(config)
        return {f"{h}: {name}": ids for h, (name, ids) in enumerate(zip(heads.names, heads.classes))}

    def final_coco_test(self, weights: Sequence[Path]) -> None:
        """As upstream ends a COCO run: last and best with pycocotools, suppression at IoU 0.7."""
        if not (Path(self.opt.data).name.endswith("coco.yaml") and self.nc == 80):
            return
        config = EvalConfig(
            img_size=self.test_size,
            batch_size=self.val_batch,
            iou_thres=0.7,
            v5_metric=self.opt.v5_metric,
            half=self.opt.amp != "off",
            outputs=OutputConfig(save_json=True, plots=False, is_coco=True),
        )
        for path in filter(Path.is_file, weights):
            print(f"final test of {path}")
            predictor = network_predictor(attempt_load(path, self.device), config.predict_options())
            run_evaluation(predictor, self.val_loader, self.data, self.run_dir, config, weights=[str(path)])
