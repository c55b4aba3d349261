"""Loggers of other programs: TensorBoard, Weights & Biases."""

import logging
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.training.config import TrainConfig
from yolov7fast.training.family import Family

log = logging.getLogger(__name__)


class Logger:
    """Takes scalars by tag after each epoch; by default neither plots nor checkpoints."""

    def begin(self, family: Family) -> None:
        """Log the settings of the run before the first step."""

    def epoch(self, scalars: dict[str, float], epoch: int) -> None:
        """Log the scalars of an epoch by their tags."""

    def wants_plots(self, epoch: int) -> bool:
        """Whether it shows the plots of this epoch's validation."""
        return False

    def plot(self, path: Path, epoch: int) -> None:
        """Log one of these plots."""

    def checkpoint(self, path: Path, epoch: int) -> None:
        """Upload a checkpoint."""

    def close(self) -> None:
        """Write the remaining data and close."""


def check_loggers(config: TrainConfig) -> None:
    """Refuse a logger that is not installed, before anything is built."""
    if config.wandb or config.upload_dataset:
        import_wandb()


def import_wandb() -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("--wandb needs the package wandb: .venv/bin/pip install wandb") from None
    return wandb


def make_loggers(config: TrainConfig, run_dir: Path, checkpoint: dict[str, Any] | None) -> list[Logger]:
    loggers: list[Logger] = [TensorBoardLogger(run_dir)]
    log.info("TensorBoard: tensorboard --logdir %s", shlex.quote(str(config.project)))
    if config.wandb or config.upload_dataset:
        loggers.append(WandbLogger(config, run_dir, checkpoint.get("wandb_id") if checkpoint else None))
    return loggers


class TensorBoardLogger(Logger):
    """Scalars by epoch, and the class histogram once."""

    def __init__(self, run_dir: Path):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from torch.utils.tensorboard import SummaryWriter

        self.run_dir, self.writer = run_dir, SummaryWriter(str(run_dir))

    def begin(self, family: Family) -> None:
        classes = np.concatenate(list(family.dataset.labels), 0)[:, 0]
        self.writer.add_histogram("classes", torch.from_numpy(classes), 0)

    def epoch(self, scalars: dict[str, float], epoch: int) -> None:
        if not any(self.run_dir.glob("events.out.tfevents.*")):  # removed: the writer's thread would end in a traceback
            self.writer.close()
            self.writer = type(self.writer)(str(self.run_dir))
        for tag, value in scalars.items():
            self.writer.add_scalar(tag, value, epoch)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbLogger(Logger):
    """Weights & Biases, where --wandb is given and the package is installed."""

    def __init__(self, config: TrainConfig, run_dir: Path, run_id: str | None = None):
        self.wandb = wandb = import_wandb()
        self.config = config
        interval = config.bbox_interval
        self.plot_interval = interval if interval > 0 else max(config.epochs // 10, 1)
        self.run = wandb.init(
            project=Path(config.project).name,
            entity=config.entity,
            name=run_dir.name,
            config=asdict(config),
            id=run_id,
            resume="allow",
        )

    @property
    def id(self) -> str:
        return self.run.id

    def begin(self, family: Family) -> None:
        family.wandb_id = self.id
        if self.config.upload_dataset:
            self.dataset([str(p) for p in np.atleast_1d(cast(Any, family.data.train))])

    def dataset(self, folders: Sequence[str]) -> None:
        """Upload the data set's folders or lists as one artifact (--upload_dataset)."""
        artifact = self.wandb.Artifact(f"{Path(self.config.data).stem}_dataset", type="dataset")
        for folder in folders:
            (artifact.add_dir if Path(folder).is_dir() else artifact.add_file)(str(folder))
        self.run.log_artifact(artifact, aliases=[self.config.artifact_alias])

    def epoch(self, scalars: dict[str, float], epoch: int) -> None:
        self.run.log(scalars, step=epoch)

    def wants_plots(self, epoch: int) -> bool:
        return (epoch + 1) % self.plot_interval == 0

    def plot(self, path: Path, epoch: int) -> None:
        self.run.log({path.stem: self.wandb.Image(str(path))}, step=epoch)

    def checkpoint(self, path: Path, epoch: int) -> None:
        if self.config.save_period > 0 and (epoch + 1) % self.config.save_period == 0:
            artifact = self.wandb.Artifact(f"run_{self.id}_model", type="model", metadata={"epoch": epoch})
            artifact.add_file(str(path))
            self.run.log_artifact(artifact, aliases=["latest", f"epoch {epoch}"])

    def close(self) -> None:
        self.run.finish()
