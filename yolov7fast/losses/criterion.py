"""Binary cross-entropy with logits, element by element, with the focal factor where it is asked for."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

FOCAL_ALPHA = 0.25


class Criterion(NamedTuple):
    """positive_weight: of the loss of positives; gamma: exponent of the focal factor, 0 for none."""

    positive_weight: float
    gamma: float

    def __call__(self, x: torch.Tensor, t: torch.Tensor | float) -> torch.Tensor:
        loss = F.softplus(x)
        if isinstance(t, torch.Tensor) or t != 0:
            loss = loss + self._slope(x, t)
        if self.gamma > 0:
            p = x.sigmoid()
            miss = t * (1 - p) + (1 - t) * p
            loss = loss * (t * FOCAL_ALPHA + (1 - t) * (1 - FOCAL_ALPHA)) * miss**self.gamma
        return loss

    def change(self, x: torch.Tensor, before: float, after: torch.Tensor | float) -> torch.Tensor:
        """Loss at target `after` less loss at `before`; without the focal factor it is linear in the target."""
        return (
            self(x, after) - self(x, before) if self.gamma > 0 else self._slope(x, after - before if before else after)
        )

    def _slope(self, x: torch.Tensor, by: torch.Tensor | float) -> torch.Tensor:
        """What a target higher by `by` adds to the loss."""
        return x * -by if self.positive_weight == 1 else by * ((self.positive_weight - 1) * F.softplus(-x) - x)
