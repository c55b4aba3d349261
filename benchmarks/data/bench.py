"""Shared by the parts of `benchmarks.data`: data sets by how images are kept, the rounds, the results so far."""

import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml

from benchmarks.measure import machine
from benchmarks.photographs import ROOT
from yolov7fast.data.dataset import LoadImagesAndLabels

CACHES = {
    "default": {},
    "ram": {"cache_images": "ram"},
    "disk": {"cache_images": "disk"},
}


class Bench:
    """The images, a place for caches, the number of rounds, and the results so far."""

    def __init__(self, images: Path, scratch: Path, quick: bool, first_epoch_images: int, upstream: Path | None):
        self.images, self.scratch, self.quick = images, scratch, quick
        self.first_epoch_images, self.upstream = first_epoch_images, upstream
        self.runs = 3 if quick else 7
        self.hyp = yaml.safe_load((ROOT / "data" / "hyp.scratch.tiny.yaml").read_text())
        self.results: dict = {"machine": machine(), "images": images.parent.parent.name, "runs": self.runs}
        self._sets: dict = {}

    def dataset(self, size: int, kind: str = "default") -> LoadImagesAndLabels:
        if (size, kind) not in self._sets:
            with contextlib.redirect_stderr(io.StringIO()):  # progress bars
                self._sets[size, kind] = LoadImagesAndLabels(
                    str(self.images), size, augment=True, hyp=self.hyp, cache_dir=self.scratch, **CACHES[kind]
                )
        return self._sets[size, kind]

    def show(self, name: str, text: str, ratio: float | None = None, must: str = "") -> None:
        shown = "" if ratio is None else f"{ratio:8.2f}x"
        if ratio is not None:
            row = {"what": name, "value": ratio, "must": must.removeprefix("must ") or "-", "runs": self.runs}
            self.results.setdefault("ratios", []).append(row)
        print(f"{name:<50}{text:<36}{shown:>9}  {must}", flush=True)


def sample_maker(dataset, count: int) -> Callable[[], None]:
    """Makes so many samples, the same each time."""

    def make() -> None:
        random.seed(1)
        np.random.seed(1)
        for i in range(count):
            dataset[i % len(dataset)]

    return make
