"""What is known of every trial, in one file that is true at every moment: a killed runner goes on from it."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from yolov7fast.core.atomic import write_atomically
from yolov7fast.core.errors import UserError

FILE = "trials.json"
VERSION = 1
COMPLETED, PRUNED, FAILED, INTERRUPTED = "completed", "pruned", "failed", "interrupted"
WAITING, RUNNING = "waiting", "running"
FIRST = 1  # number of the first trial and of the first setting
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
    return Run(**{**values, "curve": [Point(**point) for point in values["curve"]]})


class Ledger:
    """The file trials.json: `plan` says what these trials are, `runs` how far each one is."""

    def __init__(self, folder: Path, plan: Mapping[str, Any], runs: Mapping[int, Run] | None = None):
        self.folder = folder
        self.plan = dict(plan)
        self.runs = dict(runs or {})

    @classmethod
    def read(cls, folder: Path) -> "Ledger":
        path = folder / FILE
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            raise UserError(f"--resume: there are no trials to go on with in {folder} ({FILE} is missing)") from None
        except json.JSONDecodeError as error:
            raise UserError(f"{path} is damaged ({error}); choose another --output-dir") from None
        if content.get("version") != VERSION:
            raise UserError(f"{path} has version {content.get('version')}, this program writes {VERSION}")
        return cls(folder, content["plan"], {run.id: run for run in map(run_from, content["runs"])})

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
