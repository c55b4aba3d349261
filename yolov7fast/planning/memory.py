"""The memory of a training by batch size, and the largest batch that fits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from yolov7fast.losses.build import assigner_name
from yolov7fast.nn.model import Model
from yolov7fast.planning.density import dense_targets
from yolov7fast.planning.step_memory import StepBytes, measure_step, meta_network

GIB = 1 << 30
CARDS = (8, 12, 16, 24, 32, 48, 80)  # GB of the GPUs that can be rented
GPU_RESERVE = GIB  # CUDA's context and cuDNN's workspaces: an assumption, no figure of PyTorch shows them
MARGIN = 0.1  # of the memory stays free
PROBED = (8, 64)  # batches from which others follow: the need grows evenly with the batch, or nearly so
CORRECTIONS = 3
MOST_BATCH = 4096


class NetworkBytes(NamedTuple):
    """Bytes of a network and of what trains it, whatever the batch."""

    weights: int  # parameters and buffers
    gradients: int
    optimizer: int
    ema: int

    @property
    def total(self) -> int:
        return sum(self)


class MemoryPlan(NamedTuple):
    """Bytes of a training on one device; reserve: what the device itself takes."""

    batch: int
    network: NetworkBytes
    images: int
    step: StepBytes
    reserve: int

    @property
    def total(self) -> int:
        return self.network.total + self.images + self.step.peak + self.reserve


@dataclass(frozen=True)
class Workload:
    """What is to be trained, as far as memory depends on it.

    labels: of the training set, for each image float32 (m, 5); dtype: of mixed precision, float32 without.
    """

    cfg: str | dict[str, Any]
    classes: int
    img_size: int
    hyp: Mapping[str, Any]
    labels: Sequence[np.ndarray]
    dtype: torch.dtype = torch.float32
    adam: bool = False
    reserve: int = GPU_RESERVE
    heads: Mapping[str, Any] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()  # prefixes of parameters that do not learn
    plans: dict[int, MemoryPlan] = field(default_factory=dict, init=False)  # by batch, as far as they were asked for

    @cached_property
    def model(self) -> Model:
        model = meta_network(self.cfg, self.classes, self.hyp, self.img_size, **self.heads)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(self.frozen) if self.frozen else True)
        return model

    @cached_property
    def network(self) -> NetworkBytes:
        """SGD keeps one value for each parameter that learns, Adam two; the EMA is a copy of the network."""
        weights = sum(t.nbytes for t in [*self.model.parameters(), *self.model.buffers()])
        gradients = sum(p.nbytes for p in self.model.parameters() if p.requires_grad)
        return NetworkBytes(weights, gradients, gradients * (2 if self.adam else 1), weights)

    def plan(self, batch: int) -> MemoryPlan:
        """Of one batch, measured on meta."""
        if batch not in self.plans:
            targets = dense_targets(self.labels, self.hyp, batch)
            step = measure_step(self.model, batch, self.img_size, targets, assigner_name(self.hyp), self.dtype)
            self.plans[batch] = MemoryPlan(batch, self.network, self.image_bytes(batch), step, self.reserve)
        return self.plans[batch]

    def image_bytes(self, batch: int) -> int:
        """As the loader sends them (uint8) and as the network sees them (float32)."""
        return batch * self.model.yaml["ch"] * self.img_size**2 * (1 + 4)

    @cached_property
    def line(self) -> tuple[float, float]:
        """(bytes of a training without images, bytes of each further image)."""
        small, large = (self.plan(batch).total for batch in PROBED)
        slope = (large - small) / (PROBED[1] - PROBED[0])
        return small - slope * PROBED[0], slope

    def estimated_batch(self, capacity: int, margin: float = MARGIN) -> int:
        """About the largest batch of a device with so many bytes, `margin` of which stay free; 0: none."""
        base, slope = self.line
        return max(int(min((capacity * (1 - margin) - base) // slope, MOST_BATCH)), 0)

    def largest_batch(self, capacity: int, most: int, margin: float = MARGIN) -> int:
        """The largest batch of up to `most` for such a device: estimated, measured, and corrected where the need grows
        faster than the batch."""
        budget = capacity * (1 - margin)
        if self.plan(most).total <= budget:
            return most
        batch = min(self.estimated_batch(capacity, margin), most - 1)
        for _ in range(CORRECTIONS):
            excess = self.plan(batch).total - budget if batch > 0 else 0
            if excess <= 0:
                break
            batch -= math.ceil(excess / self.line[1])
        return max(batch, 0)


def half(mode: str, is_gpu: bool) -> torch.dtype:
    """The type that `--amp MODE` computes in."""
    if mode == "off" or (mode == "auto" and not is_gpu):
        return torch.float32
    return torch.bfloat16 if mode == "bf16" else torch.float16
