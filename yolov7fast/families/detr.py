"""The DETR family for the training engine: network, loss, data, rates, validation and checkpoint content."""

import logging
import resource
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel

from yolov7fast.core.errors import UserError
from yolov7fast.core.resize_schedule import ResizeStage
from yolov7fast.data.detr_dataset import DetrDataset
from yolov7fast.data.labels import Subset, check_class_range
from yolov7fast.evaluation.config import EvalConfig, OutputConfig
from yolov7fast.evaluation.run import run_evaluation
from yolov7fast.loading.dataloader import create_dataloader
from yolov7fast.losses.detr import PARTS, attach_loss
from yolov7fast.nn.detr import Detector
from yolov7fast.plots import plot_images, plot_results
from yolov7fast.predictors.detr import GRID, DetrPredictor, Frames
from yolov7fast.training.distributed import World, main_first
from yolov7fast.training.ema import ModelEMA
from yolov7fast.training.resize_stages import final_size, plan_stages
from yolov7fast.training.resume import Progress, previous_of
from yolov7fast.training.schedule import DropSchedule, Rates
from yolov7fast.training.trainer import Validation

log = logging.getLogger(__name__)
DRAWN_BATCHES = 3


class DetrFamily:
    """A DETR network with all that trains it."""

    loss_names = (*PARTS, "total")
    checkpoint_suffix = ".pth"
    figure_names = ("metrics/AP_small", "peak_memory_gb")
    shorter_warmup = "lower --warmup-iters"
    advice: ClassVar = {
        "data": "waiting for data: try --fast-dataloader --cache-images disk, or more --workers",
        "loss": "the loss: its matcher runs on the host; --profile 50 says how much of a step it takes",
        "network": "the network, as it should be: try a smaller --img-size, --resize-schedule, --amp, or fewer queries",
    }

    def __init__(self, opt: Namespace, data, model: Detector, device: torch.device, world: World, run_dir: Path):
        """model: built, weights taken over, on the device; data: the checked data yaml."""
        self.opt, self.data, self.device, self.world, self.run_dir = opt, data, device, world, run_dir
        self.model = model
        self.ema = ModelEMA(model) if world.is_main else None
        self.loss = attach_loss(model)
        self.loss.shared = world.is_distributed
        self.optimizer = build_optimizer(model, opt.lr, opt.backbone_lr, opt.weight_decay)
        self._plan_sizes()
        self._build_loaders(self.stages[0])
        self.net = self._wrap()
        self.schedule = DropSchedule(
            base=(opt.lr, opt.backbone_lr),
            batches=self._mean_batches(),
            epochs=opt.epochs,
            kind=opt.schedule,
            drop=opt.lr_drop,
            final=opt.final_lr,
            warmup=opt.warmup_iters,
        )
        self.draftsman = ThreadPoolExecutor(1)
        self.drawings = []
        self.wandb_id: str | None = None

    # --- building -----------------------------------------------------------------------------------------------------

    def _plan_sizes(self) -> None:
        """The stages of the resize schedule, in sizes that the strides can hold; the last epoch's is validated at."""
        opt = self.opt
        self.stages = plan_stages(
            opt.resize_schedule, opt.img_size, opt.total_batch_size, processes=self.world.size, grid=GRID
        )
        self.test_size = final_size(self.stages, opt.epochs)

    def _build_loaders(self, stage: ResizeStage) -> None:
        """The training loader of a stage and, once, the validation loader of the main process."""
        opt, world = self.opt, self.world
        self.stage, self.img_size = stage, stage.size
        batch = stage.batch // world.size
        subset = Subset(opt.overfit) if opt.overfit else None
        if opt.subset_size:
            subset = Subset(opt.subset_size, opt.subset_seed)
        common = {"workers": opt.workers, "cache": opt.cache_images, "cache_dir": opt.cache_dir or None}
        common |= {"worker_tensor": opt.fast_dataloader, "keep_partial_labels": opt.keep_partial_labels}
        with main_first(world):
            self.loader, self.dataset = create_dataloader(
                *(self.data.split("train"), stage.size, batch, GRID, opt),
                hyp={name: getattr(opt, name) for name in ("fliplr", "flipud", "scale_min", "crop", "crop_min")},
                augment=not opt.overfit,
                rank=world.rank,
                world_size=world.size,
                prefix="train: ",
                seed=opt.seed,
                shuffle=not opt.overfit,
                subset=subset,
                dataset_class=DetrDataset,
                **common,
            )
        self._check_classes(self.dataset)
        if world.is_main and not hasattr(self, "val_loader"):
            self.val_batch = opt.test_batch_size or batch * 2
            self.val_loader, _ = create_dataloader(
                *(self.data.split("train" if opt.overfit else "val"), self.test_size, self.val_batch, GRID, opt),
                rect=True,
                prefix="val: ",
                subset=subset if opt.overfit else None,
                **common,
            )
            self._check_classes(self.val_loader.dataset)

    def _check_classes(self, dataset) -> None:
        """A class beyond the last would be learnt as 'nothing here', or end a step with an index out of range."""
        check_class_range(dataset.labels, dataset.label_files, len(self.model.names), self.data.path)

    def _mean_batches(self) -> float:
        """Batches of an epoch, on average over the stages of the resize schedule, which may differ in batch size."""
        ends = [min(stage.epoch, self.opt.epochs) for stage in self.stages[1:]] + [self.opt.epochs]
        images = -(-len(self.dataset) // self.world.size)
        total, begin = 0, 0
        for stage, end in zip(self.stages, ends):
            total, begin = total + (end - begin) * -(-images // (stage.batch // self.world.size)), end
        return total / self.opt.epochs

    def _wrap(self) -> Callable:
        """What the step calls. A batch without any box leaves RT-DETR's denoising unused, which DDP must look for."""
        if not self.world.is_distributed:
            return self.model
        ids = [self.world.local_rank] if self.device.type == "cuda" else None
        return DistributedDataParallel(self.model, device_ids=ids, find_unused_parameters=True)

    # --- the step -----------------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, position: int, maps: list[float]) -> None:
        stage = [s for s in self.stages if s.epoch <= epoch][-1]
        if stage is not self.stage:
            log.info("resize schedule: epoch %d begins at %d pixels", epoch + 1, stage.size)
            self.loader.close()
            self._build_loaders(stage)
        self.loader.set_epoch(epoch, position)

    def rates(self, number: int, epoch: int, position: int) -> Rates:
        return self.schedule.rates(number, epoch)

    def to_device(self, batch, device: torch.device):
        """(images in 0..1, padding mask, labels by image): cut to the part that pictures cover."""
        images, targets, _, shapes = batch
        frames = Frames.of(shapes, images.shape[2:], self.model, grid=GRID)
        self.width = frames.width
        labels = [{k: v.to(device, non_blocking=True) for k, v in label.items()} for label in frames.labels(targets)]
        return *frames.inputs(images, device), labels

    def forward_loss(self, net: Callable, batch, mark: Callable[[str], None]) -> tuple[torch.Tensor, torch.Tensor]:
        self.loss.mark = mark
        output = net(*batch)
        parts = [output.loss_dict[name] for name in PARTS]
        return output.loss, torch.stack([*parts, output.loss.detach()])

    def batch_info(self, batch) -> tuple[int, int]:
        return batch[1].shape[0], self.width

    def batch_files(self, batch) -> list[str]:
        return list(batch[2])

    def draw_batch(self, batch, number: int) -> None:
        if number < DRAWN_BATCHES and self.world.is_main:
            images, targets, paths = batch[0].clone(), batch[1].clone(), batch[2]
            file = self.run_dir / f"train_batch{number}.jpg"
            self.drawings.append(self.draftsman.submit(plot_images, images, targets, paths, file, self.model.names))

    # --- validation and files -----------------------------------------------------------------------------------------

    def validate(self, epoch: int, final: bool, draw: bool) -> Validation:
        config = EvalConfig(
            img_size=self.test_size,
            batch_size=self.val_batch,
            single_cls=self.opt.single_cls,
            outputs=OutputConfig(verbose=final and self.data.nc < 50, plots=draw),
        )
        predictor = DetrPredictor(self.ema.ema, config.predict_options(), with_loss=True)
        result = run_evaluation(predictor, self.val_loader, self.data, self.run_dir, config)
        figures = (result.sizes["small"].ap, peak_memory_gb(self.device))
        return Validation(list(result.as_upstream()[0]), list(result.per_class_ap), result.fitness, figures)

    def checkpoint(self, progress: Progress, results_text: str) -> dict[str, Any]:
        """Plain values and state dicts; weights that `resume` holds too are stored once."""
        return {
            "epoch": progress.epoch - 1,
            "best_fitness": progress.best_fitness,
            "training_results": results_text,
            **self.model.description(),
            "img_size": self.test_size,
            "model": self.model.state_dict(),
            "ema": self.ema.ema.state_dict(),
            "updates": self.ema.updates,
            "optimizer": self.optimizer.state_dict(),
            "wandb_id": self.wandb_id,
        }

    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]:
        names = ["last.pth"] + ["best.pth"] * is_best
        period = self.opt.checkpoint_period
        if period and ((epoch + 1) % period == 0 or final):
            names.append(f"checkpoint_epoch_{epoch + 1}.pth")
        return names

    def save_initial(self) -> None:
        """Nothing: the seed makes the same network again."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing beyond what every run remembers."""

    def adopt(self, checkpoint: dict[str, Any], progress: Progress) -> None:
        raise UserError("this checkpoint holds no state to go on with; start a new run with --weights")

    def finish(self, final_results: list[float]) -> None:
        """The end of a complete run: its pictures. Checkpoints stay whole, for more epochs later."""
        if not self.world.is_main:
            return
        for drawing in self.drawings:
            drawing.result()
        plot_results(save_dir=self.run_dir)
        previous_of(self.run_dir / "weights" / "last.pth").unlink(missing_ok=True)

    def close(self) -> None:
        self.draftsman.shutdown(wait=True)
        self.loader.close()
        if hasattr(self, "val_loader"):
            self.val_loader.close()


def build_optimizer(model: Detector, lr: float, backbone_lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW over two groups: everything else, then the backbone, which DETR trains more slowly."""
    learning = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for name, p in learning if ".backbone." not in name], "lr": lr},
        {"params": [p for name, p in learning if ".backbone." in name], "lr": backbone_lr},
    ]
    log.info("AdamW: %d parameters, %d of the backbone", *(len(group["params"]) for group in groups))
    fused = True if next(model.parameters()).is_cuda else None
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay, fused=fused)


def peak_memory_gb(device: torch.device) -> float:
    """The most memory so far: of the GPU where there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
