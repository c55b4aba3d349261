"""Upper rows of a JPEG: the bits of the whole image, or none where they cannot be had."""

import cv2
import numpy as np
import pytest
from PIL import Image

from yolov7fast.data import images as reading
from yolov7fast.data.images import load_resized, load_upper_left
from yolov7fast.data.jpeg import LARGEST_BLOCK, upper_rows

SIZE = (150, 203)


def photograph(h: int = SIZE[0], w: int = SIZE[1]) -> np.ndarray:
    noise = np.random.default_rng(0).integers(0, 256, (h // 4, w // 4, 3), dtype=np.uint8)
    return cv2.resize(noise, (w, h), interpolation=cv2.INTER_CUBIC)


@pytest.fixture
def save(tmp_path):
    def write(**options) -> str:
        Image.fromarray(photograph()).save(tmp_path / "a.jpg", **options)
        return str(tmp_path / "a.jpg")

    return write


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("quality", [30, 95])
def test_rows_are_those_of_the_whole_image(subsampling, quality, save, capfd):
    path = save(subsampling=subsampling, quality=quality)
    whole = cv2.imread(path)
    for rows in range(1, SIZE[0] - LARGEST_BLOCK):
        np.testing.assert_array_equal(upper_rows(path, SIZE, rows), whole[:rows])
    assert upper_rows(path, SIZE, rows + 1) is None  # too near to the end
    assert capfd.readouterr().err == ""  # the decoder has nothing to complain about


def test_grey_files_with_comments_are_read(save):
    path = save(comment=b"\xff\xd9" * 9)
    np.testing.assert_array_equal(upper_rows(path, SIZE, 40), cv2.imread(path)[:40])
    Image.fromarray(photograph()).convert("L").save(path)
    np.testing.assert_array_equal(upper_rows(path, SIZE, 40), cv2.imread(path)[:40])


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[274] = orientation
    return tags


@pytest.mark.parametrize(
    "options",
    [{"progressive": True}, {"exif": exif(6)}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 7}],
    ids=lambda options: next(iter(options)),
)
def test_other_kinds_of_file_are_left_to_the_decoder_of_whole_images(options, save):
    assert upper_rows(save(**options), SIZE, 40) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data + data,
        lambda data: data[:2],
        lambda data: data[:9],
        lambda data: b"",
        lambda data: b"\xff" * 99,
        lambda data: data[:2] + b"\xff\xe0\0\0" + data[2:],
    ],
)
def test_a_damaged_file_is_left_to_it_too(change, save):
    path = save()
    with open(path, "rb") as f:
        data = f.read()
    with open(path, "wb") as f:
        f.write(change(data))
    assert upper_rows(path, SIZE, 40) is None


def test_a_header_that_ends_early_is_no_error(save):
    path = save()
    with open(path, "rb") as f:
        data = f.read()
    for length in range(700):
        with open(path, "wb") as f:
            f.write(data[:length])
        assert upper_rows(path, SIZE, 40) is None


def test_an_image_of_another_size_or_format_is_left_to_it_too(save, tmp_path):
    assert upper_rows(save(), (SIZE[0] + 1, SIZE[1]), 40) is None
    cv2.imwrite(str(tmp_path / "a.png"), photograph())
    assert upper_rows(tmp_path / "a.png", SIZE, 40) is None
    assert upper_rows(tmp_path / "absent.jpg", SIZE, 40) is None


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("shape", [(150, 203), (240, 320), (97, 64)])
def test_the_upper_left_part_equals_that_of_the_whole_image(shape, suffix, tmp_path):
    path = str(tmp_path / f"a{suffix}")
    cv2.imwrite(path, photograph(*shape))
    rng = np.random.default_rng(1)
    for size in (32, 80, 101, 160, 320, 350):
        whole = load_resized(path, size, True)
        parts = rng.integers(1, whole.resized, (25, 2), endpoint=True).tolist()
        for rows, columns in [*parts, whole.resized]:
            part = load_upper_left(path, size, shape, (rows, columns))
            np.testing.assert_array_equal(part.img, whole.img[:rows, :columns])
            assert part[1:] == whole[1:]


def test_rows_below_are_not_decoded(save, monkeypatch):
    decoded, decode = [], cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda *a: decoded.append(decode(*a)) or decoded[-1])
    monkeypatch.setattr(reading, "read_image", None)
    load_upper_left(save(), 203, SIZE, (60, 100))
    assert [len(img) for img in decoded] == [63]


def test_a_file_of_another_size_by_now_is_loaded_whole(save):
    path = save()
    part, whole = load_upper_left(path, 80, (300, 203), (20, 20)), load_resized(path, 80, True)
    np.testing.assert_array_equal(part.img, whole.img)
    assert part[1:] == whole[1:]
