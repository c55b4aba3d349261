"""Which files of a folder count as images, whatever links, devices and special file systems lie in it."""

import os
import socket
from pathlib import Path

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.data import image_io
from yolov7fast.data.image_io import matching_files
from yolov7fast.data.labels import find_images
from yolov7fast.inference.sources import LoadImages, expand


@pytest.fixture
def images(tmp_path) -> Path:
    folder = tmp_path / "set/images/train"
    (folder / "b").mkdir(parents=True)
    for name in ("0.jpg", "1.jpg", "b/2.jpg"):
        (folder / name).write_bytes(b"")
    return folder


def names(found: list[str], folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in found]


def test_links_in_a_circle_do_not_multiply_images(images, caplog):
    (images / "again").symlink_to(".")
    (images / "b/up").symlink_to("../..")  # to a folder above the one that is searched
    (images / "a").symlink_to("b")  # its name comes first, but labels/train/b holds the labels
    assert names(find_images(images, "train: "), images) == ["0.jpg", "1.jpg", "b/2.jpg"]
    assert f"train: {images}: 3 entries left out (first: {images}/a)" in caplog.text


def test_a_file_that_is_linked_to_counts_once_and_links_to_elsewhere_stay(images, tmp_path, caplog):
    (tmp_path / "elsewhere.jpg").write_bytes(b"")
    (images / "00.jpg").symlink_to("0.jpg")
    (images / "3.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    (images / "4.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    (images / "gone.jpg").symlink_to("nowhere.jpg")  # the check of labels reports it
    (images / "loop.jpg").symlink_to("loop.jpg")
    kept = ["0.jpg", "1.jpg", "3.jpg", "b/2.jpg", "gone.jpg", "loop.jpg"]
    assert names(find_images(images), images) == kept
    assert "2 entries left out" in caplog.text and "list its names in a text file" in caplog.text


def test_fifos_sockets_and_folders_named_like_images_do_not_count(images, monkeypatch, caplog):
    os.mkfifo(images / "fifo.jpg")
    (images / "folder.jpg").mkdir()
    (images / "device.jpg").symlink_to("/dev/zero")
    monkeypatch.chdir(images)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as there:
        there.bind("socket.jpg")
        assert names(find_images(images), images) == ["0.jpg", "1.jpg", "b/2.jpg"]
        assert names(LoadImages(str(images)).files, images) == ["0.jpg", "1.jpg"]
    assert "3 entries left out" in caplog.text


@pytest.mark.parametrize("place", ["/proc", "/sys/class", "/dev", "/proc/self/environ"])
def test_file_systems_of_the_kernel_are_refused(place, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(place)
    for path in (place, link):
        with pytest.raises(UserError, match="belongs to the kernel's file systems"):
            find_images(path, "val: ")
        with pytest.raises(UserError, match="belongs to the kernel's file systems"):
            expand(str(path))


def test_a_link_into_such_a_file_system_is_not_followed(images):
    (images / "kernel").symlink_to("/proc")
    assert names(find_images(images), images) == ["0.jpg", "1.jpg", "b/2.jpg"]


def test_a_folder_without_end_is_refused(images, monkeypatch):
    monkeypatch.setattr(image_io, "MOST_ENTRIES", 3)
    with pytest.raises(UserError, match=rf"{images} holds more than 3 files and folders .*text file"):
        find_images(images)


@pytest.mark.parametrize(
    "pattern, wanted",
    [
        ("*.jpg", ["0.jpg", "1.jpg"]),
        ("**/*.jpg", ["0.jpg", "1.jpg", "b/2.jpg"]),
        ("**/b/*", ["b/2.jpg"]),
        ("b/**/?.jpg", ["b/2.jpg"]),
        ("nowhere/**/*.jpg", []),
    ],
)
def test_patterns_meet_each_file_once(images, pattern, wanted):
    (images / "again").symlink_to(".")
    (images / "b/again").symlink_to("..")
    assert sorted(names(matching_files(str(images / pattern)), images)) == wanted
