"""What a run tells: progress text, results.txt and results.csv, TensorBoard, Weights & Biases."""

import csv
import io
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from yolov7fast.core.atomic import write_atomically
from yolov7fast.core.errors import UserError

log = logging.getLogger(__name__)
METRICS = ("metrics/precision", "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95")
RATE_TAGS = ("x/lr0", "x/lr1", "x/lr2")


class EpochRow(NamedTuple):
    """One epoch's figures. means: loss parts, total last; results: P, R, mAP.5, mAP.5:.95, then validation losses."""

    epoch: int
    epochs: int
    memory_gb: float
    means: list[float]
    labels: int
    img_size: int
    results: Sequence[float]
    lrs: Sequence[float]
    seconds: float
    train_seconds: float
    val_seconds: float
    iterations: int
    data_wait_share: float
    validated: bool
    figures: Sequence[float] = ()


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
    """A text file that grows by lines. Each time it is written anew in one step, so a kill never leaves half a line.

    Its content is held here as well: a line that a full disk refused is written with the next one.
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

    def __init__(
        self, run_dir: Path, loss_names: Sequence[str], loggers: Sequence = (), figure_names: Sequence[str] = ()
    ):
        """figure_names: what a validation measures besides its results."""
        self.run_dir = run_dir
        self.loss_names, self.figure_names = tuple(loss_names), tuple(figure_names)
        self.loggers = list(loggers)
        self.results_txt = Table(run_dir / "results.txt")
        self.results_csv = Table(run_dir / "results.csv")

    def csv_columns(self) -> list[str]:
        train = [f"train/{name}" for name in self.loss_names]
        val = [f"val/{name}" for name in self.loss_names[:-1]]
        figures = ["seconds", "train_seconds", "val_seconds", "iterations", "data_wait_share", "memory_gb"]
        rates = ["lr0", "lr1", "lr2"]
        return ["epoch", *train, "labels", "img_size", *METRICS, *val, *rates, *figures, *self.figure_names]

    def epoch_done(self, row: EpochRow) -> None:
        """Write an epoch's figures everywhere; a full disk costs these lines for now, not the run."""
        text = progress_text(row.epoch, row.epochs, row.memory_gb, row.means, row.labels, row.img_size)
        text += "%10.4g" * len(row.results) % tuple(row.results) + "\n"
        for table, lines in ((self.results_txt, text), (self.results_csv, self._csv_lines(row))):
            with unless_the_disk_is_full():
                table.write(table.text + lines)
        for logger in self.loggers:
            with unless_the_disk_is_full():
                logger.epoch(self._scalars(row), row.epoch)

    def _csv_lines(self, row: EpochRow) -> str:
        """The row of an epoch, after the heading where the table is new."""
        rates = (list(row.lrs) + [0.0] * 3)[:3]
        values = [row.epoch, *row.means, row.labels, row.img_size]
        values += list(row.results) if row.validated else [""] * len(row.results)
        values += [*rates, row.seconds, row.train_seconds, row.val_seconds]
        values += [row.iterations, row.data_wait_share, row.memory_gb]
        values += list(row.figures) if row.validated else [""] * len(self.figure_names)
        lines = io.StringIO(newline="")
        writer = csv.writer(lines)
        if not self.results_csv.text:
            writer.writerow(self.csv_columns())
        writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in values])
        return lines.getvalue()

    def _scalars(self, row: EpochRow) -> dict[str, float]:
        parts = self.loss_names[:-1]
        tags = [f"train/{n}_loss" for n in parts] + list(METRICS) + [f"val/{n}_loss" for n in parts]
        values = list(row.means[:-1]) + list(row.results)
        return dict(zip(tags, values)) | dict(zip(RATE_TAGS, row.lrs)) | dict(zip(self.figure_names, row.figures))

    def rewind(self, training_results: str, epochs_done: int) -> None:
        """Make the files those of a run that is gone on with after `epochs_done` epochs."""
        self.results_txt.write(training_results)
        if self.results_csv.path.exists():
            lines = self._csv_rows()
            kept = [line for line in lines[1:] if int(line.split(",")[0]) < epochs_done]
            self.results_csv.write("".join(f"{line}\r\n" for line in [lines[0], *kept]))

    def _csv_rows(self) -> list[str]:
        """The lines of results.csv, heading first, if every one tells its epoch."""
        path = self.results_csv.path
        try:
            lines = self.results_csv.text.splitlines()
        except UnicodeDecodeError:
            lines = []
        for number, line in enumerate(lines or [""], start=1):
            first = line.split(",")[0]
            if not (first == "epoch" if number == 1 else first.isdecimal()):
                raise UserError(
                    f"{path}, line {number}: damaged; mend the line, or move the file away: "
                    "the run then goes on with a new table (results.txt is in the checkpoint and stays complete)"
                )
        return lines

    def text(self) -> str:
        return self.results_txt.text

    def wants_pictures(self, epoch: int) -> bool:
        """Whether a logger will show what the validation of this epoch draws."""
        return any(logger.wants_pictures(epoch) for logger in self.loggers)

    def pictures(self, epoch: int) -> None:
        """Hand the validation's pictures to the loggers that want them."""
        for logger in self.loggers:
            if logger.wants_pictures(epoch):
                for path in sorted(self.run_dir.glob("test_batch*_pred.jpg")):
                    logger.picture(path, epoch)

    def checkpoint(self, path: Path, epoch: int) -> None:
        for logger in self.loggers:
            logger.checkpoint(path, epoch)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()


@contextmanager
def unless_the_disk_is_full() -> Iterator[None]:
    """A report that cannot be written is worth a warning; the training it reports on is worth more."""
    try:
        yield
    except (UserError, OSError) as error:
        log.warning("%s; training goes on", error)


class TensorBoardLogger:
    """Scalars by epoch, and the class histogram once."""

    def __init__(self, run_dir: Path):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run_dir))

    def classes(self, classes: torch.Tensor) -> None:
        self.writer.add_histogram("classes", classes, 0)

    def epoch(self, scalars: dict[str, float], epoch: int) -> None:
        for tag, value in scalars.items():
            self.writer.add_scalar(tag, value, epoch)
        self.writer.flush()

    def wants_pictures(self, epoch: int) -> bool:
        return False

    def checkpoint(self, path: Path, epoch: int) -> None:
        """TensorBoard keeps no checkpoints."""

    def close(self) -> None:
        self.writer.close()


class WandbLogger:
    """Weights & Biases, only where it is installed and asked for."""

    def __init__(self, opt, run_dir: Path, run_id: str | None = None):
        try:
            import wandb
        except ImportError:
            raise UserError("--wandb needs the package wandb: .venv/bin/pip install wandb") from None
        self.wandb = wandb
        self.opt = opt
        interval = opt.bbox_interval
        self.picture_interval = interval if interval > 0 else max(opt.epochs // 10, 1)
        self.run = wandb.init(
            project=Path(opt.project).name,
            entity=opt.entity,
            name=run_dir.name,
            config=vars(opt),
            id=run_id,
            resume="allow",
        )

    @property
    def id(self) -> str:
        return self.run.id

    def dataset(self, folders: Sequence[str]) -> None:
        """Upload the data set's folders or lists as one artifact (--upload_dataset)."""
        artifact = self.wandb.Artifact(f"{Path(self.opt.data).stem}_dataset", type="dataset")
        for folder in folders:
            (artifact.add_dir if Path(folder).is_dir() else artifact.add_file)(str(folder))
        self.run.log_artifact(artifact, aliases=[self.opt.artifact_alias])

    def epoch(self, scalars: dict[str, float], epoch: int) -> None:
        self.run.log(scalars, step=epoch)

    def wants_pictures(self, epoch: int) -> bool:
        return (epoch + 1) % self.picture_interval == 0

    def picture(self, path: Path, epoch: int) -> None:
        self.run.log({path.stem: self.wandb.Image(str(path))}, step=epoch)

    def checkpoint(self, path: Path, epoch: int) -> None:
        if self.opt.save_period > 0 and (epoch + 1) % self.opt.save_period == 0:
            artifact = self.wandb.Artifact(f"run_{self.id}_model", type="model", metadata={"epoch": epoch})
            artifact.add_file(str(path))
            self.run.log_artifact(artifact, aliases=["latest", f"epoch {epoch}"])

    def close(self) -> None:
        self.run.finish()
