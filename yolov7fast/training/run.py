"""What every training command does around its trainer: go on or begin, the run folder, loggers, the verdict."""

import logging
import os
import random
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from yolov7fast.checkpoint.api import is_detr
from yolov7fast.cli.run_file import read_run_file
from yolov7fast.core.atomic import write_atomically
from yolov7fast.core.errors import UserError
from yolov7fast.core.files import increment_path
from yolov7fast.core.yaml_file import read_yaml
from yolov7fast.training.distributed import World, from_main
from yolov7fast.training.optimizer import load_optimizer
from yolov7fast.training.reporter import Reporter, TensorBoardLogger, WandbLogger
from yolov7fast.training.resume import (
    Limits,
    Progress,
    find_checkpoint,
    previous_of,
    progress_of,
    read_resumable,
    run_folder_of,
)
from yolov7fast.training.step import choose_amp
from yolov7fast.training.trainer import Family, Outcome, Trainer, TrainSettings

log = logging.getLogger(__name__)

NOT_STORED = ("given", "config")  # facts of the command line, not settings of the run
AS_BEGUN = ("weights", "cfg", "hyp")  # going on takes these from the run itself; opt.yaml says what it began with
FELL_TO = 0.7  # --overfit: the loss must fall to this share of its first epoch's


@dataclass(frozen=True)
class Command:
    """A training command, in as far as commands differ."""

    script: str
    parser: Callable[[], Any]
    suffix: str  # of its checkpoints
    fixed: tuple[str, ...]  # options that make a run that run: they cannot be changed when going on
    learnt_map50: float  # --overfit: this mAP@.5 on its own training images counts as learnt by heart
    # finds the complete state of a finished run whose last checkpoint was stripped of it
    unstripped: Callable[[Path], tuple[dict[str, Any], Path]] | None = None


def begin_logging(world: World) -> None:
    logging.basicConfig(format="%(message)s", level=logging.INFO if world.is_main else logging.WARNING)


# --- going on ---------------------------------------------------------------------------------------------------------


def resumed_options(opt: Namespace, command: Command) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """Of the run that `--resume` names: its options with what may be changed, its checkpoint, and that file."""
    checkpoint, path = read_resumable(find_checkpoint(opt.resume, command.suffix))
    if not isinstance(checkpoint, dict) or "epoch" not in checkpoint:
        raise UserError(f"--resume {path}: this file holds weights only; start a new run with --weights {path}")
    if (script := script_of(checkpoint)) != command.script:
        raise UserError(f"--resume {path}: a checkpoint of {script}; go on with: python {script} --resume {path}")
    redirected = checkpoint["epoch"] == -1 and not checkpoint.get("resume") and command.unstripped is not None
    if redirected:
        checkpoint, path = command.unstripped(path)
    run_dir = run_folder_of(path)
    options = vars(command.parser().parse_args([])) | stored_options(run_dir, path)
    for name in asked_for(opt, command):
        if name in command.fixed and getattr(opt, name) != options[name]:
            source = "" if name in opt.given else f" of the run file {opt.config}"
            raise UserError(
                f"--{name.replace('_', '-')}{source} cannot change when going on (the run has {options[name]!r}); "
                "leave it out, or start a new run with --weights instead"
            )
        options[name] = getattr(opt, name)
    options |= {
        "resume": str(path),
        "save_dir": str(run_dir),
        "batch_size": options["total_batch_size"],
        "given": sorted(set(opt.given) | {"img_size"}),
        "local_rank": opt.local_rank,
    }
    done = checkpoint["epoch"] + 1
    ended = how_it_ended(checkpoint, options)
    if ended and not end_is_left(path, redirected, command):
        raise UserError(f"--resume {path}: nothing to do, {ended}")
    print(f"Resuming {path} after {done} epochs{': only pictures and final files are left' if ended else ''}")
    return options, checkpoint, path


def script_of(checkpoint: Mapping[str, Any]) -> str:
    """The command that wrote a checkpoint."""
    return "tools/train_detr.py" if is_detr(checkpoint) else "train.py"


def stored_options(run_dir: Path, checkpoint: Path) -> dict[str, Any]:
    """What opt.yaml of a run says."""
    path = run_dir / "opt.yaml"
    remedy = f"so the run's options are unknown: restore it from a copy, or start a new run with --weights {checkpoint}"
    if not path.is_file():
        raise UserError(f"--resume {checkpoint}: {path} is missing, {remedy}")
    try:
        options = read_yaml(path)
    except UserError as error:
        raise UserError(f"--resume {checkpoint}: damaged: {error}; {remedy}") from None
    if not isinstance(options, dict) or not {"epochs", "total_batch_size"} <= options.keys():
        raise UserError(f"--resume {checkpoint}: {path} is empty or cut off, {remedy}")
    return options


def asked_for(opt: Namespace, command: Command) -> list[str]:
    """Options that the user gives along with `--resume`, on the command line or in a run file."""
    in_file = read_run_file(opt.config, command.parser().flags) if opt.config else {}
    return sorted({*opt.given, *in_file})


def how_it_ended(checkpoint: dict[str, Any], options: dict[str, Any]) -> str:
    """Which limit a complete run has come to, with the remedy; nothing if there are batches to train."""
    state, done = checkpoint.get("resume"), checkpoint["epoch"] + 1
    progress = progress_of(state) if state else Progress(epoch=done)
    if done >= options["epochs"] and not progress.position:
        progress.finished = True
    return limits_of(Namespace(**options)).reached(progress)


def end_is_left(path: Path, redirected: bool, command: Command) -> bool:
    """Whether a complete run was killed before its end: its pictures, its stripped weights, the tidying up.

    redirected: the file that was asked for is stripped, and `path` is another that holds the state.
    """
    if previous_of(path).is_file():  # goes last
        return True
    if command.unstripped:
        return not redirected and path.stem == "last"
    return not (run_folder_of(path) / "results.png").is_file()


def limits_of(opt: Namespace) -> Limits:
    return Limits(opt.epochs, opt.max_iter, opt.patience)


def restore(trainer: Trainer, family: Family, checkpoint: dict[str, Any], reporter: Reporter) -> None:
    """Put a checkpoint's state back: our own complete one, or what of another file the family can use."""
    if checkpoint.get("optimizer") is not None:
        load_optimizer(family.optimizer, checkpoint["optimizer"])
    if checkpoint.get("resume"):
        trainer.resume(checkpoint["resume"])
    else:
        log.warning("this checkpoint holds no random or full-precision state: going on, but not exactly")
        family.adopt(checkpoint, trainer.progress)
    if trainer.world.is_main and checkpoint.get("training_results") is not None:
        reporter.rewind(checkpoint["training_results"], trainer.progress.epoch)


# --- preparing --------------------------------------------------------------------------------------------------------


def settle_options(opt: Namespace, world: World, *, resumed: bool) -> None:
    """What follows from the flags: the run folder's name (the main process chooses), batch in all and of a process."""
    opt.world_size, opt.global_rank = world.size, world.rank
    opt.total_batch_size = opt.batch_size
    opt.batch_size = opt.total_batch_size // world.size
    if not resumed:
        folder = increment_path(Path(opt.project) / opt.name, exist_ok=opt.exist_ok)
        opt.save_dir = from_main(str(folder), world)


def make_run_folder(opt: Namespace, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the folder and write down what is run: opt.yaml with every option, and other files of settings."""
    folder = Path(opt.save_dir)
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    stored = {name: value for name, value in vars(opt).items() if name not in NOT_STORED}
    stored["batch_size"] = opt.total_batch_size
    if opt.resume and (folder / "opt.yaml").is_file():
        begun = read_yaml(folder / "opt.yaml")
        stored |= {name: begun[name] for name in AS_BEGUN if name in begun}
    for name, values in {**files, "opt.yaml": stored}.items():
        write_atomically(folder / name, yaml.safe_dump(dict(values), sort_keys=False))


def settings_of(opt: Namespace, device: torch.device, **own) -> TrainSettings:
    """What the loop takes from the options; own: what a family of detectors adds."""
    return TrainSettings(
        epochs=opt.epochs,
        amp=choose_amp(opt.amp, device),
        max_iter=opt.max_iter,
        patience=opt.patience,
        eval_interval=opt.eval_interval,
        notest=opt.notest,
        nosave=opt.nosave,
        save_every_minutes=opt.save_every,
        skip_nonfinite=opt.skip_nonfinite,
        exact_mid_epoch=opt.seed is not None,
        **own,
    )


def process_seed(seed: int | None, world: World) -> int:
    """Where a process's generators begin: given, the first process is like a single one; else as the reference does."""
    return 2 + world.rank if seed is None else seed + max(world.rank, 0)


def init_seeds(seed: int, deterministic: bool) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True, warn_only=True)


# --- the run itself ---------------------------------------------------------------------------------------------------


def drive(
    family: Family,
    settings: TrainSettings,
    opt: Namespace,
    data,
    device: torch.device,
    world: World,
    checkpoint: dict[str, Any] | None = None,
    files: Mapping[str, Mapping[str, Any]] | None = None,
) -> Outcome:
    """Train a family that is built: fresh, or gone on with from a checkpoint. It is closed at the end.

    data: the data yaml; files: settings to be written into the run folder, by file name.
    """
    run_dir = Path(opt.save_dir)
    reporter = Reporter(run_dir, family.loss_names, figure_names=family.figure_names)
    try:
        check_labels(family, opt)
        if world.is_main:
            make_run_folder(opt, files or {})
            reporter.loggers = make_loggers(opt, run_dir, checkpoint) if settings.keep_files else []
        trainer = Trainer(family, settings, world, device, run_dir, reporter)
        if checkpoint is not None:
            restore(trainer, family, checkpoint, reporter)
            trainer.last_is_damaged = Path(opt.resume).stem == "previous"
        elif world.is_main and settings.keep_files:
            family.save_initial()
        if not trainer.progress.finished:
            tell_start(opt, family, world)
        tell_loggers(reporter.loggers, family, data, opt)
        return trainer.fit()
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"the GPU has no memory left ({str(error).splitlines()[0][:100]}): lower --batch-size or --img-size, "
            "or --test-batch-size if it happened in validation; --amp fp16 halves activations"
        ) from None
    finally:
        family.close()
        reporter.close()


def check_labels(family: Family, opt: Namespace) -> None:
    """Images without any box teach nothing."""
    if not any(len(rows) for rows in family.dataset.labels):
        remedy = "take more with --subset-size, or others with --subset-seed" if opt.subset_size else "label some"
        raise UserError(
            f"none of the {len(family.dataset.labels)} training images of {opt.data} has a box: {remedy}, and look "
            "whether the label files lie where they are looked for (images/ replaced by labels/, .txt)"
        )


def make_loggers(opt: Namespace, run_dir: Path, checkpoint) -> list:
    loggers: list = [TensorBoardLogger(run_dir)]
    log.info("TensorBoard: tensorboard --logdir %s", opt.project)
    if opt.wandb or opt.upload_dataset:
        loggers.append(WandbLogger(opt, run_dir, checkpoint.get("wandb_id") if checkpoint else None))
    return loggers


def tell_loggers(loggers: list, family: Family, data, opt: Namespace) -> None:
    """What loggers want to know once: the classes of the labels, the data set."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.classes(torch.from_numpy(np.concatenate(family.dataset.labels, 0)[:, 0]))
        elif isinstance(logger, WandbLogger):
            family.wandb_id = logger.id
            if opt.upload_dataset:
                logger.dataset([str(p) for p in np.atleast_1d(data.train)])


def tell_start(opt: Namespace, family: Family, world: World) -> None:
    if not world.is_main:
        return
    batches = len(family.loader)
    total = batches * opt.epochs
    print(
        f"Image sizes {family.img_size} train, {family.test_size} test\n"
        f"Using {family.loader.num_workers} dataloader workers\n"
        f"Logging results to {opt.save_dir}\n"
        f"Starting training for {opt.epochs} epochs of {batches} batches..."
    )
    if family.schedule.warmup >= total:
        print(
            f"note: the warm-up lasts {family.schedule.warmup} batches, longer than this run of {total}; "
            f"for a small data set {family.shorter_warmup}"
        )


def exit_code(outcome: Outcome, opt: Namespace, world: World, command: Command) -> int:
    """Say how it ended. An interrupted run ends with its signal's code; --overfit ends with its verdict."""
    if not world.is_main:
        return outcome.interrupted
    progress = outcome.progress
    if outcome.interrupted:
        print(f"stopped in epoch {progress.epoch}; go on with: python {command.script} --resume {opt.save_dir}")
        return outcome.interrupted
    print(f"{progress.epoch} epochs completed in {progress.seconds / 3600:.3f} hours.")
    weights = ", ".join(f"weights/{name}{command.suffix}" for name in ("best", "last"))
    print(f"Results in {opt.save_dir}: {weights}, results.png, PR_curve.png, test_batch0_pred.jpg")
    if not opt.overfit:
        return 0
    first, last, map50 = progress.first_loss, outcome.last_loss, outcome.results[2]
    fell, learnt = last <= FELL_TO * first, map50 >= command.learnt_map50
    print(
        f"overfit: loss {first:.4g} -> {last:.4g} ({'fell' if fell else 'did not fall enough'}), "
        f"mAP@.5 {map50:.3f} on its own images ({'learnt' if learnt else f'below {command.learnt_map50}'})"
    )
    return 0 if fell and learnt else 1
