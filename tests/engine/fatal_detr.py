"""tools/train_detr.py that kills itself as fatal_train.py does (FATAL="step 7" and so on), or, with AGREE=1, whose
processes compare their weights at the end."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.cli_detr import train_parser
from engine.detr_run import run
from engine.distributed import from_all
from engine.trainer import Trainer
from tests.engine.agreeing_train import weights_hash
from tests.engine.fatal_train import arm
from utils.errors import run_command

whole_fit = Trainer.fit


def fit_and_compare(self):
    outcome = whole_fit(self)
    hashes = from_all(weights_hash(self.family.model), self.world)
    if self.world.is_main:
        print(f"weights agree: {len(set(hashes)) == 1} over {len(hashes)} processes")
    return outcome


if __name__ == "__main__":
    if os.environ.get("FATAL"):
        arm(os.environ["FATAL"])
    if os.environ.get("AGREE"):
        Trainer.fit = fit_and_compare
    opt = train_parser().parse_args()
    run_command(lambda: run(opt))
