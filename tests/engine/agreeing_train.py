"""train.py whose processes compare their weights at the end; FATAL_RANK=r FATAL="step n" kills one of them."""

import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch.distributed as dist

import engine.run
from engine.cli import train_parser
from engine.trainer import Trainer
from tests.engine.fatal_train import arm
from utils.errors import run_command


def weights_hash(model) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def fit_and_compare(self):
    outcome = whole_fit(self)
    hashes = [None] * self.world.size
    dist.all_gather_object(hashes, weights_hash(self.family.model))
    if self.world.is_main:
        print(f"weights agree: {len(set(hashes)) == 1} over {len(hashes)} processes")
    return outcome


if __name__ == "__main__":
    whole_fit = Trainer.fit
    Trainer.fit = fit_and_compare
    if os.environ.get("FATAL_RANK") == os.environ.get("RANK", "0"):
        arm(os.environ["FATAL"])
    opt = train_parser().parse_args()
    run_command(lambda: engine.run.run(opt))
