"""What a run prints first and last: what it is going to do and what stands in its way, then what came out of it."""

import shlex
import sys
from argparse import Namespace
from pathlib import Path

from yolov7fast.core.text import counted, styled
from yolov7fast.data.loading.create_dataloader import why_fewer
from yolov7fast.evaluation.eval_result import MAP, MAP50
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.family import Family
from yolov7fast.training.options import Command
from yolov7fast.training.trainer import Outcome

SMALL_SET = 5000  # training images, below which start weights make most of the difference
SHOWN = ("index.html", "results.png", "results.csv", "PR_curve.png", "test_batch0_pred.jpg")  # where to look first
FELL_TO = 0.7  # --overfit: the loss must fall to this fraction of its first epoch's


# --- first ------------------------------------------------------------------------------------------------------------


def print_header(opt: Namespace, family: Family, is_fresh: bool) -> None:
    """is_fresh: the run is not a resumed one."""
    batches = len(family.loader)
    total = batches * opt.epochs
    length = f"{counted(opt.epochs, 'epoch')} of {counted(batches, 'batch', 'batches')}"
    if 0 < opt.max_iter < total:
        total = opt.max_iter
        length = f"{counted(total, 'iteration')} (--max-iter), {batches} an epoch"
    print(
        f"Image sizes {family.img_size} train, {family.test_size} test\n"
        f"Using {workers_text(opt, family)}\n"
        f"Logging results to {opt.save_dir}"
    )
    if is_fresh:
        for warning in (scratch_warning(opt, family), warmup_warning(family, total)):
            if warning:
                print(styled(f"WARNING: {warning}", "warning", sys.stdout))
    print(f"Starting training for {length}...")


def workers_text(opt: Namespace, family: Family) -> str:
    """How many loader processes are used and, where --workers asks for more, why not those."""
    used = counted(family.loader.num_workers, "dataloader worker")
    reason = why_fewer(opt.workers, min(opt.batch_size, len(family.dataset)), opt.world_size)
    is_fewer = family.loader.num_workers < opt.workers
    return f"{used} of the {opt.workers} that --workers allows: {reason}" if is_fewer else used


def warmup_warning(family: Family, total: int) -> str:
    """What to say of a warm-up that leaves less than half of the run's `total` iterations; nothing of a shorter one."""
    if family.warmup <= total / 2:
        return ""
    return (
        f"the learning rate warms up for {counted(family.warmup, 'iteration')}, and this run has {total:,}: it will "
        f"hardly learn. Add {family.shorter_warmup}"
    )


def scratch_warning(opt: Namespace, family: Family) -> str:
    """What to say of a small data set that a network without start weights is to learn from."""
    images = len(family.dataset)
    is_part = opt.subset_size or opt.overfit  # of a larger set, to try something out
    if images >= SMALL_SET or is_part or family.data.generate or not family.start_weights:
        return ""
    return (
        f"no start weights (--weights is empty), so all is learnt from {counted(images, 'image')} alone; start weights "
        f"usually give a far better detector. Add {family.start_weights}"
    )


# --- last -------------------------------------------------------------------------------------------------------------


def print_end(outcome: Outcome, opt: Namespace, family: type[Family], command: Command) -> None:
    """How long the run took, its best epoch with its file, and the commands that come next."""
    progress, folder = outcome.progress, Path(opt.save_dir)
    by_iterations = 0 < opt.max_iter <= progress.global_step and progress.epoch < opt.epochs
    done = counted(progress.epoch, "epoch")
    if by_iterations:
        done = f"{counted(progress.global_step, 'iteration')} (--max-iter)"
    print(f"{done} completed in {progress.seconds / 3600:.3f} hours.")
    names = [f"{name}{family.checkpoint_suffix}" for name in ("best", "last")]
    found = [path for name in names for path in (folder / "weights" / name, folder / name) if path.is_file()]
    if found:
        print(styled(f"Best epoch: {best_text(progress)}{found[0]}", "good", sys.stdout))
    print(f"Results in {folder}: {', '.join(name for name in SHOWN if (folder / name).is_file())}")
    if found and not opt.overfit:
        print("Next, measure it and find objects with it:")
        for line in next_commands(found[0], opt, family, command):
            print(f"  {line}")


def best_text(progress: Progress) -> str:
    """'21/25, mAP@.5 0.785, mAP@.5:.95 0.501: ' as the bar has it; empty: unknown."""
    if progress.best_epoch is None:
        return ""
    map50, map_ = (progress.best_metrics.get(name, 0.0) for name in (MAP50, MAP))
    return f"{progress.best_epoch}/{progress.epoch - 1}, mAP@.5 {map50:.3f}, mAP@.5:.95 {map_:.3f}: "


def next_commands(weights: Path, opt: Namespace, family: type[Family], command: Command) -> list[str]:
    """The commands that measure a checkpoint as training did, and that detect with it."""
    file = shlex.quote(str(weights))
    measure = ["--weights", file, "--data", shlex.quote(str(opt.data)), *family.command_flags("test", opt)]
    find = ["--weights", file, "--source", "FOLDER", *family.command_flags("detect", opt)]
    commands = {"test": measure, "detect": find}
    return [" ".join([command.invocation(family.name, name), *flags]) for name, flags in commands.items()]


def overfit_verdict(outcome: Outcome) -> int:
    """0: the loss has clearly fallen; 1: it has not, so something is wrong."""
    first, last, map50 = outcome.progress.first_loss, outcome.last_loss, outcome.metrics.get(MAP50, 0.0)
    fell = first is not None and last <= FELL_TO * first
    print(
        f"overfit: loss {first or 0.0:.4g} -> {last:.4g} ({'fell' if fell else 'did not fall enough'}), "
        f"mAP@.5 {map50:.3f} on its own images"
    )
    return 0 if fell else 1
