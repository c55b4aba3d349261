"""The training loop. It handles epochs, steps, checkpoints and signals, and does not depend on the family of
detectors."""

import logging
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from yolov7fast.checkpoint.checkpoint_writer import save_checkpoint
from yolov7fast.checkpoint.families import FAMILY_KEY
from yolov7fast.core.device import DeviceQueue
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.process import signals
from yolov7fast.core.process.signals import StopRequest
from yolov7fast.core.text import styled
from yolov7fast.evaluation.eval_loop import EvaluationStopped
from yolov7fast.training.checkpoints.files import CheckpointFiles
from yolov7fast.training.checkpoints.resume import (
    Fingerprint,
    Progress,
    collect_state,
    fingerprint,
    names_to_write,
    previous_of,
    progress_of,
    random_states,
    remove_old_epochs,
    restore_own_random,
    restore_state,
)
from yolov7fast.training.config import TrainConfig
from yolov7fast.training.distributed import World, any_rank, from_all, from_main
from yolov7fast.training.family import Family, Validation, summary_columns
from yolov7fast.training.logging import bottleneck
from yolov7fast.training.logging.reporter import EpochRow, Reporter, header, memory_gb, progress_text
from yolov7fast.training.step import StepMetrics, TrainStep, choose_amp
from yolov7fast.training.timing import NO_TIMER, NoTimer, StageTimer

log = logging.getLogger(__name__)
LOG_SECONDS = 0.5  # seconds between refreshes of the progress bar on a device that needs a sync
FIRST_SAVE_MINUTES = 1.0  # after the start of a process, inside an epoch; the next ones by --save-every
VOTE_EVERY = 10  # batches; between them several processes do not ask each other
TIMED_EVERY = 10  # on CUDA, every n-th step is timed for the bottleneck report


class Outcome(NamedTuple):
    """How a run ended. metrics: of the last validation, by columns of results.csv; interrupted: exit code of the signal
    that stopped the run, or 0; exit_code: of the command."""

    metrics: dict[str, float]
    progress: Progress
    interrupted: int
    last_loss: float
    folder: Path | None = None
    exit_code: int = 0


class EpochResult(NamedTuple):
    """The results of an epoch; `validation` is None if none was due."""

    validation: Validation | None = None
    is_best: bool = False
    out_of_patience: bool = False
    seconds: float = 0.0


class Trainer:
    def __init__(self, family: Family, config: TrainConfig, world: World, reporter: Reporter):
        self.family, self.config, self.world, self.device = family, config, world, family.device
        self.run_dir = Path(config.save_dir)
        self.files = CheckpointFiles(family.weights_dir, family.checkpoint_suffix)
        self.reporter = reporter
        self.progress = Progress()
        self.step = TrainStep(
            family,
            family.model,
            family.net,
            family.optimizer,
            family.ema,
            family.device,
            amp=choose_amp(config.amp, family.device),
            loss_factor=family.loss_factor,
            keep_buffers=config.skip_nonfinite > 0,
            clip_norm=family.clip_norm,
            vote_on_finite=config.skip_nonfinite > 0 and world.is_distributed,
            world_size=world.size,
            no_sync=family.no_sync,
        )
        self.timer, self.queue = StageTimer(family.device), DeviceQueue(family.device)
        self.waits: list[tuple[Any, Any]] = []  # marks before and after each wait for a batch since the last sync
        self.unasked = 0  # batches since the last vote
        self.recent: dict[int, list[str]] = {}  # files of the batches since the last sync, by global step
        self.restore_folder: Callable[[], None] = lambda: None  # if it was removed; only in the main process
        self.saved: Callable[[], None] = lambda: None  # called after a checkpoint was written
        self.saved_at: tuple[int, int] | None = None  # epoch and batch index of the last checkpoint
        self.last_sync = self.last_save = 0.0
        self.save_minutes = min(config.save_minutes, FIRST_SAVE_MINUTES)  # until the next save in an epoch
        self.clock = time.time()  # until when `progress.seconds` counts

    @cached_property
    def data_fingerprint(self) -> Fingerprint:
        """The fingerprint of images, labels and classes of the run, for checkpoints."""
        sets = {"train": self.family.dataset, "val": self.family.validation_set}
        return fingerprint({name: each for name, each in sets.items() if each is not None}, self.family.names)

    def resume(self, state: dict[str, Any]) -> None:
        """Resume from a collected state: bit for bit, if the samples are keyed or the epoch had ended."""
        restore_state(self.step, state)
        self.progress = progress_of(state, summary_columns(self.family.loss_names))
        if self.world.is_main:
            self.files.check_best(self.progress)
        self.family.load_state(state["recipe"])
        restore_own_random(state, self.world)  # last, because building a loader draws from them
        self.progress.finished = bool(self.config.limits.reached(self.progress))
        if self.config.seed is not None or self.progress.finished:
            return
        if self.progress.batch_index and not self.all_batches_done():
            log.warning(
                "resuming inside epoch %d without --seed: its %d finished batches are run again on other samples; "
                "with --seed the run would resume exactly where it stopped",
                self.progress.epoch,
                self.progress.batch_index,
            )
            self.restart_epoch()
        elif self.family.loader.num_workers:
            log.warning(
                "resuming without --seed: random streams of the data workers are not restored, all else resumes"
            )

    def save_initial(self) -> None:
        """Save before the first step of a fresh run, so that it can be resumed."""
        if self.world.is_main and self.config.keep_files and self.family.saves_initial:
            save_checkpoint(self.family.model, self.files.folder / "init.pt")
        if not self.config.nosave:
            self.save([self.files.last.name])

    def restart_epoch(self) -> None:
        """Run the finished batches of the current epoch again."""
        self.progress.global_step -= self.progress.batch_index
        self.progress.batch_index = 0

    def fit(self) -> Outcome:
        """Train until the epochs, the iterations or the patience are used up, or a signal asks to stop."""
        progress, config = self.progress, self.config
        self.clock = time.time()
        with StopRequest(signals.second_interrupt, self.world.launcher) as stop:
            while True:
                if any_rank([bool(stop)], self.world)[0]:  # a signal may arrive during a validation too
                    return self.interrupted(stop)
                if progress.finished or progress.epoch >= config.epochs:
                    break
                started = time.time() - (progress.epoch_seconds if progress.batch_index else 0.0)
                if self.train_epoch(progress.epoch, stop):
                    return self.interrupted(stop)
                if not self.finish_epoch(progress.epoch, time.time() - started, stop):
                    return self.interrupted(stop)
        self.files.retry_best(progress)
        if self.world.is_main and self.config.keep_files:
            self.finish()
        self.count_time()
        self.files.refuse_missing_best(progress)
        return self.outcome(0)

    def finish(self) -> None:
        """Write plots, then the family's final files; the previous checkpoint is removed last, which marks
        completion."""
        self.reporter.finish_plots()
        self.family.write_final_files(self.files.last)
        previous_of(self.files.last).unlink(missing_ok=True)

    def interrupted(self, stop: StopRequest) -> Outcome:
        """Save the state of the run, unless it was just saved, and stop."""
        if from_main(self.saved_at != (self.progress.epoch, self.progress.batch_index), self.world):
            self.save([self.files.last.name])
        self.files.retry_best(self.progress)
        return self.outcome(stop.exit_code or 143)

    def outcome(self, code: int) -> Outcome:
        loss = self.progress.last_loss
        last_loss = float("nan") if loss is None else loss
        return Outcome(self.progress.metrics, self.progress, code, last_loss, self.run_dir, exit_code=code)

    def count_time(self) -> None:
        """Add the time since the last call to that of the run: steps, validation, files."""
        now = time.time()
        self.progress.seconds += now - self.clock
        self.clock = now

    # --- one epoch ----------------------------------------------------------------------------------------------------

    def train_epoch(self, epoch: int, stop: StopRequest) -> bool:
        """Run the batches of an epoch that are still to do; True if it was interrupted."""
        family, step, progress, config = self.family, self.step, self.progress, self.config
        if self.all_batches_done():  # the run was stopped in the validation
            return False
        family.start_epoch(epoch, progress.batch_index, progress.per_class_ap)
        family.loader.set_epoch(epoch, progress.batch_index if config.seed is not None else 0)
        family.model.train()
        if family.ema is not None:
            family.ema.forget_pairs()
        if progress.batch_index == 0:
            step.begin_epoch()
            step.zero_grad()
            progress.epoch_seconds = progress.epoch_waited = 0.0
        self.last_sync, self.last_save, began = 0.0, time.time(), time.time() - progress.epoch_seconds
        with self.progress_bar(config.limits.epoch_length(progress, len(family.loader))) as bar:
            asked = self.queue.mark()
            for batch in () if self.out_of_iterations() else family.loader:
                self.waits.append((asked, self.queue.mark()))
                rates, timer = family.rates(progress.global_step, epoch, progress.batch_index), self.timer_for(progress)
                timer.add("data", *self.waits[-1])
                self.recent[progress.global_step] = list(batch[2])
                is_updated = step(batch, progress.global_step, rates, timer)
                if self.world.is_main and config.keep_files and progress.global_step < family.drawn_batches:
                    self.reporter.draw_batch(batch, progress.global_step, family.names)
                progress.global_step += 1
                progress.batch_index += 1
                progress.labels, progress.img_size = len(batch[1]), family.width
                progress.epoch_seconds = time.time() - began
                self.show(bar, epoch)
                asked_to_stop, save_due = self.vote(stop, is_updated)
                if asked_to_stop:
                    return True
                if self.out_of_iterations():
                    break
                if save_due:
                    self.save([self.files.last.name])
                    self.last_save, self.save_minutes = time.time(), config.save_minutes
                asked = self.queue.mark()
        return False

    def vote(self, stop: StopRequest, is_updated: bool) -> list[bool]:
        """Whether any process was asked to stop, and whether a checkpoint is due.

        Several processes ask each other every VOTE_EVERY batches, at the next update of the weights: gradients that
        have accumulated since the last one differ by process, and a checkpoint holds those of the first.
        """
        self.unasked += 1
        if self.world.is_distributed and not (is_updated and self.unasked >= VOTE_EVERY):
            return [False, False]
        self.unasked = 0
        return any_rank([bool(stop), self.save_is_due()], self.world)

    def all_batches_done(self) -> bool:
        """Whether only the end of the epoch is left."""
        return 0 < len(self.family.loader) <= self.progress.batch_index

    def timer_for(self, progress: Progress) -> NoTimer:
        """The clock of the bottleneck report, in the first epoch: always on a CPU, on some steps if it needs device
        events."""
        timed = progress.epoch == 0 and (self.device.type == "cpu" or progress.global_step % TIMED_EVERY == 0)
        return self.timer if timed else NO_TIMER

    def out_of_iterations(self) -> bool:
        return 0 < self.config.max_iter <= self.progress.global_step

    def progress_bar(self, batches: int) -> tqdm:
        if self.world.is_main:
            print(styled(header(self.family.loss_names), "bold", sys.stdout))
        done = self.progress.batch_index
        return tqdm(total=batches, initial=done, disable=not self.world.is_main, dynamic_ncols=True)

    def show(self, bar: tqdm, epoch: int) -> None:
        """Refresh the bar and check for losses that are not finite; on a device that needs a sync, only at the logging
        interval."""
        bar.update()
        now = time.perf_counter()
        last = bar.n >= (bar.total or 0) or self.out_of_iterations()
        if self.device.type != "cpu" and now - self.last_sync < LOG_SECONDS and not last:
            return
        self.last_sync = now
        metrics = self.sync_metrics()
        sizes = self.progress.labels, self.progress.img_size
        text = progress_text(epoch, self.config.epochs, memory_gb(self.device), metrics.means, *sizes)
        bar.set_description_str(text, refresh=False)
        bar.set_postfix_str(f"wait {self.data_wait_fraction():.0%}")
        if self.reporter.page is not None and self.reporter.page.is_due():
            self.update_page(metrics.means)

    def data_wait_fraction(self) -> float:
        """Fraction of the time of the epoch's batches up to the last sync; on CUDA, time in which the device had no
        work."""
        return self.progress.epoch_waited / max(self.progress.epoch_seconds, 1e-9)

    def sync_metrics(self) -> StepMetrics:
        """Read the results of the batches since the last sync; too many non-finite losses end the run."""
        metrics = self.step.sync_metrics()
        self.progress.epoch_waited += sum(asked.elapsed_time(arrived) for asked, arrived in self.waits) / 1e3
        self.waits.clear()
        if metrics.nonfinite > self.config.skip_nonfinite:
            raise self.nonfinite_error(metrics.first_nonfinite, metrics.nonfinite)
        self.recent.clear()
        return metrics

    def nonfinite_error(self, global_step: int, count: int) -> UserError:
        """The loss of a batch is not finite: write its file names for inspection and name remedies."""
        path = self.run_dir / f"nonfinite_batch_{global_step}.txt"
        write_atomically(path, "\n".join(self.recent.get(global_step, [])) + "\n")
        allowed = self.config.skip_nonfinite
        tolerated = f" ({count} such batches, {allowed} allowed)" if allowed else ""
        return UserError(
            f"the loss of batch {global_step} (epoch {self.progress.epoch}) is not finite{tolerated}; "
            f"its images are listed in {path}. Try a lower learning rate, --amp off, or --skip-nonfinite N"
        )

    # --- the end of an epoch ------------------------------------------------------------------------------------------

    def finish_epoch(self, epoch: int, seconds: float, stop: StopRequest) -> bool:
        """Validate, report, save and advance to the next epoch. False: stopped in the validation, which is not
        complete."""
        progress, config = self.progress, self.config
        last = epoch + 1 >= config.epochs or self.out_of_iterations()
        self.restore_folder()
        result = self.validate_if_due(epoch, last, stop) if self.world.is_main else EpochResult()
        if from_main(result is None, self.world, patient=True) or result is None:
            return False
        row = self.epoch_row(epoch, seconds, result)
        progress.epoch, progress.batch_index = epoch + 1, 0
        progress.last_loss = row.means[-1]
        if progress.first_loss is None:
            progress.first_loss = progress.last_loss
        progress.finished = from_main(last or result.out_of_patience, self.world)
        if self.world.is_main:
            self.report(row, result.validation, early=result.out_of_patience and not last)
        if config.keep_files and (progress.finished or not config.nosave):
            names = self.family.checkpoint_names(epoch, progress.finished, result.is_best)
            kept = self.family.epoch_files, config.keep_epochs
            self.save(names_to_write(names, *kept))
            if self.world.is_main:
                remove_old_epochs(self.files.folder, *kept)
                self.reporter.checkpoint(self.files.last, epoch)
        return True

    def report(self, row: EpochRow, validation: Validation | None, early: bool) -> None:
        """Report an epoch; early: it is the last one because patience is used up."""
        self.reporter.epoch_done(row)
        if row.validated:
            self.reporter.plots(row.epoch)
        page, stages = self.reporter.page, self.timer.totals() if row.epoch == 0 else {}
        known = self.family.advice, bottleneck.options_in_use(self.config, self.device)
        found = bottleneck.report(stages, row, self.device, *known) if row.epoch == 0 else ""
        if page is not None:
            page.epoch_done(row.epoch, validation.findings if validation else {}, stages, found)
        self.update_page(row.means)
        if early:
            print(f"stopping early: no better fitness for {self.progress.epochs_since_best} epochs (--patience)")

    def update_page(self, means: list[float]) -> None:
        """Show the progress on the run's page."""
        if self.reporter.page is not None:
            losses, batches = dict(zip(self.family.loss_names, means)), len(self.family.loader)
            self.reporter.page.progress(self.progress, batches, losses, self.device)
            self.reporter.page.write()

    def validate_if_due(self, epoch: int, last: bool, stop: StopRequest) -> EpochResult | None:
        """Validate if it is due; returns whether the epoch is the best so far, and whether patience is used up.

        None: a signal stopped the validation after a batch.
        """
        progress, config = self.progress, self.config
        started, found = time.time(), None
        is_best = config.notest and progress.best_fitness == 0.0  # as in upstream
        if last or (not config.notest and (epoch + 1) % config.eval_interval == 0):
            draw = last or self.reporter.wants_plots(epoch)
            try:
                found = self.family.validate(epoch, last, draw, should_stop=lambda: bool(stop))
            except EvaluationStopped:
                return None
        progress.epochs_since_best += 1
        if found is not None:
            progress.metrics, progress.per_class_ap = found.columns(), [float(ap) for ap in found.per_class_ap]
            is_best = self.update_best(found.fitness)
            if is_best:
                progress.best_epoch, progress.best_metrics = epoch, dict(progress.metrics)
        out_of_patience = found is not None and 0 < config.patience <= progress.epochs_since_best
        return EpochResult(found, is_best, out_of_patience, time.time() - started)

    def epoch_row(self, epoch: int, seconds: float, result: EpochResult) -> EpochRow:
        """The numbers of an epoch whose batches are all done."""
        progress = self.progress
        rates = self.family.rates(progress.global_step - 1, epoch, progress.batch_index - 1)
        return EpochRow(
            epoch=epoch,
            epochs=self.config.epochs,
            memory_gb=memory_gb(self.device),
            means=self.step.sync_metrics().means,
            labels=progress.labels,
            img_size=progress.img_size,
            metrics=progress.metrics,
            lrs=rates.lrs,
            seconds=seconds + result.seconds,
            train_seconds=progress.epoch_seconds,
            val_seconds=result.seconds,
            iterations=progress.batch_index,
            data_wait_fraction=self.data_wait_fraction(),
            validated=result.validation is not None,
        )

    def update_best(self, fitness: float) -> bool:
        """Whether this epoch is the best so far; an equal epoch counts as best, as in upstream."""
        progress = self.progress
        if fitness > progress.best_fitness:
            progress.best_fitness = float(fitness)  # checkpoints of plain values hold it
            progress.epochs_since_best = 0
        return fitness == progress.best_fitness

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def save_is_due(self) -> bool:
        """Save inside an epoch if it is due; the clock of the main process decides."""
        due = time.time() - self.last_save >= self.save_minutes * 60
        return self.save_minutes > 0 and self.world.is_main and due

    def save(self, names: list[str]) -> None:
        """Write the checkpoint under every name; a failed write keeps the last good file and the run continues.

        All processes must call this: each has its own random generators.
        """
        if not self.config.keep_files:
            return
        random_of_ranks = from_all(random_states(), self.world)
        if not self.world.is_main:
            return
        self.refuse_nonfinite_weights()
        self.restore_folder()
        self.count_time()
        family, progress = self.family, self.progress
        state = collect_state(self.step, progress, family.state(), random_of_ranks)
        content = {
            "epoch": progress.epoch - 1,  # in the middle of an epoch, the previous one is the last complete
            "best_fitness": progress.best_fitness,
            "training_results": self.reporter.text(),
            **family.checkpoint_content(progress),
            "updates": family.ema.updates,
            "optimizer": family.optimizer.state_dict(),
            "wandb_id": family.wandb_id,
            "img_size": family.test_size,
            FAMILY_KEY: family.name,
            "resume": {**state, "data": self.data_fingerprint},
        }
        if self.files.write(content, names, self.progress):
            self.saved_at = self.progress.epoch, self.progress.batch_index
            self.saved()

    def refuse_nonfinite_weights(self) -> None:
        """Weights that are not finite must not replace the last good ones: sync before a save."""
        self.sync_metrics()
        if not self.step.weights_finite():
            raise UserError(
                f"the weights are not finite after batch {self.progress.global_step - 1} (epoch "
                f"{self.progress.epoch}), though its loss was; the last good checkpoint is kept. Try a lower learning "
                "rate or --amp off"
            )
