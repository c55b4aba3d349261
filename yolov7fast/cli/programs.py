"""The table of commands: `yolov7fast NAME`, the script that is the same in a checkout, and the module that runs.

A new command is one row. Modules are named, not imported: a command loads what it needs and nothing else.
"""

import argparse
import importlib
import sys
from typing import Any, NamedTuple

from yolov7fast.checkpoint.families import FAMILIES
from yolov7fast.core.files.paths import CHECKOUT

PACKAGE = "yolov7fast"


class Program(NamedTuple):
    name: str  # yolov7fast NAME
    module: str  # below yolov7fast.cli.commands; its `main` takes the flags from sys.argv and returns the exit code
    summary: str
    script: str = ""  # the same command in a checkout
    command: str = ""  # of the table of flags: train, test or detect
    family: str = ""  # whose flags the command has: given to `main`

    @property
    def invocation(self) -> str:
        """How a user starts it: by its script in a checkout, unless `yolov7fast` was typed."""
        installed = not (self.script and CHECKOUT) or sys.argv[0].startswith(f"{PACKAGE} ")
        return f"{PACKAGE} {self.name}" if installed else f"python {self.script}"

    def parser(self, description: str | None = None, **settings: Any) -> argparse.ArgumentParser:
        """For a command whose flags are not in the table of flags; `description` keeps its lines."""
        settings = {"formatter_class": argparse.RawDescriptionHelpFormatter, **settings}
        return argparse.ArgumentParser(prog=self.invocation, description=description or self.summary, **settings)

    def run(self) -> int | None:
        """Run it in this process, with the flags in sys.argv."""
        main = importlib.import_module(f"{PACKAGE}.cli.commands.{self.module}").main
        return main(family=self.family) if self.family else main()

    def child(self) -> list[str]:
        """What starts it in a process of its own, from any folder."""
        if self.script and CHECKOUT:
            return [sys.executable, str(CHECKOUT / self.script)]
        return [sys.executable, "-m", PACKAGE, self.name]


PROGRAMS = (
    Program("train", "train", "Train a YOLOv7 detector.", "train.py", "train", "yolo"),
    Program("test", "test", "Measure a detector on a labelled data set.", "test.py", "test", "yolo"),
    Program("detect", "detect", "Find objects in images, videos and streams.", "detect.py", "detect", "yolo"),
    Program("export", "export", "Export a detector to ONNX, TorchScript and OpenVINO.", "export.py"),
    Program("benchmark", "benchmark", "Compare the exported formats: size, accuracy, time."),
    Program("train-detr", "train", "Train a DETR or RT-DETR detector.", "tools/train_detr.py", "train", "detr"),
    Program("test-detr", "test", "Measure a DETR checkpoint.", "tools/test_detr.py", "test", "detr"),
    Program("detect-detr", "detect", "Find objects with a DETR checkpoint.", "tools/detect_detr.py", "detect", "detr"),
    Program("trials", "run_trials", "Find good settings: many short trainings, ranked.", "tools/run_trials.py"),
    Program("overlay", "overlay", "Run a checkout of upstream, made fast.", "tools/overlay.py"),
    Program("data", "data", "Check and convert data sets."),
    Program("compare", "compare_runs", "Compare training runs on one page.", "tools/compare_runs.py"),
    Program("plan", "plan", "Memory of a training step by batch size."),
    Program("study", "study", "Compare settings at equal epochs and equal time."),
    Program("profile", "profile", "Where does an iteration's time go?", "tests/profile_training_loop.py"),
    Program("check", "check", "Check this machine: environment, host syncs, results, speed."),
    Program("quickstart", "quickstart", "Train and detect on the project's own data set.", "tools/quickstart.py"),
    Program("reparameterize", "reparameterize", "Turn trained weights into deploy weights.", "tools/reparameterize.py"),
    Program("group-classes", "group_classes", "Assign classes to heads by geometry.", "tools/group_classes.py"),
    Program("draw-assignment", "draw_assignment", "Draw what the losses assign.", "tools/draw_assignment.py"),
    Program("resize-dataset", "resize_dataset", "Shrink a data set for training.", "tools/resize_dataset.py"),
    Program("coco-labels", "coco_labels", "Make label files from a COCO file.", "tools/coco_labels.py"),
    Program("make-shapes", "make_shapes", "Draw the project's own small data set.", "tools/make_shapes.py"),
)


def programs() -> list[Program]:
    """The table, and `train-NAME` for each family that has no row of its own."""
    return [*PROGRAMS, *(row for row in (program_of("train", name) for name in FAMILIES) if row not in PROGRAMS)]


def program(name: str) -> Program:
    return next(row for row in PROGRAMS if row.name == name)


def program_of(command: str, family: str) -> Program:
    """The program of a command for a family; a family without a row of its own has the command's name and its own."""
    for row in PROGRAMS:
        if (row.command, row.family) == (command, family):
            return row
    return Program(f"{command}-{family}", command, f"{command.title()} a {family} detector.", "", command, family)
