"""Studies: every combination of some settings, with several seeds, at equal epochs and at equal minutes.

Each part is a list of trials (`runner`) in a folder of the study; the report is the comparison page of all trainings
preceded by the means of each configuration. The same command resumes a study that was stopped.
"""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.reports.comparison import build_report
from yolov7fast.reports.html_page import ComparisonReport, ReportTable, Section
from yolov7fast.reports.run_results import Run, read_runs
from yolov7fast.reports.trial_ranking import COMPLETED, TrialRun, rank, readable, verdict
from yolov7fast.search import trial_options as options
from yolov7fast.search.runner import run_trials
from yolov7fast.search.trial_training import MOST_TRIALS

SHORT = {"batch": "batch_size", "size": "img_size"}  # further names of axes
AXIS = re.compile(r"[a-z][a-z0-9_.-]*")
VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def configurations(axes: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of `assigner=plain,ota batch=16,64`, the last axis changing fastest."""
    values: dict[str, list[str]] = {}
    for text in axes:
        axis, equals, listed = text.partition("=")
        found = listed.split(",")
        if not equals or not AXIS.fullmatch(axis) or not all(VALUE.fullmatch(value) for value in found):
            raise UserError(f"--axes {shown(text)}: give NAME=VALUE,VALUE, such as assigner=plain,ota or batch=16,64")
        name = SHORT.get(axis, axis)
        if name in values or len(set(found)) < len(found):
            raise UserError(f"--axes {shown(text)}: give an axis, and each value of it, once")
        values[name] = found
    if math.prod(map(len, values.values())) > MOST_TRIALS:
        raise UserError(f"--axes: more than {MOST_TRIALS} combinations: leave values out")
    return [dict(zip(values, combination)) for combination in itertools.product(*values.values())]


def text_of(configuration: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in configuration.items())


@dataclass
class StudyPart:
    """The trainings at equal epochs, or those at equal minutes, in one folder."""

    title: str
    folder: Path
    settings: list[dict[str, Any]]  # one configuration each
    runs: list[TrialRun] = field(default_factory=list)  # completed trainings

    def train(self, base: Mapping[str, Any], *flags: str) -> int:
        """Train the unfinished trials; returns the exit code of the trials."""
        self.folder.mkdir(parents=True, exist_ok=True)
        base_file, list_file = self.folder / "base.yaml", self.folder / "trials_file.json"
        write_atomically(base_file, yaml.safe_dump(dict(base), sort_keys=False))
        write_atomically(list_file, json.dumps(self.settings))
        inputs = ["--base-config", str(base_file), "--trials-file", str(list_file), "--output-dir", str(self.folder)]
        resume = ["--resume"] if (self.folder / options.FILE).exists() else []
        code, started = run_trials(options.parser().parse_args([*inputs, *flags, *resume]))
        self.runs = [run for run in started if run.status == COMPLETED]
        return code

    def compared(self) -> list[Run]:
        """The same as runs of the comparison page."""
        found = read_runs([self.folder / run.name for run in self.runs]) if self.runs else []
        for page, run in zip(found, self.runs):
            page.name = f"{text_of(run.params)}, seed {run.seed} ({self.title})"
        return found

    def epoch_times(self) -> dict[int, float]:
        """Median seconds of an epoch, validation included, by number of the configuration."""
        seconds: dict[int, list[float]] = {}
        for run, page in zip(self.runs, self.compared()):
            if page.seconds is not None:
                seconds.setdefault(run.setting, []).append(float(np.median(page.seconds)))
        return {setting: float(np.median(values)) for setting, values in seconds.items()}

    def section(self) -> Section:
        """Mean and deviation of each configuration over its seeds, and which differences are within the noise."""
        ranked, times = rank(self.runs), self.epoch_times()
        header = ["configuration", "", "epochs", "mAP@.5", "mAP@.5:.95", "deviation", "seeds", "epoch time, s"]
        rows = []
        for place in ranked:
            accuracy = [readable(value) for value in (place.map50, place.map, place.spread)]
            time = f"{times[place.setting]:.3g}" if place.setting in times else "unknown"
            epochs = str(place.run.epochs)
            rows.append([str(place.setting), text_of(place.run.params), epochs, *accuracy, str(place.count), time])
        notes = [
            *filter(None, [verdict(ranked).replace("Setting", "Configuration").replace("setting", "configuration")]),
            "Accuracy is that of the last epoch. The result holds for this data set, network and length of training.",
        ]
        return Section(f"Configurations at {self.title}", ["Best first.", ReportTable(header, rows), notes])


def run_study(
    base: Mapping[str, Any], settings: list[dict[str, str]], repeat: int, epochs: int, minutes: float, output: Path
) -> ComparisonReport | int:
    """Train the missing trials; returns the report, or the exit code where a signal or failures ended the trainings."""
    seeds, first = ("--repeat", str(repeat)), StudyPart("equal epochs", output / "equal_epochs", [*settings])
    parts = [first]
    if code := first.train(base, *seeds, "--budget-epochs", str(epochs)):
        return code
    if minutes:
        fits = {setting: max(1, math.floor(minutes * 60 / time)) for setting, time in first.epoch_times().items()}
        timed = [{**settings[number - 1], "epochs": fit} for number, fit in sorted(fits.items())]
        parts.append(StudyPart("equal minutes", output / f"equal_minutes_{minutes:g}", timed))
        if code := parts[-1].train(base, *seeds):
            return code
    report = build_report([run for part in parts for run in part.compared()], None)
    report.title = f"Study of {', '.join(settings[0])}"
    report.sections[:0] = [part.section() for part in parts]
    return report
