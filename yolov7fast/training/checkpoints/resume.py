"""Resuming: the state of a run beyond upstream's checkpoint keys, and how the file is found."""

import hashlib
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError, load_checkpoint
from yolov7fast.checkpoint.families import WEIGHTS_FOLDER
from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.files.atomic import link_or_copy
from yolov7fast.core.files.paths import walk_files
from yolov7fast.core.files.settings_files import is_whole
from yolov7fast.core.text import counted, printable
from yolov7fast.reports.run_status import MANIFEST
from yolov7fast.training.distributed import World
from yolov7fast.training.step import TrainStep

log = logging.getLogger(__name__)
MOST = 1 << 40  # epochs, iterations
START = "To start a run, or resume it where it exists, give its whole command with --resume auto"
VERSION = 2  # 1 had other names in `progress`, see `progress_of`


class NothingToDo(UserError):
    """The run to be resumed is finished."""


@dataclass
class Progress:
    """The progress of a run: `batch_index` batches of `epoch` are done, `global_step` in all."""

    epoch: int = 0
    batch_index: int = 0
    global_step: int = 0
    best_fitness: float = 0.0
    epochs_since_best: int = 0
    metrics: dict[str, float] = field(default_factory=dict)  # of the last validation, by columns of results.csv
    per_class_ap: list[float] = field(default_factory=list)  # of the last validation
    first_loss: float | None = None
    labels: int = 0  # of the last batch
    img_size: int = 0
    seconds: float = 0.0
    epoch_seconds: float = 0.0  # of the finished batches of `epoch`, and the part of it spent waiting for data
    epoch_waited: float = 0.0
    finished: bool = False
    last_loss: float | None = None  # mean of the last complete epoch
    best_epoch: int | None = None  # whose checkpoint is best, and what its validation measured; None: not known
    best_metrics: dict[str, float] = field(default_factory=dict)
    unwritten_best: float | None = None  # fitness of best weights that could not be written yet


class Limits(NamedTuple):
    """The limits that end a run; 0: no limit."""

    epochs: int
    max_iter: int = 0
    patience: int = 0

    def epoch_length(self, progress: Progress, batches: int) -> int:
        """The number of an epoch's batches at its end, including those before an interruption."""
        left = max(self.max_iter - progress.global_step, 0) if self.max_iter else batches
        return min(batches, progress.batch_index + left)

    def reached(self, progress: Progress) -> str:
        """The limit that a finished run has reached, and the remedy; empty if there are batches to train."""
        if not progress.finished:
            return ""
        if progress.epoch >= self.epochs:
            return f"the run has {progress.epoch} epochs of {self.epochs}; add --epochs N"
        if 0 < self.max_iter <= progress.global_step:
            return (
                f"the run has {progress.global_step} iterations, as --max-iter {self.max_iter} asks; add --max-iter N"
            )
        if 0 < self.patience <= progress.epochs_since_best:
            since = progress.epochs_since_best
            return f"its fitness rose {since} epochs ago, --patience {self.patience} ended it; add --patience N"
        return ""


def random_states() -> dict[str, Any]:
    state: Any = np.random.get_state()
    kind, keys, used, has_gauss, gauss = state
    version, internal, gauss_next = random.getstate()
    return {
        "python": [version, list(internal), gauss_next],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), int(used), int(has_gauss), float(gauss)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    version, internal, gauss_next = states["python"]
    random.setstate((version, tuple(internal), gauss_next))
    kind, keys, used, has_gauss, gauss = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), used, has_gauss, gauss))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


def restore_own_random(state: dict[str, Any], world: World) -> None:
    """Restore the random states of this process. Files may contain those of the first process only: others keep
    theirs."""
    states = state.get("random_ranks") or [state["random"]]
    if len(states) == world.size:
        restore_random_states(states[max(world.rank, 0)])
    elif world.is_main:
        restore_random_states(state["random"])


def collect_state(
    step: TrainStep, progress: Progress, recipe_state: dict[str, Any], random_of_ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    """The `resume` entry of a checkpoint: with the optimizer's state, a run resumes bit for bit."""
    return {
        "version": VERSION,
        "model": step.model.state_dict(),
        "ema": step.ema.ema.state_dict() if step.ema else None,
        "updates": step.ema.updates if step.ema else 0,
        "gradients": [None if p.grad is None else p.grad for p in step.model.parameters()]
        if progress.batch_index
        else [],
        "scaler": step.scaler.state_dict(),
        "means": step.means,
        "count": int(step.count),
        "bad": step.nonfinite,
        "bad_since_step": step.nonfinite_since_update,
        "progress": asdict(progress),
        "random": random_of_ranks[0],
        "random_ranks": random_of_ranks if len(random_of_ranks) > 1 else [],
        "recipe": recipe_state,
    }


def progress_of(state: dict[str, Any], columns: Sequence[str] = ()) -> Progress:
    """The progress of the run of a collected state.

    columns: the metrics of version 1, which stored the last validation as a list (`family.summary_columns`).
    """
    stored = dict(state["progress"])
    if state["version"] == 1:
        stored["batch_index"], stored["global_step"] = stored.pop("position"), stored.pop("number")
        stored["per_class_ap"] = stored.pop("maps")
        stored["metrics"] = dict(zip(columns, stored.pop("results")))
    return checked(Progress(**stored))


def checked(progress: Progress) -> Progress:
    """Return it if all values have valid types and ranges; raise ValueError otherwise."""
    for name, value in asdict(progress).items():
        default = getattr(Progress(), name)
        if isinstance(default, dict | list):
            values = value.values() if isinstance(value, dict) else value
            fits = isinstance(value, type(default)) and all(isinstance(number, int | float) for number in values)
        elif isinstance(default, bool):
            fits = isinstance(value, bool)
        elif isinstance(default, int):
            fits = is_whole(value, 0, MOST)
        else:
            fits = isinstance(value, int | float) or (value is None and default is None)
        if not fits:
            raise ValueError(f"{name} is {shown(value)}")
    return progress


@contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Errors caused by invalid values of a checkpoint become one line that names the file."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except UserError as error:
        raise error if str(path) in str(error) else UserError(f"--resume {path}: {one_line(error, 250)}") from error
    except (TypeError, KeyError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else one_line(error, 150)
        raise UserError(
            f"--resume {path}: its training state is damaged ({reason}); resume from another checkpoint, "
            f"or start a new run with --weights"
        ) from error


def restore_state(step: TrainStep, state: dict[str, Any]) -> None:
    """Restore a collected state in model, EMA, gradients, scaler and means."""
    if state["version"] not in (1, VERSION):
        raise UserError(
            f"the checkpoint's resume state has version {shown(state['version'])}, this program reads up to {VERSION}: "
            "resume with the program that wrote it"
        )
    load_strictly(step.model, state["model"])
    if step.ema and state["ema"] is not None:
        load_strictly(step.ema.ema, state["ema"])
        step.ema.updates = state["updates"]
    for parameter, gradient in zip(step.model.parameters(), state["gradients"]):
        parameter.grad = None if gradient is None else gradient.to(parameter.device, parameter.dtype)
    if state["scaler"]:  # empty in a run whose gradients were not scaled
        step.scaler.load_state_dict(state["scaler"])
    step.means, step.count = state["means"].to(step.device), state["count"]
    step.nonfinite = state["bad"].to(step.device)
    if "bad_since_step" in state:
        step.nonfinite_since_update = state["bad_since_step"].to(step.device)


def load_strictly(module: nn.Module, state: dict[str, torch.Tensor]) -> None:
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"the checkpoint does not fit the network it is resumed with: {error}") from None


# --- finding the checkpoint -------------------------------------------------------------------------------------------


def find_checkpoint(target: str | Literal[True], suffix: str = ".pt") -> Path:
    """The file that `--resume` names: a file, a run folder, or (True) the newest last*.pt below the working
    directory."""
    if target is True:
        found = [p for p in walk_files(".") if p.suffix == suffix and p.name.startswith("last")]
        found = [p for p in found if not (run_folder_of(p) / MANIFEST).is_file()]  # copies by --mirror
        if not found:
            raise UserError(
                f"--resume found no last*{suffix} below {Path('.').resolve()}; give it a run folder or a file. {START}"
            )
        return max(found, key=lambda p: p.stat().st_mtime)
    path = Path(target)
    if path.is_dir():
        if found := last_checkpoint(path, suffix):
            return found
        raise UserError(f"--resume {path}: no last{suffix} and no opt.yaml in this folder: no run was started. {START}")
    if not path.is_file() and not previous_of(path).is_file():
        raise UserError(f"--resume {path}: no such file or run folder. {START}")
    return path


def last_checkpoint(run_dir: Path, suffix: str) -> Path | None:
    """The last checkpoint of a run, in either layout; the file may be missing if the one before it is there.

    In a folder with both layouts, written by two versions, it is the newer one.
    """
    candidates = [run_dir / WEIGHTS_FOLDER / f"last{suffix}", run_dir / f"last{suffix}"]
    found: list[tuple[float, Path]] = []
    for candidate in candidates:
        files = [path for path in (candidate, previous_of(candidate)) if path.is_file()]
        if files:
            found.append((max(path.stat().st_mtime for path in files), candidate))
    return max(found)[1] if found else None


def previous_of(path: Path) -> Path:
    """The path of the previous checkpoint of a run while it trains."""
    return path.with_name(f"previous{path.suffix}")


def keep_as_previous(path: Path) -> None:
    """Make `previous` the current content of `path`; both exist at every moment."""
    try:
        link_or_copy(path, previous_of(path))
    except UserError as error:
        log.warning("%s; training continues without a copy of the checkpoint before", error)


def names_to_write(names: Sequence[str], epoch_files: Sequence[str], keep_epochs: int | None) -> list[str]:
    """Names of checkpoints without those of single epochs (patterns `epoch_files`) where none of them is kept."""
    unwanted = epoch_files if keep_epochs == 0 else ()
    return [name for name in names if not any(fnmatch(name, pattern) for pattern in unwanted)]


def remove_old_epochs(folder: Path, epoch_files: Sequence[str], keep_epochs: int | None) -> None:
    """Keep only the newest `keep_epochs` files of each pattern; None: all."""
    for pattern in epoch_files if keep_epochs is not None else ():
        files = sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
        for path in files[: max(len(files) - (keep_epochs or 0), 0)]:
            path.unlink(missing_ok=True)


def read_resumable(path: Path, note: Callable[[str], None] = print) -> tuple[Any, Path]:
    """The checkpoint and the file it came from; a damaged file falls back to the one written before it."""
    try:
        return load_checkpoint(path), path
    except CheckpointError as error:
        fallback = previous_of(path)
        if not fallback.is_file() or fallback == path:
            raise
        note(f"WARNING: {error}")
        note(f"WARNING: resuming from the checkpoint before it, {fallback}")
        return load_checkpoint(fallback), fallback


def run_folder_of(checkpoint: Path) -> Path:
    """runs/train/exp for runs/train/exp/weights/last.pt, outputs/exp for outputs/exp/last.pth."""
    parent = checkpoint.resolve().parent
    is_run = parent.name != WEIGHTS_FOLDER or (parent / "opt.yaml").is_file()  # a run may have this name too
    return checkpoint.parent if is_run else parent.parent


def weights_dir_of(run_dir: Path, folder: str, resumed: str | bool = False) -> Path:
    """The folder of a run's checkpoints: in the family's `folder` below it, or where the one that is resumed lies.

    Versions before this one had `weights/` in every family; such a run keeps it.
    """
    older = run_dir / WEIGHTS_FOLDER
    began_there = bool(resumed) and Path(str(resumed)).resolve().parent == older.resolve()
    return older if began_there else run_dir / folder


# --- changes of the data ----------------------------------------------------------------------------------------------
# Detects whether a run is resumed on other data: checkpoints contain a fingerprint of images, labels and classes.
#
# A fingerprint depends on the content of the data sets, not on paths and times: a data set may be moved or copied.
# Pixels are not part of it.


DIGEST_BYTES = 8  # of an image's labels
NAMED = 2  # number of files that a message names for each kind of change
REMEDY = "restore it, or add --allow-changed-data"
Fingerprint = dict[str, Any]  # the result of `fingerprint`: plain values, as stored in a checkpoint


def fingerprint(sets: Mapping[str, Any], names: Sequence[str]) -> Fingerprint:
    """The image paths relative to their common folder, each with a digest of its labels, by split.

    sets: data sets with `img_files`, `labels` (float32 (m, 5) of each image) and `segments`; names: of the classes.
    """
    splits = {}
    for split, dataset in sets.items():
        digests = b"".join(map(_digest, dataset.labels, dataset.segments))
        files = "\0".join(_below_shared_folder(dataset.img_files))
        splits[split] = {"files": files, "digests": torch.frombuffer(bytearray(digests), dtype=torch.uint8)}
    return {"classes": "\0".join(names), "splits": splits}


def changes(stored: Fingerprint, present: Fingerprint) -> str:
    """How the current data differs from that of a checkpoint, with counts and first files; empty if it does not.

    A split that only one of them has is not compared: only the first process has a validation set.
    """
    found = []
    before, now = (value["classes"].split("\0") for value in (stored, present))
    if before != now:
        found.append(f"classes were {shown(before)} and are {shown(now)}")
    for name, split in present["splits"].items():
        if name in stored["splits"]:
            old, new = _digests(stored["splits"][name]), _digests(split)
            kinds = {
                "with other labels": [file for file in new if file in old and old[file] != new[file]],
                "new": [file for file in new if file not in old],
                "gone": [file for file in old if file not in new],
            }
            for kind, files in kinds.items():
                first = ", ".join(printable(file, 30) for file in files[:NAMED])
                more = ", ..." if len(files) > NAMED else ""
                found += [f"{name}: {counted(len(files), 'image')} {kind} ({first}{more})"] if files else []
    return "; ".join(found)


def check_unchanged(stored: Any, present: Fingerprint, file: str) -> str:
    """As `changes`, for the entry of a checkpoint, which may hold any value. file: the checkpoint."""
    if stored is None:  # written before there were fingerprints
        return ""
    try:
        return changes(stored, present)
    except (TypeError, KeyError, ValueError, AttributeError, RuntimeError):
        raise UserError(f"{file}: its fingerprint of the data set is damaged; resume from another checkpoint") from None


def _digest(labels: np.ndarray, outlines: Sequence[np.ndarray]) -> bytes:
    hasher = hashlib.blake2b(np.ascontiguousarray(labels).tobytes(), digest_size=DIGEST_BYTES)
    for outline in outlines:
        hasher.update(b"outline" + np.ascontiguousarray(outline).tobytes())
    return hasher.digest()


def _below_shared_folder(files: Sequence[str]) -> list[str]:
    """Their paths relative to their common folder."""
    if not files:
        return []
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files])
    return [os.path.abspath(path)[len(folder) :].lstrip(os.sep) for path in files]


def _digests(stored: Mapping[str, Any]) -> dict[str, bytes]:
    """The digest of each file's labels."""
    names = stored["files"].split("\0") if stored["files"] else []
    content = stored["digests"].numpy().tobytes()
    digests = [content[i : i + DIGEST_BYTES] for i in range(0, len(content), DIGEST_BYTES)]
    return dict(zip(names, digests, strict=True))
