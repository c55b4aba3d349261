"""Packed images: the pixels of `load_resized`, built once, never stale, never half-written."""

import json
import multiprocessing
import os
from collections import namedtuple
from functools import partial

import cv2
import numpy as np
import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.data.caches import image_cache
from yolov7fast.data.caches.image_cache import PackedImages
from yolov7fast.data.image_io import load_resized

SIZES = [(40, 64), (64, 40), (30, 30), (77, 154), (20, 10), (1, 90)]  # h, w; shrinking and growing to 48


@pytest.fixture
def images(tmp_path):
    """Paths of six noise images of several shapes."""
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = []
    for i, size in enumerate(SIZES):
        paths.append(str(folder / f"{i}.{'png' if i % 2 else 'jpg'}"))
        cv2.imwrite(paths[-1], rng.integers(0, 256, (*size, 3), np.uint8))
    return paths


@pytest.fixture
def builds(monkeypatch):
    """The packs built during the test, in order."""
    made = []
    build = image_cache._build
    monkeypatch.setattr(image_cache, "_build", lambda path, *rest: made.append(path.name) or build(path, *rest))
    return made


def open_pack(images, tmp_path, img_size=48, augment=True, **options):
    return PackedImages.open_or_build(images, img_size, augment=augment, cache_dir=tmp_path / "cache", **options)


def assert_same(pack, paths, img_size=48, augment=True):
    assert len(pack) == len(paths)
    for i, path in enumerate(paths):
        got, want = pack.get(i), load_resized(path, img_size, augment)
        assert got.original == want.original and got.resized == want.resized
        assert np.array_equal(got.img, want.img) and got.img.flags.c_contiguous


@pytest.mark.parametrize("augment", [True, False])
def test_pixels_are_those_of_loading(images, tmp_path, augment):
    assert_same(open_pack(images, tmp_path, augment=augment), images, augment=augment)


def test_built_once_then_opened(images, tmp_path, builds):
    for _ in range(3):
        assert_same(open_pack(images, tmp_path), images)
    assert len(builds) == 1
    assert [p.name for p in (tmp_path / "cache").iterdir()] == builds  # no lock, no temporary file


def test_subsets_and_other_orders_use_the_larger_pack_and_added_images_replace_it(images, tmp_path, builds):
    open_pack(images[:4], tmp_path)
    open_pack(images, tmp_path)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == builds[1:]
    for wish in (images[::-1], images[1:4], [images[5], images[0]]):
        assert_same(open_pack(wish, tmp_path), wish)
    assert len(builds) == 2


def test_a_changed_image_is_noticed(images, tmp_path, builds):
    open_pack(images, tmp_path)
    cv2.imwrite(images[1], np.zeros((9, 9, 3), np.uint8))
    assert_same(open_pack(images, tmp_path), images)
    stat = os.stat(images[1])
    cv2.imwrite(images[1], np.full((9, 9, 3), 255, np.uint8))
    os.utime(images[1], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))  # a nanosecond later is later
    assert_same(open_pack(images, tmp_path), images)
    assert len(builds) == 3 and len(list((tmp_path / "cache").iterdir())) == 1


def change_header(path, **changes):
    """A header that says something else, with the file otherwise as it was."""
    data = path.read_bytes()
    meta = json.loads(data[8 : image_cache.HEADER].rstrip(b"\0")) | changes
    path.write_bytes(
        (image_cache.MAGIC + json.dumps(meta).encode()).ljust(image_cache.HEADER, b"\0") + data[image_cache.HEADER :]
    )


def overwrite(path, at, new: bytes):
    data = path.read_bytes()
    where = at(data)
    path.write_bytes(data[:where] + new + data[where + len(new) :])


TABLE_BYTES = image_cache.COLUMNS * 8 * len(SIZES)
DAMAGES = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 10),
    "header": partial(overwrite, at=lambda data: 8, new=b"\xff" * 32),
    "table": partial(overwrite, at=lambda data: data.index(b"/") - TABLE_BYTES, new=np.int64(1 << 40).tobytes()),
    "empty": lambda path: path.write_bytes(b""),
    "a huge count": partial(change_header, n=10**15),
    "a deep header": lambda path: path.write_bytes(image_cache.MAGIC + b"[" * 4088 + bytes(100)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_or_foreign_file_is_built_again_and_a_line_says_so(images, tmp_path, builds, damage, caplog):
    path = open_pack(images, tmp_path).path
    assert not caplog.text
    damage(path)
    assert_same(open_pack(images, tmp_path), images)
    assert len(builds) == 2
    assert f"{path} is damaged, or its images have changed: it is built again" in caplog.text


def flip_pixel(path, number, bit=0):
    """Change one bit of one pixel of an image in a pack."""
    offset, h, w = image_cache._read_index(path, 48, "linear")[1][number, :3].tolist()
    with open(path, "r+b") as f:
        f.seek(offset + h * w * 3 // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("number", [0, len(SIZES) - 1])
def test_a_flipped_pixel_is_noticed_on_first_use_and_the_image_decoded_anew(number, images, tmp_path, builds, caplog):
    path = open_pack(images, tmp_path).path
    flip_pixel(path, number, bit=number)
    pack = open_pack(images, tmp_path)
    assert len(builds) == 1  # opening looks at the index alone
    assert_same(pack, images)
    assert_same(pack, images)
    assert caplog.text.count("its checksum differs") == 1 and os.path.basename(images[number]) in caplog.text
    assert "the next run has it built again" in caplog.text and not path.exists()
    assert_same(open_pack(images, tmp_path), images)
    assert len(builds) == 2 and caplog.text.count("its checksum differs") == 1


def build_in_process(images, tmp_path, barrier, results):
    barrier.wait()
    pack = open_pack(images, tmp_path)
    results.put((pack.path.stat().st_ino, int(pack.get(3).img.sum())))


def test_processes_that_start_together_build_once(images, tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    ranks = [context.Process(target=build_in_process, args=(images, tmp_path, barrier, results)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    answers = {results.get() for _ in ranks}
    for rank in ranks:
        rank.join()
    one_file = open_pack(images, tmp_path).path.stat().st_ino
    assert answers == {(one_file, int(load_resized(images[3], 48, True).img.sum()))}


def test_a_build_that_was_killed_leaves_nothing(images, tmp_path):
    (tmp_path / "cache").mkdir()
    name = image_cache._Wanted(images, 48, True).file_name
    (tmp_path / "cache" / f".{name}.tmp").write_bytes(b"half")
    open_pack(images, tmp_path)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [name]


def test_an_unreadable_image_is_named_and_nothing_is_left(images, tmp_path):
    with open(images[2], "wb") as f:
        f.write(b"not an image")
    with pytest.raises(UserError, match=r"2\.jpg"):
        open_pack(images, tmp_path)
    assert not list((tmp_path / "cache").iterdir())
    os.remove(images[2])
    with pytest.raises(UserError, match=r"2\.jpg"):
        open_pack(images, tmp_path)


Usage = namedtuple("Usage", "total used free")


def test_too_small_a_disk_is_refused_before_anything_is_decoded(images, tmp_path, monkeypatch):
    pack = open_pack(images, tmp_path)
    exact = pack.nbytes
    monkeypatch.setattr(image_cache, "load_resized", None)
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda folder: Usage(0, 0, exact // 2))
    with pytest.raises(UserError) as refused:
        open_pack(images, tmp_path / "elsewhere")
    assert "6 images at 48 needs 0.03 MB" in str(refused.value)
    assert f"{exact / 2e6:.2f} MB are free" in str(refused.value) and "--cache-dir" in str(refused.value)
