"""What is known of every trial, in one file that is true at every moment: a killed runner goes on from it."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from yolov7fast.core.bounded import is_whole
from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.files.json_file import read_json

FILE = "trials.json"
REMEDY = "restore it from a copy, or choose another --output-dir"
MOST = 1 << 40  # trials, seeds, epochs
VERSION = 1
COMPLETED, PRUNED, FAILED, INTERRUPTED = "completed", "pruned", "failed", "interrupted"
WAITING, RUNNING = "waiting", "running"
FIRST = 1  # number of the first trial and of the first setting
STATES = (COMPLETED, PRUNED, FAILED, INTERRUPTED, WAITING, RUNNING)
ENDED = (COMPLETED, PRUNED, FAILED)  # these stay as they are; all others are gone on with by --resume


@dataclass
class Point:
    """One epoch (counted from 0): mean training loss; mAP@.5:.95 and mAP@.5, None where it was not validated."""

    epoch: int
    loss: float
    map: float | None = None
    map50: float | None = None


@dataclass
class Run:
    """One training of one setting with one seed. `curve` holds the epochs that count for its figures."""

    id: int
    setting: int
    seed: int
    params: dict[str, Any]
    status: str = WAITING
    curve: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""
    stop: str = ""  # why it is to be pruned: decided, though its process may still be ending

    @property
    def name(self) -> str:
        """Its folder, below the output folder."""
        return f"trial_{self.id:03d}"

    @property
    def validated(self) -> list[Point]:
        return [point for point in self.curve if point.map is not None]

    @property
    def final_map(self) -> float | None:
        """mAP@.5:.95 of the last validation; a failed run has none that could be compared."""
        return self.validated[-1].map if self.validated and self.status != FAILED else None

    @property
    def final_map50(self) -> float | None:
        return self.validated[-1].map50 if self.validated and self.status != FAILED else None

    @property
    def final_loss(self) -> float | None:
        return self.curve[-1].loss if self.curve else None

    @property
    def best_epoch(self) -> int | None:
        return max(self.validated, key=lambda point: point.map or 0.0).epoch if self.validated else None

    def best_map50_by(self, epoch: int) -> float | None:
        """The highest mAP@.5 of the epochs up to this one."""
        by_then = (point.map50 for point in self.validated if point.epoch <= epoch and point.map50 is not None)
        return max(by_then, default=None)


def run_from(values: Mapping[str, Any]) -> Run:
    """A run as `trials.json` holds it; ValueError, TypeError or KeyError where it is not one."""
    run = Run(**{**values, "curve": [_point_from(point) for point in values["curve"]]})
    kinds = ((run.params, dict), (run.reason, str), (run.stop, str), (run.seconds, int | float))
    if not all(is_whole(number, 0, MOST) for number in (run.id, run.setting, run.seed)):
        raise ValueError("a trial's numbers are out of range")
    if run.status not in STATES or not all(isinstance(value, kind) for value, kind in kinds):
        raise ValueError(f"{run.name} has values of other kinds than trials have")
    return run


def _point_from(values: Mapping[str, Any]) -> Point:
    point = Point(**values)
    measured = [value for value in (point.loss, point.map, point.map50) if value is not None]
    if not is_whole(point.epoch, 0, MOST) or not all(isinstance(value, int | float) for value in measured):
        raise ValueError("an epoch has figures that are no numbers")
    return point


def _check_plan(plan: Mapping[str, Any]) -> None:
    """Whether it is what `command.make_plan` makes; the timestamp becomes part of file names."""
    kinds = {"options": dict, "base": dict, "trials": list, "space": dict}
    if not all(isinstance(plan[name], kind) for name, kind in kinds.items()):
        raise ValueError("its plan has values of other kinds than plans have")
    if not all(isinstance(settings, dict) for settings in plan["trials"]) or not isinstance(
        plan.get("files", {}), dict
    ):
        raise ValueError("its plan lists trials that are none")
    if not re.fullmatch(r"\w{1,40}", plan["timestamp"], re.ASCII) or not isinstance(plan.get("id", ""), str):
        raise ValueError("its plan has another timestamp than plans have")


class Ledger:
    """The file trials.json: `plan` says what these trials are, `runs` how far each one is."""

    def __init__(self, folder: Path, plan: Mapping[str, Any], runs: Mapping[int, Run] | None = None):
        self.folder = folder
        self.plan = dict(plan)
        self.runs = dict(runs or {})

    @classmethod
    def read(cls, folder: Path) -> "Ledger":
        path = folder / FILE
        if not path.exists():
            raise UserError(f"--resume: there are no trials to resume in {folder} ({FILE} is missing)")
        content = read_json(path, remedy=REMEDY)
        if not isinstance(content, dict) or "version" not in content:
            raise UserError(f"{path} is damaged: it holds no trials; {REMEDY}")
        if content["version"] != VERSION:
            raise UserError(f"{path} has version {shown(content['version'])}, this program writes {VERSION}")
        try:
            _check_plan(content["plan"])
            runs = [run_from(values) for values in content["runs"]]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise UserError(f"{path} is damaged: {one_line(error, 100)}; {REMEDY}") from None
        return cls(folder, content["plan"], {run.id: run for run in runs})

    @property
    def first(self) -> int:
        """Where numbers of trials and settings begin; files of older versions count from 0 and keep their folders."""
        return self.plan.get("first", 0)

    @property
    def ordered(self) -> list[Run]:
        return [self.runs[key] for key in sorted(self.runs)]

    def save(self) -> None:
        content = {"version": VERSION, "plan": self.plan, "runs": [asdict(run) for run in self.ordered]}
        write_atomically(self.folder / FILE, json.dumps(content, indent=1))


def finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
