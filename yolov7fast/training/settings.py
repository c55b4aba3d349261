"""What the training loop must know of a run: its length, what it validates and saves, and when."""

from dataclasses import dataclass

from yolov7fast.training.checkpoints.resume import Limits
from yolov7fast.training.step import Amp


@dataclass(frozen=True)
class TrainSettings:
    """What the loop itself must know."""

    epochs: int
    amp: Amp
    max_iter: int = 0
    patience: int = 0
    eval_interval: int = 1
    notest: bool = False
    nosave: bool = False
    save_every_minutes: float = 0.0
    skip_nonfinite: int = 0
    exact_mid_epoch: bool = False  # samples are keyed, so a run can be resumed in the middle of an epoch
    keep_files: bool = True  # False: a trial of evolve, which keeps no checkpoint
    keep_epochs: int | None = None  # how many files of single epochs stay; None: all
    in_use: frozenset[str] = frozenset()  # of `bottleneck.options_in_use`

    @property
    def limits(self) -> Limits:
        return Limits(self.epochs, self.max_iter, self.patience)
