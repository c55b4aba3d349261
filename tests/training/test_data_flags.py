"""What train.py's flags about data make of the loaders: parsed, built, and looked at before the first step."""

import shutil

import pytest

from tests.training.commands import small_run
from yolov7fast.cli.commands.train import run as train
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.data.caches.image_cache import ImagesInMemory, PackedImages
from yolov7fast.data.loading.shared_memory_loader import SharedMemoryLoader
from yolov7fast.data.loading.torch_loader import BatchLoader
from yolov7fast.training.yolo_family import YoloFamily

pytestmark = pytest.mark.timeout(120)


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
        arguments = small_run(tmp_path, data, "--workers", "2", "--cache-dir", str(tmp_path / "packs"), *flags)
        with pytest.raises(Built):
            train(parser_for("train").parse_args(arguments))
        return made[-1]

    yield run
    for family in made:
        close(family)


def both(family) -> list:
    """The loaders of training and validation."""
    return [family.loader, family.val_loader]


def test_without_flags_the_loaders_are_upstreams(build):
    family = build()
    assert [type(loader) for loader in both(family)] == [BatchLoader] * 2
    assert [loader.dataset._images for loader in both(family)] == [None] * 2


@pytest.mark.parametrize("flag", ["--worker-tensor", "--fast-dataloader"])
def test_micro_collate_is_used_where_asked_for(flag, build):
    assert [type(loader) for loader in both(build(flag))] == [SharedMemoryLoader] * 2


def test_the_size_of_groups_is_the_one_given(build):
    for size in (3, 4):
        family = build("--worker-tensor", "--micro-batch", str(size))
        assert [loader._tasks.micro_batch for loader in both(family)] == [size] * 2


@pytest.mark.parametrize("flags, stay", [([], False), (["--persistent-workers"], True)])
def test_under_image_weights_workers_stay_where_asked_for(flags, stay, build):
    loader = build("--image-weights", *flags).loader
    assert type(loader) is BatchLoader and not loader.batch_sampler.endless
    assert loader._loader.persistent_workers is stay
    assert (loader._source.indices is not None) is stay


def test_fast_dataloader_keeps_workers_too(build):
    loader = build("--image-weights", "--fast-dataloader").loader
    assert type(loader) is SharedMemoryLoader and loader._source.indices is not None


@pytest.mark.parametrize(
    "flags, kind",
    [(["disk"], PackedImages), (["ram"], ImagesInMemory), ([], ImagesInMemory)],
    ids=["disk", "ram", "bare"],
)
def test_images_are_cached_where_asked_for(flags, kind, build, tmp_path):
    caches = [loader.dataset._images for loader in both(build("--cache-images", *flags))]
    assert [type(cache) for cache in caches] == [kind] * 2
    if kind is PackedImages:
        assert {cache.path.parent for cache in caches} == {tmp_path / "packs"}


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
