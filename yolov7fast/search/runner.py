"""Keeps the machine busy: starts trainings, follows their figures, records how each one ended."""

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import yaml
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages._heartbeat import get_heartbeat_thread
from optuna.trial import Trial
from tqdm import tqdm

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.process import child
from yolov7fast.core.process.signals import ASKING, StopRequest
from yolov7fast.core.text import counted
from yolov7fast.search import run as training
from yolov7fast.search.halving import PAUSED
from yolov7fast.search.report import write_csv
from yolov7fast.search.run import COMPLETED, ENDED, FAILED, INTERRUPTED, PRUNED, RUNNING, Run
from yolov7fast.search.storage import HEARTBEAT_SECONDS
from yolov7fast.search.study import Trials


class Runner:
    """Works on the trials of a study, in a thread for each training."""

    def __init__(self, trials: Trials, table: Path, devices: Sequence[str | None], deadline: float):
        """table: the CSV, beside the runs' folders; devices: one for each place; deadline: of time.monotonic()."""
        self.trials, self.trainer, self.table, self.folder = trials, trials.trainer, table, table.parent
        self.devices, self.deadline, self.writing = devices, deadline, threading.Lock()
        self.stop, self.fault = StopRequest(), ""  # fault: why trainings are killed
        self.bar = tqdm(total=0, unit="epoch", desc="trials", dynamic_ncols=True)

    @property
    def stopping(self) -> str:
        """Why no more runs are started, and those at work are to end."""
        if self.fault or self.stop:
            return self.fault or "stopped by Ctrl-C or SIGTERM"
        return "the time budget is used up" if time.monotonic() >= self.deadline else ""

    def run(self) -> int:
        """Run all trials; returns the exit code of the signal that ended it, or 0."""
        free, at_work = list(self.devices), {}
        with self.bar, self.stop, ThreadPoolExecutor(len(free)) as pool:
            try:
                while True:
                    while free and not self.stopping and (taken := self.trials.next()):
                        device = free.pop(0)
                        at_work[pool.submit(self.train_setting, *taken, device)] = device
                    self.clear()
                    if not at_work:
                        break
                    for ended in wait(at_work, HEARTBEAT_SECONDS, FIRST_COMPLETED).done:
                        free.append(at_work.pop(ended))
                        ended.result()
            except KeyboardInterrupt:  # the second Ctrl-C
                self.fault = "ended at once"
            except BaseException:  # no other training outlives it
                self.fault = "another trial ended by a fault"
                raise
        return self.stop.exit_code

    # --- one setting --------------------------------------------------------------------------------------------------

    def train_setting(self, setting: int, trial: Trial, device: str | None) -> None:
        """All runs of a setting, one after the other, then the report to the study.

        Of a drawn setting the first seed decides whether the others are worth their time.
        """
        runs = self.trials.runs(setting, trial)
        try:
            with get_heartbeat_thread(trial._trial_id, self.trials.study._storage):
                for run in runs:
                    if run.status not in ENDED:
                        self.train(trial, run, device)
                    self.trials.save(trial, run)
                    with self.writing:  # so that no older table replaces a newer one
                        write_csv(self.table, self.trials.begun(), self.trainer)
                    if run.status not in ENDED:
                        return
                    if PAUSED not in trial.user_attrs:
                        self.trainer.tidy(self.folder / run.name, is_complete=run.status == COMPLETED)
                    if self.trials.space and runs[0].status != COMPLETED:
                        break
                self.trials.tell(trial, runs)
        except UpdateFinishedTrialError:  # this machine was silent for too long
            tqdm.write(f"{runs[0].name}: another machine has taken it over")

    def train(self, trial: Trial, run: Run, device: str | None) -> None:
        """One training: started, or resumed from what an earlier process or an earlier rung left of it."""
        code, began = 0, time.monotonic()
        run.status, run.reason = RUNNING, ""

        def look() -> float | None:
            self.learn(trial, run)
            is_to_end = run.status == PRUNED or self.stopping
            return None if not is_to_end else 0.0 if self.fault else child.GRACE_SECONDS

        look()  # a runner that was ended may not have recorded it
        if run.status != PRUNED and not self.is_complete(run):
            output = self.folder / run.name / child.OUTPUT
            code = child.follow(self.command(run, device), output, look, len(self.devices))
            run.seconds += time.monotonic() - began
            look()  # what an ended process has written is complete
        if run.status != PRUNED:
            run.status, run.reason = self.verdict(run, code)
        found = "" if run.final.map is None else f", mAP@.5:.95 {run.final.map:.4g}"
        tqdm.write(f"{run.name} {run.status}{found}{run.reason and f': {run.reason}'}")

    def command(self, run: Run, device: str | None) -> list[str]:
        """What starts a run, or resumes it from its checkpoint; one that has ended itself ends again."""
        folder = self.folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        content = self.trainer.run_file(run.params, run.seed, folder)
        write_atomically(folder / "trial.yaml", yaml.safe_dump(content, sort_keys=False))
        if run.curve:
            tqdm.write(f"{run.name} resumes after {counted(run.epochs, 'epoch')}")
        flags = ["--config", str(folder / "trial.yaml"), "--resume", "auto"]
        return [*self.trainer.command, *flags, *([] if device is None else ["--device", device])]

    def learn(self, trial: Trial, run: Run) -> None:
        """Epochs that the training has finished since the last look, each judged once, in order.

        Those behind the one that it is stopped after do not count: the table is the same on a slower machine.
        """
        for point in training.read_curve(self.folder / run.name):
            if point.epoch >= run.epochs and run.status != PRUNED:
                run.curve.append(point)
                if reason := self.trials.judge(trial, run, point):
                    run.status, run.reason = PRUNED, reason
                self.trials.save(trial, run)
                left, rungs = self.trials.left(), (*self.trials.halving.rungs, self.trainer.epochs({}))
                self.bar.total = self.bar.n + 1 + max(0, left * rungs[0] - run.epochs)  # promotions add to it
                self.bar.set_postfix_str(f"{left} trials left", refresh=False)
                self.bar.update()

    def is_complete(self, run: Run) -> bool:
        return run.epochs >= self.trainer.epochs(run.params)

    def verdict(self, run: Run, code: int) -> tuple[str, str]:
        """Status and reason of a run whose process has ended."""
        was_asked = self.stopping or -code in ASKING or code - 128 in ASKING  # with or without the time to say so
        if code and was_asked and not self.is_complete(run):
            return INTERRUPTED, self.stopping or "its process was stopped from outside"
        if code and not was_asked:
            return FAILED, child.explain(code, self.folder / run.name / child.OUTPUT)
        if not run.curve:
            return FAILED, "ended without any result"
        is_finite = math.isfinite(run.curve[-1].loss)
        return (COMPLETED, "") if is_finite else (FAILED, "its last loss is not finite")

    def clear(self) -> None:
        """Of paused runs that cannot be promoted any more, the best weights alone are kept, too."""
        for run in self.trials.out():
            self.trainer.tidy(self.folder / run.name, is_complete=False)
