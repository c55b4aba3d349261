"""Loaders and caches over real images: whatever is switched on, the same batches come out."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.data.loading.loader_fakes import copied
from yolov7fast.core.errors import UserError
from yolov7fast.data.loading.create_dataloader import create_dataloader

ROOT = Path(__file__).resolve().parents[3]
TRAINING = {"augment": True, "seed": 5, "shuffle": True}
VALIDATION = {"rect": True, "pad": 0.5}


@pytest.fixture(scope="module")
def epochs_of(shapes_small):
    """`epochs_of(part, count, **options)`: the batches of some epochs at 96 pixels, batch 6."""
    hyp = yaml.safe_load((ROOT / "data" / "hyp.scratch.p5.yaml").read_text())

    def run(part, count=2, **options):
        loader, _ = create_dataloader(
            str(shapes_small / "images" / part), 96, 6, 32, SimpleNamespace(single_cls=False), hyp=hyp, **options
        )
        try:
            return [copied(loader) for _ in range(count)]
        finally:
            loader.close()

    return run


@pytest.fixture(scope="module")
def plain_training(epochs_of):
    return epochs_of("train", workers=0, **TRAINING)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 2},
        {"workers": 2, "worker_tensor": True},
        {"workers": 1, "worker_tensor": True, "micro_batch": 4, "cache": "disk"},
        {"workers": 0, "cache": "disk"},
        {"workers": 2, "cache": "ram", "worker_tensor": True, "persistent_workers": True},
    ],
    ids=str,
)
def test_keyed_training_batches_are_the_same_whatever_makes_them(epochs_of, plain_training, tmp_path, options):
    assert epochs_of("train", cache_dir=tmp_path, **options, **TRAINING) == plain_training


@pytest.mark.parametrize(
    "options", [{"workers": 2}, {"workers": 2, "worker_tensor": True}, {"workers": 0, "cache": "disk"}], ids=str
)
def test_validation_batches_need_no_seed_to_be_the_same(epochs_of, tmp_path, options):
    assert epochs_of("val", cache_dir=tmp_path, **options, **VALIDATION) == epochs_of("val", workers=0, **VALIDATION)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 2}, {"workers": 2, "worker_tensor": True}], ids=str)
def test_an_image_that_vanishes_meanwhile_is_named(shapes_small, tmp_path, options):
    shutil.copytree(shapes_small, tmp_path / "set")
    folder = tmp_path / "set" / "images" / "val"
    loader, dataset = create_dataloader(str(folder), 96, 2, 32, SimpleNamespace(single_cls=False), **options)
    lost = Path(dataset.img_files[-1])
    lost.unlink()
    try:
        with pytest.raises(UserError, match=rf"{lost.name} does not exist"):
            for _ in range(2):  # with workers the first epoch may have been read ahead
                list(loader)
    finally:
        loader.close()
