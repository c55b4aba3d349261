"""What tools/run_trials.py does after parsing: check everything, run the trials, report what they found.

trials.json in the output folder says what was asked for; how far each trial is, the study says (`study`).
"""

import json
import math
import re
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.pruners import MedianPruner, NopPruner

from yolov7fast.cli.programs import program
from yolov7fast.cli.run_file import read_yaml_chain
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.files.file_lock import exclusive
from yolov7fast.core.files.json_file import read_json
from yolov7fast.search import options, report
from yolov7fast.search.halving import REDUCTION, Halving
from yolov7fast.search.options import FILE, KEPT, REMEDY
from yolov7fast.search.run import ENDED, FAILED, Run
from yolov7fast.search.runner import Runner
from yolov7fast.search.settings import read_space, read_trials, values_of
from yolov7fast.search.storage import failures_named, open_study
from yolov7fast.search.study import Trials
from yolov7fast.search.trainer import Budget, Trainer, trainer_for

LOCK, DATABASE = ".lock", "study.db"
VERSION = 3
KINDS = {"options": dict, "base": dict, "trials": list, "space": dict, "files": dict, "timestamp": str, "id": str}
JUDGED_BY = 3  # what is pruned is judged by its validations: so many at least


def run(opt: Namespace, make_trainer: Callable[[str, Budget], Trainer] | None = None) -> int:
    """Run the trials that the options describe; returns the exit code."""
    folder = Path(opt.output_dir)
    stored = read_plan(folder) if opt.resume else None
    if stored:
        opt = options.resumed(opt, stored["options"])
    options.check(opt)
    prunes = bool(opt.early_stop_threshold) or (opt.search and opt.pruner != "none")
    budget = Budget(opt.budget_epochs, opt.budget_subset, opt.budget_size, JUDGED_BY if prunes else 0)
    trainer = (make_trainer or trainer_for(opt.base_config))(opt.base_config, budget)
    space = read_space(opt.search, trainer) if opt.search else {}
    plan = make_plan(opt, trainer, space)
    if stored:
        check_unchanged(stored, plan, opt)
        plan |= {name: stored[name] for name in ("timestamp", "id")}
    make_folder(folder)
    trainer.prepare(plan["trials"])
    with exclusive(folder / LOCK, f"waiting for another run_trials.py that works in {folder}"):
        if not stored and (folder / FILE).exists():
            raise UserError(f"{folder} holds trials already: --resume resumes them, another --output-dir begins anew")
        if stored and not opt.storage and not (folder / DATABASE).is_file():
            raise UserError(f"{folder / DATABASE}, which holds the trials to resume, is missing; {REMEDY}")
        if stored:  # another process may have worked here until it let go of the lock
            check_unchanged(read_plan(folder), plan, opt)
        write_plan(folder, plan)
        url = opt.storage or f"sqlite:///{(folder / DATABASE).resolve()}"
        with failures_named(url):
            return work(opt, open_trials(opt, trainer, plan, space, url), folder / f"trials_{plan['timestamp']}.csv")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        why = error.strerror if there.is_dir() else f"{there} is a file"
        raise UserError(f"--output-dir {folder}: {why}; choose a folder, or a name that is free") from None


# --- what was asked for -----------------------------------------------------------------------------------------------


def make_plan(opt: Namespace, trainer: Trainer, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """What these trials are, in plain values: written down, and compared when they are resumed."""
    trials = read_trials(opt.trials_file, trainer) if opt.trials_file else []
    drawn = [{name: value} for name, distribution in space.items() for value in values_of(distribution)]
    plan = {
        "version": VERSION,
        "timestamp": datetime.now().strftime("%Y%m%d_%H%M%S"),
        "id": uuid.uuid4().hex,  # by which a machine knows its trials in a study that others share
        "options": {name: getattr(opt, name) for name in KEPT},
        "base": read_yaml_chain(trainer.base_config),  # with all it inherits
        "space": {name: str(distribution) for name, distribution in space.items()},
        "trials": trials,
        "files": trainer.files([*trials, *drawn]),
    }
    return json.loads(json.dumps(plan, default=str))  # as it will be read back


def write_plan(folder: Path, plan: dict[str, Any]) -> None:
    write_atomically(folder / FILE, json.dumps(plan, indent=1))


def read_plan(folder: Path) -> dict[str, Any]:
    """trials.json of a folder of trials; what is not as `make_plan` makes it is refused."""
    path = folder / FILE
    if not path.exists():
        raise UserError(f"--resume: there are no trials to resume in {folder} ({FILE} is missing)")
    plan = read_json(path, remedy=REMEDY)
    version = plan.get("version") if isinstance(plan, dict) else None
    if version is not None and version != VERSION:
        raise UserError(f"{path} has version {shown(version)}, not {VERSION}; choose another --output-dir")
    wrong = [name for name, kind in KINDS.items() if version is None or not isinstance(plan.get(name), kind)]
    wrong = wrong or ["trials"] * any(not isinstance(settings, dict) for settings in plan["trials"])
    if wrong or not re.fullmatch(r"\w{1,40}", plan["timestamp"], re.ASCII):  # it becomes part of file names
        raise UserError(f"{path} is damaged: '{(wrong or ['timestamp'])[0]}' is not what trials have; {REMEDY}")
    return plan


def check_unchanged(stored: dict[str, Any], plan: dict[str, Any], opt: Namespace) -> None:
    """Resuming needs the same base and the same settings; more trials at the end of a list are welcome."""
    if plan["trials"][: len(stored["trials"])] != stored["trials"]:
        raise UserError(f"{opt.trials_file} has changed since these trials began; only add new ones at its end")
    changed = [file for part, file in (("base", opt.base_config), ("space", opt.search)) if plan[part] != stored[part]]
    changed += [file for file, digest in stored["files"].items() if plan["files"].get(file) != digest]
    if changed:
        raise UserError(f"{changed[0]} has changed since these trials began; choose another --output-dir to begin anew")


# --- the work ---------------------------------------------------------------------------------------------------------


def open_trials(
    opt: Namespace, trainer: Trainer, plan: dict[str, Any], space: Mapping[str, BaseDistribution], url: str
) -> Trials:
    seed = (trainer.base["seed"] or 0) if opt.seed is None else opt.seed
    same = {key: plan[key] for key in ("base", "space")}  # what machines that share a study must agree in
    same |= {name: plan["options"][name] for name in ("budget_epochs", "budget_subset", "budget_size", "repeat")}
    kind, epochs = opt.pruner if opt.search else "none", trainer.epochs({})
    first = opt.first_rung or max(1, min(2, epochs // 2), epochs // REDUCTION**2)  # before a few, mAP is mostly chance
    median = MedianPruner(n_startup_trials=3, n_warmup_steps=first) if kind == "median" else NopPruner()
    trials = Trials(
        open_study(url, opt.study, bool(opt.storage), median, seed, same),
        url,
        trainer,
        owner=plan["id"],
        is_shared=bool(opt.storage),
        seeds=range(seed, seed + opt.repeat),
        space=space,
        count=opt.trials if opt.search else 0,
        threshold=opt.early_stop_threshold,
        halving=Halving.of(kind, epochs, first),
    )
    trials.take_up(plan["trials"])
    return trials


def work(opt: Namespace, trials: Trials, table: Path) -> int:
    """Run the trials, then report all that was begun; returns the exit code."""
    if note := trials.trainer.note():
        print(f"note: {note}")

    def begun() -> list[Run]:
        return [run for run in trials.everywhere() if run.status in report.ORDER]

    def write() -> None:
        report.write_csv(table, begun(), trials.trainer)

    deadline = time.monotonic() + (options.seconds(opt.time_budget) or math.inf)
    runner = Runner(trials, table.parent, devices_of(opt), deadline, write)
    try:
        code = runner.run()
    except KeyboardInterrupt:
        code = 130
    if runs := begun():
        report.report(table, runs, trials.trainer)
    if left := trials.left():
        total = left + sum(run.status in ENDED for run in runs)
        print(f"{runner.stopping or 'interrupted'}: {left} of {total} trials are not done.")
        print(f"Resume with: {program('trials').invocation} --output-dir {table.parent} --resume")
    if others := [str(setting) for setting, trial in trials.current().items() if trials.is_elsewhere(trial)]:
        print(
            f"note: settings {', '.join(others)} of the study are still with other machines; if one of those "
            "is gone for good, --resume retries what it left, minutes after its last sign of life"
        )
    return code or int(bool(runs) and all(run.status == FAILED for run in runs))


def devices_of(opt: Namespace) -> list[str | None]:
    """One entry for each place; several places share the devices in turn."""
    named: list[str | None] = [part.strip() for part in opt.devices.split(",") if part.strip()]
    jobs = opt.jobs or max(1, len(named))
    if not named and jobs > 1:
        import torch  # only here: it takes seconds to load

        named = [str(i) for i in range(torch.cuda.device_count())]
    return [named[i % len(named)] if named else None for i in range(jobs)]
