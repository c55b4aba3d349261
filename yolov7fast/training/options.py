"""The options of a run: those it was begun with where it is resumed, what follows from them, and opt.yaml."""

import contextlib
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

import torch
import yaml

from yolov7fast.checkpoint.families import FAMILIES, FAMILY_KEY, WEIGHTS_FOLDER, family_of
from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.files.atomic import clear_abandoned, write_atomically
from yolov7fast.core.files.paths import increment_path
from yolov7fast.core.files.settings_files import is_whole, read_yaml
from yolov7fast.core.text import counted
from yolov7fast.training.checkpoints.resume import (
    MOST,
    Limits,
    NothingToDo,
    Progress,
    damage_named,
    find_checkpoint,
    last_checkpoint,
    previous_of,
    progress_of,
    read_resumable,
    run_folder_of,
)
from yolov7fast.training.distributed import World, from_main
from yolov7fast.training.family import Family
from yolov7fast.training.logging.bottleneck import options_in_use
from yolov7fast.training.settings import TrainSettings
from yolov7fast.training.step import choose_amp

# facts of the command line, not settings of the run
NOT_STORED = ("given", "config", "begins_anew", "resume_time", "allow_changed_data", "automatic_batch")
AUTO = "auto"  # --resume auto: start the run, resume it, or leave it alone where it is finished
AUTO_BATCH = "auto"  # --batch-size auto: what fits; a resumed run keeps the batch that was chosen
SAVE_MINUTES = 10.0  # between checkpoints inside an epoch, unless --save-every or --nosave says otherwise
AS_BEGUN = ("weights", "cfg", "hyp")  # resuming takes these from the run itself; opt.yaml keeps what it began with


class Command(Protocol):
    """The command that starts a training, as far as a run must know it: its flags, and what users type."""

    @property
    def fixed(self) -> Collection[str]:
        """Options that cannot change when a run is resumed."""
        ...

    def defaults(self) -> dict[str, Any]: ...

    def given(self, opt: Namespace) -> Collection[str]:
        """Options that the user gave, on the command line or in a run file."""
        ...

    def settle(self, opt: Namespace) -> None:
        """Options that follow from others, before they are compared with those of a stored run."""

    def check(self, opt: Namespace) -> None:
        """Refuse impossible or contradicting options, each by name."""

    def checked(self, options: dict[str, Any], where: str) -> dict[str, Any]:
        """Stored options, each of the kind that its flag takes; where: the file that has them."""
        ...

    def invocation(self, family: str, command: str = "train") -> str:
        """What starts a command for a family, such as `python train.py`."""
        ...

    def next_steps(self, folder: str, weights: str, data: str) -> list[tuple[str, str]]:
        """(what for, command) that a user may want after a run in `folder`; weights: its best ones."""
        ...


# --- resuming ---------------------------------------------------------------------------------------------------------


def start_or_resume(opt: Namespace, family: type[Family]) -> Namespace:
    """What `--resume auto` means now: resume the run of --project and --name, or, without a checkpoint, begin it.

    A run that was killed before its first checkpoint begins anew in its folder.
    """
    folder = Path(opt.project) / opt.name
    places = (folder / family.weights_folder, folder / WEIGHTS_FOLDER)  # versions before this one had the second
    begun = [place / f"last{family.checkpoint_suffix}" for place in places]
    if any(last.is_file() or previous_of(last).is_file() for last in begun):
        return Namespace(**vars(opt) | {"resume": str(folder)})
    return Namespace(**vars(opt) | {"resume": False, "exist_ok": True, "begins_anew": True})


def resumed_options(opt: Namespace, family: type[Family], command: Command) -> tuple[Namespace, dict[str, Any] | None]:
    """Of the run that `--resume` names: its options with what may be changed, and its checkpoint.

    Without a checkpoint (None) the run was killed before its first one, and starts again with its own options.
    """
    run_dir = Path(str(opt.resume))
    if (run_dir / "opt.yaml").is_file() and not last_checkpoint(run_dir, family.checkpoint_suffix):
        return options_to_start_again(opt, run_dir, family, command), None
    target = find_checkpoint(opt.resume, family.checkpoint_suffix)
    before = target.stat().st_mtime_ns if target.is_file() else 0
    checkpoint, path = read_resumable(target)
    if not isinstance(checkpoint, dict) or "epoch" not in checkpoint:
        raise UserError(f"--resume {path}: this file holds weights only; start a new run with --weights {path}")
    if (other := family_of(checkpoint)) != family.name:
        start = command.invocation(other)
        resume = f"{start} --resume {quote(str(path))}"
        raise UserError(f"--resume {path}: a checkpoint of the {other} family; resume with: {resume}")
    if not is_whole(checkpoint["epoch"], -1, MOST):
        raise UserError(f"--resume {path}: damaged: its epoch is {shown(checkpoint['epoch'])}")
    stripped = checkpoint["epoch"] == -1 and not checkpoint.get("resume")
    if stripped and family.strips_final_checkpoint:
        checkpoint, path = family.complete_checkpoint(path)
    run_dir = run_folder_of(path)
    options = options_of_run(opt, run_dir, path, family, command)
    options |= {"resume": str(path), "save_dir": str(run_dir), "resume_time": before if path == target else 0}
    with damage_named(path):
        ended = how_it_ended(checkpoint, options)
    if ended and not end_is_left(path, stripped, family):
        raise NothingToDo(f"--resume {path}: nothing to do, {ended}")
    print(
        f"Resuming {path} after {trained_so_far(checkpoint)}{': only plots and final files are left' if ended else ''}"
    )
    return Namespace(**family.resume_options(options, path)), checkpoint


def options_of_run(
    opt: Namespace, run_dir: Path, source: Path, family: type[Family], command: Command
) -> dict[str, Any]:
    """What opt.yaml of a run says, with the given options that may change. source: what --resume named."""
    options = command.defaults() | stored_options(run_dir, source, command)
    settled = with_files_found(opt, family)
    for name in sorted(command.given(opt)):
        same = options[name] in (getattr(opt, name), getattr(settled, name)) or leaves_batch_open(name, opt)
        if name in command.fixed and not same:
            file = "" if name in opt.given else f" of the run file {opt.config}"
            raise UserError(
                f"--{name.replace('_', '-')}{file} cannot change when resuming (the run has {shown(options[name])}); "
                "leave it out, or start a new run with --weights instead"
            )
        if name not in command.fixed:
            options[name] = getattr(opt, name)
    given = sorted(set(opt.given) | {"img_size"})
    return options | {"batch_size": options["total_batch_size"], "given": given, "local_rank": opt.local_rank}


def options_to_start_again(opt: Namespace, run_dir: Path, family: type[Family], command: Command) -> Namespace:
    """The options of a run that has no checkpoint yet: the same ones, in the same folder."""
    stored = read_yaml(run_dir / "opt.yaml")
    other = stored.get(FAMILY_KEY) if isinstance(stored, dict) else None
    if other in FAMILIES and other != family.name:
        start = command.invocation(other)
        raise UserError(f"--resume {run_dir}: a run of the {other} family; resume with: {start} --resume {run_dir}")
    options = options_of_run(opt, run_dir, run_dir, family, command)
    print(f"{run_dir} has no checkpoint yet: the run starts again with the options in its opt.yaml")
    place = run_dir if run_dir.name else run_dir.resolve()
    options |= {"project": str(place.parent), "name": place.name, "exist_ok": True}
    return Namespace(**options | {"resume": False, "begins_anew": True})


def trained_so_far(checkpoint: dict[str, Any]) -> str:
    """'1 epoch and 3 batches': what the run of a checkpoint has behind it."""
    state, epochs = checkpoint.get("resume"), counted(checkpoint["epoch"] + 1, "epoch")
    batches = progress_of(state).batch_index if state else 0
    return f"{epochs} and {counted(batches, 'batch', 'batches')}" if batches else epochs


def leaves_batch_open(name: str, opt: Namespace) -> bool:
    """Whether this is --batch-size auto, which any batch that was chosen fulfils."""
    return name == "batch_size" and opt.batch_size == AUTO_BATCH


def with_files_found(opt: Namespace, family: type[Family]) -> Namespace:
    """The options as a fresh run would store them: short names of files become paths."""
    settled = Namespace(**vars(opt))
    with contextlib.suppress(UserError):  # the run itself needs none of them any more
        family.check_files(settled)
    return settled


def stored_options(run_dir: Path, checkpoint: Path, command: Command) -> dict[str, Any]:
    """What opt.yaml of a run says."""
    path = run_dir / "opt.yaml"
    remedy = f"so the run's options are unknown: restore it from a copy, or start a new run with --weights {checkpoint}"
    if not path.is_file():
        raise UserError(f"--resume {checkpoint}: {path} is missing, {remedy}")
    try:
        options = read_yaml(path)
        if not isinstance(options, dict) or not {"epochs", "total_batch_size"} <= options.keys():
            raise UserError(f"--resume {checkpoint}: {path} is empty or cut off, {remedy}")
        if unknown := [key for key in options if not isinstance(key, str)]:
            raise UserError(f"{path}: {shown(unknown[0])} is no name of an option")
        for key, least in (("total_batch_size", 1), ("test_size", 0)):
            if not is_whole(options.get(key) or least, least, MOST):
                raise UserError(f"{path}: {key} is {shown(options[key])}, which is no such number")
        return command.checked(options, str(path))
    except UserError as error:
        if str(error).startswith("--resume"):
            raise
        raise UserError(f"--resume {checkpoint}: damaged: {one_line(error, 200)}; {remedy}") from None


def how_it_ended(checkpoint: dict[str, Any], options: dict[str, Any]) -> str:
    """Which limit a complete run has reached, with the remedy; nothing if there are batches to train."""
    state, done = checkpoint.get("resume"), checkpoint["epoch"] + 1
    progress = progress_of(state) if state else Progress(epoch=done)
    if done >= options["epochs"] and not progress.batch_index:
        progress.finished = True
    return Limits(options["epochs"], options["max_iter"], options["patience"]).reached(progress)


def end_is_left(path: Path, stripped: bool, family: type[Family]) -> bool:
    """Whether a complete run was killed before its end: plots, stripped weights, removing the previous checkpoint.

    stripped: the file that was asked for is, and `path` is another that holds the state.
    """
    if previous_of(path).is_file():  # removed last
        return True
    if family.strips_final_checkpoint:
        return not stripped and path.stem == "last"
    return not (run_folder_of(path) / "results.png").is_file()


# --- what follows from the options ------------------------------------------------------------------------------------


def resolve_options(opt: Namespace, world: World, *, resumed: bool) -> None:
    """What follows from the flags: the run folder's name (the main process chooses), batch in all and of a process."""
    opt.shuffled = order_is_shuffled(opt, world, resumed)
    opt.world_size, opt.global_rank = world.size, world.rank
    opt.total_batch_size = opt.batch_size
    opt.batch_size = opt.total_batch_size // world.size
    if not resumed:
        folder = increment_path(Path(opt.project) / opt.name, exist_ok=opt.exist_ok)
        opt.save_dir = from_main(str(folder), world)


def order_is_shuffled(opt: Namespace, world: World, resumed: bool) -> bool:
    """Whether epochs are permuted. Several processes always do that, as upstream does; a run keeps the order that it
    began with, so that it can be resumed with another number of processes."""
    if resumed and "shuffled" in vars(opt):
        return opt.shuffled
    rank = getattr(opt, "global_rank", -1) if resumed else world.rank  # opt.yaml of older runs has the former
    asked = opt.shuffle if "shuffle" in vars(opt) else not opt.overfit
    return asked or rank != -1


def make_run_folder(opt: Namespace, family: Family) -> None:
    """Make the folder and write down what is run: opt.yaml with every option, and the family's files of settings."""
    folder = Path(opt.save_dir)
    for place in (folder, family.weights_dir):
        place.mkdir(parents=True, exist_ok=True)
        clear_abandoned(place)
    if getattr(opt, "begins_anew", False):  # of an epoch that was lost with its process
        for name in ("results.txt", "results.csv"):
            (folder / name).unlink(missing_ok=True)
    stored = {name: value for name, value in vars(opt).items() if name not in NOT_STORED}
    stored |= {"batch_size": opt.total_batch_size, FAMILY_KEY: family.name}
    if opt.resume and (folder / "opt.yaml").is_file():
        begun = read_yaml(folder / "opt.yaml")
        stored |= {name: begun[name] for name in AS_BEGUN if name in begun}
    for name, values in {**family.settings_files(), "opt.yaml": stored}.items():
        write_atomically(folder / name, yaml.safe_dump(dict(values), sort_keys=False))


def settings_of(opt: Namespace, device: torch.device, keep_files: bool = True) -> TrainSettings:
    """What the loop takes from the options."""
    return TrainSettings(
        epochs=opt.epochs,
        amp=choose_amp(opt.amp, device),
        max_iter=opt.max_iter,
        patience=opt.patience,
        eval_interval=opt.eval_interval,
        notest=opt.notest,
        nosave=opt.nosave,
        save_every_minutes=save_minutes(opt),
        skip_nonfinite=opt.skip_nonfinite,
        keep_epochs=opt.keep_epochs,
        exact_mid_epoch=opt.seed is not None,
        keep_files=keep_files,
        in_use=options_in_use(opt, device),
    )


def save_minutes(opt: Namespace) -> float:
    """Minutes between checkpoints inside an epoch; 0: none there."""
    if opt.save_every is not None:
        return opt.save_every
    return 0.0 if opt.nosave else SAVE_MINUTES
