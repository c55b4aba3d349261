"""A training run of any family, from its options to its exit code: `run_training` reads top to bottom."""

import logging
import os
import random
import shlex
import sys
import traceback
from argparse import Namespace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from signal import SIGINT
from socket import gethostname
from typing import Any, TypeVar

import cv2
import numpy as np
import torch

from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.files.locks import FolderLock
from yolov7fast.core.process.output import RunOutput, log_to_stderr, run_output
from yolov7fast.core.process.signals import words
from yolov7fast.evaluation.eval_result import FURTHER
from yolov7fast.training.checkpoints.data_changes import REMEDY, Fingerprint, check_unchanged
from yolov7fast.training.checkpoints.resume import NothingToDo, Progress, damage_named, progress_of
from yolov7fast.training.distributed import (
    World,
    from_main,
    join,
    leave,
    lowest,
    peer_failure_as_user_error,
    world_from_environment,
)
from yolov7fast.training.family import Family
from yolov7fast.training.logging import messages
from yolov7fast.training.logging.loggers import check_loggers, make_loggers
from yolov7fast.training.logging.page import COMPLETE, FAILED, STOPPED, RunPage
from yolov7fast.training.logging.reporter import Reporter
from yolov7fast.training.optimizer import load_optimizer
from yolov7fast.training.options import (
    AUTO,
    AUTO_BATCH,
    Command,
    make_run_folder,
    resolve_options,
    resumed_options,
    settings_of,
    start_or_resume,
)
from yolov7fast.training.trainer import Outcome, Trainer

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Family)
FIRST_STEPS = 10  # in which a run out of memory may still begin anew with half of an automatic batch
LOG = "train.log"  # in the run's folder: all that the run prints, whatever becomes of its terminal


def run_training(family_class: type[Family], opt: Namespace, command: Command) -> int:
    """Train as the options say; returns the exit code."""
    return run_in_folder(family_class, opt, command)[0]


def run_in_folder(family_class: type[Family], opt: Namespace, command: Command) -> tuple[int, Path | None]:
    """The same; returns the exit code and the run's folder, if it has one."""
    world = world_from_environment(opt.local_rank)
    with run_output(f"rank {world.rank}: " if world.rank > 0 else "") as output:
        log_to_stderr(logging.INFO if world.is_main else logging.WARNING)
        package, is_verbose = logging.getLogger("yolov7fast"), getattr(opt, "verbose", False)  # not of every family
        level = package.level
        package.setLevel(logging.DEBUG if is_verbose else level)
        try:
            return logged_run(family_class, opt, command, world, output)
        except BaseException as error:
            output.note(last_words(error))
            raise
        finally:
            package.setLevel(level)


def last_words(error: BaseException) -> str:
    """What the log of a run says about its end."""
    if isinstance(error, UserError):
        return f"error: {one_line(error)}"
    if isinstance(error, KeyboardInterrupt):
        return words(getattr(error, "number", SIGINT))
    return "".join(traceback.format_exception(error))


def logged_run(
    family_class: type[Family], opt: Namespace, command: Command, world: World, output: RunOutput
) -> tuple[int, Path | None]:
    command.settle(opt)
    checkpoint, auto = None, opt.resume == AUTO
    if opt.resume and not family_class.ignores_resume(opt):
        opt = start_or_resume(opt, family_class) if auto else opt
        try:
            if opt.resume:
                opt, checkpoint = resumed_options(opt, family_class, command)
        except NothingToDo as error:
            if not auto:
                raise
            log.info("%s", error)
            return 0, Path(opt.resume)
    command.check(opt)
    if world.is_main:
        check_loggers(opt)
    family_class.check_files(opt)
    is_number = opt.batch_size != AUTO_BATCH
    device = select_device(opt.device, batch_size=opt.batch_size if family_class.uses_all_gpus and is_number else None)
    advise_on_gpus(family_class, command.invocation(family_class.name), device, world)
    with peer_failure_as_user_error(world):
        code = family_class.run_instead(opt, device, world, checkpoint)
        if code is None:
            outcome = train_once(family_class, opt, device, world, checkpoint, command=command, output=output)
            code = exit_code(outcome, opt, world, family_class, command)
    leave()
    save_dir = getattr(opt, "save_dir", "")
    return code, Path(save_dir) if save_dir else None


def advise_on_gpus(family_class: type[Family], invocation: str, device: torch.device, world: World) -> None:
    """Where one process trains on one GPU, say so if others stand idle."""
    count = torch.cuda.device_count() if device.type == "cuda" and not world.is_distributed else 1
    if count > 1 and not family_class.uses_all_gpus:
        log.info(
            "training on the first of %d GPUs; for all of them: .venv/bin/torchrun --nproc_per_node %d %s ...",
            *(count, count, invocation.removeprefix("python ")),
        )


def train_once(
    family_class: type[Family],
    opt: Namespace,
    device: torch.device,
    world: World,
    checkpoint: dict[str, Any] | None = None,
    keep_files: bool = True,
    command: Command | None = None,
    output: RunOutput | None = None,
) -> Outcome:
    """One complete training, fresh or resumed. Also what evolution runs for each generation, without files.

    command: what started it, for the run's page; output: what is printed, to be kept in the run's folder. The folder
    is made when all is built: a mistake leaves none behind.
    """
    device = prepare(family_class, opt, device, world, checkpoint)
    run_dir = Path(opt.save_dir)
    with FolderLock(run_dir, wanted=world.is_main and keep_files) as lock:
        if output is not None and run_dir.is_dir():
            keep_log(output, run_dir, world)
        if world.is_main:
            refuse_overtaken(opt)
        while True:
            family = family_class.build(opt, device, world, checkpoint)
            outcome = train_in_folder(family, opt, world, checkpoint, keep_files, lock, command, output)
            if outcome is not None:
                return outcome
            del family  # its memory is needed
            begin_with_half(opt, device, world)


def begin_with_half(opt: Namespace, device: torch.device, world: World) -> None:
    """Where --batch-size auto was too optimistic, begin anew with half of its batch, as if that had been chosen."""
    opt.total_batch_size //= 2
    opt.batch_size = opt.total_batch_size // world.size
    opt.begins_anew = True
    if device.type == "cuda":
        torch.cuda.empty_cache()
    log.warning(
        "--batch-size auto: the first steps ran out of memory; the run begins anew with batch %d, and more batches "
        "accumulate to the same nominal batch",
        opt.total_batch_size,
    )
    init_seeds(process_seed(opt.seed, world), opt.deterministic)


def can_begin_with_half(opt: Namespace, progress: Progress, world: World, checkpoint: dict[str, Any] | None) -> bool:
    """Whether a run out of memory may begin anew: nothing is lost by it, and the batch is ours to choose.

    With several processes the others would wait for ever for the one that begins anew.
    """
    return (
        getattr(opt, "automatic_batch", False)
        and checkpoint is None
        and progress.epoch == 0
        and progress.global_step < FIRST_STEPS
        and opt.total_batch_size > 1
        and not world.is_distributed
    )


def refuse_overtaken(opt: Namespace) -> None:
    """The checkpoint was read before the folder was locked: whoever had it until then may have trained further."""
    if getattr(opt, "resume_time", None) and Path(opt.resume).stat().st_mtime_ns != opt.resume_time:
        raise UserError(
            f"{opt.resume} has just been replaced by another process that trained in its folder: start again"
        )


def keep_log(output: RunOutput, run_dir: Path, world: World) -> None:
    """From now on what is printed is kept in the run's folder, too."""
    output.keep_log(run_dir / LOG, f"--- {started_as()}" if world.is_main else "")


def train_in_folder(
    family: Family,
    opt: Namespace,
    world: World,
    checkpoint: dict[str, Any] | None,
    keep_files: bool,
    lock: FolderLock,
    command: Command | None,
    output: RunOutput | None,
) -> Outcome | None:
    """Train what is built; closes it in any case. None: the batch of --batch-size auto is too large."""
    device, run_dir, trainer = family.device, Path(opt.save_dir), None
    reporter = Reporter(run_dir, family.loss_names, metric_names=(*family.metric_names, *FURTHER))
    try:
        check_labels(family, opt)
        present = family.data_fingerprint() if keep_files else None
        is_changed = checkpoint is not None and present is not None and accept_changes(checkpoint, present, opt, world)
        if world.is_main:
            lock.take()
            make_run_folder(opt, family)
        if output is not None:
            keep_log(output, run_dir, world)
        if world.is_main:
            reporter.loggers = make_loggers(opt, run_dir, checkpoint) if keep_files else []
            if keep_files and command is not None:
                reporter.page = RunPage(run_dir, resumed=checkpoint is not None)
        trainer = Trainer(family, settings_of(opt, device, keep_files), world, device, run_dir, reporter)
        trainer.data_fingerprint = present
        if world.is_main and keep_files:
            trainer.restore_folder = partial(restore_folder, opt, family, lock, reporter)
        if checkpoint is not None:
            with damage_named(opt.resume):
                restore(trainer, family, checkpoint, reporter)
            if is_changed:
                trainer.restart_epoch()
            trainer.files.last_is_damaged = Path(opt.resume).stem == "previous"
        else:
            trainer.save_initial()
        if not trainer.progress.finished and world.is_main:
            messages.print_header(opt, family, is_fresh=checkpoint is None)
        for logger in reporter.loggers:
            logger.begin(family)
        if reporter.page is not None and command is not None:
            best = family.weights_dir / f"best{family.checkpoint_suffix}"
            steps = command.next_steps(opt.save_dir, str(best), str(opt.data))
            reporter.page.begin(opt, family, trainer.progress, command.defaults(), steps)
        outcome = trainer.fit()
        reporter.ended(STOPPED if outcome.interrupted else COMPLETE)
        return outcome
    except torch.OutOfMemoryError as error:
        if trainer is not None and can_begin_with_half(opt, trainer.progress, world, checkpoint):
            return None
        message = (
            f"the GPU has no memory left ({str(error).splitlines()[0][:100]}): lower --batch-size or --img-size, "
            "or --test-batch-size if it happened in validation; --amp fp16 halves activations"
        )
        reporter.ended(FAILED, message)
        raise UserError(message) from None
    except UserError as error:
        reporter.ended(FAILED, str(error))
        raise
    finally:
        family.close()
        reporter.close()


def restore_folder(opt: Namespace, family: Family, lock: FolderLock, reporter: Reporter) -> None:
    """Make the run's folder again where it was removed, so that what is in memory can be saved.

    One that another process has made and taken in the meantime is refused.
    """
    lock.renew()
    if not family.weights_dir.is_dir():
        log.warning("%s was removed: it is made again, without the files of earlier epochs", family.weights_dir)
        make_run_folder(Namespace(**vars(opt) | {"begins_anew": False}), family)
        reporter.write_tables()


def build_family(
    family_class: type[F],
    opt: Namespace,
    device: torch.device,
    world: World,
    checkpoint: dict[str, Any] | None = None,
) -> F:
    """Prepare the process, and build network, data and optimizer."""
    device = prepare(family_class, opt, device, world, checkpoint)
    return family_class.build(opt, device, world, checkpoint)


def prepare(
    family_class: type[Family],
    opt: Namespace,
    device: torch.device,
    world: World,
    checkpoint: dict[str, Any] | None,
) -> torch.device:
    """Join the process group, complete the options, seed the generators; returns this process's device."""
    opt.automatic_batch = opt.batch_size == AUTO_BATCH
    device = join(world, device, world.size if opt.automatic_batch else opt.batch_size, opt.dist_timeout)
    check_start(checkpoint, world)
    if opt.automatic_batch:
        opt.batch_size = lowest(family_class.automatic_batch(opt, device, world), world)
    resolve_options(opt, world, resumed=checkpoint is not None)
    set_threads(opt)
    init_seeds(process_seed(opt.seed, world), opt.deterministic)
    return device


def set_threads(opt: Namespace) -> None:
    """As the flags say; loader processes inherit OpenCV's."""
    if opt.torch_threads:
        torch.set_num_threads(opt.torch_threads)
    if opt.opencv_threads:
        cv2.setNumThreads(opt.opencv_threads)


def check_start(checkpoint: dict[str, Any] | None, world: World) -> None:
    """All processes begin at the same iteration: on machines without shared storage one may not see the checkpoint."""
    state = (checkpoint or {}).get("resume")
    own = progress_of(state).global_step if state else 0
    first = from_main(own, world)
    if own != first:
        raise UserError(
            f"rank {world.rank} begins at iteration {own}, rank 0 at {first}: every machine must see the same run "
            "folder. Put it on shared storage, or copy it to all machines before resuming"
        )


def started_as() -> str:
    """When, where and by which command this process was started."""
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, process {os.getpid()} on {gethostname()}: {shlex.join(sys.argv)}"
    )


def process_seed(seed: int | None, world: World) -> int:
    """Where a process's generators begin: given, the first process is like a single one; else as upstream does."""
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


def check_labels(family: Family, opt: Namespace) -> None:
    """Images without any box teach nothing."""
    labels = family.dataset.labels
    if not any(len(rows) for rows in labels):
        remedy = "take more with --subset-size, or others with --subset-seed" if opt.subset_size else "label some"
        raise UserError(
            f"none of the {len(labels)} training images of {opt.data} has a box: {remedy}, and check whether the "
            "label files lie where they are looked for (images/ replaced by labels/, .txt)"
        )


def accept_changes(checkpoint: dict[str, Any], present: Fingerprint, opt: Namespace, world: World) -> bool:
    """Whether the data is no longer that of the checkpoint; refused unless --allow-changed-data accepts it."""
    state = checkpoint.get("resume") or {}
    difference = from_main(check_unchanged(state.get("data"), present, str(opt.resume)), world)
    if not difference:
        return False
    text = f"--resume {opt.resume}: the data set has changed since this checkpoint"
    if not opt.allow_changed_data:
        raise UserError(f"{text} ({REMEDY}): {difference}")
    if world.is_main:
        log.warning("%s, and --allow-changed-data accepts it: %s", text, difference)
    return True


def restore(trainer: Trainer, family: Family, checkpoint: dict[str, Any], reporter: Reporter) -> None:
    """Put a checkpoint's state back: our own complete one, or what of another file the family can use."""
    if checkpoint.get("optimizer") is not None:
        load_optimizer(family.optimizer, checkpoint["optimizer"])
    if checkpoint.get("resume"):
        trainer.resume(checkpoint["resume"])
    else:
        log.warning("this checkpoint holds no random or full-precision state: the run resumes, but not exactly")
        family.load_foreign_checkpoint(checkpoint, trainer.progress)
    if trainer.world.is_main and checkpoint.get("training_results") is not None:
        reporter.rewind(checkpoint["training_results"], trainer.progress.epoch)


def exit_code(outcome: Outcome, opt: Namespace, world: World, family: type[Family], command: Command) -> int:
    """Print how the run ended. An interrupted run exits with its signal's code; --overfit with its verdict."""
    if not world.is_main:
        return outcome.interrupted
    if outcome.interrupted:
        invocation = command.invocation(family.name)
        resume = f"{invocation} --resume {shlex.quote(str(opt.save_dir))}"
        print(f"stopped in epoch {outcome.progress.epoch}/{opt.epochs - 1}; resume with: {resume}")
        return outcome.interrupted
    messages.print_end(outcome, opt, family, command)
    return messages.overfit_verdict(outcome) if opt.overfit else 0
