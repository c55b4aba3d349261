"""Samples written straight into the memory of their batch."""

from collections.abc import Sequence

import numpy as np
import torch

from yolov7fast.core.errors import UserError


def write_samples(dataset, keys: Sequence, images: np.ndarray, first: int = 0) -> tuple[np.ndarray, list[str], list]:
    """Make the samples `keys` as images `first`, `first` + 1, ... of a batch; images uint8 (B, 3, H, W).

    Returns their labels, float32 (N, 6) with the index in the batch in column 0, paths and shapes.
    """
    labels, paths, shapes = [], [], []
    for index, key in enumerate(keys, first):
        if tuple(dataset.shape_of(key)) != images.shape[2:]:
            raise UserError(
                "a batch mixes image shapes: --rect needs batches in the data set's own order; leave out --rect, or "
                "leave out --shuffle and train in one process (several always shuffle)"
            )
        rows, path, shape = dataset.sample_into(key, images[index])
        rows = np.asarray(rows, np.float32)
        rows[:, 0] = index
        labels.append(rows)
        paths.append(path)
        shapes.append(shape)
    return np.concatenate(labels), paths, shapes


def make_batch(dataset, keys: Sequence, *, shared: bool) -> tuple[torch.Tensor, torch.Tensor, tuple, tuple]:
    """The batch that collating `dataset[key]` would give, without the copies.

    `shared`: in memory that another process can open. Torch's own collate does the same, one copy later; a batch on
    the heap would be copied there when sent, and the heap of a worker that lives for many batches would grow.
    """
    shape = (len(keys), 3, *dataset.shape_of(keys[0]))
    if shared:
        storage = torch.UntypedStorage._new_shared(int(np.prod(shape)))
        imgs = torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
    else:
        imgs = torch.empty(shape, dtype=torch.uint8)
    labels, paths, shapes = write_samples(dataset, keys, imgs.numpy())
    targets = torch.from_numpy(labels)
    return imgs, targets.share_memory_() if shared else targets, tuple(paths), tuple(shapes)
