"""Batches: which samples make up which, written straight into the memory of the batch or collated as upstream does."""

import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import BatchSampler, DistributedSampler

from yolov7fast.core.errors import UserError

DOWN, ACROSS = torch.tensor([0, 0, 0, 1.0, 0, 0]), torch.tensor([0, 0, 1.0, 0, 0, 0])  # shifts of label rows
HALVE = torch.tensor([1, 1, 0.5, 0.5, 0.5, 0.5])


class BatchOrder:
    """A batch sampler over all epochs, so that one iterator, and its workers, can serve them all.

    Permutations are those of torch's `DistributedSampler`: rank r of R takes every R-th entry of one permutation, so
    that R processes with batch B see the same samples per step as one process with batch R*B. Only the last batch of
    an epoch may differ: it is padded, with samples from the start of the epoch, to a multiple of R.

    With a seed (`keyed`) a batch is a list of `(epoch, index)` keys, and each epoch's order a function of its number.
    Without one it is a list of indices in upstream's order: the order of an epoch is fixed when its first batch is
    handed out. With workers this happens while the previous epoch is still being consumed, before
    `DistributedSampler.set_epoch` is called: the order lags, as upstream's does.
    """

    def __init__(
        self,
        dataset,
        batch_size: int,
        *,
        rank: int = -1,
        world_size: int = 1,
        seed: int | None = None,
        shuffle: bool | None = None,
        endless: bool = True,
    ):
        """shuffle: None: with several processes (`rank` >= 0), as upstream. endless: continue into the next epoch."""
        self.seed = seed
        self.endless = endless
        self.start: tuple[int, int] = (0, 0)  # epoch and batch at which the next iterator begins; only with a seed
        self.sampler = DistributedSampler(
            dataset,
            num_replicas=world_size if rank >= 0 else 1,
            rank=max(rank, 0),
            shuffle=rank >= 0 if shuffle is None else shuffle,
            seed=seed or 0,
        )
        self._batches = BatchSampler(self.sampler, batch_size, drop_last=False)

    @property
    def keyed(self) -> bool:
        return self.seed is not None

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self._batches)

    def __iter__(self) -> Iterator[list]:
        epoch, start = self.start
        while True:
            if self.keyed:
                self.sampler.set_epoch(epoch)
                for indices in list(self._batches)[start:]:
                    yield [(epoch, index) for index in indices]
            else:
                yield from self._batches
            if not self.endless:
                return
            epoch, start = epoch + 1, 0


# --- samples to a batch -----------------------------------------------------------------------------------------------


def write_samples(dataset, keys: Sequence, images: np.ndarray, first: int = 0) -> tuple[np.ndarray, list[str], list]:
    """Write the samples `keys` as images `first`, `first` + 1, ... of a batch; images uint8 (B, 3, H, W).

    Returns their labels, float32 (N, 6) with the index in the batch in column 0, paths and shapes.
    """
    labels, paths, shapes = [np.zeros((0, 6), np.float32)], [], []
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
    """Return the batch that collating `dataset[key]` would give, without the copies.

    shared: allocate in shared memory, as torch's own collate does in a worker; a batch on the heap would be copied
    there when it is sent.
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


def collate(batch):
    """Collate samples to (images (B, 3, H, W), labels (N, 6) with the image's index in column 0, paths, shapes)."""
    imgs, labels, paths, shapes = zip(*batch)
    for i, rows in enumerate(labels):
        rows[:, 0] = i
    return torch.stack(imgs, 0), torch.cat(labels, 0), paths, shapes


def collate_quad(batch):
    """Collate groups of four samples to one image of twice the size: the first one enlarged, or all four tiled.

    One draw of Python's `random` per group decides. Samples beyond the last whole group are dropped, unless there
    are fewer than four: then the first one is enlarged. Paths and shapes are those of the first samples.
    """
    imgs, labels, paths, shapes = zip(*batch)
    groups = max(len(imgs) // 4, 1)
    made = []
    for i in range(0, groups * 4, 4):
        if random.random() < 0.5 or len(imgs) < 4:
            big = functional.interpolate(imgs[i][None].float(), scale_factor=2.0, mode="bilinear", align_corners=False)
            made.append((big[0].type(imgs[i].type()), labels[i].clone()))
        else:
            made.append(_tile(imgs[i : i + 4], labels[i : i + 4]))
    for i, (_, rows) in enumerate(made):
        rows[:, 0] = i
    imgs, labels = zip(*made)
    firsts = slice(0, groups * 4, 4)
    return torch.stack(imgs, 0), torch.cat(labels, 0), paths[firsts], shapes[firsts]


def _tile(imgs, labels) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample 0 top left, 1 bottom left, 2 top right, 3 bottom right."""
    img = torch.cat((torch.cat(imgs[:2], 1), torch.cat(imgs[2:], 1)), 2)
    rows = torch.cat((labels[0], labels[1] + DOWN, labels[2] + ACROSS, labels[3] + DOWN + ACROSS), 0)
    return img, rows * HALVE
