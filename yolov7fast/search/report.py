"""What trials have found: the CSV of all runs, the ranking of the settings, and what is noise in it."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.search.run import COMPLETED, FAILED, INTERRUPTED, PRUNED, Run
from yolov7fast.search.seeds import interval
from yolov7fast.search.trainer import Trainer

LEADING = ("trial_id", "status", "final_map", "final_loss")
TRAILING = ("wall_time", "best_epoch", "final_map50", "setting", "seed", "reason")
RANKING = ("rank", "setting", "status", "seeds", "map_mean", "map_deviation", "map50_mean", "loss_mean", "wall_time")
READABLE = ("rank", "setting", "status", "mAP@.5:.95", "mAP@.5", "loss", "minutes")
LEAST_DIFFERENCE = 1e-4  # of mAP: settings that differ by less are alike, as where nothing was learnt
ORDER = (COMPLETED, INTERRUPTED, PRUNED, FAILED)


def columns(runs: Sequence[Run], trainer: Trainer) -> dict[str, list[str]]:
    """The settings of some runs, in the order of the user's file and as it spells them: each run's value as text.

    What a trial does not set, the base configuration does.
    """
    used = dict.fromkeys(name for run in runs for name in run.params)
    names = [name for name in {**trainer.spelt, **used} if name in used]
    values = {name: [run.params.get(name, trainer.base_value(name)) for run in runs] for name in names}
    return {trainer.spelt.get(name, name): list(map(as_text, found)) for name, found in values.items()}


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def write_csv(path: Path, runs: Sequence[Run], trainer: Trainer) -> None:
    """One row for each run that was begun, put in place in one step."""
    rows, params = [], columns(runs, trainer)
    for run, *values in zip(runs, *params.values()):
        rest = [f"{run.seconds:.1f}", run.best_epoch, run.final.map50, run.setting, run.seed, run.reason]
        rows.append([run.id, run.status, run.final.map, run.final_loss, *values, *rest])
    _write_rows(path, [[*LEADING, *(f"param_{name}" for name in params), *TRAILING], *rows])


def _write_rows(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(as_text, row) for row in rows)
    write_atomically(path, text.getvalue())


def report(table: Path, runs: Sequence[Run], trainer: Trainer) -> None:
    """Write and print the ranking, what is noise, the plot, and the command that the best settings deserve."""
    from yolov7fast.search.plot import draw  # matplotlib takes a second to load

    stamp, places = table.stem.removeprefix("trials_"), rank(runs)
    text, figures, image = (table.with_name(f"ranking_{stamp}{end}") for end in (".txt", ".csv", ".png"))
    for_programs, to_read = ranking(places, trainer)
    summary = "\n\n".join(filter(None, [to_read, verdict(places)]))
    write_csv(table, runs, trainer)
    write_atomically(text, summary + "\n")
    _write_rows(figures, for_programs)
    draw(image, runs, trainer)
    print(f"\n{summary}\n\nwritten: {table}, {text.name}, {figures.name}, {image.name}")
    best, path = best_settings(places), table.with_name("best.yaml")
    if best is None:
        path.unlink(missing_ok=True)  # of an earlier part of these trials
    else:
        content, arguments = trainer.full_run(best, path)
        write_atomically(path, yaml.safe_dump(content, sort_keys=False))
        print(f"A full run with the best settings ({content.get('epochs')} epochs):\n  {' '.join(arguments)}")


# --- ranking ----------------------------------------------------------------------------------------------------------


class Place:
    """A setting among the others.

    count: its seeds that came as far as any of them; values, map, spread: their final mAP, its mean and deviation.
    """

    def __init__(self, setting: int, runs: Sequence[Run]):
        self.setting, self.run = setting, runs[0]  # whose settings are those of all
        self.status = min((run.status for run in runs), key=ORDER.index)
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


def rank(runs: Sequence[Run]) -> list[Place]:
    """Settings from best to worst: completed ones by mean final mAP, then interrupted, pruned and failed ones."""
    settings = dict.fromkeys(run.setting for run in runs)
    places = [Place(setting, [run for run in runs if run.setting == setting]) for setting in settings]
    return sorted(places, key=lambda p: (ORDER.index(p.status), -(p.map if p.map is not None else -1.0), p.setting))


def ranking(places: Sequence[Place], trainer: Trainer) -> tuple[list[list[Any]], str]:
    """The ranking for programs, as rows, and to read, in aligned columns.

    map_mean and map_deviation are of the final mAP over `seeds` runs.
    """
    params = columns([place.run for place in places], trainer)
    rows, cells = [[*RANKING, *(f"param_{name}" for name in params)]], [[*READABLE, *params]]
    repeated = any(place.spread is not None for place in places)
    for number, (place, *values) in enumerate(zip(places, *params.values()), 1):
        first = [number, place.setting, place.status]
        figures = [place.count, place.map, place.spread, place.map50, place.loss, f"{place.seconds:.1f}"]
        rows.append([*first, *figures, *values])
        found = readable(place.map)
        if repeated and place.map is not None:
            found += f" ± {readable(place.spread)}" * (place.spread is not None) + f" ({place.count})"
        rest = [readable(place.map50), readable(place.loss), f"{place.seconds / 60:.1f}"]
        cells.append([*map(str, first), found, *rest, *values])
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells)
    return rows, "\n".join(lines)


def readable(value: float | None) -> str:
    """Four digits behind the point, more where these would all be zero."""
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.2g}"


# --- what is noise ----------------------------------------------------------------------------------------------------


def completed(places: Sequence[Place]) -> tuple[dict[Place, float], bool]:
    """Those that came to their end, best first, with their mAP@.5:.95; whether, being several, they came out alike."""
    values = {place: place.map for place in places if place.status == COMPLETED and place.map is not None}
    return values, len(values) > 1 and max(values.values()) - min(values.values()) < LEAST_DIFFERENCE


def best_settings(places: Sequence[Place]) -> Mapping[str, Any] | None:
    """The settings that deserve a full run; None where nothing speaks for any of them."""
    values, are_alike = completed(places)
    return next(iter(values)).run.params if values and not are_alike else None


def verdict(places: Sequence[Place]) -> str:
    """Whether the best setting is really the best, in one or two sentences."""
    values, are_alike = completed(places)
    if len(values) < 2:
        return ""
    best, *others = values
    if are_alike:
        return (
            f"Nothing differs: all {len(values)} settings end at mAP@.5:.95 {readable(best.map)}, none is recommended. "
            "Give each trial more iterations (--budget-epochs, --budget-subset), or try settings further apart."
        )
    limits = {place: interval(best, place, [*values]) for place in others}
    lead, limit = values[best] - values[others[0]], readable(limits[others[0]])
    if math.isinf(limits[others[0]]):
        return (
            f"Setting {best.setting} leads setting {others[0].setting} by {readable(lead)}. "
            "With one seed each, how much of that is chance is unknown; --repeat 3 shows it."
        )
    near = [str(place.setting) for place, limit in limits.items() if values[best] - values[place] <= limit]
    if not near:
        return f"Setting {best.setting} is better than every other by more than the noise ({limit} at 95%)."
    return (
        f"Within the noise of setting {best.setting} (differences up to {limit} are chance, at 95%): "
        f"setting{'s' * (len(near) > 1)} {', '.join(near)}. Choose the cheapest of them, or repeat with more seeds."
    )
