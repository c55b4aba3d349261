"""`Family`: the interface between a family of detectors and the training loop, with everything that families share.

A family must define `name`, `loss_names` and seven methods: `build_network`, `build_optimizer`, `rates`, `to_device`,
`forward_loss`, `predictor` and `checkpoint_content`. Every other method has a default that it may override.
"""
# ruff: noqa: B027 (defaults that do nothing)

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from yolov7fast.checkpoint.checkpoint_reader import strip_checkpoint
from yolov7fast.checkpoint.families import WEIGHTS_FOLDER, entry_of
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_img_size
from yolov7fast.core.resize_schedule import RequestedStage, parse_resize_schedule
from yolov7fast.core.text import printable
from yolov7fast.data.data_yaml import DataYaml, check_train_source, find_data, load_data_yaml
from yolov7fast.data.labels import Subset, check_class_range
from yolov7fast.data.loading.create_dataloader import create_dataloader
from yolov7fast.data.quick_check import closer_look, odd_signs, same_images
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_result import SUMMARY, EvalResult, validation_loss
from yolov7fast.evaluation.run_evaluation import run_evaluation
from yolov7fast.evaluation.validation_findings import FindingsSink, findings
from yolov7fast.predictors.predictor import Predictor
from yolov7fast.training.checkpoints.resume import Progress, weights_dir_of
from yolov7fast.training.config import TrainConfig
from yolov7fast.training.distributed import World, main_first
from yolov7fast.training.logging.bottleneck import Advice
from yolov7fast.training.optimizer import Rates

log = logging.getLogger(__name__)


def family_class(name: str) -> type["Family"]:
    """The class that trains a family, by the table `checkpoint.family.FAMILIES`."""
    module, _, class_name = entry_of(name).training.partition(":")
    return getattr(import_module(module), class_name)


def class_names(data: DataYaml, single_cls: bool) -> list[str]:
    """Class names of the data set; with --single-cls all labels are one class."""
    return ["item"] if single_cls and len(data.names) != 1 else list(data.names)


def load_run_data(config: TrainConfig, world: World) -> DataYaml:
    """The checked data yaml of a run; the main process downloads and converts first."""
    with main_first(world):
        data = load_data_yaml(config.data, val_fraction=config.val_fraction, allow_download=config.allow_download)
        check_train_source(data)
    return data


def subset_of(config: TrainConfig) -> Subset | None:
    """Which of the training images are used; None: all of them."""
    if config.subset_size:
        return Subset(config.subset_size, config.subset_seed)
    return Subset(config.overfit) if config.overfit else None


def check_labels(dataset, config: TrainConfig, data: DataYaml, nc: int) -> None:
    """Refuse a class beyond the last and, with --strict-labels, a label that is left out or misread. Such a class would
    be learned as another one, or cause an index out of range in a step.
    """
    check_class_range(dataset.labels, dataset.label_files, nc, data.path)
    if config.strict_labels and (lost := dataset.first_loss):
        raise UserError(
            f"--strict-labels: {lost.kind}, {printable(lost.place)}: {printable(lost.text, 200)}; for all of them: "
            f"yolov7fast data check {config.data}"
        )


def warn_of_data(dataset, validation_set, config: TrainConfig, img_size: int) -> None:
    """Log possible problems of the data, such as images that are in both splits."""
    if validation_set is not None and (twins := same_images(dataset, validation_set)):
        log.warning(f"data: {twins}")
    if signs := odd_signs(dataset, validation_set, img_size):
        log.warning(closer_look(signs, config.data, img_size, getattr(config, "cfg", "")))


class Validation(NamedTuple):
    """The results of a validation.

    metrics: by their columns in results.csv: those of `evaluation.result.SUMMARY` and of the family's `metric_names`;
    losses: by the parts of the loss (`loss_names` without the total); per_class_ap: AP@.5:.95 of each class;
    findings: its part of the run's page (`evaluation.validation_findings`); may be empty.
    """

    metrics: Mapping[str, float]
    per_class_ap: Sequence[float]
    fitness: float
    losses: Mapping[str, float]
    findings: Mapping[str, Any] = MappingProxyType({})

    def columns(self) -> dict[str, float]:
        """Metrics and losses by their columns in results.csv."""
        losses = {validation_loss(part): value for part, value in self.losses.items()}
        return {name: float(value) for name, value in {**self.metrics, **losses}.items()}  # checkpoints hold them


def summary_columns(loss_names: Sequence[str]) -> list[str]:
    """The columns of a validation that results.txt has, in its order: four metrics, then the parts of the loss."""
    return [*SUMMARY, *map(validation_loss, loss_names[:-1])]


class ResizeStage(NamedTuple):
    """From `epoch` (counted from 0) on, train at `size`, a multiple of the stride, with `batch` images in all."""

    epoch: int
    size: int
    batch: int


def plan_sizes(config: TrainConfig, grid: int, processes: int) -> tuple[list[ResizeStage], int]:
    """The stages of --resize-schedule (without it one of --img-size) and the size of validation. grid: largest stride.

    A stage without a batch uses that of the stage before it, the first one that of the run. The size of validation is
    that of the resumed run, else the second --img-size, else that of the last stage.
    """
    sizes = config.img_size if isinstance(config.img_size, list) else [config.img_size]
    rounded = {size: check_img_size(size, grid) for size in dict.fromkeys(sizes)}  # each is reported once
    stages, batch = [], config.batch_size
    for stage in parse_resize_schedule(config.resize_schedule) or [RequestedStage(0, rounded[sizes[0]])]:
        batch = stage.batch or batch
        if batch % processes:
            raise UserError(
                f"--resize-schedule: the batch {batch} of epoch {stage.epoch + 1} must be a multiple of the number of "
                f"processes, {processes}"
            )
        stages.append(ResizeStage(stage.epoch, check_img_size(stage.size, grid), batch))
    test_size = stage_of(stages, config.epochs - 1).size
    if isinstance(config.img_size, list) and (not config.resize_schedule or "img_size" in config.given):
        test_size = rounded[sizes[-1]]
    return stages, config.test_size or test_size


def stage_of(stages: Sequence[ResizeStage], epoch: int) -> ResizeStage:
    """The stage that an epoch belongs to."""
    return [stage for stage in stages if stage.epoch <= epoch][-1]


class Family(ABC):
    """A family of detectors. The class says how its runs are started and resumed; an instance is a network with its
    loaders, loss and optimizer, which `train.train` builds in the order of the methods below."""

    # --- constants of the family
    name: ClassVar[str]  # in checkpoints, opt.yaml and the table of families
    loss_names: ClassVar[tuple[str, ...]]  # parts of the loss as `forward_loss` returns them; the last is the total
    config_class: ClassVar[type[TrainConfig]] = TrainConfig
    checkpoint_suffix: ClassVar[str] = ".pt"
    weights_folder: ClassVar[str] = WEIGHTS_FOLDER  # of checkpoints, below the run's folder; empty: that folder itself
    metric_names: ClassVar[tuple[str, ...]] = ()  # columns of results.csv that a validation fills besides the summary
    advice: ClassVar[Mapping[str, Advice]] = MappingProxyType({})  # where it differs from that of `bottleneck`
    epoch_files: ClassVar[tuple[str, ...]] = ()  # patterns of checkpoints of single epochs, limited by --keep-epochs
    saves_initial: ClassVar[bool] = False  # whether the network before its first step is kept as init.pt
    strips_final_checkpoint: ClassVar[bool] = False  # whether a complete run's last checkpoint loses its training state
    drawn_batches: ClassVar[int] = 3  # training batches that are plotted, from the first on
    dataset_class: ClassVar[type | None] = None  # a data set with another augmentation
    finds_unused_parameters: ClassVar[bool] = False  # whether a batch may leave parameters without a gradient
    shorter_warmup: ClassVar[str] = "more --epochs"  # the advice for a warm-up that is too long
    test_flags: ClassVar[tuple[str, ...]] = ()  # further flags with which `test` reproduces validations
    files: ClassVar[Mapping[str, Callable[[str], str]]] = MappingProxyType(
        {"data": find_data}
    )  # flag -> how it is found

    grid: int = 32  # the largest stride: image sizes are multiples of it
    loss_factor: float = 1.0  # multiplies the loss
    clip_norm: float = 0.0  # largest norm of all gradients together; 0: not clipped
    warmup: int = 0  # iterations of the learning rate's warm-up
    class_groups: Mapping[str, Sequence[int]] = MappingProxyType({})  # classes by head, if there are several
    settings_files: Mapping[str, Mapping[str, Any]] = MappingProxyType({})  # file of the run folder -> its values
    width: int = 0  # of the last batch, as the network saw it
    wandb_id: str | None = None
    optimizer: torch.optim.Optimizer
    ema: Any  # a `ModelEMA`; None in all processes but the main one, which validates and saves
    net: Callable  # the module that the step calls
    no_sync: Callable[[], AbstractContextManager] | None = None  # of a `net` that averages gradients over processes

    # --- how runs start and resume ------------------------------------------------------------------------------------

    @classmethod
    def find_files(cls, config: Any, missing_ok: bool = False) -> Any:
        """The config with the paths of the files that its flags name; missing_ok: keep a name that is not found."""
        found = {}
        for flag, find in cls.files.items():
            with suppress(UserError) if missing_ok else nullcontext():
                found[flag] = find(getattr(config, flag))
        return replace(config, **found)

    @classmethod
    def resume_options(cls, options: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
        """The options of a resumed run: files of the run folder replace those it started with."""
        return options

    @classmethod
    def automatic_batch(cls, config: Any, device: torch.device, world: World) -> int:
        """--batch-size auto: the batch over all processes that this machine can train. All processes call this."""
        raise UserError(f"--batch-size auto is not known for the {cls.name} family: give a number")

    # --- building -----------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def build_network(cls, config: Any, data: DataYaml, checkpoint: dict[str, Any] | None) -> nn.Module:
        """The network with its start weights on the CPU: fresh, or as a checkpoint describes it."""

    def __init__(self, config: Any, data: DataYaml, model: Any, device: torch.device, world: World):
        """config: completed by `start.completed`; model: on the device, with start weights."""
        self.config, self.data, self.model, self.device, self.world = config, data, model, device, world
        self.run_dir = Path(config.save_dir)
        self.weights_dir = weights_dir_of(self.run_dir, self.weights_folder, config.resume)
        self.names = class_names(data, config.single_cls)
        self.nc = len(self.names)
        self.stages, self.test_size = plan_sizes(config, self.grid, world.size)
        self.loader: Any = None
        self.val_loader: Any = None
        self.dataset: Any = None
        self.validation_set: Any = None

    @abstractmethod
    def build_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of `model`."""

    def loader_options(self, split: str) -> dict[str, Any]:
        """The keywords of `create_dataloader` for `train` or `val`; the default does not augment.

        Without a seed the order of training is upstream's, which depends on the number of processes.
        """
        config = self.config
        order = {"shuffle": config.shuffled if config.seed is not None else None} if split == "train" else {}
        return {
            "workers": config.workers,
            "cache": config.cache_images,
            "cache_dir": config.cache_dir or None,
            "worker_tensor": config.fast_dataloader,
            "keep_partial_labels": config.keep_partial_labels,
            **order,
        }

    def build_loaders(self, stage: ResizeStage) -> None:
        """Build the training loader of a stage and, once, the validation loader of the main process.

        Labels are checked here, those of validation too: before an epoch of training, not after it.
        """
        config, world = self.config, self.world
        self.stage, self.img_size = stage, stage.size
        batch = stage.batch // world.size
        subset = subset_of(config)
        with main_first(world):
            self.loader, self.dataset = create_dataloader(
                *(self.data.split("train"), stage.size, batch, self.grid, config),
                rank=world.rank,
                world_size=world.size,
                prefix="train: ",
                seed=config.seed,
                subset=subset,
                dataset_class=self.dataset_class,
                **self.loader_options("train"),
            )
        check_labels(self.dataset, config, self.data, self.nc)
        if world.is_main and self.val_loader is None:
            split = "train" if config.overfit else "val"
            self.val_batch = config.test_batch_size or batch * 2
            self.val_loader, self.validation_set = create_dataloader(
                *(self.data.split(split), self.test_size, self.val_batch, self.grid, config),
                rect=True,
                prefix="val: ",
                subset=subset if config.overfit else None,
                **self.loader_options("val"),
            )
            check_labels(self.validation_set, config, self.data, self.nc)
            warn_of_data(self.dataset, None if config.overfit else self.validation_set, config, self.img_size)

    def fit_to_data(self, resumed: bool) -> None:
        """Set properties of the network that depend on the training set, such as anchors. resumed: a checkpoint will be
        loaded."""

    def wrapped(self) -> Callable:
        """The module that the step calls: the network itself or, with several processes, a wrapper that averages
        gradients."""
        if not self.world.is_distributed:
            return self.model
        ids = [self.world.local_rank] if self.device.type == "cuda" else None
        net = DistributedDataParallel(self.model, device_ids=ids, find_unused_parameters=self.finds_unused_parameters)
        self.no_sync = net.no_sync
        return net

    def build_loss(self) -> None:
        """Build the loss for `forward_loss`, and the learning rate schedule: the length of an epoch is known."""

    # --- epoch and step -----------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, batch_index: int, per_class_ap: Sequence[float]) -> None:
        """Choose stage, loss and images of an epoch of which `batch_index` batches are done.

        per_class_ap: of the last validation.
        """
        stage = stage_of(self.stages, epoch)
        if stage is not self.stage:
            where = f"{epoch}/{self.config.epochs - 1}"
            log.info("resize schedule: epoch %s begins at %d pixels, batch %d", where, stage.size, stage.batch)
            self.enter_stage(stage)

    def enter_stage(self, stage: ResizeStage) -> None:
        """Change to another stage of the resize schedule."""
        self.loader.close()
        self.build_loaders(stage)

    @abstractmethod
    def rates(self, global_step: int, epoch: int, batch_index: int) -> Rates:
        """Learning rates, momentum and accumulation of an iteration."""

    @abstractmethod
    def to_device(self, batch, device: torch.device) -> tuple[Any, ...]:
        """The batch with its images on the device, ready for the network; sets `width`."""

    @abstractmethod
    def forward_loss(self, net: Callable, batch, mark: Callable[[str], None]) -> tuple[torch.Tensor, torch.Tensor]:
        """Total loss (one element, with graph) and its detached parts, in the order of `loss_names`.

        mark: called with the name of a stage that has ended, such as `forward`.
        """

    # --- validation ---------------------------------------------------------------------------------------------------

    def validate(self, epoch: int, final: bool, draw: bool, should_stop: Callable[[], bool]) -> Validation:
        """Measure the EMA. should_stop: called after every batch; True raises `evaluation.loop.EvaluationStopped`."""
        keeps_files = self.config.keep_files
        config = EvalConfig(
            img_size=self.test_size,
            batch_size=self.val_batch,
            single_cls=self.config.single_cls,
            v5_metric=getattr(self.config, "v5_metric", False),
            half=self.config.amp != "off",
            bf16=self.config.amp == "bf16",
            verbose=final and self.nc < 50,
            plots=draw and keeps_files,
        )
        sinks = [FindingsSink(self.nc)] if keeps_files else []
        where = self.val_loader, self.data, self.run_dir
        result = run_evaluation(self.predictor(config), *where, config, sinks=sinks, should_stop=should_stop)
        metrics = result.metrics | self.further_metrics(result)
        found = findings(result, sinks[0], self.names, self.class_groups) if sinks else {}
        return Validation(metrics, list(result.per_class_ap), result.fitness, result.losses, found)

    @abstractmethod
    def predictor(self, config: EvalConfig) -> Predictor:
        """The EMA network as a predictor for evaluation, with its loss."""

    def further_metrics(self, result: EvalResult) -> dict[str, float]:
        """The values of `metric_names`, by name."""
        return {}

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @abstractmethod
    def checkpoint_content(self, progress: Progress) -> dict[str, Any]:
        """Network and EMA, as checkpoints of this family hold them, and further entries."""

    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]:
        """The files to write after an epoch, `last` first."""
        return [f"last{self.checkpoint_suffix}"] + [f"best{self.checkpoint_suffix}"] * is_best

    def state(self) -> dict[str, Any]:
        """The state of this family that resuming needs, in addition to that of every run."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""

    def load_foreign_checkpoint(self, checkpoint: dict[str, Any], progress: Progress) -> None:
        """Resume from a checkpoint without our complete state, as far as possible."""
        raise UserError("this checkpoint holds no state to resume from; start a new run with --weights")

    def write_final_files(self, last: Path) -> None:
        """If the family asks for it, remove the training state from the best and last weights. last: the last
        checkpoint."""
        if not self.strips_final_checkpoint:
            return
        for path in (last.with_stem("best"), last):  # last, because a stripped file marks a complete run
            if path.is_file():
                strip_checkpoint(path)

    def close(self) -> None:
        """Stop the processes of the loaders."""
        for loader in (self.loader, self.val_loader):
            if loader is not None:
                loader.close()
