"""Further records of a run of prediction: the found objects as images of their own, and a table of all of them."""

import csv
import re
from pathlib import Path

import numpy as np
import torch

from yolov7fast.core.drawing import Names, class_name, save_image
from yolov7fast.core.files.atomic import Replacement
from yolov7fast.inference.frames import Frame

COLUMNS = ("source", "frame", "class", "name", "confidence", "x1", "y1", "x2", "y2")


class CropWriter:
    """`crops/<class>/<source>_<number>.jpg`: every detection, cut out of the original image."""

    def __init__(self, save_dir: Path, names: Names):
        self.folder, self.names, self.count = Path(save_dir) / "crops", names, 0

    def write(self, frame: Frame, name: str, boxes: torch.Tensor) -> None:
        """name: that of the source's results."""
        stem = Path(name).stem if frame.kind == "image" else f"{Path(name).stem}_{frame.number}"
        height, width = frame.original.shape[:2]
        for number, row in enumerate(boxes.tolist(), 1):
            x1, y1, x2, y2 = (int(v) for v in row[:4])
            part = frame.original[max(y1, 0) : min(y2, height), max(x1, 0) : min(x2, width)]
            if not part.size:
                continue  # a box of no width or height after rounding
            folder = self.folder / re.sub(r"[^\w.\- ]", "_", class_name(self.names, row[5]))
            folder.mkdir(parents=True, exist_ok=True)
            save_image(np.ascontiguousarray(part), folder / f"{stem}_{number}.jpg")
            self.count += 1

    def close(self) -> None:
        """Every file is complete as it is written."""


class CsvWriter:
    """`predictions.csv`: a row for each detection, best first within an image. It gets its name at the end."""

    def __init__(self, save_dir: Path, names: Names):
        self.names, self.path = names, Path(save_dir) / "predictions.csv"
        self.replacement = Replacement(self.path)
        self.file = self.replacement.temporary.open("w", newline="", encoding="utf-8")
        self.rows = csv.writer(self.file)
        self.rows.writerow(COLUMNS)

    def write(self, frame: Frame, name: str, boxes: torch.Tensor) -> None:
        number = "" if frame.kind == "image" else frame.number
        for x1, y1, x2, y2, score, label in boxes.tolist():
            corners = (int(x1), int(y1), int(x2), int(y2))
            where = (frame.path, number, int(label), class_name(self.names, label))
            self.rows.writerow((*where, f"{score:.6g}", *corners))

    def close(self) -> None:
        self.file.close()
        self.replacement.commit()
