"""The files of a detection run: labelled images and videos, text files, crops and a table; and a window."""

import csv
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch

from yolov7fast.core.boxes import xyxy2xywh
from yolov7fast.core.drawing import Names, class_colour, class_name, draw_boxes, save_image
from yolov7fast.core.files.atomic import Replacement, write_atomically
from yolov7fast.inference.sources import STREAM_FPS, Frame

LOGGER = logging.getLogger(__name__)

Show = Callable[[Frame, np.ndarray], bool]  # shows an image; False when the user pressed q
COLUMNS = ("source", "frame", "class", "name", "confidence", "x1", "y1", "x2", "y2")


class PredictionOutput:
    """Writes results to `save_dir`. Two sources with the same name get different file names.

    Args:
        save_dir: the folder; images and videos keep their names.
        names: class names.
        save_img: write images and videos with boxes drawn.
        save_txt: write labels/*.txt.
        save_conf: add the confidence to their lines.
        save_crop: write every detection to crops/CLASS/SOURCE_NUMBER.jpg.
        save_csv: write predictions.csv with one row per detection, best first within an image.
    """

    def __init__(
        self,
        save_dir: Path,
        names: Names,
        save_img: bool = True,
        save_txt: bool = False,
        save_conf: bool = False,
        save_crop: bool = False,
        save_csv: bool = False,
    ):
        self.save_dir, self.names = Path(save_dir), names
        self.save_img, self.save_txt, self.save_conf, self.save_crop = save_img, save_txt, save_conf, save_crop
        self.label_count = 0  # text files written
        self._names: dict[str, str] = {}  # source path -> name of its results
        self._videos: dict[str, _Video] = {}
        (self.save_dir / "labels" if save_txt else self.save_dir).mkdir(parents=True, exist_ok=True)
        self._csv = None
        if save_csv:
            self._csv = Replacement(self.save_dir / "predictions.csv")
            self._csv_file = self._csv.temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace")
            self._rows = csv.writer(self._csv_file)
            self._rows.writerow(COLUMNS)

    @property
    def writes_files(self) -> bool:
        return bool(self.save_img or self.save_txt or self.save_crop or self._csv)

    def write(self, frame: Frame, boxes: torch.Tensor) -> Path | None:
        """Write the results of an image, boxes (k, 6) in its pixels; returns the path of a saved image."""
        name = self._name(frame.path)
        if self.save_txt:
            self._write_text(frame, name, boxes)
        if self.save_crop:
            self._write_crops(frame, name, boxes)
        if self._csv:
            self._write_rows(frame, boxes)
        if not self.save_img:
            return None
        drawn = self.drawn(frame, boxes)
        if frame.kind != "image":
            self._video(frame, name, drawn.shape).add(drawn)
            return None
        path = writable_path(self.save_dir / name)
        save_image(drawn, path)
        return path

    def drawn(self, frame: Frame, boxes: torch.Tensor) -> np.ndarray:
        """A copy of the original with its boxes and labels."""
        return draw_detections(frame.original, boxes, self.names)

    def _write_text(self, frame: Frame, name: str, boxes: torch.Tensor) -> None:
        """One `class x y w h [score]` per line, normalised, by ascending score; no file without detections."""
        stem = Path(name).stem if frame.kind != "stream" else name
        path = self.save_dir / "labels" / f"{stem}{'' if frame.kind == 'image' else f'_{frame.number}'}.txt"
        if not len(boxes):
            path.unlink(missing_ok=True)  # left by an earlier run in the same folder
            return
        h, w = frame.original.shape[:2]
        xywh = (xyxy2xywh(boxes[:, :4]) / torch.tensor([w, h, w, h])).tolist()
        lines = []
        for row, (*_, score, class_id) in reversed(list(zip(xywh, boxes.tolist()))):
            values = (class_id, *row, score) if self.save_conf else (class_id, *row)
            lines.append(" ".join(f"{v:g}" for v in values) + "\n")
        write_atomically(path, "".join(lines), durable=False)
        self.label_count += 1

    def _write_crops(self, frame: Frame, name: str, boxes: torch.Tensor) -> None:
        stem = Path(name).stem if frame.kind == "image" else f"{Path(name).stem}_{frame.number}"
        height, width = frame.original.shape[:2]
        for number, row in enumerate(boxes.tolist(), 1):
            x1, y1, x2, y2 = (int(v) for v in row[:4])
            crop = frame.original[max(y1, 0) : min(y2, height), max(x1, 0) : min(x2, width)]
            if crop.size:
                folder = self.save_dir / "crops" / re.sub(r"[^\w.\- ]", "_", class_name(self.names, row[5]))
                folder.mkdir(parents=True, exist_ok=True)
                save_image(np.ascontiguousarray(crop), folder / f"{stem}_{number}.jpg")

    def _write_rows(self, frame: Frame, boxes: torch.Tensor) -> None:
        number = "" if frame.kind == "image" else frame.number
        for *corners, score, label in boxes.tolist():
            row = (frame.path, number, int(label), class_name(self.names, label), f"{score:.6g}", *map(int, corners))
            self._rows.writerow(row)

    def _name(self, source: str) -> str:
        """The file name of the results of a source, with a number if another source has the same stem."""
        if source not in self._names:
            stem, suffix = os.path.splitext(utf8_name(source))
            taken = {os.path.splitext(other)[0] for other in self._names.values()}
            unique, count = stem, 2
            while unique in taken:
                unique, count = f"{stem}_{count}", count + 1
            if unique != stem:
                LOGGER.warning("%s: its name is taken; results are saved as %s%s", source, unique, suffix)
            self._names[source] = unique + suffix
        return self._names[source]

    def _video(self, frame: Frame, name: str, shape: tuple[int, ...]) -> "_Video":
        if frame.path not in self._videos:
            is_file = frame.kind == "video"
            if is_file:
                self._close_videos()  # video files come one after the other
            path = self.save_dir / (name if is_file else f"{name}.mp4")
            self._videos[frame.path] = _Video(path, frame.fps if is_file else STREAM_FPS, shape)
        return self._videos[frame.path]

    def _close_videos(self) -> None:
        for video in self._videos.values():
            video.close()
        self._videos.clear()

    def close(self) -> None:
        """Complete all videos and the table."""
        self._close_videos()
        if self._csv:
            self._csv_file.close()
            self._csv.commit()


class _Video:
    """A video file that gets its final name when it is complete."""

    def __init__(self, path: Path, fps: float, shape: tuple[int, ...]):
        self.path, self.size = path, (shape[1], shape[0])
        codec = cv2.VideoWriter.fourcc(*"mp4v")
        self.writer = cv2.VideoWriter()
        for self.path in (path, path.with_suffix(".mp4")):  # not every container supports this codec
            self.part = Replacement(self.path, suffix=self.path.suffix, durable=False)
            self.writer = cv2.VideoWriter(str(self.part.temporary), codec, fps, self.size)
            if self.writer.isOpened():
                return
            self.part.discard()
        LOGGER.warning("no video can be written to %s: OpenCV has no mp4v encoder here", path)

    def add(self, image: np.ndarray) -> None:
        if self.writer.isOpened():
            same = (image.shape[1], image.shape[0]) == self.size  # the size of a stream may change
            self.writer.write(image if same else cv2.resize(image, self.size))

    def close(self) -> None:
        opened = self.writer.isOpened()
        self.writer.release()
        if opened:
            self.part.commit()
            LOGGER.info("video saved in: %s", self.path)


def class_counts(boxes: torch.Tensor, names: Names) -> str:
    """The number of detections (k, 6) by class, for example '21 RBC, 1 WBC', in ascending order of class ids."""
    classes, counts = boxes[:, 5].unique(return_counts=True)
    return ", ".join(f"{n} {class_name(names, c)}" for c, n in zip(classes.tolist(), counts.tolist()))


def draw_detections(image: np.ndarray, boxes: torch.Tensor, names: Names) -> np.ndarray:
    """A copy of a BGR image with boxes (k, 6) and "name score" labels; the best detections are drawn last."""
    image, rows = np.ascontiguousarray(image).copy(), boxes.flip(0).tolist()
    labels = [f"{class_name(names, row[5])} {row[4]:.2f}" for row in rows]
    draw_boxes(image, [row[:4] for row in rows], labels, [class_colour(row[5]) for row in rows])
    return image


def utf8_name(path: str | Path) -> str:
    """The file name without undecodable bytes, which crash OpenCV."""
    return os.fsencode(Path(path).name).decode(errors="replace")


def writable_path(path: Path) -> Path:
    """The path, with the suffix .jpg if OpenCV cannot write its format, such as .dng."""
    return path if cv2.haveImageWriter(utf8_name(path)) else path.with_suffix(".jpg")


def show_on_screen(frame: Frame, image: np.ndarray) -> bool:
    """Show an image in a window; False when the user pressed q."""
    cv2.imshow(utf8_name(frame.path), image)
    return cv2.waitKey(1) & 0xFF != ord("q")


def open_window() -> Show | None:
    """`show_on_screen` if there is a display that OpenCV can use, else None after a warning."""
    has_screen = not sys.platform.startswith("linux") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if has_screen:  # OpenCV's GUI aborts the process without one
        try:
            cv2.namedWindow("detect")
            cv2.destroyWindow("detect")
            return show_on_screen
        except cv2.error:
            pass  # a build without windows
    LOGGER.warning("--view-img: no display here, or an OpenCV without windows; detection continues without showing")
    return None
