"""The flags of tools/run_trials.py, and which of them may change when trials are resumed."""

import re
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from yolov7fast.cli.checks import check_limits
from yolov7fast.cli.flags import Flag
from yolov7fast.cli.parser import Parser
from yolov7fast.core.errors import UserError, shown, source_named
from yolov7fast.core.programs import program

FILE = "trials.json"
REMEDY = "restore it from a copy, or choose another --output-dir"
THRESHOLD_HELP = (
    "prune a trial whose best mAP@.5, from half of its epochs on, is under this value, once another trial has passed "
    "the value by the same epoch; 0: never"
)
SIZE_HELP = "image size of each trial, instead of the base configuration's img_size and resize_schedule"
PRUNER_HELP = (
    "Optuna's pruner for --search. asha: at each rung the best third continues; median: those below the median end. "
    "Trials are validated at least 3 times"
)
RUNG_HELP = "epochs before --pruner judges a trial for the first time; default: a ninth of its epochs, at least 2"
STORAGE_HELP = "database URL of --search, which machines may share; default: SQLite in --output-dir"
inputs = partial(Flag, group="what to try", fixed=True)
budget = partial(Flag, group="budget", fixed=True)
pruning = partial(Flag, group="pruning", fixed=True)
places = partial(Flag, group="devices and results")

FLAGS = [
    inputs("--base-config", str, "", "run file that every trial builds on, such as configs/tiny_smoke.yaml"),
    inputs("--trials-file", str, "", "json or yaml: a list of settings to try, such as experiments/lr_bs.json"),
    inputs("--search", str, "", "yaml of ranges to draw settings from (Optuna), such as experiments/space.yaml"),
    inputs("--trials", int, 20, "settings that --search draws in all", low=1, fixed=False),
    inputs("--repeat", int, 1, "seeds for each setting; more than one gives mean, deviation and the noise", low=1),
    inputs("--seed", int, None, "first seed of the trials, and seed of the search; default: the base file's", low=0),
    inputs("--storage", str, "", STORAGE_HELP),
    inputs("--study", str, "trials", "name of the search in its database"),
    budget("--budget-epochs", int, None, "epochs of each trial; default: the base configuration's", low=1),
    budget("--budget-subset", int, None, "images that each trial trains on; default: the base configuration's", low=1),
    budget("--budget-size", int, None, SIZE_HELP, low=32),
    budget("--time-budget", str, "", "end after this time, such as 2h or 1h30m; --resume continues", fixed=False),
    pruning("--early-stop-threshold", float, 0.0, THRESHOLD_HELP),
    pruning("--pruner", str, "asha", PRUNER_HELP, choices=("asha", "median", "none")),
    pruning("--first-rung", int, None, RUNG_HELP, low=1),
    places("--output-dir", str, "outputs/trials", "folder of the tables, the plot and one folder for each trial"),
    places("--resume", bool, False, "resume the trials in --output-dir"),
    places("--devices", str, "", "one trial at a time on each of these, such as 0,1; 0,0: two on the first GPU"),
]
STORED_FLAGS = {flag.dest: flag for flag in FLAGS if flag.fixed or flag.dest == "trials"}
STATUS_HELP = """\
Each trial ends as completed, pruned, failed (a crash, no memory, a loss that is not a number: the reason is recorded)
or interrupted. trials_{timestamp}.csv is rewritten after every trial; final_map is mAP@.5:.95 of the last validation,
best_epoch counts from 0, wall_time is in seconds. Of an ended trial only weights/best.pt (DETR: best.pth) is kept."""


def parser() -> Parser:
    description = "Search for good settings: many short trainings, ranked."
    return Parser(FLAGS, prog=program("trials").invocation, description=description, epilog=STATUS_HELP)


def check(opt: Namespace) -> None:
    """Refuse impossible or contradicting flags, each by name, and with the file that contains most of them."""
    with source_named(f"options of the trials: {Path(opt.output_dir) / FILE}" if opt.resume else ""):
        if not opt.base_config:
            raise UserError("give --base-config FILE, the run file that every trial builds on")
        if bool(opt.trials_file) == bool(opt.search):
            raise UserError("give either --trials-file FILE (a list of settings) or --search FILE (their ranges)")
        check_limits(opt, {flag.dest: flag for flag in FLAGS})
        if not 0 <= opt.early_stop_threshold < 1:
            raise UserError(f"--early-stop-threshold is {opt.early_stop_threshold}; it is an mAP, in 0..1")
        seconds(opt.time_budget)
        for name in ("trials", "pruner", "first-rung", "storage", "study"):
            if not opt.search and name.replace("-", "_") in opt.given:
                raise UserError(f"--{name} belongs to --search; a trials file has its own number of trials")


def resumed(opt: Namespace, stored: dict[str, Any]) -> Namespace:
    """The flags of the trials that are resumed; the command line may change some of them."""
    values, file = dict(vars(opt)), Path(opt.output_dir) / FILE
    for name, flag in STORED_FLAGS.items():
        if name not in stored:
            raise UserError(f"{file} is damaged: it lacks the option {name}; {REMEDY}")
        value = flag.value_of(stored[name], file)
        if name not in opt.given:
            values[name] = value
        elif flag.fixed and values[name] != value:
            begun = f"these trials have {shown(value)}"
            raise UserError(f"{flag.name} cannot change when resuming ({begun}); choose another --output-dir")
    return Namespace(**values)


def seconds(text: str) -> float | None:
    """'2h', '90m', '1h30m', '45s' as seconds; '' is no limit."""
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip().lower())
    total = sum(float(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1))) if match else 0.0
    if text and not total:
        raise UserError(f"--time-budget '{text}' is not a time such as 2h, 90m, 1h30m or 45s")
    return total or None
