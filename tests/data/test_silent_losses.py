"""What would be trained wrongly is named: misread boxes, annotations that fit no image, leaked images."""

import json
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.data.formats.drawn_sets import write_coco, write_voc, write_yolo
from tests.data.formats.test_train import train
from tests.data.small_set import POLYGON, make_set
from yolov7fast.core.errors import UserError
from yolov7fast.data.caches.label_cache import load_labels
from yolov7fast.data.checks.check_findings import CHECKS, ERROR
from yolov7fast.data.checks.examine import examine
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.formats.recognise import recognise
from yolov7fast.data.formats.write_dataset import write_as
from yolov7fast.data.labels import MOST_OBJECTS, check_pair, find_images
from yolov7fast.data.quick_check import same_images

BOX = "0 0.078 0.245 0.153 0.223\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("YOLOV7FAST_CACHE", str(tmp_path / "cache"))


def findings(data) -> dict[str, int]:
    return {finding.check: finding.count for finding in examine(data).report.findings}


def val_images(root: Path) -> list[str]:
    data = load_data_yaml(str(root))
    return [Path(p).name for p in LoadImagesAndLabels(data.split("val"), 96, 4).img_files]


# --- boxes among polygons ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True])
def test_boxes_among_polygons_are_named_at_every_start_and_read_as_upstream_does(tmp_path, caplog, cached):
    source = make_set(tmp_path, 3, lambda k: f"{BOX}{POLYGON}2{BOX[1:]}" if k == 1 else BOX)
    for _ in range(1 + cached):
        caplog.clear()
        table = load_labels(find_images(source), source, "train: ")
    (line,) = [message for message in caplog.messages if "misread" in message]
    first = tmp_path / "labels/t/1.txt:1"
    assert line.startswith("train: 2 box lines in 1 label file misread, as upstream does, because")
    assert f"(first: {first})" in line and "yolov7fast data convert" in line and "--strict-labels" in line
    assert len(table.img_files) == 3 and table.first_loss is not None and table.first_loss.place == str(first)
    np.testing.assert_allclose(table.labels[1][0], [0, 0.1155, 0.234, 0.075, 0.022], atol=1e-6)


def test_conversion_writes_such_boxes_as_they_were_meant(tmp_path):
    root = write_yolo(tmp_path / "set")
    label = next(path for path in sorted((root / "train/labels").iterdir()))
    label.write_text(BOX + POLYGON)
    entry = write_as("yolo", recognise(root).read(), tmp_path / "out").entry
    (label,) = (entry.parent / "labels/train").glob(label.name)
    checked = check_pair(str(next((entry.parent / "images/train").glob(f"{label.stem}.*"))), str(label))
    assert checked.labels is not None and checked.problems == []
    np.testing.assert_allclose(checked.labels[0], [float(word) for word in BOX.split()], atol=1e-6)


@pytest.mark.parametrize("text", [BOX + POLYGON, "0 0.5 0.5 0.2\n"], ids=["misread", "left out"])
def test_strict_labels_refuses_to_train(tmp_path, text):
    root = write_yolo(tmp_path / "set")
    label = sorted((root / "train/labels").iterdir())[1]
    label.write_text(text)
    with pytest.raises(UserError, match=rf"--strict-labels: .*{label.name}:1: .* yolov7fast data check"):
        train(tmp_path, root, "--strict-labels")


# --- other formats ----------------------------------------------------------------------------------------------------


def test_an_image_whose_voc_file_cannot_be_read_is_left_out_and_no_background(tmp_path, caplog):
    root = write_voc(tmp_path / "set")
    broken = root / "Annotations/009.xml"
    broken.write_text(broken.read_text()[:100])
    caplog.set_level("INFO")
    assert val_images(root) == ["008.png", "010.png", "011.png"]
    assert f"1 x image left out: unreadable label, first {broken}:3: " in caplog.text
    assert "objects could not be read" not in caplog.text
    assert findings(root)["unreadable label"] == 1
    written = write_as("yolo", recognise(root).read(), tmp_path / "out")
    assert written.changes["image left out: unreadable label"] == 1
    assert not list((tmp_path / "out").rglob("009.*"))


def edit_coco(root: Path, change) -> None:
    path = next((root / "annotations").glob("instances_val*.json"))
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "shared, kind, said",
    [("id", "image id given twice", "have the id"), ("file_name", "image named twice", "2 entries name")],
)
def test_coco_entries_that_share_an_id_or_an_image_are_an_error_and_left_out(tmp_path, caplog, shared, kind, said):
    """Each entry would be trained with the objects of the other as background."""
    root = write_coco(tmp_path / "set")

    def share(content):
        content["images"][1][shared] = content["images"][0][shared]

    edit_coco(root, share)
    caplog.set_level("INFO")
    assert val_images(root) == ["010.png", "011.png"]
    assert f"2 x image left out: {kind}" in caplog.text and said in caplog.text
    assert findings(root)[kind] == 2 and CHECKS[kind].severity == ERROR


def test_a_coco_image_of_too_many_objects_is_an_error_and_left_out(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("yolov7fast.data.formats.annotated_set.MOST_OBJECTS", 1)
    root = write_coco(tmp_path / "set")
    caplog.set_level("INFO")
    assert val_images(root) == ["008.png", "009.png", "011.png"]
    assert "too many objects" in caplog.text and "2 objects; at most 1 are read" in caplog.text
    assert findings(root)["too many objects"] >= 1


@pytest.mark.parametrize("factor, odd", [((2, 2), 0), ((2, 1), 1)], ids=["scaled", "another aspect ratio"])
def test_sizes_of_another_aspect_ratio_are_reported(tmp_path, caplog, factor, odd):
    root = write_coco(tmp_path / "set")

    def resize(content):
        image = content["images"][0]
        image["width"], image["height"] = image["width"] * factor[0], image["height"] * factor[1]

    edit_coco(root, resize)
    caplog.set_level("INFO")
    load_data_yaml(str(root))
    assert ("1 x image with another aspect ratio than the annotation says" in caplog.text) == bool(odd)
    assert findings(root).get("size differs from annotation", 0) == odd


# --- images -----------------------------------------------------------------------------------------------------------


def test_a_16_bit_image_of_12_bit_values_is_named_by_the_check(tmp_path):
    source = Path(make_set(tmp_path, 3))
    bright = np.random.default_rng(0).integers(0, 4096, (48, 64, 3)).astype(np.uint16)
    cv2.imwrite(str(source / "0.png"), bright)
    cv2.imwrite(str(source / "1.png"), bright * 16)
    (tmp_path / "data.yaml").write_text(f"train: {source}\nnames: [a, b, c]\n")
    (finding,) = [f for f in examine(tmp_path / "data.yaml").report.findings if "16-bit" in f.check]
    assert [Path(place.file).name for place in finding.places] == ["0.png"]
    assert "of which 12 are used" in finding.places[0].text and "2 ** (16 - used bits)" in finding.remedy


@pytest.mark.parametrize("how", ["same folder", "copies", "one differs"])
def test_validation_images_that_are_all_training_images_are_one_warning(tmp_path, how, caplog):
    source = Path(make_set(tmp_path, 40))
    other = tmp_path / "images/v"
    if how != "same folder":
        other.mkdir()
        for k in range(20):
            shutil.copy(source / f"{k}.png", other / f"copy{k}.png")
        shutil.copytree(tmp_path / "labels/t", tmp_path / "labels/v")
    if how == "one differs":
        image = cv2.imread(str(other / "copy10.png"))
        cv2.imwrite(str(other / "copy10.png"), 255 - image)
    train_set = LoadImagesAndLabels(str(source), 64)
    val_set = train_set if how == "same folder" else LoadImagesAndLabels(str(other), 64)
    text = same_images(train_set, val_set)
    assert bool(text) == (how != "one differs")
    assert not text or "16 of 16 compared validation images are training images too" in text


# --- label files without end ------------------------------------------------------------------------------------------


def too_many_lines(label: Path) -> str:
    label.write_text(BOX * (MOST_OBJECTS + 1))
    return f"{MOST_OBJECTS + 1:,} lines; at most {MOST_OBJECTS:,} are read"


def too_many_bytes(label: Path) -> str:
    with open(label, "wb") as file:
        file.truncate(1 << 40)  # a sparse file of a terabyte
    return "1,099,511,627,776 bytes; at most 67,108,864 are read"


def no_end(label: Path) -> str:
    label.unlink()
    os.mkfifo(label)
    return "not a regular file"


def of_the_kernel(label: Path) -> str:
    label.unlink()
    label.symlink_to("/proc/self/environ")
    return "not a regular file"


@pytest.mark.parametrize("make", [too_many_lines, too_many_bytes, no_end, of_the_kernel])
def test_a_label_file_without_end_leaves_its_image_out_with_a_message(tmp_path, make):
    source = make_set(tmp_path, 2)
    wanted = make(tmp_path / "labels/t/0.txt")
    for keep_partial in (False, True):
        checked = check_pair(f"{source}/0.png", str(tmp_path / "labels/t/0.txt"), keep_partial)
        assert checked.labels is None and [problem.text for problem in checked.problems] == [wanted]
    (tmp_path / "data.yaml").write_text(f"train: {source}\nnames: [a, b, c]\n")
    (finding,) = [f for f in examine(tmp_path / "data.yaml").report.findings if f.severity == "error"]
    assert finding.places[0].text == wanted
