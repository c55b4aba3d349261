"""The table of commands: `yolov7fast NAME`, the script that is the same in a checkout, and the module that runs.

A new command is one row. Modules are named, not imported: a command loads what it needs and nothing else.
"""

import argparse
import importlib
import sys
from typing import Any, NamedTuple

from yolov7fast.core.files.paths import CHECKOUT

PACKAGE = "yolov7fast"


class Program(NamedTuple):
    name: str  # yolov7fast NAME
    module: str  # below yolov7fast.cli.commands; its `main` takes the flags from sys.argv and returns the exit code
    summary: str
    script: str = ""  # the same command in a checkout
    command: str = ""  # of the table of flags: train, test or detect
    family: str = ""  # whose flags the command has, passed to `main`; empty: of all families

    @property
    def invocation(self) -> str:
        """How a user starts it: in a checkout by its script or `python -m`, unless `yolov7fast` was typed."""
        if not CHECKOUT or sys.argv[0].startswith(f"{PACKAGE} "):
            return f"{PACKAGE} {self.name}"
        return f"python {self.script}" if self.script else f"python -m {PACKAGE} {self.name}"

    def parser(self, description: str | None = None, **settings: Any) -> argparse.ArgumentParser:
        """For a command whose flags are not in the table of flags; `description` keeps its lines."""
        settings = {"formatter_class": argparse.RawDescriptionHelpFormatter, **settings}
        return argparse.ArgumentParser(prog=self.invocation, description=description or self.summary, **settings)

    def run(self) -> int | None:
        """Run it in this process, with the flags in sys.argv."""
        main = importlib.import_module(f"{PACKAGE}.cli.commands.{self.module}").main
        return main(family=self.family) if self.family else main()

    def child(self) -> list[str]:
        """The command line that starts it as a child process, from any folder."""
        if self.script and CHECKOUT:
            return [sys.executable, str(CHECKOUT / self.script)]
        return [sys.executable, "-m", PACKAGE, self.name]


PROGRAMS = (
    Program("train", "train", "Train a YOLOv7 detector.", "train.py", "train", "yolo"),
    Program("train-detr", "train", "Train a DETR or RT-DETR detector.", "tools/train_detr.py", "train", "detr"),
    Program("test", "test", "Evaluate a detector on a labelled data set.", "test.py", "test"),
    Program("detect", "detect", "Find objects in images, videos and streams.", "detect.py", "detect"),
    Program("export", "export", "Export a detector to ONNX, TorchScript and OpenVINO.", "export.py"),
    Program("data", "data", "Check, convert, resize, group or draw data sets."),
    Program("trials", "run_trials", "Search for good settings: many short trainings, ranked.", "tools/run_trials.py"),
    Program("study", "study", "Compare settings at equal epochs and equal time."),
    Program("status", "status", "Show the progress of runs, one line each."),
    Program("compare", "compare_runs", "Compare training runs on one page."),
    Program("plan", "plan", "Print the memory of a training step by batch size."),
    Program("profile", "profile", "Measure the stages of a training step.", "tests/profile_training_loop.py"),
    Program("check", "check", "Check this machine: environment, results, speed, resume."),
    Program("overlay", "overlay", "Run a checkout of upstream with this project's parts.", "tools/overlay.py"),
)


def program(name: str) -> Program:
    return next(row for row in PROGRAMS if row.name == name)


def program_of(command: str, family: str) -> Program:
    """The program of a command for a family. `test` and `detect` open checkpoints of every family."""
    for row in PROGRAMS:
        if row.command == command and row.family in ("", family):
            return row
    return Program(f"{command}-{family}", command, f"{command.title()} a {family} detector.", "", command, family)
