"""`--data` with any format: a data YAML in the cache, nothing in the user's folders, a split where there is none."""

import json
import logging
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from tests.data.formats.drawn_sets import (
    NAMES,
    boxes_of,
    draw,
    splits,
    write_coco,
    write_csv,
    write_voc,
    write_yolo,
    yolo_text,
)
from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.formats.prepare import prepare, split_by_hash

WRITERS = {
    "yolo": write_yolo,
    "coco": write_coco,
    "voc": write_voc,
    "csv": write_csv,
}


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file with size and time."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            status = os.stat(os.path.join(path, name))
            found[os.path.join(path, name)] = (status.st_size, status.st_mtime_ns)
    return found


@pytest.mark.parametrize("form", WRITERS)
def test_the_data_set_of_training_is_the_one_that_was_drawn_and_the_users_folder_stays_as_it_was(tmp_path, form):
    root = WRITERS[form](tmp_path / "set")
    before = tree(root)
    data = load_data_yaml(str(root))
    assert (data.nc, data.names) == (3, NAMES)
    for split, indices in splits().items():
        dataset = LoadImagesAndLabels(data.split(split), 96, 4)
        assert [Path(p).name for p in dataset.img_files] == [f"{i:03}.png" for i in indices]
        for i, labels, (w, h) in zip(indices, dataset.labels, dataset.shapes):
            wanted = np.array(boxes_of(i)).reshape(-1, 5)
            corners = np.concatenate((labels[:, 1:3] - labels[:, 3:] / 2, labels[:, 1:3] + labels[:, 3:] / 2), 1)
            np.testing.assert_allclose(corners * (w, h, w, h), wanted[:, 1:], atol=1e-4)  # float32 labels
            assert labels[:, 0].tolist() == wanted[:, 0].tolist()
    assert tree(root) == before


def test_what_was_found_is_said_in_one_line_and_categories_are_listed(tmp_path, caplog):
    root = write_coco(tmp_path / "set")
    with caplog.at_level(logging.INFO):
        prepare(root)
    found, mapping = caplog.messages
    start = f"data: COCO JSON (annotations/instances_*.json) in {root}: train 8 images, val 4 images, 3 classes"
    assert found.startswith(start)
    assert mapping == "data: category ids -> classes: 3 (bird) -> 0, 7 (cat) -> 1, 20 (zebra) -> 2"


def test_a_second_use_converts_nothing_and_a_changed_set_gets_a_folder_of_its_own(tmp_path, own_cache):
    root = write_voc(tmp_path / "set")
    first = prepare(root)
    before = tree(own_cache / "sets")
    assert prepare(root) == first
    assert tree(own_cache / "sets") == before
    label = root / "Annotations" / "000.xml"
    label.write_text(label.read_text().replace("bird", "cat"))
    second = prepare(root)
    assert second != first
    assert before.items() <= tree(own_cache / "sets").items()  # a run that is under way keeps its files


def test_coco_results_are_judged_by_the_users_own_annotation_file(tmp_path):
    root = write_coco(tmp_path / "set")
    assert load_data_yaml(root).annotations == str(root / "annotations" / "instances_val2017.json")


def test_folders_called_images_on_the_way_do_not_hide_the_labels(tmp_path):
    """upstream's rule replaces the first /images/ of the path."""
    root = write_yolo(tmp_path / "images" / "set")
    dataset = LoadImagesAndLabels(load_data_yaml(root).split("train"), 96, 4)
    assert sum(map(len, dataset.labels)) == sum(len(boxes_of(i)) for i in splits()["train"])


def test_images_that_are_missing_are_counted_and_named(tmp_path, caplog):
    root = write_coco(tmp_path / "set")
    (root / "train2017" / "001.png").unlink()
    with caplog.at_level(logging.INFO):
        data = load_data_yaml(root)
    assert any("1 x image left out: missing image, first" in message for message in caplog.messages)
    assert len(Path(data.train).read_text().splitlines()) == 7
    for image in (root / "train2017").iterdir():
        image.unlink()
    for image in (root / "val2017").iterdir():
        image.unlink()
    with pytest.raises(
        UserError, match=r"none of the 12 images .* can be used \(12 x .* missing image, first .*000\.png"
    ):
        prepare(root)


def test_hostile_names_stay_inside_the_cache(tmp_path, own_cache):
    root = tmp_path / "set"
    (root / "annotations").mkdir(parents=True)
    odd = "a\nb\x1b[31m$\\frac{$<script>.png"
    draw(0, root / "images" / odd)
    draw(1, root / "images" / "x.png")
    content = {
        "images": [
            {"id": 1, "file_name": odd, "width": 96, "height": 64},
            {"id": 2, "file_name": "../../../images/x.png", "width": 64, "height": 96},
        ],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 40]}],
        "categories": [{"id": 1, "name": "<script>\x1b[2J"}],
    }
    (root / "annotations" / "instances_train.json").write_text(json.dumps(content))
    (root / "annotations" / "instances_val.json").write_text(json.dumps(content))
    data = load_data_yaml(root)
    dataset = LoadImagesAndLabels(data.split("train"), 96, 2)
    assert sorted(map(len, dataset.labels)) == [0, 1]
    assert all(str(own_cache) in path and "\n" not in path for path in dataset.img_files)


# --- a missing split --------------------------------------------------------------------------------------------------


def without_val(root: Path, n: int = 30) -> Path:
    (root / "labels").mkdir(parents=True)
    for i in range(n):
        draw(i, root / "images" / f"{i:03}.png")
        (root / "labels" / f"{i:03}.txt").write_text(yolo_text(i))
    (root / "classes.txt").write_text("\n".join(NAMES))
    return root


def lists(data) -> tuple[list[str], list[str]]:
    return tuple(
        [Path(line).name for line in Path(source).read_text().splitlines()] for source in (data.train, data.val)
    )


def test_without_validation_images_the_error_names_the_flag(tmp_path):
    with pytest.raises(UserError, match=r"no validation images.*--val-fraction 0\.1"):
        prepare(without_val(tmp_path / "set"))
    with pytest.raises(UserError, match="already has a validation split"):
        prepare(write_yolo(tmp_path / "other"), 0.1)
    with pytest.raises(UserError, match="between 0 and 1"):
        prepare(tmp_path / "set", 1.5)


def test_val_fraction_splits_by_names_alone_and_says_how(tmp_path, caplog):
    root = without_val(tmp_path / "set")
    with caplog.at_level(logging.INFO):
        train, val = lists(load_data_yaml(root, val_fraction=0.2))
    assert (len(train), len(val)) == (24, 6)
    assert not set(train) & set(val)
    assert "data: --val-fraction 0.2: 24 train, 6 val images, by a hash of file names" in caplog.messages
    moved = tmp_path / "elsewhere"
    root.rename(moved)
    assert lists(load_data_yaml(moved, val_fraction=0.2)) == (train, val)


def test_val_fraction_works_for_a_data_yaml_and_for_converted_formats(tmp_path):
    root = write_coco(tmp_path / "coco", train=20, val=2)
    train = root / "annotations" / "instances_train2017.json"
    assert [len(part) for part in lists(load_data_yaml(train, val_fraction=0.1))] == [18, 2]
    root = write_yolo(tmp_path / "yolo", train=20, val=2)
    (root / "data.yaml").write_text(yaml.safe_dump({"train": "train/images", "names": NAMES}))
    assert [len(part) for part in lists(load_data_yaml(root / "data.yaml", val_fraction=0.1))] == [18, 2]


def test_duplicates_of_an_image_stay_on_one_side(tmp_path, caplog):
    """The same image at another size and quality, under names whose hashes lie on different sides."""
    root = without_val(tmp_path / "set", 20)
    for i in range(20):
        image = cv2.imread(str(root / "images" / f"{i:03}.png"))
        again = cv2.resize(image, None, fx=1.5, fy=1.5)
        cv2.imwrite(str(root / "images" / f"copy{i:03}.jpg"), again, [cv2.IMWRITE_JPEG_QUALITY, 80])
        (root / "labels" / f"copy{i:03}.txt").write_text(yolo_text(i))
    with caplog.at_level(logging.INFO):
        train, val = lists(load_data_yaml(root, val_fraction=0.3))
    sides = [{name[-7:-4] for name in part} for part in (train, val)]
    assert not sides[0] & sides[1]
    assert len(val) == 12
    assert any("40 images with near duplicates are kept on one side" in message for message in caplog.messages)


def test_one_more_image_moves_hardly_any_other():
    names = [f"{i}.jpg" for i in range(1000)]
    none = np.zeros((0, 2), np.int64)
    before = {names[i] for i in split_by_hash(names, 0.1, none)[1]}
    after = {[*names, "new.jpg"][i] for i in split_by_hash([*names, "new.jpg"], 0.1, none)[1]}
    assert len(before) == 100
    assert len(before ^ after) <= 2


def test_a_set_that_is_one_image_over_and_over_cannot_be_split():
    pairs = np.array([(0, 1), (1, 2)])
    for names, message in ((["a", "b", "c"], "duplicates of each other"), (["a"], "at least 2"), ([], "at least 2")):
        with pytest.raises(UserError, match=message):
            split_by_hash(names, 0.3, pairs[: len(names) - 1])
    assert split_by_hash(["a", "b", "c", "d"], 0.1, pairs)[1] == [3]


def test_names_that_no_list_can_hold_are_left_out_and_counted(tmp_path, caplog):
    root = write_yolo(tmp_path / "set")
    source = (root / "train" / "images" / "000.png").read_bytes()
    for name in (b"a\nb.png", b"\xff\xfe.png"):
        with open(os.path.join(os.fsencode(root), b"train", b"images", name), "wb") as file:
            file.write(source)
    with caplog.at_level(logging.INFO):
        data = load_data_yaml(root)
    assert (
        "data: 2 train images are left out: their names hold line breaks or bytes that are not text" in caplog.messages
    )
    assert len(Path(data.train).read_text().splitlines()) == 8
