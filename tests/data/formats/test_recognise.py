"""What lies at a path is recognised, or the error names what was looked for and the choices."""

import json
import os
import shutil

import pytest

from tests.data.formats.drawn_sets import (
    NAMES,
    coco_content,
    draw,
    write_coco,
    write_csv,
    write_voc,
    write_yolo,
    yolo_text,
)
from tests.data.formats.test_convert import assert_equal, drawn, ours
from yolov7fast.core.errors import UserError
from yolov7fast.data.formats.recognise import recognise


def summary(path) -> tuple[str, dict[str, int], list[str]]:
    """Kind, images of each split, names."""
    annotated = recognise(path).read()
    return annotated.kind, {split: len(samples) for split, samples in annotated.splits.items()}, annotated.names


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda r: write_yolo(r, "roboflow"), "YOLO"),
        (lambda r: write_yolo(r, "ultralytics"), "YOLO"),
        (lambda r: write_coco(r, "coco"), "COCO JSON"),
        (lambda r: write_coco(r, "roboflow"), "COCO JSON"),
        (lambda r: write_voc(r, "voc"), "Pascal VOC"),
        (lambda r: write_voc(r, "roboflow"), "Pascal VOC"),
        (write_csv, "CSV"),
    ],
)
def test_each_layout_is_recognised_also_one_folder_down_and_in_a_zip(tmp_path, write, kind):
    wanted = (kind, {"train": 8, "val": 4}, NAMES)
    root = write(tmp_path / "outer" / "set")
    assert_equal(ours(recognise(root).read()), drawn())
    assert summary(root) == wanted
    assert summary(tmp_path / "outer") == wanted
    assert summary(shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "outer")) == wanted


def test_without_any_list_the_classes_are_numbers(tmp_path):
    root = write_yolo(tmp_path / "set", "ultralytics")
    (root / "data.yaml").unlink()
    assert summary(root) == ("YOLO", {"train": 8, "val": 4}, ["0", "1", "2"])


@pytest.mark.parametrize("start", ["./", "data/", "C:\\jobs\\7\\"])
def test_darknet_as_cvat_exports_it(tmp_path, start):
    for i in range(3):
        draw(i, tmp_path / "obj_train_data" / f"{i}.png")
        (tmp_path / "obj_train_data" / f"{i}.txt").write_text(yolo_text(i))
    (tmp_path / "train.txt").write_text("".join(f"{start}obj_train_data/{i}.png\n" for i in range(3)))
    (tmp_path / "obj.names").write_text("\n".join(NAMES))
    (tmp_path / "obj.data").write_text("classes = 3\ntrain = data/train.txt\nnames = data/obj.names\n")
    assert summary(tmp_path) == ("YOLO", {"train": 3}, NAMES)
    assert all(sample.labelled and os.path.isfile(sample.image) for sample in recognise(tmp_path).read().samples)


def test_cvat_voc_takes_its_class_order_from_the_label_map(tmp_path):
    root = write_voc(tmp_path / "set")
    (root / "labelmap.txt").write_text("# label:color:parts:actions\nzebra:1,2,3::\nbackground:::\ncat:::\nbird:::\n")
    assert summary(root)[2] == ["zebra", "cat", "bird"]


def test_voc_devkit_with_trainval_and_class_lists(tmp_path):
    root = write_voc(tmp_path / "VOCdevkit" / "VOC2007")
    lists = root / "ImageSets" / "Main"
    (lists / "cat_train.txt").write_text("000 -1\n001 1\n")
    (lists / "trainval.txt").write_text((lists / "train.txt").read_text() + (lists / "val.txt").read_text())
    assert summary(tmp_path / "VOCdevkit") == ("Pascal VOC", {"train": 8, "val": 4}, NAMES)
    (lists / "train.txt").unlink()
    (lists / "val.txt").unlink()
    assert summary(root)[1] == {"train": 12}


def test_a_single_annotation_file_can_be_given(tmp_path):
    root = write_coco(tmp_path / "set")
    assert summary(root / "annotations" / "instances_val2017.json")[1] == {"val": 4}
    assert summary(write_csv(tmp_path / "csv") / "boxes.csv")[1] == {"train": 8, "val": 4}


def test_two_kinds_of_labels_are_an_error_that_names_both_and_how_to_choose(tmp_path):
    root = write_yolo(tmp_path / "set", "ultralytics")
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_train.json").write_text(json.dumps(coco_content([0, 1])))
    with pytest.raises(UserError) as error:
        recognise(root)
    assert f"YOLO (data.yaml): --data {root}/data.yaml" in str(error.value)
    assert f"--data {root}/annotations" in str(error.value)
    assert recognise(root / "data.yaml").kind == "YOLO"
    assert recognise(root / "annotations").kind == "COCO JSON"
    assert recognise(root / "labels").kind == "YOLO"


COCO = json.dumps(coco_content([0]))
YAML = "train: images\nnames: [a]\n"
CSV = "filename,class,xmin,ymin,xmax,ymax\n0.png,a,1,2,3,4\n"


@pytest.mark.parametrize(
    ("names", "content", "words"),
    [
        (["annotations/instances_train2014.json", "annotations/instances_train2017.json"], COCO, "2 annotation files"),
        (["annotations/a.json", "annotations/b.json"], COCO, "2 annotation files"),
        (["a.yaml", "b.yaml"], YAML, "several data YAML files"),
        (["a.csv", "b.csv"], CSV, "2 annotation files"),
    ],
)
def test_several_files_for_one_split_are_an_error_that_names_them_and_a_flag_to_paste(tmp_path, names, content, words):
    root = tmp_path / "my set"
    (root / "annotations").mkdir(parents=True)
    for name in names:
        (root / name).write_text(content)
    with pytest.raises(UserError, match=words) as error:
        recognise(root)
    assert all(os.path.basename(name) in str(error.value) for name in names)
    assert f"--data '{root / names[0]}'" in str(error.value)


def test_a_folder_without_labels_says_what_was_looked_for_and_what_is_there(tmp_path):
    draw(0, tmp_path / "photo.png")
    with pytest.raises(UserError, match=r"no data set that is known.*photo\.png"):
        recognise(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        recognise(tmp_path / "nowhere")


@pytest.mark.parametrize("write", [write_coco, write_csv, write_voc])
def test_fifos_and_links_to_themselves_next_to_a_data_set_neither_hang_nor_end_the_search(tmp_path, write):
    """Reading a FIFO does not end; asking for the kind of such a link raises an error."""
    root = write(tmp_path / "set")
    for folder in (root, root / "images", root / "train2017", root / "JPEGImages"):
        if folder.is_dir():
            (folder / "000a.png").symlink_to("000a.png")
    for name in ("x.yaml", "obj.data", "x.csv", "x.json", "classes.txt"):
        os.mkfifo(root / name)
    assert summary(root)[1:] == ({"train": 8, "val": 4}, NAMES)
    os.mkfifo(root / "labelmap.txt")
    if write is write_voc:
        with pytest.raises(UserError, match=r"labelmap\.txt cannot be read \(not a regular file\)"):
            summary(root)


@pytest.mark.parametrize(
    ("header", "row", "box"),
    [
        ("image,x1,y1,x2,y2,label", "0.png,10,20,40,50,cat", (10, 20, 40, 50)),
        ("filename;xmin;ymin;w;h;class", "0.png;10;20;30;30;cat", (10, 20, 40, 50)),
        ("path,cx,cy,w,h,category", "a/b/0.png,25,35,30,30,cat", (10, 20, 40, 50)),
        ("ImageID,LabelName,XMin,XMax,YMin,YMax", "0,cat,0.25,0.5,0.5,1.0", (24, 32, 48, 64)),
    ],
)
def test_columns_of_a_csv_are_known_by_their_names(tmp_path, header, row, box):
    draw(0, tmp_path / "images" / "0.png")  # 96 x 64
    (tmp_path / "boxes.csv").write_text(f"{header}\n{row}\n")
    annotated = recognise(tmp_path).read()
    (sample,) = annotated.samples
    assert annotated.names == ["cat"]
    assert (sample.fractions[0] * (96, 64, 96, 64)).tolist() == pytest.approx(box)


def test_a_csv_row_of_a_class_without_a_box_is_a_fault_and_one_without_both_a_background_image(tmp_path):
    for i in (0, 1):
        draw(i, tmp_path / "images" / f"{i}.png")
    (tmp_path / "boxes.csv").write_text("filename,class,xmin,ymin,xmax,ymax\n0.png,cat,,,,\n1.png,,,,,\n")
    samples = recognise(tmp_path).read().samples
    assert [[(fault.kind, fault.line) for fault in sample.faults] for sample in samples] == [[("not a number", 2)], []]


def test_a_csv_whose_columns_are_unclear_is_an_error_that_names_what_is_needed(tmp_path):
    (tmp_path / "boxes.csv").write_text("filename,class,x,y,width,height\na.png,cat,1,2,3,4\n")
    with pytest.raises(UserError, match="xmin, ymin, xmax, ymax"):
        recognise(tmp_path / "boxes.csv").read()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "no COCO data set"),
        ('{"images": [], "categories": {}}', "needs 'categories'"),
        ('{"images": [{"id": 1}], "categories": []}', "needs 'images'"),
        ('{"images": [], "categories": [{"id": "x", "name": "y"}]}', "whole numbers"),
        ("[" * 100_000, "not readable as JSON"),
    ],
)
def test_a_damaged_coco_file_is_named_in_one_line(tmp_path, text, words):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=words) as error:
        recognise(tmp_path / "a.json").read()
    assert "a.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_xml_with_entities_is_refused_and_named(tmp_path):
    """A file of a few lines can otherwise unfold to gigabytes."""
    root = write_voc(tmp_path / "set")
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><annotation><filename>&b;</filename></annotation>'
    (root / "Annotations" / "000.xml").write_text(bomb)
    sample = recognise(root).read().splits["train"][0]
    assert [fault.kind for fault in sample.faults] == ["unreadable label"]
    assert "entities" in sample.faults[0].text


def test_lines_of_a_voc_file_are_named(tmp_path):
    root = write_voc(tmp_path / "set")
    file = root / "Annotations" / "001.xml"
    file.write_text(file.read_text().replace("<xmin>", "<xmin>x", 1))
    sample = next(s for s in recognise(root).read().samples if s.label_file == str(file))
    assert [(f.kind, f.line) for f in sample.faults] == [("not a number", 4)]
