"""The densest batch that a data set's augmentation can lay before the loss: its labels decide the loss's memory."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

# where the four tiles of a mosaic that is seen whole lie, in tiles
TILES = ((0, 0), (1, 0), (0, 1), (1, 1))


def dense_targets(labels: Sequence[np.ndarray], hyp: Mapping[str, float], batch: int) -> torch.Tensor:
    """(N, 6) image, class, xywh of a batch with the densest sample in it, the others as dense as the mean.

    labels: for each image float32 (m, 5) class, xywh. A mosaic shows four images, of which the densest are taken;
    blended with another (mixup), it shows twice as many boxes. All are seen whole, at half their size.
    """
    counts = np.array([len(rows) for rows in labels])
    order = np.argsort(-counts, kind="stable").tolist()
    usual = labels[int(np.abs(counts - counts.mean()).argmin())]
    tiles = len(TILES) if hyp["mosaic"] else 1
    densest = mosaic_of([labels[order[i % len(order)]] for i in range(tiles)])
    if hyp["mosaic"] and hyp["mixup"]:
        densest = np.concatenate([densest, densest])
    others = mosaic_of([usual] * tiles)
    samples = [densest] + [others] * (batch - 1)
    image = np.repeat(np.arange(batch), [len(rows) for rows in samples])
    return torch.from_numpy(np.concatenate([image[:, None], np.concatenate(samples)], 1).astype(np.float32))


def mosaic_of(tiles: Sequence[np.ndarray]) -> np.ndarray:
    """(m, 5) rows of one or four images laid side by side."""
    if len(tiles) == 1:
        return tiles[0][:, :5]
    laid = []
    for rows, at in zip(tiles, TILES, strict=True):
        rows = rows[:, :5].copy()
        rows[:, 1:3] += np.array(at, rows.dtype)
        rows[:, 1:] /= 2
        laid.append(rows)
    return np.concatenate(laid)


def assumed_labels(classes: int, mean: int = 7, most: int = 93, images: int = 64) -> list[np.ndarray]:
    """Labels where no data set is given, as dense as COCO's: `mean` boxes an image, `most` in the densest."""
    random = np.random.RandomState(0)
    labels = []
    for count in (most, *[mean] * (images - 1)):
        wh = np.exp(random.uniform(np.log(0.02), np.log(0.6), (count, 2)))
        columns = [random.randint(0, classes, (count, 1)), random.uniform(0.05, 0.95, (count, 2)), wh]
        labels.append(np.concatenate(columns, 1).astype(np.float32))
    return labels
