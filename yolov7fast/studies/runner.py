"""Runs the trainings of a study one after another, each resumed where an earlier process left it."""

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.process.child import GRACE_SECONDS, OUTPUT, explain, follow
from yolov7fast.core.process.signals import StopRequest
from yolov7fast.evaluation.run_curves import read_csv
from yolov7fast.studies.plan import Plan, StudyRun

STATE, RUNS = "study.json", "runs"
Command = Callable[[StudyRun, Path], list[str]]  # what trains a run into a folder, or resumes it there
FREE = ("repeat", "minutes")  # may change in a study that is begun: they add runs, or leave some out of the report


class Stopped(Exception):
    """A signal ended the study; its run can be resumed."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class StudyFolder:
    """The files of a study: its plan, which runs are done, the runs' own folders."""

    def __init__(self, path: Path, plan: Plan):
        self.path, self.plan = path, plan
        self.done: list[str] = []

    def open(self) -> "StudyFolder":
        """Begin the study, or take up the one that lies here; another one's folder is refused."""
        file, wanted = self.path / STATE, json.loads(json.dumps(self.plan.to_dict()))
        if file.is_file():
            try:
                state: Any = json.loads(file.read_text(encoding="utf-8"))
                known, self.done = state["plan"], [str(name) for name in state["done"]]
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{file} cannot be read ({error}): give another --output") from None
            for key, value in wanted.items():
                if known.get(key) != value and key not in FREE:
                    raise UserError(
                        f"{file} is of a study with {key} {known.get(key)}, not {value}: give another --output"
                    )
        self.save()
        return self

    def save(self) -> None:
        (self.path / RUNS).mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / STATE, json.dumps({"plan": self.plan.to_dict(), "done": self.done}, indent=1))

    def folder(self, run: StudyRun) -> Path:
        return self.path / RUNS / run.name

    def epochs_done(self, run: StudyRun) -> int:
        if run.name in self.done:
            return run.epochs
        table = self.folder(run) / "results.csv"
        with contextlib.suppress(UserError, OSError):  # being written at this moment
            return min(len(read_csv(table)), run.epochs) if table.is_file() else 0
        return 0


def run_all(study: StudyFolder, runs: Sequence[StudyRun], command: Command, what: str) -> None:
    """Train what is not done yet; `Stopped` after a signal, `UserError` where a training fails."""
    distinct = list({run.name: run for run in runs}.values())  # the same epochs at equal epochs and minutes: one run
    total = sum(run.epochs for run in distinct)
    with StopRequest() as stop, tqdm(total=total, unit="epoch", desc=what, dynamic_ncols=True) as bar:
        finished = 0
        for number, run in enumerate(distinct, 1):
            if run.name not in study.done:
                bar.set_postfix_str(f"{number}/{len(distinct)} {run.name}")
                _train(study, run, command, stop, bar, finished)
                study.done.append(run.name)
                study.save()
            finished += run.epochs
            _show(bar, finished)


def _train(study: StudyFolder, run: StudyRun, command: Command, stop: StopRequest, bar: tqdm, before: int) -> None:
    folder, output = study.folder(run), study.path / RUNS / f"{run.name}.{OUTPUT}"
    folder.mkdir(parents=True, exist_ok=True)

    def look() -> float | None:
        _show(bar, before + study.epochs_done(run))
        return GRACE_SECONDS if stop else None

    code = follow(command(run, folder), output, look)
    if stop:
        raise Stopped(stop.exit_code)
    if code:
        raise UserError(f"training {run.name} ended with code {code} and said: {explain(code, output)}")


def _show(bar: tqdm, done: int) -> None:
    if done != bar.n:
        bar.n = done
        bar.refresh()
