"""Zip files: unpacked once into the cache, never outside of it, never beyond what their size can honestly hold."""

import os
import zipfile
from types import SimpleNamespace

import pytest

from tests.data.formats.drawn_sets import write_yolo
from yolov7fast.core.errors import UserError
from yolov7fast.data.formats import zip_archive
from yolov7fast.data.formats.recognise import recognise
from yolov7fast.data.formats.zip_archive import unpack


def packed(path, entries: dict[str, bytes], compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def files_below(folder) -> list[str]:
    return sorted(os.path.relpath(os.path.join(d, f), folder) for d, _, names in os.walk(folder) for f in names)


def test_images_and_labels_are_unpacked_once_and_nothing_else(tmp_path):
    path = packed(tmp_path / "a.zip", {"s/a.jpg": b"1", "s/a.txt": b"2", "s/run.sh": b"3", "__MACOSX/s/a.jpg": b"4"})
    folder = unpack(path)
    assert files_below(folder) == ["s/a.jpg", "s/a.txt"]
    stamp = folder.stat().st_mtime_ns
    assert unpack(path) == folder
    assert folder.stat().st_mtime_ns == stamp
    path.write_bytes(packed(tmp_path / "b.zip", {"s/b.jpg": b"1"}).read_bytes())
    assert files_below(unpack(path)) == ["s/b.jpg"]


@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/out.txt", "C:\\out.txt", "..\\out.txt"])
def test_an_entry_that_leads_out_of_the_folder_is_refused(tmp_path, own_cache, name):
    path = packed(tmp_path / "a.zip", {"a.jpg": b"1", name: b"2"})
    with pytest.raises(UserError, match="leads out of the folder"):
        unpack(path)
    assert files_below(own_cache / "unpacked") == []
    assert not (tmp_path / "out.txt").exists()


def test_a_bomb_is_refused_before_anything_is_written(tmp_path, own_cache):
    path = packed(tmp_path / "a.zip", {f"{i}.txt": bytes(20_000_000) for i in range(9)})
    assert path.stat().st_size < 1_000_000
    with pytest.raises(UserError, match="claims to hold"):
        unpack(path)
    assert files_below(own_cache / "unpacked") == []


def test_an_archive_that_does_not_fit_the_disk_is_refused(tmp_path, monkeypatch):
    path = packed(tmp_path / "a.zip", {"a.txt": b"1"})
    monkeypatch.setattr(zip_archive.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(UserError, match="free some space"):
        unpack(path)


@pytest.mark.parametrize("damage", ["cut", "noise", "lies about its size"])
def test_a_damaged_archive_is_one_line_and_leaves_nothing(tmp_path, own_cache, damage):
    path = packed(tmp_path / "a.zip", {"a.txt": os.urandom(5000)}, zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-100]
    elif damage == "noise":
        content[1000:1100] = bytes(100)
    else:
        place = content.rindex(b"PK\x01\x02") + 24  # uncompressed size in the directory
        content[place : place + 4] = (10).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        unpack(path)
    assert "a.zip" in str(error.value)
    assert files_below(own_cache / "unpacked") == []


def test_a_data_yaml_out_of_an_archive_does_not_lead_elsewhere(tmp_path):
    """Its author could otherwise read other folders of the machine."""
    outside = write_yolo(tmp_path / "private")
    text = f"train: {outside}/train/images\nval: {outside}/valid/images\nnames: [a, b, c]\n"
    path = packed(tmp_path / "a.zip", {"data.yaml": text.encode()})
    with pytest.raises(UserError, match="does not exist"):
        recognise(path)


def test_a_list_out_of_an_archive_does_not_lead_elsewhere(tmp_path):
    outside = write_yolo(tmp_path / "private")
    secret = outside / "train" / "images" / "000.png"
    own = {"images/a.png": secret.read_bytes(), "labels/a.txt": b"0 0.5 0.5 0.1 0.1\n"}
    listed = f"{secret}\nimages/a.png\n../../../private/train/images/000.png\n".encode()
    path = packed(tmp_path / "a.zip", {"data.yaml": b"train: train.txt\nnames: [a]\n", "train.txt": listed, **own})
    samples = recognise(path).read().samples
    assert [os.path.basename(s.image) for s in samples if os.path.isfile(s.image)] == ["a.png"]
    assert not any(s.image.startswith(f"{outside}/") for s in samples)
