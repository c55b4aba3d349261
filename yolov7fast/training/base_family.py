"""What families of detectors do alike: loaders for the stages of the resize schedule, plots, checkpoints, closing.

A family derives from `BaseFamily` and adds its network, its loss and its validation; every other member of
`training.family.Family` has a default here that it may override.
"""

import logging
from abc import abstractmethod
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from yolov7fast.checkpoint.checkpoint_reader import strip_checkpoint
from yolov7fast.checkpoint.families import WEIGHTS_FOLDER
from yolov7fast.core.drawing import plot_images
from yolov7fast.core.errors import UserError
from yolov7fast.core.process.threads import SideThread
from yolov7fast.core.text import printable
from yolov7fast.data.data_yaml import DataYaml, check_train_source, find_data, load_data_yaml
from yolov7fast.data.labels import Subset, check_class_range
from yolov7fast.data.loading.create_dataloader import create_dataloader
from yolov7fast.data.quick_check import closer_look, odd_signs, same_images
from yolov7fast.evaluation.eval_config import EvalConfig, OutputConfig
from yolov7fast.evaluation.eval_result import EvalResult
from yolov7fast.evaluation.run_evaluation import run_evaluation
from yolov7fast.evaluation.validation_findings import FindingsSink, findings
from yolov7fast.predictors.predictor import Predictor
from yolov7fast.reports.run_plots import plot_results
from yolov7fast.training.checkpoints.data_changes import Fingerprint, fingerprint
from yolov7fast.training.checkpoints.resume import Progress, previous_of, weights_dir_of
from yolov7fast.training.distributed import World, main_first
from yolov7fast.training.ema import ModelEMA
from yolov7fast.training.family import Family, Validation
from yolov7fast.training.logging.bottleneck import Advice
from yolov7fast.training.resize_stages import ResizeStage, final_size, plan_stages, stage_of

log = logging.getLogger(__name__)


def class_names(data: DataYaml, single_cls: bool) -> list[str]:
    """Of the data set; with --single-cls all labels are one class."""
    return ["item"] if single_cls and len(data.names) != 1 else list(data.names)


class BaseFamily(Family):
    """A network with all that trains it. Order of building: the subclass makes optimizer and EMA, then calls
    `plan_sizes` and `build_loaders`, then sets `net`."""

    weights_folder: ClassVar[str] = WEIGHTS_FOLDER
    metric_names: ClassVar[tuple[str, ...]] = ()
    advice: ClassVar[Mapping[str, Advice]] = {}
    uses_all_gpus: ClassVar[bool] = False
    epoch_files: ClassVar[tuple[str, ...]] = ()
    strips_final_checkpoint: ClassVar[bool] = False
    drawn_batches: ClassVar[int] = 3  # of training, from the first on
    dataset_class: ClassVar[type | None] = None  # a data set with an augmentation of its own
    finds_unused_parameters: ClassVar[bool] = False  # whether a batch may leave parameters without a gradient

    loss_factor: float = 1.0
    clip_norm: float = 0.0

    # --- of the class -------------------------------------------------------------------------------------------------

    @classmethod
    def check_files(cls, opt: Namespace) -> None:
        opt.data = find_data(opt.data)

    @classmethod
    def ignores_resume(cls, opt: Namespace) -> bool:
        return False

    @classmethod
    def resume_options(cls, options: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
        return options

    @classmethod
    def complete_checkpoint(cls, path: Path) -> tuple[dict[str, Any], Path]:
        raise UserError(f"--resume {path}: the file is stripped of its training state; start a new run with --weights")

    @classmethod
    def command_flags(cls, command: str, opt: Namespace) -> list[str]:
        names = ("single_cls", "keep_partial_labels", "v5_metric") if command == "test" else ()
        return [f"--{name.replace('_', '-')}" for name in names if getattr(opt, name, False)]

    @classmethod
    def run_instead(
        cls, opt: Namespace, device: torch.device, world: World, checkpoint: dict[str, Any] | None
    ) -> int | None:
        return None

    @classmethod
    def automatic_batch(cls, opt: Namespace, device: torch.device, world: World) -> int:
        raise UserError(f"--batch-size auto is not known for the {cls.name} family: give a number")

    @classmethod
    def build(
        cls, opt: Namespace, device: torch.device, world: World, checkpoint: dict[str, Any] | None = None
    ) -> Self:
        with main_first(world):
            data = load_data_yaml(opt.data, val_fraction=opt.val_fraction, allow_download=opt.allow_download)
            check_train_source(data)
            model = cls.build_network(opt, data, checkpoint).to(device)
        return cls(opt, data, model, device, world, resumed=checkpoint is not None)

    @classmethod
    @abstractmethod
    def build_network(cls, opt: Namespace, data: DataYaml, checkpoint: dict[str, Any] | None) -> nn.Module:
        """The network with its start weights: fresh, or as a checkpoint describes it."""

    # --- building -----------------------------------------------------------------------------------------------------

    def __init__(
        self,
        opt: Namespace,
        data: DataYaml,
        model: nn.Module,
        device: torch.device,
        world: World,
        resumed: bool = False,
    ):
        """opt: every flag, completed by `training.options.resolve_options`; model: on the device, with start weights;
        data: the checked data yaml; resumed: a checkpoint's state will be loaded."""
        self.opt, self.data, self.device, self.world = opt, data, device, world
        self.run_dir = Path(opt.save_dir)
        self.model = model
        self.names = class_names(data, opt.single_cls)
        self.nc = len(self.names)
        self.val_loader = self.validation_set = None
        self.draws_plots = True
        self.plot_executor = SideThread("plots")
        self.pending_plots: list[Future] = []
        self.width = 0  # of the last batch, as the network saw it
        self.wandb_id: str | None = None

    def plan_sizes(self, size: int, grid: int) -> None:
        """The stages of the resize schedule, in sizes that the strides divide; validation runs at the last epoch's."""
        self.grid = grid
        self.stages = plan_stages(
            self.opt.resize_schedule, size, self.opt.total_batch_size, processes=self.world.size, grid=grid
        )
        self.test_size = final_size(self.stages, self.opt.epochs)

    def loader_options(self) -> dict[str, Any]:
        """What the loaders of training and of validation have in common."""
        opt = self.opt
        common = {"workers": opt.workers, "cache": opt.cache_images, "cache_dir": opt.cache_dir or None}
        return {**common, "worker_tensor": opt.fast_dataloader, "keep_partial_labels": opt.keep_partial_labels}

    def train_loader_options(self) -> dict[str, Any]:
        """What the training loader has besides: order and augmentation, by default none.

        Without a seed the order is upstream's, which depends on the number of processes.
        """
        return {"shuffle": self.opt.shuffled if self.opt.seed is not None else None}

    def val_loader_options(self) -> dict[str, Any]:
        return {}

    def build_loaders(self, stage: ResizeStage) -> None:
        """The training loader of a stage and, once, the validation loader of the main process.

        Labels are checked here, those of validation too: before an epoch of training, not after it.
        """
        opt, world = self.opt, self.world
        self.stage, self.img_size = stage, stage.size
        batch = stage.batch // world.size
        subset = Subset(opt.overfit) if opt.overfit else None
        if opt.subset_size:
            subset = Subset(opt.subset_size, opt.subset_seed)
        with main_first(world):
            self.loader, self.dataset = create_dataloader(
                *(self.data.split("train"), stage.size, batch, self.grid, opt),
                rank=world.rank,
                world_size=world.size,
                prefix="train: ",
                seed=opt.seed,
                subset=subset,
                dataset_class=self.dataset_class,
                **self.loader_options() | self.train_loader_options(),
            )
        self.check_labels(self.dataset)
        if world.is_main and self.val_loader is None:
            self.val_batch = opt.test_batch_size or batch * 2
            self.val_loader, validation_set = create_dataloader(
                *(self.data.split("train" if opt.overfit else "val"), self.test_size, self.val_batch, self.grid, opt),
                rect=True,
                prefix="val: ",
                subset=subset if opt.overfit else None,
                **self.loader_options() | self.val_loader_options(),
            )
            self.check_labels(validation_set)
            compared = None if opt.overfit else validation_set
            if compared is not None and (twins := same_images(self.dataset, compared)):
                log.warning(f"data: {twins}")
            signs = odd_signs(self.dataset, compared, stage.size)
            if signs:
                log.warning(closer_look(signs, opt.data, stage.size, getattr(opt, "cfg", "")))
            self.validation_set = validation_set

    def check_labels(self, dataset) -> None:
        """Stop at a class beyond the last and, with --strict-labels, at a label that is left out or misread.

        Such a class would be learnt as another one, or end a step with an index out of range.
        """
        check_class_range(dataset.labels, dataset.label_files, self.nc, self.data.path)
        if self.opt.strict_labels and (lost := dataset.first_loss):
            raise UserError(
                f"--strict-labels: {lost.kind}, {printable(lost.place)}: {printable(lost.text, 200)}; for all of them: "
                f"yolov7fast data check {self.opt.data}"
            )

    def wrapped(self, model: nn.Module) -> Callable:
        """What the step calls: the network itself, or spread over processes or GPUs."""
        if self.world.is_distributed:
            ids = [self.world.local_rank] if self.device.type == "cuda" else None
            return DistributedDataParallel(model, device_ids=ids, find_unused_parameters=self.finds_unused_parameters)
        if self.uses_all_gpus and self.device.type == "cuda" and torch.cuda.device_count() > 1:
            return nn.DataParallel(model)
        return model

    # --- the step -----------------------------------------------------------------------------------------------------

    @property
    def warmup(self) -> int:
        return 0

    @property
    def shorter_warmup(self) -> str:
        return "more --epochs"

    @property
    def start_weights(self) -> str:
        return ""

    def start_epoch(self, epoch: int, batch_index: int, per_class_ap: Sequence[float]) -> None:
        stage = stage_of(self.stages, epoch)
        if stage is not self.stage:
            where = f"{epoch}/{self.opt.epochs - 1}"
            log.info("resize schedule: epoch %s begins at %d pixels, batch %d", where, stage.size, stage.batch)
            self.enter_stage(stage)
        self.prepare_epoch(epoch, batch_index, per_class_ap)
        self.loader.set_epoch(epoch, batch_index if self.opt.seed is not None else 0)

    def enter_stage(self, stage: ResizeStage) -> None:
        """Change to another stage of the resize schedule."""
        self.loader.close()
        self.build_loaders(stage)

    def prepare_epoch(self, epoch: int, batch_index: int, per_class_ap: Sequence[float]) -> None:
        """What the family chooses anew for each epoch; the loader is that of the epoch's stage."""

    def batch_info(self, batch) -> tuple[int, int]:
        return batch[1].shape[0], self.width

    def batch_files(self, batch) -> list[str]:
        return list(batch[2])

    def draw_batch(self, batch, global_step: int) -> None:
        """Plots are drawn by a thread of their own; it gets copies, since the loader may reuse the batch's memory."""
        if global_step < self.drawn_batches and self.world.is_main and self.draws_plots:
            images, targets, paths = batch[0].clone(), batch[1].clone(), batch[2]
            file = self.run_dir / f"train_batch{global_step}.jpg"
            self.pending_plots.append(self.plot_executor.submit(plot_images, images, targets, paths, file, self.names))

    # --- validation ---------------------------------------------------------------------------------------------------

    def validate(self, epoch: int, final: bool, draw: bool, should_stop: Callable[[], bool]) -> Validation:
        config = EvalConfig(
            img_size=self.test_size,
            batch_size=self.val_batch,
            single_cls=self.opt.single_cls,
            v5_metric=getattr(self.opt, "v5_metric", False),
            half=self.opt.amp != "off",
            outputs=OutputConfig(verbose=final and self.nc < 50, plots=draw and self.draws_plots),
        )
        sinks = [FindingsSink(self.nc)] if self.draws_plots else []
        where = self.val_loader, self.data, self.run_dir
        result = run_evaluation(self.predictor(config), *where, config, sinks=sinks, should_stop=should_stop)
        metrics = result.metrics | self.further_metrics(result)
        found = findings(result, sinks[0], self.names, self.class_groups()) if sinks else {}
        return Validation(metrics, list(result.per_class_ap), result.fitness, result.losses, found)

    def class_groups(self) -> Mapping[str, Sequence[int]]:
        """Classes by the head that answers for them; empty where one head answers for all."""
        return {}

    @abstractmethod
    def predictor(self, config: EvalConfig) -> Predictor:
        """The averaged network as evaluation asks for it, with its loss."""

    def further_metrics(self, result: EvalResult) -> dict[str, float]:
        """What `metric_names` lists, by name."""
        return {}

    @property
    def weights_dir(self) -> Path:
        return weights_dir_of(self.run_dir, self.weights_folder, self.opt.resume)

    @property
    def averaged(self) -> ModelEMA:
        """The EMA, which the main process has: the one that validates and saves."""
        assert self.ema is not None
        return self.ema

    # --- checkpoints and the end --------------------------------------------------------------------------------------

    def checkpoint(self, progress: Progress, results_text: str) -> dict[str, Any]:
        """In the middle of an epoch, the one before is the last that is complete."""
        return {
            "epoch": progress.epoch - 1,
            "best_fitness": progress.best_fitness,
            "training_results": results_text,
            **self.checkpoint_content(),
            "updates": self.averaged.updates,
            "optimizer": self.optimizer.state_dict(),
            "wandb_id": self.wandb_id,
        }

    @abstractmethod
    def checkpoint_content(self) -> dict[str, Any]:
        """Network and EMA, as files of this family hold them."""

    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]:
        return [f"last{self.checkpoint_suffix}"] + [f"best{self.checkpoint_suffix}"] * is_best

    def data_fingerprint(self) -> Fingerprint:
        sets: dict[str, Any] = {"train": self.dataset} | (
            {"val": self.validation_set} if self.validation_set is not None else {}
        )
        return fingerprint(sets, self.data.names)

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing beyond what every run remembers."""

    def load_foreign_checkpoint(self, checkpoint: dict[str, Any], progress: Progress) -> None:
        raise UserError("this checkpoint holds no state to resume from; start a new run with --weights")

    def settings_files(self) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def save_initial(self) -> None:
        """Nothing: the seed makes the same network again."""

    def finish(self) -> None:
        """Plots, then the family's final files; the previous checkpoint goes last, as a sign that all is done."""
        if not self.world.is_main:
            return
        for plot in self.pending_plots:
            if isinstance(error := plot.exception(), OSError | UserError):
                log.warning("%s; training continues", error)
            elif error is not None:
                raise error
        if not self.draws_plots:
            return
        plot_results(save_dir=self.run_dir)
        last = self.weights_dir / f"last{self.checkpoint_suffix}"
        self.write_final_files(last)
        previous_of(last).unlink(missing_ok=True)

    def write_final_files(self, last: Path) -> None:
        """Where the family says so, best and last weights without what training needs. last: the last checkpoint."""
        if not self.strips_final_checkpoint:
            return
        for path in (last.with_stem("best"), last):  # last, because a stripped one says that the run is complete
            if path.is_file():
                strip_checkpoint(path)

    def close(self) -> None:
        self.plot_executor.shutdown(wait=True)
        self.loader.close()
        if self.val_loader is not None:
            self.val_loader.close()
