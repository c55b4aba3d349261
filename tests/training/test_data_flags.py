"""What train.py's flags about data make of the loaders: parsed, built, and looked at before the first step."""

import shutil

import pytest

from tests.training.commands import here, small_run
from yolov7fast.core.errors import UserError
from yolov7fast.data.caches.image_cache import ImagesInMemory, PackedImages
from yolov7fast.data.loading.shared_memory_loader import SharedMemoryLoader
from yolov7fast.data.loading.torch_loader import BatchLoader
from yolov7fast.training.yolo_family import YoloFamily


class Built(Exception):
    """Ends a run where its training would begin."""


@pytest.fixture
def build(tmp_path, shapes_small, monkeypatch):
    """`build(*flags)`: the family that train.py makes of these flags, on two workers, batch 4."""
    made = []

    def stop(family, *_):
        made.append(family)
        raise Built

    close = YoloFamily.close
    monkeypatch.setattr("yolov7fast.training.train.Trainer", stop)
    monkeypatch.setattr(YoloFamily, "close", lambda family: None)

    def run(*flags, data=shapes_small):
        with pytest.raises(Built):
            here(*small_run(tmp_path, data, "--workers", "2", "--cache-dir", str(tmp_path / "packs"), *flags))
        return made[-1]

    yield run
    for family in made:
        close(family)


def both(family) -> list:
    """The loaders of training and validation."""
    return [family.loader, family.val_loader]


@pytest.mark.parametrize(
    ("flags", "loader", "cache"),
    [
        ([], BatchLoader, None),
        (["--cache-images", "disk"], BatchLoader, PackedImages),
        (["--worker-tensor", "--micro-batch", "3", "--cache-images"], SharedMemoryLoader, ImagesInMemory),
        (["--fast-dataloader", "--cache-images", "ram"], SharedMemoryLoader, ImagesInMemory),
    ],
)
def test_loaders_and_caches_are_those_asked_for(flags, loader, cache, build, tmp_path):
    built = both(build(*flags))
    assert [type(each) for each in built] == [loader] * 2
    caches = [each.dataset._images for each in built]
    assert [type(each) if each else None for each in caches] == [cache] * 2
    if cache is PackedImages:
        assert {each.path.parent for each in caches} == {tmp_path / "packs"}
    if "--micro-batch" in flags:
        assert [each._tasks.micro_batch for each in built] == [3] * 2


@pytest.mark.parametrize("stay", [False, True])
def test_under_image_weights_workers_stay_where_asked_for(stay, build):
    loader = build("--image-weights", *["--persistent-workers"] * stay).loader
    assert type(loader) is BatchLoader and not loader.batch_sampler.endless
    assert loader._loader.persistent_workers is stay
    assert (loader._source.indices is not None) is stay


def test_fast_dataloader_keeps_workers_too(build):
    loader = build("--image-weights", "--fast-dataloader").loader
    assert type(loader) is SharedMemoryLoader and loader._source.indices is not None


def test_a_validation_label_beyond_nc_is_named_before_training(build, shapes_small, tmp_path):
    bad = tmp_path / "set"
    shutil.copytree(shapes_small, bad)
    label = sorted((bad / "labels/val").glob("*.txt"))[3]
    label.write_text(label.read_text().rstrip() + "\n9 0.5 0.5 0.2 0.2\n")
    (bad / "shapes.yaml").write_text((bad / "shapes.yaml").read_text().replace(str(shapes_small), str(bad)))
    line = len(label.read_text().splitlines())
    with pytest.raises(UserError, match=rf"{label}:{line}: class 9, but .* has nc: 4"):
        build(data=bad)
    assert build("--single-cls", data=bad).nc == 1
