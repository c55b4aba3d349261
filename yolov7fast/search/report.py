"""What trials have found: the CSV of all runs, the ranking of the settings, and what is noise in it."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.special import stdtrit  # the quantile of Student's t

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.search.run import COMPLETED, FAILED, INTERRUPTED, PRUNED, Run, finite
from yolov7fast.search.trainer import Trainer

LEADING = ("trial_id", "status", "final_map", "final_loss")
TRAILING = ("wall_time", "best_epoch", "final_map50", "setting", "seed", "reason")
RANKING = ("rank", "setting", "status", "seeds", "map_mean", "map_deviation", "map50_mean", "loss_mean", "wall_time")
CONFIDENCE = 0.95
LEAST_DIFFERENCE = 1e-4  # of mAP: settings that differ by less are alike, as where nothing was learnt
ORDER = (COMPLETED, INTERRUPTED, PRUNED, FAILED)


def param_names(runs: Sequence[Run], trainer: Trainer) -> list[str]:
    """The settings of these runs, in the order of the user's file."""
    used = dict.fromkeys(name for run in runs for name in run.params)
    return [name for name in {**trainer.spelt, **used} if name in used]


def spelt(names: Sequence[str], trainer: Trainer) -> list[str]:
    """Settings as the user wrote them."""
    return [trainer.spelt.get(name, name) for name in names]


def params_of(run: Run, names: Sequence[str], trainer: Trainer) -> dict[str, str]:
    """The value of each setting as text; what a trial does not set, the base configuration does."""
    return {name: as_text(run.params.get(name, trainer.base_value(name))) for name in names}


def as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_csv(path: Path, runs: Sequence[Run], trainer: Trainer) -> None:
    """One row for each run that was begun, put in place in one step."""
    names = param_names(runs, trainer)
    rows: list[list] = [[*LEADING, *(f"param_{name}" for name in spelt(names, trainer)), *TRAILING]]
    for run in runs:
        figures = [run.id, run.status, as_text(run.final_map), as_text(run.final_loss)]
        rest = [f"{run.seconds:.1f}", as_text(run.best_epoch), as_text(run.final_map50), run.setting, run.seed]
        rows.append([*figures, *params_of(run, names, trainer).values(), *rest, run.reason])
    _write_rows(path, rows)


def write_ranking_csv(path: Path, places: "Sequence[Place]", trainer: Trainer) -> None:
    """The ranking for programs: map_mean and map_deviation are of final_map over `seeds` runs."""
    names = param_names([place.run for place in places], trainer)
    rows: list[list] = [[*RANKING, *(f"param_{name}" for name in spelt(names, trainer))]]
    for number, place in enumerate(places, 1):
        figures = [as_text(value) for value in (place.map, place.spread, place.map50, place.loss)]
        params = params_of(place.run, names, trainer).values()
        rows.append([number, place.setting, place.status, place.count, *figures, f"{place.seconds:.1f}", *params])
    _write_rows(path, rows)


def _write_rows(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_atomically(path, text.getvalue())


def write_all(table: Path, runs: Sequence[Run], trainer: Trainer) -> list[str]:
    """The CSV, the ranking as text and as figures, and the plot; returns their names."""
    from yolov7fast.search.plot import draw  # matplotlib takes a second to load

    write_csv(table, runs, trainer)
    stamp, places = table.stem.removeprefix("trials_"), rank(runs)
    text, figures, image = (table.with_name(f"ranking_{stamp}{end}") for end in (".txt", ".csv", ".png"))
    write_atomically(text, summary(places, trainer) + "\n")
    write_ranking_csv(figures, places, trainer)
    draw(image, runs, trainer)
    return [str(table), text.name, figures.name, image.name]


def summary(places: "Sequence[Place]", trainer: Trainer) -> str:
    return "\n\n".join(filter(None, [ranking_text(places, trainer), verdict(places)]))


# --- ranking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A setting among the others. map, spread: mean and standard deviation of final_map over its `count` seeds."""

    setting: int
    status: str
    count: int
    map: float | None
    spread: float | None
    map50: float | None
    loss: float | None
    seconds: float
    run: Run  # the first one: its settings are those of all


def rank(runs: Sequence[Run]) -> list[Place]:
    """Settings from best to worst: completed ones by mean final_map, then interrupted, pruned and failed ones."""
    groups: dict[int, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    places = [_place(setting, group) for setting, group in groups.items()]
    return sorted(places, key=lambda p: (ORDER.index(p.status), -(p.map if p.map is not None else -1.0), p.setting))


def _place(setting: int, group: Sequence[Run]) -> Place:
    status = min((run.status for run in group), key=lambda s: ORDER.index(s))
    counted = [run for run in group if run.status == status]
    values = [run.final_map for run in counted if run.final_map is not None]
    return Place(
        setting,
        status,
        len(counted),
        _mean(values),
        statistics.stdev(values) if len(values) > 1 else None,
        _mean([run.final_map50 for run in counted if run.final_map50 is not None]),
        _mean([run.final_loss for run in counted if finite(run.final_loss)]),
        sum(run.seconds for run in group),
        group[0],
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def noise(places: Sequence[Place], count_one: int, count_other: int) -> float | None:
    """The smallest difference of two means that is more than chance, at 95%; None where no seed was repeated.

    A t-test with one spread for all settings: few seeds each tell little of their own spread, but much together.
    """
    repeated = [(place.count - 1, place.spread) for place in places if place.spread is not None]
    freedom = sum(count for count, _ in repeated)
    if not freedom:
        return None
    variance = sum(count * spread**2 for count, spread in repeated) / freedom
    quantile = float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return quantile * math.sqrt(variance * (1 / count_one + 1 / count_other))


def readable(value: float | None) -> str:
    """Four digits behind the point, more where these would all be zero."""
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.2g}"


def ranking_text(places: Sequence[Place], trainer: Trainer) -> str:
    """The ranking as a table of aligned columns."""
    names = param_names([place.run for place in places], trainer)
    repeated = any(place.spread is not None for place in places)
    head = ["rank", "setting", "status", "mAP@.5:.95", "mAP@.5", "loss", "minutes", *spelt(names, trainer)]
    rows = [head]
    for number, place in enumerate(places, 1):
        value = readable(place.map)
        if repeated and place.map is not None:
            value += f" ± {readable(place.spread)}" * (place.spread is not None) + f" ({place.count})"
        figures = [readable(place.map50), readable(place.loss)]
        params = params_of(place.run, names, trainer).values()
        rows.append(
            [str(number), str(place.setting), place.status, value, *figures, f"{place.seconds / 60:.1f}", *params]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def nothing_differs(places: Sequence[Place]) -> bool:
    """Whether all completed settings, of which there are several, came out alike."""
    values = [place.map for place in places if place.status == COMPLETED and place.map is not None]
    return len(values) > 1 and max(values) - min(values) < LEAST_DIFFERENCE


def lead(place: Place, other: Place) -> float:
    """By how much mAP@.5:.95 one completed setting is better than another."""
    return (place.map or 0.0) - (other.map or 0.0)


def verdict(places: Sequence[Place]) -> str:
    """Whether the best setting is really the best, in one or two sentences."""
    done = [place for place in places if place.status == COMPLETED and place.map is not None]
    if len(done) < 2:
        return ""
    best, others = done[0], done[1:]
    if nothing_differs(done):
        return (
            f"Nothing differs: all {len(done)} settings end at mAP@.5:.95 {readable(best.map)}, none is recommended. "
            "Give each trial more iterations (--budget-epochs, --budget-subset), or try settings further apart."
        )
    near = []
    for place in others:
        limit = noise(done, best.count, place.count)
        if limit is None:
            return (
                f"Setting {best.setting} leads setting {others[0].setting} by {readable(lead(best, others[0]))}. "
                "With one seed each, how much of that is chance is unknown; --repeat 3 shows it."
            )
        if lead(best, place) <= limit:
            near.append(place)
    limit = noise(done, best.count, others[0].count)
    if not near:
        return f"Setting {best.setting} is better than every other by more than the noise ({readable(limit)} at 95%)."
    listed = ", ".join(str(place.setting) for place in near)
    return (
        f"Within the noise of setting {best.setting} (differences up to {readable(limit)} are chance, at 95%): "
        f"setting{'s' * (len(near) > 1)} {listed}. Choose the cheapest of them, or repeat with more seeds."
    )


def best_settings(places: Sequence[Place]) -> Mapping[str, Any] | None:
    """The settings that deserve a full run; None where nothing speaks for any of them."""
    first = places[0] if places and not nothing_differs(places) else None
    return first.run.params if first and first.status == COMPLETED and first.map is not None else None
