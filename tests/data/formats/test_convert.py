"""Writing: any format to any other, and back to the same boxes."""

import json
from pathlib import Path

import numpy as np
import pytest
import supervision as sv

from tests.data.formats.drawn_sets import NAMES, SIZES, boxes_of, splits, write_coco, write_csv, write_voc, write_yolo
from yolov7fast.core.errors import UserError
from yolov7fast.data.formats.annotated_set import AnnotatedSet
from yolov7fast.data.formats.recognise import recognise
from yolov7fast.data.formats.write_dataset import write_as

WRITERS = {"yolo": write_yolo, "coco": write_coco, "voc": write_voc, "csv": write_csv}


TOLERANCE = 1e-6  # of the image's side


def ours(annotated: AnnotatedSet) -> dict[str, list[tuple]]:
    """Sorted (class name, box as fractions) of every image, by file name."""
    return {
        Path(s.image).name: sorted((annotated.names[c], *box) for c, box in zip(s.classes, s.fractions.tolist()))
        for s in annotated.samples
    }


def theirs(*read: sv.DetectionDataset) -> dict[str, list[tuple]]:
    found = {}
    for data in read:
        for path, image, detections in data:
            h, w = image.shape[:2]
            boxes = np.asarray(detections.xyxy, np.float64) / (w, h, w, h)
            names = [data.classes[c] for c in detections.class_id]
            found[Path(path).name] = sorted((n, *box) for n, box in zip(names, boxes.tolist()))
    return found


def assert_equal(a: dict[str, list[tuple]], b: dict[str, list[tuple]]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert [row[0] for row in a[name]] == [row[0] for row in b[name]], name
        np.testing.assert_allclose(
            np.array([row[1:] for row in a[name]]), np.array([row[1:] for row in b[name]]), rtol=0, atol=TOLERANCE
        )


def drawn() -> dict[str, list[tuple]]:
    found = {}
    for i in (i for indices in splits().values() for i in indices):
        w, h = SIZES[i % len(SIZES)]
        found[f"{i:03}.png"] = sorted((NAMES[c], x1 / w, y1 / h, x2 / w, y2 / h) for c, x1, y1, x2, y2 in boxes_of(i))
    return found


@pytest.mark.parametrize("source", WRITERS)
@pytest.mark.parametrize("form", ["yolo", "coco", "voc"])
def test_every_format_is_written_as_every_other_with_the_same_boxes(tmp_path, source, form):
    annotated = recognise(WRITERS[source](tmp_path / "set")).read()
    written = write_as(form, annotated, tmp_path / "out", images="link")
    again = recognise(tmp_path / "out").read()
    assert again.names == NAMES
    assert {split: len(samples) for split, samples in again.splits.items()} == {"train": 8, "val": 4}
    assert_equal(ours(again), drawn())
    assert written.entry.exists()


@pytest.mark.parametrize("form", ["yolo", "coco", "voc"])
def test_what_is_written_is_read_by_supervision(tmp_path, form):
    root = tmp_path / "out"
    write_as(form, recognise(write_coco(tmp_path / "set")).read(), root)
    read, sets = sv.DetectionDataset, ("train", "val")
    found = {
        "yolo": lambda: [read.from_yolo(f"{root}/images/{s}", f"{root}/labels/{s}", f"{root}/data.yaml") for s in sets],
        "coco": lambda: [read.from_coco(f"{root}/images/{s}", f"{root}/annotations/instances_{s}.json") for s in sets],
        "voc": lambda: [read.from_pascal_voc(f"{root}/JPEGImages", f"{root}/Annotations")],
    }
    assert_equal(theirs(*found[form]()), drawn())


def test_polygons_stay_polygons_and_crowds_stay_crowds(tmp_path):
    root = write_coco(tmp_path / "set")
    file = root / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    content["annotations"][0] |= {"iscrowd": 1, "segmentation": {"size": [64, 96], "counts": [0, 64 * 96]}}
    file.write_text(json.dumps(content))
    annotated = recognise(root).read()
    assert [int(s.crowd.sum()) for s in annotated.splits["train"]][:2] == [1, 0]
    write_as("coco", annotated, tmp_path / "coco", images="none")
    again = json.loads((tmp_path / "coco" / "annotations" / "instances_train.json").read_text())
    assert [a["iscrowd"] for a in again["annotations"]][:2] == [1, 0]
    assert all(len(a["segmentation"][0]) == 8 for a in again["annotations"][1:])
    written = write_as("yolo", annotated, tmp_path / "yolo", images="none")
    assert written.changes["crowd region left out"] == 1
    assert (tmp_path / "yolo" / "labels" / "train" / "000.txt").read_text() == ""
    assert len((tmp_path / "yolo" / "labels" / "train" / "001.txt").read_text().split()) == 2 * 9
    boxes = write_as("yolo", annotated, tmp_path / "boxes", images="none", boxes_only=True)
    assert len((boxes.entry.parent / "labels" / "train" / "001.txt").read_text().split()) == 2 * 5


def test_what_training_does_not_take_is_left_out_or_cut_and_counted(tmp_path):
    root = write_coco(tmp_path / "set")
    file = root / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    first = content["annotations"][0]
    extra = [[0, 0, 0, 5], [-10, -10, 30, 30], first["bbox"]]
    content["annotations"] += [{**first, "id": 100 + i, "bbox": box, "segmentation": []} for i, box in enumerate(extra)]
    file.write_text(json.dumps(content))
    written = write_as("yolo", recognise(root).read(), tmp_path / "out", images="none", boxes_only=True)
    assert dict(written.changes) == {
        "box without area left out": 1,
        "box cut at the edge of the image": 1,
        "object given twice, kept once": 1,
    }
    rows = np.loadtxt(tmp_path / "out" / "labels" / "train" / "000.txt", ndmin=2)
    assert len(rows) == 2
    assert rows[1, 1:].tolist() == pytest.approx([10 / 96, 10 / 64, 20 / 96, 20 / 64])


def test_images_of_one_name_in_several_folders_keep_their_own_labels(tmp_path):
    root = write_csv(tmp_path / "set")
    (root / "images" / "b").mkdir()
    (root / "images" / "000.png").rename(root / "images" / "b" / "001.png")
    (root / "boxes.csv").write_text((root / "boxes.csv").read_text().replace("000.png", "b/001.png"))
    write_as("voc", recognise(root).read(), tmp_path / "out")
    found = ours(recognise(tmp_path / "out").read())
    wanted = {"001.png": drawn()["000.png"], "001_2.png": drawn()["001.png"]}
    assert_equal({name: boxes for name, boxes in found.items() if name.startswith("001")}, wanted)


def test_nothing_is_written_into_a_folder_with_files_and_nothing_half(tmp_path, monkeypatch):
    annotated = recognise(write_yolo(tmp_path / "set")).read()
    with pytest.raises(UserError, match="not empty"):
        write_as("coco", annotated, tmp_path / "set")
    monkeypatch.setattr("yolov7fast.data.formats.write_dataset.json.dumps", _fail)
    with pytest.raises(UserError, match="cannot write"):
        write_as("coco", annotated, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set"]


def _fail(*_):
    raise OSError(28, "No space left on device")
