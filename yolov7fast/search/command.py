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
from shlex import quote
from typing import Any

from optuna.distributions import BaseDistribution

from yolov7fast.cli.programs import program
from yolov7fast.cli.run_file import read_yaml_chain
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.files.file_lock import exclusive
from yolov7fast.core.files.json_file import read_json
from yolov7fast.search import options, report
from yolov7fast.search.options import FILE, KEPT, REMEDY
from yolov7fast.search.run import ENDED, FAILED
from yolov7fast.search.runner import Runner
from yolov7fast.search.settings import read_space, read_trials
from yolov7fast.search.storage import failures_named
from yolov7fast.search.study import Trials
from yolov7fast.search.trainer import Budget, Trainer, trainer_for

LOCK, DATABASE, VERSION = ".lock", "study.db", 4
KINDS = {"options": dict, "base": dict, "space": dict, "trials": list, "files": dict, "timestamp": str, "id": str}
JUDGED_BY = 3  # what is pruned is judged by its validations: so many at least


def run(opt: Namespace, make_trainer: Callable[[str, Budget], Trainer] | None = None) -> int:
    """Run the trials that the options describe; returns the exit code."""
    folder, began = Path(opt.output_dir), time.monotonic()
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        complaint = "this, or what it lies in, is a file; choose a folder, or a name that is free"
        raise UserError(f"--output-dir {folder}: {complaint}") from None
    trainer.prepare()
    with exclusive(folder / LOCK, f"waiting for another run_trials.py that works in {folder}"):
        if not stored and (folder / FILE).exists():
            raise UserError(f"{folder} holds trials already: --resume resumes them, another --output-dir begins anew")
        if stored and not opt.storage and not (folder / DATABASE).is_file():
            raise UserError(f"{folder / DATABASE}, which holds the trials to resume, is missing; {REMEDY}")
        if stored:  # another process may have worked here until it let go of the lock
            check_unchanged(read_plan(folder), plan, opt)
        write_atomically(folder / FILE, json.dumps(plan, indent=1))
        url = opt.storage or f"sqlite:///{(folder / DATABASE).resolve()}"
        with failures_named(url):
            trials = Trials(opt, trainer, plan, space, url)
            trials.take_up(plan["trials"])
            deadline = began + (options.seconds(opt.time_budget) or math.inf)
            return work(trials, folder / f"trials_{plan['timestamp']}.csv", devices_of(opt), deadline)


# --- what was asked for -----------------------------------------------------------------------------------------------


def make_plan(opt: Namespace, trainer: Trainer, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """What these trials are, in plain values: written down, and compared when they are resumed."""
    trials = read_trials(opt.trials_file, trainer) if opt.trials_file else []
    plan = {
        "version": VERSION,
        "timestamp": datetime.now().strftime("%Y%m%d_%H%M%S"),
        "id": uuid.uuid4().hex,  # by which a machine knows its trials in a study that others share
        "options": {name: getattr(opt, name) for name in KEPT},
        "base": read_yaml_chain(trainer.base_config),  # with all it inherits
        "space": {name: str(distribution) for name, distribution in space.items()},
        "trials": trials,
        "files": trainer.digests(),
    }
    return json.loads(json.dumps(plan, default=str))  # as it will be read back


def read_plan(folder: Path) -> dict[str, Any]:
    """trials.json of a folder of trials."""
    path = folder / FILE
    if not path.exists():
        raise UserError(f"--resume: there are no trials to resume in {folder} ({FILE} is missing)")
    plan = read_json(path, remedy=REMEDY)
    if not isinstance(plan, dict) or plan.get("version") != VERSION:
        raise UserError(f"{path} is no record of trials of version {VERSION}; choose another --output-dir")
    damaged = [name for name, kind in KINDS.items() if not isinstance(plan.get(name), kind)]
    if damaged or not re.fullmatch(r"\w{1,40}", plan["timestamp"], re.ASCII):  # it becomes part of file names
        raise UserError(f"{path} is damaged: '{[*damaged, 'timestamp'][0]}' is not what trials have; {REMEDY}")
    return plan


def check_unchanged(stored: dict[str, Any], plan: dict[str, Any], opt: Namespace) -> None:
    """Resuming needs the same base and the same settings; more trials at the end of a list are welcome."""
    known, record = stored["trials"], Path(opt.output_dir) / FILE
    parts = {opt.base_config: "base", opt.search: "space"}
    changed = [opt.trials_file] if plan["trials"][: len(known)] != known else []
    changed += [file for file, part in parts.items() if plan[part] != stored[part]]
    changed += [file for file, digest in stored["files"].items() if plan["files"].get(file) != digest]
    if changed:
        remedy = "choose another --output-dir to begin anew; a list may have new trials at its end"
        raise UserError(f"{changed[0]} has changed since these trials began (see {record}); {remedy}")


# --- the work ---------------------------------------------------------------------------------------------------------


def work(trials: Trials, table: Path, devices: list[str | None], deadline: float) -> int:
    """Run the trials, then report all that was begun; returns the exit code."""
    if note := trials.trainer.note():
        print(f"note: {note}")
    runner = Runner(trials, table, devices, deadline)
    code = runner.run()
    if runs := trials.begun():
        report.report(table, runs, trials.trainer)
    if left := trials.left():
        total = left + sum(run.status in ENDED for run in runs)
        print(f"{runner.stopping or 'interrupted'}: {left} of {total} trials are not done.")
        print(f"Resume with: {program('trials').invocation} --output-dir {quote(str(table.parent))} --resume")
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
