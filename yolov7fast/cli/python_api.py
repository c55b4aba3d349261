"""Training from Python: `run = train(data="my.yaml", cfg="cfg/training/yolov7-tiny.yaml", epochs=100)`."""

import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.run_file import check_flag_name
from yolov7fast.cli.train_command import start_training
from yolov7fast.evaluation.eval_result import SUMMARY, fitness_of
from yolov7fast.reports.run_results import number, read_csv


@dataclass(frozen=True)
class TrainingRun:
    """The result of a training."""

    folder: Path | None  # of the run, if one was created
    exit_code: int  # of the command: 0 unless it was stopped, or did not memorise the images of --overfit
    metrics: Mapping[str, float]  # of the best epoch, by the columns of results.csv; empty without validation
    last: Mapping[str, float]  # of the last epoch

    @property
    def weights(self) -> Path | None:
        """The best checkpoint, or else the last one."""
        patterns = [f"{place}{name}.pt*" for name in ("best", "last") for place in ("weights/", "")]
        files = [path for pattern in patterns for path in (self.folder or Path()).glob(pattern)]
        return files[0] if self.folder and files else None


def train(family: str = "yolo", **flags: Any) -> TrainingRun:
    """Train a detector; keywords are the flags of train.py, with underscores: `batch_size=16, img_size=[640, 640]`.

    family: yolo, or detr for the flags of tools/train_detr.py. Mistakes raise `core.errors.UserError` with the message
    that the command prints.
    """
    code, folder = start_training(options_of(family, flags), family)
    best, last = best_and_last(folder / "results.csv") if folder else ({}, {})
    return TrainingRun(folder, code, best, last)


def options_of(family: str, flags: Mapping[str, Any]) -> Namespace:
    """The parsed options of a command line with the same flags."""
    table = flags_of("train", family)
    given = dict(flags)
    config = given.pop("config", None)
    opt = parser_for("train", family).parse_args(["--config", str(config)] if config else [])
    for key, value in given.items():
        name = check_flag_name(key, table, "train()")
        plain = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        setattr(opt, name, table[name].value_of(plain, "train()"))
    opt.given = sorted({*opt.given, *(check_flag_name(key, table, "train()") for key in given)})
    return opt


def best_and_last(path: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The rows of a results.csv of the best and of the last epoch; fields that are empty are left out."""
    rows = []
    for row in (read_csv(path) if path.is_file() else {}).values():
        values = {name.strip(): number(text) for name, text in row.items() if name}
        rows.append({name: value for name, value in values.items() if math.isfinite(value)})
    measured = [row for row in rows if all(name in row for name in SUMMARY)]
    best = max(measured, key=fitness_of) if measured else {}
    return best, rows[-1] if rows else {}
