"""The loop that keeps the machine busy: starts trainings, follows their figures, prunes, records how each one ended."""

import contextlib
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages._heartbeat import get_heartbeat_thread
from optuna.trial import Trial
from tqdm import tqdm

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.process.signals import StopRequest
from yolov7fast.core.text import counted
from yolov7fast.search import run as states
from yolov7fast.search.halving import PAUSED
from yolov7fast.search.run import ENDED, OUTPUT, Run, explain, finite, follow, read_curve, was_stopped
from yolov7fast.search.study import Trials
from yolov7fast.search.trainer import Trainer


@dataclass
class Runner:
    """folder: of the runs' folders; devices: one entry for each run that may train at a time; deadline: of
    time.monotonic(); note: called whenever a run has ended and is recorded."""

    trials: Trials
    folder: Path
    devices: Sequence[str | None]
    deadline: float
    note: Callable[[], None]
    active: dict[int, Generator[None, None, None]] = field(default_factory=dict)  # by the index of each place at work
    stopping: str = ""  # why no more runs are started

    @property
    def trainer(self) -> Trainer:
        return self.trials.trainer

    def run(self) -> int:
        """Run all trials; returns the exit code of the signal that ended it, or 0."""
        self.bar = tqdm(total=0, unit="epoch", desc="trials", dynamic_ncols=True)
        with contextlib.ExitStack() as at_end:  # after a second Ctrl-C or a fault no child survives
            at_end.callback(self.bar.close)
            at_end.callback(lambda: [at_end.callback(training.close) for training in self.active.values()])
            with StopRequest() as stop:
                while self.turn(stop):
                    time.sleep(states.LOOK_SECONDS)
            self.clear()
            return stop.exit_code

    def turn(self, stop: StopRequest) -> bool:
        """Look once at everything; False when there is nothing left to wait for."""
        if not self.stopping and (stop or time.monotonic() >= self.deadline):
            self.stopping = "stopped by Ctrl-C or SIGTERM" if stop else "the time budget is used up"
        for place, device in enumerate(self.devices):
            if place not in self.active and not self.stopping and (taken := self.trials.next()):
                self.active[place] = self.train_setting(*taken, device)
        at_work = list(self.active.items())
        for place, training in at_work:
            if next(training, self) is self:  # it has ended
                del self.active[place]
        return bool(at_work)

    # --- one setting --------------------------------------------------------------------------------------------------

    def train_setting(self, setting: int, trial: Trial, device: str | None) -> Generator[None, None, None]:
        """All runs of a setting, one after the other, then the report to the study; yields while it waits.

        Of a drawn setting the first seed decides whether the others are worth their time.
        """
        runs = self.trials.runs(setting, trial)
        try:
            with get_heartbeat_thread(trial._trial_id, self.trials.study._storage):
                for run in runs:
                    if run.status not in ENDED:
                        yield from self.train(trial, run, device)
                    self.trials.save(trial, run)
                    self.note()
                    if run.status not in ENDED:
                        return
                    if PAUSED not in trial.user_attrs:
                        self.trainer.tidy(self.folder / run.name, is_complete=run.status == states.COMPLETED)
                    if self.trials.space and runs[0].status != states.COMPLETED:
                        break
                self.trials.tell(trial, runs)
                self.clear()
        except UpdateFinishedTrialError:  # this machine was silent for too long
            tqdm.write(f"{runs[0].name}: another machine has taken it over")
        finally:
            self.show()

    def train(self, trial: Trial, run: Run, device: str | None) -> Generator[None, None, None]:
        """One training: started, or resumed from what an earlier process or an earlier rung left of it."""
        folder, code, began = self.folder / run.name, 0, time.monotonic()
        run.status, run.reason = states.RUNNING, ""
        self.learn(trial, run)
        # a runner that was ended may not have recorded it
        is_over = run.status == states.PRUNED or self.is_complete(run)
        if not is_over and not (run.curve and self.trainer.ended_itself(folder, run.params)):
            command = self.command(run, folder, device)
            self.trials.save(trial, run)
            self.show()
            try:
                look = partial(self.learn, trial, run)
                code = yield from follow(command, folder / OUTPUT, look, len(self.devices))
            except (GeneratorExit, KeyboardInterrupt):
                run.status, run.reason = states.INTERRUPTED, "ended at once"
                self.trials.save(trial, run)
                self.note()
                raise
            finally:
                run.seconds += time.monotonic() - began
            self.learn(trial, run)  # what an ended process has written is complete
        if run.status != states.PRUNED:
            run.status, run.reason = self.verdict(run, code)
        is_paused = PAUSED in trial.user_attrs
        found = "" if run.final.map is None else f", mAP@.5:.95 {run.final.map:.4g}"
        why = f": {run.reason}" if run.reason and not is_paused else ""
        tqdm.write(f"{run.name} {run.reason if is_paused else run.status}{found}{why}")

    def command(self, run: Run, folder: Path, device: str | None) -> list[str]:
        """What resumes a run where it has a checkpoint, or else starts it anew."""
        flag, path = "--resume", folder
        if self.can_resume(folder):
            tqdm.write(f"{run.name} resumes after {counted(len(run.curve), 'epoch')}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            run.curve = []
            flag, path = "--config", folder / "trial.yaml"
            content = self.trainer.run_file(run.params, run.seed, folder)
            write_atomically(path, yaml.safe_dump(content, sort_keys=False))
        return [*self.trainer.command, flag, str(path), *([] if device is None else ["--device", device])]

    def can_resume(self, folder: Path) -> bool:
        return any((folder / name).is_file() for name in self.trainer.checkpoints)

    def learn(self, trial: Trial, run: Run) -> bool:
        """Epochs that the training has finished since the last look, each judged once, in order; whether to stop."""
        known = run.curve[-1].epoch if run.curve else -1
        fresh = [point for point in read_curve(self.folder / run.name) if point.epoch > known]
        if fresh and run.status != states.PRUNED:
            for point in fresh:
                run.curve.append(point)
                self.bar.update()
                if point.map is not None and not self.is_complete(run):
                    run.reason = self.trials.judge(trial, run, point)
                if run.reason:
                    run.status = states.PRUNED
                    break  # later epochs do not count: the table is the same on a slower machine
            self.trials.save(trial, run)
            self.show()
        return run.status == states.PRUNED or bool(self.stopping)

    def is_complete(self, run: Run) -> bool:
        return bool(run.curve) and run.curve[-1].epoch + 1 >= self.trainer.epochs(run.params)

    def verdict(self, run: Run, code: int) -> tuple[str, str]:
        """Status and reason of a run whose process has ended."""
        asked = code != 0 and (self.stopping or was_stopped(code))
        if asked and not self.is_complete(run):
            return states.INTERRUPTED, self.stopping or "its process was stopped from outside"
        if code != 0 and not asked:
            return states.FAILED, explain(code, self.folder / run.name / OUTPUT)
        if not run.curve:
            return states.FAILED, "ended without any result"
        if not finite(run.final_loss):
            return states.FAILED, "its last loss is not finite"
        return states.COMPLETED, ""

    def clear(self) -> None:
        """Of paused runs that cannot be promoted any more, the best weights alone are kept, too."""
        for run in self.trials.out():
            if self.can_resume(folder := self.folder / run.name):
                self.trainer.tidy(folder, is_complete=False)

    def show(self) -> None:
        """Epochs of this process, done and about to come; promotions add to them."""
        left, epochs = self.trials.left(), self.trainer.epochs({})
        self.bar.total = self.bar.n + left * (*self.trials.halving.rungs, epochs)[0]
        self.bar.set_postfix_str(f"{len(self.active)} running, {left} trials left")
