"""The loop that keeps the machine busy: starts trials, follows their figures, prunes, records how each one ended."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import yaml
from tqdm import tqdm

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.process.signals import StopRequest
from yolov7fast.search import ledger as states
from yolov7fast.search.children import Child, explain, read_curve, was_stopped
from yolov7fast.search.ledger import Ledger, Point, Run, finite
from yolov7fast.search.trainer import Trainer

LOOK_SECONDS = 0.2
GRACE_SECONDS = 60.0  # after being asked to stop, a training has so long to finish its step and its checkpoint


class Source(Protocol):
    """Where trials come from: a list, or a search that learns from those that have ended."""

    @property
    def total(self) -> int:
        """Runs in all, as far as is known."""
        ...

    def next(self) -> Run | None:
        """The next run to start or to resume; None: none at present."""
        ...

    def judge(self, run: Run, point: Point) -> str:
        """Why this run should end after this epoch, or ''."""
        ...

    def ended(self, run: Run) -> None:
        """A run has its final status."""
        ...

    def elsewhere(self) -> list[Run]:
        """Runs of the same search that other machines have ended."""
        ...

    def left_elsewhere(self) -> list[int]:
        """Numbers of the settings that other machines have drawn and not ended."""
        ...


@dataclass
class Active:
    """A run that is training now."""

    run: Run
    child: Child
    device: str | None
    began: float = field(default_factory=time.monotonic)
    asked: float | None = None  # when it was asked to stop

    def ask_to_stop(self) -> None:
        if self.asked is None:
            self.asked = time.monotonic()
            self.child.ask_to_stop()

    def insist(self) -> None:
        """End a training that was asked to stop and does not."""
        if self.asked is not None and time.monotonic() - self.asked > GRACE_SECONDS:
            self.child.kill()


@dataclass(frozen=True)
class Settings:
    """devices: one entry for each trial that may run at a time; deadline: of time.monotonic()."""

    devices: Sequence[str | None] = (None,)
    threshold: float = 0.0
    deadline: float | None = None


class Runner:
    def __init__(
        self,
        trainer: Trainer,
        ledger: Ledger,
        source: Source,
        settings: Settings,
        note: Callable[[], None],
    ):
        """note: called whenever a run has ended and is recorded."""
        self.trainer, self.ledger, self.source, self.settings, self.note = trainer, ledger, source, settings, note
        self.active: list[Active] = []
        self.shown = ""
        self.stopping = ""  # why no more trials are started

    def run(self) -> int:
        """Run all trials; returns the exit code of the signal that ended it, or 0."""
        self.bar = tqdm(total=0, unit="epoch", desc="trials", dynamic_ncols=True)
        try:
            with StopRequest() as stop:
                while self.turn(stop):
                    time.sleep(LOOK_SECONDS)
            return stop.exit_code
        finally:
            self.end_children()
            self.bar.close()

    def turn(self, stop: StopRequest) -> bool:
        """Look once at everything; False when there is nothing left to wait for."""
        self.look_for_the_end(stop)
        while not self.stopping and len(self.active) < len(self.settings.devices):
            run = self.source.next()
            if run is None:
                break
            self.begin(run)
        busy = bool(self.active)
        for active in list(self.active):
            self.follow(active)
        self.show()
        return busy

    def look_for_the_end(self, stop: StopRequest) -> None:
        late = self.settings.deadline is not None and time.monotonic() >= self.settings.deadline
        if not self.stopping and (stop or late):
            self.stopping = "stopped by Ctrl-C or SIGTERM" if stop else "the time budget is used up"
            for active in self.active:
                active.ask_to_stop()

    # --- one trial ----------------------------------------------------------------------------------------------------

    def folder(self, run: Run) -> Path:
        return self.ledger.folder / run.name

    def begin(self, run: Run) -> None:
        """Start a run, or go on with what an earlier process left of it."""
        folder = self.folder(run)
        self.learn(run)
        if run.stop or self.is_complete(run) or (run.curve and self.trainer.ended_itself(folder, run.params)):
            self.end(run, *self.verdict(run, code=0))  # its runner was ended before it could record this
            return
        device = next(d for d in self.settings.devices if self.free(d))
        if any((folder / name).is_file() for name in self.trainer.checkpoints):
            command = self.trainer.resume(folder, device)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            run.curve = []
            run_file = folder / "trial.yaml"
            content = self.trainer.run_file(run.params, run.seed, folder)
            write_atomically(run_file, yaml.safe_dump(content, sort_keys=False))
            command = self.trainer.start(run_file, device)
        run.status, run.reason = states.RUNNING, ""
        self.ledger.save()
        self.active.append(Active(run, Child(command, folder, self.environment()), device))

    def free(self, device: str | None) -> bool:
        """Whether fewer trials train on this device than there are places for."""
        return sum(a.device == device for a in self.active) < list(self.settings.devices).count(device)

    def environment(self) -> dict[str, str]:
        """Trials side by side share the cores; a number of threads that the user has set stays."""
        threads = max(1, (os.cpu_count() or 1) // len(self.settings.devices))
        shared = {"OMP_NUM_THREADS": str(threads)} if len(self.settings.devices) > 1 else {}
        return {**shared, **os.environ, "PYTHONUNBUFFERED": "1"}

    def follow(self, active: Active) -> None:
        """Take in new epochs; record the end."""
        active.insist()
        run, code = active.run, active.child.poll()  # before its files: what an ended child has written is complete
        self.learn(run)
        if run.stop:
            active.ask_to_stop()
        if code is None:
            return
        self.active.remove(active)
        run.seconds += time.monotonic() - active.began
        self.end(run, *self.verdict(run, code))

    def learn(self, run: Run) -> None:
        """Epochs that the training has finished since the last look, each judged once, in order."""
        known = run.curve[-1].epoch if run.curve else -1
        fresh = [point for point in read_curve(self.folder(run)) if point.epoch > known]
        for point in fresh:
            if run.stop:
                return  # epochs that came after the decision do not count: the table is the same on a slower machine
            run.curve.append(point)
            if point.map is not None and point.epoch + 1 < self.trainer.epochs(run.params):
                run.stop = self.source.judge(run, point) or self.behind(run, point.epoch)
        if fresh:
            self.ledger.save()

    def behind(self, run: Run, epoch: int) -> str:
        """--early-stop-threshold: from half of its epochs on, under the threshold that another trial has passed."""
        threshold, best = self.settings.threshold, run.best_map50_by(epoch) or 0.0
        if not threshold or 2 * (epoch + 1) < self.trainer.epochs(run.params) or best >= threshold:
            return ""
        others = [other.best_map50_by(epoch) or 0.0 for other in self.ledger.ordered if other is not run]
        if max(others, default=0.0) < threshold:
            return ""
        return f"mAP@.5 {best:.3f} after epoch {epoch}, under {threshold:g}, which another trial has passed by then"

    def is_complete(self, run: Run) -> bool:
        return bool(run.curve) and run.curve[-1].epoch + 1 >= self.trainer.epochs(run.params)

    def verdict(self, run: Run, code: int) -> tuple[str, str]:
        """Status and reason of a run whose process has ended."""
        if run.stop:
            return states.PRUNED, run.stop
        asked = code != 0 and (self.stopping or was_stopped(code))
        if asked and not self.is_complete(run):
            return states.INTERRUPTED, self.stopping or "its process was stopped from outside"
        if code != 0 and not asked:
            return states.FAILED, explain(code, self.folder(run))
        if not run.curve:
            return states.FAILED, "ended without any result"
        if not finite(run.final_loss):
            return states.FAILED, "its last loss is not finite"
        return states.COMPLETED, ""

    def end(self, run: Run, status: str, reason: str = "") -> None:
        """Record first, then tell the source, then tidy up: whatever is cut off here is done again by --resume."""
        run.status, run.reason = status, reason or run.stop
        self.ledger.save()
        if status in states.ENDED:
            self.source.ended(run)
            self.trainer.tidy(self.folder(run), is_complete=status == states.COMPLETED)
        self.note()
        found = "" if run.final_map is None else f", mAP@.5:.95 {run.final_map:.4g}"
        tqdm.write(f"{run.name} {status}{found}{f': {run.reason}' if run.reason else ''}")

    def end_children(self) -> None:
        """After a second Ctrl-C or a fault: no child survives, and the table says so."""
        for active in self.active:
            active.child.kill()
            active.run.status = states.INTERRUPTED
            active.run.reason = "ended at once"
        if self.active:
            self.active.clear()
            self.ledger.save()
            self.note()

    # --- progress -----------------------------------------------------------------------------------------------------

    def show(self) -> None:
        runs = self.ledger.ordered
        sizes = [self.trainer.epochs(run.params) for run in runs]
        done = [size if run.status in states.ENDED else len(run.curve) for run, size in zip(runs, sizes)]
        unknown = self.source.total - len(runs)
        self.bar.total = sum(sizes) + unknown * (sizes[-1] if sizes else self.trainer.epochs({}))
        self.bar.n = sum(done)
        best = max((run.final_map for run in runs if run.final_map is not None), default=None)
        found = "" if best is None else f", best mAP {best:.3f}"
        ended = sum(run.status in states.ENDED for run in runs)
        text = f"{ended}/{self.source.total} ended, {len(self.active)} running{found}"
        if (state := f"{self.bar.n} {text}") != self.shown:  # in a log file every refresh is a line
            self.shown = state
            self.bar.set_postfix_str(text)
