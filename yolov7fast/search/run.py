"""One training: its record in the study, and the figures that it leaves in its folder."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from yolov7fast.core.bounded import is_whole
from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.result import MAP, MAP50
from yolov7fast.evaluation.run_curves import number, read_csv

COMPLETED, INTERRUPTED, PRUNED, FAILED, RUNNING = "completed", "interrupted", "pruned", "failed", "running"
ENDED = (COMPLETED, PRUNED, FAILED)  # these stay as they are; all others are resumed
MOST = 1 << 40  # trainings


class Point(NamedTuple):
    """One epoch (counted from 0): mean training loss; mAP@.5:.95 and mAP@.5, None where it was not validated."""

    epoch: int
    loss: float
    map: float | None = None
    map50: float | None = None


@dataclass
class Run:
    """One training of one setting with one seed. `curve` holds the epochs that count for its figures.

    It is `pruned` as soon as that is decided, though its process may still be ending.
    """

    id: int
    setting: int
    seed: int
    params: dict[str, Any]
    status: str = RUNNING
    curve: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        """TypeError or ValueError where a study holds what no run has."""
        self.curve = [Point(*point) for point in self.curve]
        figures = [self.seconds, *(value for point in self.curve for value in point if value is not None)]
        is_plain = isinstance(self.params, dict) and all(isinstance(value, int | float) for value in figures)
        if self.status not in (*ENDED, INTERRUPTED, RUNNING) or not is_plain or not is_whole(self.id, 0, MOST):
            raise ValueError("it has other values than trials have")

    @property
    def record(self) -> dict[str, Any]:
        """What a study keeps of it, beside its setting and seed."""
        return {"status": self.status, "curve": self.curve, "seconds": self.seconds, "reason": self.reason}

    @property
    def name(self) -> str:
        """Its folder, below the output folder."""
        return f"trial_{self.id:03d}"

    @property
    def epochs(self) -> int:
        return self.curve[-1].epoch + 1 if self.curve else 0

    @property
    def final_loss(self) -> float | None:
        return self.curve[-1].loss if self.curve else None

    @property
    def validated(self) -> list[Point]:
        return [point for point in self.curve if point.map is not None]

    @property
    def final(self) -> Point:
        """The last validation; a failed run has none that could be compared."""
        return self.validated[-1] if self.validated and self.status != FAILED else Point(0, math.nan)

    @property
    def best_epoch(self) -> int | None:
        return max(self.validated, key=lambda point: point.map or 0.0).epoch if self.validated else None


def read_curve(folder: Path) -> list[Point]:
    """The epochs in results.csv; a last line that is still being written is left for the next look."""
    try:
        rows = read_csv(folder / "results.csv")
    except (FileNotFoundError, UserError):
        return []
    curve = []
    for epoch, row in sorted(rows.items()):
        if None not in row.values():
            losses = [math.nan, *(number(text) for name, text in row.items() if name and name.startswith("train/"))]
            maps = (number(row.get(name)) for name in (MAP, MAP50))
            curve.append(Point(epoch, losses[-1], *(value if math.isfinite(value) else None for value in maps)))
    return curve
