"""Checkpoints and the files of a run, as the project uses them."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml

from tests.data.formats import drawn_sets
from tests.fuzz import mutations
from tests.fuzz.target import ROOT
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, save_checkpoint, state_dict_of
from yolov7fast.checkpoint.ensemble import attempt_load
from yolov7fast.cli.commands.train import run as train
from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import config_of
from yolov7fast.core.process.child import last_words
from yolov7fast.predictors.predictor import DEFAULT, load_predictor
from yolov7fast.predictors.yolo_predictor import YoloPredictor
from yolov7fast.reports.comparison import build_report
from yolov7fast.reports.run_plots import plot_results
from yolov7fast.reports.run_results import read_runs
from yolov7fast.reports.trial_ranking import read_curve
from yolov7fast.training.family import family_class
from yolov7fast.training.start import resumed_config
from yolov7fast.training.trainer import Trainer


def loaded(content: bytes) -> Any:
    path = Path("/tmp") / f"fuzz_{os.getpid()}.pt"
    path.write_bytes(content)
    try:
        return load_checkpoint(path)
    finally:
        path.unlink()


def saved_as_ours(value: Any) -> bytes:
    """Networks keep upstream's class paths."""
    path = Path("/tmp") / f"fuzz_{os.getpid()}.pt"
    try:
        save_checkpoint(value, path)
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


CHECKPOINT = mutations.checkpoint_mutation(loaded, saved_as_ours)


def use_weights(folder: Path) -> None:
    path = folder / "mini.pt"
    state_dict_of(load_checkpoint(path), origin=path)
    model = attempt_load(path)
    YoloPredictor(model, DEFAULT)(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))


class Reached(BaseException):
    """The run is ready to train."""


def ready(*_: Any) -> NoReturn:
    raise Reached


def make_run(family: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with tarfile.open(ROOT / f"tests/golden/old_run_{family}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        drawn_sets.write_yolo(folder / "set", "ultralytics", train=4, val=2)
        data = folder / "set/data.yaml"
        data.write_text(yaml.safe_dump(yaml.safe_load(data.read_text()) | {"names": ["a", "b", "c", "d"]}))
        path = folder / "run/opt.yaml"
        changed = {"data": str(data), "project": str(folder), "save_dir": str(folder / "run"), "cfg": ""}
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changed, sort_keys=False))

    return make


def use_run(folder: Path) -> None:
    """Resume, as far as the first step; what an earlier case left in the run folder goes."""
    for left in ("weights/previous.pt", "results.png"):
        (folder / "run" / left).unlink(missing_ok=True)
    fit, Trainer.fit = Trainer.fit, ready
    try:
        train(parser_for("train").parse_args(["--resume", str(folder / "run"), "--workers", "0"]))
    except Reached:
        pass
    finally:
        Trainer.fit = fit


def use_detr_run(folder: Path) -> None:
    """Resume a DETR run as far as its options and its progress."""
    opt = parser_for("train", "detr").parse_args(["--resume", str(folder / "run")])
    resumed_config(config_of(opt, "detr"), family_class("detr"), flags_of("train", "detr"))


def use_detr(folder: Path) -> None:
    """Open a DETR checkpoint for detection."""
    path = str(folder / "run/weights/last.pth")
    shapes = [((64, 64), ((1.0, 1.0), (0.0, 0.0)))]
    load_predictor([path], torch.device("cpu"), DEFAULT)(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), shapes)


def use_results(folder: Path) -> None:
    read_runs([folder / "run"])
    read_curve(folder / "run")
    last_words(folder / "run" / "output.txt")


def use_report(folder: Path) -> None:
    build_report(read_runs([folder / "run"]), 1.5)
    plot_results(folder / "run")
