"""The first and last messages of a run: its settings with warnings, and its results."""

import shlex
import sys
from pathlib import Path

from yolov7fast.checkpoint.released_weights import released_for
from yolov7fast.core.process.signals import words
from yolov7fast.core.programs import program, program_of
from yolov7fast.core.text import counted, styled
from yolov7fast.data.loading.create_dataloader import why_fewer
from yolov7fast.evaluation.eval_result import MAP, MAP50
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.config import TrainConfig
from yolov7fast.training.family import Family
from yolov7fast.training.logging.page import COMPLETE, STOPPED
from yolov7fast.training.trainer import Outcome

SMALL_SET = 5000  # number of training images below which start weights matter most
SHOWN = ("index.html", "results.png", "results.csv", "PR_curve.png", "test_batch0_pred.jpg")  # files to look at first
FELL_TO = 0.7  # --overfit: the loss must fall to this fraction of its first epoch's


# --- first ------------------------------------------------------------------------------------------------------------


def print_header(family: Family, is_fresh: bool) -> None:
    """Print the settings of the run. is_fresh: the run is not resumed."""
    config, batches = family.config, len(family.loader)
    total = batches * config.epochs
    length = f"{counted(config.epochs, 'epoch')} of {counted(batches, 'batch', 'batches')}"
    if 0 < config.max_iter < total:
        total = config.max_iter
        length = f"{counted(total, 'iteration')} (--max-iter), {batches} an epoch"
    print(
        f"Image sizes {family.img_size} train, {family.test_size} test\n"
        f"Using {workers_text(family)}\n"
        f"Logging results to {config.save_dir}"
    )
    if is_fresh:
        for warning in (scratch_warning(family), warmup_warning(family, total)):
            if warning:
                print(styled(f"WARNING: {warning}", "warning", sys.stdout))
    print(f"Starting training for {length}...")


def workers_text(family: Family) -> str:
    """The number of loader processes and, if --workers allows more, the reason."""
    config, used = family.config, counted(family.loader.num_workers, "dataloader worker")
    reason = why_fewer(config.workers, min(config.batch_per_process, len(family.dataset)), config.world_size)
    is_fewer = family.loader.num_workers < config.workers
    return f"{used} of the {config.workers} that --workers allows: {reason}" if is_fewer else used


def warmup_warning(family: Family, total: int) -> str:
    """The warning that the warm-up takes more than half of the run's `total` iterations; empty: it does not."""
    if family.warmup <= total / 2:
        return ""
    return (
        f"the learning rate warms up for {counted(family.warmup, 'iteration')}, and this run has {total:,}: it will "
        f"hardly learn. Add {family.shorter_warmup}"
    )


def scratch_warning(family: Family) -> str:
    """The warning that a network without start weights is trained on a small data set; empty: it is not."""
    config, images = family.config, len(family.dataset)
    file = released_for(getattr(config, "cfg", ""))
    is_part = config.subset_size or config.overfit  # of a larger set, for an experiment
    if images >= SMALL_SET or is_part or family.data.generate or config.weights or not file:
        return ""
    return (
        f"no start weights (--weights is empty), so the network learns from {counted(images, 'image')} alone; start "
        f"weights usually give a far better detector. Add --weights {file}, which is downloaded on first use"
    )


# --- last -------------------------------------------------------------------------------------------------------------


def ending(outcome: Outcome, config: TrainConfig) -> tuple[str, str]:
    """Status and message of a run that no error ended, for its page and --on-end."""
    if outcome.interrupted:
        return STOPPED, words(outcome.interrupted - 128)
    best = best_text(outcome.progress).rstrip(": ")
    reached = config.limits.reached(outcome.progress).partition(";")[0]
    return COMPLETE, f"{reached}{', best epoch: ' if best else ''}{best}"


def print_end(outcome: Outcome, family: Family) -> int:
    """Print how the run ended; returns the exit code: of its signal, of the verdict of --overfit, or 0."""
    config, start = family.config, program_of("train", family.name).invocation
    if not family.world.is_main or not config.keep_files:
        return outcome.interrupted
    if outcome.interrupted:
        resume = f"{start} --resume {shlex.quote(config.save_dir)}"
        print(f"stopped in epoch {outcome.progress.epoch}/{config.epochs - 1}; resume with: {resume}")
        return outcome.interrupted
    print_results(outcome, family)
    return overfit_verdict(outcome) if config.overfit else 0


def print_results(outcome: Outcome, family: Family) -> None:
    """Print the duration of the run, its best epoch with its file, and the next commands."""
    config, progress, folder = family.config, outcome.progress, Path(family.config.save_dir)
    by_iterations = 0 < config.max_iter <= progress.global_step and progress.epoch < config.epochs
    done = counted(progress.epoch, "epoch")
    if by_iterations:
        done = f"{counted(progress.global_step, 'iteration')} (--max-iter)"
    print(f"{done} completed in {progress.seconds / 3600:.3f} hours.")
    names = [f"{name}{family.checkpoint_suffix}" for name in ("best", "last")]
    found = [path for name in names for path in (folder / "weights" / name, folder / name) if path.is_file()]
    if found:
        print(styled(f"Best epoch: {best_text(progress)}{found[0]}", "good", sys.stdout))
    print(f"Results in {folder}: {', '.join(name for name in SHOWN if (folder / name).is_file())}")
    if found and not config.overfit:
        print("Next, evaluate the weights and detect objects with them:")
        for line in next_commands(found[0], family):
            print(f"  {line}")


def best_text(progress: Progress) -> str:
    """'21/25, mAP@.5 0.785, mAP@.5:.95 0.501: ' as in the progress bar; empty: unknown."""
    if progress.best_epoch is None:
        return ""
    map50, map_ = (progress.best_metrics.get(name, 0.0) for name in (MAP50, MAP))
    return f"{progress.best_epoch}/{progress.epoch - 1}, mAP@.5 {map50:.3f}, mAP@.5:.95 {map_:.3f}: "


def next_commands(weights: Path, family: Family) -> list[str]:
    """The commands that evaluate a checkpoint as in training, and that detect objects with it."""
    file, data = shlex.quote(str(weights)), shlex.quote(str(family.config.data))
    names = ("single_cls", "keep_partial_labels", "v5_metric")
    chosen = [f"--{name.replace('_', '-')}" for name in names if getattr(family.config, name, False)]
    size = ["--img-size", str(family.test_size)]
    commands = {
        "test": ["--data", data, *size, *family.test_flags, *chosen],
        "detect": ["--source", "FOLDER", *size],
    }
    return [" ".join([program(name).invocation, "--weights", file, *flags]) for name, flags in commands.items()]


def next_steps(family: Family) -> list[tuple[str, str]]:
    """(what for, command) that a user may want after the run, for its page."""
    best = family.weights_dir / f"best{family.checkpoint_suffix}"
    weights, data, folder = (shlex.quote(str(text)) for text in (best, family.config.data, family.config.save_dir))
    resume = f"{program_of('train', family.name).invocation} --resume {folder}"
    return [
        ("Measure the best weights", f"{program('test').invocation} --weights {weights} --data {data}"),
        ("Resume; of a complete run, add --epochs N", resume),
        ("Export for other runtimes", f"{program('export').invocation} --weights {weights}"),
        ("Compare with another run", f"{program('compare').invocation} {folder} OTHER_RUN"),
    ]


def overfit_verdict(outcome: Outcome) -> int:
    """0: the loss has clearly fallen; 1: it has not."""
    first, last, map50 = outcome.progress.first_loss, outcome.last_loss, outcome.metrics.get(MAP50, 0.0)
    fell = first is not None and last <= FELL_TO * first
    print(
        f"overfit: loss {first or 0.0:.4g} -> {last:.4g} ({'fell' if fell else 'did not fall enough'}), "
        f"mAP@.5 {map50:.3f} on its own images"
    )
    return 0 if fell else 1
