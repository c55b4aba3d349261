"""A training run of any family, from its options to its exit code: `run_training` reads top to bottom."""

import logging
import os
import random
from argparse import Namespace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from yolov7fast.core.device import select_device
from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.further_metrics import FURTHER
from yolov7fast.training import messages
from yolov7fast.training.distributed import World, join, leave, peer_failure_as_user_error, world_from_environment
from yolov7fast.training.family import Family
from yolov7fast.training.loggers import make_loggers
from yolov7fast.training.optimizer import load_optimizer
from yolov7fast.training.options import Command, make_run_folder, resolve_options, resumed_options, settings_of
from yolov7fast.training.page import COMPLETE, FAILED, STOPPED, RunPage
from yolov7fast.training.reporter import Reporter
from yolov7fast.training.trainer import Outcome, Trainer

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Family)


def run_training(family_class: type[Family], opt: Namespace, command: Command) -> int:
    """Train as the options say; returns the exit code."""
    return run_in_folder(family_class, opt, command)[0]


def run_in_folder(family_class: type[Family], opt: Namespace, command: Command) -> tuple[int, Path | None]:
    """The same; returns the exit code and the run's folder, if it has one."""
    world = world_from_environment(opt.local_rank)
    logging.basicConfig(format="%(message)s", level=logging.INFO if world.is_main else logging.WARNING)
    checkpoint = None
    command.settle(opt)
    if opt.resume and not family_class.ignores_resume(opt):
        opt, checkpoint = resumed_options(opt, family_class, command)
    command.check(opt)
    family_class.check_files(opt)
    device = select_device(opt.device, batch_size=opt.batch_size if family_class.uses_all_gpus else None)
    advise_on_gpus(family_class, command.invocation(family_class.name), device, world)
    with peer_failure_as_user_error(world):
        code = family_class.run_instead(opt, device, world, checkpoint)
        if code is None:
            outcome = train_once(family_class, opt, device, world, checkpoint, command=command)
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
) -> Outcome:
    """One complete training, fresh or resumed. Also what evolution runs for each generation, without files.

    command: what started it, for the run's page.
    """
    family = build_family(family_class, opt, device, world, checkpoint)
    device, run_dir = family.device, Path(opt.save_dir)
    reporter = Reporter(run_dir, family.loss_names, metric_names=(*family.metric_names, *FURTHER))
    try:
        check_labels(family, opt)
        if world.is_main:
            make_run_folder(opt, family)
            reporter.loggers = make_loggers(opt, run_dir, checkpoint) if keep_files else []
            if keep_files and command is not None:
                reporter.page = RunPage(run_dir, resumed=checkpoint is not None)
        trainer = Trainer(family, settings_of(opt, device, keep_files), world, device, run_dir, reporter)
        if checkpoint is not None:
            restore(trainer, family, checkpoint, reporter)
            trainer.last_is_damaged = Path(opt.resume).stem == "previous"
        elif world.is_main and keep_files:
            family.save_initial()
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


def build_family(
    family_class: type[F],
    opt: Namespace,
    device: torch.device,
    world: World,
    checkpoint: dict[str, Any] | None = None,
) -> F:
    """Join the process group, complete the options, seed the generators, and build network, data and optimizer."""
    device = join(world, device, opt.batch_size)
    resolve_options(opt, world, resumed=checkpoint is not None)
    init_seeds(process_seed(opt.seed, world), opt.deterministic)
    return family_class.build(opt, device, world, checkpoint)


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
        print(f"stopped in epoch {outcome.progress.epoch}; resume with: {invocation} --resume {opt.save_dir}")
        return outcome.interrupted
    messages.print_end(outcome, opt, family, command)
    return messages.overfit_verdict(outcome, family.memorised_map50) if opt.overfit else 0
