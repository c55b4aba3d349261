"""The inputs of every side's loss: raw outputs and targets, equal in every environment.

It imports only torch and NumPy, so that it can be imported in the environment of another trainer.
"""

import numpy as np
import torch

STRIDES = (8, 16, 32)
RARE = 4  # how much lower objectness starts than class logits: nearly all cells are empty


def raw_outputs(batch: int, size: int, classes: int) -> list[torch.Tensor]:
    """Of an anchor head with three anchors: a list over levels of (image, anchor, row, column, 5 + classes)."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, 3, size // s, size // s, 5 + classes) for s in STRIDES]
    levels = [torch.randn(shape, generator=generator) * 0.5 for shape in shapes]
    for level in levels:
        level[..., 4] -= RARE
    return levels


def target_rows(batch: int, boxes: int, classes: int) -> torch.Tensor:
    """(N, 6) image, class, normalised centre and size; `boxes` an image."""
    draw, n = np.random.RandomState(0), batch * boxes
    wh = np.exp(draw.uniform(np.log(0.02), np.log(0.6), (n, 2)))
    columns = [np.repeat(np.arange(batch), boxes)[:, None], draw.randint(0, classes, (n, 1))]
    return torch.from_numpy(np.concatenate([*columns, draw.uniform(0.05, 0.95, (n, 2)), wh], 1).astype(np.float32))
