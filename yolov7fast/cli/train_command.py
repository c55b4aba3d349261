"""From parsed flags to a training run: flags become a `TrainConfig`, which is checked, completed on resume, and run."""

import logging
import traceback
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any

from yolov7fast.cli.checks import check_train, with_overfit
from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.run_file import flags_set_with
from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.process.output import RunOutput, log_to_stderr, logging_at, run_output
from yolov7fast.core.process.signals import words

if TYPE_CHECKING:
    from yolov7fast.training.config import TrainConfig
    from yolov7fast.training.distributed import World

log = logging.getLogger(__name__)


def start_training(opt: Namespace, family: str = "yolo") -> tuple[int, Path | None]:
    """Train as the flags say; returns the exit code and the run's folder, if there is one."""
    from yolov7fast.training.distributed import world_from_environment  # torch is loaded only once the flags are parsed

    world = world_from_environment(opt.local_rank)
    with run_output(f"rank {world.rank}: " if world.rank > 0 else "") as output:
        log_to_stderr(logging.INFO if world.is_main else logging.WARNING)
        details = ["yolov7fast"] if getattr(opt, "verbose", False) else []
        with logging_at(logging.DEBUG, *details), final_message_logged(output):
            return run_config(config_of(opt, family), family, world, output)


def config_of(opt: Namespace, family: str) -> "TrainConfig":
    """The config of parsed flags, with the settings of --overfit."""
    from yolov7fast.training.family import family_class

    in_file = flags_set_with("overfit", opt.config, flags_of("train", family)) if opt.config and opt.overfit else set()
    config = family_class(family).config_class.from_options(vars(opt))
    return with_overfit(config, family, kept={*config.given, *in_file})


def run_config(config: Any, family: str, world: "World", output: RunOutput) -> tuple[int, Path | None]:
    """Run what the flags select: a training, a search, a report or a measurement."""
    from yolov7fast.nn.compiling import diagnosis_wanted
    from yolov7fast.training.checkpoints.resume import NothingToDo
    from yolov7fast.training.family import family_class
    from yolov7fast.training.start import AUTO, start_or_resume
    from yolov7fast.training.train import run_training

    trained = family_class(family)
    if is_search := getattr(config, "evolve", False):
        config = replace(config, resume=False)  # a search resumes from its table
    try:
        config, checkpoint = start_or_resume(config, trained, flags_of("train", family))
    except NothingToDo as error:
        if config.resume != AUTO:
            raise
        log.info("%s", error)
        return 0, Path(config.project) / config.name
    check_train(config, family)
    if is_search:
        from yolov7fast.search.evolve import evolve

        return evolve(config, trained, world), None
    if family == "yolo" and diagnosis_wanted():
        from yolov7fast.training.yolo_network import diagnose_compilation

        return diagnose_compilation(trained.find_files(config), checkpoint), None
    if getattr(config, "profile", 0):
        from yolov7fast.training.detr_family import profile_steps

        return profile_steps(config, world, checkpoint), None
    outcome = run_training(config, trained, world, checkpoint, output)
    return outcome.exit_code, outcome.folder


@contextmanager
def final_message_logged(output: RunOutput) -> Iterator[None]:
    """Write the reason why the run ended to its log; it is printed elsewhere."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, UserError):
            output.note(f"error: {one_line(error)}")
        elif isinstance(error, KeyboardInterrupt):
            output.note(words(getattr(error, "number", SIGINT)))
        else:
            output.note("".join(traceback.format_exception(error)))
        raise
