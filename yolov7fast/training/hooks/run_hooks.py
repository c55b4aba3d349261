"""`--mirror`, `--on-save` and `--on-end` of a run: threads that the training never waits for, and the actions at its
end."""

import logging
import shutil
import signal
from pathlib import Path
from subprocess import DEVNULL
from threading import Event
from types import TracebackType

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.process.background import NewestFirst, run_limited
from yolov7fast.core.process.output import RunOutput
from yolov7fast.core.process.signals import words
from yolov7fast.core.text import printable
from yolov7fast.evaluation.eval_result import MAP
from yolov7fast.reports.run_status import MIRROR_FOLDER
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.config import TrainConfig
from yolov7fast.training.hooks.destinations import CopyError
from yolov7fast.training.hooks.mirror import Mirror, TakenOver
from yolov7fast.training.logging.page import FAILED, STOPPED
from yolov7fast.training.trainer import Trainer

log = logging.getLogger(__name__)
HOOK_LOG = "hooks.log"  # in the run's folder: the output of the commands
END_SECONDS = 600.0  # at the end: for the last copy, for the last --on-save command and for --on-end each
VERIFIED, NOT_VERIFIED = "verified", "not verified"  # MIRROR of --on-end


class RunHooks:
    """The hooks of the main process of a run. As a context manager it waits, at the end of a started run, for the last
    copy and the last --on-save command, and then runs --on-end."""

    def __init__(self, config: TrainConfig, output: RunOutput | None):
        self.config, self.run_dir, self.output = config, Path(config.save_dir), output
        self.trainer: Trainer | None = None
        self.mirror: Mirror | None = None
        self.copies: NewestFirst | None = None
        self.commands: NewestFirst | None = None
        self.problem = ""  # why the newest copy failed
        self.ended: tuple[str, str] = (FAILED, "")  # status and message, unless an error says otherwise

    # --- during the run -----------------------------------------------------------------------------------------------

    def begin(self, trainer: Trainer, resumed: bool) -> None:
        """Claim the destination, so that a mistake is reported before the first epoch, and start the threads."""
        if self.config.mirror:
            for left in (self.run_dir / MIRROR_FOLDER).glob("copy*"):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            self.mirror = Mirror(self.config.mirror, self.run_dir, trainer.files.last)
            try:
                self.mirror.claim()
            except TakenOver as error:
                raise UserError(f"--mirror: {error}: choose another destination, or resume that run") from None
            except CopyError as error:
                if not resumed:
                    raise UserError(f"--mirror {self.config.mirror} cannot be written: {error}") from None
                log.warning("--mirror: %s; training continues, copies are tried again", error)
            self.copies = NewestFirst(self._copy, lambda item: shutil.rmtree(item[0], ignore_errors=True), "mirror")
            self.mirror.place.stopped = self.copies.stopped
        if self.config.on_save:
            self.commands = NewestFirst(self._on_save, name="on-save")
        self.trainer = trainer
        trainer.saved = self.saved

    def saved(self) -> None:
        """Start the copy and the command for a new checkpoint, without waiting for them."""
        self._submit_copy()
        if self.commands is not None:
            self.commands.submit(self._environment())

    def _submit_copy(self) -> None:
        if self.mirror is not None and self.copies is not None and self.trainer is not None:
            try:
                self.copies.submit(self.mirror.snapshot(self.trainer.progress))
            except OSError as error:
                log.warning("--mirror: %s; training continues, this checkpoint is not copied", error)
                self.problem = str(error)

    def _copy(self, snapshot: tuple[Path, Progress]) -> bool:
        """Copy a snapshot, in the mirror's thread; returns whether no further attempt is needed."""
        assert self.mirror is not None and self.trainer is not None
        before = self.problem
        try:
            self.mirror.copy(*snapshot)
        except (CopyError, UserError, OSError, ValueError) as error:
            self.problem, final = one_line(error, 300), isinstance(error, TakenOver)
            if not before:
                more = "no more copies are made" if final else "the copy is tried again"
                log.warning("--mirror: %s; training continues, %s", self.problem, more)
            return final
        self.problem = ""
        if before:
            log.info("--mirror: %s can be written again", self.config.mirror)
        where = f"epoch {snapshot[1].epoch}, iteration {snapshot[1].global_step}"
        if self.output is not None:
            self.output.note(f"copied to {self.config.mirror} and verified: {where}")
        if page := self.trainer.reporter.page:
            page.copied(f"{where}, to {self.config.mirror}")
        return True

    def _environment(self) -> dict[str, str]:
        """The environment variables of commands."""
        assert self.trainer is not None
        progress = self.trainer.progress
        best = progress.best_metrics.get(MAP)
        return {
            "RUN_DIR": str(self.run_dir.resolve()),
            "CHECKPOINT": str(self.trainer.files.last.resolve()),
            "EPOCH": str(progress.epoch),
            "STEP": str(progress.global_step),
            "BEST_MAP": "" if best is None else f"{best:.6g}",
        }

    def _on_save(self, environment: dict[str, str]) -> bool:
        """Run --on-save, in its thread; a command that hangs is killed only at the end of the run."""
        assert self.commands is not None
        self._run("--on-save", self.config.on_save, environment, float("inf"), self.commands.stopped)
        return True

    def _run(
        self, flag: str, command: str, environment: dict[str, str], seconds: float, stopped: Event | None = None
    ) -> None:
        """Run a command of the user and report how it failed, if it did."""
        try:
            with (self.run_dir / HOOK_LOG).open("ab") as output:
                code = run_limited(command, seconds, output, stopped, environment)
        except OSError:  # a full disk, a removed folder
            code = run_limited(command, seconds, DEVNULL, stopped, environment)
        if code:
            log.warning("the %s command ended with code %d; its output is in %s", flag, code, self.run_dir / HOOK_LOG)
        elif code is None:
            log.warning("the %s command did not end and was killed", flag)

    # --- at its end ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> "RunHooks":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self.trainer is None:
            return
        status, message = self.ended if error is None else ending(error)
        try:
            self._wait()
        except KeyboardInterrupt:
            log.warning("interrupted: no longer waiting for copies and commands")
            self.problem = self.problem or "interrupted"
        if self.mirror is not None and self.problem:
            log.warning("--mirror: the last copy to %s is not verified: %s", self.config.mirror, self.problem)
            message += "; the last copy is not verified"
        if self.config.on_end:
            known = {"MIRROR": NOT_VERIFIED if self.problem else VERIFIED} if self.mirror else {}
            environment = {**self._environment(), "STATUS": status, "MESSAGE": message, "MIRROR": "", **known}
            self._run("--on-end", self.config.on_end, environment, END_SECONDS)
        self.trainer.saved = lambda: None  # no reference cycle: the trainer's network must go before its process group
        self.trainer = None

    def _wait(self) -> None:
        """Copy the run's last state, with its final page and log, and wait for this copy and for --on-save."""
        self._submit_copy()
        if self.copies is not None:
            minutes = f"{END_SECONDS / 60:g} minutes"
            log.info("last copy to %s: waiting at most %s; Ctrl-C ends that", self.config.mirror, minutes)
            if not self.copies.finish(END_SECONDS):
                self.problem = self.problem or f"not done within {minutes}"
        if self.commands is not None:
            self.commands.finish(END_SECONDS)

    def cancel(self) -> None:
        """Note that the run starts again in this process, so that this is not its end."""
        for thread in (self.copies, self.commands):
            if thread is not None:
                thread.finish(0)
        if self.trainer is not None:
            self.trainer.saved = lambda: None
        self.trainer = None


def ending(error: BaseException) -> tuple[str, str]:
    """Status and message of a run that an exception ended."""
    if isinstance(error, KeyboardInterrupt):
        return STOPPED, words(getattr(error, "number", signal.SIGINT))
    text = " ".join(str(error).split())
    return FAILED, printable(text if isinstance(error, UserError) else f"{type(error).__name__}: {text}")
