"""What feeds a GPU: the cost of a training sample, measured on this machine, and what follows for others."""

import os
import random
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from yolov7fast.data.dataset import FOUR_TILES, LoadImagesAndLabels
from yolov7fast.data.labels import Paths, Subset

MEASURED_IMAGES = 64
SECONDS = 3.0  # for each kind of cache
KINDS: dict[str, dict[str, Any]] = {
    "no cache": {},
    "--cache-images": {"cache_images": "ram"},
    "--cache-images --fast-augment": {"cache_images": "ram", "fast_augment": True},
}


class SampleCost(NamedTuple):
    """cpu_ms: milliseconds of one core; read_bytes: of image files, where nothing is cached."""

    cpu_ms: float
    read_bytes: float
    samples: int


class Need(NamedTuple):
    """For a number of images/s: cores that make samples, bytes/s of the disk."""

    cores: float
    disk: float


def measure_samples(
    source: Paths, img_size: int, hyp: Mapping[str, Any], seconds: float | None = None
) -> dict[str, SampleCost]:
    """The cost of a training sample by kind of cache, in turn, in CPU time: other work on the machine counts little.

    The global generators are put back afterwards.
    """
    subset = Subset(MEASURED_IMAGES, 0)
    common = {"augment": True, "hyp": dict(hyp), "subset": subset, "prefix": "plan: "}
    sets = {kind: LoadImagesAndLabels(source, img_size, **common, **options) for kind, options in KINDS.items()}
    states = random.getstate(), np.random.get_state()
    spent, made = dict.fromkeys(sets, 0.0), dict.fromkeys(sets, 0)
    until = time.process_time() + (SECONDS if seconds is None else seconds) * len(sets)
    try:
        with tqdm(desc="plan: cost of a sample", unit="sample") as bar:
            while time.process_time() < until or min(made.values()) < 2:
                for kind, dataset in sets.items():
                    began = time.process_time()
                    dataset[made[kind] % len(dataset)]
                    spent[kind] += time.process_time() - began
                    made[kind] += 1
                    bar.update()
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    read = file_bytes_read(sets["no cache"])
    return {kind: SampleCost(spent[kind] / made[kind] * 1e3, 0.0 if KINDS[kind] else read, made[kind]) for kind in sets}


def file_bytes_read(dataset: LoadImagesAndLabels) -> float:
    """Of a sample without a cache, on the average: a mosaic reads four or nine images, mixup a second mosaic."""
    hyp = dataset.hyp
    size = float(np.mean([os.path.getsize(path) for path in dataset.img_files]))
    tiles = FOUR_TILES * 4 + (1 - FOUR_TILES) * 9
    return size * (hyp["mosaic"] * tiles * (1 + hyp["mixup"]) + (1 - hyp["mosaic"]))


def need(cost: SampleCost, images_per_second: float) -> Need:
    return Need(cost.cpu_ms / 1e3 * images_per_second, cost.read_bytes * images_per_second)
