"""Data sets, their labels, images and caches, as the project uses them."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.data.formats import drawn_sets
from tests.fuzz.target import must
from yolov7fast.data.caches.image_cache import PackedImages
from yolov7fast.data.caches.label_cache import load_labels
from yolov7fast.data.formats import coco_format, csv_format, voc_format, yolo_format
from yolov7fast.data.formats.recognise import recognise
from yolov7fast.data.formats.write_dataset import label_lines
from yolov7fast.data.image_io import load_resized
from yolov7fast.data.labels import check_pair, find_images
from yolov7fast.evaluation.coco_metrics import coco_stats, detection_rows, ground_truth
from yolov7fast.inference.sources import open_source

NAMES = drawn_sets.NAMES


# --- labels and caches ------------------------------------------------------------------------------------------------


def make_set(folder: Path) -> None:
    drawn_sets.write_yolo(folder, "ultralytics", train=3, val=1)
    load_labels(images_of(folder), str(folder / "images/train"))


def images_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in (folder / "images/train").glob("*.png"))


def check_table(images: list[str], source: Path, rows: int | None = None) -> None:
    loaded = load_labels(images, str(source))
    for labels in loaded.labels:
        must(labels.dtype == np.float32 and np.isfinite(labels).all(), "finite labels")
        must((labels[:, 0] >= 0).all() and (labels[:, 1:] <= 1.01).all(), "labels in range")
    must(all(str(problem).count("\n") == 0 for problem in loaded.problems), "a problem is one line")


def use_labels(folder: Path) -> None:
    check_table(images_of(folder), folder / "images/train")
    for keep in (False, True):
        check_pair(str(folder / "images/train/000.png"), str(folder / "labels/train/000.txt"), keep)
    for sample in yolo_format.read_samples(images_of(folder), folder):
        label_lines(sample, len(NAMES))


def use_label_cache(folder: Path) -> None:
    """Whatever the cache holds, the labels are those of the files."""
    loaded = load_labels(images_of(folder), str(folder / "images/train"))
    must([os.path.basename(path) for path in loaded.img_files] == ["000.png", "001.png", "002.png"], "images")
    for path, labels in zip(loaded.img_files, loaded.labels):
        text = Path(path.replace("/images/", "/labels/")).with_suffix(".txt").read_text()
        rows = np.array([line.split() for line in text.splitlines()], np.float32).reshape(-1, 5)
        must(np.array_equal(rows, labels), f"labels of {path}")


def make_pack(folder: Path) -> None:
    drawn_sets.write_yolo(folder, "ultralytics", train=3, val=1)
    PackedImages.open_or_build(images_of(folder), 64, augment=True, cache_dir=folder)


def use_pack(folder: Path) -> None:
    """Whatever the pack holds, the pixels are those of the images."""
    images = images_of(folder)
    pack = PackedImages.open_or_build(images, 64, augment=True, cache_dir=folder)
    for i, path in enumerate(images):
        must(np.array_equal(pack.get(i).img, load_resized(path, 64, True).img), f"pixels of {path}")


def use_image(folder: Path) -> None:
    path = next((folder / "images/train").glob("000.*"))
    checked = check_pair(str(path), str(folder / "labels/train/000.txt"))
    if checked.labels is not None:
        load_resized(str(path), 64, True)
    with contextlib.closing(open_source(str(path), 64)) as source:
        for frame in source.frames():
            must(frame.image is not None, "pixels")
    recognise(folder)


def make_jpeg(folder: Path) -> None:
    import cv2

    make_set(folder)
    image = folder / "images/train/000.png"
    cv2.imwrite(str(image.with_suffix(".jpg")), cv2.imread(str(image)))
    image.unlink()


def use_image_list(folder: Path) -> None:
    find_images(str(folder / "train.txt"))


# --- data sets in other formats ---------------------------------------------------------------------------------------


def check_samples(annotated: Any) -> None:
    for sample in annotated.samples:
        for line in label_lines(sample, len(annotated.names))[0]:
            values = [float(word) for word in line.split()]
            must(np.isfinite(values).all() and 0 <= values[0] < len(annotated.names), f"line {line}")


def use_coco(folder: Path) -> None:
    file = folder / "annotations/instances_train2017.json"
    check_samples(coco_format.read(coco_format.of_file(file)))


def use_annotations(folder: Path) -> None:
    files = [str(path) for path in sorted((folder / "train2017").glob("*.png"))]
    images = SimpleNamespace(
        img_files=files, shapes=np.array([drawn_sets.SIZES[i] for i in range(3)]), labels=[np.zeros((0, 5))] * 3
    )
    truth = ground_truth(str(folder / "annotations/instances_train2017.json"), images, NAMES, False)
    coco_stats(truth, detection_rows(files[0], np.array([[1, 2, 30, 40, 0.9, 0]]), truth))


def use_voc(folder: Path) -> None:
    layout = voc_format.find(folder)
    must(layout is not None, "layout")
    check_samples(voc_format.read(layout))


def use_csv(folder: Path) -> None:
    check_samples(csv_format.read(csv_format.of_file(folder / "boxes.csv")))
