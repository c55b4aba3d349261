"""One small drawn data set, written in every format without the code under test."""

import json
from pathlib import Path
from xml.sax.saxutils import escape

import cv2
import numpy as np
import yaml

NAMES = ["bird", "cat", "zebra"]  # in alphabetical order, as formats without a list of names number them
SIZES = [(96, 64), (64, 96), (80, 80), (100, 60)]  # width, height
COLOURS = [(40, 60, 220), (60, 200, 60), (220, 90, 40)]  # BGR of a class


def boxes_of(index: int) -> list[tuple[int, float, float, float, float]]:
    """(class, left, top, right, bottom) in pixels of image number `index`; of three images one has none."""
    if index % 3 == 2:
        return []
    rng = np.random.default_rng([7, index])
    width, height = SIZES[index % len(SIZES)]
    boxes = []
    for k in range(1 + index % 3):
        w, h = rng.integers(12, width // 2), rng.integers(12, height // 2)
        x, y = rng.integers(0, width - w), rng.integers(0, height - h)
        boxes.append((int((index + k) % 3), float(x), float(y), float(x + w), float(y + h)))
    return boxes


def draw(index: int, path: Path) -> None:
    width, height = SIZES[index % len(SIZES)]
    rng = np.random.default_rng([9, index])
    image = cv2.resize(rng.integers(60, 190, (5, 5, 3), dtype=np.uint8), (width, height))
    for cls, left, top, right, bottom in boxes_of(index):
        cv2.rectangle(image, (int(left), int(top)), (int(right) - 1, int(bottom) - 1), COLOURS[cls], -1)
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image)


def splits(train: int = 8, val: int = 4) -> dict[str, list[int]]:
    """Numbers of the images of each split."""
    return {"train": list(range(train)), "val": list(range(train, train + val))}


def yolo_text(index: int) -> str:
    width, height = SIZES[index % len(SIZES)]
    lines = []
    for cls, x1, y1, x2, y2 in boxes_of(index):
        values = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height)
        lines.append(f"{cls} " + " ".join(f"{v:.9f}" for v in values) + "\n")
    return "".join(lines)


def write_yolo(root: Path, layout: str = "roboflow", **numbers) -> Path:
    """layout: 'roboflow' (train/images, data.yaml with ../), 'ultralytics' (images/train, `path`, names as mapping)."""
    for split, indices in splits(**numbers).items():
        folder = "valid" if split == "val" and layout == "roboflow" else split
        images = root / folder / "images" if layout == "roboflow" else root / "images" / folder
        labels = root / folder / "labels" if layout == "roboflow" else root / "labels" / folder
        labels.mkdir(parents=True)
        for i in indices:
            draw(i, images / f"{i:03}.png")
            (labels / f"{i:03}.txt").write_text(yolo_text(i))
    if layout == "roboflow":
        data = {"train": "../train/images", "val": "../valid/images", "test": "../test/images", "nc": 3, "names": NAMES}
    else:
        data = {"path": str(root), "train": "images/train", "val": ["images/val"], "names": dict(enumerate(NAMES))}
    (root / "data.yaml").write_text(yaml.safe_dump(data))
    return root


def coco_content(indices: list[int], masks: bool = True) -> dict:
    """COCO's three lists. Category ids have gaps (3, 7, 20); every second object has a polygon."""
    ids = [3, 7, 20]
    images, annotations = [], []
    for i in indices:
        width, height = SIZES[i % len(SIZES)]
        images.append({"id": 1000 + i, "file_name": f"{i:03}.png", "width": width, "height": height})
        for cls, x1, y1, x2, y2 in boxes_of(i):
            item = {"id": len(annotations) + 1, "image_id": 1000 + i, "category_id": ids[cls], "iscrowd": 0}
            item |= {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
            if masks:  # supervision wants a mask for all objects, or for none
                item["segmentation"] = [[x1, y1, x2, y1, x2, y2, x1, y2]]
            annotations.append(item)
    categories = [{"id": i, "name": name} for i, name in zip(ids, NAMES)]
    return {"images": images, "annotations": annotations, "categories": categories[::-1]}


def write_coco(root: Path, layout: str = "coco", **numbers) -> Path:
    """layout: 'coco' (annotations/instances_train2017.json, train2017/), 'roboflow' (train/_annotations.coco.json)."""
    for split, indices in splits(**numbers).items():
        content = coco_content(indices)
        if layout == "coco":
            images, file = root / f"{split}2017", root / "annotations" / f"instances_{split}2017.json"
        else:
            images = root / ("valid" if split == "val" else split)
            file = images / "_annotations.coco.json"
        for i in indices:
            draw(i, images / f"{i:03}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    return root


def voc_xml(index: int, name: str) -> str:
    width, height = SIZES[index % len(SIZES)]
    objects = "".join(
        f"  <object>\n    <name>{escape(NAMES[cls])}</name>\n    <difficult>0</difficult>\n"
        f"    <bndbox><xmin>{x1 + 1:g}</xmin><ymin>{y1 + 1:g}</ymin><xmax>{x2:g}</xmax><ymax>{y2:g}</ymax></bndbox>\n"
        "  </object>\n"
        for cls, x1, y1, x2, y2 in boxes_of(index)
    )
    size = f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>\n"
    return f"<annotation>\n  <filename>{escape(name)}</filename>\n{size}{objects}</annotation>\n"


def write_voc(root: Path, layout: str = "voc", **numbers) -> Path:
    """layout: 'voc' (Annotations, JPEGImages, ImageSets), 'roboflow' (XML next to the images)."""
    for split, indices in splits(**numbers).items():
        folder = root / ("valid" if split == "val" else split)
        images, labels = (root / "JPEGImages", root / "Annotations") if layout == "voc" else (folder, folder)
        labels.mkdir(parents=True, exist_ok=True)
        for i in indices:
            draw(i, images / f"{i:03}.png")
            (labels / f"{i:03}.xml").write_text(voc_xml(i, f"{i:03}.png"))
        if layout == "voc":
            lists = root / "ImageSets" / "Main"
            lists.mkdir(parents=True, exist_ok=True)
            (lists / f"{split}.txt").write_text("".join(f"{i:03}\n" for i in indices))
    return root


def csv_rows(indices: list[int]) -> list[str]:
    rows = []
    for i in indices:
        width, height = SIZES[i % len(SIZES)]
        for cls, x1, y1, x2, y2 in boxes_of(i):
            rows.append(f"{i:03}.png,{width},{height},{NAMES[cls]},{x1:g},{y1:g},{x2:g},{y2:g}")
        if not boxes_of(i):
            rows.append(f"{i:03}.png,{width},{height},,,,,")
    return rows


def write_csv(root: Path, **numbers) -> Path:
    """One boxes.csv with a column for the split; images in images/."""
    rows = ["filename,width,height,class,xmin,ymin,xmax,ymax,split"]
    for split, indices in splits(**numbers).items():
        rows += [f"{row},{split}" for row in csv_rows(indices)]
        for i in indices:
            draw(i, root / "images" / f"{i:03}.png")
    (root / "boxes.csv").write_text("\n".join(rows) + "\n")
    return root
