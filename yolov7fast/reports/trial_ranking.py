"""Short trainings of a search or study, the ranking of their settings over seeds, and a t-test of the differences."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scipy.special import stdtrit

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.settings_files import is_whole
from yolov7fast.evaluation.eval_result import MAP, MAP50
from yolov7fast.reports.run_results import number, read_csv

CONFIDENCE = 0.95


def pooled_deviation(found: "Sequence[RankedSetting]") -> tuple[float, int]:
    """Standard deviation between seeds, pooled over all settings, and its degrees of freedom; NaN where none has two
    seeds.

    Pooling is needed because few seeds give a poor estimate of a deviation.
    """
    several = [repeated.values for repeated in found if len(repeated.values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in several)
    return (math.sqrt(squares / freedom), freedom) if freedom else (math.nan, 0)


def interval(one: "RankedSetting", other: "RankedSetting", found: "Sequence[RankedSetting]") -> float:
    """Half width of the 95% interval of the difference of two means (t-test); infinite without repeated seeds."""
    deviation, freedom = pooled_deviation(found)
    if not freedom:
        return math.inf
    quantile = float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return quantile * deviation * math.sqrt(1 / len(one.values) + 1 / len(other.values))


COMPLETED, INTERRUPTED, PRUNED, FAILED, RUNNING = "completed", "interrupted", "pruned", "failed", "running"
FINAL_STATUSES = (COMPLETED, PRUNED, FAILED)  # final states; trainings in other states are resumed
STATUS_ORDER = (COMPLETED, INTERRUPTED, PRUNED, FAILED)  # of the ranking
RANKING = ("rank", "setting", "status", "seeds", "map_mean", "map_deviation", "map50_mean", "loss_mean", "wall_time")
LEAST_DIFFERENCE = 1e-4  # of mAP: settings that differ by less count as equal
MAX_TRAININGS = 1 << 40


class CurvePoint(NamedTuple):
    """One epoch (from 0): mean training loss; mAP@.5:.95 and mAP@.5, None where it was not validated."""

    epoch: int
    loss: float
    map: float | None = None
    map50: float | None = None


@dataclass
class TrialRun:
    """One training of one setting with one seed; `curve` holds the epochs that its results are taken from."""

    id: int
    setting: int
    seed: int
    params: dict[str, Any]
    status: str = RUNNING
    curve: list[CurvePoint] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError where a stored record is damaged."""
        self.curve = [CurvePoint(*point) for point in self.curve]
        numbers = [self.seconds, *(value for point in self.curve for value in point if value is not None)]
        is_plain = isinstance(self.params, dict) and all(isinstance(value, int | float) for value in numbers)
        if (
            self.status not in (*FINAL_STATUSES, INTERRUPTED, RUNNING)
            or not is_plain
            or not is_whole(self.id, 0, MAX_TRAININGS)
        ):
            raise ValueError("its values do not fit a trial")

    @property
    def record(self) -> dict[str, Any]:
        """The values stored in the study, without setting and seed."""
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
    def validated(self) -> list[CurvePoint]:
        return [point for point in self.curve if point.map is not None]

    @property
    def final(self) -> CurvePoint:
        """The last validation; NaN for a failed training."""
        return self.validated[-1] if self.validated and self.status != FAILED else CurvePoint(0, math.nan)

    @property
    def best_epoch(self) -> int | None:
        return max(self.validated, key=lambda point: point.map or 0.0).epoch if self.validated else None

    def best_map50(self, last_epoch: int) -> float:
        return max((point.map50 or 0.0 for point in self.validated if point.epoch <= last_epoch), default=0.0)


def read_curve(folder: Path) -> list[CurvePoint]:
    """The epochs in results.csv, without a last line that is still being written."""
    try:
        rows = read_csv(folder / "results.csv")
    except (FileNotFoundError, UserError):
        return []
    curve = []
    for epoch, row in sorted(rows.items()):
        if None not in row.values():
            losses = [math.nan, *(number(text) for name, text in row.items() if name and name.startswith("train/"))]
            maps = (number(row.get(name)) for name in (MAP, MAP50))
            curve.append(CurvePoint(epoch, losses[-1], *(value if math.isfinite(value) else None for value in maps)))
    return curve


# --- ranking ----------------------------------------------------------------------------------------------------------


class RankedSetting:
    """One setting over its seeds.

    count: its seeds with the most progress; values, map, spread: their final mAP, its mean and deviation.
    """

    def __init__(self, setting: int, runs: Sequence[TrialRun]):
        self.setting, self.run = setting, runs[0]  # its settings are those of all seeds
        self.status = min((run.status for run in runs), key=STATUS_ORDER.index)
        self.seconds = sum(run.seconds for run in runs)
        counted = [run for run in runs if run.status == self.status]
        self.values = [run.final.map for run in counted if run.final.map is not None]
        self.count, self.map = len(counted), _mean(self.values)
        self.spread = statistics.stdev(self.values) if len(self.values) > 1 else None
        self.map50 = _mean([run.final.map50 for run in counted])
        self.loss = _mean([run.final_loss for run in counted])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else None


def rank(runs: Sequence[TrialRun]) -> list[RankedSetting]:
    """Settings from best to worst: completed ones by mean final mAP, then interrupted, pruned and failed ones."""
    settings = dict.fromkeys(run.setting for run in runs)
    found = [RankedSetting(setting, [run for run in runs if run.setting == setting]) for setting in settings]
    return sorted(
        found, key=lambda p: (STATUS_ORDER.index(p.status), -(p.map if p.map is not None else -1.0), p.setting)
    )


def ranking(ranked: Sequence[RankedSetting], params: Mapping[str, Sequence[str]]) -> list[list[Any]]:
    """Rows of the ranking with a header; params: values of each setting as text, one for each of `ranked`."""
    rows: list[list[Any]] = [[*RANKING, *(f"param_{name}" for name in params)]]
    for position, (place, *values) in enumerate(zip(ranked, *params.values()), 1):
        means = (place.map, place.spread, place.map50, place.loss)
        rows.append([position, place.setting, place.status, place.count, *means, f"{place.seconds:.1f}", *values])
    return rows


def aligned(rows: Sequence[Sequence[Any]]) -> str:
    """The rows as text in columns."""
    cells = [[readable(cell) if cell is None or isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def readable(value: float | None) -> str:
    """Four decimals, or more if these would all be zero."""
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.2g}"


def best_settings(ranked: Sequence[RankedSetting]) -> Mapping[str, Any] | None:
    """The settings for a full run; None if none completed or all are equal."""
    completed, are_equal = _completed(ranked)
    return completed[0].run.params if completed and not are_equal else None


def _completed(ranked: Sequence[RankedSetting]) -> tuple[list[RankedSetting], bool]:
    """Completed settings, best first; and whether there are several, all with equal mAP."""
    found = [place for place in ranked if place.status == COMPLETED and place.map is not None]
    maps = [place.map or 0.0 for place in found]
    return found, len(found) > 1 and max(maps) - min(maps) < LEAST_DIFFERENCE


def verdict(ranked: Sequence[RankedSetting]) -> str:
    """Whether the best setting is better than the others by more than the noise of the seeds."""
    found, are_equal = _completed(ranked)
    if len(found) < 2:
        return ""
    best, second, *_ = found
    if are_equal:
        return (
            f"Nothing differs: all {len(found)} settings end at mAP@.5:.95 {readable(best.map)}, none is recommended. "
            "Give each trial more iterations (--budget-epochs, --budget-subset), or try settings further apart."
        )
    leads = {place: (best.map or 0.0) - (place.map or 0.0) for place in found[1:]}
    limits = {place: interval(best, place, found) for place in leads}
    if math.isinf(limits[second]):
        return (
            f"Setting {best.setting} leads setting {second.setting} by {readable(leads[second])}. "
            "With one seed each, how much of this is chance is unknown; --repeat 3 shows it."
        )
    near, limit = [str(place.setting) for place in leads if leads[place] <= limits[place]], readable(limits[second])
    if not near:
        return f"Setting {best.setting} is better than every other by more than the noise ({limit} at 95%)."
    return (
        f"Within the noise of setting {best.setting} (differences up to {limit} are chance, at 95%): "
        f"setting{'s' * (len(near) > 1)} {', '.join(near)}. Choose the cheapest of them, or repeat with more seeds."
    )
