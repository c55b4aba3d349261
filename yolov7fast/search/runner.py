"""Runs trials: plan (trials.json), trainings on an Optuna study, tables and ranking."""

import csv
import io
import json
import math
import queue
import re
import statistics
import threading
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Any

import optuna
import yaml
from optuna.trial import Trial
from tqdm import tqdm

from yolov7fast.cli.run_file import read_yaml_chain
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import as_user_error, write_atomically
from yolov7fast.core.files.locks import exclusive
from yolov7fast.core.files.settings_files import read_json
from yolov7fast.core.process import child
from yolov7fast.core.process.signals import ASKING, StopRequest
from yolov7fast.core.programs import program
from yolov7fast.core.text import counted
from yolov7fast.reports import trial_ranking
from yolov7fast.reports.trial_ranking import COMPLETED, FAILED, FINAL_STATUSES, INTERRUPTED, PRUNED, RUNNING, TrialRun
from yolov7fast.search import database
from yolov7fast.search import trial_options as options
from yolov7fast.search.trial_options import FILE, REMEDY, STORED_FLAGS
from yolov7fast.search.trial_training import Budget, Space, TrialTraining, read_space, read_trials, training_for

LOCK, DATABASE, VERSION = ".lock", "study.db", 7
FIELD_TYPES = {"options": dict, "base": dict, "space": dict, "trials": list, "files": dict, "timestamp": str}
MIN_VALIDATIONS = 3  # minimum number of validations of a trial that may be pruned
SHARED = ("repeat", "budget_epochs", "budget_subset", "budget_size")  # options that must be equal on all machines


def run_trials(opt: Namespace) -> tuple[int, list[TrialRun]]:
    """Check the options, then run the trials; returns the exit code and all trainings that have begun."""
    folder, began = Path(opt.output_dir), time.monotonic()
    stored = read_plan(folder) if opt.resume else None
    if stored:
        opt = options.resumed(opt, stored["options"])
    options.check(opt)
    prunes = bool(opt.early_stop_threshold) or (opt.search and opt.pruner != "none")
    budget = Budget(opt.budget_epochs, opt.budget_subset, opt.budget_size, MIN_VALIDATIONS if prunes else 0)
    training = training_for(opt.base_config)(opt.base_config, budget)
    space = read_space(opt.search, training) if opt.search else {}
    plan = make_plan(opt, training, space)
    if stored:
        check_unchanged(stored, plan, opt)
        plan["timestamp"] = stored["timestamp"]
    with as_user_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    training.prepare()
    with exclusive(folder / LOCK, f"waiting for another run_trials.py that works in {folder}"):
        if not stored and (folder / FILE).exists():
            raise UserError(f"{folder} holds trials already: --resume resumes them, or choose another --output-dir")
        if stored and not opt.storage and not (folder / DATABASE).is_file():
            raise UserError(f"{folder / DATABASE}, which holds the trials to resume, is missing; {REMEDY}")
        write_atomically(folder / FILE, json.dumps(plan, indent=1))
        url = opt.storage or f"sqlite:///{(folder / DATABASE).resolve()}"
        with database.failures_named(url):
            deadline = began + (options.seconds(opt.time_budget) or math.inf)
            runner = TrialRunner(opt, training, plan, space, url, deadline)
            return runner.run(), runner.trials.started_runs()


def make_plan(opt: Namespace, training: TrialTraining, space: Space) -> dict[str, Any]:
    """The plan of these trials in plain values: stored, and compared on resume."""
    plan = {
        "version": VERSION,
        "timestamp": datetime.now().strftime("%Y%m%d_%H%M%S"),
        "options": {name: getattr(opt, name) for name in STORED_FLAGS},
        "base": read_yaml_chain(training.base_config),  # with everything that it inherits
        "space": {name: str(distribution) for name, distribution in space.items()},
        "trials": read_trials(opt.trials_file, training) if opt.trials_file else [],
        "files": training.digests(),
    }
    return json.loads(json.dumps(plan, default=str))  # in the form in which it is read back


def read_plan(folder: Path) -> dict[str, Any]:
    """trials.json of a folder of trials."""
    path = folder / FILE
    if not path.exists():
        raise UserError(f"--resume: there are no trials to resume in {folder} ({FILE} is missing)")
    plan = read_json(path, remedy=REMEDY)
    if not isinstance(plan, dict) or plan.get("version") != VERSION:
        raise UserError(f"{path} is not a record of trials of version {VERSION}; choose another --output-dir")
    damaged = [name for name, kind in FIELD_TYPES.items() if not isinstance(plan.get(name), kind)]
    if damaged or not re.fullmatch(r"\w{1,40}", plan["timestamp"], re.ASCII):  # it becomes part of file names
        raise UserError(f"{path} is damaged: '{[*damaged, 'timestamp'][0]}' is invalid; {REMEDY}")
    return plan


def check_unchanged(stored: dict[str, Any], plan: dict[str, Any], opt: Namespace) -> None:
    """Resuming needs the same base and the same settings; new trials at the end of a list are allowed."""
    known, record = stored["trials"], Path(opt.output_dir) / FILE
    parts = {opt.base_config: "base", opt.search: "space"}
    changed = [opt.trials_file] if plan["trials"][: len(known)] != known else []
    changed += [file for file, part in parts.items() if plan[part] != stored[part]]
    changed += [file for file, digest in stored["files"].items() if plan["files"].get(file) != digest]
    if changed:
        remedy = "choose another --output-dir for new trials; a list may have further trials at its end"
        raise UserError(f"{changed[0]} has changed since these trials began (see {record}); {remedy}")


class NoResult(Exception):
    """Ends a trial that has failed, or that is interrupted and will be retried."""


class TrialRunner:
    """Trains the settings of a study on this machine, several in parallel on several devices, and writes the
    results."""

    def __init__(
        self, opt: Namespace, training: TrialTraining, plan: Mapping[str, Any], space: Space, url: str, deadline: float
    ):
        """space: empty for a list; deadline: of time.monotonic()."""
        self.folder, self.training, self.space, self.deadline = Path(opt.output_dir), training, space, deadline
        self.table, self.settings = self.folder / f"trials_{plan['timestamp']}.csv", plan["trials"]
        self.count = opt.trials if space else len(self.settings)
        self.threshold, self.is_shared = opt.early_stop_threshold, bool(opt.storage)
        seed, epochs = (training.base["seed"] or 0) if opt.seed is None else opt.seed, training.epochs({})
        first = opt.first_rung or max(1, min(2, epochs // 2), epochs // 9)  # before it, mAP is mostly noise
        same = {"base": plan["base"], "space": plan["space"], **{name: getattr(opt, name) for name in SHARED}}
        pruner = database.make_pruner(opt.pruner if space else "none", first)
        parts = {"sampler": database.KeyedSampler(seed), "pruner": pruner}
        self.study = database.open_study(url, opt.study, same, self.is_shared, **parts)
        self.trials = database.SettingTable(self.study, range(seed, seed + opt.repeat), url)
        self.jobs = [part.strip() for part in opt.devices.split(",") if part.strip()] or [""]  # the device of each
        self.devices = queue.SimpleQueue()
        for device in self.jobs:
            self.devices.put(device)
        self.active: dict[int, TrialRun] = {}  # trainings of this process by id, also ended ones
        self.stop, self.writing = StopRequest(self.end_at_once), threading.Lock()
        self.fault = ""  # why trainings are killed

    @property
    def stopping(self) -> str:
        """Why no more trainings are started and running ones must end; empty: continue."""
        if self.fault or self.stop:
            return self.fault or "stopped by Ctrl-C or SIGTERM"
        return "the time budget is used up" if time.monotonic() >= self.deadline else ""

    def run(self) -> int:
        """Run all trials; returns the exit code."""
        if note := self.training.note():
            print(f"note: {note}")
        self.trials.retry_unfinished(self.is_shared)
        epochs = self.training.epochs({}) * len(self.trials.seeds)
        with self.stop, tqdm(total=0, unit="epoch", desc="trials", dynamic_ncols=True) as self.bar:
            try:
                while not self.stopping and (left := self.trials.waiting_settings(self.count)):
                    self.bar.total = self.bar.n + left * epochs
                    parts: dict[str, Any] = {"catch": NoResult, "callbacks": [self.stop_when_done]}
                    self.study.optimize(self.objective, n_trials=left, n_jobs=len(self.jobs), **parts)
            except KeyboardInterrupt:  # the second Ctrl-C
                pass
            except ValueError as error:  # Optuna cannot end a trial that another machine has taken over
                if not self.is_shared:
                    raise
                raise UserError(f"another machine has taken over a trial ({error}); continue by --resume") from error
        return self.report()

    def end_at_once(self) -> None:
        self.fault = "ended at once"
        raise KeyboardInterrupt

    def stop_when_done(self, study: optuna.Study, _: Any) -> None:
        """Optuna's callback after each trial, also if other machines have taken the rest."""
        if self.stopping or not self.trials.waiting_settings(self.count):
            study.stop()

    def report(self) -> int:
        """Write and print the results of all started trainings; returns the exit code."""
        if runs := self.trials.started_runs():
            write_results(self.table, runs, self.training)
        left, ended = self.trials.unfinished_runs(self.count), sum(run.status in FINAL_STATUSES for run in runs)
        if left and (self.stopping or not self.is_shared):
            print(f"{self.stopping or 'interrupted'}: {left} of {left + ended} trials are not done.")
            print(f"Resume with: {program('trials').invocation} --output-dir {quote(str(self.folder))} --resume")
        elif left:
            print(f"note: {left} trials are running on other machines; --resume retries those of lost machines")
        return self.stop.exit_code or int(bool(runs) and all(run.status == FAILED for run in runs))

    def objective(self, trial: Trial) -> float:
        """Mean of the final mAP@.5:.95 of a setting; any error ends all trainings of this process."""
        device = self.devices.get()
        try:
            if self.stopping:
                raise NoResult
            return self.train_setting(trial, device)
        except (NoResult, optuna.TrialPruned):
            raise
        except BaseException:
            self.fault = self.fault or "another trial failed"
            raise
        finally:
            self.devices.put(device)

    def train_setting(self, trial: Trial, device: str) -> float:
        """Train with each seed in turn; in a search, the other seeds only if the first one completes."""
        (setting,) = (setting for setting, known in self.trials.numbered() if known.number == trial.number)
        trial.set_user_attr(database.NUMBER, setting)
        fault = "" if database.SETTINGS in trial.user_attrs else self.choose(trial, setting)
        runs = self.trials.runs(setting, trial)
        for run in runs:
            if fault:
                run.status, run.reason = FAILED, fault
            elif run.status not in FINAL_STATUSES:
                self.train(trial, run, device)
            trial.set_user_attr(f"{database.RUN}{self.trials.seeds.index(run.seed)}", run.record)
            with self.writing:  # so that no older table replaces a newer one
                write_csv(self.table, self.trials.started_runs(), self.training)
            if run.status == INTERRUPTED:
                raise NoResult
            self.training.delete_checkpoints(self.folder / run.name)
            if self.space and run.status != COMPLETED:
                break
        if runs[0].status == PRUNED:
            raise optuna.TrialPruned
        if values := [run.final.map for run in runs if run.status == COMPLETED and run.final.map is not None]:
            return statistics.fmean(values)
        raise NoResult

    def choose(self, trial: Trial, setting: int) -> str:
        """Take the settings of a trial from the list or the ranges; returns why they cannot be used together, or ''."""
        params, fault = database.suggest(trial, self.space) if self.space else self.settings[setting - 1], ""
        try:  # each range was checked separately
            params = self.training.checked(params, "drawn")
        except UserError as error:
            fault = str(error)
        trial.set_user_attr(database.SETTINGS, params)
        return fault

    def train(self, trial: Trial, run: TrialRun, device: str) -> None:
        """Start a training, or resume it from its checkpoint, and monitor it until it ends."""
        code, began, before = 0, time.monotonic(), self.bar.n
        run.status, run.reason, run.curve = RUNNING, "", []
        self.active[run.id] = run

        def update() -> float | None:
            self.read_epochs(trial, run)
            is_to_end = run.status == PRUNED or self.stopping
            return None if not is_to_end else 0.0 if self.fault else child.GRACE_SECONDS

        update()  # epochs of an earlier process
        if run.curve:
            tqdm.write(f"{run.name} resumes after {counted(run.epochs, 'epoch')}")
        if run.status != PRUNED and run.epochs < self.training.epochs(run.params):
            output = self.folder / run.name / child.OUTPUT
            code = child.follow(self.command(run, device), output, update, len(self.jobs))
            run.seconds += time.monotonic() - began
            update()  # the files of an ended process are complete
        if run.status != PRUNED:
            run.status, run.reason = self.outcome(run, code)
        self.bar.update(max(0, self.training.epochs(run.params) - (self.bar.n - before)))
        found = "" if run.final.map is None else f", mAP@.5:.95 {run.final.map:.4g}"
        tqdm.write(f"{run.name} {run.status}{found}{run.reason and f': {run.reason}'}")

    def command(self, run: TrialRun, device: str) -> list[str]:
        """The command that starts a training or resumes it."""
        folder = self.folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        content = self.training.run_file(run.params, run.seed, folder)
        write_atomically(folder / "trial.yaml", yaml.safe_dump(content, sort_keys=False))
        flags = ["--config", str(folder / "trial.yaml"), "--resume", "auto"]
        return [*self.training.command, *flags, *(["--device", device] if device else [])]

    def read_epochs(self, trial: Trial, run: TrialRun) -> None:
        """Judge each new epoch once, in order; epochs after pruning are ignored."""
        for point in trial_ranking.read_curve(self.folder / run.name):
            if point.epoch >= run.epochs and run.status != PRUNED:
                run.curve.append(point)
                self.bar.update()
                if reason := self.reason_to_prune(trial, run, point):
                    run.status, run.reason = PRUNED, reason

    def reason_to_prune(self, trial: Trial, run: TrialRun, point: trial_ranking.CurvePoint) -> str:
        """Why a training is pruned after this epoch, or ''."""
        step, epochs = point.epoch + 1, self.training.epochs(run.params)
        if point.map is None or step >= epochs:
            return ""
        if run.seed == self.trials.seeds[0]:
            trial.report(point.map, step)
            if trial.should_prune():
                return f"pruned by --pruner after epoch {point.epoch}"
        own = run.best_map50(point.epoch)
        if 2 * step < epochs or not own < self.threshold:
            return ""
        others = {other.id: other for other in self.trials.started_runs()} | self.active
        if not any(other.best_map50(point.epoch) >= self.threshold for other in others.values()):
            return ""
        return f"mAP@.5 {own:.3f} after epoch {point.epoch}, under {self.threshold:g}, which another trial has passed"

    def outcome(self, run: TrialRun, code: int) -> tuple[str, str]:
        """Status and reason of a training whose process has ended."""
        was_asked = self.stopping or -code in ASKING or code - 128 in ASKING
        if code and was_asked and run.epochs < self.training.epochs(run.params):
            return INTERRUPTED, self.stopping or "its process was stopped from outside"
        if code and not was_asked:
            return FAILED, child.explain(code, self.folder / run.name / child.OUTPUT)
        if not run.curve:
            return FAILED, "ended without any result"
        return (COMPLETED, "") if math.isfinite(run.curve[-1].loss) else (FAILED, "its last loss is not finite")


# --- tables of results ------------------------------------------------------------------------------------------------

FIRST_COLUMNS = ("trial_id", "status", "final_map", "final_loss")
LAST_COLUMNS = ("wall_time", "best_epoch", "final_map50", "setting", "seed", "reason")


def setting_columns(runs: Sequence[TrialRun], training: TrialTraining) -> dict[str, list[str]]:
    """The settings of `runs`, in the order and spelling of the user's file: the value of each run as text.

    A setting that a run lacks has the value of the base configuration.
    """
    used = dict.fromkeys(name for run in runs for name in run.params)
    names = [name for name in {**training.user_names, **used} if name in used]
    values = {name: [run.params.get(name, training.base_value(name)) for run in runs] for name in names}
    return {training.user_names.get(name, name): list(map(as_text, found)) for name, found in values.items()}


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def write_csv(path: Path, runs: Sequence[TrialRun], training: TrialTraining) -> None:
    """One row for each started training."""
    params = setting_columns(runs, training)
    rows: list[list[Any]] = [[*FIRST_COLUMNS, *(f"param_{name}" for name in params), *LAST_COLUMNS]]
    for run, *values in zip(runs, *params.values()):
        rest = [f"{run.seconds:.1f}", run.best_epoch, run.final.map50, run.setting, run.seed, run.reason]
        rows.append([run.id, run.status, run.final.map, run.final_loss, *values, *rest])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(as_text, row) for row in rows)
    write_atomically(path, text.getvalue())


def write_results(table: Path, runs: Sequence[TrialRun], training: TrialTraining) -> None:
    """Write and print the ranking, its noise, and the command of a full run with the best settings."""
    ranked, text = (
        trial_ranking.rank(runs),
        table.with_name(table.name.replace("trials_", "ranking_")).with_suffix(".txt"),
    )
    cells = trial_ranking.ranking(ranked, setting_columns([place.run for place in ranked], training))
    summary = "\n\n".join(filter(None, [trial_ranking.aligned(cells), trial_ranking.verdict(ranked)]))
    write_csv(table, runs, training)
    write_atomically(text, summary + "\n")
    print(f"\n{summary}\n\nwritten: {table}, {text.name}")
    best, path = trial_ranking.best_settings(ranked), table.with_name("best.yaml")
    if best is None:
        path.unlink(missing_ok=True)  # of an earlier start of these trials
    else:
        content, arguments = training.full_run(best, path)
        write_atomically(path, yaml.safe_dump(content, sort_keys=False))
        print(f"A full run with the best settings ({content.get('epochs')} epochs):\n  {' '.join(arguments)}")
