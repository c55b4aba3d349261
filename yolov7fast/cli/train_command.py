"""The training command of a family as its runs see it (`training.options.Command`): flags, checks, what users type."""

import shlex
from argparse import Namespace
from collections.abc import Collection
from typing import Any

from yolov7fast.cli.checks import check_train
from yolov7fast.cli.flags import fixed_on_resume, flags_of
from yolov7fast.cli.overfit import apply_overfit_settings, settle_overfit
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.programs import PROGRAMS, program, program_of
from yolov7fast.cli.run_file import check_flag_value, flags_beside, read_run_file


class TrainCommand:
    def __init__(self, family: str):
        self.family = family
        self.fixed: Collection[str] = fixed_on_resume(family)  # options that cannot change when a run is resumed

    def defaults(self) -> dict[str, Any]:
        return vars(parser_for("train", self.family).parse_args([]))

    def given(self, opt: Namespace) -> Collection[str]:
        """Options that the user gave, on the command line or in a run file."""
        in_file = read_run_file(opt.config, flags_of("train", self.family), self.family) if opt.config else {}
        return {*opt.given, *in_file}

    def settle(self, opt: Namespace) -> None:
        """Options that follow from others, before they are compared with those of a stored run."""
        settle_overfit(opt)
        if opt.overfit:
            in_file = flags_beside("overfit", opt.config, flags_of("train", self.family)) if opt.config else set()
            apply_overfit_settings(opt, self.family, {*opt.given, *in_file})

    def check(self, opt: Namespace) -> None:
        """Refuse impossible or contradicting options, each by name."""
        check_train(opt, self.family)

    def checked(self, options: dict[str, Any], where: str) -> dict[str, Any]:
        """Stored options, each of the kind that its flag takes; where: the file that has them."""
        flags = flags_of("train", self.family)
        return {
            name: check_flag_value(flags[name], value, where) if name in flags else value
            for name, value in options.items()
        }

    def invocation(self, family: str, command: str = "train") -> str:
        """What starts a command for a family, such as `python train.py`.

        Families without a row of their own are measured and used by YOLO's commands, which open any checkpoint.
        """
        row = program_of(command, family)
        return (row if row in PROGRAMS or command == "train" else program_of(command, "yolo")).invocation

    def next_steps(self, folder: str, weights: str, data: str) -> list[tuple[str, str]]:
        """(what for, command) that a user may want after a run in `folder`; weights: its best ones."""
        weights, data, folder = (shlex.quote(text) for text in (weights, data, folder))
        test, compare = self.invocation(self.family, "test"), program("compare").invocation
        return [
            ("Measure the best weights", f"{test} --weights {weights} --data {data}"),
            ("Resume; of a complete run, add --epochs N", f"{self.invocation(self.family)} --resume {folder}"),
            ("Export for other runtimes", f"{program('export').invocation} --weights {weights}"),
            ("Compare with another run", f"{compare} {folder} OTHER_RUN"),
        ]
