"""What tools/run_trials.py does after parsing: check everything, run the trials, report what they found.

trials.json in the output folder says what was asked for; how far each trial is, the study says (`study`).
"""

import json
import re
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from optuna.distributions import BaseDistribution
from optuna.pruners import MedianPruner, NopPruner

from yolov7fast.checkpoint.family import FAMILIES
from yolov7fast.cli.programs import program
from yolov7fast.cli.run_file import read_yaml_chain
from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.files.file_lock import exclusive
from yolov7fast.core.files.json_file import read_json
from yolov7fast.search import options, report
from yolov7fast.search.families import trainer_class, trainer_for
from yolov7fast.search.halving import REDUCTION, Halving
from yolov7fast.search.options import FILE, REMEDY
from yolov7fast.search.run import ENDED, FAILED, Run
from yolov7fast.search.runner import Runner
from yolov7fast.search.settings import read_space, read_trials, values_of
from yolov7fast.search.storage import Place, failures_named, open_study
from yolov7fast.search.study import Rules, Trials
from yolov7fast.search.trainer import Budget, Trainer, UnknownSetting

LOCK, DATABASE = ".lock", "study.db"
VERSION = 2
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
    space = read_ranges(opt, trainer)
    plan = make_plan(opt, trainer, space)
    if stored:
        check_unchanged(stored, plan, opt)
        plan |= {name: stored[name] for name in ("timestamp", "id")}
    make_folder(folder)
    trainer.prepare(plan["trials"])
    with exclusive(folder / LOCK, f"waiting for another run_trials.py that works in {folder}"):
        if not stored and (folder / FILE).exists():
            raise UserError(f"{folder} holds trials already: --resume resumes them, another --output-dir begins anew")
        place = Place(opt.storage or f"sqlite:///{(folder / DATABASE).resolve()}", opt.study, bool(opt.storage))
        if stored and not place.shared and not (folder / DATABASE).is_file():
            raise UserError(f"{folder / DATABASE}, which holds the trials to resume, is missing; {REMEDY}")
        if stored:  # another process may have worked here until it let go of the lock
            check_unchanged(read_plan(folder), plan, opt)
        write_plan(folder, plan)
        with failures_named(place.url):
            return work(opt, trainer, plan, space, place)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        raise UserError(f"--output-dir {folder}: {there} is a file; choose a folder, or a name that is free") from None
    except OSError as error:
        raise UserError(f"--output-dir {folder} cannot be made: {error.strerror or error}") from None


# --- what was asked for -----------------------------------------------------------------------------------------------


def read_ranges(opt: Namespace, trainer: Trainer) -> dict[str, BaseDistribution]:
    with wrong_family_named(opt.search, trainer):
        return read_space(opt.search, trainer) if opt.search else {}


def make_plan(opt: Namespace, trainer: Trainer, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """What these trials are, in plain values: written down, and compared when they are resumed."""
    plan: dict[str, Any] = {
        "version": VERSION,
        "timestamp": datetime.now().strftime("%Y%m%d_%H%M%S"),
        "id": uuid.uuid4().hex,  # by which a machine knows its trials in a study that others share
        "options": {name: getattr(opt, name) for name in (*options.fixed(), "trials")},
        "base": read_yaml_chain(trainer.base_config),  # with all it inherits
        "space": {name: str(distribution) for name, distribution in space.items()},
    }
    with wrong_family_named(opt.trials_file, trainer):
        plan["trials"] = read_trials(opt.trials_file, trainer) if opt.trials_file else []
    drawn = [{name: value} for name, distribution in space.items() for value in values_of(distribution)]
    plan["files"] = trainer.files([*plan["trials"], *drawn])
    return json.loads(json.dumps(plan, default=str))  # as it will be read back


def write_plan(folder: Path, plan: dict[str, Any]) -> None:
    write_atomically(folder / FILE, json.dumps(plan, indent=1))


def read_plan(folder: Path) -> dict[str, Any]:
    """trials.json of a folder of trials; what is not as `make_plan` makes it is refused."""
    path = folder / FILE
    if not path.exists():
        raise UserError(f"--resume: there are no trials to resume in {folder} ({FILE} is missing)")
    plan = read_json(path, remedy=REMEDY)
    if not isinstance(plan, dict) or "version" not in plan:
        raise UserError(f"{path} is damaged: it holds no trials; {REMEDY}")
    if plan["version"] != VERSION:
        raise UserError(
            f"{path} has version {shown(plan['version'])}, this program writes {VERSION}; choose another --output-dir"
        )
    kinds = {"options": dict, "base": dict, "trials": list, "space": dict, "files": dict, "timestamp": str, "id": str}
    try:
        wrong = [name for name, kind in kinds.items() if not isinstance(plan[name], kind)]
        if wrong or not all(isinstance(settings, dict) for settings in plan["trials"]):
            raise ValueError(f"'{(wrong or ['trials'])[0]}' has values of another kind")
        if not re.fullmatch(r"\w{1,40}", plan["timestamp"], re.ASCII):  # it becomes part of file names
            raise ValueError("its timestamp is none")
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged: {one_line(error, 100)}; {REMEDY}") from None
    return plan


def check_unchanged(stored: dict[str, Any], plan: dict[str, Any], opt: Namespace) -> None:
    """Resuming needs the same base and the same settings; more trials at the end of a list are welcome."""
    if plan["trials"][: len(stored["trials"])] != stored["trials"]:
        raise UserError(f"{opt.trials_file} has changed since these trials began; only add new ones at its end")
    changed = [file for part, file in (("base", opt.base_config), ("space", opt.search)) if plan[part] != stored[part]]
    changed += [file for file, digest in stored["files"].items() if plan["files"].get(file) != digest]
    if changed:
        raise UserError(f"{changed[0]} has changed since these trials began; choose another --output-dir to begin anew")


@contextmanager
def wrong_family_named(path: str, trainer: Trainer) -> Iterator[None]:
    """Let the complaint about a setting that another family has name that family."""
    try:
        yield
    except UnknownSetting as error:
        for family in (name for name in FAMILIES if name != trainer.family):
            if trainer_class(family).knows(error.key):
                raise UserError(
                    f"{error}; '{error.key}' is a setting of the {family} family, so {path} seems to be for that one, "
                    f"but {trainer.base_config} is a run file of the {trainer.family} family"
                ) from None
        raise


# --- the work ---------------------------------------------------------------------------------------------------------


def open_trials(
    opt: Namespace, trainer: Trainer, plan: dict[str, Any], space: Mapping[str, BaseDistribution], place: Place
) -> Trials:
    first_seed = trainer.seed if opt.seed is None else opt.seed
    seeds = [first_seed + k for k in range(opt.repeat)]
    same = {key: plan[key] for key in ("base", "space")}  # what machines that share a study must agree in
    same |= {name: plan["options"][name] for name in ("budget_epochs", "budget_subset", "budget_size", "repeat")}
    kind, epochs = opt.pruner if opt.search else "none", trainer.epochs({})
    first = opt.first_rung or max(1, min(2, epochs // 2), epochs // REDUCTION**2)  # before a few, mAP is mostly chance
    median = MedianPruner(n_startup_trials=3, n_warmup_steps=first) if kind == "median" else NopPruner()
    study = open_study(place, median, first_seed, same)
    halving = Halving.of(kind, epochs, first)
    rules = Rules(seeds, space, opt.trials if opt.search else 0, opt.early_stop_threshold, halving)
    trials = Trials(study, place, trainer, rules, plan["id"])
    trials.enqueue(plan["trials"])
    return trials


def work(
    opt: Namespace, trainer: Trainer, plan: dict[str, Any], space: Mapping[str, BaseDistribution], place: Place
) -> int:
    folder = Path(opt.output_dir)
    trials = open_trials(opt, trainer, plan, space, place)
    for note in trainer.notes():
        print(f"note: {note}")
    limit = options.seconds(opt.time_budget)
    table = folder / f"trials_{plan['timestamp']}.csv"

    def begun() -> list[Run]:
        return [run for run in trials.everywhere() if run.status in report.ORDER]

    runner = Runner(
        trainer,
        trials,
        folder,
        devices_of(opt),
        deadline=None if limit is None else time.monotonic() + limit,
        note=lambda: report.write_csv(table, begun(), trainer),
    )
    try:
        code = runner.run()
    except KeyboardInterrupt:
        code = 130
    runs = begun()
    report_trials(runs, trainer, table)
    if left := trials.left():
        total = left + sum(run.status in ENDED for run in runs)
        print(f"{runner.stopping or 'interrupted'}: {left} of {total} trials are not done.")
        print(f"Resume with: {program('trials').invocation} --output-dir {folder} --resume")
    if others := trials.left_elsewhere():
        print(
            f"note: settings {', '.join(map(str, others))} of the study are still with other machines; if one of those "
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


def report_trials(runs: list[Run], trainer: Trainer, table: Path) -> None:
    """Ranking, what is noise, the plot, and the command that the best settings deserve."""
    if not runs:
        return
    places, written = report.rank(runs), report.write_all(table, runs, trainer)
    print(f"\n{report.summary(places, trainer)}\n\nwritten: {', '.join(map(str, written))}")
    best, path = report.best_settings(places), table.with_name("best.yaml")
    if best is None:
        path.unlink(missing_ok=True)  # of an earlier part of these trials
    else:
        content, arguments = trainer.full_run(best, path)
        write_atomically(path, yaml.safe_dump(content, sort_keys=False))
        print(f"A full run with the best settings ({content.get('epochs')} epochs):\n  {' '.join(arguments)}")
