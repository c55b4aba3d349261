"""scripts/get_coco.sh against archives in a local folder: download, check, unpack, labels, resuming after a stop."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "get_coco.sh"

pytestmark = pytest.mark.skipif(
    not all(shutil.which(p) for p in ("bash", "curl", "unzip", "md5sum")), reason="needs bash, curl, unzip and md5sum"
)


def picture(seed: int) -> bytes:
    """A JPEG of 40 x 20 pixels of noise, some 1.5 kB."""
    noise = np.random.default_rng(seed).integers(0, 255, (20, 40, 3), np.uint8)
    return cv2.imencode(".jpg", noise)[1].tobytes()


@pytest.fixture
def mirror(tmp_path) -> Path:
    """A folder laid out as the COCO server, two images in each split, and its checksum file."""
    folder = tmp_path / "server"
    (folder / "zips").mkdir(parents=True)
    (folder / "annotations").mkdir()
    notes = {}
    for split in ("train2017", "val2017"):
        with zipfile.ZipFile(folder / f"zips/{split}.zip", "w") as archive:
            archive.writestr(f"{split}/", "")
            for i in (1, 2):
                archive.writestr(f"{split}/{i:012}.jpg", picture(i))
        images = [{"id": i, "file_name": f"{i:012}.jpg", "width": 40, "height": 20} for i in (1, 2)]
        boxes = [{"image_id": 1, "category_id": 1, "bbox": [4, 2, 8, 10]}]
        notes[split] = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "person"}]}
    with zipfile.ZipFile(folder / "annotations/annotations_trainval2017.zip", "w") as archive:
        for split, content in notes.items():
            archive.writestr(f"annotations/instances_{split}.json", json.dumps(content))
            archive.writestr(f"annotations/captions_{split}.json", "{}")
    sums = [f"{hashlib.md5(p.read_bytes()).hexdigest()}  {p.name}" for p in sorted(folder.rglob("*.zip"))]
    (tmp_path / "sums.md5").write_text("\n".join(sums) + "\n")
    return folder


def get(mirror: Path, *options: str, sums: str = "sums.md5", free: str = "99999999") -> subprocess.CompletedProcess:
    """Run the script in the mirror's parent; `free`: kilobytes that df is to report."""
    folder = mirror.parent
    environment = {**os.environ, "COCO_URL": mirror.as_uri(), "PYTHON": sys.executable}
    (folder / "df").write_text(f'#!/bin/sh\necho head\necho "disk 1 1 {free} 1% /"\n')
    (folder / "df").chmod(0o755)
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    command = ["bash", str(SCRIPT), "--checksums", str(folder / sums), *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_images_annotations_and_labels_arrive_and_a_second_run_does_nothing(mirror):
    done = get(mirror)
    assert done.returncode == 0, done.stderr
    coco = mirror.parent / "coco"
    for split in ("train2017", "val2017"):
        assert len(list((coco / "images" / split).glob("*.jpg"))) == 2
        assert (coco / "annotations" / f"instances_{split}.json").is_file()
        assert (coco / "labels" / split / "000000000001.txt").read_text() == "0 0.2 0.35 0.2 0.5\n"
    assert not (coco / "annotations" / "captions_val2017.json").exists()
    assert not list(coco.glob("*.zip"))
    shutil.rmtree(mirror)  # nothing is asked of the server any more
    again = get(mirror)
    assert again.returncode == 0 and "downloading" not in again.stdout
    assert "val2017: 2 images, 2 label files" in again.stdout  # an image without objects has an empty one


def test_a_partial_download_is_continued_and_a_df_that_cannot_be_read_ends_nothing(mirror):
    coco = mirror.parent / "coco"
    coco.mkdir()
    whole = (mirror / "zips/val2017.zip").read_bytes()
    (coco / "val2017.zip.part").write_bytes(whole[:1000])
    done = get(mirror, "--val-only", "--keep-zips", free="-")
    assert done.returncode == 0 and "is not readable: not checked" in done.stderr, done.stderr
    assert (coco / "val2017.zip").read_bytes() == whole
    assert not (coco / "images" / "train2017").exists()


def test_a_damaged_archive_is_refused_and_removed(mirror):
    archive = mirror / "zips/val2017.zip"
    archive.write_bytes(archive.read_bytes()[:-100] + bytes(100))
    done = get(mirror, "--val-only")
    assert done.returncode == 2
    assert "val2017.zip is damaged and was removed" in done.stderr
    assert not list((mirror.parent / "coco").glob("*.zip*"))


def test_an_archive_without_checksum_is_tested_by_unzip_and_labels_that_are_there_already_are_kept(mirror):
    (mirror.parent / "none.md5").write_text("")
    mine = mirror.parent / "good" / "labels" / "val2017" / "000000000002.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("0 0.5 0.5 1 1\n")
    assert get(mirror, "--val-only", "--dir", "good", sums="none.md5").returncode == 0
    assert [p.read_text() for p in mine.parent.iterdir()] == ["0 0.5 0.5 1 1\n"]
    archive = mirror / "zips/val2017.zip"
    archive.write_bytes(archive.read_bytes()[:-200])
    done = get(mirror, "--val-only", "--dir", "bad", sums="none.md5")
    assert done.returncode == 2 and "damaged" in done.stderr


@pytest.mark.parametrize(
    "options, line",
    [
        (["--vall-only"], "unknown option --vall-only (see --help)"),
        (["--val-only", "--dir"], "--dir needs a value: a folder"),
        (["--val-only", "--checksums"], "--checksums needs a value: a file"),
        ([], "run this command again"),
    ],
)
def test_wrong_options_and_a_missing_server_are_told_in_one_line(mirror, options, line):
    shutil.rmtree(mirror)
    done = get(mirror, *options)
    assert done.returncode == 2 and line in done.stderr and (not options or done.stderr == f"error: {line}\n")


GB = 1 << 20  # in kilobytes


def test_the_space_of_what_is_still_to_come_is_asked_for(mirror):
    done = get(mirror, free=str(41 * GB))
    assert done.returncode == 2
    assert done.stderr.startswith("error: only 41 GB free in ./coco, about 42 GB needed: free some space")
    done = get(mirror, "--val-only", free=str(3 * GB - 99))  # the empty folders count
    assert done.returncode == 2 and "only 2 GB free in ./coco, about 3 GB needed" in done.stderr
    assert get(mirror, "--val-only", free=str(3 * GB)).returncode == 0
    done = get(mirror, free=str(38 * GB))  # annotations and validation are done: only training remains
    assert done.returncode == 2 and "only 38 GB free in ./coco, about 39 GB needed" in done.stderr


def test_what_is_there_already_is_not_asked_for_again(mirror):
    begun = mirror.parent / "coco" / "images" / "val2017" / "000000000001.jpg"
    begun.parent.mkdir(parents=True)
    begun.touch()
    os.truncate(begun, 3 << 29)  # 1.5 GB, of which the disk holds nothing
    done = get(mirror, "--val-only", free=str(GB))
    assert done.returncode == 2 and "about 2 GB needed" in done.stderr
    done = get(mirror, "--val-only", free=str(3 * GB // 2 + 99))
    assert done.returncode == 0, done.stderr
    assert begun.read_bytes() == picture(1)  # unpacked again


def test_the_shipped_checksums_name_every_archive():
    lines = [line.split() for line in (ROOT / "scripts/coco.md5").read_text().splitlines()]
    assert [name for _, name in lines] == ["train2017.zip", "val2017.zip", "annotations_trainval2017.zip"]
    assert all(len(md5) == 32 and int(md5, 16) for md5, _ in lines)
