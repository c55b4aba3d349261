"""Label, VOC, COCO and CSV files with odd and damaged objects: the good ones are read exactly, the others are named."""

import functools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from xml.sax.saxutils import escape

import numpy as np
import pytest

from tests.data.formats import drawn_sets
from tests.fuzz.data_files import check_samples
from tests.fuzz.runner import run_drawn
from tests.fuzz.target import must
from yolov7fast.data.formats import coco_format, csv_format, voc_format, yolo_format
from yolov7fast.data.labels import check_pair

WORDS = ("", "nan", "-inf", "1e400", "x", "0x10", "1,5", "9" * 5000, "é", "[]", "<b>", "1 2", "\x1b[2J")
VALUES = (None, True, "1", float("nan"), float("inf"), 10**400, [], {}, [[1, 2]], "x" * 9000)
WIDTH, HEIGHT = drawn_sets.SIZES[0]
Box = tuple[int, int, int, int, int]  # class, left, top, right, bottom


def draw(rng: random.Random) -> tuple[list[Box], list[bool]]:
    """(boxes in pixels, whether each is to be damaged)."""
    lows = [(rng.randrange(3), rng.randrange(WIDTH - 9), rng.randrange(HEIGHT - 9)) for _ in range(rng.randrange(1, 9))]
    return [(c, x, y, x + rng.randint(1, 9), y + rng.randint(1, 9)) for c, x, y in lows], [
        rng.random() < 0.3 for _ in lows
    ]


def label(rng: random.Random, boxes: list[Box], bad: list[bool]) -> str:
    lines = []
    for (c, x1, y1, x2, y2), is_bad in zip(boxes, bad):
        words = [
            str(c),
            *map(str, ((x1 + x2) / 2 / WIDTH, (y1 + y2) / 2 / HEIGHT, (x2 - x1) / WIDTH, (y2 - y1) / HEIGHT)),
        ]
        if is_bad and rng.random() < 0.7:
            words[rng.randrange(5)] = rng.choice(("nan", "-inf", "1e400", "x", "0x10", "1,5", "9" * 5000, "é", "1 2"))
        elif is_bad:
            words = rng.choice((words[:4], [*words, "0.9"], ["-1", *words[1:]], ["1e30", *words[1:]]))
        lines.append(rng.choice((" ", "\t", "  ")).join(words) + rng.choice(("\n", " \n", "\r\n")))
    return "".join(lines)


def voc(rng: random.Random, boxes: list[Box], bad: list[bool]) -> str:
    items = []
    for (c, x1, y1, x2, y2), is_bad in zip(boxes, bad):
        parts = {"name": drawn_sets.NAMES[c], "xmin": x1 + 1, "ymin": y1 + 1, "xmax": x2, "ymax": y2}
        if is_bad and (key := rng.choice(list(parts))) == "name":
            parts[key] = rng.choice(("", " ", "\n"))
        elif is_bad:
            parts[key] = rng.choice([word for word in WORDS if "\x1b" not in word])
        sides = [f"<{key}>{escape(str(parts[key]))}</{key}>" for key in rng.sample(list(parts)[1:], 4)]
        items.append(f"<object><name>{parts['name']}</name><part>1</part><bndbox>{''.join(sides)}</bndbox></object>")
    return f"<annotation><filename>000.png</filename>\n{rng.choice(('', chr(10))).join(items)}</annotation>"


def coco(rng: random.Random, boxes: list[Box], bad: list[bool]) -> str:
    content, items = drawn_sets.coco_content([0]), []
    for k, ((c, x1, y1, x2, y2), is_bad) in enumerate(zip(boxes, bad), 1):
        item = {"id": k, "image_id": 1000, "category_id": (3, 7, 20)[c], "bbox": [x1, y1, x2 - x1, y2 - y1]}
        if is_bad and (key := rng.choice(("image_id", "category_id", "bbox", "number", "all"))) in item:
            item[key] = rng.choice([value for value in VALUES if value is not True])
        elif is_bad and key == "number":
            item["bbox"][rng.randrange(4)] = rng.choice(VALUES)
        items.append(rng.choice(VALUES) if is_bad and key == "all" else item)
    return json.dumps(content | {"annotations": items})


def table(rng: random.Random, boxes: list[Box], bad: list[bool]) -> str:
    rows = ["filename,class,xmin,ymin,xmax,ymax", "000.png,,,,,"]
    for (c, *box), is_bad in zip(boxes, bad):
        cells = ["000.png", drawn_sets.NAMES[c], *map(str, box)]
        if is_bad:
            place = rng.randrange(6)
            cells[place] = "" if place < 2 else rng.choice(WORDS).replace(",", ";")
        rows.append(",".join(cells))
    return "\n".join(rows)


def use(kind: str, boxes: list[Box], bad: list[bool], folder: Path) -> None:
    """Objects that are not damaged are read with their class and box; each damaged one is a fault."""
    image = folder / "images/train/000.png"
    if kind == "label":
        samples = yolo_format.read_samples([str(image)], folder)
        annotated = SimpleNamespace(samples=samples, names=drawn_sets.NAMES)
        checked = check_pair(str(image), str(folder / "labels/train/000.txt"))
        must((checked.labels is None) == any(bad) or len(set(boxes)) < len(boxes), "training leaves the image out")
    elif kind == "voc":
        annotated = voc_format.read(voc_format.find(folder))
    elif kind == "coco":
        annotated = coco_format.read(coco_format.of_file(folder / "annotations/instances_train2017.json"))
    else:
        annotated = csv_format.read(csv_format.of_file(folder / "boxes.csv"))
    check_samples(annotated)
    sample, good = annotated.samples[0], [box for box, is_bad in zip(boxes, bad) if not is_bad]
    read = sample.fractions * (WIDTH, HEIGHT, WIDTH, HEIGHT)
    names = [annotated.names[c] for c in sample.classes]
    must(names == [drawn_sets.NAMES[box[0]] for box in good], f"classes {names}, {good}")
    must(np.allclose(read, np.array([box[1:] for box in good]).reshape(-1, 4), atol=1e-6), f"boxes {read}, {good}")
    must(len(sample.faults) == sum(bad), f"{sample.faults} for {sum(bad)} damaged objects")


KINDS = {
    "label": ("labels/train/000.txt", label, functools.partial(drawn_sets.write_yolo, layout="ultralytics")),
    "voc": ("Annotations/000.xml", voc, drawn_sets.write_voc),
    "coco": ("annotations/instances_train2017.json", coco, drawn_sets.write_coco),
    "csv": ("boxes.csv", table, drawn_sets.write_csv),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cases", [50, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_good_objects_are_read_and_damaged_ones_named(kind, cases, tmp_path):
    file, make, write = KINDS[kind]
    write(tmp_path / kind, train=1, val=0)

    def one(number: int):
        rng = random.Random(f"data {kind} {number}")
        boxes, bad = draw(rng)
        return make(rng, boxes, bad).encode("utf-8", "replace"), functools.partial(use, kind, boxes, bad)

    results = run_drawn(kind, tmp_path / kind / file, one, cases, tmp_path)
    assert not any(result.refused for result in results)
