"""`create_dataloader` in the overlay: the checkout's samples, what scripts use, targets with host copies."""

import hashlib
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.overlay.conftest import ROOT
from yolov7fast.data.loading.create_dataloader import create_dataloader
from yolov7fast.overlay.replacements import (
    HostTargets,
    fast_create_dataloader,
    known_host_copy,
)
from yolov7fast.training.hyperparameters import load_hyp

OPT = SimpleNamespace(single_cls=False)


def epochs(create, folder, count=2, **settings) -> list[str]:
    """A hash of each batch of the first epochs."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    hyp = dict(load_hyp(ROOT / "data/hyp.scratch.tiny.yaml"))
    loader, dataset = create(str(folder / "images/train"), 64, 5, 32, OPT, hyp=hyp, **{"augment": True, **settings})
    seen = []
    try:
        for _ in range(count):
            if settings.get("image_weights"):
                dataset.indices = random.choices(range(dataset.n), k=dataset.n)
            for images, targets, paths, _ in loader:
                whole = images.numpy().tobytes() + np.asarray(targets).tobytes() + "".join(paths).encode()
                seen.append(hashlib.sha256(whole).hexdigest())
    finally:
        loader.close()
    return seen


def test_a_disk_cache_keeps_every_bit(shapes, tmp_path):
    folder = tmp_path / "shapes"
    shutil.copytree(shapes, folder)
    cached = epochs(fast_create_dataloader("disk"), folder, workers=0)
    assert cached == epochs(create_dataloader, folder, workers=0)
    assert list(folder.rglob("*.pack")), "no cache was written"


def test_a_seed_makes_samples_independent_of_workers(shapes):
    create = fast_create_dataloader(seed=5)
    assert epochs(create, shapes, workers=0) == epochs(create, shapes, workers=2)


@pytest.mark.parametrize("seed, rank", [(None, -1), (None, 0), (1, 0)])
def test_a_loader_has_what_scripts_use_of_it(shapes, seed, rank):
    hyp = dict(load_hyp(ROOT / "data/hyp.scratch.tiny.yaml"))
    create = fast_create_dataloader(seed=seed)
    world = {"rank": rank, "world_size": 2} if rank >= 0 else {}
    loader, dataset = create(str(shapes / "images/train"), 64, 5, 32, OPT, hyp=hyp, augment=True, workers=1, **world)
    try:
        assert len(loader) == (3 if rank < 0 else 2) and loader.num_workers == 1
        assert loader.dataset is dataset and dataset.n == 12
        if rank >= 0:
            loader.sampler.set_epoch(1)
        images, targets, paths, shapes_of = next(iter(loader))
        assert (images.dtype, images.shape, len(paths), len(shapes_of)) == (torch.uint8, (5, 3, 64, 64), 5, 5)
        assert type(targets) is HostTargets
        assert torch.equal(known_host_copy(targets.to("meta")), torch.as_tensor(np.asarray(targets)))
    finally:
        loader.close()
