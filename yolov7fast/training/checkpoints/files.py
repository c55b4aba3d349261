"""The checkpoints of a run on the disk: which ones are kept if not all can be written; the best weights are then
written later.

On a nearly full disk `last` is written first, because the run resumes from it, then `best`, then files of single
epochs.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError, load_checkpoint
from yolov7fast.checkpoint.checkpoint_writer import REMEDY, SaveError, save_checkpoint, serialised
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.training.checkpoints.resume import Progress, keep_as_previous

log = logging.getLogger(__name__)


class CheckpointFiles:
    """Writes the checkpoints of a run in `folder`; only the main process has files."""

    def __init__(self, folder: Path, suffix: str):
        self.last, self.best = folder / f"last{suffix}", folder / f"best{suffix}"
        self.folder = folder
        self.last_is_damaged = False  # then the run resumed from the previous checkpoint, which is kept
        self._waiting: bytes | None = None  # the best checkpoint, until it can be written

    def write(self, content: dict[str, Any], names: Sequence[str], progress: Progress) -> bool:
        """Write a checkpoint under every name, the most important first; returns whether the first is written.

        A failed write keeps the existing file, and the run continues. `progress` records whether the best weights are
        on the disk; if not, they are kept here for the next save.
        """
        paths = [self.folder / name for name in names]
        if paths[0].is_file() and not self.last_is_damaged:
            keep_as_previous(paths[0])
        failed: list[Path] = []
        try:
            save_checkpoint(content, *paths)
        except SaveError as error:
            failed = error.failed
            is_last = Path(os.path.realpath(paths[0])) in failed
            if progress.finished and is_last:
                raise
            kept = "the last good checkpoint is kept" if is_last else f"{paths[0].name} is written"
            log.warning("%s; training continues, %s", error, kept)
        if self.best in paths:
            is_missing = Path(os.path.realpath(self.best)) in failed
            self._waiting = serialised(content) if is_missing else None
            if is_missing:
                progress.unwritten_best = progress.best_fitness
            elif progress.best_fitness >= (progress.unwritten_best or 0.0):  # otherwise better ones would be lost
                progress.unwritten_best = None
        elif self._waiting is not None:
            self.retry_best(progress)
        done = Path(os.path.realpath(paths[0])) not in failed
        self.last_is_damaged = self.last_is_damaged and not done
        return done

    def retry_best(self, progress: Progress) -> None:
        """Write the best weights that could not be written before, if there is space now."""
        if self._waiting is None:
            return
        try:
            write_atomically(self.best, self._waiting, remedy=REMEDY)
        except UserError as error:
            log.warning("%s; the best weights are kept in memory and tried again", error)
            return
        log.info("%s is written now, with the best weights so far", self.best)
        self._waiting, progress.unwritten_best = None, None

    def check_best(self, progress: Progress) -> None:
        """When resuming: best weights that an ended process could not write are lost, so those on the disk are the
        best."""
        if progress.unwritten_best is None:
            return
        there = fitness_in(self.best)
        if there is not None and there >= progress.best_fitness:
            progress.unwritten_best = None
            return
        log.warning(
            "the best weights (fitness %.4g) were never written before the run ended: %s holds %s",
            *(progress.best_fitness, self.best, "none" if there is None else f"those of fitness {there:.4g}"),
        )
        progress.best_fitness = there or 0.0

    def refuse_missing_best(self, progress: Progress) -> None:
        """At the end of a run: raise an error if its best weights could not be written."""
        self.retry_best(progress)
        if progress.unwritten_best is not None:
            raise UserError(
                f"{self.best} could not be written: the best weights (fitness {progress.unwritten_best:.4g}) are lost, "
                "and those on the disk are older. The rest of the run is complete; free some space before the next one"
            )


def fitness_in(path: Path) -> float | None:
    """The best fitness that a checkpoint's run had reached; None: no such file, or none that can be read."""
    try:
        checkpoint = load_checkpoint(path)
        stored = checkpoint.get("best_fitness") if isinstance(checkpoint, dict) else None
        return None if stored is None else float(stored.item() if hasattr(stored, "item") else stored)
    except (CheckpointError, TypeError, ValueError):
        return None
