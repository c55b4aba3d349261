"""How a run starts: fresh, resumed from a checkpoint, or again in the folder of a run without a checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import yaml

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.checkpoint.families import FAMILY_KEY, family_of
from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.files.atomic import clear_abandoned, write_atomically
from yolov7fast.core.files.locks import exclusive
from yolov7fast.core.files.paths import increment_path
from yolov7fast.core.files.settings_files import is_whole, read_yaml
from yolov7fast.core.programs import program_of
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
from yolov7fast.training.config import AUTO_BATCH, TrainConfig
from yolov7fast.training.distributed import World, from_main, lowest
from yolov7fast.training.family import Family
from yolov7fast.training.hooks.mirror import fetch, is_mirror

if TYPE_CHECKING:  # the table of flags belongs to the commands, which pass it
    from yolov7fast.cli.flags import Flag

AUTO = "auto"  # --resume auto: start the run, resume it, or do nothing if it is finished
AS_BEGUN = ("weights", "cfg", "hyp")  # a resumed run sets these itself; opt.yaml keeps the first values


# --- fresh or resumed -------------------------------------------------------------------------------------------------


def start_or_resume(
    config: TrainConfig, family: type[Family], flags: Mapping[str, "Flag"]
) -> tuple[TrainConfig, dict[str, Any] | None]:
    """The config of the run to train, and its checkpoint; None: a fresh run.

    `--resume auto` resumes the run of --project and --name, or starts it: a run that was killed before its first
    checkpoint starts again in its folder. `NothingToDo` is raised if the run to be resumed is finished.

    Args:
        flags: the family's row of each flag: the type of its value and whether it may change when resuming.
    """
    if config.resume == AUTO:
        folder = Path(config.project) / config.name
        if not last_checkpoint(folder, family.checkpoint_suffix) and not (config.mirror and fetched(config, folder)):
            return replace(config, resume=False, exist_ok=True, starts_over=True), None
        config = replace(config, resume=str(folder))
    elif is_mirror(config.resume):
        config = from_mirror(config)
    return resumed_config(config, family, flags) if config.resume else (config, None)


def resumed_config(
    config: TrainConfig, family: type[Family], flags: Mapping[str, "Flag"]
) -> tuple[TrainConfig, dict[str, Any] | None]:
    """The config of the run that `--resume` names, with the flags that may change, and its checkpoint.

    Without a checkpoint (None) the run was killed before its first one, and starts again with its own options.
    """
    run_dir = Path(str(config.resume))
    if (run_dir / "opt.yaml").is_file() and not last_checkpoint(run_dir, family.checkpoint_suffix):
        options = options_of_run(config, run_dir, run_dir, family, flags)
        print(f"{run_dir} has no checkpoint yet: the run starts again with the options in its opt.yaml")
        place = run_dir if run_dir.name else run_dir.resolve()
        options |= {"project": str(place.parent), "name": place.name, "exist_ok": True, "save_dir": ""}
        options |= {"resume": False, "starts_over": True, "shuffled": None}
        return family.config_class.from_options(options), None
    target = find_checkpoint(config.resume, family.checkpoint_suffix)
    before = target.stat().st_mtime_ns if target.is_file() else 0
    checkpoint, path = read_resumable(target)
    if not isinstance(checkpoint, dict) or "epoch" not in checkpoint:
        raise UserError(f"--resume {path}: this file holds weights only; start a new run with --weights {path}")
    if (other := family_of(checkpoint)) != family.name:
        resume = f"{program_of('train', other).invocation} --resume {quote(str(path))}"
        raise UserError(f"--resume {path}: a checkpoint of the {other} family; resume with: {resume}")
    if not is_whole(checkpoint["epoch"], -1, MOST):
        raise UserError(f"--resume {path}: damaged: its epoch is {shown(checkpoint['epoch'])}")
    stripped = checkpoint["epoch"] == -1 and not checkpoint.get("resume")
    if stripped and family.strips_final_checkpoint:
        checkpoint, path = complete_checkpoint(path, family)
    run_dir = run_folder_of(path)
    options = options_of_run(config, run_dir, path, family, flags)
    options |= {"resume": str(path), "save_dir": str(run_dir), "resume_time": before if path == target else 0}
    with damage_named(path):
        ended = how_it_ended(checkpoint, options)
    if ended and not end_is_left(path, stripped, family):
        raise NothingToDo(f"--resume {path}: nothing to do, {ended}")
    print(
        f"Resuming {path} after {trained_so_far(checkpoint)}{': only plots and final files are left' if ended else ''}"
    )
    return family.config_class.from_options(family.resume_options(options, path)), checkpoint


def fetched(config: TrainConfig, folder: Path) -> bool:
    """Whether the mirror held this run, which now is in its folder. One process of a machine fetches it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.with_name(f".{folder.name}.fetch"), f"waiting for {folder} to be fetched"):
        return fetch(config.mirror, folder.parent, folder.name) is not None


def from_mirror(config: TrainConfig) -> TrainConfig:
    """The config that resumes the run that `--resume` names by its mirror, which is mirrored there again."""
    project, name = Path(config.project), config.name if "name" in config.given else ""
    project.mkdir(parents=True, exist_ok=True)
    with exclusive(project / ".fetch", f"waiting for {config.resume} to be fetched"):
        folder = fetch(str(config.resume), project, name)
    if folder is None:
        raise UserError(f"--resume {config.resume}: nothing was copied there yet")
    mirror = config.mirror if "mirror" in config.given else str(config.resume)
    return replace(config, resume=str(folder), mirror=mirror, given=(*config.given, "mirror"))


def complete_checkpoint(path: Path, family: type[Family]) -> tuple[dict[str, Any], Path]:
    """The whole state of a finished run, whose last checkpoint `path` is stripped: that of its last epoch's file."""
    patterns = family.epoch_files[:1]
    files = sorted((file for each in patterns for file in path.parent.glob(each)), key=lambda f: (len(f.name), f.name))
    for candidate in reversed(files):
        checkpoint = load_checkpoint(candidate)
        if isinstance(checkpoint, dict) and checkpoint.get("epoch", -1) >= 0:
            return checkpoint, candidate
    raise NothingToDo(
        f"--resume {path}: the file is stripped (its run is finished) and no {''.join(patterns) or 'file of an epoch'} "
        f"is in its folder; start a new run with --weights {path}"
    )


def options_of_run(
    config: TrainConfig, run_dir: Path, source: Path, family: type[Family], flags: Mapping[str, "Flag"]
) -> dict[str, Any]:
    """The options in opt.yaml of a run, with the given flags that may change. source: the value of --resume."""
    options = {name: flag.default for name, flag in flags.items()} | stored_options(run_dir, source, family, flags)
    found = family.find_files(config, missing_ok=True)  # short names of files become paths, as in opt.yaml
    for name in sorted({*config.given, *config.in_file}):
        value, fixed = getattr(config, name), flags[name].fixed
        is_open = name == "batch_size" and value == AUTO_BATCH  # equals any stored batch
        if fixed and not is_open and options[name] not in (value, getattr(found, name)):
            file = "" if name in config.given else f" of the run file {config.config}"
            raise UserError(
                f"--{name.replace('_', '-')}{file} cannot change when resuming (the run has {shown(options[name])}); "
                "leave it out, or start a new run with --weights instead"
            )
        if not fixed:
            options[name] = value
    given = sorted({*config.given, "img_size"})
    return options | {"batch_size": options["total_batch_size"], "given": given, "local_rank": config.local_rank}


def trained_so_far(checkpoint: dict[str, Any]) -> str:
    """'1 epoch and 3 batches': the progress of a checkpoint's run."""
    state, epochs = checkpoint.get("resume"), counted(checkpoint["epoch"] + 1, "epoch")
    batches = progress_of(state).batch_index if state else 0
    return f"{epochs} and {counted(batches, 'batch', 'batches')}" if batches else epochs


def stored_options(
    run_dir: Path, checkpoint: Path, family: type[Family], flags: Mapping[str, "Flag"]
) -> dict[str, Any]:
    """The options in opt.yaml of a run; a run of another family is refused."""
    path = run_dir / "opt.yaml"
    remedy = f"so the run's options are unknown: restore it from a copy, or start a new run with --weights {checkpoint}"
    if not path.is_file():
        raise UserError(f"--resume {checkpoint}: {path} is missing, {remedy}")
    try:
        options = read_yaml(path)
        if not isinstance(options, dict) or not {"epochs", "total_batch_size"} <= options.keys():
            raise UserError(f"--resume {checkpoint}: {path} is empty or cut off, {remedy}")
        if unknown := [key for key in options if not isinstance(key, str)]:
            raise UserError(f"{path}: {shown(unknown[0])} is not the name of an option")
        if (other := str(options.get(FAMILY_KEY, family.name))) != family.name:
            start = program_of("train", other).invocation
            raise UserError(f"--resume {run_dir}: a run of the {other} family; resume with: {start} --resume {run_dir}")
        for key, least in (("total_batch_size", 1), ("test_size", 0)):
            if not is_whole(options.get(key) or least, least, MOST):
                raise UserError(f"{path}: {key} is {shown(options[key])}, which is not a valid number")
        kept = {n: value for n, value in options.items() if n not in flags or not flags[n].typed}
        return {n: flags[n].value_of(value, path) if n in flags else value for n, value in kept.items()}
    except UserError as error:
        if str(error).startswith("--resume"):
            raise
        raise UserError(f"--resume {checkpoint}: damaged: {one_line(error, 200)}; {remedy}") from None


def how_it_ended(checkpoint: dict[str, Any], options: dict[str, Any]) -> str:
    """The limit that a complete run has reached, with the remedy; empty if there are batches to train."""
    state, done = checkpoint.get("resume"), checkpoint["epoch"] + 1
    progress = progress_of(state) if state else Progress(epoch=done)
    if done >= options["epochs"] and not progress.batch_index:
        progress.finished = True
    return Limits(options["epochs"], options["max_iter"], options["patience"]).reached(progress)


def end_is_left(path: Path, stripped: bool, family: type[Family]) -> bool:
    """Whether a complete run was killed before its end: plots, stripped weights, removing the previous checkpoint.

    stripped: the file that --resume names is stripped, and `path` is another that holds the state.
    """
    if previous_of(path).is_file():  # removed last
        return True
    if family.strips_final_checkpoint:
        return not stripped and path.stem == "last"
    return not (run_folder_of(path) / "results.png").is_file()


# --- values that follow from flags ------------------------------------------------------------------------------------


def completed(
    config: TrainConfig, family: type[Family], device: Any, world: World, checkpoint: dict[str, Any] | None
) -> TrainConfig:
    """The config with the values that follow from the flags: batch, order of the samples, and the run's folder.

    All processes must call this: the main one chooses the folder, and the smallest automatic batch counts.
    """
    if config.batch_size == AUTO_BATCH:
        batch = lowest(family.automatic_batch(config, device, world), world)
        config = replace(config, batch_size=batch, automatic_batch=True)
    shuffled = order_is_shuffled(config, world, resumed=checkpoint is not None)
    config = replace(config, shuffled=shuffled, world_size=world.size, global_rank=world.rank)
    if config.save_dir:
        return config
    folder = increment_path(Path(config.project) / config.name, exist_ok=config.exist_ok)
    return replace(config, save_dir=from_main(str(folder), world))


def order_is_shuffled(config: TrainConfig, world: World, resumed: bool) -> bool:
    """Whether epochs are permuted. Several processes always do that, as upstream does; a run keeps its first order, so
    that it can be resumed with another number of processes."""
    if config.shuffled is not None:
        return config.shuffled
    rank = config.global_rank if resumed else world.rank  # opt.yaml of older runs has the former
    return getattr(config, "shuffle", not config.overfit) or rank != -1


def can_halve_batch(
    config: TrainConfig, progress: Progress, world: World, checkpoint: dict[str, Any] | None, first_steps: int = 10
) -> bool:
    """Whether a run that is out of memory may start again: nothing is lost, and the batch was chosen automatically.

    With several processes the others would wait forever for the one that starts again.
    """
    is_early = progress.epoch == 0 and progress.global_step < first_steps
    is_free = config.automatic_batch and checkpoint is None and not world.is_distributed
    return is_early and is_free and config.batch_size > 1


def refuse_overtaken(config: TrainConfig) -> None:
    """The checkpoint was read before the folder was locked: the process that held the lock may have trained further."""
    if config.resume_time and Path(str(config.resume)).stat().st_mtime_ns != config.resume_time:
        raise UserError(
            f"{config.resume} has just been replaced by another process that trained in its folder: start again"
        )


def make_run_folder(config: TrainConfig, family: Family) -> None:
    """Create the folder and write the settings: opt.yaml with every option, and the family's files of settings."""
    folder = Path(config.save_dir)
    for place in (folder, family.weights_dir):
        place.mkdir(parents=True, exist_ok=True)
        clear_abandoned(place)
    if config.starts_over:  # of an epoch that was not saved
        for name in ("results.txt", "results.csv"):
            (folder / name).unlink(missing_ok=True)
    stored = config.stored() | {"test_size": family.test_size, FAMILY_KEY: family.name}
    if config.resume and (folder / "opt.yaml").is_file():
        begun = read_yaml(folder / "opt.yaml")
        stored |= {name: begun[name] for name in AS_BEGUN if name in begun}
    for name, values in {**family.settings_files, "opt.yaml": stored}.items():
        write_atomically(folder / name, yaml.safe_dump(dict(values), sort_keys=False))
