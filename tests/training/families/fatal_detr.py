"""tools/train_detr.py that kills itself as fatal_train.py does (FATAL="step 7" and so on), or, with AGREE=1, whose
processes do at the end what those of agreeing_train.py do."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.training.agreeing_train import compare_at_the_end
from tests.training.fatal_train import arm
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import run_command

if __name__ == "__main__":
    if os.environ.get("FATAL"):
        arm(os.environ["FATAL"])
    if os.environ.get("AGREE"):
        compare_at_the_end()
    opt = parser_for("train", "detr").parse_args()
    run_command(lambda: run(opt, "detr"))
