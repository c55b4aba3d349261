"""After the first epoch: one line that names the bottleneck of the run, and which flags would help."""

import os
from collections.abc import Collection, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from yolov7fast.nn.compiling import compile_mode
from yolov7fast.training.step import choose_amp

if TYPE_CHECKING:  # families import their advice from here, and the reporter imports families
    from yolov7fast.training.logging.reporter import EpochRow


class Remedy(NamedTuple):
    text: str
    option: str = ""  # a run that uses this option already applies the remedy


class Advice(NamedTuple):
    what: str  # the bottleneck in words
    remedies: tuple[Remedy, ...] = ()


FAST_LOADER = Remedy("--fast-dataloader", "fast_dataloader")
DISK_CACHE = Remedy("--cache-images disk", "cache_images")
WORKERS = Remedy("more --workers", "workers")
ADVICE = {
    "data": Advice("waiting for data", (FAST_LOADER, DISK_CACHE, WORKERS)),
    "loss": Advice(
        "the loss, which is unusual, since the assignment is batched",
        (Remedy("tests/profile_training_loop.py, which measures it"),),
    ),
    "network": Advice(
        "the network (the usual case)",
        (
            Remedy("USE_COMPILE=1", "compile"),
            Remedy("--channels-last", "channels_last"),
            Remedy("--amp bf16", "amp"),
            Remedy("a larger --batch-size"),
        ),
    ),
    "validation": Advice(
        "validation", (Remedy("--eval-interval 5", "eval_interval"), Remedy("a larger --test-batch-size"))
    ),
}
NOTABLE = 0.25  # fraction of the time above which waiting for data or validation is mentioned
SWITCHES = ("fast_dataloader", "cache_images", "channels_last")


def options_in_use(config: Any, device: torch.device) -> frozenset[str]:
    """Options of remedies that a run already uses, or that have no effect in it."""
    found = {name for name in SWITCHES if getattr(config, name, False)}
    if compile_mode(getattr(config, "compile", "")):
        found.add("compile")
    if choose_amp(config.amp, device).enabled:
        found.add("amp")
    if config.workers >= (os.cpu_count() or 1):
        found.add("workers")
    if config.notest or config.eval_interval > 1 or config.epochs == 1:  # the last epoch is always validated
        found.add("eval_interval")
    return frozenset(found)


def time_fractions(stages: Mapping[str, list[float]], row: "EpochRow") -> dict[str, float]:
    """Fraction of the epoch's wall time by activity; the stages of the step are computed from their medians."""
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
    """The activity with the largest fraction of the time."""
    return max(parts, key=lambda name: parts[name])


def advice_text(parts: Mapping[str, float], advice: Mapping[str, Advice], in_use: Collection[str] = ()) -> str:
    """The bottleneck with its remedies, then everything else that takes a quarter of the time and could be avoided.

    advice: of the family of detectors, where it differs from `ADVICE`; in_use: of `options_in_use`.
    """
    known, first = {**ADVICE, **advice}, find_bottleneck(parts)
    text = known[first].what + _to_try(known[first], in_use)
    for name in ("data", "validation", "loss"):
        remedies = _to_try(known[name], in_use)
        if name != first and parts[name] > NOTABLE and remedies:
            text += f". {name.capitalize()} takes {parts[name]:.0%}{remedies}"
    return text


def _to_try(advice: Advice, in_use: Collection[str]) -> str:
    """'; try A, B or C': the options that are not in use."""
    texts = [remedy.text for remedy in advice.remedies if remedy.option not in in_use]
    *first, last = texts or [""]
    return f"; try {', '.join(first)}{' or ' if first else ''}{last}" if texts else ""


def report(
    stages: Mapping[str, list[float]],
    row: "EpochRow",
    device: torch.device,
    advice: Mapping[str, Advice],
    in_use: Collection[str] = (),
) -> str:
    """Print the line; returns the bottleneck. advice and in_use: see `advice_text`."""
    parts = time_fractions(stages, row)
    split = ", ".join(f"{name} {fraction:.0%}" for name, fraction in parts.items())
    found = advice_text(parts, advice, in_use)
    print(f"first epoch on {device.type}: {split}. Bottleneck: {found}")
    return found
