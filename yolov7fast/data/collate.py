"""From samples to a batch: plain, or four samples to an image of twice the size."""

import random

import torch
from torch.nn import functional

DOWN, ACROSS = torch.tensor([0, 0, 0, 1.0, 0, 0]), torch.tensor([0, 0, 1.0, 0, 0, 0])  # shifts of label rows
HALVE = torch.tensor([1, 1, 0.5, 0.5, 0.5, 0.5])


def collate(batch):
    """Samples -> (images (B, 3, H, W), labels (N, 6) numbered in column 0, paths, shapes)."""
    imgs, labels, paths, shapes = zip(*batch)
    for i, rows in enumerate(labels):
        rows[:, 0] = i
    return torch.stack(imgs, 0), torch.cat(labels, 0), paths, shapes


def collate_quad(batch):
    """Groups of four samples become one image of twice the size: the first enlarged, or all four tiled.

    One draw of Python's `random` for each group decides. Samples beyond the last whole group are lost, unless there
    are fewer than four: then the first one is enlarged. Paths and shapes are those of each group's first sample.
    """
    imgs, labels, paths, shapes = zip(*batch)
    groups = max(len(imgs) // 4, 1)
    made = []
    for i in range(0, groups * 4, 4):
        enlarge = random.random() < 0.5 or len(imgs) < 4
        made.append(_enlarge(imgs[i], labels[i]) if enlarge else _tile(imgs[i : i + 4], labels[i : i + 4]))
    for i, (_, rows) in enumerate(made):
        rows[:, 0] = i
    imgs, labels = zip(*made)
    firsts = slice(0, groups * 4, 4)
    return torch.stack(imgs, 0), torch.cat(labels, 0), paths[firsts], shapes[firsts]


def _enlarge(img: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    big = functional.interpolate(img[None].float(), scale_factor=2.0, mode="bilinear", align_corners=False)
    return big[0].type(img.type()), rows.clone()


def _tile(imgs, labels) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample 0 top left, 1 bottom left, 2 top right, 3 bottom right."""
    img = torch.cat((torch.cat(imgs[:2], 1), torch.cat(imgs[2:], 1)), 2)
    rows = torch.cat((labels[0], labels[1] + DOWN, labels[2] + ACROSS, labels[3] + DOWN + ACROSS), 0)
    return img, rows * HALVE
