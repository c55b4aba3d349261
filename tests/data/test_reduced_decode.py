"""`--reduced-decode`: what is decoded at a fraction of its size, what is not, and that all else stays."""

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.data.data_golden import seed_all
from yolov7fast.data import images as reading
from yolov7fast.data.caches.packed import PackedImages
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.images import load_resized

HYP = {
    "mosaic": 1.0, "mixup": 0.0, "degrees": 0.0, "translate": 0.1, "scale": 0.5, "shear": 0.0, "perspective": 0.0,
    "hsv_h": 0.015, "hsv_s": 0.7, "hsv_v": 0.4, "flipud": 0.0, "fliplr": 0.5,
}  # fmt: skip


def smooth(h: int, w: int) -> np.ndarray:
    noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return cv2.resize(noise, (w, h), interpolation=cv2.INTER_CUBIC)


@pytest.fixture
def asked(monkeypatch):
    """The flags that OpenCV was asked to decode with."""
    flags, read = [], cv2.imread
    monkeypatch.setattr(reading.cv2, "imread", lambda path, how: flags.append(how) or read(path, how))
    return flags


@pytest.mark.parametrize(
    "size, flag",
    [
        (320, cv2.IMREAD_COLOR),
        (161, cv2.IMREAD_COLOR),
        (160, cv2.IMREAD_REDUCED_COLOR_2),
        (81, cv2.IMREAD_REDUCED_COLOR_2),
        (80, cv2.IMREAD_REDUCED_COLOR_4),
        (40, cv2.IMREAD_REDUCED_COLOR_8),
        (16, cv2.IMREAD_REDUCED_COLOR_8),
    ],
)
@pytest.mark.parametrize("shape", [(240, 320), (320, 241)])
def test_the_smallest_fraction_not_below_the_training_size_is_decoded(size, flag, shape, tmp_path, asked):
    path = str(tmp_path / "a.jpg")
    cv2.imwrite(path, smooth(*shape))
    full, reduced = load_resized(path, size, True), load_resized(path, size, True, shape)
    assert asked == [cv2.IMREAD_COLOR, flag]
    assert reduced.original == full.original == shape and reduced.resized == full.resized
    assert reduced.img.shape == full.img.shape == (*full.resized, 3)
    assert np.abs(reduced.img.astype(int) - full.img).mean() < 4


def test_other_formats_and_files_of_another_size_are_decoded_whole(tmp_path):
    for name, known in (("a.png", (240, 320)), ("b.jpg", (480, 640)), ("c.jpg", (320, 240))):
        cv2.imwrite(str(tmp_path / name), smooth(240, 320))
        reduced, full = (load_resized(str(tmp_path / name), 80, True, original) for original in (known, None))
        assert np.array_equal(reduced.img, full.img) and reduced.original == full.original == (240, 320)


def test_rotation_by_exif_is_applied(tmp_path):
    image = Image.fromarray(smooth(240, 320))
    exif = image.getexif()
    exif[274] = 6
    image.save(tmp_path / "a.jpg", exif=exif)
    full, reduced = (load_resized(str(tmp_path / "a.jpg"), 80, True, original) for original in (None, (320, 240)))
    assert full.img.shape == reduced.img.shape == (80, 60, 3)
    assert np.abs(reduced.img.astype(int) - full.img).mean() < 4


@pytest.fixture
def folder(tmp_path):
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    for k in range(4):
        cv2.imwrite(str(tmp_path / f"images/{k}.jpg"), np.roll(smooth(240, 320), 20 * k, 1))
        (tmp_path / f"labels/{k}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    return tmp_path / "images"


@pytest.mark.parametrize("cache", [False, "ram", "disk"])
def test_caches_hold_what_loading_gives_and_labels_are_the_same(cache, folder, tmp_path):
    options = {"augment": True, "hyp": HYP, "cache_images": cache, "cache_dir": tmp_path}
    full = LoadImagesAndLabels(str(folder), 80, **options)
    reduced = LoadImagesAndLabels(str(folder), 80, reduced_decode=True, **options)
    for i, path in enumerate(reduced.img_files):
        assert np.array_equal(reduced.load_image(i).img, load_resized(path, 80, True, (240, 320)).img)
        assert np.array_equal(full.load_image(i).img, load_resized(path, 80, True).img)
    made = []
    for found in (full, reduced):
        seed_all(0)
        made.append(found[0])
    assert made[0][1].tolist() == made[1][1].tolist()
    assert 0 < np.abs(made[0][0].numpy().astype(int) - made[1][0].numpy()).mean() < 4


def test_evaluation_is_decoded_as_ever(folder):
    full, reduced = (LoadImagesAndLabels(str(folder), 80, reduced_decode=flag) for flag in (False, True))
    assert all(np.array_equal(full[i][0], reduced[i][0]) for i in range(4))


def test_a_damaged_packed_image_is_decoded_as_the_pack_was(folder, tmp_path):
    paths = sorted(map(str, folder.glob("*.jpg")))
    options = {"augment": True, "cache_dir": tmp_path / "cache", "originals": [(240, 320)] * 4}
    path = PackedImages.open_or_build(paths, 80, **options).path
    whole = bytearray(path.read_bytes())
    whole[4096 + 100] ^= 255
    path.write_bytes(whole)
    pack = PackedImages.open_or_build(paths, 80, **options)
    assert np.array_equal(pack.get(0).img, load_resized(paths[0], 80, True, (240, 320)).img)
    assert not path.exists()
