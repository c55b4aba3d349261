"""Measure a DETR checkpoint on a labelled data set: `python tools/test_detr.py --weights best.pth --data my.yaml`.

As test.py, with the defaults of DETR: its size is the one that it was trained for.
"""

import logging

from yolov7fast.cli.detr_flags import test_parser
from yolov7fast.cli.test_flags import check_options
from yolov7fast.commands.test import run
from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import SPLITS
from yolov7fast.evaluation.result import EvalResult


def test(opt) -> EvalResult:
    """Run an evaluation with the options of the command."""
    check_options(opt)
    if opt.task not in SPLITS:
        raise UserError(f"--task {opt.task} is for test.py; here it is one of {', '.join(SPLITS)}")
    result = run(opt)
    assert result is not None  # a split was measured
    return result


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    test(test_parser().parse_args())
    return 0
