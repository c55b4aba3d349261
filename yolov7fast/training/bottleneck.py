"""After the first epoch: one line that names the bottleneck of the run, and which flag would help."""

from collections.abc import Mapping
from statistics import median

import torch

from yolov7fast.training.reporter import EpochRow

ADVICE = {
    "data": "waiting for data: try --fast-dataloader --cache-images disk --fast-augment, or more --workers",
    "loss": "the loss: unusual, since the assignment is batched; measure it with tests/profile_training_loop.py",
    "network": "the network, as it should be: try USE_COMPILE=1, --channels-last, --amp bf16, or a larger --batch-size",
    "validation": "validation: try --eval-interval 5, or a larger --test-batch-size",
}


def time_fractions(stages: Mapping[str, list[float]], row: EpochRow) -> dict[str, float]:
    """Fraction of the epoch's wall time by what it was spent on; the step's stages come from their medians."""
    middle = {name: median(times) for name, times in stages.items() if times and name != "data"}
    whole = sum(middle.values()) or 1.0
    busy = max(row.train_seconds * (1 - row.data_wait_fraction), 0.0)
    loss = busy * middle.get("loss", 0.0) / whole
    parts = {
        "data": row.train_seconds * row.data_wait_fraction,
        "loss": loss,
        "network": busy - loss,
        "validation": row.val_seconds,
    }
    total = sum(parts.values()) or 1.0
    return {name: seconds / total for name, seconds in parts.items()}


def find_bottleneck(parts: Mapping[str, float]) -> str:
    """The stage to speed up: waiting for data or validating counts as soon as it takes a quarter of the time."""
    avoidable = {name: parts[name] for name in ("data", "validation", "loss") if parts[name] > 0.25}
    return max(avoidable, key=lambda name: avoidable[name]) if avoidable else "network"


def report(stages: Mapping[str, list[float]], row: EpochRow, device: torch.device, advice: Mapping[str, str]) -> str:
    """Print it; returns what the bottleneck is. advice: of the family, where it differs from `ADVICE`."""
    parts = time_fractions(stages, row)
    split = ", ".join(f"{name} {fraction:.0%}" for name, fraction in parts.items())
    found = {**ADVICE, **advice}[find_bottleneck(parts)]
    print(f"first epoch on {device.type}: {split}. Bottleneck: {found}")
    return found
