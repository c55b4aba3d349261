"""A training family that can run without a data set: one random batch, given as often as asked for."""

from typing import Any

import numpy as np
import torch

from yolov7fast.core.device_copy import is_accelerator
from yolov7fast.families.yolo.family import YoloFamily

CLASSES = 80  # of the synthetic data, as COCO has


class FixedLoader(list):
    """One batch, given as often as asked for."""

    num_workers = 0

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        pass

    def close(self) -> None:
        pass


class SyntheticData:
    """What the family asks of a data set, for batches that come from none."""

    def __init__(self, classes: int):
        self.labels = [np.array([[c, 0.5, 0.5, 0.2, 0.2]], np.float32) for c in range(classes)]
        self.indices, self.n = range(classes), classes

    def __len__(self) -> int:
        return self.n


class ProfiledFamily(YoloFamily):
    """The training family; `--synthetic` replaces its loaders by one random batch."""

    dataset: Any  # a data set, or `SyntheticData`

    def build_loaders(self, stage: Any) -> None:
        if not self.opt.synthetic:
            return super().build_loaders(stage)
        self.stage, self.img_size = stage, stage.size
        images, *rest = synthetic_batch(self.opt.total_batch_size, stage.size, self.opt.targets, self.nc)
        self.loader = FixedLoader([(on_device_side(images, self.device), *rest)])
        self.dataset = SyntheticData(self.nc)


def on_device_side(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """As loaders give images: in page-locked memory where the device is the machine's accelerator."""
    return images.pin_memory() if is_accelerator(device) else images


def synthetic_batch(batch: int, size: int, targets: int, classes: int) -> tuple:
    """A seeded batch as loaders give it: uint8 (B, 3, size, size), float32 (B * targets, 6), paths, shapes."""
    random = np.random.RandomState(0)
    images = torch.from_numpy(random.randint(0, 256, (batch, 3, size, size), dtype=np.uint8))
    n = batch * targets
    wh = np.exp(random.uniform(np.log(0.02), np.log(0.6), (n, 2)))
    columns = [np.repeat(np.arange(batch), targets)[:, None], random.randint(0, classes, (n, 1))]
    rows = np.concatenate([*columns, random.uniform(0.05, 0.95, (n, 2)), wh], 1)
    return images, torch.from_numpy(rows.astype(np.float32)), ("synthetic",) * batch, (None,) * batch
