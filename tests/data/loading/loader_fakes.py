"""A light data set for loader tests: what `loading.loader` asks of one, and nothing to decode."""

import faulthandler
import os
import random

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.data.augment.random_source import KeyedRandom


class FakeDataset:
    """`n` images of noise. Their pixels and labels follow from the key, or without one from the global generators.

    `shapes`: (H, W) by index, cycled. `broken`: an index that cannot be read. `fatal`: (index, signal) that ends the
    process at work. Paths carry the index after the mapping through `indices`.
    """

    def __init__(self, n=10, shapes=((8, 8),), seed=None, broken=None, fatal=None):
        self.n, self.shapes, self.seed, self.broken, self.fatal = n, shapes, seed, broken, fatal
        self.indices = range(n)

    def __len__(self):
        return self.n

    def shape_of(self, key):
        index = key[1] if isinstance(key, tuple) else key
        return self.shapes[index % len(self.shapes)]

    def sample_into(self, key, out):
        epoch, index = key if isinstance(key, tuple) else (None, key)
        if index == self.broken:
            raise UserError(f"image im{index}.jpg cannot be decoded")
        if self.fatal and index == self.fatal[0]:
            faulthandler.disable()  # pytest's would print the stack of this death, which is meant to happen
            os.kill(os.getpid(), self.fatal[1])
        index = self.indices[index]
        if epoch is None:
            draws = [random.random(), float(np.random.random_sample())]
        else:
            source = KeyedRandom(self.seed, epoch, index)
            draws = [source.random(), source.random()]
        noise = np.random.RandomState(int(draws[0] * 2**31))
        out[:] = noise.randint(0, 256, out.shape, np.uint8)
        labels = np.zeros((int(draws[1] * 5), 6), np.float32)
        labels[:, 1:] = draws[1]
        return labels, f"im{index}.jpg", ((index, index), None)

    def __getitem__(self, key):
        img = np.empty((3, *self.shape_of(key)), np.uint8)
        labels, path, shapes = self.sample_into(key, img)
        return torch.from_numpy(img), torch.from_numpy(labels), path, shapes


def collate(samples):
    """The plain collate: images stacked, labels numbered and joined."""
    imgs, labels, paths, shapes = zip(*samples)
    for i, rows in enumerate(labels):
        rows[:, 0] = i
    return torch.stack(imgs), torch.cat(labels), paths, shapes


def copied(batches):
    """Batches as comparable values, copied out of reused memory."""
    return [(imgs.tolist(), targets.tolist(), tuple(p), tuple(s)) for imgs, targets, p, s in batches]


def order(batches):
    """The indices in each batch, read off the paths."""
    return [[int(path[2:-4]) for path in paths] for _, _, paths, _ in batches]
