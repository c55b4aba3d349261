"""Defects put into a drawn YOLO data set, one of each kind, each in different files.

`python -m tests.data.checks.seeded FOLDER` writes it, for a comparison with other checkers.
"""

import io
import sys
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from yolov7fast.data.shapes import make_shapes

NAMES = ["ball", "crate", "cone", "star", "ghost", "Star", "comet"]  # ghost: nowhere; comet: in val alone


class Defect(NamedTuple):
    """What was put where."""

    check: str
    file: str  # name of the file in which it must be found
    line: int = 0


def seed_defects(root: Path) -> list[Defect]:
    """Put one defect of each kind into a set of `make_shapes`, and a data.yaml."""
    images, labels = root / "images" / "train", root / "labels" / "train"
    stock = iter(sorted(path for path in labels.glob("*.txt") if path.read_text().count("\n") >= 2))
    defects: list[Defect] = []

    def image() -> Path:
        return (images / next(stock).name).with_suffix(".jpg")

    def lines(check: str, change) -> None:
        """Change a label file's lines; `change` returns the new lines and the number of the one at fault."""
        path = next(stock)
        new, line = change(path.read_text().splitlines())
        path.write_text("\n".join(new) + "\n")
        defects.append(Defect(check, path.name, line))

    def bytes_of(check: str, change) -> None:
        path = image()
        path.write_bytes(change(path.read_bytes()))
        defects.append(Defect(check, path.name))

    # files
    bytes_of("unreadable image", lambda _: b"not an image at all" * 20)
    bytes_of("truncated image", lambda data: data[: len(data) // 2])
    bytes_of("rotated by EXIF", _with_orientation)
    bytes_of("grey image", lambda data: _encoded(_decoded(data).convert("L"), "JPEG"))
    bytes_of("tiny image", lambda data: _encoded(_decoded(data).resize((24, 20)), "JPEG"))
    bytes_of("image under 10 pixels", lambda data: _encoded(_decoded(data).resize((30, 8)), "JPEG"))
    bytes_of("suffix differs from content", lambda data: _encoded(_decoded(data), "PNG"))
    bytes_of("unsupported image format", lambda data: _encoded(_decoded(data), "GIF"))
    huge = image().with_suffix(".png")
    huge.with_suffix(".jpg").unlink()
    cv2.imwrite(str(huge), np.tile(np.arange(256, dtype=np.uint8), (5000, 24))[:, :6000])
    defects += [Defect("huge image", huge.name), Defect("grey image", huge.name)]

    # lines
    lines("wrong columns", lambda rows: ([rows[0] + " 0.9", *rows[1:]], 1))
    lines("not a number", lambda rows: ([rows[0], rows[1].replace("0.", "O.", 1), *rows[2:]], 2))
    lines("not finite", lambda rows: ([*rows, "1 nan 0.5 0.1 0.1"], len(rows) + 1))
    lines("bad class", lambda rows: (["-1" + rows[0][1:], *rows[1:]], 1))
    lines("fractional class", lambda rows: ([*rows, "1.5 0.11 0.12 0.13 0.14"], len(rows) + 1))
    lines("class beyond nc", lambda rows: ([*rows, "7 0.5 0.5 0.1 0.1"], len(rows) + 1))
    lines("coordinates out of range", lambda rows: ([*rows, "0 120 80 40 30"], len(rows) + 1))
    lines("box over the edge", lambda rows: ([*rows, "0 0.95 0.5 0.3 0.2"], len(rows) + 1))
    lines("box without area", lambda rows: ([*rows, "0 0.4 0.6 0 0.2"], len(rows) + 1))
    lines("duplicate box", lambda rows: ([*rows, rows[0]], len(rows) + 1))
    lines("nearly the same box", lambda rows: ([*rows, _moved(rows[1], 0)], len(rows) + 1))
    lines("nearly the same box, two classes", lambda rows: ([*rows, _moved(rows[1], 1)], len(rows) + 1))
    lines("box covers the image", lambda rows: ([*rows, "2 0.5 0.5 1 1"], len(rows) + 1))
    lines("box below 3 pixels", lambda rows: ([*rows, "3 0.21 0.22 0.003 0.004"], len(rows) + 1))
    lines("no anchor reaches", lambda rows: ([*rows, "3 0.5 0.3 0.9 0.009"], len(rows) + 1))
    polygon = "1 0.1 0.1 0.3 0.1 0.3 0.3 0.2 0.4 0.1 0.3"
    lines("box among polygons", lambda rows: ([polygon, rows[0]], 2))

    # files that are missing, shared or double
    path = next(stock)
    path.unlink()
    defects.append(Defect("missing label", path.with_suffix(".jpg").name))
    path = next(stock)
    path.write_text("")
    defects.append(Defect("empty label", path.name))
    path = next(stock)
    path.write_bytes(b"0 0.5 0.5 0.1 \xff\xfe\n")
    defects.append(Defect("unreadable label", path.name))
    (labels / "orphan.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    defects.append(Defect("label without image", "orphan.txt"))
    path = image()
    other = cv2.imread(str(image()))
    cv2.imwrite(str(path.with_suffix(".png")), cv2.flip(other, -1))
    defects.append(Defect("shared label file", path.with_suffix(".png").name))
    path = image()
    (images / "again.jpg").write_bytes(path.read_bytes())
    (labels / "again.txt").write_text((labels / f"{path.stem}.txt").read_text())
    defects.append(Defect("same image twice", "again.jpg"))

    # the other split
    val_images, val_labels = root / "images" / "val", root / "labels" / "val"
    path = image()
    (val_images / "leak.jpg").write_bytes(path.read_bytes())
    (val_labels / "leak.txt").write_text((labels / f"{path.stem}.txt").read_text())
    defects.append(Defect("image in two splits", "leak.jpg"))
    path = image()
    half = cv2.resize(cv2.imread(str(path)), None, fx=0.7, fy=0.7, interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(val_images / "near.jpg"), half, [cv2.IMWRITE_JPEG_QUALITY, 70])
    (val_labels / "near.txt").write_text("6 0.5 0.5 0.2 0.2\n")
    defects.append(Defect("near duplicates in two splits", "near.jpg"))

    # classes
    (root / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames: {NAMES}\n")
    defects += [
        Defect("unused class", "data.yaml"),
        Defect("class in val alone", "data.yaml"),
        Defect("class name given twice", "data.yaml"),
    ]
    return defects


def _decoded(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _encoded(image: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _with_orientation(data: bytes) -> bytes:
    exif = Image.Exif()
    exif[274] = 6
    return _encoded(_decoded(data), "JPEG", exif=exif.tobytes())


def _moved(row: str, step: int) -> str:
    """The same box, a trifle wider, `step` classes on."""
    cls, cx, cy, w, h = row.split()
    return f"{(int(cls) + step) % 4} {cx} {cy} {float(w) * 1.02:.6f} {h}"


if __name__ == "__main__":
    for defect in seed_defects(make_shapes(Path(sys.argv[1]), train=60, val=12, size=160)):
        print(*defect)
