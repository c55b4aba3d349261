"""A training run of any family, from its config to its outcome: `train` reads top to bottom."""

import contextlib
import logging
import os
import random
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.locks import FolderLock
from yolov7fast.core.process.output import RunOutput
from yolov7fast.core.programs import program_of
from yolov7fast.evaluation.eval_result import FURTHER
from yolov7fast.training.checkpoints.resume import REMEDY, check_unchanged, damage_named, progress_of
from yolov7fast.training.config import AUTO_BATCH, TrainConfig
from yolov7fast.training.distributed import World, from_main, join, leave, peer_failure_as_user_error, peers_watched
from yolov7fast.training.family import Family, load_run_data
from yolov7fast.training.hooks.mirror import check_mirror
from yolov7fast.training.hooks.run_hooks import RunHooks, ending
from yolov7fast.training.logging import messages
from yolov7fast.training.logging.page import FAILED, RunPage
from yolov7fast.training.logging.reporter import Reporter, check_loggers, make_loggers
from yolov7fast.training.optimizer import ModelEMA, load_optimizer
from yolov7fast.training.start import can_halve_batch, completed, make_run_folder, refuse_overtaken
from yolov7fast.training.trainer import Outcome, Trainer

log = logging.getLogger(__name__)
LOG = "train.log"  # in the run's folder: everything that the run prints


class BatchTooLarge(Exception):
    """The batch that --batch-size auto chose does not fit into memory."""


def train(
    config: TrainConfig,
    family_class: type[Family],
    world: World,
    checkpoint: dict[str, Any] | None = None,
    output: RunOutput | None = None,
) -> Outcome:
    """One training, fresh or resumed from a checkpoint.

    Args:
        config: of the run, see `start.start_or_resume`.
        output: the printed text, copied to the run's folder.

    The folder is created when everything is built, so that a mistake leaves none.
    """
    config, device = prepare_process(config, family_class, world, checkpoint)
    with (
        peers_watched(world.rank, world.size, from_main(uuid4().hex, world), config.dist_timeout),
        FolderLock(Path(config.save_dir), wanted=world.is_main and config.keep_files) as lock,
        RunHooks(config, output) as hooks,
    ):
        keep_log(output, config, world, only_in_existing=True)
        if world.is_main:
            refuse_overtaken(config)

        data = load_run_data(config, world)
        model = family_class.build_network(config, data, checkpoint).to(device)
        family = family_class(config, data, model, device, world)
        reporter = Reporter(Path(config.save_dir), family.loss_names, (*family.metric_names, *FURTHER))
        with closing(reporter), closing(family):
            # upstream's order, which determines its random draws and the first averaged weights
            family.optimizer = family.build_optimizer()
            family.ema = ModelEMA(model) if world.is_main else None
            family.build_loaders(family.stages[0])
            family.fit_to_data(resumed=checkpoint is not None)
            family.net = family.wrapped()
            family.build_loss()
            trainer = Trainer(family, config, world, reporter)

            with failures_reported(trainer, hooks, checkpoint):
                is_changed = check_training_set(trainer, checkpoint)
                open_run(trainer, lock, hooks, output, checkpoint)
                if checkpoint is not None:
                    resume(trainer, checkpoint, is_changed)
                else:
                    trainer.save_initial()
                announce(trainer, is_fresh=checkpoint is None)
                outcome = trainer.fit()
                hooks.ended = messages.ending(outcome, config)
                reporter.ended(hooks.ended[0])
        return outcome._replace(exit_code=messages.print_end(outcome, family))


def run_training(
    config: TrainConfig,
    family_class: type[Family],
    world: World,
    checkpoint: dict[str, Any] | None = None,
    output: RunOutput | None = None,
) -> Outcome:
    """`train`, again with half the batch as long as that of --batch-size auto is too large; then leave the group."""
    with peer_failure_as_user_error(world):
        while True:
            try:
                outcome = train(config, family_class, world, checkpoint, output)
                break
            except BatchTooLarge as error:
                batch = error.args[0].batch_size // 2
                config = replace(error.args[0], batch_size=batch, starts_over=True)
            torch.cuda.empty_cache()
            log.warning(
                "--batch-size auto: the first steps ran out of memory; the run starts again with batch %d, and more "
                "batches accumulate to the same nominal batch",
                batch,
            )
    leave()
    return outcome


# --- the process ------------------------------------------------------------------------------------------------------


def prepare_process(
    config: Any, family_class: type[Family], world: World, checkpoint: dict[str, Any] | None
) -> tuple[Any, torch.device]:
    """Find files and device, join the process group, seed the generators: the completed config and the device."""
    if world.is_main:
        check_loggers(config)
        if config.mirror and config.keep_files:
            check_mirror(config.mirror, is_fresh=checkpoint is None)
    config = family_class.find_files(config)
    device = one_device(config, world, program_of("train", family_class.name).invocation)
    batch = world.size if config.batch_size == AUTO_BATCH else config.batch_size
    device = join(world, device, batch, config.dist_timeout)
    check_same_start(checkpoint, world)
    config = completed(config, family_class, device, world, checkpoint)
    init_seeds(process_seed(config.seed, world), config.deterministic)
    if getattr(config, "rect", True):  # always for DETR, whose batches are cut to what images cover
        torch.backends.cudnn.benchmark = False  # it would time its algorithms for each of many shapes
    return config, device


def one_device(config: TrainConfig, world: World, start: str) -> torch.device:
    """The device of `--device`: one process trains on one GPU, the first. start: the command, such as `python ...`"""
    device = select_device(config.device)
    named = [part for part in str(config.device).split(",") if part.strip()]
    if len(named) > 1 and not world.is_distributed:
        line = f"{torchrun_line(len(named), start)} --device {config.device} ..."
        raise UserError(f"--device {config.device}: one process trains on one GPU; for all of them: {line}")
    count = torch.cuda.device_count() if device.type == "cuda" and not world.is_distributed else 1
    if count > 1:
        log.info("training on the first of %d GPUs; for all of them: %s ...", count, torchrun_line(count, start))
    return device


def torchrun_line(processes: int, start: str) -> str:
    return f".venv/bin/torchrun --nproc_per_node {processes} {start.removeprefix('python ')}"


def check_same_start(checkpoint: dict[str, Any] | None, world: World) -> None:
    """All processes begin at the same iteration: on machines without shared storage some may not find the
    checkpoint."""
    state = (checkpoint or {}).get("resume")
    own = progress_of(state).global_step if state else 0
    first = from_main(own, world)
    if own != first:
        raise UserError(
            f"rank {world.rank} begins at iteration {own}, rank 0 at {first}: every machine must see the same run "
            "folder. Put it on shared storage, or copy it to all machines before resuming"
        )


def process_seed(seed: int | None, world: World) -> int:
    """The seed of a process: with --seed the first process is like a single one; without it as upstream does."""
    return 2 + world.rank if seed is None else seed + max(world.rank, 0)


def init_seeds(seed: int, deterministic: bool) -> None:
    """Seed Python, NumPy and torch, and let cuDNN choose its algorithms by speed or deterministically."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which cuBLAS requires
        torch.use_deterministic_algorithms(True, warn_only=True)


# --- data, folder, reports --------------------------------------------------------------------------------------------


def check_training_set(trainer: Trainer, checkpoint: dict[str, Any] | None) -> bool:
    """Refuse a training set without boxes, and one that has changed since the checkpoint without --allow-changed-data.

    Returns whether it has changed.
    """
    config, labels = trainer.config, trainer.family.dataset.labels
    if not any(len(rows) for rows in labels):
        remedy = "take more with --subset-size, or others with --subset-seed" if config.subset_size else "label some"
        raise UserError(
            f"none of the {len(labels)} training images of {config.data} has a box: {remedy}, and check whether the "
            "label files lie where they are looked for (images/ replaced by labels/, .txt)"
        )
    if checkpoint is None or not config.keep_files:
        return False
    state = checkpoint.get("resume") or {}
    unchanged = check_unchanged(state.get("data"), trainer.data_fingerprint, str(config.resume))
    difference = from_main(unchanged, trainer.world)
    if not difference:
        return False
    text = f"--resume {config.resume}: the data set has changed since this checkpoint"
    if not config.allow_changed_data:
        raise UserError(f"{text} ({REMEDY}): {difference}")
    if trainer.world.is_main:
        log.warning("%s, and --allow-changed-data accepts it: %s", text, difference)
    return True


def keep_log(output: RunOutput | None, config: TrainConfig, world: World, only_in_existing: bool = False) -> None:
    """Copy the output to the run's folder from now on. only_in_existing: only if the folder exists."""
    folder = Path(config.save_dir)
    if output is None or (only_in_existing and not folder.is_dir()):
        return
    started = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, process {os.getpid()} on {gethostname()}"
    output.keep_log(folder / LOG, f"--- {started}: {shlex.join(sys.argv)}" if world.is_main else "")


def restore_folder(config: TrainConfig, family: Family, lock: FolderLock, reporter: Reporter) -> None:
    """Create the run's folder again if it was removed, so that the state in memory can be saved. A folder that another
    process has created and locked in the meantime is refused.
    """
    lock.renew()
    if not family.weights_dir.is_dir():
        log.warning("%s was removed: it is created again, without the files of earlier epochs", family.weights_dir)
        make_run_folder(replace(config, starts_over=False), family)
        reporter.write_tables()


def open_run(
    trainer: Trainer, lock: FolderLock, hooks: RunHooks, output: RunOutput | None, checkpoint: dict[str, Any] | None
) -> None:
    """Create the run's folder and open the log, the loggers and the page, and begin with copies and commands."""
    config, reporter = trainer.config, trainer.reporter
    if trainer.world.is_main:
        lock.take()
        make_run_folder(config, trainer.family)
        trainer.restore_folder = partial(restore_folder, config, trainer.family, lock, reporter)
    keep_log(output, config, trainer.world)
    if trainer.world.is_main and config.keep_files:
        reporter.loggers = make_loggers(config, reporter.run_dir, checkpoint)
        reporter.page = RunPage(reporter.run_dir, resumed=checkpoint is not None)
        hooks.begin(trainer, resumed=checkpoint is not None)


def announce(trainer: Trainer, is_fresh: bool) -> None:
    """Print the settings of the run, and pass them to the page and the loggers."""
    family, reporter = trainer.family, trainer.reporter
    if not trainer.progress.finished and trainer.world.is_main:
        messages.print_header(family, is_fresh)
    for logger in reporter.loggers:
        logger.begin(family)
    if reporter.page is not None:
        reporter.page.begin(family, trainer.progress, messages.next_steps(family))


# --- resuming and failing ---------------------------------------------------------------------------------------------


def resume(trainer: Trainer, checkpoint: dict[str, Any], is_changed: bool) -> None:
    """Restore a checkpoint's state: a complete one of this project, or the parts of another file that the family can
    use.

    is_changed: the data set has changed, so an incomplete epoch is run again.
    """
    family, source = trainer.family, str(trainer.config.resume)
    with damage_named(source):
        if checkpoint.get("optimizer") is not None:
            load_optimizer(family.optimizer, checkpoint["optimizer"])
        if checkpoint.get("resume"):
            trainer.resume(checkpoint["resume"])
        else:
            log.warning("this checkpoint holds no random or full-precision state: the run resumes, but not exactly")
            family.load_foreign_checkpoint(checkpoint, trainer.progress)
        if trainer.world.is_main and checkpoint.get("training_results") is not None:
            trainer.reporter.rewind(checkpoint["training_results"], trainer.progress.epoch)
    if is_changed:
        trainer.restart_epoch()
    trainer.files.last_is_damaged = Path(source).stem == "previous"


@contextlib.contextmanager
def failures_reported(trainer: Trainer, hooks: RunHooks, checkpoint: dict[str, Any] | None) -> Iterator[None]:
    """Show on the run's page why it failed or stopped; running out of memory becomes one line, or a `BatchTooLarge`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        if can_halve_batch(trainer.config, trainer.progress, trainer.world, checkpoint):
            hooks.cancel()
            raise BatchTooLarge(trainer.config) from None
        message = (
            f"the GPU has no memory left ({str(error).splitlines()[0][:100]}): lower --batch-size or --img-size, "
            "or --test-batch-size if it happened in validation; --amp fp16 halves activations"
        )
        trainer.reporter.ended(FAILED, message)
        raise UserError(message) from None
    except BaseException as error:
        trainer.reporter.ended(*ending(error))
        raise
