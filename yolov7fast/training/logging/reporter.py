"""What a run reports: progress text, results.txt and results.csv, and the same numbers for TensorBoard and W&B."""

import csv
import io
import logging
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from yolov7fast.core.drawing import plot_images
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.process.threads import SideThread
from yolov7fast.evaluation.eval_result import SUMMARY, validation_loss
from yolov7fast.reports.run_plots import plot_results
from yolov7fast.training.config import TrainConfig
from yolov7fast.training.family import Family, summary_columns
from yolov7fast.training.logging.page import RunPage

# --- loggers ----------------------------------------------------------------------------------------------------------
# Loggers of other programs: TensorBoard, Weights & Biases.


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
        """Log one of them."""

    def checkpoint(self, path: Path, epoch: int) -> None:
        """Upload a checkpoint."""

    def close(self) -> None:
        """Write what is left."""


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


# --- reporter ---------------------------------------------------------------------------------------------------------


RATES = ("lr0", "lr1", "lr2")


class EpochRow(NamedTuple):
    """The numbers of an epoch.

    means: loss parts, total last; metrics: of the last validation, by columns of results.csv; validated: it was this
    epoch's.
    """

    epoch: int
    epochs: int
    memory_gb: float
    means: list[float]
    labels: int
    img_size: int
    metrics: Mapping[str, float]
    lrs: Sequence[float]
    seconds: float
    train_seconds: float
    val_seconds: float
    iterations: int
    data_wait_fraction: float
    validated: bool


def memory_gb(device: torch.device) -> float:
    return torch.cuda.memory_reserved(device) / 1e9 if device.type == "cuda" else 0.0


def header(loss_names: Sequence[str]) -> str:
    names = ("Epoch", "gpu_mem", *loss_names, "labels", "img_size")
    return "\n" + "%10s" * len(names) % names


def progress_text(epoch: int, epochs: int, memory: float, means: Sequence[float], labels: int, img_size: int) -> str:
    """The text of the progress bar, and the first columns of results.txt."""
    numbers = (*means, labels, img_size)
    return ("%10s" * 2 + "%10.4g" * len(numbers)) % (f"{epoch}/{epochs - 1}", "%.3gG" % memory, *numbers)


class Table:
    """A text file that grows by lines. It is rewritten as a whole each time, so a kill never leaves half a line.

    Its content is also kept in memory: a line that could not be written to a full disk is written with the next one.
    """

    def __init__(self, path: Path):
        self.path = path
        self._text: str | None = None

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = self.path.read_bytes().decode() if self.path.exists() else ""
        return self._text

    def write(self, text: str) -> None:
        self._text = text
        write_atomically(self.path, text)


class Reporter:
    """Writes the files of a run; only the main process has one that writes."""

    def __init__(self, run_dir: Path, loss_names: Sequence[str], metric_names: Sequence[str] = ()):
        """metric_names: metrics of a validation in addition to the summary."""
        self.run_dir = run_dir
        self.loss_names, self.metric_names = tuple(loss_names), tuple(metric_names)
        self.summary = summary_columns(loss_names)
        self.loggers: list[Logger] = []
        self.page: RunPage | None = None
        self.results_txt = Table(run_dir / "results.txt")
        self.results_csv = Table(run_dir / "results.csv")
        self.plotting = SideThread("plots")
        self.plots_of_batches: list[Future] = []

    def csv_columns(self) -> list[str]:
        train = [f"train/{name}" for name in self.loss_names]
        times = ["seconds", "train_seconds", "val_seconds", "iterations", "data_wait_share", "memory_gb"]
        return ["epoch", *train, "labels", "img_size", *self.summary, *RATES, *times, *self.metric_names]

    def epoch_done(self, row: EpochRow) -> None:
        """Write an epoch's numbers to all files and loggers; on a full disk, lines are written later."""
        tables = ((self.results_txt, self._txt_line(row)), (self.results_csv, self._csv_lines(row)))
        for table, lines in tables:
            with unless_the_disk_is_full():
                table.write(table.text + lines)
        for logger in self.loggers:
            with unless_the_disk_is_full():
                logger.epoch(self._scalars(row), row.epoch)

    def write_tables(self) -> None:
        """Write the files again if they were removed."""
        for table in (self.results_txt, self.results_csv):
            if table.text:
                with unless_the_disk_is_full():
                    table.write(table.text)

    def _txt_line(self, row: EpochRow) -> str:
        """The line as upstream writes it: an epoch without validation repeats the numbers of the last one."""
        text = progress_text(row.epoch, row.epochs, row.memory_gb, row.means, row.labels, row.img_size)
        return text + "".join("%10.4g" % row.metrics.get(name, 0.0) for name in self.summary) + "\n"

    def _csv_lines(self, row: EpochRow) -> str:
        """The row of an epoch, with the heading if the table is new."""
        measured = _measured(row)
        values = [row.epoch, *row.means, row.labels, row.img_size]
        values += [measured.get(name, "") for name in self.summary]
        values += (list(row.lrs) + [0.0] * len(RATES))[: len(RATES)]
        values += [row.seconds, row.train_seconds, row.val_seconds]
        values += [row.iterations, row.data_wait_fraction, row.memory_gb]
        values += [measured.get(name, "") for name in self.metric_names]
        lines = io.StringIO(newline="")
        writer = csv.writer(lines)
        if not self.results_csv.text:
            writer.writerow(self.csv_columns())
        writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in values])
        return lines.getvalue()

    def _scalars(self, row: EpochRow) -> dict[str, float]:
        """The values of an epoch for loggers, by tag; without a validation, its metrics are left out."""
        parts = self.loss_names[:-1]
        scalars = {f"train/{part}_loss": value for part, value in zip(parts, row.means)}
        if row.validated:
            measured = _measured(row)
            scalars |= {name: measured[name] for name in (*SUMMARY, *self.metric_names) if name in measured}
            losses = {f"val/{part}_loss": measured.get(validation_loss(part)) for part in parts}
            scalars |= {tag: value for tag, value in losses.items() if value is not None}
        return scalars | {f"x/{name}": lr for name, lr in zip(RATES, row.lrs)}

    def rewind(self, training_results: str, epochs_done: int) -> None:
        """Truncate the files for a run that is resumed after `epochs_done` epochs."""
        self.results_txt.write(training_results)
        if self.results_csv.path.exists():
            lines = self._csv_rows()
            kept = [line for line in lines[1:] if int(line.split(",")[0]) < epochs_done]
            self.results_csv.write("".join(f"{line}\r\n" for line in [lines[0], *kept]))

    def _csv_rows(self) -> list[str]:
        """The lines of results.csv, heading first; damaged ones are refused."""
        path = self.results_csv.path
        try:
            lines = self.results_csv.text.splitlines()
        except UnicodeDecodeError:
            lines = []
        for number, line in enumerate(lines or [""], start=1):
            first = line.split(",")[0]
            if not (first == "epoch" if number == 1 else first.isdecimal()):
                raise UserError(
                    f"{path}, line {number}: damaged; correct the line, or move the file away: the run then resumes "
                    "with a new table (results.txt is in the checkpoint and stays complete)"
                )
        return lines

    def text(self) -> str:
        return self.results_txt.text

    def wants_plots(self, epoch: int) -> bool:
        """Whether a logger will show the plots of this epoch's validation."""
        return any(logger.wants_plots(epoch) for logger in self.loggers)

    def plots(self, epoch: int) -> None:
        """Pass the validation's plots to the loggers that show them."""
        for logger in self.loggers:
            if logger.wants_plots(epoch):
                for path in sorted(self.run_dir.glob("test_batch*_pred.jpg")):
                    logger.plot(path, epoch)

    def draw_batch(self, batch: Sequence, global_step: int, names: Sequence[str]) -> None:
        """Plot a batch in a background thread; it gets copies, since the loader may reuse their memory."""
        file = self.run_dir / f"train_batch{global_step}.jpg"
        parts = batch[0].clone(), batch[1].clone(), batch[2]
        self.plots_of_batches.append(self.plotting.submit(plot_images, *parts, file, names))

    def finish_plots(self) -> None:
        """Wait for the plots of batches, and draw the curves of results.txt."""
        for plot in self.plots_of_batches:
            with unless_the_disk_is_full():
                plot.result()
        plot_results(save_dir=self.run_dir)

    def checkpoint(self, path: Path, epoch: int) -> None:
        for logger in self.loggers:
            logger.checkpoint(path, epoch)

    def ended(self, status: str, note: str = "") -> None:
        """Record how the run ended, for its page."""
        if self.page is not None:
            self.page.end(status, note)

    def close(self) -> None:
        self.plotting.shutdown(wait=True)
        for logger in self.loggers:
            with unless_the_disk_is_full():
                logger.close()
        if self.page is not None:
            self.page.close()


def _measured(row: EpochRow) -> dict[str, float]:
    """The values of the epoch's validation; NaN for values that were not measured, such as the AP of absent sizes."""
    return {name: value for name, value in row.metrics.items() if row.validated and not math.isnan(value)}


@contextmanager
def unless_the_disk_is_full() -> Iterator[None]:
    """Warn of a report that cannot be written; training continues."""
    try:
        yield
    except (UserError, OSError) as error:
        log.warning("%s; training continues", error)
