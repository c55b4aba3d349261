"""Prints a JSON list: page faults a sample, in the process that makes the samples. Run by test_memory.py.

    page_faults.py FOLDER LOADER default|kept      LOADER: main, torch or shared

`default` leaves the C library's memory alone, as it was before loaders kept theirs.
"""

import ctypes
import json
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np
import torch

from yolov7fast.core.process.memory import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.loading import shared_worker, torch_loader
from yolov7fast.data.loading.create_dataloader import make_loader

HYP = {"mosaic": 1.0, "mixup": 0.0, "degrees": 0.0, "translate": 0.1, "scale": 0.1, "shear": 0.0, "perspective": 0.0}
HYP |= {"hsv_h": 0.015, "hsv_s": 0.7, "hsv_v": 0.4, "flipud": 0.0, "fliplr": 0.5}
SAMPLES, WARM = 24, 8


class Counting(LoadImagesAndLabels):
    """Each sample's label is the number of page faults that making it took; its image goes to memory of its own, since
    that of a batch may be new."""

    written = np.zeros((3, 640, 640), np.uint8)

    def sample_into(self, key, out):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        _, path, shapes = super().sample_into(key, self.written)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        return torch.from_numpy(np.array([[0, faults, 0, 0, 0, 0]], np.float32)), path, shapes


def hand_back_freed_memory() -> None:
    """What glibc begins with. It raises both limits when a process frees large blocks, and this one comes of a process
    that did."""
    library = ctypes.CDLL(None)
    for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
        library.mallopt(option, 128 << 10)


def main(folder: str, loader: str, memory: str) -> None:
    if memory == "default":
        for module in (shared_worker, torch_loader):
            module.keep_freed_memory = lambda: False
        hand_back_freed_memory()
    dataset = Counting(folder, 640, augment=True, hyp=HYP, seed=0)
    options = {"workers": 0 if loader == "main" else 1, "worker_tensor": loader == "shared", "seed": 0}
    batches = make_loader(dataset, 1, **options)
    faults: list[float] = []
    while len(faults) < WARM + SAMPLES:
        faults += [float(row[1]) for _, rows, *_ in batches for row in rows]
    batches.close()
    print(json.dumps(faults[WARM : WARM + SAMPLES]))


if __name__ == "__main__":
    main(*sys.argv[1:])
