"""The loop that keeps the machine busy: starts trainings, follows their figures, prunes, records how each one ended."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import yaml
from optuna.exceptions import UpdateFinishedTrialError
from tqdm import tqdm

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.process.signals import StopRequest
from yolov7fast.search import run as states
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

    def __init__(self, run: Run, command: Sequence[str], folder: Path, device: str | None, places: int):
        """places: how many trainings share the machine."""
        self.run, self.device, self.began = run, device, time.monotonic()
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
        code = self.process.poll()
        if code is not None:
            self.output.close()
        return code

    def ask_to_stop(self) -> None:
        """It finishes its step, writes a checkpoint and ends."""
        if self.asked is None:
            self.asked = time.monotonic()
            if self.process.poll() is None:
                self.process.terminate()

    def kill(self) -> None:
        """End it and all it has started."""
        with contextlib.suppress(ProcessLookupError):
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
        self.active: list[Training] = []
        self.shown = ""
        self.stopping = ""  # why no more runs are started

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
        late = self.deadline is not None and time.monotonic() >= self.deadline
        if not self.stopping and (stop or late):
            self.stopping = "stopped by Ctrl-C or SIGTERM" if stop else "the time budget is used up"
            for training in self.active:
                training.ask_to_stop()
        while not self.stopping and len(self.active) < len(self.devices):
            run = self.trials.next()
            if run is None:
                break
            with self.unless_taken_over(run):
                self.begin(run)
        is_busy = bool(self.active)
        for training in list(self.active):
            with self.unless_taken_over(training.run):
                self.follow(training)
        self.trials.beat()
        self.show()
        return is_busy

    @contextlib.contextmanager
    def unless_taken_over(self, run: Run) -> Iterator[None]:
        """Where another machine has a trial now, since this one was silent for too long: leave it to that one."""
        try:
            yield
        except UpdateFinishedTrialError:
            for training in [training for training in self.active if training.run is run]:
                training.kill()
                self.active.remove(training)
            self.trials.forget(run)
            tqdm.write(f"{run.name}: another machine has taken it over")

    # --- one run ------------------------------------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        """Start a run, or resume what an earlier process left of it."""
        folder = self.folder / run.name
        self.learn(run)
        if run.stop or self.is_complete(run) or (run.curve and self.trainer.ended_itself(folder, run.params)):
            self.end(run, *self.verdict(run, code=0))  # its runner was ended before it could record this
            return
        device = next(device for device in self.devices if self.is_free(device))
        if any((folder / name).is_file() for name in self.trainer.checkpoints):
            command = self.trainer.training("--resume", folder, device)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            run.curve = []
            run_file = folder / "trial.yaml"
            content = self.trainer.run_file(run.params, run.seed, folder)
            write_atomically(run_file, yaml.safe_dump(content, sort_keys=False))
            command = self.trainer.training("--config", run_file, device)
        run.status, run.reason = states.RUNNING, ""
        self.trials.save(run)
        self.active.append(Training(run, command, folder, device, len(self.devices)))

    def is_free(self, device: str | None) -> bool:
        """Whether fewer runs train on this device than there are places for."""
        return sum(training.device == device for training in self.active) < list(self.devices).count(device)

    def follow(self, training: Training) -> None:
        """Take in new epochs; record the end."""
        run, code = training.run, training.poll()  # before its files: what an ended process has written is complete
        self.learn(run)
        if run.stop:
            training.ask_to_stop()
        if code is None:
            return
        self.active.remove(training)
        run.seconds += time.monotonic() - training.began
        self.end(run, *self.verdict(run, code))

    def learn(self, run: Run) -> None:
        """Epochs that the training has finished since the last look, each judged once, in order."""
        known = run.curve[-1].epoch if run.curve else -1
        fresh = [point for point in read_curve(self.folder / run.name) if point.epoch > known]
        for point in fresh:
            if run.stop:
                return  # epochs that came after the decision do not count: the table is the same on a slower machine
            run.curve.append(point)
            if point.map is not None and point.epoch + 1 < self.trainer.epochs(run.params):
                run.stop = self.trials.judge(run, point)
        if fresh:
            self.trials.save(run)

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

    def end(self, run: Run, status: str, reason: str) -> None:
        """Tidy up, record, then report to the study: whatever is cut off here is done again by --resume."""
        if status in states.ENDED:
            self.trainer.tidy(self.folder / run.name, is_complete=status == states.COMPLETED)
        run.status, run.reason = status, reason
        self.trials.save(run)
        if status in states.ENDED:
            self.trials.advance(run.setting, run.params)
        self.note()
        found = "" if run.final_map is None else f", mAP@.5:.95 {run.final_map:.4g}"
        tqdm.write(f"{run.name} {status}{found}{f': {run.reason}' if run.reason else ''}")

    def end_children(self) -> None:
        """After a second Ctrl-C or a fault: no child survives, and the table says so."""
        ended, self.active = self.active, []
        for training in ended:
            training.kill()
        for training in ended:
            training.run.status, training.run.reason = states.INTERRUPTED, "ended at once"
            with self.unless_taken_over(training.run):
                self.trials.save(training.run)
        if ended:
            self.note()

    # --- progress -----------------------------------------------------------------------------------------------------

    def show(self) -> None:
        runs, total = self.trials.ordered, self.trials.total
        sizes = [self.trainer.epochs(run.params) for run in runs]
        done = [size if run.status in states.ENDED else len(run.curve) for run, size in zip(runs, sizes)]
        self.bar.total = sum(sizes) + (total - len(runs)) * (sizes[-1] if sizes else self.trainer.epochs({}))
        self.bar.n = sum(done)
        best = max((run.final_map for run in runs if run.final_map is not None), default=None)
        found = "" if best is None else f", best mAP {best:.3f}"
        ended = sum(run.status in states.ENDED for run in runs)
        text = f"{ended}/{total} ended, {len(self.active)} running{found}"
        if (state := f"{self.bar.n} {text}") != self.shown:  # in a log file every refresh is a line
            self.shown = state
            self.bar.set_postfix_str(text)
