"""What checkpoints of the YOLO family hold: upstream's keys and class paths, so that either program reads both."""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, save_checkpoint
from yolov7fast.core.errors import shown
from yolov7fast.core.text import printable
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.training.base_family import BaseFamily
from yolov7fast.training.checkpoints.resume import NothingToDo, Progress, run_folder_of

log = logging.getLogger(__name__)


def best_as_saved(best: float) -> float | np.ndarray:
    """Upstream writes an array of one, and a plain 0.0 as long as nothing beat zero."""
    return np.array([best]) if best else 0.0


def changed_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """'lr0 0.01 -> 0.02' for each key that differs."""
    values = {key: (before.get(key, "unset"), now.get(key, "unset")) for key in [*now, *before]}
    return [f"{printable(key, 60)} {shown(old)} -> {shown(new)}" for key, (old, new) in values.items() if old != new]


class YoloCheckpoints(BaseFamily):
    """The part of the YOLO family that writes, names, strips and reads checkpoints."""

    checkpoint_suffix = ".pt"
    epoch_files = ("epoch_*.pt", "best_*.pt")
    strips_final_checkpoint = True
    stored_hyp: Mapping[str, float]  # as the run's hyp.yaml has it
    dataset: LoadImagesAndLabels
    losses: Mapping[str, Any]  # by assigner

    @classmethod
    def resume_options(cls, options: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
        hyp = run_folder_of(checkpoint) / "hyp.yaml"
        changed = {"hyp": str(hyp)} if hyp.is_file() else {}
        cfg = options["cfg"] if Path(options["cfg"]).is_file() else ""
        return options | changed | {"cfg": cfg, "weights": str(checkpoint)}

    @classmethod
    def complete_checkpoint(cls, path: Path) -> tuple[dict[str, Any], Path]:
        """A finished run's last.pt is stripped; its last epoch_*.pt still holds the whole state."""
        for candidate in sorted(path.parent.glob("epoch_*.pt"), reverse=True):
            checkpoint = load_checkpoint(candidate)
            if isinstance(checkpoint, dict) and checkpoint.get("epoch", -1) >= 0:
                return checkpoint, candidate
        raise NothingToDo(
            f"--resume {path}: the file is stripped (its run is finished) and no epoch_*.pt lies beside it"
        )

    def settings_files(self) -> Mapping[str, Mapping[str, Any]]:
        return {"hyp.yaml": self.stored_hyp}

    def save_initial(self) -> None:
        """init.pt: the network before its first step, as a bare module."""
        save_checkpoint(self.model, self.weights_dir / "init.pt")

    def checkpoint(self, progress: Progress, results_text: str) -> dict[str, Any]:
        best = best_as_saved(progress.best_fitness)
        return super().checkpoint(progress, results_text) | {"best_fitness": best, "img_size": self.test_size}

    def checkpoint_content(self) -> dict[str, Any]:
        self.averaged.copy_attributes(self.model)
        return {"model": deepcopy(self.model).half(), "ema": deepcopy(self.averaged.ema).half()}

    def checkpoint_names(self, epoch: int, final: bool, is_best: bool) -> list[str]:
        names = super().checkpoint_names(epoch, final, is_best)
        if is_best and epoch >= 200:
            names.append(f"best_{epoch:03d}.pt")
        if epoch == 0 or (epoch + 1) % 25 == 0 or epoch >= self.opt.epochs - 5 or final:
            names.append(f"epoch_{epoch:03d}.pt")
        return names

    def state(self) -> dict[str, Any]:
        return {
            "stage": self.stages.index(self.stage),
            "indices": list(self.dataset.indices) if self.opt.image_weights else [],
            "balance": [list(loss.balance) for loss in self.losses.values()],
            "hyp": dict(self.stored_hyp),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Entering a stage begins its indices and losses anew, so that comes first.

        Of hyper-parameters that have been edited since the checkpoint the new values count: some are in its optimizer.
        """
        stage = self.stages[state.get("stage", 0)]
        if stage is not self.stage:
            self.enter_stage(stage)
        if state["indices"]:
            self.dataset.indices = list(state["indices"])
        changes = changed_values(state.get("hyp", self.stored_hyp), self.stored_hyp)  # older checkpoints have none
        for loss, balance in zip(self.losses.values(), state["balance"], strict=not changes):
            loss.balance = list(balance)
        if changes:
            self.use_hyp(self.optimizer)
            if self.world.is_main:
                file = self.run_dir / "hyp.yaml"
                log.warning("%s was edited after this checkpoint; its values are used: %s", file, ", ".join(changes))

    def load_foreign_checkpoint(self, checkpoint: dict[str, Any], progress: Progress) -> None:
        """Resume from a file of upstream: epochs, best fitness and EMA."""
        progress.epoch = checkpoint["epoch"] + 1
        progress.global_step = progress.epoch * len(self.loader)
        progress.best_fitness = float(np.asarray(checkpoint["best_fitness"]).reshape(-1)[0])
        if self.ema and checkpoint.get("ema") is not None:
            self.ema.ema.load_state_dict(checkpoint["ema"].float().state_dict())
            self.ema.updates = checkpoint["updates"]

    def write_final_files(self, last: Path) -> None:
        self.final_coco_test([last, last.with_stem("best")])
        super().write_final_files(last)

    @abstractmethod
    def use_hyp(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the hyper-parameters that an optimizer holds, and no batch sets, in the place of a checkpoint's."""

    @abstractmethod
    def final_coco_test(self, weights: Sequence[Path]) -> None:
        """Where the data is COCO, measure these files as its server would."""
