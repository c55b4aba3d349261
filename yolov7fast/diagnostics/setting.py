"""Where and how large the checks run: full size on a GPU, small on a CPU."""

from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Setting:
    """Sizes are chosen so that all checks take less than 5 minutes on a GPU, and about two on two CPU cores."""

    device: torch.device
    folder: Path  # for files of the checks; removed afterwards
    place: Path  # the user's working folder, whose disk is measured

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def speed_batch(self) -> int:
        return 64 if self.on_gpu else 4

    @property
    def speed_iterations(self) -> int:
        return 30 if self.on_gpu else 3

    @property
    def disk_bytes(self) -> int:
        return (512 if self.on_gpu else 64) << 20

    @property
    def trained_images(self) -> tuple[int, int]:
        """Pixels and batch of the trainings that are compared."""
        return (256, 16) if self.on_gpu else (64, 4)
