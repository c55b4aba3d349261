"""The YOLOv7 family for the training engine: network, losses, data, validation and checkpoint content."""

import logging
import math
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from yolov7fast.checkpoint.api import save_checkpoint, strip_checkpoint
from yolov7fast.checkpoint.ensemble import attempt_load
from yolov7fast.core.errors import UserError
from yolov7fast.core.files import check_img_size
from yolov7fast.core.resize_schedule import ResizeStage
from yolov7fast.data.autoanchor import check_anchors
from yolov7fast.data.class_weights import labels_to_class_weights, labels_to_image_weights
from yolov7fast.data.labels import Subset, check_class_range
from yolov7fast.evaluation.config import EvalConfig, OutputConfig
from yolov7fast.evaluation.run import run_evaluation
from yolov7fast.loading.dataloader import create_dataloader
from yolov7fast.losses.multihead import ComputeLossMultiHead, ComputeLossMultiHeadOTA
from yolov7fast.losses.yolo import ComputeLoss, ComputeLossAuxOTA, ComputeLossOTA
from yolov7fast.nn.model import IAuxDetect, Model, MultiHeadDetect
from yolov7fast.plots import plot_images, plot_results
from yolov7fast.predictors.yolo import network_predictor
from yolov7fast.training import hyperparameters as hyper
from yolov7fast.training.compiling import CompiledNet, compile_wanted
from yolov7fast.training.distributed import World, from_main, main_first
from yolov7fast.training.ema import ModelEMA
from yolov7fast.training.optimizer import build_optimizer, freeze_layers, set_weight_decay
from yolov7fast.training.resize_stages import final_size, plan_stages
from yolov7fast.training.resume import Progress, previous_of
from yolov7fast.training.schedule import Rates, YoloSchedule, scaled_weight_decay
from yolov7fast.training.trainer import Validation, best_as_saved

log = logging.getLogger(__name__)
DRAWN_BATCHES = 10


class YoloFamily:
    """A YOLOv7 network with all that trains it, built in the reference's order, on which its random draws rest."""

    loss_names = ("box", "obj", "cls", "total")
    checkpoint_suffix = ".pt"
    figure_names: tuple[str, ...] = ()
    advice: Mapping[str, str] = {}
    shorter_warmup = "set warmup_min_iters in the hyp file"

    def __init__(
        self,
        opt,
        hyp: Mapping[str, float],
        data,
        model: Model,
        device: torch.device,
        world: World,
        run_dir: Path,
        *,
        resumed: bool = False,
    ):
        """model: built, weights taken over, on the device; data: the checked data yaml."""
        self.opt, self.hyp, self.data, self.device, self.world, self.run_dir = opt, hyp, data, device, world, run_dir
        self.model = model
        self.nc = 1 if opt.single_cls else data.nc
        self.names = ["item"] if opt.single_cls and len(data.names) != 1 else data.names
        frozen = freeze_layers(model, opt.freeze)
        if frozen:
            log.info("frozen: %d parameters of layers %s", len(frozen), opt.freeze)
        if opt.channels_last:
            model.to(memory_format=torch.channels_last)
        self._plan_sizes()
        decay = scaled_weight_decay(hyp, self.stages[0].batch)
        log.info("Scaled weight_decay = %g", decay)
        self.optimizer = build_optimizer(model, hyp, adam=opt.adam, weight_decay=decay)
        log.info(
            "Optimizer groups: %d other, %d decayed, %d bias", *(len(g["params"]) for g in self.optimizer.param_groups)
        )
        self.ema = ModelEMA(model) if world.is_main else None
        self.model = self.model if not self._sync_bn() else nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device)
        self._build_loaders(self.stages[0])
        if world.is_main and not resumed:
            if not opt.noautoanchor:
                check_anchors(self.dataset, model=model, thr=hyp["anchor_t"], imgsz=self.img_size)
            self.model.half().float()  # as the reference does: start from weights that half precision can hold
        self._attach(self.model)
        self.net = self._wrap()
        self.schedule = YoloSchedule(hyp, len(self.loader), opt.epochs, self.stage.batch, opt.linear_lr)
        self._build_losses()
        self.draftsman = ThreadPoolExecutor(1)
        self.drawings = []
        self.wandb_id: str | None = None

    # --- building -----------------------------------------------------------------------------------------------------

    def _plan_sizes(self) -> None:
        """Image sizes, rounded up to what the strides can hold, and the stages of the resize schedule.

        The size of validation is noted among the options: a run that is gone on with cannot tell if it was given.
        """
        self.grid = max(int(self.model.stride.max()), 32)
        sizes = self.opt.img_size if len(self.opt.img_size) == 2 else self.opt.img_size * 2
        self.img_size, self.test_size = (check_img_size(size, self.grid) for size in sizes)
        self.stages = plan_stages(
            self.opt.resize_schedule,
            *(self.img_size, self.opt.total_batch_size),
            processes=self.world.size,
            grid=self.grid,
        )
        if self.opt.resize_schedule:
            self.img_size = self.stages[0].size
            if "img_size" not in self.opt.given:
                self.test_size = final_size(self.stages, self.opt.epochs)
        self.test_size = getattr(self.opt, "test_size", None) or self.test_size
        self.opt.test_size = self.test_size

    def _sync_bn(self) -> bool:
        return self.opt.sync_bn and self.world.is_distributed and self.device.type == "cuda"

    def _loader_options(self) -> dict[str, Any]:
        opt = self.opt
        return {
            "workers": opt.workers,
            "cache": opt.cache_images,
            "cache_dir": opt.cache_dir or None,
            "persistent_workers": opt.persistent_workers or opt.fast_dataloader,
            "worker_tensor": opt.worker_tensor or opt.fast_dataloader,
            "micro_batch": opt.micro_batch,
            "keep_partial_labels": opt.keep_partial_labels,
        }

    def _build_loaders(self, stage: ResizeStage) -> None:
        """The training loader of a stage and, once, the validation loader of the main process."""
        opt, world = self.opt, self.world
        self.stage = stage
        self.img_size = stage.size
        batch = stage.batch // world.size
        subset = Subset(opt.overfit) if opt.overfit else None
        if opt.subset_size:
            subset = Subset(opt.subset_size, opt.subset_seed)
        with main_first(world):
            self.loader, self.dataset = create_dataloader(
                self.data.split("train"),
                stage.size,
                batch,
                self.grid,
                opt,
                hyp=dict(self.hyp),
                augment=not opt.overfit,
                rect=opt.rect,
                rank=world.rank,
                world_size=world.size,
                image_weights=opt.image_weights,
                quad=opt.quad,
                prefix="train: ",
                seed=opt.seed,
                shuffle=opt.shuffle,
                fast_augment=opt.fast_augment,
                subset=subset,
                **self._loader_options(),
            )
        check_class_range(self.dataset.labels, self.dataset.label_files, self.nc, self.data.path)
        if world.is_main and not hasattr(self, "val_loader"):
            self.val_batch = opt.test_batch_size or batch * 2
            options = self._loader_options() | ({"cache": False} if opt.notest else {})
            self.val_loader, found = create_dataloader(
                self.data.split("train" if opt.overfit else "val"),
                self.test_size,
                self.val_batch,
                self.grid,
                opt,
                hyp=dict(self.hyp),
                rect=True,
                rank=-1,
                pad=0.5,
                prefix="val: ",
                subset=subset if opt.overfit else None,
                **options,
            )  # its labels are checked now, not after an epoch of training
            check_class_range(found.labels, found.label_files, self.nc, self.data.path)

    def _attach(self, model: Model) -> None:
        """What a checkpoint's network carries besides its weights; the gains are those of this size."""
        head = model.model[-1]
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

    def _wrap(self) -> Callable:
        """What the step calls: the network itself, compiled, or spread over processes or GPUs."""
        net: Callable = self.model
        if self.world.is_distributed:
            ids = [self.world.local_rank] if self.device.type == "cuda" else None
            net = DistributedDataParallel(self.model, device_ids=ids)
        elif self.device.type == "cuda" and torch.cuda.device_count() > 1:
            net = nn.DataParallel(self.model)
        return CompiledNet(net) if compile_wanted(self.opt.compile) else net

    def _build_losses(self) -> None:
        head = self.model.model[-1]
        auxiliary = isinstance(head, IAuxDetect)
        if auxiliary and not self.hyp["loss_ota"]:
            raise UserError("networks with auxiliary heads train with the OTA loss only: --loss-ota 1")
        plain, ota = ComputeLoss, ComputeLossAuxOTA if auxiliary else ComputeLossOTA
        if isinstance(head, MultiHeadDetect):
            plain, ota = ComputeLossMultiHead, ComputeLossMultiHeadOTA
        self.plain_loss, self.ota_loss = plain(self.model), ota(self.model)
        start = hyper.get(self.hyp, "loss_ota_from")
        self.ota_from = math.ceil(start * self.opt.epochs) if 0 < start < 1 else int(start)
        if auxiliary and self.ota_from:
            raise UserError("loss_ota_from is not for networks with auxiliary heads, which have no plain loss")

    # --- the step -----------------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, position: int, maps: list[float]) -> None:
        """Choose loss, size and images of the epoch, and place the loader at its first batch to do."""
        self.use_ota = bool(self.hyp["loss_ota"]) and epoch >= self.ota_from
        stage = [s for s in self.stages if s.epoch <= epoch][-1]
        if stage is not self.stage:
            log.info("resize schedule: epoch %d begins at %d pixels, batch %d", epoch + 1, stage.size, stage.batch)
            self._enter(stage)
        if self.opt.image_weights and position == 0:
            self.dataset.indices = self._weighted_indices(maps)
        self.loader.set_epoch(epoch, position if self.opt.seed is not None else 0)

    def _enter(self, stage: ResizeStage) -> None:
        """Change to another stage of the resize schedule; its batch drives accumulation and weight decay too.

        The warm-up goes on as it was planned, in batches of the first stage.
        """
        self.loader.close()
        self._build_loaders(stage)
        self._attach(self.model)
        self._build_losses()
        self.schedule = replace(self.schedule, total_batch=stage.batch)
        set_weight_decay(self.optimizer, scaled_weight_decay(self.hyp, stage.batch))

    def _weighted_indices(self, maps: list[float]) -> list[int]:
        per_class = np.array(maps) if len(maps) else np.zeros(self.nc)
        class_weights = self.model.class_weights.cpu().numpy() * (1 - per_class) ** 2 / self.nc
        weights = labels_to_image_weights(self.dataset.labels, self.nc, class_weights)
        drawn = random.choices(range(self.dataset.n), weights=weights, k=self.dataset.n)
        return from_main(drawn, self.world)

    def rates(self, number: int, epoch: int, position: int) -> Rates:
        return self.schedule.rates(number, epoch, position)

    def to_device(self, batch, device: torch.device):
        images, targets, *rest = batch
        images = images.to(device, non_blocking=True).float() / 255.0
        if self.opt.multi_scale:
            images = self._rescaled(images)
        if self.opt.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        self.width = images.shape[-1]
        return images, targets, *rest

    def _rescaled(self, images: torch.Tensor) -> torch.Tensor:
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
        return self.ota_loss(outputs, targets, images) if self.use_ota else self.plain_loss(outputs, targets)

    def batch_info(self, batch) -> tuple[int, int]:
        return batch[1].shape[0], self.width

    def batch_files(self, batch) -> list[str]:
        return list(batch[2])

    def draw_batch(self, batch, number: int) -> None:
        if number < DRAWN_BATCHES and self.world.is_main and not self.opt.evolve:
            images, targets, paths = batch[0].clone(), batch[1].clone(), batch[2]
            file = self.run_dir / f"train_batch{number}.jpg"
            self.drawings.append(self.draftsman.submit(plot_images, images, targets, paths, file, self.names))

    # --- validation and files -----------------------------------------------------------------------------------------

    def validate(self, epoch: int, final: bool, draw: bool) -> Validation:
        self.ema.copy_attributes(self.model)
        config = EvalConfig(
            img_size=self.test_size,
            batch_size=self.val_batch,
            single_cls=self.opt.single_cls,
            v5_metric=self.opt.v5_metric,
            outputs=OutputConfig(verbose=self.nc < 50 and final, plots=draw and not self.opt.evolve),
        )
        predictor = network_predictor(self.ema.ema, config.predict_options(), self.plain_loss)
        result = run_evaluation(predictor, self.val_loader, self.data, self.run_dir, config)
        return Validation(list(result.as_upstream()[0]), list(result.per_class_ap), result.fitness)

    def checkpoint(self, progress: Progress, results_text: str) -> dict[str, Any]:
        """The reference's keys, as its own files have them. In the middle of an epoch, the one before is the last."""
        self.ema.copy_attributes(self.model)
        return {
            "epoch": progress.epoch - 1,
            "best_fitness": best_as_saved(progress.best_fitness),
            "training_results": results_text,
            "model": deepcopy(self.model).half(),
            "ema": deepcopy(self.ema.ema).half(),
            "updates": self.ema.updates,
            "optimizer": self.optimizer.state_dict(),
            "wandb_id": self.wandb_id,
        }

    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]:
        names = ["last.pt"]
        if is_best:
            names.append("best.pt")
        if is_best and epoch >= 200:
            names.append(f"best_{epoch:03d}.pt")
        if epoch == 0 or (epoch + 1) % 25 == 0 or epoch >= self.opt.epochs - 5 or final:
            names.append(f"epoch_{epoch:03d}.pt")
        return names

    def save_initial(self) -> None:
        """init.pt: the network before its first step, as a bare module."""
        save_checkpoint(self.model, self.run_dir / "weights" / "init.pt")

    def state(self) -> dict[str, Any]:
        return {
            "stage": self.stages.index(self.stage),
            "indices": list(self.dataset.indices) if self.opt.image_weights else [],
            "balance": [list(loss.balance) for loss in (self.plain_loss, self.ota_loss)],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Entering a stage begins its indices and losses anew, so that comes first."""
        stage = self.stages[state.get("stage", 0)]
        if stage is not self.stage:
            self._enter(stage)
        if state["indices"]:
            self.dataset.indices = list(state["indices"])
        for loss, balance in zip((self.plain_loss, self.ota_loss), state["balance"], strict=True):
            loss.balance = list(balance)

    def adopt(self, checkpoint: dict[str, Any], progress: Progress) -> None:
        """Go on from a file of the reference project: epochs, best fitness and EMA."""
        progress.epoch = checkpoint["epoch"] + 1
        progress.number = progress.epoch * len(self.loader)
        progress.best_fitness = float(np.asarray(checkpoint["best_fitness"]).reshape(-1)[0])
        if self.ema and checkpoint.get("ema") is not None:
            self.ema.ema.load_state_dict(checkpoint["ema"].float().state_dict())
            self.ema.updates = checkpoint["updates"]

    def finish(self, final_results: list[float]) -> None:
        """The end of a complete run: pictures, stripped weights."""
        if not self.world.is_main:
            return
        for drawing in self.drawings:
            drawing.result()
        if self.opt.evolve:
            return
        plot_results(save_dir=self.run_dir)
        last = self.run_dir / "weights" / "last.pt"
        if Path(self.opt.data).name.endswith("coco.yaml") and self.nc == 80:
            self._final_coco_test([last, last.with_name("best.pt")])
        for path in (last.with_name("best.pt"), last):  # last, because a stripped one says that the run is complete
            if path.is_file():
                strip_checkpoint(path)
        previous_of(last).unlink(missing_ok=True)

    def _final_coco_test(self, weights: list[Path]) -> None:
        """As the reference ends a COCO run: last and best with pycocotools, suppression at IoU 0.7."""
        for path in filter(Path.is_file, weights):
            print(f"final test of {path}")
            config = EvalConfig(
                img_size=self.test_size,
                batch_size=self.val_batch,
                iou_thres=0.7,
                v5_metric=self.opt.v5_metric,
                outputs=OutputConfig(save_json=True, plots=False, is_coco=True),
            )
            predictor = network_predictor(attempt_load(path, self.device), config.predict_options())
            run_evaluation(predictor, self.val_loader, self.data, self.run_dir, config, weights=[str(path)])

    def close(self) -> None:
        self.draftsman.shutdown(wait=True)
        self.loader.close()
        if hasattr(self, "val_loader"):
            self.val_loader.close()
