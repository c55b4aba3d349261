"""Bytes of the files that a training writes: caches of images and checkpoints."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from yolov7fast.data.caches.packed import ALIGN, COLUMNS, HEADER
from yolov7fast.data.images import resized_shape
from yolov7fast.nn.model import Model

KEPT_LAST, KEPT_EVERY = 5, 25  # epochs whose checkpoints stay: the last ones, and one in so many


class FileBytes(NamedTuple):
    """ram, disk: a cache of all training images; checkpoint: with the state of the training (in_epoch: saved inside an
    epoch, with gradients); final: a finished run's best.pt or last.pt; init: init.pt; kept: checkpoints of a run that
    stay in its folder while it lasts."""

    ram: int
    disk: int
    checkpoint: int
    in_epoch: int
    final: int
    init: int
    kept: int


def cache_bytes(shapes: np.ndarray, img_files: Sequence[str], img_size: int) -> tuple[int, int]:
    """(in memory, as a packed file) of images (n, 2) width, height whose longer side becomes `img_size`."""
    sides = [resized_shape(int(h), int(w), img_size) for w, h in shapes]
    pixels = [3 * h * w for h, w in sides]
    packed = sum(size + -size % ALIGN for size in pixels)
    names = sum(len(os.fsencode(os.path.abspath(path))) + 1 for path in img_files)
    return sum(pixels), HEADER + packed + len(pixels) * COLUMNS * 8 + names


def checkpoint_bytes(model: Model, adam: bool) -> tuple[int, int, int, int]:
    """(at the end of an epoch, inside one, of a finished run, init.pt).

    Network and EMA stand there twice: in half precision for upstream's scripts, in full for an exact resume.
    """
    values = sum(t.numel() for t in [*model.parameters(), *model.buffers()] if t.is_floating_point())
    learnt = sum(p.numel() for p in model.parameters() if p.requires_grad)
    complete = 2 * (2 + 4) * values + 4 * learnt * (2 if adam else 1)
    return complete, complete + 4 * learnt, 2 * values, 4 * values


def file_bytes(
    model: Model, adam: bool, epochs: int, shapes: np.ndarray, img_files: Sequence[str], img_size: int
) -> FileBytes:
    complete, in_epoch, final, init = checkpoint_bytes(model, adam)
    ram, disk = cache_bytes(shapes, img_files, img_size)
    kept = {0, *range(KEPT_EVERY - 1, epochs, KEPT_EVERY), *range(max(epochs - KEPT_LAST, 0), epochs)}
    newest = 2 + 1  # last, previous, best
    return FileBytes(ram, disk, complete, in_epoch, final, init, complete * (len(kept) + newest) + init)
