"""The training loop. It knows epochs, steps, checkpoints and signals, but not which family of detectors it trains."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.checkpoint.api import save_checkpoint
from yolov7fast.core.atomic import write_atomically
from yolov7fast.core.errors import UserError
from yolov7fast.training import bottleneck as doctor
from yolov7fast.training import reporter as report
from yolov7fast.training.distributed import World, any_rank, from_all, from_main
from yolov7fast.training.ema import ModelEMA
from yolov7fast.training.resume import (
    Limits,
    Progress,
    collect_state,
    keep_as_previous,
    random_states,
    restore_own_random,
    restore_state,
)
from yolov7fast.training.schedule import Rates
from yolov7fast.training.signals import StopRequest
from yolov7fast.training.step import Amp, Reading, Recipe, TrainStep
from yolov7fast.training.timing import NoTimer, StageTimer

log = logging.getLogger(__name__)
LOG_SECONDS = 0.5  # on a device that would have to be waited for, the progress bar is refreshed this often
TIMED_EVERY = 10  # on CUDA, one step in so many is timed for the doctor


class Validation(NamedTuple):
    """results: P, R, mAP@.5, mAP@.5:.95, validation losses; maps: AP of each class; figures: see Family."""

    results: list[float]
    maps: list[float]
    fitness: float
    figures: tuple[float, ...] = ()


class Family(Recipe, Protocol):
    """A family of detectors, built and ready: what the trainer drives."""

    model: torch.nn.Module
    net: Callable
    optimizer: torch.optim.Optimizer
    ema: ModelEMA | None
    loader: Iterable
    checkpoint_suffix: str
    figure_names: tuple[str, ...]  # what a validation measures besides its results, as columns of results.csv
    advice: Mapping[str, str]  # the doctor's words, where they differ from its own
    shorter_warmup: str  # how a user shortens the warm-up

    def start_epoch(self, epoch: int, position: int, maps: list[float]) -> None: ...
    def rates(self, number: int, epoch: int, position: int) -> Rates: ...
    def batch_info(self, batch) -> tuple[int, int]: ...
    def batch_files(self, batch) -> list[str]: ...
    def draw_batch(self, batch, number: int) -> None: ...
    def validate(self, epoch: int, final: bool, draw: bool) -> Validation: ...
    def checkpoint(self, progress: Progress, results_text: str) -> dict[str, Any]: ...
    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]: ...
    def state(self) -> dict[str, Any]: ...
    def load_state(self, state: dict[str, Any]) -> None: ...
    def save_initial(self) -> None: ...
    def adopt(self, checkpoint: dict[str, Any], progress: Progress) -> None: ...
    def finish(self, final_results: list[float]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class TrainSettings:
    """What the loop itself must know."""

    epochs: int
    amp: Amp
    loss_factor: float = 1.0
    clip_norm: float = 0.0
    max_iter: int = 0
    patience: int = 0
    eval_interval: int = 1
    notest: bool = False
    nosave: bool = False
    save_every_minutes: float = 0.0
    skip_nonfinite: int = 0
    exact_mid_epoch: bool = False  # samples are keyed, so an epoch can be gone on with in its middle
    keep_files: bool = True  # False: a trial of evolve, which keeps no checkpoint

    @property
    def limits(self) -> Limits:
        return Limits(self.epochs, self.max_iter, self.patience)


class Outcome(NamedTuple):
    """results of the last validation; interrupted: exit code of the signal that stopped the run, or 0."""

    results: list[float]
    progress: Progress
    interrupted: int
    last_loss: float


class Judgement(NamedTuple):
    """What the end of an epoch showed; `validation` is None where none was due."""

    validation: Validation | None = None
    is_best: bool = False
    out_of_patience: bool = False
    seconds: float = 0.0


class Trainer:
    def __init__(
        self, family: Family, settings: TrainSettings, world: World, device: torch.device, run_dir: Path, reporter
    ):
        self.family, self.settings, self.world, self.device = family, settings, world, device
        self.weights_dir = run_dir / "weights"
        self.run_dir = run_dir
        self.reporter = reporter
        self.progress = Progress()
        self.step = TrainStep(
            family,
            family.model,
            family.net,
            family.optimizer,
            family.ema,
            device,
            amp=settings.amp,
            loss_factor=settings.loss_factor,
            keep_buffers=settings.skip_nonfinite > 0,
            clip_norm=settings.clip_norm,
            judge_together=settings.skip_nonfinite > 0 and world.is_distributed,
        )
        self.timer = StageTimer(device)
        self.recent: dict[int, list[str]] = {}  # files of the batches since the host last looked
        self.last_is_damaged = False  # the run goes on from the checkpoint before it, which must not be lost to it
        self.saved_at: tuple[int, int] | None = None  # epoch and position of the last checkpoint
        self.clock = time.time()  # until when `progress.seconds` counts

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a collected state: bit for bit, if the samples are keyed or the epoch had ended."""
        self.progress = restore_state(self.step, state)
        self.family.load_state(state["recipe"])
        restore_own_random(state, self.world)  # last: building a loader draws from them
        self.progress.finished = bool(self.settings.limits.reached(self.progress))
        if self.settings.exact_mid_epoch or self.progress.finished:
            return
        if self.progress.position:
            done = self.progress.position
            log.warning(
                "resuming inside epoch %d without --seed: its %d finished batches are run again on other samples; "
                "with --seed the run would go on exactly where it stopped",
                self.progress.epoch,
                done,
            )
            self.progress.number -= done
            self.progress.position = 0
        elif self.family.loader.num_workers:
            log.warning("resuming without --seed: the random streams of the data workers begin anew, all else goes on")

    def fit(self) -> Outcome:
        """Train until the epochs, the iterations or the patience are used up, or a signal asks to stop."""
        progress, settings = self.progress, self.settings
        self.clock = time.time()
        with StopRequest() as stop:
            while True:
                if any_rank(bool(stop), self.world):  # also asked for in a validation, or before the first step
                    return self.interrupted(stop)
                if progress.finished or progress.epoch >= settings.epochs:
                    break
                started = time.time() - (progress.epoch_seconds if progress.position else 0.0)
                if self.train_epoch(progress.epoch, stop):
                    return self.interrupted(stop)
                self.finish_epoch(progress.epoch, time.time() - started)
        self.family.finish(progress.results)
        self.count_time()
        return self.outcome(0)

    def interrupted(self, stop: StopRequest) -> Outcome:
        """Write down where the run is, unless that has just been done, and leave."""
        if from_main(self.saved_at != (self.progress.epoch, self.progress.position), self.world):
            self.save([f"last{self.family.checkpoint_suffix}"])
        return self.outcome(stop.exit_code or 143)

    def outcome(self, code: int) -> Outcome:
        loss = self.progress.last_loss
        return Outcome(self.progress.results, self.progress, code, float("nan") if loss is None else loss)

    def count_time(self) -> None:
        """Count the time since the last call as the run's: steps, validation, files."""
        now = time.time()
        self.progress.seconds += now - self.clock
        self.clock = now

    # --- one epoch ----------------------------------------------------------------------------------------------------

    def train_epoch(self, epoch: int, stop: StopRequest) -> bool:
        """Run the batches of an epoch that are still to do; True if it was interrupted."""
        family, step, progress = self.family, self.step, self.progress
        family.start_epoch(epoch, progress.position, progress.maps)
        family.model.train()
        if progress.position == 0:
            step.begin_epoch()
            step.optimizer.zero_grad()
            progress.epoch_seconds = progress.epoch_waited = 0.0
        self.looked, self.saved, began = 0.0, time.time(), time.time() - progress.epoch_seconds
        with self.progress_bar(len(family.loader)) as bar:
            asked = time.perf_counter()
            for batch in () if self.out_of_iterations() else family.loader:
                waiting = time.perf_counter() - asked
                progress.epoch_waited += waiting
                self.timer.add("data", waiting * 1e3)
                rates = family.rates(progress.number, epoch, progress.position)
                self.recent[progress.number] = family.batch_files(batch)
                step(batch, progress.number, rates, self.timer_for(progress.number))
                family.draw_batch(batch, progress.number)
                progress.number += 1
                progress.position += 1
                progress.labels, progress.img_size = family.batch_info(batch)
                progress.epoch_seconds = time.time() - began
                self.show(bar, epoch)
                if any_rank(bool(stop), self.world):
                    return True
                if self.out_of_iterations():
                    break
                self.save_if_due()
                asked = time.perf_counter()
        return False

    def timer_for(self, number: int):
        """The doctor's clock in the first epoch: always on a CPU, on some steps where it costs device events."""
        timed = self.progress.epoch == 0 and (self.device.type == "cpu" or number % TIMED_EVERY == 0)
        return self.timer if timed else NoTimer()

    def out_of_iterations(self) -> bool:
        return 0 < self.settings.max_iter <= self.progress.number

    def progress_bar(self, batches: int) -> tqdm:
        if self.world.is_main:
            print(report.header(self.family.loss_names))
        return tqdm(total=batches, initial=self.progress.position, disable=not self.world.is_main, dynamic_ncols=True)

    def show(self, bar: tqdm, epoch: int) -> None:
        """Refresh the bar and look for bad batches; on a device that must be waited for, only now and then."""
        bar.update()
        now = time.perf_counter()
        last = bar.n >= bar.total or self.out_of_iterations()
        if self.device.type != "cpu" and now - self.looked < LOG_SECONDS and not last:
            return
        self.looked = now
        reading = self.look()
        memory = report.memory_gb(self.device)
        sizes = self.progress.labels, self.progress.img_size
        text = report.progress_text(epoch, self.settings.epochs, memory, reading.means, *sizes)
        bar.set_description_str(text, refresh=False)
        bar.set_postfix_str(f"wait {self.wait_share():.0%}")

    def wait_share(self) -> float:
        return self.progress.epoch_waited / max(self.progress.epoch_seconds, 1e-9)

    def look(self) -> Reading:
        """Ask the device how the batches since the last look went; too many bad ones end the run."""
        reading = self.step.read()
        if reading.bad > self.settings.skip_nonfinite:
            raise self.nonfinite(reading.first_bad, reading.bad)
        self.recent.clear()
        return reading

    def nonfinite(self, number: int, count: int) -> UserError:
        """The loss of a batch is not a number: keep its file names for inspection and say what to try."""
        path = self.run_dir / f"nonfinite_batch_{number}.txt"
        write_atomically(path, "\n".join(self.recent.get(number, [])) + "\n")
        allowed = self.settings.skip_nonfinite
        tolerated = f" ({count} such batches, {allowed} allowed)" if allowed else ""
        return UserError(
            f"the loss of batch {number} (epoch {self.progress.epoch}) is not finite{tolerated}; "
            f"its images are listed in {path}. Try a lower learning rate, --amp off, or --skip-nonfinite N"
        )

    # --- the end of an epoch ------------------------------------------------------------------------------------------

    def finish_epoch(self, epoch: int, seconds: float) -> None:
        """Validate, report, save; then the next epoch is on."""
        progress, settings = self.progress, self.settings
        last = epoch + 1 >= settings.epochs or self.out_of_iterations()
        judged = self.judge(epoch, last) if self.world.is_main else Judgement()
        row = self.row(epoch, seconds, judged)
        progress.epoch, progress.position = epoch + 1, 0
        progress.last_loss = row.means[-1]
        if progress.first_loss is None:
            progress.first_loss = progress.last_loss
        progress.finished = from_main(last or judged.out_of_patience, self.world)
        if self.world.is_main:
            self.tell(row, judged.out_of_patience and not last)
        if settings.keep_files and (progress.finished or not settings.nosave):
            self.save(self.family.checkpoint_names(epoch, progress.finished, judged.is_best))
            if self.world.is_main:
                self.reporter.checkpoint(self.weights_dir / f"last{self.family.checkpoint_suffix}", epoch)

    def tell(self, row: report.EpochRow, early: bool) -> None:
        """Report an epoch; early: it is the last one because patience is used up."""
        self.reporter.epoch_done(row)
        if row.validated:
            self.reporter.pictures(row.epoch)
        if row.epoch == 0:
            doctor.tell(self.timer.totals(), row, self.device, self.family.advice)
        if early:
            print(f"stopping early: no better fitness for {self.progress.epochs_since_best} epochs (--patience)")

    def judge(self, epoch: int, last: bool) -> Judgement:
        """Validate if it is due, and say whether the epoch is the best so far and whether patience is used up."""
        progress, settings = self.progress, self.settings
        started, found = time.time(), None
        progress.epochs_since_best += 1
        is_best = settings.notest and progress.best_fitness == 0.0  # as the reference has it
        if last or (not settings.notest and (epoch + 1) % settings.eval_interval == 0):
            found = self.family.validate(epoch, last, draw=last or self.reporter.wants_pictures(epoch))
            progress.results, progress.maps = list(found.results), list(found.maps)
            is_best = self.note_fitness(found.fitness)
        out_of_patience = found is not None and 0 < settings.patience <= progress.epochs_since_best
        return Judgement(found, is_best, out_of_patience, time.time() - started)

    def row(self, epoch: int, seconds: float, judged: Judgement) -> report.EpochRow:
        """The figures of an epoch whose batches are all done."""
        progress = self.progress
        rates = self.family.rates(progress.number - 1, epoch, progress.position - 1)
        return report.EpochRow(
            epoch=epoch,
            epochs=self.settings.epochs,
            memory_gb=report.memory_gb(self.device),
            means=self.step.read().means,
            labels=progress.labels,
            img_size=progress.img_size,
            results=progress.results,
            lrs=rates.lrs,
            seconds=seconds + judged.seconds,
            train_seconds=progress.epoch_seconds,
            val_seconds=judged.seconds,
            iterations=progress.position,
            data_wait_share=self.wait_share(),
            validated=judged.validation is not None,
            figures=judged.validation.figures if judged.validation else (),
        )

    def note_fitness(self, fitness: float) -> bool:
        """Whether this epoch is the best so far; equal counts as best, as in the reference."""
        progress = self.progress
        if fitness > progress.best_fitness:
            progress.best_fitness = fitness
            progress.epochs_since_best = 0
        return fitness == progress.best_fitness

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def save_if_due(self) -> None:
        minutes = self.settings.save_every_minutes
        if minutes and any_rank(self.world.is_main and time.time() - self.saved >= minutes * 60, self.world):
            self.save([f"last{self.family.checkpoint_suffix}"])
            self.saved = time.time()

    def save(self, names: list[str]) -> None:
        """Write the checkpoint under every name; a failed write keeps the last good file and the run goes on.

        All processes come here: each has random generators of its own.
        """
        if not self.settings.keep_files:
            return
        random_of_ranks = from_all(random_states(), self.world)
        if not self.world.is_main:
            return
        self.refuse_broken()
        self.count_time()
        content = self.family.checkpoint(self.progress, self.reporter.text())
        content["resume"] = collect_state(self.step, self.progress, self.family.state(), random_of_ranks)
        paths = [self.weights_dir / name for name in names]
        if paths[0].is_file() and not self.last_is_damaged:
            keep_as_previous(paths[0])
        try:
            save_checkpoint(content, *paths)
            self.last_is_damaged = False
            self.saved_at = self.progress.epoch, self.progress.position
        except UserError as error:
            if self.progress.finished:
                raise
            log.warning("%s; training goes on, the last good checkpoint is kept", error)

    def refuse_broken(self) -> None:
        """Weights that are no numbers must not take the place of the last good ones: ask the device before a save."""
        self.look()
        if not self.step.weights_finite():
            raise UserError(
                f"the weights are not finite after batch {self.progress.number - 1} (epoch {self.progress.epoch}), "
                "though its loss was; the last good checkpoint is kept. Try a lower learning rate or --amp off"
            )


def best_as_saved(best: float) -> float | np.ndarray:
    """The reference writes an array of one, and a plain 0.0 as long as nothing beat zero."""
    return np.array([best]) if best else 0.0
