"""What is tried: flags with their values, and what they may do to results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Flags = Mapping[str, Any]  # by names of options, as run files hold them


class Effect(Enum):
    """What a flag does to a run's results."""

    IDENTICAL = "bit-identical"
    NOISE = "same within noise"  # sums in another order, or other random samples
    CHANGED = "other numbers"  # another precision, other pixels: chosen where the user allows it

    def chosen_by_default(self) -> bool:
        return self is not Effect.CHANGED


@dataclass(frozen=True)
class Dimension:
    """One question: which of these settings, each a set of flags, is fastest.

    settings: beside what is chosen so far; needs: flags without which it makes no sense; kind: of trial (`training`:
    whole iterations with their data, `validation`: the network alone, `compile`: in a process of its own).
    """

    name: str
    settings: tuple[Flags, ...]
    effect: Effect
    needs: Flags = field(default_factory=dict)
    kind: str = "training"

    def applies(self, chosen: Flags) -> bool:
        return all(chosen.get(name) == value for name, value in self.needs.items())


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    return sorted({most, *(1 << n for n in range(max(most, 1).bit_length()) if 1 << n <= most)})


def dimensions(cores: int, batch: int, is_gpu: bool, seeded: bool) -> list[Dimension]:
    """seeded: samples follow from --seed, so that loader processes do not change them."""
    samples = Effect.IDENTICAL if seeded else Effect.NOISE
    workers = [0, *(n for n in powers_of_two(min(cores, batch)) if n < min(8, cores) or is_gpu)]
    precisions = ("bf16",) if not is_gpu else ("bf16", "off")
    found = [  # what buys most comes first: time may run out
        Dimension("layout", ({"channels_last": True},), Effect.NOISE),
        Dimension("workers", tuple({"workers": n} for n in workers), samples),
        Dimension("loader", ({"fast_dataloader": True},), samples),
        Dimension(
            "micro-batch",
            tuple({"micro_batch": n} for n in (1, 4) if n < batch),
            samples,
            needs={"fast_dataloader": True},
        ),
        Dimension("cache", ({"cache_images": "ram"}, {"cache_images": "disk"}), Effect.IDENTICAL),
        Dimension("OpenCV threads", ({"opencv_threads": 2},), Effect.IDENTICAL),
        Dimension("precision", tuple({"amp": mode} for mode in precisions), Effect.CHANGED),
        Dimension("augmentation", ({"fast_augment": True},), Effect.CHANGED),
        Dimension(
            "validation batch", tuple({"test_batch_size": n * batch} for n in (1, 4)), Effect.NOISE, kind="validation"
        ),
        Dimension("compile", ({"compile": True},), Effect.NOISE, kind="compile"),
    ]
    if not is_gpu and cores > 1:
        fewer = tuple({"torch_threads": n} for n in powers_of_two(cores) if n < cores)
        found.insert(1, Dimension("torch threads", fewer, Effect.NOISE))
    return found
