"""The loop that keeps the machine busy: starts trainings, follows their figures, prunes, records how each one ended."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import yaml
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial
from tqdm import tqdm

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.process.signals import StopRequest
from yolov7fast.core.text import counted
from yolov7fast.search import run as states
from yolov7fast.search.halving import PAUSED
from yolov7fast.search.run import OUTPUT, Run, explain, finite, read_curve, was_stopped
from yolov7fast.search.study import Trials
from yolov7fast.search.trainer import Trainer

LOOK_SECONDS = 0.2
GRACE_SECONDS = 60.0  # after being asked to stop, a training has so long to finish its step and its checkpoint
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


class Training:
    """A run that is training now: a process that leads its own session, so Ctrl-C reaches it only through its parent.

    On Linux the kernel kills it when the parent dies, however that happens; a killed training loses nothing but time.
    """

    def __init__(self, command: Sequence[str], folder: Path, places: int):
        """places: how many trainings share the machine."""
        self.began = time.monotonic()
        self.asked: float | None = None  # when it was asked to stop
        self.output = (folder / OUTPUT).open("ab")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=_environment(places),
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,
        )

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        if self.asked is not None and time.monotonic() - self.asked > GRACE_SECONDS:
            self.kill()
        return self.process.poll()

    def ask_to_stop(self) -> None:
        """It finishes its step, writes a checkpoint and ends."""
        if self.asked is None:
            self.asked = time.monotonic()
            if self.process.poll() is None:
                self.process.terminate()

    def kill(self) -> None:
        """End it and all it has started, where it has not ended itself."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.output.close()


def _environment(places: int) -> dict[str, str]:
    """Trainings side by side share the cores; a number of threads that the user has set stays."""
    threads = max(1, (os.cpu_count() or 1) // places)
    shared = {"OMP_NUM_THREADS": str(threads)} if places > 1 else {}
    return {**shared, **os.environ, "PYTHONUNBUFFERED": "1"}


def _die_with(parent: int):
    """What a child does between fork and exec: ask the kernel to be killed when its parent ends."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we could ask
            os._exit(1)

    return ask


class Runner:
    def __init__(
        self,
        trainer: Trainer,
        trials: Trials,
        folder: Path,
        devices: Sequence[str | None],
        deadline: float | None,
        note: Callable[[], None],
    ):
        """devices: one entry for each run that may train at a time; deadline: of time.monotonic().

        note: called whenever a run has ended and is recorded.
        """
        self.trainer, self.trials, self.folder, self.devices, self.note = trainer, trials, folder, devices, note
        self.deadline = deadline
        self.active: dict[int, Generator[None, None, None]] = {}  # what each place, by its index, works on
        self.stopping = ""  # why no more runs are started

    def run(self) -> int:
        """Run all trials; returns the exit code of the signal that ended it, or 0."""
        self.bar = tqdm(total=0, unit="epoch", desc="trials", dynamic_ncols=True)
        with contextlib.ExitStack() as at_end:
            at_end.callback(self.bar.close)
            at_end.callback(self.end_children)
            with StopRequest() as stop:
                while self.turn(stop):
                    time.sleep(LOOK_SECONDS)
            self.clear()
            return stop.exit_code

    def turn(self, stop: StopRequest) -> bool:
        """Look once at everything; False when there is nothing left to wait for."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        if not self.stopping and (stop or late):
            self.stopping = "stopped by Ctrl-C or SIGTERM" if stop else "the time budget is used up"
        for place, device in enumerate(self.devices):
            if place not in self.active and not self.stopping and (taken := self.trials.next()):
                self.active[place] = self.train_setting(*taken, device)
        at_work = list(self.active.items())
        for place, training in at_work:
            if next(training, self) is self:  # it has ended
                del self.active[place]
        self.trials.beat()
        return bool(at_work)

    def end_children(self) -> None:
        """After a second Ctrl-C or a fault: no child survives, and the table says so."""
        with contextlib.ExitStack() as at_end:
            for training in self.active.values():
                at_end.callback(training.close)

    # --- one setting --------------------------------------------------------------------------------------------------

    def train_setting(self, setting: int, trial: Trial, device: str | None) -> Generator[None, None, None]:
        """All runs of a setting, one after the other, then the report to the study; yields while it waits.

        Of a drawn setting the first seed decides whether the others are worth their time.
        """
        runs = self.trials.runs(setting, trial)
        try:
            for run in runs:
                if run.status not in states.ENDED:
                    yield from self.train(trial, run, device)
                self.trials.save(trial, run)
                self.note()
                if run.status not in states.ENDED:
                    return
                if self.trials.rules.space and runs[0].status != states.COMPLETED:
                    break
            self.trials.tell(trial, runs)
        except UpdateFinishedTrialError:  # this machine was silent for too long
            tqdm.write(f"{runs[0].name}: another machine has taken it over")
        else:
            self.clear()
        finally:
            self.show()

    def train(self, trial: Trial, run: Run, device: str | None) -> Generator[None, None, None]:
        """One training: started, or resumed from what an earlier process or an earlier rung left of it."""
        folder, code = self.folder / run.name, 0
        self.learn(trial, run)
        is_over = run.stop or self.is_complete(run)  # its runner was ended before it could record this
        if not is_over and not (run.curve and self.trainer.ended_itself(folder, run.params)):
            command = self.command(run, folder, device)
            run.status, run.reason = states.RUNNING, ""
            self.trials.save(trial, run)
            training = Training(command, folder, len(self.devices))
            try:
                self.show()
                while (code := training.poll()) is None:
                    self.learn(trial, run)
                    if run.stop or self.stopping:
                        training.ask_to_stop()
                    yield
                self.learn(trial, run)  # what an ended process has written is complete
            except (GeneratorExit, KeyboardInterrupt):
                training.kill()
                run.status, run.reason = states.INTERRUPTED, "ended at once"
                self.trials.save(trial, run)
                self.note()
                raise
            finally:
                training.kill()
                run.seconds += time.monotonic() - training.began
        is_paused = PAUSED in trial.user_attrs
        run.status, run.reason = self.verdict(run, code)
        if run.status in states.ENDED and not is_paused:
            self.trainer.tidy(folder, is_complete=run.status == states.COMPLETED)
        found = "" if run.final_map is None else f", mAP@.5:.95 {run.final_map:.4g}"
        why = f": {run.reason}" if run.reason and not is_paused else ""
        tqdm.write(f"{run.name} {run.reason if is_paused else run.status}{found}{why}")

    def command(self, run: Run, folder: Path, device: str | None) -> list[str]:
        """What resumes a run where it has a checkpoint, or else starts it anew."""
        if self.can_resume(folder):
            tqdm.write(f"{run.name} resumes after {counted(len(run.curve), 'epoch')}")
            return self.trainer.training("--resume", folder, device)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run.curve = []
        run_file = folder / "trial.yaml"
        content = self.trainer.run_file(run.params, run.seed, folder)
        write_atomically(run_file, yaml.safe_dump(content, sort_keys=False))
        return self.trainer.training("--config", run_file, device)

    def can_resume(self, folder: Path) -> bool:
        return any((folder / name).is_file() for name in self.trainer.checkpoints)

    def learn(self, trial: Trial, run: Run) -> None:
        """Epochs that the training has finished since the last look, each judged once, in order."""
        known = run.curve[-1].epoch if run.curve else -1
        fresh = [point for point in read_curve(self.folder / run.name) if point.epoch > known]
        if run.stop or not fresh:
            return
        for point in fresh:
            run.curve.append(point)
            self.bar.update()
            if point.map is not None and not self.is_complete(run):
                run.stop = self.trials.judge(trial, run, point)
            if run.stop:
                break  # epochs that came after the decision do not count: the table is the same on a slower machine
        self.trials.save(trial, run)
        self.show()

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
            return states.FAILED, explain(code, self.folder / run.name)
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
        """Epochs of this process, done and to come; promotions add to them."""
        self.bar.total = self.bar.n + self.trials.epochs_left()
        self.bar.set_postfix_str(f"{len(self.active)} running, {self.trials.left()} trials left")
