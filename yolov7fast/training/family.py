"""What a family of detectors offers so that it can be trained: the members that `run` and `trainer` use, and no others.

`families.base.BaseFamily` holds what families do alike; a new one derives from it.
"""

from abc import abstractmethod
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import nn

from yolov7fast.evaluation.eval_result import SUMMARY, validation_loss
from yolov7fast.training.checkpoints.data_changes import Fingerprint
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.distributed import World
from yolov7fast.training.ema import ModelEMA
from yolov7fast.training.logging.bottleneck import Advice
from yolov7fast.training.optimizer import Rates
from yolov7fast.training.step import Recipe


class Validation(NamedTuple):
    """What a validation measured.

    metrics: by their columns in results.csv: those of `evaluation.result.SUMMARY` and of the family's `metric_names`;
    losses: by the parts of the loss (`loss_names` without the total); per_class_ap: AP@.5:.95 of each class;
    findings: what the run's page shows of it (`evaluation.findings`); empty: nothing.
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


class Loader(Protocol):
    """The batches of an epoch."""

    num_workers: int

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def set_epoch(self, epoch: int, start_batch: int = 0) -> None: ...
    def close(self) -> None: ...


class LabelledSet(Protocol):
    """labels: for each image float32 (m, 5) class, xywh."""

    labels: Any

    def __len__(self) -> int: ...


class Family(Recipe, Protocol):
    """A family of detectors. As a class it says how its runs are started and resumed; an instance is a network with
    all that trains it, built and ready."""

    # --- of the class: what sets the family apart ---------------------------------------------------------------------
    name: ClassVar[str]  # in checkpoints, opt.yaml and the registry
    checkpoint_suffix: ClassVar[str]
    weights_folder: ClassVar[str]  # of checkpoints, below the run's folder; empty: that one itself
    metric_names: ClassVar[tuple[str, ...]]  # what a validation measures besides the summary, as columns of results.csv
    advice: ClassVar[Mapping[str, Advice]]  # against a bottleneck, where it differs from that of `bottleneck`
    uses_all_gpus: ClassVar[bool]  # whether one process trains on all visible GPUs
    epoch_files: ClassVar[tuple[str, ...]]  # patterns of checkpoints of single epochs, which --keep-epochs limits
    strips_final_checkpoint: ClassVar[bool]  # whether a complete run's last checkpoint loses its training state

    @classmethod
    @abstractmethod
    def check_files(cls, opt: Namespace) -> None:
        """Find the files that options name, or refuse them, before anything is built."""

    @classmethod
    @abstractmethod
    def ignores_resume(cls, opt: Namespace) -> bool:
        """Whether the options ask for something that --resume does not belong to."""
        ...

    @classmethod
    @abstractmethod
    def resume_options(cls, options: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
        """The options of a resumed run: files of the run folder in the place of those it began with."""

    @classmethod
    @abstractmethod
    def complete_checkpoint(cls, path: Path) -> tuple[dict[str, Any], Path]:
        """The whole state of a complete run, whose last checkpoint `path` was stripped of it."""

    @classmethod
    @abstractmethod
    def command_flags(cls, command: str, opt: Namespace) -> list[str]:
        """What `test` needs so that it measures as the validations of this run did, or `detect` to see as they saw."""
        ...

    @classmethod
    @abstractmethod
    def run_instead(
        cls, opt: Namespace, device: torch.device, world: World, checkpoint: dict[str, Any] | None
    ) -> int | None:
        """The exit code of what the options ask for instead of a training; None: they ask for a training."""

    @classmethod
    @abstractmethod
    def automatic_batch(cls, opt: Namespace, device: torch.device, world: World) -> int:
        """--batch-size auto: the batch over all processes and GPUs that this machine can train. All come here."""
        ...

    @classmethod
    @abstractmethod
    def build(
        cls, opt: Namespace, device: torch.device, world: World, checkpoint: dict[str, Any] | None = None
    ) -> Self:
        """Network, data, optimizer: fresh, or as a checkpoint needs them. All processes come here."""

    # --- of an instance: its parts ------------------------------------------------------------------------------------
    device: torch.device
    data: Any  # the checked data yaml
    dataset: LabelledSet  # of training
    loader: Loader  # of training, of the present stage
    model: nn.Module
    net: Callable  # what the step calls: the model, compiled, or wrapped for several processes or GPUs
    optimizer: torch.optim.Optimizer
    ema: ModelEMA | None  # None in processes other than the main one
    loss_factor: float  # multiplies the loss
    clip_norm: float  # largest norm of all gradients together; 0: not clipped
    img_size: int  # of training, in the present stage
    test_size: int
    wandb_id: str | None

    # --- the step -----------------------------------------------------------------------------------------------------
    @property
    def warmup(self) -> int:
        """Iterations of the warm-up."""
        ...

    @property
    def shorter_warmup(self) -> str:
        """What a user whose warm-up is too long adds or changes: '--hyp small'."""
        ...

    @property
    def start_weights(self) -> str:
        """The flag with start weights for this network, where a run has none; empty: it has some, or none are known."""
        ...

    @abstractmethod
    def start_epoch(self, epoch: int, batch_index: int, per_class_ap: Sequence[float]) -> None:
        """Prepare the epoch and place the loader at its batch `batch_index`; per_class_ap: of the last validation."""

    @abstractmethod
    def rates(self, global_step: int, epoch: int, batch_index: int) -> Rates: ...

    @abstractmethod
    def batch_info(self, batch) -> tuple[int, int]:
        """Labels in the batch, and the width that the network saw of it."""
        ...

    @abstractmethod
    def batch_files(self, batch) -> list[str]: ...

    @abstractmethod
    def draw_batch(self, batch, global_step: int) -> None:
        """Plot the first batches of a run."""

    @property
    def weights_dir(self) -> Path:
        """Where this run's checkpoints lie."""
        ...

    # --- the end of an epoch, and files -------------------------------------------------------------------------------
    @abstractmethod
    def validate(self, epoch: int, final: bool, draw: bool, should_stop: Callable[[], bool]) -> Validation:
        """should_stop: asked after every batch; then `evaluation.loop.EvaluationStopped` is raised."""
        ...

    @abstractmethod
    def checkpoint(self, progress: Progress, results_text: str) -> dict[str, Any]:
        """What a checkpoint holds beside the state that resuming needs."""
        ...

    @abstractmethod
    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]:
        """The files to write after an epoch, `last` first."""
        ...

    @abstractmethod
    def data_fingerprint(self) -> Fingerprint:
        """Of the images, labels and classes that the run sees."""
        ...

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What resuming must remember of this family, beyond what every run remembers."""
        ...

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None: ...

    @abstractmethod
    def load_foreign_checkpoint(self, checkpoint: dict[str, Any], progress: Progress) -> None:
        """Resume from a checkpoint without our complete state, as far as it goes."""

    @abstractmethod
    def settings_files(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings to write into the run folder beside opt.yaml, by file name."""
        ...

    @abstractmethod
    def save_initial(self) -> None:
        """Before the first step of a fresh run."""

    @abstractmethod
    def finish(self) -> None:
        """The end of a complete run: plots and final files."""

    @abstractmethod
    def close(self) -> None: ...
