"""COCO rows, annotation files, ground truth from labels, pycocotools' figures."""

import json
import logging
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.evaluation.test_detection_matching import bccd_batch
from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.evaluation.coco_metrics import (
    GroundTruth,
    coco80_to_coco91_class,
    coco_stats,
    detection_rows,
    find_annotations,
    ground_truth,
)

NAMES = ["RBC", "WBC", "Platelets"]


def test_category_map_is_the_recorded_one(golden):
    assert coco80_to_coco91_class() == golden("eval_config.json")["coco80_to_91"]


def test_rows_are_as_recorded(golden):
    figures = golden("eval_misc.json")["coco_rows"]
    for i, want in enumerate(figures["rows"]):
        categories = coco80_to_coco91_class() if figures["is_coco"][i] else list(range(80))
        row = np.array([[*figures["xyxy"][i], figures["scores"][i], figures["classes"][i]]], np.float32)
        got = detection_rows(f"folder/{figures['stems'][i]}.jpg", row, GroundTruth(None, "", categories))
        assert got == [want]


def data_set(files, shapes, labels) -> SimpleNamespace:
    """The images of an evaluation, as the loader has them."""
    return SimpleNamespace(img_files=files, shapes=shapes, labels=labels)


def bccd_images(g):
    """The recorded labels in the form a data set has them: normalised to the native image."""
    batch = bccd_batch(g)
    size = np.array([640, 480], np.float64)
    labels = []
    for i in range(len(g["stems"])):
        rows = batch.labels[batch.label_image == i].astype(np.float64)
        low, high = rows[:, 1:3] / size, rows[:, 3:5] / size
        labels.append(np.concatenate((rows[:, :1], (low + high) / 2, high - low), 1))
    return data_set([f"images/{stem}.jpg" for stem in g["stems"]], np.tile(size, (len(labels), 1)), labels)


@pytest.fixture(scope="module")
def bccd_rows(golden):
    g = golden("eval_bccd.npz")
    truth = ground_truth(None, bccd_images(g), NAMES, is_coco=False)
    parts = bccd_batch(g).split(len(g["stems"]))
    return truth, [row for stem, dets in zip(g["stems"], parts) for row in detection_rows(f"{stem}.jpg", dets, truth)]


def test_rows_of_recorded_detections(golden, bccd_rows):
    recorded, rows = golden("eval_bccd.json")["coco_json"], bccd_rows[1]
    assert len(rows) == recorded["rows"]
    assert rows[:5] == recorded["first"] and rows[-1] == recorded["last"]
    assert sum(r["score"] for r in rows) == pytest.approx(recorded["score_sum"])
    assert sum(r["bbox"][2] * r["bbox"][3] for r in rows) == pytest.approx(recorded["area_sum"])


def test_ground_truth_from_labels(golden, bccd_rows):
    dataset, recorded = bccd_rows[0].dataset, golden("eval_bccd.json")["gt_built_from_labels"]
    assert (len(dataset["images"]), len(dataset["annotations"])) == (recorded["images"], recorded["annotations"])
    first, want = dict(dataset["annotations"][0]), dict(recorded["first_annotation"])
    np.testing.assert_allclose(first.pop("bbox"), want.pop("bbox"), atol=1e-3)
    assert first.pop("area") == pytest.approx(want.pop("area"), rel=1e-5)
    assert first == want
    assert dataset["categories"] == [{"id": i, "name": name} for i, name in enumerate(NAMES)]


def test_twelve_numbers_of_recorded_detections(golden, bccd_rows, capsys):
    stats = coco_stats(*deepcopy(bccd_rows))  # pycocotools writes into both
    want = golden("eval_bccd.json")["pycocotools"]["stats"]
    np.testing.assert_allclose(list(stats.values()), want, atol=2e-4)  # labels here went through float32
    assert (stats["AP"], stats["AP50"]) == (pytest.approx(0.5053, abs=2e-4), pytest.approx(0.8317, abs=2e-4))
    assert capsys.readouterr().out.count("Average") == 12


# --- annotation files -------------------------------------------------------------------------------------------------


def tree(tmp_path: Path) -> Path:
    for folder in ("images/val2017", "annotations"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "val2017.txt").touch()
    (tmp_path / "annotations/instances_val2017.json").touch()
    return tmp_path


@pytest.mark.parametrize(
    "form", ["images/val2017", "images/val2017/", "val2017.txt", ["images/other", "images/val2017"]]
)
def test_annotations_are_found_from_the_val_entry(tmp_path, form):
    root = tree(tmp_path)
    val = [str(root / f) for f in form] if isinstance(form, list) else f"{root}/{form}"
    data = DataYaml("d.yaml", 1, ["a"], val=val)
    assert find_annotations(data, "val") == str(root / "annotations/instances_val2017.json")


def test_given_annotations_win_and_must_exist(tmp_path):
    root = tree(tmp_path)
    mine, keyed = root / "mine.json", root / "keyed.json"
    mine.touch(), keyed.touch()
    data = DataYaml("d.yaml", 1, ["a"], val=str(root / "images/val2017"), annotations=str(keyed))
    assert find_annotations(data, "val", str(mine)) == str(mine)
    assert find_annotations(data, "val") == str(keyed)
    with pytest.raises(UserError, match=r"--annotations: nowhere\.json does not exist"):
        find_annotations(data, "val", "nowhere.json")
    assert find_annotations(DataYaml("d.yaml", 1, ["a"], val="images"), "val") is None


def annotated(path: Path, images, categories, annotations=()) -> str:
    document = {
        "images": [{"id": i, "file_name": f"{stem}.jpg", "width": w, "height": h} for i, stem, w, h in images],
        "categories": [{"id": i, "name": name} for i, name in categories],
        "annotations": [
            {"id": n, "image_id": i, "category_id": c, "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
            for n, (i, c, b) in enumerate(annotations, 1)
        ],
    }
    path.write_text(json.dumps(document))
    return str(path)


def one_image(w=320, h=240, stem="000000000139") -> SimpleNamespace:
    return data_set([f"x/{stem}.jpg"], np.array([[w, h]], float), [np.array([[1, 0.5, 0.5, 0.2, 0.2]])])


@pytest.mark.parametrize("names", [("dog", "Cat"), ("x", "y")], ids=["by name", "else in the order of ids"])
def test_categories_of_the_file_are_found(tmp_path, names):
    path = annotated(tmp_path / "a.json", [(139, "000000000139", 320, 240)], list(zip((7, 3), names)))
    assert ground_truth(path, one_image(), ["cat", "dog"], False).categories == [3, 7]


def test_a_shrunken_copy_is_scaled_to_the_recorded_size(tmp_path):
    path = annotated(
        tmp_path / "a.json", [(139, "000000000139", 640, 480)], [(1, "a"), (2, "b")], [(139, 2, [100, 100, 50, 40])]
    )
    truth = ground_truth(path, one_image(), ["a", "b"], False)
    rows = detection_rows("x/000000000139.jpg", np.array([[50, 50, 75, 70, 0.9, 1]], np.float32), truth)
    assert rows == [{"image_id": 139, "category_id": 2, "bbox": [100.0, 100.0, 50.0, 40.0], "score": 0.9}]
    assert coco_stats(truth, rows)["AP"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "images, categories, reason",
    [
        ([(139, "000000000139", 640, 640)], [(1, "a"), (2, "b")], "is 320 x 240, recorded as 640 x 640"),
        ([(5, "another", 320, 240)], [(1, "a"), (2, "b")], "names none of the evaluated images"),
        ([(139, "000000000139", 320, 240)], [(1, "a")], "1 category, the data yaml 2 classes"),
    ],
)
def test_a_file_that_does_not_fit_gives_way_to_the_labels(tmp_path, caplog, images, categories, reason):
    truth = ground_truth(annotated(tmp_path / "a.json", images, categories), one_image(), ["a", "b"], False)
    assert truth.source == "the labels" and truth.categories == [0, 1]
    assert reason in caplog.text
    (tmp_path / "a.json").write_text("{")
    assert ground_truth(str(tmp_path / "a.json"), one_image(), ["a", "b"], False).source == "the labels"
    assert "a.json is not used" in caplog.text


def test_images_unknown_to_the_file_are_left_out(tmp_path, caplog):
    path = annotated(tmp_path / "a.json", [(1, "one", 320, 240)], [(0, "a")], [(1, 0, [10, 10, 20, 20])])
    images = data_set(["one.jpg", "two.jpg"], np.array([[320, 240]] * 2, float), [np.zeros((0, 5))] * 2)
    truth = ground_truth(path, images, ["a"], False)
    rows = [
        row for file in images.img_files for row in detection_rows(file, np.array([[10, 10, 30, 30, 0.9, 0]]), truth)
    ]
    assert "1 of 2 images are not in" in caplog.text
    assert coco_stats(truth, rows)["AP"] == pytest.approx(1.0)


def test_coco_is_known_by_its_names_not_by_the_yaml(golden):
    names = golden("eval_config.json")["coco_names"]
    labels = data_set(["1.jpg"], np.array([[10, 10]], float), [np.array([[79, 0.5, 0.5, 1, 1]])])
    assert ground_truth(None, labels, names, False).dataset["annotations"][0]["category_id"] == 90
    other = [f"class {i}" for i in range(80)]
    assert ground_truth(None, labels, other, False).categories == list(range(80))
    assert ground_truth(None, labels, other, True).categories == coco80_to_coco91_class()


def test_nothing_in_there_ends_a_run(monkeypatch, caplog, tmp_path):
    truth = ground_truth(None, one_image(), ["a", "b"], False)
    rows = [{"image_id": 139, "category_id": 1, "bbox": [1, 1, 5, 5], "score": 0.5}]
    assert set(coco_stats(truth, []).values()) == {0.0}
    assert coco_stats(truth, [{**rows[0], "bbox": "broken"}]) is None
    assert "pycocotools failed" in caplog.text
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    assert coco_stats(truth, rows) is None
    assert "our own metrics are kept" in caplog.messages[-1] and "pycocotools.coco" in caplog.messages[-1]
    unlabelled = data_set(["1.jpg"], np.array([[10, 10]], float), [np.zeros((0, 5))])
    with caplog.at_level(logging.WARNING):
        assert coco_stats(ground_truth(None, unlabelled, ["a"], False), rows) is None
    assert "there are no labels" in caplog.text
