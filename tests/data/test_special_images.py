"""Image files that must neither end nor hang the process: names outside UTF-8, FIFOs, gigantic sizes; 16-bit values."""

import os
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.data.data_golden import synth
from tests.data.small_set import make_set
from yolov7fast.core.drawing import draw_text
from yolov7fast.core.errors import UserError
from yolov7fast.data.caches.label_cache import load_labels
from yolov7fast.data.image_facts import GOOD, MOST_LOOKED_AT, TOO_LARGE, TRUNCATED, UNREADABLE, read_facts
from yolov7fast.data.image_io import decode_file, image_size, read_image, read_unchecked_image
from yolov7fast.data.labels import check_pair, find_images
from yolov7fast.inference.sources import LoadImages
from yolov7fast.reports.data_check_page import _small

ODD_NAME = os.fsdecode(b"caf\xe9.png")  # Latin-1


def write_png_header(path: Path, width: int, height: int) -> None:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b""))


@pytest.fixture
def odd(tmp_path) -> str:
    """An image whose name is not UTF-8."""
    path = os.path.join(tmp_path, ODD_NAME)
    with open(path, "wb") as file:
        file.write(cv2.imencode(".png", synth(48, 64))[1].tobytes())
    return path


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_name_that_is_no_utf8_gives_the_pixels_that_any_name_gives(tmp_path, suffix):
    plain = str(tmp_path / f"plain{suffix}")
    cv2.imwrite(plain, synth(48, 64))
    odd_name = os.path.join(tmp_path, os.fsdecode(b"\xff" + suffix.encode()))
    os.link(plain, odd_name)
    np.testing.assert_array_equal(read_image(odd_name), cv2.imread(plain))
    assert image_size(odd_name) == (64, 48)


def test_labels_of_such_names_are_checked_and_cached(tmp_path, odd):
    source = make_set(tmp_path / "set", 2)
    os.rename(odd, os.path.join(source, ODD_NAME))
    for _ in range(2):
        table = load_labels(find_images(source), source)
        assert len(table.img_files) == 3 and table.counts.missing == 1


def test_the_check_of_a_data_set_looks_at_such_names_and_draws_them(odd):
    assert read_facts([odd])[0]["state"] == GOOD
    assert _small(odd) is not None
    with open(odd, "r+b") as file:
        file.truncate(os.path.getsize(odd) - 60)
    assert read_facts([odd])[0]["state"] in (UNREADABLE, TRUNCATED)


def test_detection_reads_images_of_such_names_and_skips_videos(odd, tmp_path):
    video = os.path.join(tmp_path, os.fsdecode(b"\xff.mp4"))
    Path(video).write_bytes(b"no video")
    source = LoadImages(str(tmp_path))
    assert [frame.path for frame in source.frames()] == [odd]
    assert source.total == 1
    assert [reason.partition(": ")[2] for reason in source.skipped] == [
        "OpenCV reads names in UTF-8 only; rename the file"
    ]


def test_text_that_is_not_utf8_never_reaches_opencv(monkeypatch):
    """It ends the process with signal 11: training and test.py draw the names of images."""
    seen = []
    monkeypatch.setattr(cv2, "getTextSize", lambda size, text, *rest: seen.append(text) or (0, 0, 10))
    monkeypatch.setattr(cv2, "putText", lambda img, text, *rest: seen.append(text))
    draw_text(np.zeros((20, 40, 3), np.uint8), ODD_NAME, (0, 0), 10, (255, 255, 255))
    assert seen == ["caf\\udce9.png"] * 2


def test_fifos_and_devices_are_refused_by_every_reader(tmp_path):
    os.mkfifo(tmp_path / "fifo.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "kernel.jpg").symlink_to("/proc/self/environ")  # a regular file, as is /proc/kmsg, which never ends
    for path in (str(tmp_path / name) for name in ("fifo.jpg", "zero.jpg", "kernel.jpg")):
        assert decode_file(path) is None and image_size(path) is None
        assert read_facts([path])[0]["state"] == UNREADABLE and read_facts([path])[0]["error"] == b"not a regular file"
        (problem,) = check_pair(path, str(tmp_path / "label.txt")).problems
        assert problem.skipped and problem.text == "is not a regular file"
        for read in (read_image, read_unchecked_image):
            with pytest.raises(UserError, match="is not a regular file"):
                read(path)


@pytest.mark.parametrize(
    "form, before_size, size",
    [
        (".webp", b"\x9d\x01\x2a", struct.pack("<HH", 9000, 9000)),
        (".jpg", b"\xff\xc0\x00\x11\x08", b"\x07\xd0\xff\xff"),
    ],
)
def test_an_image_whose_header_states_a_wrong_size_is_left_out_before_training(tmp_path, form, before_size, size):
    """OpenCV does not decode it, while Pillow reads its header only."""
    data = bytearray(cv2.imencode(form, synth(48, 64), [cv2.IMWRITE_WEBP_QUALITY, 80])[1].tobytes())
    at = data.index(before_size) + len(before_size)
    data[at : at + 4] = size
    path = tmp_path / f"a{form}"
    path.write_bytes(data)
    assert decode_file(str(path)) is None and check_pair(str(path), str(tmp_path / "a.txt")).labels is None


def test_a_gigantic_image_is_refused_by_its_header(tmp_path, monkeypatch):
    decoded = []
    monkeypatch.setattr(cv2, "imread", lambda path, how=1: decoded.append(path))
    monkeypatch.setattr(cv2, "imdecode", lambda data, how=1: decoded.append(how))
    for width, height in ((30000, 30000), (13378, 13378), (2**31 - 1, 2**31 - 1)):
        path = tmp_path / "huge.png"
        write_png_header(path, width, height)
        with pytest.raises(UserError, match=r"huge\.png is too large: "):
            read_unchecked_image(str(path))
        assert check_pair(str(path), str(tmp_path / "huge.txt")).labels is None
        assert _small(str(path)) is None
        assert read_facts([str(path)])[0]["state"] == TOO_LARGE  # by now Pillow's own limit is off in this process
        assert check_pair(str(path), str(tmp_path / "huge.txt")).labels is None
    assert width * height > MOST_LOOKED_AT and decoded == []


@pytest.mark.parametrize("shape", [(48, 64), (48, 64, 3)], ids=["grey", "colour"])
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_bits_that_a_16_bit_image_uses_are_counted(tmp_path, shape, suffix):
    rng = np.random.default_rng(0)
    for bits in (12, 16):
        path = str(tmp_path / f"{bits}{suffix}")
        cv2.imwrite(path, (rng.integers(0, 2**bits, shape)).astype(np.uint16))
        assert read_facts([path])[0]["bits"] == bits and read_facts([path])[0]["state"] == GOOD
    eight = str(tmp_path / f"8{suffix}")
    cv2.imwrite(eight, synth(48, 64))
    assert read_facts([eight])[0]["bits"] == 0
